# SPDX-License-Identifier: Apache-2.0
"""Stable-Baselines3 with settings after rl-zoo, one run; executed by its own environment's Python.

`a2c_threads` lets torch use all cores, which pays for images: everything is in one process.
"""

from __future__ import annotations

import os
from typing import Any

import referee

NUM_ENVS = {"CartPole-v1": 8, "ALE/Pong-v5": 16}
PPO_EPOCHS = 20


def settings(name: str, env: str) -> tuple[dict[str, Any], int]:
    """Hyperparameters after rl-baselines3-zoo, and the length of the schedules."""
    if env != "CartPole-v1":
        optimizer = {"eps": 1e-5}
        policy = {"optimizer_class": _rmsprop(), "optimizer_kwargs": optimizer}
        return {"ent_coef": 0.01, "vf_coef": 0.25, "policy_kwargs": policy}, 10_000_000
    if name != "ppo":
        return {"ent_coef": 0.0}, 500_000
    ppo = {
        "n_steps": 32,
        "batch_size": 256,
        "n_epochs": PPO_EPOCHS,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "ent_coef": 0.0,
        "learning_rate": lambda left: 0.001 * left,
        "clip_range": lambda left: 0.2 * left,
    }
    return ppo, 100_000


def _rmsprop() -> Any:
    from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

    return RMSpropTFLike


def make_env(env: str, seed: int) -> Any:
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack

    if env == "CartPole-v1":
        return make_vec_env(env, NUM_ENVS[env], seed=seed)
    # The wrapper skips frames and picks the maximum of two; the id itself must not skip as well.
    plain = {"frameskip": 1, "repeat_action_probability": 0.0}
    return VecFrameStack(make_atari_env(env, NUM_ENVS[env], seed=seed, env_kwargs=plain), 4)


def main() -> None:
    given = referee.parse(__doc__ or "", ("a2c", "a2c_threads", "ppo"))
    watch = referee.Referee(given)

    import gymnasium
    import torch
    from stable_baselines3 import A2C, PPO
    from stable_baselines3.common.callbacks import BaseCallback

    torch.set_num_threads((os.cpu_count() or 1) if given.setting == "a2c_threads" else 1)
    if given.env != "CartPole-v1":
        import ale_py

        gymnasium.register_envs(ale_py)

    class Watch(BaseCallback):
        def _on_rollout_start(self) -> None:
            if self.num_timesteps:  # all of them have been trained on
                watch.trained(self.num_timesteps)

        def _on_step(self) -> bool:
            watch.stepped()
            infos = self.locals["infos"]
            watch.finished(info["episode"]["r"] for info in infos if "episode" in info)
            if watch.wants_evaluation():
                watch.evaluated(
                    referee.mean_return(
                        lambda: gymnasium.make(given.env),
                        lambda rows: self.model.predict(rows, deterministic=True)[0],
                        watch.evaluation_seed(),
                    )
                )
            return not watch.is_over()

    options, total = settings(given.setting, given.env)
    kind = PPO if given.setting == "ppo" else A2C
    policy = "MlpPolicy" if given.env == "CartPole-v1" else "CnnPolicy"
    environment = make_env(given.env, given.seed)
    model = kind(policy, environment, seed=given.seed, device="cpu", **options)
    # A rate is measured for as long as it takes; what is measured must not run out of schedule.
    model.learn(total if watch.score else 10 * total, callback=Watch())
    epochs = PPO_EPOCHS if given.setting == "ppo" else 1
    referee.tell(watch.report(epochs, envs=NUM_ENVS[given.env]))


if __name__ == "__main__":
    main()
