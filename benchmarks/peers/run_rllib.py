# SPDX-License-Identifier: Apache-2.0
"""RLlib, one run; executed by its own environment's Python.

`impala` has two runners of 16 environments (4 on Pong), chosen for speed on two cores; `ppo` is
after RLlib's CartPole example, with two runners.
"""

from __future__ import annotations

import os
from typing import Any

import referee

RUNNERS, PPO_EPOCHS = 2, 6
NATURE = [[32, 8, 4, "valid"], [64, 4, 2, "valid"], [64, 3, 1, "valid"], [512, 7, 1, "valid"]]


def make_env(config: dict[str, Any]) -> Any:
    import gymnasium

    if config["id"] == "CartPole-v1":
        return referee.stamp_first_step(gymnasium.make("CartPole-v1"))
    import ale_py
    from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack

    gymnasium.register_envs(ale_py)
    game = gymnasium.make(config["id"], frameskip=1, repeat_action_probability=0.0)
    wrapped = wrap_atari_for_new_api_stack(game, dim=84, frameskip=4, framestack=4)
    return referee.stamp_first_step(wrapped)


def configure(given: Any) -> tuple[Any, int]:
    """The algorithm's configuration and the number of environments."""
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    is_cartpole = given.env == "CartPole-v1"
    width = (16 if given.setting == "impala" else 4) if is_cartpole else 4
    if not is_cartpole:
        model = DefaultModelConfig(
            conv_filters=NATURE, conv_activation="relu", head_fcnet_hiddens=[]
        )
        config = IMPALAConfig().training(lr=0.0005, vf_loss_coeff=0.5, entropy_coeff=0.01)
    elif given.setting == "impala":
        model = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh")
        config = IMPALAConfig().training(lr=0.001, vf_loss_coeff=0.05, entropy_coeff=0.0)
    else:
        model = DefaultModelConfig(fcnet_hiddens=[32], fcnet_activation="linear")
        config = PPOConfig().training(lr=0.0003, num_epochs=PPO_EPOCHS, vf_loss_coeff=0.01)
    model.vf_share_layers = True
    if given.setting == "impala":
        config.training(train_batch_size_per_learner=500, grad_clip=40.0)
    config.environment("contest", env_config={"id": given.env})
    config.env_runners(num_env_runners=RUNNERS, num_envs_per_env_runner=width)
    config.learners(num_learners=0).rl_module(model_config=model)
    config.reporting(min_time_s_per_iteration=0.5, metrics_num_episodes_for_smoothing=100)
    return config.debugging(seed=given.seed, log_level="ERROR"), RUNNERS * width


def evaluate(algorithm: Any, seed: int) -> float:
    import gymnasium
    import torch

    module = algorithm.learner_group._learner.module["default_policy"]

    @torch.no_grad()
    def act(rows: Any) -> Any:
        return module.forward_inference({"obs": torch.from_numpy(rows)})[
            "action_dist_inputs"
        ].argmax(1)

    return referee.mean_return(lambda: gymnasium.make("CartPole-v1"), act, seed)


def main() -> None:
    given = referee.parse(__doc__ or "", ("impala", "ppo"))
    watch = referee.Referee(given)

    import ray
    import torch
    from ray.tune.registry import register_env

    torch.set_num_threads(1)
    # Two runners and the driver ask for a CPU each; ray would wait for ever for the third.
    cpus = max(3, os.cpu_count() or 1)
    ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    register_env("contest", make_env)
    config, envs = configure(given)
    algorithm = config.build_algo()
    while not watch.is_over():
        result = algorithm.train()
        runners = result["env_runners"]
        if given.setting == "ppo":  # trains on all of what it has sampled, before it samples again
            steps = runners.get("num_env_steps_sampled_lifetime", 0)
        else:
            learners = result.get("learners", {}).get("__all_modules__", {})
            # Its counter includes the added last row of every episode piece; sampled ones do not.
            steps = learners.get("num_env_steps_trained_lifetime", 0)
            steps = min(steps, runners.get("num_env_steps_sampled_lifetime", 0))
        if steps:
            watch.trained(steps)
        if runners.get("episode_return_mean") is not None:
            watch.window(runners["episode_return_mean"], runners["num_episodes_lifetime"])
        if watch.wants_evaluation():
            watch.evaluated(evaluate(algorithm, watch.evaluation_seed()))
    report = watch.report(PPO_EPOCHS if given.setting == "ppo" else 1, envs=envs)
    algorithm.stop()
    ray.shutdown()
    referee.tell(report)


if __name__ == "__main__":
    main()
