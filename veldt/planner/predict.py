# SPDX-License-Identifier: Apache-2.0
"""Predictions for a number of actors: simulated, bounded, with a band and a bottleneck."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from veldt.planner.simulation import Simulation, trajectory
from veldt.planner.times import Times
from veldt.roles.actor import Actor
from veldt.run.plan import Plan
from veldt.telemetry.aggregate import item_bytes
from veldt.topology import BoardSpec, Node, QueueSpec

_WARM_SECONDS, _SECONDS = 2.0, 10.0
_MOST_STEPS = 120_000
_LEAST_BAND, _MOST_BAND = 0.05, 0.9
_IS_FULL = 0.9
PlanOf = Callable[[int], Plan]


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
    policy_lag_p99: float | None
    bottleneck: str
    busy: dict[str, float]
    """Share of the time on a core, by kind of node."""
    bytes_up_per_second: float
    bytes_down_per_second: float
    upper_bound: float
    """No schedule is faster: min(1 / D_max, N / Z), as env steps per second; with a barrier
    N / (Z + sum D)."""
    knee_actors: float
    """Z / D_max, with a barrier (Z + sum D) / D_max: with more, actors wait for the busiest
    station."""


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
        up, down = _bytes_per_env_step(plan)
        bound, knee = self._bounds(plan, actors, cores)
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
            float(np.quantile(lags, 0.99)) if lags else None,
            bottleneck_of(busy, sum(spent.values()) / seconds / cores, knee),
            busy,
            rate * up,
            rate * down,
            bound * correction,
            knee,
        )

    def _bounds(self, plan: Plan, actors: int, cores: int) -> tuple[float, float]:
        """Asymptotic bounds of a closed queueing network, per trajectory of one actor."""
        times, rows = self._times, plan.rows_per_update()
        node, role = _first_actor(plan)
        steps, env_steps = trajectory(plan)
        stages = [times.mean(f"{node.kind}/{stage}") for stage in ("step", "infer", "other")]
        own, demands = steps * sum(stages), {}
        for kind in plan.topology.kinds():
            if f"{kind}/infer" in times.fits:
                demands[kind] = steps * times.seconds(f"{kind}/infer", actors) / actors
            elif times.mean(f"{kind}/learn"):
                stages = [
                    times.seconds(f"{kind}/{stage}", rows)
                    for stage in ("learn", "publish", "hand_over")
                ]
                demands[kind] = sum(stages) / plan.slots_per_update()
        asleep = steps * (1 - times.step_cpu_share) * times.mean(f"{node.kind}/step")
        # Actors act while their data is learned from, unless a barrier makes them wait.
        total = own + (sum(demands.values()) if role.synchronous else 0.0)
        demands["cores"] = (own - asleep + sum(demands.values())) / cores
        most = max(demands.values())
        return min(1.0 / most, actors / total) * env_steps, total / most


def bottleneck_of(busy: dict[str, float], cores_busy: float, knee: float) -> str:
    """What to add next, in words."""
    servers = {kind: share for kind, share in busy.items() if kind not in ("actor", "agent")}
    kind = max(servers, key=lambda each: servers[each], default="")
    if kind and servers[kind] > _IS_FULL:
        most = max(1, round(knee))
        return f"the {kind}: beyond {most:,} actors you wait for it; a faster one helps"
    if cores_busy > _IS_FULL:
        return "cores: all of them are busy; add cores, or a GPU for what learns"
    return "the actors: nothing else is full; add actors or environments per actor"


def _first_actor(plan: Plan) -> tuple[Node, Actor]:
    return next((n, n.role) for n in plan.topology.nodes if isinstance(n.role, Actor))


def _bytes_per_env_step(plan: Plan) -> tuple[float, float]:
    """What an actor sends and receives, if it takes new weights with every trajectory."""
    rows, env_steps = trajectory(plan)
    up = down = 0.0
    for _, end in _first_actor(plan)[0].ends():
        sent, received = item_bytes(end)
        times = 1 if isinstance(end.channel, QueueSpec | BoardSpec) else rows
        up, down = up + times * sent, down + times * received
    return up / env_steps, down / env_steps
