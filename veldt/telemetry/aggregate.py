# SPDX-License-Identifier: Apache-2.0
"""Totals, rates, returns, lag and busy shares of a run, from its nodes' snapshots."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from veldt.environments.vector import RETURN_OF
from veldt.telemetry.counters import MAX_INFOS, LagSummary, NodeSnapshot

WAIT_STAGE = "wait"
EVALUATOR_KIND = "evaluator"
RETURN_WINDOW = 100
SETTLE_SECONDS = 5.0
SETTLE_SHARE = 0.1
_RECENT_SECONDS = 2.0
_TOTALS = "*"


def steady_start(seconds: Sequence[float], updates: Sequence[float]) -> int:
    """Index of the moment from which steady rates are counted.

    The first moment 5 seconds, or a tenth of the remaining time if that is shorter, after the
    first update. Updates of the first moment come from a checkpoint. Without updates: 0."""
    end = seconds[-1]
    learning = [index for index, made in enumerate(updates) if made > updates[0]]
    if not learning or seconds[learning[0]] == end:
        return 0
    begun = seconds[learning[0]]
    settled = begun + min(SETTLE_SECONDS, SETTLE_SHARE * (end - begun))
    return next((i for i in learning if settled <= seconds[i] < end), learning[0])


def steady_rate(rows: Sequence[Mapping[str, Any]], counter: str) -> float:
    """Increase of a counter per second in steady state, from lines of metrics.jsonl; or NaN."""
    if not rows:
        return math.nan
    seconds = [row["time"] for row in rows]
    start = steady_start(seconds, [row["updates"] for row in rows])
    before, after = (row.get(counter, 0) for row in (rows[start], rows[-1]))
    if seconds[start] == seconds[-1] or before is None or after is None:
        return math.nan
    return float(after - before) / (seconds[-1] - seconds[start])


@dataclass(frozen=True)
class _Sample:
    """Counters of one moment."""

    now: float
    numbers: Mapping[str, Mapping[str, float]]
    """Seconds of stages by node, sums of counters by kind, and totals under _TOTALS."""

    @property
    def updates(self) -> float:
        return self.numbers.get(_TOTALS, {}).get("updates", 0.0)


@dataclass(frozen=True)
class _Span:
    """The time between two samples."""

    start: _Sample
    end: _Sample

    @property
    def seconds(self) -> float:
        return self.end.now - self.start.now

    def rates(self, owner: str) -> dict[str, float]:
        """Increase per second of each number of a node, a kind or _TOTALS; empty over no time."""
        if self.seconds <= 0:
            return {}
        before, after = self.start.numbers.get(owner, {}), self.end.numbers.get(owner, {})
        return {
            name: (value - before.get(name, 0.0)) / self.seconds for name, value in after.items()
        }


class _Samples:
    """Samples that rates need: the first, those of the settling time, and the last two seconds."""

    def __init__(self) -> None:
        self._recent = deque([_Sample(0.0, {})])
        self._settling: list[_Sample] = []

    def add(self, sample: _Sample) -> None:
        if not self._settling:
            self._recent.clear()
        self._recent.append(sample)
        while len(self._recent) > 2 and sample.now - self._recent[1].now >= _RECENT_SECONDS:
            self._recent.popleft()
        settling = self._settling
        if len(settling) > 1:
            is_kept = settling[-1].now - settling[1].now < SETTLE_SECONDS
        else:
            is_kept = not settling or sample.updates > settling[0].updates
        if is_kept:
            settling.append(sample)

    @property
    def recent(self) -> _Span:
        return _Span(self._recent[0], self._recent[-1])

    @property
    def steady(self) -> _Span:
        """From the start of the steady state to the last sample."""
        samples = [*self._settling, self._recent[-1]]
        start = steady_start([each.now for each in samples], [each.updates for each in samples])
        return _Span(samples[start], samples[-1])


class RunTelemetry:
    """Joins the snapshots of a run's nodes, given as (name, kind).

    Evaluators count neither as env steps nor as training episodes. Nodes that `take_turns` share
    one thread: the time that one does not use belongs to another and is not waiting."""

    def __init__(self, nodes: list[tuple[str, str]], take_turns: Collection[str] = ()) -> None:
        self.kinds = dict(nodes)
        self.queue_fill: dict[str, float] = {}
        """Fill of each queue at the last update, 0 to 1."""
        self.snapshots: dict[str, NodeSnapshot] = {}
        """The last one of each node."""
        self.outside: dict[str, float] = {}
        """Metrics of the machine, which no node counts."""
        self.fresh_episodes: list[tuple[float, int]] = []
        """(return, length) of the episodes that ended before the last update; at most 100."""
        self.totals: dict[str, float] = {}
        """Counters added up, gauges averaged, over all nodes that train."""
        self._take_turns = frozenset(take_turns)
        self._episodes_seen = dict.fromkeys(self.kinds, 0)
        self._returns: deque[float] = deque(maxlen=RETURN_WINDOW)
        self._lengths: deque[int] = deque(maxlen=RETURN_WINDOW)
        self._infos = EpisodeInfo(RETURN_WINDOW)
        self._samples = _Samples()
        self._fill_sums: Counter[str] = Counter()
        self._num_fills = 0

    def update(
        self,
        snapshots: Mapping[str, NodeSnapshot],
        now: float,
        queue_fill: Mapping[str, float] | None = None,
    ) -> None:
        """Add snapshots by node name; `now` in seconds. A missing node keeps its last one."""
        self.snapshots.update(snapshots)
        self._take_episodes(snapshots)
        self._infos.take(self._training().values())
        if queue_fill is not None:
            self.queue_fill = dict(queue_fill)
            self._num_fills += 1
            self._fill_sums.update(queue_fill)
        self.totals = self._add_up()
        numbers: dict[str, dict[str, float]] = {_TOTALS: self.totals}
        for name, snapshot in self.snapshots.items():
            numbers[name] = {stage: seconds for stage, (seconds, _) in snapshot.stages.items()}
            own = numbers.setdefault(self.kinds[name], {})
            for counter, value in snapshot.counters.items():
                if counter not in snapshot.gauges:
                    own[counter] = own.get(counter, 0.0) + value
        self._samples.add(_Sample(now, numbers))

    def _training(self) -> dict[str, NodeSnapshot]:
        return {n: s for n, s in self.snapshots.items() if self.kinds[n] != EVALUATOR_KIND}

    @property
    def observed_seconds(self) -> float:
        return self._samples.recent.end.now

    @property
    def steady_seconds(self) -> float:
        """Seconds in steady state; 0 before it began."""
        return self._samples.steady.seconds if self.updates else 0.0

    @property
    def env_steps(self) -> int:
        return int(self.totals.get("env_steps", 0))

    @property
    def updates(self) -> int:
        return int(self.totals.get("updates", 0))

    @property
    def episodes(self) -> int:
        return sum(snapshot.episodes_total for snapshot in self._training().values())

    @property
    def aborted_episodes(self) -> int:
        return int(self.totals.get("aborted_episodes", 0))

    @property
    def dropped(self) -> dict[str, int]:
        """Counts of the counters "dropped.<reason>", by reason."""
        found = {name.partition("."): int(value) for name, value in self.totals.items()}
        return {reason: count for (name, _, reason), count in found.items() if name == "dropped"}

    @property
    def mean_return_100(self) -> float:
        """Mean return of the last 100 training episodes; NaN without any."""
        return float(np.mean(self._returns)) if self._returns else math.nan

    @property
    def return_error_100(self) -> float:
        """The standard error of `mean_return_100`."""
        return float(np.std(self._returns)) / math.sqrt(len(self._returns) or 1)

    @property
    def mean_length_100(self) -> float:
        return float(np.mean(self._lengths)) if self._lengths else math.nan

    @property
    def has_100_returns(self) -> bool:
        """Whether `mean_return_100` is over a full window, as a target requires."""
        return len(self._returns) == RETURN_WINDOW

    @property
    def lag(self) -> LagSummary:
        return LagSummary.merge([snapshot.lag for snapshot in self.snapshots.values()])

    def rate(self, counter: str) -> float:
        """Increase of a total per second over the last two seconds."""
        return self._samples.recent.rates(_TOTALS).get(counter, 0.0)

    def steady_rate(self, counter: str = "env_steps") -> float:
        """Increase of a total per second in steady state; NaN before it."""
        steady = self._samples.steady
        return steady.rates(_TOTALS).get(counter, 0.0) if steady.seconds else math.nan

    def kind_rates(self, steady: bool = False) -> dict[str, dict[str, float]]:
        """Increase per second by kind of node and counter."""
        span = self._span(steady)
        found = {kind: span.rates(kind) for kind in dict.fromkeys(self.kinds.values())}
        return {kind: rates for kind, rates in found.items() if rates}

    def _span(self, steady: bool) -> _Span:
        return self._samples.steady if steady else self._samples.recent

    def busy_shares(self, steady: bool = False) -> dict[str, float]:
        """Busy share of wall time of each node that has timed anything."""
        span, shares = self._span(steady), {}
        for name in self.kinds:
            spent = span.rates(name)
            if not spent:
                continue
            waited = spent.pop(WAIT_STAGE, None)
            if waited is None or name in self._take_turns:
                busy = sum(spent.values())
            else:
                busy = 1.0 - waited
            shares[name] = min(1.0, max(0.0, busy))
        return shares

    def kind_busy_shares(self) -> dict[str, float]:
        """Mean busy share of the nodes of each kind."""
        grouped: dict[str, list[float]] = {}
        for name, share in self.busy_shares().items():
            grouped.setdefault(self.kinds[name], []).append(share)
        return {kind: sum(shares) / len(shares) for kind, shares in grouped.items()}

    def stage_shares(self) -> dict[str, dict[str, float]]:
        """Share of wall time by stage in steady state, averaged over each kind's nodes."""
        steady = self._samples.steady
        known = [(kind, steady.rates(name)) for name, kind in self.kinds.items()]
        nodes = Counter(kind for kind, spent in known if spent)
        shares: dict[str, dict[str, float]] = {}
        for kind, spent in known:
            for stage, share in spent.items():
                stages = shares.setdefault(kind, {})
                stages[stage] = stages.get(stage, 0.0) + share / nodes[kind]
        return shares

    def mean_queue_fill(self) -> dict[str, float]:
        """Mean fill of each queue, 0 to 1."""
        return {name: total / self._num_fills for name, total in self._fill_sums.items()}

    def returns_by_task(self) -> dict[str, float]:
        """Mean return of each task or policy, where there are several."""
        means = self._infos.means().items()
        return {n.removeprefix(RETURN_OF): mean for n, mean in means if n.startswith(RETURN_OF)}

    def metrics(self) -> dict[str, float]:
        """All metrics by their names in metrics.jsonl."""
        lag = self.lag
        found: dict[str, float] = {
            "updates": self.updates,
            "episodes": self.episodes,
            "return/mean_100": self.mean_return_100,
            "return/mean_length_100": self.mean_length_100,
            "rate/env_steps_per_second": self.rate("env_steps"),
            "rate/updates_per_second": self.rate("updates"),
        }
        if lag.count:
            found |= {"lag/mean": lag.mean, "lag/max": lag.max, "lag/min": lag.min}
        found |= {f"queue/{name}": fill for name, fill in self.queue_fill.items()}
        found |= {f"busy/{kind}": share for kind, share in self.kind_busy_shares().items()}
        found |= {f"info/{name}": mean for name, mean in self._infos.means().items()}
        found |= self.outside
        named = {"env_steps", "updates", "heartbeat_seconds"}
        return found | {
            f"counter/{name}": value for name, value in self.totals.items() if name not in named
        }

    def state(self) -> dict[str, np.ndarray]:
        """The window of returns, which a checkpoint holds besides the nodes' counters."""
        seen = [self._episodes_seen[name] for name in self.kinds]
        return {
            "returns": np.array(self._returns, np.float64),
            "lengths": np.array(self._lengths, np.int64),
            "episodes_seen": np.array(seen, np.int64),
        }

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._returns.extend(state["returns"].tolist())
        self._lengths.extend(state["lengths"].tolist())
        self._episodes_seen = dict(zip(self.kinds, state["episodes_seen"].tolist(), strict=True))

    def _add_up(self) -> dict[str, float]:
        totals: Counter[str] = Counter()
        gauges: Counter[str] = Counter()
        for snapshot in self._training().values():
            totals.update(snapshot.counters)
            gauges.update(snapshot.gauges)
        return {name: total / gauges.get(name, 1) for name, total in totals.items()}

    def _take_episodes(self, snapshots: Mapping[str, NodeSnapshot]) -> None:
        """Interleave the nodes' new episodes; otherwise the last node would fill the window."""
        fresh: list[tuple[float, float, int]] = []
        for name, snapshot in snapshots.items():
            if self.kinds[name] == EVALUATOR_KIND:
                continue
            returns, lengths = snapshot.new_episodes(self._episodes_seen[name])
            self._episodes_seen[name] = snapshot.episodes_total
            moments = (np.arange(len(returns)) + 0.5) / max(1, len(returns))
            columns = (column[-RETURN_WINDOW:].tolist() for column in (moments, returns, lengths))
            fresh += zip(*columns, strict=True)
        fresh.sort(key=lambda episode: episode[0])
        self.fresh_episodes = [episode[1:] for episode in fresh[-RETURN_WINDOW:]]
        self._returns.extend(episode_return for episode_return, _ in self.fresh_episodes)
        self._lengths.extend(length for _, length in self.fresh_episodes)


