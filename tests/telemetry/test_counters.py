# SPDX-License-Identifier: Apache-2.0
"""Counters over plain memory, shared memory, crashes and torn reads."""

import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from veldt.telemetry.counters import (
    EPISODE_SLOTS,
    LAG_BINS,
    MAX_COUNTERS,
    TELEMETRY_BYTES,
    LagSummary,
    NodeTelemetry,
)

ATTACH = """
import mmap, sys
import numpy as np
from veldt.telemetry.counters import TELEMETRY_BYTES, NodeTelemetry
node = NodeTelemetry(memoryview(mmap.mmap(int(sys.argv[1]), TELEMETRY_BYTES)))
"""


@pytest.fixture
def shared_file() -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.truncate(TELEMETRY_BYTES)
        yield file.fileno()


def attached(descriptor: int) -> NodeTelemetry:
    return NodeTelemetry(memoryview(mmap.mmap(descriptor, TELEMETRY_BYTES)))


@contextmanager
def other_process(descriptor: int, program: str) -> Iterator[subprocess.Popen[str]]:
    """A process attached to the block as `node`, ended by a kill if it is still alive."""
    command = [sys.executable, "-c", ATTACH + program, str(descriptor)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, pass_fds=[descriptor], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_stages_count_passes_and_seconds():
    stage = (node := NodeTelemetry()).stage("learn")
    began = time.perf_counter()
    for _ in range(3):
        with stage:
            time.sleep(0.002)
    with pytest.raises(KeyError), stage:
        raise KeyError("an exception passes through and the time counts")
    node.stage("wait").add(1.5)
    node.stage("wait").add(0.25)
    assert node.snapshot().stages["wait"] == (1.75, 2)
    seconds, count = node.snapshot().stages["learn"]
    assert count == stage.count == 4
    assert 0.006 <= seconds == stage.seconds <= time.perf_counter() - began


def test_names_are_bounded_in_length_and_number():
    node = NodeTelemetry()
    for name in ("", "x" * 40):
        with pytest.raises(ValueError, match="1 to 39 bytes"):
            node.counter(name)
    names = ["é" * 19 + "x", *(f"c{index}" for index in range(1, MAX_COUNTERS))]
    for index, name in enumerate(names):
        node.counter(name).set(index)
    with pytest.raises(ValueError, match="no room for 'one more'"):
        node.counter("one more")
    assert node.counter("c95").value == 95
    assert node.snapshot().counters == {name: float(index) for index, name in enumerate(names)}


@pytest.mark.parametrize("chunk", [1, 100, EPISODE_SLOTS + 5])
def test_the_ring_keeps_the_newest_episodes_in_order(chunk):
    node, total = NodeTelemetry(), 0
    while total < 2 * EPISODE_SLOTS + 3:
        numbers = np.arange(total, total + chunk)
        node.episode(numbers * 0.5, numbers)
        total += chunk
    snapshot = node.snapshot()
    assert snapshot.episodes_total == total
    for since in (0, total - EPISODE_SLOTS - 1, total - EPISODE_SLOTS, total - 3, total, total + 9):
        expected = np.arange(max(since, total - EPISODE_SLOTS), total)
        returns, lengths = snapshot.new_episodes(since)
        np.testing.assert_array_equal(lengths, expected)
        np.testing.assert_array_equal(returns, expected * 0.5)


@pytest.mark.slow
def test_reads_beside_a_busy_writer_are_whole_and_a_successor_continues(shared_file):
    reader = attached(shared_file)
    program = """
print("ready", flush=True)
steps, number = node.counter("env_steps"), 0
while True:
    fresh = np.arange(number, number + 37)
    node.episode(fresh * 0.5, fresh)
    number += 37
    steps.add(37)
    node.lag(np.array([1, 2, 3]))
    node.counter(f"name-{number % 50}").add()
"""
    with other_process(shared_file, program) as process:
        assert process.stdout.readline() == "ready\n"
        seen, deadline = 0, time.monotonic() + 1.0
        while time.monotonic() < deadline or seen < 3 * EPISODE_SLOTS:
            snapshot = reader.snapshot()
            returns, lengths = snapshot.new_episodes(0)
            assert snapshot.episodes_total >= seen
            seen = snapshot.episodes_total
            np.testing.assert_array_equal(lengths, np.arange(seen - len(lengths), seen))
            np.testing.assert_array_equal(returns, lengths * 0.5)
            assert 1.0 <= snapshot.lag.mean <= 3.0 or seen < 1000
            assert set(snapshot.counters) <= {"env_steps", *(f"name-{n}" for n in range(50))}
        process.kill()
        process.wait()
    before = attached(shared_file).snapshot()
    successor = attached(shared_file)
    successor.counter("env_steps").add(1)
    successor.episode(np.array([7.0]), np.array([8]))
    successor.lag(np.array([2]))
    after = successor.snapshot()
    assert after.counters == before.counters | {"env_steps": before.counters["env_steps"] + 1}
    assert after.episodes_total == before.episodes_total + 1 > 3 * EPISODE_SLOTS
    assert after.new_episodes(before.episodes_total)[1].tolist() == [8]
    assert after.lag.count == before.lag.count + 1
    assert (after.lag.min, after.lag.max) == (1, 3)


def test_lag_equals_a_recount_of_one_node_and_of_several():
    random = np.random.default_rng(0)
    nodes, seen = [NodeTelemetry() for _ in range(4)], []  # the last one stays empty
    for node, highest in zip(nodes, (5, 130, 1000), strict=False):
        for shape in ((21, 64), (0,), (3,)):
            lags = random.integers(0, highest, shape)
            node.lag(lags)
            seen.append(lags.ravel())
    rows = np.concatenate(seen).tolist()
    merged = LagSummary.merge([node.snapshot().lag for node in nodes])
    expected = [0] * LAG_BINS
    for lag in rows:
        expected[min(lag, LAG_BINS - 1)] += 1
    assert merged.histogram.tolist() == expected
    assert (merged.count, merged.min, merged.max) == (len(rows), min(rows), max(rows))
    assert merged.mean == pytest.approx(sum(rows) / len(rows), rel=1e-12)
    assert LagSummary.merge([]).count == LagSummary.merge([LagSummary()]).count == 0
