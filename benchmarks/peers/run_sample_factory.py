# SPDX-License-Identifier: Apache-2.0
"""Sample Factory, one run; executed by its own environment's Python.

`async256` is its best setting on two cores (2 workers x 128 environments, batched sampling),
`serial32` starts fastest; on Pong `async16` and `serial16` make one pass over the data. In serial
mode everything is in one process, so `serial16` lets torch use all cores.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from typing import Any

import referee

COMMON = {
    "seed": "0",
    "device": "cpu",
    "use_rnn": "False",
    "restart_behavior": "overwrite",
    "save_every_sec": "100000",
    "save_best_every_sec": "100000",
    "summaries_use_frameskip": "False",
    "train_for_env_steps": "1000000000",
}
CARTPOLE = {
    "encoder_mlp_layers": "64 64",
    "nonlinearity": "tanh",
    "recurrence": "1",
    "with_vtrace": "False",
    "batched_sampling": "True",
    "worker_num_splits": "2",
    "num_epochs": "2",
    "exploration_loss_coeff": "0.001",
    "ppo_clip_ratio": "0.2",
    "max_grad_norm": "0.5",
}
PONG = {  # the rest is Sample Factory's own Atari defaults
    "num_epochs": "1",
    "rollout": "32",
    "batch_size": "256",
    "num_batches_per_epoch": "1",
}
SETTINGS: dict[str, dict[str, str]] = {
    "async256": {
        **CARTPOLE,
        "num_workers": "2",
        "num_envs_per_worker": "128",
        "rollout": "16",
        "batch_size": "1024",
        "num_batches_per_epoch": "4",
        "learning_rate": "0.002",
    },
    "serial32": {
        **CARTPOLE,
        "serial_mode": "True",
        "async_rl": "False",
        "num_workers": "1",
        "num_envs_per_worker": "32",
        "worker_num_splits": "1",
        "rollout": "32",
        "batch_size": "256",
        "num_batches_per_epoch": "4",
        "learning_rate": "0.001",
    },
    "async16": {
        **PONG,
        "num_workers": "2",
        "num_envs_per_worker": "8",
        "worker_num_splits": "2",
        "async_rl": "True",
    },
    "serial16": {
        **PONG,
        "num_workers": "1",
        "num_envs_per_worker": "16",
        "worker_num_splits": "1",
        "serial_mode": "True",
        "async_rl": "False",
        "num_batches_per_epoch": "2",  # without lag: train on exactly what was collected
    },
}


def make_cartpole(name: str, *_: Any, **__: Any) -> Any:
    import gymnasium

    return referee.stamp_first_step(gymnasium.make(name))


def make_pong(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    import ale_py  # noqa: F401  registers the games
    from sf_examples.atari.atari_utils import make_atari_env

    return referee.stamp_first_step(make_atari_env(name, cfg, env_config, render_mode))


def configure(given: Any, folder: str) -> Any:
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sf_examples.atari.atari_params import atari_override_defaults

    is_pong = given.env != "CartPole-v1"
    name = "atari_pong" if is_pong else given.env
    register_env(name, make_pong if is_pong else make_cartpole)
    options = {**COMMON, **SETTINGS[given.setting], "seed": str(given.seed)}
    options |= {"env": name, "train_dir": folder, "experiment": "run"}
    argv = [word for key, value in options.items() for word in (f"--{key}", *value.split())]
    parser, partial = parse_sf_args(argv)
    if is_pong:
        atari_override_defaults(partial.env, parser)
    return parse_full_cfg(parser, argv)


def main() -> None:
    given = referee.parse(__doc__ or "", tuple(SETTINGS))
    folder = tempfile.mkdtemp(prefix="sample-factory-")
    watch = referee.Referee(given)
    cfg = configure(given, folder)
    if given.setting == "serial16":
        import torch

        torch.set_num_threads(os.cpu_count() or 1)

    from sample_factory.train import make_runner
    from sample_factory_watch import Watch

    cfg, runner = make_runner(cfg)
    runner.register_observer(Watch(runner, watch))
    if runner.init() or runner.run():
        sys.exit("Sample Factory did not end well")
    shutil.rmtree(folder, ignore_errors=True)
    envs = cfg.num_workers * cfg.num_envs_per_worker
    referee.tell(watch.report(cfg.num_epochs, envs=envs))


if __name__ == "__main__":
    main()
