# SPDX-License-Identifier: Apache-2.0
"""The bottleneck of a run, with a remedy that names only options of this run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from veldt.options import RunOptions
from veldt.telemetry.aggregate import EVALUATOR_KIND, RunTelemetry
from veldt.topology import Group, Topology

BUSY = 0.85
"""Share of wall time from which a thread is a limit."""
_FULL, _EMPTY = 0.75, 0.25

_TEXTS = {
    "raise num_actors": "raise num_actors while cores are free",
    "raise num_learners": "raise num_learners while cores are free",
    "raise envs_per_actor": "raise envs_per_actor for fewer, larger passes",
    "device": "use a faster device or a smaller network",
}
_LIMITS: dict[str, tuple[str, ...]] = {
    "policy_worker": ("raise num_policy_workers", "device"),
    "predictor": ("raise num_predictors", "device"),
    "inference": ("device",),
    "actor": ("raise num_actors", "raise envs_per_actor"),
    "agent": ("raise num_actors", "raise envs_per_actor"),
    "learner": ("raise num_learners", "device"),
    "trainer": ("raise num_trainers", "device"),
    "replay": ("lower batch_size", "lower batch_sequences"),
    "parameter": ("raise num_shards", "raise batch_size"),
}
"""Advice by a part of the name of the busy kind."""


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

    def advice(self, *changes: str) -> str:
        """Text of those changes, such as "raise num_actors", whose option this run has."""
        known = [c for c in changes if self.options.get(c.rpartition(" ")[2]) is not None]
        if self.max_threads == 1:
            known = [change for change in known if change != "raise num_actors"]
        return ", or ".join(_TEXTS.get(change, change) for change in known)


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
    changes = next((changes for part, changes in _LIMITS.items() if part in kind), ())
    no_advice = f"{kind.replace('_', ' ')} is the limit; give it more nodes or less work"
    remedy = facts.advice(*changes) or no_advice
    return ", ".join(filter(None, (f"{busy} busy", waiting))) + f": {remedy}"


def _listed(shares: Mapping[str, float]) -> str:
    ordered = sorted(shares.items(), key=lambda entry: -entry[1])
    return ", ".join(f"{kind.replace('_', ' ')} {share:.0%}" for kind, share in ordered[:3])


def _idle_cause(facts: RunFacts) -> str:
    """When no role is the limit, the fullest queue shows what the roles wait for."""
    if str(facts.options.get("env", "")).startswith("external:"):
        return "the clients are the limit; connect more of them, or clients with more environments"
    if not facts.queue_fill:
        return f"the nodes wait for each other; {facts.advice('raise envs_per_actor')}"
    name, fill = max(facts.queue_fill.items(), key=lambda entry: entry[1])
    # The two options tie the data that enters a replay to what leaves it.
    if fill >= _FULL:
        held = "its reader is held back"
        changes = ["raise queue_trajectories", "raise env_steps_per_update", "lower replay_ratio"]
    elif fill <= _EMPTY:
        held = "its writers are held back by a barrier or a limit"
        changes = ["raise envs_per_actor", "lower env_steps_per_update", "raise replay_ratio"]
    else:
        held = "work comes in bursts"
        changes = ["raise queue_trajectories", "raise envs_per_actor"]
    texts = [f"queue '{name}' is {fill:.0%} full, so {held}", facts.advice(*changes)]
    return "; ".join(filter(None, texts))
