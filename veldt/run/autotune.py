# SPDX-License-Identifier: Apache-2.0
"""`--autotune`: try sizes of a run for a few seconds each, then train with the fastest.

Only numbers that change speed rather than what is learned from are tried: actors, environments per
actor, trajectories per batch. Every trial and its verdict go to tuning.jsonl.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from veldt.algorithms.hill_climbing import Proposal, climb
from veldt.backends import make_backend
from veldt.errors import ConfigurationError
from veldt.networks import FirstWeights
from veldt.options import RunOptions
from veldt.resources import usable_cores
from veldt.roles.learner import slots_per_batch
from veldt.run.plan import Plan, make_plan
from veldt.telemetry.aggregate import RunTelemetry

_START_SECONDS = 30.0
_TICK_SECONDS = 0.05
_MAX_TRIALS = 12
_FEWEST_ENVS, _MOST_ENVS, _MOST_BATCH = 8, 512, 8


def autotuned(
    architecture: str,
    options: RunOptions,
    own: Mapping[str, Any],
    weights: FirstWeights | None = None,
) -> tuple[Plan, list[Proposal]]:
    """The plan with the fastest sizes found from where the defaults are, and the trials. `weights`
    are those to begin with."""
    if options.backend == "serial":
        raise ConfigurationError("autotune measures speed; use --backend process with --autotune")
    first = make_plan(architecture, options, own, first=weights)
    start = {
        "num_actors": first.problem.num_actors,
        "envs_per_actor": first.problem.envs_per_actor,
    }
    if hasattr(first.config, "batch_trajectories"):
        start["batch_trajectories"] = slots_per_batch(first.topology)

    def planned(setting: Mapping[str, int]) -> Plan:
        batch = {n: v for n, v in setting.items() if n == "batch_trajectories"}
        sized = replace(
            options, num_actors=setting["num_actors"], envs_per_actor=setting["envs_per_actor"]
        )
        return make_plan(architecture, sized, {**own, **batch}, first=weights)

    def measure(setting: dict[str, int]) -> float:
        try:
            return trained_steps_per_second(planned(setting), options.autotune_seconds)
        except ConfigurationError:  # a size this architecture does not take is no candidate
            return 0.0

    best, log = climb(start, _neighbours, measure, _MAX_TRIALS)
    return planned(best), log


def _neighbours(name: str, value: int) -> tuple[int, ...]:
    """Twice and half, within what makes sense for the name."""
    cores = usable_cores()
    least, most = {
        "num_actors": (1, 2 * cores),
        "envs_per_actor": (_FEWEST_ENVS, _MOST_ENVS),
        "batch_trajectories": (1, _MOST_BATCH),
    }[name]
    return tuple(v for v in (value * 2, value // 2) if least <= v <= most)


def trained_steps_per_second(plan: Plan, seconds: float) -> float:
    """Env steps learned from per second, counted from the first update of a short run."""
    telemetry = RunTelemetry([(node.name, node.kind) for node in plan.topology.nodes])
    backend = make_backend(plan.options.backend, plan.topology, plan.options.seed)
    try:
        backend.start()
        deadline = time.monotonic() + _START_SECONDS
        before: tuple[float, float] | None = None
        while time.monotonic() < deadline:
            backend.advance(_TICK_SECONDS)
            names = (node.name for node in plan.topology.nodes)
            now = time.monotonic()
            telemetry.update(dict(zip(names, backend.snapshots(), strict=True)), now)
            trained = telemetry.totals().get("trained_env_steps", 0.0)
            if before is None and trained:
                before, deadline = (now, trained), now + seconds
        if before is None:
            return 0.0
        return (trained - before[1]) / (now - before[0])
    finally:
        backend.stop()
