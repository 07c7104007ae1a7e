# SPDX-License-Identifier: Apache-2.0
"""A run on a fake clock: real telemetry blocks, whose stages take the seconds a test says."""

from collections.abc import Callable

import numpy as np
import pytest

from veldt.telemetry import counters
from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.counters import NodeTelemetry


class FakeRun:
    """Nodes by name, a clock, and the RunTelemetry that reads them."""

    def __init__(self, patch: pytest.MonkeyPatch, names: tuple[str, ...], turns: bool) -> None:
        self.now = 100.0
        self.nodes = {name: NodeTelemetry() for name in names}
        kinds = [(name, name.rpartition("-")[0]) for name in names]
        self.run = RunTelemetry(kinds, take_turns=names if turns else ())
        self._stage_clock = 0.0
        patch.setattr(counters, "perf_counter", lambda: self._stage_clock)

    def spend(self, name: str, stage: str, seconds: float) -> None:
        with self.nodes[name].stage(stage):
            self._stage_clock += seconds

    def finish_episodes(self, name: str, *returns: float) -> None:
        self.nodes[name].episode(np.array(returns), np.arange(len(returns)) + 1)

    def update(self, seconds: float = 0.0, **queue_fill: float) -> None:
        """Let the clock run, then read all nodes."""
        self.now += seconds
        snapshots = {name: node.snapshot() for name, node in self.nodes.items()}
        self.run.update(snapshots, self.now, queue_fill or None)


@pytest.fixture
def fake_run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeRun]:
    """Makes a FakeRun of nodes with these names; with `turns` they share one thread."""
    return lambda *names, turns=False: FakeRun(monkeypatch, names, turns)
