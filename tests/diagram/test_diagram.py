# SPDX-License-Identifier: Apache-2.0
"""The picture of every architecture: all that is wired is there, nothing lies on anything else."""

from __future__ import annotations

import json
import re
from itertools import combinations
from xml.etree import ElementTree

import pytest

from veldt.architectures import ARCHITECTURES
from veldt.dashboard.overlay import LiveNumbers, compact
from veldt.dashboard.reading import RunView
from veldt.diagram import describe
from veldt.diagram.grid import place
from veldt.diagram.svg import Diagram, Overlay
from veldt.options import RunOptions
from veldt.run.plan import make_plan
from veldt.telemetry.counters import traffic_name


def topology_of(name: str) -> dict:
    actors = 1 if name == "dqn" else 3
    plan = make_plan(
        name, RunOptions(ARCHITECTURES[name].example_env, num_actors=actors, envs_per_actor=2), {}
    )
    return json.loads(json.dumps(describe(plan.topology)))


@pytest.fixture(scope="module", params=ARCHITECTURES)
def topology(request):
    return topology_of(request.param)


def view_of(topology: dict, restarts: int = 0) -> RunView:
    roles = topology["roles"]
    sides = [(channel, side) for channel in topology["channels"] for side in (True, False)]
    status = {
        "rates": {kind: {traffic_name(*side): 1234.0 for side in sides} for kind in roles},
        "nodes": {
            node: {"busy": 0.25, "restarts": restarts} for names in roles.values() for node in names
        },
        "queues": dict.fromkeys(topology["channels"], 1),
    }
    return RunView({"options": {}}, "running", status=status, topology=topology)


@pytest.mark.parametrize("is_live", [False, True], ids=["still", "live"])
def test_everything_is_drawn_once_and_nothing_overlaps(topology, is_live):
    overlay = LiveNumbers(view_of(topology)) if is_live else Overlay()
    diagram = Diagram(topology, overlay)
    picture = ElementTree.fromstring(diagram.svg())
    drawn = [
        found for g in picture.iter("g") for found in (g.get("data-role"), g.get("data-channel"))
    ]
    named = [name for name in topology["channels"] if not name.endswith(".updates")]
    assert sorted(filter(None, drawn)) == sorted([*topology["roles"], *named])
    lines = [path for path in picture.iter("path") if path.get("class", "").startswith("link")]
    assert len(lines) == sum(link["channel"] in named for link in topology["links"])
    boxes = [*diagram.layout.roles.values(), *diagram.layout.channels.values()]
    for one, other in combinations(boxes, 2):
        apart_x = abs(one.x - other.x) - (one.width + other.width) / 2
        apart_y = abs(one.y - other.y) - (one.height + other.height) / 2
        assert max(apart_x, apart_y) >= 4


def test_a_still_picture_has_no_numbers_and_no_faint_lines(topology):
    text = Diagram(topology).svg()
    assert not re.search(r"busy|/s<|filled|restart", text)
    assert 'class="link idle"' not in text
    for role, nodes in topology["roles"].items():
        count = f" &#215;{len(nodes)}" if len(nodes) > 1 else ""
        assert f">{role.replace('_', ' ')}{count}<" in text


def test_lanes_that_overlap_lie_at_different_heights(topology):
    grid = place(topology)
    lanes = [there for there in grid.channels.values() if there.lane is not None]

    def span(channel: str) -> tuple[int, int]:
        users = [link.role for link in grid.links if link.channel == channel]
        columns = [grid.roles[role].column for role in users]
        return min(columns), max(columns)

    for one, other in combinations(lanes, 2):
        (a, b), (c, d) = span(one.name), span(other.name)
        assert (one.row, one.lane) != (other.row, other.lane) or b <= c or d <= a


def test_data_runs_from_left_to_right():
    grid = place(topology_of("gorila"))
    roles = ["actor", "replay", "learner", "parameter_server"]
    assert [grid.roles[role].column for role in roles] == [0, 2, 4, 6]
    assert grid.channels["gradients"].column == 5


def test_a_role_and_a_channel_may_have_the_same_name():
    channel = {"sort": "queue", "count": 1, "slots": 2}
    link = {"channel": "same", "writes": True, "reads": False}
    links = [{**link, "role": "same"}, {**link, "role": "other", "writes": False, "reads": True}]
    grid = place({"roles": ["same", "other"], "channels": {"same": channel}, "links": links})
    assert (grid.roles["same"].column, grid.channels["same"].column) == (0, 1)
    assert grid.roles["other"].column == 2


def live(view: RunView) -> str:
    numbers = LiveNumbers(view)
    return Diagram(view.topology, numbers).svg(numbers)


def test_numbers_are_on_the_edges_and_restarts_on_the_roles():
    topology = topology_of("apex")
    view = view_of(topology, restarts=2)
    text = live(view)
    assert re.search(r'data-edge="actor to trajectories">1\.2k/s<', text)
    assert re.search(r'data-edge="replay from priorities">1\.2k/s<', text)
    assert 'data-role="actor" data-restarts="6"' in text
    assert "6 restarts" in text
    assert f"1/{topology['channels']['batches']['slots']} filled" in text
    assert "25% busy" in text


def test_a_run_that_has_said_nothing_yet_is_drawn():
    view = RunView({"options": {}}, "starting", topology=topology_of("impala"))
    text = live(view)
    assert "no time yet" in text
    assert "/s<" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.26, "0.3"), (9.96, "10"), (999.4, "999"), (999.6, "1.0k"), (123456, "123k")],
)
def test_rates_are_short(value, text):
    assert compact(value) == text


def test_channels_of_one_kind_are_one():
    gorila = topology_of("gorila")
    assert gorila["channels"]["gradients"] == {"sort": "queue", "count": 2, "slots": 12}
    assert "replay-batches" in gorila["channels"]


def test_text_and_mermaid_name_every_channel():
    options = RunOptions("CartPole-v1", num_actors=3, envs_per_actor=2, backend="serial")
    topology = make_plan("gorila", options, {}).topology
    for format in ("text", "mermaid"):
        drawn = topology.describe(format)
        assert all(queue.spec.name in drawn for queue in topology.queues)
        assert "actor x3" in drawn
    with pytest.raises(ValueError, match="text or mermaid"):
        topology.describe("svg")
