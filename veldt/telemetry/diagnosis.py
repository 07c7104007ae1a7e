# SPDX-License-Identifier: Apache-2.0
"""The bottleneck of a run, with a remedy that names only options of this run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from veldt.options import RunOptions
from veldt.options.fields import flat_keys
from veldt.telemetry.aggregate import EVALUATOR_KIND, RunTelemetry
from veldt.topology import Group, Topology

BUSY = 0.85
"""Share of wall time from which a thread is a limit."""
_FULL, _EMPTY = 0.75, 0.25

_DEVICE = "use a faster device or a smaller network"
_MORE_ACTORS = "raise num_actors while cores are free"
_MORE_ENVS = "raise envs_per_actor for fewer, larger passes"
_REMEDIES: dict[str, tuple[str, ...]] = {
    "policy_worker": ("raise num_policy_workers", _DEVICE),
    "predictor": ("raise num_predictors", _DEVICE),
    "inference": (_DEVICE,),
    "actor": (_MORE_ACTORS, _MORE_ENVS),
    "agent": (_MORE_ACTORS, _MORE_ENVS),
    "learner": ("raise num_learners while cores are free", _DEVICE),
    "trainer": ("raise num_trainers", _DEVICE),
    "replay": ("lower batch_size", "lower batch_sequences"),
    "parameter": ("raise num_shards", "raise batch_size"),
}
"""Changes by a part of the name of the busy kind."""


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

    @property
    def parts(self) -> str:
        """The three busiest kinds."""
        ordered = sorted(self.shares.items(), key=lambda entry: -entry[1])
        return ", ".join(f"{kind.replace('_', ' ')} {share:.0%}" for kind, share in ordered[:3])

    def __str__(self) -> str:
        parts = f" ({self.parts})" if len(self.shares) > 1 else ""
        return f"{self.noun} {self.busy:.0%}{parts}"


def bottleneck(
    run: RunTelemetry, topology: Topology, options: RunOptions, config: Any, in_one_thread: bool
) -> str:
    """One line: what limited the run and what to change; empty when nothing was timed."""
    threads = list(_threads(topology.groups()))
    # Sizes that the user left open are options, too; more actors would share an only thread.
    sizes = {"envs_per_actor": True, "num_actors": True if len(threads) > 1 else None}
    known = {**flat_keys(options), **flat_keys(config), **sizes}
    everything = [name for names in threads for name in names]
    loads = thread_loads(run, [everything] if in_one_thread else threads)
    if not any(load.busy for load in loads):
        return ""  # the run was too short to say
    if in_one_thread and len(threads) > 1:
        busy = loads[0].parts
        return f"one thread, {busy} of the time: --backend process runs them in parallel"
    return describe_bottleneck(loads, known, run.mean_queue_fill())


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


def describe_bottleneck(
    loads: list[Load], options: Mapping[str, Any], queue_fill: Mapping[str, float]
) -> str:
    """The line, from the loads, this run's options with their values, and mean fills."""
    if not loads:
        return ""
    working = sorted(loads, key=lambda load: -load.busy)
    limits = [load for load in working if load.busy >= BUSY]
    others = [load for load in working if load.busy < BUSY]
    busy = " and ".join(map(str, limits[:3]))
    waiting = ", ".join(f"{load.noun} waiting {1 - load.busy:.0%}" for load in others[:2])
    if not limits:
        return f"no role is the limit ({waiting}): {_idle_cause(options, queue_fill)}"
    if len(limits) > 1 and not others:
        return f"{busy} busy: well balanced; more cores or a faster device would help"
    kind = max(limits[0].shares.items(), key=lambda entry: entry[1])[0]
    changes = next((changes for part, changes in _REMEDIES.items() if part in kind), ())
    no_advice = f"{kind.replace('_', ' ')} is the limit; give it more nodes or less work"
    remedy = _advice(options, *changes) or no_advice
    return ", ".join(filter(None, (f"{busy} busy", waiting))) + f": {remedy}"


def _advice(options: Mapping[str, Any], *changes: str) -> str:
    """The changes that name an option this run has."""
    known = [c for c in changes if any(options.get(word) is not None for word in c.split())]
    return ", or ".join(known)


def _idle_cause(options: Mapping[str, Any], queue_fill: Mapping[str, float]) -> str:
    """When no role is the limit, the fullest queue shows what the roles wait for."""
    if str(options.get("env", "")).startswith("external:"):
        return "the clients are the limit; connect more of them, or clients with more environments"
    name, fill = max(queue_fill.items(), key=lambda entry: entry[1], default=("", 0.0))
    cause = f"queue '{name}' is {fill:.0%} full, so "
    # The last two options tie the data that enters a replay to what leaves it.
    if not queue_fill:
        cause, changes = "the nodes wait for each other", [_MORE_ENVS]
    elif fill >= _FULL:
        cause += "its reader is held back"
        changes = ["raise queue_trajectories", "raise env_steps_per_update", "lower replay_ratio"]
    elif fill <= _EMPTY:
        cause += "its writers are held back by a barrier, a limit or a lack of cores"
        changes = [_MORE_ENVS, "lower env_steps_per_update", "raise replay_ratio"]
    else:
        cause += "work comes in bursts"
        changes = ["raise queue_trajectories", _MORE_ENVS]
    return "; ".join(filter(None, [cause, _advice(options, *changes)]))
