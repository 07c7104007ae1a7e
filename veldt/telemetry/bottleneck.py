# SPDX-License-Identifier: Apache-2.0
"""The closing line of a run: who was busy, who waited, and what to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BUSY = 0.85
"""From this share of wall time on, a kind of node is taken as the limit."""

_REMEDIES = {
    "actor": "raise num_actors while cores are free, or envs_per_actor for fewer, larger passes",
    "worker": "raise num_actors while cores are free, or envs_per_actor for fewer, larger passes",
    "learner": "raise envs_per_actor for larger batches, or use a faster device or smaller network",
    "trainer": "raise the number of trainers, or use a faster device or smaller network",
    "predictor": "raise the number of predictors, or use a faster device or smaller network",
    "inference": "use a faster device or smaller network, or add an inference node",
    "replay": "add replay shards, or send larger chunks",
    "parameter": "add parameter-server shards, or send gradients less often",
}
_FULL, _EMPTY = 0.75, 0.25


@dataclass(frozen=True)
class KindLoad:
    """Busy share of all nodes of one kind."""

    kind: str
    nodes: int
    busy: float

    @property
    def noun(self) -> str:
        words = self.kind.replace("_", " ")
        return words if self.nodes == 1 else words + "s"


def describe_bottleneck(
    loads: list[KindLoad], queue_fill: Mapping[str, float], one_thread: bool = False
) -> str:
    """One line; empty when nothing was timed. `queue_fill` is the mean fill of each queue."""
    working = sorted((load for load in loads if load.kind != "evaluator"), key=lambda x: -x.busy)
    if not working:
        return ""
    if one_thread:
        shares = ", ".join(f"{load.noun} {load.busy:.0%}" for load in working[:3])
        return f"one thread, {shares} of the time: --backend process runs them side by side"
    limits = [load for load in working if load.busy >= BUSY]
    others = [load for load in working if load.busy < BUSY]
    busy = " and ".join(f"{load.noun} {load.busy:.0%}" for load in limits[:3])
    waiting = ", ".join(f"{load.noun} waiting {1 - load.busy:.0%}" for load in others[:2])
    if limits and others:
        return f"{busy} busy, {waiting}: {_remedy(limits[0].kind)}"
    if len(limits) > 1:
        return f"{busy} busy: well balanced; more cores or a faster device would help"
    if limits:
        return f"{busy} busy: {_remedy(limits[0].kind)}"
    return f"nobody is busy ({waiting}): {_idle_cause(queue_fill)}"


def _remedy(kind: str) -> str:
    found = (remedy for stem, remedy in _REMEDIES.items() if stem in kind)
    return next(found, f"{kind.replace('_', ' ')} is the limit; give it more nodes or less work")


def _idle_cause(queue_fill: Mapping[str, float]) -> str:
    """Nobody is the limit, so something between the nodes is; the fullest queue tells what."""
    if not queue_fill:
        return "the nodes wait for each other; raise envs_per_actor so that each turn does more"
    name = max(queue_fill, key=lambda queue: queue_fill[queue])
    fill = queue_fill[name]
    if fill >= _FULL:
        return (
            f"queue '{name}' is {fill:.0%} full, so its reader is held back; check the samples per"
            " insert limit, or raise the number of slots"
        )
    if fill <= _EMPTY:
        return (
            f"queue '{name}' is {fill:.0%} full, so its writers are held back by a barrier or a"
            " limit; raise envs_per_actor, or the samples per insert limit"
        )
    return f"queue '{name}' is {fill:.0%} full, work comes in bursts; raise its number of slots"
