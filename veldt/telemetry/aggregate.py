# SPDX-License-Identifier: Apache-2.0
"""A run's numbers from its nodes' snapshots: totals, rates, returns, lag and busy shares."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from veldt.telemetry.counters import MAX_INFOS, LagSummary, NodeSnapshot
from veldt.telemetry.rates import Sample, Samples, Span

WAIT_STAGE = "wait"
EVALUATOR_KIND = "evaluator"
RETURN_WINDOW = 100


class RunTelemetry:
    """Joins the snapshots of `nodes`, given as (name, kind).

    Nodes named in `take_turns` share one thread, so the time they do not use is another's work and
    not waiting. Evaluators count neither as env steps nor as training episodes."""

    def __init__(self, nodes: list[tuple[str, str]], take_turns: Collection[str] = ()) -> None:
        self.kinds = dict(nodes)
        self.queue_fill: dict[str, float] = {}
        """Fill of each queue at the last update, 0 to 1."""
        self._take_turns = frozenset(take_turns)
        self._snapshots: dict[str, NodeSnapshot] = {}
        self._totals: dict[str, float] = {}
        self._episodes_seen = dict.fromkeys(self.kinds, 0)
        self._returns: deque[float] = deque(maxlen=RETURN_WINDOW)
        self._lengths: deque[int] = deque(maxlen=RETURN_WINDOW)
        self._infos = EpisodeInfo(RETURN_WINDOW)
        self.outside: dict[str, float] = {}
        """Metrics that no node counts: of the machine and of the environment's parameters."""
        self.actors: dict[str, int] = {}
        """Where they come and go: how many are there now, were at most, were added and lost."""
        self.fresh_episodes: list[tuple[float, int]] = []
        """(return, length) of those that ended since the update before the last; at most 100."""
        self._samples = Samples()
        self._fill_sums: Counter[str] = Counter()
        self._num_fills = 0

    def update(
        self,
        snapshots: Mapping[str, NodeSnapshot],
        now: float,
        queue_fill: Mapping[str, float] | None = None,
    ) -> None:
        """Add snapshots by node name; `now` in seconds. A missing node keeps its last one."""
        self._snapshots.update(snapshots)
        self._take_episodes(snapshots)
        self._infos.take(self._snapshots[name] for name in filter(self._counts, self._snapshots))
        if queue_fill is not None:
            self.queue_fill = dict(queue_fill)
            self._num_fills += 1
            for name, fill in queue_fill.items():
                self._fill_sums[name] += fill  # type: ignore[assignment]
        self._totals = self._add_up()
        self._samples.add(Sample(now, self._totals, self._by_kind(), self._stage_seconds()))

    def totals(self) -> dict[str, float]:
        """Counters added up, gauges averaged, over all nodes that train."""
        return dict(self._totals)

    @property
    def snapshots(self) -> Mapping[str, NodeSnapshot]:
        """The last one of each node, by name."""
        return self._snapshots

    @property
    def observed_seconds(self) -> float:
        return self._samples.recent.end.now

    @property
    def steady_seconds(self) -> float:
        """Seconds in steady state; 0 before it began."""
        return self._samples.steady.seconds if self.updates else 0.0

    @property
    def env_steps(self) -> int:
        return int(self._totals.get("env_steps", 0))

    @property
    def updates(self) -> int:
        return int(self._totals.get("updates", 0))

    @property
    def episodes(self) -> int:
        counted = (found for name, found in self._snapshots.items() if self._counts(name))
        return sum(snapshot.episodes_total for snapshot in counted)

    @property
    def aborted_episodes(self) -> int:
        return int(self._totals.get("aborted_episodes", 0))

    @property
    def dropped(self) -> dict[str, int]:
        """Counts of the counters "dropped.<reason>", by reason."""
        prefix = "dropped."
        counts = {name: value for name, value in self._totals.items() if name.startswith(prefix)}
        return {name.removeprefix(prefix): int(value) for name, value in counts.items()}

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
        return LagSummary.merge([snapshot.lag for snapshot in self._snapshots.values()])

    def rate(self, counter: str) -> float:
        """Increase of a total per second over the last two seconds."""
        return self._samples.recent.rate(counter)

    def steady_rate(self, counter: str = "env_steps") -> float:
        """Increase of a total per second in steady state; NaN before it."""
        steady = self._samples.steady
        return steady.rate(counter) if steady.seconds else math.nan

    def kind_rates(self, steady: bool = False) -> dict[str, dict[str, float]]:
        """Increase per second by kind of node and counter."""
        return self._span(steady).kind_rates()

    def _span(self, steady: bool) -> Span:
        return self._samples.steady if steady else self._samples.recent

    def busy_shares(self, steady: bool = False) -> dict[str, float]:
        """Busy share of wall time of each node that has timed anything."""
        span, shares = self._span(steady), {}
        for name in self.kinds:
            spent = span.stage_shares(name)
            if not spent:
                continue
            waited = spent.pop(WAIT_STAGE, None)
            turns = waited is None or name in self._take_turns
            busy = sum(spent.values()) if turns or waited is None else 1.0 - waited
            shares[name] = min(1.0, max(0.0, busy))
        return shares

    def kind_busy_shares(self, steady: bool = False) -> dict[str, float]:
        """Mean busy share of the nodes of each kind."""
        grouped: dict[str, list[float]] = {}
        for name, share in self.busy_shares(steady).items():
            grouped.setdefault(self.kinds[name], []).append(share)
        return {kind: sum(shares) / len(shares) for kind, shares in grouped.items()}

    def stage_shares(self) -> dict[str, dict[str, float]]:
        """Share of wall time by stage in steady state, averaged over each kind's nodes."""
        steady = self._samples.steady
        known = [(kind, steady.stage_shares(name)) for name, kind in self.kinds.items()]
        nodes = Counter(kind for kind, spent in known if spent)
        shares: dict[str, dict[str, float]] = {}
        for kind, spent in known:
            stages = shares.setdefault(kind, {})
            for stage, share in spent.items():
                stages[stage] = stages.get(stage, 0.0) + share / nodes[kind]
        return {kind: stages for kind, stages in shares.items() if stages}

    def mean_queue_fill(self) -> dict[str, float]:
        """Mean fill of each queue, 0 to 1."""
        return {name: total / self._num_fills for name, total in self._fill_sums.items()}

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
        found |= {f"actors/{name}": count for name, count in self.actors.items()}
        found |= self.outside
        named = {"env_steps", "updates", "heartbeat_seconds"}
        return found | {
            f"counter/{name}": value for name, value in self._totals.items() if name not in named
        }

    def _counts(self, name: str) -> bool:
        return self.kinds[name] != EVALUATOR_KIND

    def state(self) -> dict[str, np.ndarray]:
        """What a resumed run needs besides its nodes' counters: the window of returns."""
        seen = [self._episodes_seen[name] for name in self.kinds]
        return {
            "returns": np.array(self._returns, np.float64),
            "lengths": np.array(self._lengths, np.int64),
            "episodes_seen": np.array(seen, np.int64),
            **self._infos.state(),
        }

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._returns.extend(state["returns"].tolist())
        self._lengths.extend(state["lengths"].tolist())
        self._infos.load_state(state)
        self._episodes_seen = dict(zip(self.kinds, state["episodes_seen"].tolist(), strict=True))

    def _add_up(self) -> dict[str, float]:
        values: dict[str, list[float]] = {}
        gauges: set[str] = set()
        for name in filter(self._counts, self._snapshots):
            snapshot = self._snapshots[name]
            gauges |= snapshot.gauges
            for counter, value in snapshot.counters.items():
                values.setdefault(counter, []).append(value)
        return {
            name: sum(found) / len(found) if name in gauges else sum(found)
            for name, found in values.items()
        }

    def _take_episodes(self, snapshots: Mapping[str, NodeSnapshot]) -> None:
        """Interleave the nodes' new episodes, or the last node would fill the whole window."""
        moments, returns, lengths = [], [], []
        self.fresh_episodes = []
        for name in filter(self._counts, snapshots):
            snapshot = snapshots[name]
            new_returns, new_lengths = snapshot.new_episodes(self._episodes_seen[name])
            self._episodes_seen[name] = snapshot.episodes_total
            moments.append((np.arange(len(new_returns)) + 0.5) / max(1, len(new_returns)))
            returns.append(new_returns)
            lengths.append(new_lengths)
        if moments:
            order = np.argsort(np.concatenate(moments), kind="stable")[-RETURN_WINDOW:]
            ordered = [np.concatenate(found)[order].tolist() for found in (returns, lengths)]
            self._returns.extend(ordered[0])
            self._lengths.extend(ordered[1])
            self.fresh_episodes = list(zip(*ordered, strict=True))

    def _by_kind(self) -> dict[str, dict[str, float]]:
        """Counters, without gauges, added up over the nodes of each kind."""
        found: dict[str, dict[str, float]] = {}
        for name, snapshot in self._snapshots.items():
            total = found.setdefault(self.kinds[name], {})
            for counter, value in snapshot.counters.items():
                if counter not in snapshot.gauges:
                    total[counter] = total.get(counter, 0.0) + value
        return found

    def _stage_seconds(self) -> dict[str, dict[str, float]]:
        return {
            name: {stage: seconds for stage, (seconds, _) in snapshot.stages.items()}
            for name, snapshot in self._snapshots.items()
        }


