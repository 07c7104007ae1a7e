# SPDX-License-Identifier: Apache-2.0
"""`veldt plan`: calibrate, simulate, print a table with a band and a bottleneck."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.options.checked import Bounds, Count, Options, Positive
from veldt.options.fields import flat
from veldt.planner.simulation import Simulation
from veldt.planner.times import Times, Trial, calibrate, cpu_share
from veldt.resources import usable_cores
from veldt.run.plan import Plan, make_plan
from veldt.telemetry.result import dumps

_MOST_CALIBRATED_BATCH = 16  # trajectories
_HEADER = ("actors", "cores", "env steps/s", "band", "lag", "limit")
_WARM_SECONDS, _SECONDS = 2.0, 10.0
_MOST_STEPS = 120_000
_LEAST_BAND, _MOST_BAND = 0.05, 0.9
_IS_FULL = 0.9
PlanOf = Callable[[int], Plan]


@dataclass(frozen=True)
class PlanOptions(Options):
    """Options of `veldt plan`."""

    env: str
    """Environment, as for veldt train."""
    actors: tuple[Annotated[int, Bounds(1, 4096)], ...] = (1, 2, 4, 8, 16, 64, 256, 1000)
    """Numbers of actors, comma separated."""
    cores: Count | None = None
    """Cores of the machine; default: one for every process."""
    envs_per_actor: Count | None = None
    """Environments each actor steps together; default: as veldt train chooses."""
    seconds: Positive = 10.0
    """Length of each short run that times are measured in."""
    gpu_times: str | None = None
    """Use the times in this file, as --save-times writes them, instead of measuring here."""
    save_times: str | None = None
    """Keep the measured times in this file."""
    validate: bool = False
    """Also run each number of actors here, on all cores, and print how far the plan was off."""
    json: bool = False
    """Print one JSON array."""


def plan(architecture: str, given: PlanOptions) -> int:
    """Print the predictions; returns exit code 0."""
    options: dict[str, Any] = {"env": given.env}
    if given.envs_per_actor is not None:
        options["envs_per_actor"] = given.envs_per_actor

    def plan_of(actors: int) -> Plan:
        own = RunOptions(**options, num_actors=actors, backend="process", device="cpu")
        return make_plan(architecture, own, {})

    cores = usable_cores() if given.validate else given.cores
    times = _times(architecture, options, given, plan_of)
    planner = Planner(plan_of, times, usable_cores())
    found = [planner.predict(actors, cores) for actors in given.actors]
    measured = _measure(architecture, options, given) if given.validate else {}
    if given.json:
        entries = [{**asdict(each), **measured.get(each.actors, {})} for each in found]
        print(dumps(entries))
        return 0
    _print(architecture, found, given, measured)
    return 0


def _times(
    architecture: str, options: dict[str, Any], given: PlanOptions, plan_of: PlanOf
) -> Times:
    if given.gpu_times is not None:
        return Times.load(given.gpu_times)
    trials = trials_of(architecture, max(given.actors), plan_of)
    sizes = sorted({trial.actors for trial in trials})
    text = f"measuring {architecture} with {' and '.join(map(str, sizes))} actors ..."
    print(text, file=sys.stderr, flush=True)
    found = calibrate(architecture, options, trials, given.seconds)
    problem = plan_of(min(given.actors)).problem
    times = replace(found, step_cpu_share=cpu_share(problem.environment, problem.envs_per_actor))
    if given.save_times is not None:
        try:
            times.save(Path(given.save_times))
        except OSError as error:
            text = f"cannot write {given.save_times} ({error.strerror}); name another file"
            raise ConfigurationError(text) from error
    return times


def trials_of(architecture: str, most_actors: int, plan_of: PlanOf) -> list[Trial]:
    """One actor and two; also two with large batches where more actors fill larger batches.

    The time of an update of a much larger batch cannot be inferred from small ones."""
    sizes = (1,) if architecture == "dqn" else (1, 2)
    trials = [Trial(actors, plan_of(actors).rows_per_update()) for actors in sizes]
    largest = plan_of(min(most_actors, _MOST_CALIBRATED_BATCH))
    times = round(largest.rows_per_update() / trials[-1].rows)
    if times > 2:
        trials.append(Trial(sizes[-1], times * trials[-1].rows, _larger_batch(largest, times)))
    return trials


def _larger_batch(plan: Plan, times: int) -> dict[str, int]:
    """Options with which two actors fill the batches of `plan`, `times` as large as their own."""
    known = flat(plan.config)
    if "batch_trajectories" not in known:
        return {"envs_per_actor": times * plan.problem.envs_per_actor}
    found = {"batch_trajectories": plan.slots_per_update()}
    if "queue_trajectories" in known:
        found["queue_trajectories"] = known["queue_trajectories"] * plan.problem.num_actors
    return found


def _measure(architecture: str, options: dict[str, Any], given: PlanOptions) -> dict[int, Any]:
    """By number of actors: the rate and lag of a run here."""
    trials = [Trial(actors, 0) for actors in given.actors]
    runs = calibrate(architecture, options, trials, given.seconds).measured
    return {
        int(run.pop("actors")): {f"measured_{name}": value for name, value in run.items()}
        for run in runs
    }


def _print(
    architecture: str, found: list[Prediction], given: PlanOptions, measured: dict[int, Any]
) -> None:
    rows = [[*_HEADER, *(("measured", "off", "measured lag") if measured else ())]]
    for each in found:
        row = [
            f"{each.actors:,}",
            f"{each.cores:,}",
            f"{each.env_steps_per_second:,.0f}",
            f"{each.low:,.0f} to {each.high:,.0f}",
            "-" if each.policy_lag is None else f"{each.policy_lag:.1f}",
            each.bottleneck.partition(":")[0],
        ]
        if each.actors in measured:
            run = measured[each.actors]
            rate = run["measured_env_steps_per_second"]
            off = f"{each.env_steps_per_second / rate - 1:+.0%}" if rate else "-"
            row += [f"{rate:,.0f}", off, f"{run['measured_policy_lag']:.1f}"]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    last, best = found[-1], max(found, key=lambda each: each.env_steps_per_second)
    if best.actors < last.actors and best.low > last.env_steps_per_second:
        share = 1 - last.env_steps_per_second / best.env_steps_per_second
        fewer = f"{architecture} is fastest with {best.actors:,} actors"
        print(f"{fewer}; with {last.actors:,} it loses {share:.0%}.")
    else:
        print(f"{architecture} with {last.actors:,} actors waits for {last.bottleneck}.")


@dataclass(frozen=True)
class Prediction:
    """One number of actors on one number of cores."""

    actors: int
    cores: int
    env_steps_per_second: float
    low: float
    high: float
    policy_lag: float | None
    """Mean, in updates; None with a replay, where the age of replayed data is no lag."""
    bottleneck: str


class Planner:
    """Predicts from times that were measured with few actors.

    A correction makes the simulation agree with each measured run; that of the largest is used for
    all larger numbers, because it contains how much slower the same work becomes when more of it
    runs at once. The spread of the corrections is the error to expect."""

    def __init__(self, plan_of: PlanOf, times: Times, home_cores: int) -> None:
        self._plan_of, self._times = plan_of, times
        self._corrections: dict[int, float] = {}
        self._most_measured = max((int(run["actors"]) for run in times.measured), default=1)
        for run in times.measured:
            measured, actors = run["env_steps_per_second"], int(run["actors"])
            simulated, _, _ = self._simulated(plan_of(actors), home_cores)
            if measured and simulated:
                self._corrections[actors] = measured / simulated
        factors = list(self._corrections.values()) or [1.0]
        self._error = max(_LEAST_BAND, max(factors) / min(factors) - 1.0)

    def _simulated(self, plan: Plan, cores: int) -> tuple[float, Simulation, float]:
        """Env steps per second, the simulation, and the seconds that were counted."""
        simulation = Simulation(plan, self._times, cores)
        engine = simulation.engine
        engine.run(_WARM_SECONDS, _MOST_STEPS // 4)
        begun, steps = engine.now, simulation.env_steps
        engine.busy.clear()
        simulation.lags.clear()
        engine.run(begun + _SECONDS, _MOST_STEPS)
        seconds = max(engine.now - begun, 1e-9)
        return (simulation.env_steps - steps) / seconds, simulation, seconds

    def predict(self, actors: int, cores: int | None = None) -> Prediction:
        """On `cores`, or with a core for every process."""
        plan = self._plan_of(actors)
        cores = cores or len(plan.topology.groups())
        rate, simulation, seconds = self._simulated(plan, cores)
        nearest = max((size for size in self._corrections if size <= actors), default=0)
        correction = self._corrections.get(nearest, 1.0)
        rate *= correction
        kinds, spent = plan.topology.kinds(), simulation.engine.busy
        busy = {kind: spent[kind] / seconds / len(kinds[kind]) for kind in spent}
        beyond = max(1.0, actors / (4 * self._most_measured))
        band = min(_MOST_BAND, self._error * (1 + math.log2(beyond)))
        lags = [] if "replay" in kinds else simulation.lags
        return Prediction(
            actors,
            cores,
            rate,
            rate * (1 - band),
            rate * (1 + band),
            float(np.mean(lags)) if lags else None,
            bottleneck_of(busy, sum(spent.values()) / seconds / cores),
        )


def bottleneck_of(busy: dict[str, float], cores_busy: float) -> str:
    """What to add next, in words."""
    servers = {kind: share for kind, share in busy.items() if kind not in ("actor", "agent")}
    kind = max(servers, key=lambda each: servers[each], default="")
    if kind and servers[kind] > _IS_FULL:
        return f"the {kind}: more actors would wait for it; a faster one helps"
    if cores_busy > _IS_FULL:
        return "cores: all of them are busy; add cores, or a GPU for what learns"
    return "the actors: nothing else is full; add actors or environments per actor"