class EpisodeInfo:
    """Values that environments report at the end of episodes, averaged over the last `window`.

    The window may hold more, because all episodes between two updates enter it together, and so do
    those of a resumed run's earlier parts."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._seen: dict[str, tuple[float, int]] = {}
        self._recent: dict[str, deque[tuple[float, int]]] = {}
        """Sum and number per update, oldest first."""

    def take(self, snapshots: Iterable[NodeSnapshot]) -> None:
        """Add what the nodes counted since the last call."""
        totals, counts = defaultdict[str, float](float), Counter[str]()
        for snapshot in snapshots:
            for name, (total, count) in snapshot.infos.items():
                totals[name] += total
                counts[name] += count
        for name, count in counts.items():
            seen_total, seen = self._seen.get(name, (0.0, 0))
            self._seen[name] = (totals[name], count)
            if count > seen and (name in self._recent or len(self._recent) < MAX_INFOS):
                recent = self._recent.setdefault(name, deque())
                recent.append((totals[name] - seen_total, count - seen))
                while sum(each for _, each in recent) - recent[0][1] >= self._window:
                    recent.popleft()

    def means(self) -> dict[str, float]:
        joined = {name: np.sum(recent, axis=0) for name, recent in self._recent.items()}
        return {name: float(total / count) for name, (total, count) in joined.items()}
