# SPDX-License-Identifier: Apache-2.0
"""Timelines: the ring of spans, the trace that Perfetto opens, and runs that record one."""

import json
import time

import numpy as np
import pytest

import veldt
from veldt.options import RunOptions
from veldt.run.plan import make_plan
from veldt.telemetry.counters import TELEMETRY_BYTES, NodeTelemetry, SpanBuffer, Spans, span_bytes
from veldt.telemetry.record import timeline


def recorded(seconds=1.0):
    return NodeTelemetry(memoryview(bytearray(TELEMETRY_BYTES + span_bytes(seconds))))


def test_spans_are_what_the_stages_counted():
    node = recorded()
    learn, wait = node.stage("learn"), node.stage("wait")
    for _ in range(5):
        with learn:
            time.sleep(0.002)
        wait.add(0.001)
    spans = node.take_spans()
    assert spans.stages == ("learn", "wait")
    assert spans.index.tolist() == [0, 1] * 5
    lengths = np.bincount(spans.index, spans.end - spans.start)
    assert lengths == pytest.approx([learn.seconds, wait.seconds], abs=1e-4)
    assert abs(spans.end[-1] - time.time()) < 1.0
    learn.add(1.0)
    assert node.take_spans().start.size == 10  # nothing is recorded after it was taken


def test_a_full_ring_keeps_the_newest():
    ring = SpanBuffer(memoryview(bytearray(span_bytes(0.1))))
    for number in range(20_000):
        ring.add(0, float(number), number + 0.5)
    spans = ring.spans(["step"])
    assert 8000 < spans.start.size < 8200
    assert np.diff(spans.start).tolist() == [1.0] * (spans.start.size - 1)


def check_format(trace):
    """The Trace Event Format, as far as it is used: complete events and names."""
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            assert event.keys() == {"ph", "name", "cat", "ts", "dur", "pid", "tid"}
            assert event["ts"] >= 0 <= event["dur"]
        else:
            assert event.keys() == {"ph", "name", "pid", "tid", "args"}
            assert event["name"] in ("process_name", "thread_name")


def test_a_trace_has_a_thread_per_node_and_is_cut_to_its_window():
    topology = make_plan("impala", RunOptions(env="CartPole-v1", backend="serial"), {}).topology
    moments = np.arange(0.0, 1.0, 0.1)
    spans = {
        node.name: Spans(("step", "wait"), np.arange(10) % 2, 100 + moments, 100.1 + moments)
        for node in topology.nodes
    }
    late = spans["actor-0"]  # its buffer was too small, so its shares are of the time it covers
    spans["actor-0"] = Spans(("step", "wait"), late.index[4:], late.start[4:], late.end[4:])
    trace = timeline(topology, spans, 100.2, 100.8, {"architecture": "impala"})
    check_format(trace)
    events = trace["traceEvents"]
    threads = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert threads == [node.name for node in topology.nodes]
    assert max(e["ts"] + e["dur"] for e in events if e["ph"] == "X") == pytest.approx(0.6e6)
    assert trace["otherData"]["seconds"] == pytest.approx(0.6)
    for stages in trace["otherData"]["stage_shares"].values():
        assert stages == pytest.approx({"step": 0.5, "wait": 0.5}, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "architecture"), [("serial", "impala"), ("process", "a2c")])
def test_a_run_records_what_its_counters_say(tmp_path, backend, architecture):
    """The timeline is longer than the run, so that both count all of it."""
    result = veldt.train(
        architecture,
        env="benchmarks.environments:sleeping",
        backend=backend,
        max_seconds=9.0,
        timeline=30.0,
        evaluation_episodes=0,
        run_dir=str(tmp_path / "run"),
        quiet=True,
    )
    trace = json.loads((tmp_path / "run" / "timeline.json").read_text())
    check_format(trace)
    assert 0 < trace["otherData"]["seconds"] < 30
    shares = trace["otherData"]["stage_shares"]
    assert set(shares) == set(result.stage_shares)
    for kind, stages in result.stage_shares.items():
        for stage, share in stages.items():  # a busy machine moves them by more than 2 points
            assert shares[kind].get(stage, 0.0) == pytest.approx(share, abs=0.08), (kind, stage)
