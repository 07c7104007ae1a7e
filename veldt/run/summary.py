# SPDX-License-Identifier: Apache-2.0
"""What is left to say when a run is over."""

from __future__ import annotations

from veldt.backends import BACKENDS
from veldt.run.best import BestWeights, Score
from veldt.run.plan import Plan
from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.diagnosis import bottleneck
from veldt.telemetry.result import RunResult, lag_entry


def judge_best(result: RunResult, kept: BestWeights, now: Score | None) -> None:
    """Say what the best weights are worth, and whether the run ended far below them."""
    best = kept.score
    if best is None:
        return
    result.best_return, result.best_env_steps = best.mean, kept.env_steps
    if result.reached_target or now is None or not kept.has_dropped(now):
        return
    last = result.evaluation_return
    result.collapsed = not (best.evaluated and last is not None and last >= best.mean)


def summarise(result: RunResult, telemetry: RunTelemetry, plan: Plan) -> None:
    """Fill in the numbers of the whole run."""
    result.env_steps, result.updates = telemetry.env_steps, telemetry.updates
    result.frames = result.env_steps * plan.problem.spec.frames_per_step
    result.env_steps_per_second = telemetry.steady_rate()
    if not result.reached_target:
        result.mean_return_100 = telemetry.mean_return_100 if telemetry.episodes else None
    result.episodes, result.dropped = telemetry.episodes, telemetry.dropped
    result.aborted_episodes = telemetry.aborted_episodes
    result.policy_lag = lag_entry(telemetry.lag)
    result.bottleneck = bottleneck(
        telemetry,
        plan.topology,
        plan.options,
        plan.config,
        BACKENDS[plan.options.backend].runs_in_one_thread,
    )
    result.stage_shares = telemetry.stage_shares()
