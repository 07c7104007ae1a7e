# SPDX-License-Identifier: Apache-2.0
"""What holds a run back: its busiest threads with a remedy, and actors whose weights are stale.

Advice names only options that the run has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from veldt.options import RunOptions
from veldt.telemetry.aggregate import EVALUATOR_KIND, RunTelemetry
from veldt.telemetry.counters import NodeSnapshot
from veldt.topology import Group, Topology
from veldt.types import ORDERS

BUSY = 0.85
"""A thread is a limit from this share of wall time on."""
_FULL, _EMPTY = 0.75, 0.25
_STALE_TRAJECTORIES, _STALE_UPDATES = 30, 100  # some actors refresh every few trajectories only
_STALE_SECONDS = 10.0

Advice = tuple[str, str]
"""An option, and what to do with it."""
_MORE_ACTORS = ("num_actors", "raise num_actors while cores are free")
_WIDER_ACTORS = ("envs_per_actor", "raise envs_per_actor for fewer, larger passes")
_CHEAPER_NETWORK = ("device", "use a faster device or a smaller network")
_LONGER_QUEUE = ("queue_trajectories", "raise queue_trajectories")
_ADVICE: dict[str, tuple[Advice, ...]] = {
    "policy_worker": (("num_policy_workers", "raise num_policy_workers"), _CHEAPER_NETWORK),
    "predictor": (("num_predictors", "raise num_predictors"), _CHEAPER_NETWORK),
    "inference": (_CHEAPER_NETWORK,),
    "actor": (_MORE_ACTORS, _WIDER_ACTORS),
    "agent": (_MORE_ACTORS, _WIDER_ACTORS),
    "learner": (("num_learners", "raise num_learners while cores are free"), _CHEAPER_NETWORK),
    "trainer": (("num_trainers", "raise num_trainers"), _CHEAPER_NETWORK),
    "replay": (("batch_size", "lower batch_size"), ("batch_sequences", "lower batch_sequences")),
    "parameter": (("num_shards", "raise num_shards"), ("batch_size", "raise batch_size")),
}
"""By a part of the name of the busy kind."""


@dataclass(frozen=True)
class Load:
    """How busy threads with the same kinds of nodes were."""

    shares: dict[str, float]
    """Busy share of a thread by kind of node, mean over these threads."""
    threads: int = 1

    @property
    def busy(self) -> float:
        return min(1.0, sum(self.shares.values()))

    @property
    def noun(self) -> str:
        plural = "s" if self.threads > 1 else ""
        words = [kind.replace("_", " ") + plural for kind in self.shares]
        return words[0] if len(words) == 1 else f"{' and '.join(words)} in turn"

    def __str__(self) -> str:
        parts = f" ({_listed(self.shares)})" if len(self.shares) > 1 else ""
        return f"{self.noun} {self.busy:.0%}{parts}"


@dataclass(frozen=True)
class RunFacts:
    """What the advice depends on."""

    options: Mapping[str, Any]
    """All options that this run has, with their values."""
    in_one_thread: bool = False
    max_threads: int = 2
    """Number of threads on a backend that runs them in parallel."""
    queue_fill: Mapping[str, float] | None = None
    """Mean fill of each queue, 0 to 1."""

    def advice(self, *found: Advice) -> str:
        """Those for which this run has an option; empty if it has none."""
        in_force = {name for name, value in self.options.items() if value is not None}
        return ", or ".join(
            text
            for option, text in found
            if option in in_force and (self.max_threads > 1 or option != "num_actors")
        )


def bottleneck(
    run: RunTelemetry, topology: Topology, options: RunOptions, config: Any, in_one_thread: bool
) -> str:
    """One line: what limited the run and what to change."""
    threads = list(_threads(topology.groups()))
    facts = RunFacts(
        {**flat_options(options), **flat_options(config)},
        in_one_thread,
        len(threads),
        run.mean_queue_fill(),
    )
    if in_one_thread:
        threads = [[node for thread in threads for node in thread]]
    return describe_bottleneck(thread_loads(run, threads), facts)


def flat_options(config: Any) -> dict[str, Any]:
    """Options by name, including those of nested groups, as on the command line."""
    found: dict[str, Any] = {}
    for entry in fields(config) if is_dataclass(config) else ():
        value = getattr(config, entry.name)
        found |= {entry.name: value, **flat_options(value)}
    return found


def _threads(groups: Iterable[Group]) -> Iterator[list[str]]:
    """Names of the nodes of each thread, without evaluators."""
    for group in groups:
        names = [node.name for node in group.nodes if node.kind != EVALUATOR_KIND]
        yield from ([name] for name in names) if group.threads else filter(None, [names])


def thread_loads(run: RunTelemetry, threads: Iterable[list[str]]) -> list[Load]:
    """Loads of the threads that timed anything; threads with the same kinds share one load."""
    busy = run.busy_shares(steady=True)
    found: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for names in threads:
        shares: dict[str, float] = {}
        for name in filter(busy.__contains__, names):
            shares[run.kinds[name]] = shares.get(run.kinds[name], 0.0) + busy[name]
        if shares:
            found.setdefault(tuple(shares), []).append(shares)
    return [
        Load({kind: sum(each[kind] for each in alike) / len(alike) for kind in kinds}, len(alike))
        for kinds, alike in found.items()
    ]


def describe_bottleneck(loads: list[Load], facts: RunFacts) -> str:
    """The line; empty when nothing was timed."""
    working = sorted(loads, key=lambda load: -load.busy)
    if not working:
        return ""
    if facts.in_one_thread and facts.max_threads > 1:
        busy = _listed(working[0].shares)
        return f"one thread, {busy} of the time: --backend process runs them in parallel"
    limits = [load for load in working if load.busy >= BUSY]
    others = [load for load in working if load.busy < BUSY]
    busy = " and ".join(map(str, limits[:3]))
    waiting = ", ".join(f"{load.noun} waiting {1 - load.busy:.0%}" for load in others[:2])
    if not limits:
        return f"no role is busy ({waiting}): {_idle_cause(facts)}"
    if len(limits) > 1 and not others:
        return f"{busy} busy: well balanced; more cores or a faster device would help"
    shares = limits[0].shares
    kind = max(shares, key=lambda each: shares[each])
    known = next((advice for part, advice in _ADVICE.items() if part in kind), ())
    remedy = facts.advice(*known)
    if not remedy:
        remedy = f"{kind.replace('_', ' ')} is the limit; give it more nodes or less work"
    return ", ".join(filter(None, (f"{busy} busy", waiting))) + f": {remedy}"


def _listed(shares: Mapping[str, float]) -> str:
    ordered = sorted(shares.items(), key=lambda entry: -entry[1])
    return ", ".join(f"{kind.replace('_', ' ')} {share:.0%}" for kind, share in ordered[:3])


def _idle_cause(facts: RunFacts) -> str:
    """When no role is the limit, the fullest queue shows what the roles wait for."""
    if str(facts.options.get("env", "")).startswith("external:"):
        return "the clients are the limit; connect more of them, or clients with more environments"
    if not facts.queue_fill:
        return f"the nodes wait for each other; {facts.advice(_WIDER_ACTORS)}"
    name, fill = max(facts.queue_fill.items(), key=lambda entry: entry[1])
    if fill >= _FULL:
        held, ratios = "its reader is held back", ("raise", "lower")
        advice = [_LONGER_QUEUE]
    elif fill <= _EMPTY:
        held, ratios = "its writers are held back by a barrier or a limit", ("lower", "raise")
        advice = [_WIDER_ACTORS]
    else:
        held, ratios = "work comes in bursts", None
        advice = [_LONGER_QUEUE, _WIDER_ACTORS]
    if ratios is not None:  # what ties the data that enters a replay to what leaves it
        for option, verb in zip(("env_steps_per_update", "replay_ratio"), ratios, strict=True):
            advice.append((option, f"{verb} {option}"))
    texts = [f"queue '{name}' is {fill:.0%} full, so {held}", facts.advice(*advice)]
    return "; ".join(filter(None, texts))


def actors_with_weights(topology: Topology) -> list[str]:
    """Actors that know the version of their weights. None where several policies are trained,
    because the sum of all updates is no version of one of them."""
    if any(board.spec.name == ORDERS for board in topology.boards):
        return []
    return [node.name for node in topology.nodes if node.role.knows_its_version()]


@dataclass(frozen=True)
class _Moment:
    """An actor when it first delivered a trajectory with some version."""

    version: float
    trajectories: float
    updates: float
    seconds: float


class StaleWeightsAlarm:
    """Reports an actor once, when it keeps delivering with the same weights despite updates."""

    def __init__(self, actors: Iterable[str]) -> None:
        self._actors = list(actors)
        self._since: dict[str, _Moment] = {}
        self._delivered: dict[str, float] = {}

    def check(self, snapshots: Mapping[str, NodeSnapshot], updates: float, now: float) -> list[str]:
        """One message for each actor that is newly found stale."""
        messages = []
        for name in list(self._actors):
            counters = snapshots[name].counters if name in snapshots else {}
            delivered = counters.get("trajectories", 0.0)
            if delivered == self._delivered.get(name):
                continue  # a long trajectory is not a stale one
            self._delivered[name] = delivered
            seen = _Moment(counters.get("acting_version", 0.0), delivered, updates, now)
            since = self._since.setdefault(name, seen)
            if seen.version != since.version:
                self._since[name] = seen
            elif (
                delivered - since.trajectories >= _STALE_TRAJECTORIES
                and updates - since.updates >= _STALE_UPDATES
                and now - since.seconds >= _STALE_SECONDS
            ):
                self._actors.remove(name)
                messages.append(
                    f"{name} still acts with version {seen.version:.0f} after"
                    f" {updates - since.updates:.0f} more updates; do new weights reach it?"
                )
        return messages
