# SPDX-License-Identifier: Apache-2.0
"""Options of earlier versions, and their replacements."""

from __future__ import annotations

RENAMED = {
    "checkpoint_env_steps": "env_steps",
    "checkpoint_seconds": "seconds",
    "enough_requests": "min_requests",
    "keep_checkpoints": "keep",
    "most_agents": "max_agents",
    "most_learning_rate_scale": "max_learning_rate_scale",
    "most_predictors": "max_predictors",
    "most_trainers": "max_trainers",
    "opponents_at_once": "opponents_per_actor",
    "patience_seconds": "batch_timeout_seconds",
    "resident_models": "cached_models",
    "rms_centered": "rmsprop_centered",
    "rms_decay": "rmsprop_decay",
}
"""Other names of earlier versions. That an option is now a key is read from the options."""

INSTEAD = {
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
    "trust_region": "use --correction clip (behaviour) or vtrace (newest)",
}
"""Options that were removed, and what to do instead."""