_STATE = "info."


class EpisodeInfo:
    """Values that environments report at the end of episodes, averaged over the last `window`.

    The window may hold a few more, because it is filled with all episodes between two updates."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._seen: dict[str, tuple[float, int]] = {}
        self._recent: dict[str, deque[tuple[float, int]]] = {}
        """Sum and number per update, oldest first."""

    def take(self, snapshots: Iterable[NodeSnapshot]) -> None:
        totals: dict[str, tuple[float, int]] = {}
        for snapshot in snapshots:
            for name, (total, count) in snapshot.infos.items():
                before = totals.get(name, (0.0, 0))
                totals[name] = (before[0] + total, before[1] + count)
        for name, (total, count) in totals.items():
            seen = self._seen.get(name, (0.0, 0))
            self._seen[name] = (total, count)
            if count > seen[1]:
                self._add(name, total - seen[0], count - seen[1])

    def _add(self, name: str, total: float, count: int) -> None:
        if name not in self._recent and len(self._recent) >= MAX_INFOS:
            return
        recent = self._recent.setdefault(name, deque())
        recent.append((total, count))
        known = sum(each for _, each in recent)
        while known - recent[0][1] >= self._window:
            known -= recent.popleft()[1]

    def means(self) -> dict[str, float]:
        joined = {name: np.sum(recent, axis=0) for name, recent in self._recent.items()}
        return {name: float(total / count) for name, (total, count) in joined.items()}

    def state(self) -> dict[str, np.ndarray]:
        return {
            _STATE + name: np.array([*np.sum(recent, axis=0), *self._seen[name]], np.float64)
            for name, recent in self._recent.items()
        }

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        for key, numbers in state.items():
            if key.startswith(_STATE):
                total, count, seen_total, seen_count = numbers.tolist()
                name = key.removeprefix(_STATE)
                self._recent[name] = deque([(total, int(count))])
                self._seen[name] = (seen_total, int(seen_count))


def with_nothing_seen(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same window, for nodes that have counted nothing yet."""
    nothing = np.array([1.0, 1.0, 0.0, 0.0])
    return {
        name: numbers * nothing if name.startswith(_STATE) else numbers
        for name, numbers in state.items()
    }
