# SPDX-License-Identifier: Apache-2.0
"""Options of earlier versions, and their replacements."""

from __future__ import annotations

from collections.abc import Iterable

from veldt.errors import did_you_mean

_KEYS = {
    "activation": ("network_options", "activation=relu"),
    "distribution": ("network_options", "distribution=gaussian"),
    "hidden_sizes": ("network_options", "hidden_sizes=64x64"),
    "image_activation": ("network_options", "image_activation=elu"),
    "image_precision": ("network_options", "image_precision=float32"),
    "last_action_and_reward": ("network_options", "last_action_and_reward=true"),
    "recurrent_size": ("network_options", "recurrent_size=128"),
    "frame_stack": ("wrappers", "frame_stack=4"),
    "reward_clip": ("wrappers", "reward_clip=1"),
    "time_limit": ("wrappers", "time_limit=1000"),
    "vectorization": ("wrappers", "vectorization=in_process"),
    "checkpoint_seconds": ("checkpoint_options", "seconds=60"),
    "checkpoint_env_steps": ("checkpoint_options", "env_steps=500000"),
    "keep_checkpoints": ("checkpoint_options", "keep=2"),
}
"""Options that are now keys of another: the option, and an example."""

_INSTEAD = {
    "autotune": "veldt plan predicts and veldt sweep searches sizes",
    "autotune_seconds": "veldt plan predicts and veldt sweep searches sizes",
    "ceiling_seconds": "benchmarks/throughput.py compares with the environment alone",
    "chaos": "benchmarks/faults_inside.py kills processes of a run",
    "chaos_spares": "benchmarks/faults_inside.py kills processes of a run",
    "clusters": "all workers share one copy of the weights",
    "eviction": "the oldest data leaves the replay first",
    "from_part": "use --from RUN_DIR:best:encoder",
    "hang_seconds": "set the environment variable VELDT_HANG_SECONDS",
    "inference_device": "use the last of --device cuda:0,cuda:1",
    "kept_versions": "the server drops gradients that are not finite",
    "learner_devices": "use --device cuda:0,cuda:1",
    "learner_threads": "set the environment variable OMP_NUM_THREADS",
    "local_dir": "set the environment variable XDG_CACHE_HOME",
    "port": "use --dashboard PORT",
    "price_core_hour": "multiply the price by cores / 3600 / (env steps per second)",
    "resume": "a run with the same options in run_dir is resumed",
    "ring_period_updates": "all workers share one copy of the weights",
    "store_seconds": "set the environment variable VELDT_STORE_SECONDS",
}


def unknown_option(given: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """A message about an option that does not exist: its replacement, or the nearest name."""
    name = given.lstrip("-").replace("-", "_").removeprefix("no_")
    if name in _KEYS:
        option, example = _KEYS[name]
        flag = "--" + option.replace("_", "-")
        return f"{given} is now a key of {option}: {flag} {example}"
    if name in _INSTEAD:
        return f"{given} was removed; {_INSTEAD[name]}"
    return f"unknown option '{given}'; {did_you_mean(given, known, otherwise)}"
