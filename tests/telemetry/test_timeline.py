# SPDX-License-Identifier: Apache-2.0
"""Timelines: the ring, the trace that Perfetto opens, the picture, and runs that record one."""

import json
import time
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import veldt
from veldt.telemetry.counters import (
    TELEMETRY_BYTES,
    NodeTelemetry,
    SpanBuffer,
    Spans,
    Stage,
    span_bytes,
)
from veldt.telemetry.timeline import Lane, Timeline

NUMBER, TEXT = {"type": "number", "minimum": 0}, {"type": "string", "minLength": 1}
PLACE = {"pid": {"type": "integer"}, "tid": {"type": "integer"}, "name": TEXT}
TRACE_EVENT_FORMAT = {
    # Of what the Trace Event Format knows: complete events ("X") and metadata ("M").
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    {
                        "required": ["ph", "name", "cat", "ts", "dur", "pid", "tid"],
                        "properties": {
                            "ph": {"const": "X"}, "cat": TEXT, "ts": NUMBER, "dur": NUMBER, **PLACE
                        },
                        "additionalProperties": False,
                    },
                    {
                        "required": ["ph", "name", "pid", "args"],
                        "properties": {
                            "ph": {"const": "M"},
                            **PLACE,
                            "name": {
                                "enum": ["process_name", "thread_name", "thread_sort_index"]
                            },
                            "args": {"type": "object", "minProperties": 1},
                        },
                        "additionalProperties": False,
                    },
                ]
            },
        },
    },
}  # fmt: skip


def recorded(seconds=1.0):
    return NodeTelemetry(memoryview(bytearray(TELEMETRY_BYTES + span_bytes(seconds))))


def test_without_a_ring_stages_are_plain():
    node = NodeTelemetry()
    assert type(node.stage("learn")) is Stage
    assert node.take_spans().start.size == 0
    assert span_bytes(0.0) == 0


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
    assert node.take_spans().start.size == 10  # nothing is recorded once it has been taken


def test_a_pass_with_a_gap_is_two_spans_and_one_pass():
    node = recorded()
    wait = node.stage("wait")
    wait.add_except(10.0, 11.0, 13.0, 14.0)
    spans = node.take_spans()
    assert (spans.end - spans.start).tolist() == [1.0, 1.0]
    assert (wait.seconds, wait.count) == (2.0, 1)


def test_a_full_ring_keeps_the_newest():
    ring = SpanBuffer(memoryview(bytearray(span_bytes(0.1))))
    for number in range(20_000):
        ring.add(0, float(number), number + 0.5)
    spans = ring.spans(["step"])
    assert 8000 < spans.start.size < 8200
    assert np.diff(spans.start).tolist() == [1.0] * (spans.start.size - 1)


def some_timeline():
    topology = veldt_plan("impala").topology
    moments = np.arange(0.0, 1.0, 0.1)
    spans = {
        node.name: Spans(("step", "wait"), np.arange(10) % 2, 100 + moments, 100.1 + moments)
        for node in topology.nodes
    }
    return Timeline.of(topology, spans, 100.2, 100.8, {"architecture": "impala"})


def veldt_plan(architecture):
    from veldt.options import RunOptions
    from veldt.run.plan import make_plan

    return make_plan(architecture, RunOptions(env="CartPole-v1", backend="serial"), {})


def test_a_timeline_is_cut_to_its_window():
    timeline = some_timeline()
    assert timeline.seconds == pytest.approx(0.6)
    for stages in timeline.stage_shares().values():
        assert stages == pytest.approx({"step": 0.5, "wait": 0.5}, abs=0.01)
    assert all(lane.start.min() >= 0 and lane.end.max() <= 0.6001 for lane in timeline.lanes)


def test_a_lane_that_begins_late_has_shares_of_its_own_time():
    lane = Lane("a-0", "a", 1, ("step",), np.array([0]), np.array([1.0]), np.array([2.0]), 1.0)
    assert lane.shares(2.0) == {"step": 1.0}


def test_the_trace_has_the_format_that_perfetto_opens():
    jsonschema = pytest.importorskip("jsonschema")
    trace = some_timeline().trace()
    jsonschema.validate(trace, TRACE_EVENT_FORMAT)
    named = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert named == {lane.name for lane in some_timeline().lanes}


def test_the_docs_picture_has_a_lane_per_node():
    from benchmarks.timeline_picture import picture

    timeline = some_timeline()
    drawn = ElementTree.fromstring(picture(timeline.trace()))
    lanes = [g for g in drawn.iter("{http://www.w3.org/2000/svg}g") if g.get("data-node")]
    assert [lane.get("data-node") for lane in lanes] == [lane.name for lane in timeline.lanes]
    assert all("50%" in "".join(lane.itertext()) for lane in lanes)


@pytest.mark.parametrize(("backend", "architecture"), [("serial", "impala"), ("process", "a2c")])
def test_a_run_records_what_its_counters_say(tmp_path, backend, architecture):
    jsonschema = pytest.importorskip("jsonschema")
    result = veldt.train(
        architecture,
        env="benchmarks.environments:sleeping",
        backend=backend,
        max_seconds=9.0,
        timeline=30.0,  # longer than the run: both count all of it
        evaluation_episodes=0,
        run_dir=str(tmp_path / "run"),
        quiet=True,
    )
    trace = json.loads((tmp_path / "run" / "timeline.json").read_text())
    jsonschema.validate(trace, TRACE_EVENT_FORMAT)
    shares = trace["otherData"]["stage_shares"]
    assert set(shares) == set(result.stage_shares)
    for kind, stages in result.stage_shares.items():
        for stage, share in stages.items():  # a busy machine moves them by more than 2 points
            assert shares[kind].get(stage, 0.0) == pytest.approx(share, abs=0.08), (kind, stage)


def test_a_short_run_leaves_what_it_has(tmp_path):
    run_dir = tmp_path / "run"
    veldt.train(
        "impala",
        env="CartPole-v1",
        backend="serial",
        total_env_steps=20_000,
        timeline=60,
        evaluation_episodes=0,
        run_dir=str(run_dir),
        quiet=True,
    )
    assert 0 < json.loads((run_dir / "timeline.json").read_text())["otherData"]["seconds"] < 60
