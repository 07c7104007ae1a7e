# SPDX-License-Identifier: Apache-2.0
"""What a plan says of each number of actors: simulated, bounded, with a band, and in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from veldt.planner.model import Model
from veldt.planner.times import Times
from veldt.roles.actor import Actor
from veldt.run.plan import Plan
from veldt.telemetry.aggregate import item_bytes
from veldt.topology import BoardSpec, QueueSpec

_WARM_SECONDS, _SECONDS = 2.0, 10.0
_MOST_EVENTS = 120_000
_LEAST_BAND = 0.05
_MOST_BAND = 0.9
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
    """Mean, in updates; None with a replay, where the age of what is replayed is no lag."""
    policy_lag_p99: float | None
    bottleneck: str
    busy: dict[str, float] = field(default_factory=dict)
    """Share of the time on a core, by kind of node."""
    bytes_up_per_second: float = 0.0
    bytes_down_per_second: float = 0.0
    upper_bound: float = math.inf
    """No schedule is faster: min(1 / D_max, N / Z), as env steps per second; with a barrier
    N / (Z + sum D)."""
    knee_actors: float = math.inf
    """Z / D_max, with a barrier (Z + sum D) / D_max: from here on actors wait for the busiest
    station."""

    def entry(self) -> dict[str, Any]:
        return asdict(self)


class Planner:
    """Predicts with times that were measured with a few actors. A correction makes the simulation
    agree with each of those runs, and that of the largest serves all that are larger: it holds how
    much slower the same work gets when more of it goes on. How far the corrections are apart is how
    far a prediction may be off."""

    def __init__(self, plan_of: PlanOf, times: Times, home_cores: int) -> None:
        self._plan_of, self._times = plan_of, times
        self._corrections: dict[int, float] = {}
        self._most_measured = max((int(run["actors"]) for run in times.measured), default=1)
        for run in times.measured:
            seen = run["env_steps_per_second"]
            simulated = self._rate(int(run["actors"]), home_cores)
            if seen and simulated:
                self._corrections[int(run["actors"])] = seen / simulated
        factors = list(self._corrections.values()) or [1.0]
        self._error = max(_LEAST_BAND, max(factors) / min(factors) - 1.0)

    def _correction(self, actors: int) -> float:
        known = [size for size in self._corrections if size <= actors]
        return self._corrections[max(known)] if known else 1.0

    def _rate(self, actors: int, cores: int) -> float:
        return self._simulated(self._plan_of(actors), cores)[0]

    def _simulated(self, plan: Plan, cores: int) -> tuple[float, Model, float]:
        """Env steps per second, the model after the run, and the seconds that counted."""
        model = Model(plan, self._times, cores)
        model.engine.run(_WARM_SECONDS, _MOST_EVENTS // 4)
        begun, steps = model.engine.now, model.env_steps
        model.engine.forget()
        model.lags.clear()
        model.engine.run(begun + _SECONDS, _MOST_EVENTS)
        seconds = max(model.engine.now - begun, 1e-9)
        return (model.env_steps - steps) / seconds, model, seconds

    def predict(self, actors: int, cores: int | None = None) -> Prediction:
        """On `cores`, or with a core for every process."""
        plan = self._plan_of(actors)
        cores = cores or len(plan.topology.groups())
        rate, model, seconds = self._simulated(plan, cores)
        correction = self._correction(actors)
        rate *= correction
        kinds = plan.topology.kinds()
        busy = {
            kind: spent / seconds / len(kinds[kind]) for kind, spent in model.engine.busy.items()
        }
        up, down = _bytes_per_env_step(plan)
        bound, knee = self._bounds(plan, actors, cores)
        band = self._band(actors)
        has_replay = "replay" in kinds
        lags = np.array(model.lags) if model.lags and not has_replay else None
        return Prediction(
            actors,
            cores,
            rate,
            rate * (1 - band),
            rate * (1 + band),
            None if lags is None else float(lags.mean()),
            None if lags is None else float(np.quantile(lags, 0.99)),
            bottleneck_of(busy, sum(model.engine.busy.values()) / seconds / cores, actors, knee),
            busy,
            rate * up,
            rate * down,
            bound * correction,
            knee,
        )

    def _band(self, actors: int) -> float:
        beyond = max(1.0, actors / (4 * self._most_measured))
        return min(_MOST_BAND, self._error * (1 + math.log2(beyond)))

    def _bounds(self, plan: Plan, actors: int, cores: int) -> tuple[float, float]:
        """Asymptotic bounds of a closed queueing network, per trajectory of one actor."""
        times, topology = self._times, plan.topology
        node = next(n for n in topology.nodes if isinstance(n.role, Actor))
        assert isinstance(node.role, Actor)
        steps, width = _trajectory(plan)
        own = sum(times.mean(f"{node.kind}/{stage}") for stage in ("step", "infer", "other"))
        think = steps * own
        batch, rows = max(1.0, _slots_per_update(plan)), plan.rows_per_update()
        demands = {
            kind: sum(
                times.mean(f"{kind}/{stage}") * times.growth(f"{kind}/{stage}", rows)
                for stage in ("learn", "publish", "hand_over")
            )
            / batch
            for kind in topology.kinds()
            if times.mean(f"{kind}/learn")
        }
        for kind, (constant, slope) in times.infer_seconds_per_group.items():
            if kind not in topology.kinds():
                continue
            demands[kind] = steps * (constant / max(1, actors) + slope)
        share = times.step_cpu_share
        needs_core = steps * (own - (1 - share) * times.mean(f"{node.kind}/step"))
        # Actors go on while what they sent is learned from, unless a barrier makes them wait.
        waits = sum(demands.values()) if node.role.synchronous else 0.0
        demands["cores"] = (needs_core + sum(demands.values())) / cores
        most, total = max(demands.values()), think + waits
        return min(1.0 / most, actors / total) * steps * width, total / most


def bottleneck_of(busy: dict[str, float], cores_busy: float, actors: int, knee: float) -> str:
    """What to add next, in words."""
    servers = {kind: share for kind, share in busy.items() if kind not in ("actor", "agent")}
    kind = max(servers, key=lambda each: servers[each], default="")
    if kind and servers[kind] > _IS_FULL:
        most = max(1, round(knee))
        return f"the {kind}: beyond {most:,} actors you wait for it; a faster one helps"
    if cores_busy > _IS_FULL:
        return "cores: all of them are busy; add cores, or a GPU for what learns"
    return "the actors: nothing else is full; add actors or environments per actor"


def _trajectory(plan: Plan) -> tuple[int, float]:
    """Steps of a trajectory, and env steps that each of them is."""
    for queue in plan.topology.queues:
        if "first" in queue.spec.layout:
            rows, width = queue.spec.layout["first"].shape[:2]
            return rows - 1, width / plan.topology.network.spec.rows_per_env_step
    return 1, 1.0


def _slots_per_update(plan: Plan) -> float:
    for node in plan.topology.nodes:
        for _, end in node.ends():
            channel = end.channel
            if not isinstance(channel, QueueSpec) or end.side != "source":
                continue
            if "first" in channel.layout:
                return float(end.slots_per_batch)
    return 1.0


def _bytes_per_env_step(plan: Plan) -> tuple[float, float]:
    """What an actor sends and takes, if it takes new weights with every trajectory."""
    steps, width = _trajectory(plan)
    node = next(n for n in plan.topology.nodes if isinstance(n.role, Actor))
    up = down = 0.0
    for _, end in node.ends():
        sent, taken = item_bytes(end)
        per_row = not isinstance(end.channel, QueueSpec | BoardSpec)
        up += sent * (steps if per_row else 1)
        down += taken * (steps if per_row else 1)
    return up / (steps * width), down / (steps * width)
