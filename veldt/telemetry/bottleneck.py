# SPDX-License-Identifier: Apache-2.0
"""The closing line of a run: who was busy, who waited, and what to change.

It is made from facts about the run: which nodes share a thread, how busy they were, how full the
queues were, and which options there are. Advice names only options that the run has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from veldt.options import RunOptions
from veldt.telemetry.aggregate import EVALUATOR_KIND, RunTelemetry
from veldt.topology import Group, Topology

BUSY = 0.85
"""From this share of wall time on, a thread is taken as the limit."""
_FULL, _EMPTY = 0.75, 0.25

Advice = tuple[str, str]
"""An option, and what to do with it."""
_MORE_ACTORS = ("num_actors", "raise num_actors while cores are free")
_WIDER_ACTORS = ("envs_per_actor", "raise envs_per_actor for fewer, larger passes")
_CHEAPER_NETWORK = ("device", "use a faster device or a smaller network")
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
_REPLAY_LIMITS = {"env_steps_per_update": ("raise", "lower"), "replay_ratio": ("lower", "raise")}
"""What lets more data into a replay, and what lets more out of it."""


@dataclass(frozen=True)
class Load:
    """How busy the threads of one sort were. Where nodes of several kinds take turns in a thread,
    it is theirs together."""

    shares: dict[str, float]
    """Busy share of a thread by kind of node, mean over the threads of this sort."""
    threads: int = 1

    @property
    def busy(self) -> float:
        return min(1.0, sum(self.shares.values()))

    @property
    def busiest_kind(self) -> str:
        return max(self.shares, key=lambda kind: self.shares[kind])

    @property
    def noun(self) -> str:
        plural = "s" if self.threads > 1 else ""
        words = [kind.replace("_", " ") + plural for kind in self.shares]
        return words[0] if len(words) == 1 else f"{' and '.join(words)} in turn"

    def in_words(self) -> str:
        if len(self.shares) == 1:
            return f"{self.noun} {self.busy:.0%}"
        return f"{self.noun} {self.busy:.0%} ({_listed(self.shares)})"


@dataclass(frozen=True)
class RunFacts:
    """What the advice depends on."""

    options: Mapping[str, Any]
    """All options that this run has, with their values."""
    has_replay: bool = False
    is_serial: bool = False
    threads_apart: int = 2
    """How many threads the nodes would have on a backend that runs them side by side."""
    queue_fill: Mapping[str, float] | None = None
    """Mean fill of each queue, 0 to 1."""

    def advice(self, *found: Advice) -> str:
        """Those that this run has an option for; empty if it has none."""
        has_more_actors = self.threads_apart > 1  # one thread is one actor
        return ", or ".join(
            text
            for option, text in found
            if option in self.options and (has_more_actors or option != "num_actors")
        )

    @property
    def replay_limits(self) -> dict[str, tuple[str, str]]:
        """Options that tie what enters the replay to what leaves it, where they are in force."""
        known = self.options if self.has_replay else {}
        return {
            name: verbs for name, verbs in _REPLAY_LIMITS.items() if known.get(name) is not None
        }


def bottleneck(run: RunTelemetry, topology: Topology, options: RunOptions, config: Any) -> str:
    """One line that says what held the run back and what to do about it."""
    apart = list(_threads(topology.groups()))
    is_serial = options.backend == "serial"
    facts = RunFacts(
        {**flat_options(options), **flat_options(config)},
        any("replay" in kind for kind in topology.kinds()),
        is_serial,
        len(apart),
        run.mean_queue_fill(),
    )
    threads = [[node for thread in apart for node in thread]] if is_serial else apart
    return describe_bottleneck(thread_loads(run, threads), facts)


def flat_options(config: Any) -> dict[str, Any]:
    """Options by name; those of nested groups stand beside the others, as on the command line."""
    found: dict[str, Any] = {}
    for entry in fields(config) if is_dataclass(config) else ():
        value = getattr(config, entry.name)
        found |= {entry.name: value, **flat_options(value)}
    return found


def _threads(groups: Iterable[Group]) -> Iterator[list[str]]:
    """Names of the nodes of each thread, evaluators left out."""
    for group in groups:
        names = [node.name for node in group.nodes if node.kind != EVALUATOR_KIND]
        yield from ([name] for name in names) if group.threads else filter(None, [names])


def thread_loads(run: RunTelemetry, threads: Iterable[list[str]]) -> list[Load]:
    """Loads of the threads that timed anything; threads of the same kinds are one load."""
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
    if facts.is_serial and facts.threads_apart > 1:
        shares = _listed(working[0].shares)
        return f"one thread, {shares} of the time: --backend process runs them side by side"
    limits = [load for load in working if load.busy >= BUSY]
    others = [load for load in working if load.busy < BUSY]
    busy = " and ".join(load.in_words() for load in limits[:3])
    waiting = ", ".join(f"{load.noun} waiting {1 - load.busy:.0%}" for load in others[:2])
    if len(limits) > 1 and not others:
        return f"{busy} busy: well balanced; more cores or a faster device would help"
    if limits:
        shown = f"{busy} busy, {waiting}" if others else f"{busy} busy"
        return f"{shown}: {_remedy(limits[0].busiest_kind, facts)}"
    return f"nobody is busy ({waiting}): {_idle_cause(facts)}"


def _listed(shares: Mapping[str, float]) -> str:
    ordered = sorted(shares.items(), key=lambda entry: -entry[1])
    return ", ".join(f"{kind.replace('_', ' ')} {share:.0%}" for kind, share in ordered[:3])


def _remedy(kind: str, facts: RunFacts) -> str:
    known = next((advice for part, advice in _ADVICE.items() if part in kind), ())
    otherwise = f"{kind.replace('_', ' ')} is the limit; give it more nodes or less work"
    return facts.advice(*known) or otherwise


def _idle_cause(facts: RunFacts) -> str:
    """Nobody is the limit, so something between the nodes is; the fullest queue tells what."""
    if str(facts.options.get("env", "")).startswith("external:"):
        return "the clients are the limit; let more of them connect, or such with more environments"
    wider = ("envs_per_actor", "raise envs_per_actor so that each turn does more")
    if not facts.queue_fill:
        return f"the nodes wait for each other; {facts.advice(wider)}"
    name, fill = max(facts.queue_fill.items(), key=lambda entry: entry[1])
    limits = facts.replay_limits.items()
    longer = ("queue_trajectories", "raise queue_trajectories")
    if fill >= _FULL:
        held = "its reader is held back"
        advice = facts.advice(*((limit, f"{verbs[0]} {limit}") for limit, verbs in limits), longer)
    elif fill <= _EMPTY:
        held = "its writers are held back by a barrier or a limit"
        advice = facts.advice(*((limit, f"{verbs[1]} {limit}") for limit, verbs in limits), wider)
    else:
        held, advice = "work comes in bursts", facts.advice(longer, wider)
    return f"queue '{name}' is {fill:.0%} full, so {held}" + (f"; {advice}" if advice else "")
