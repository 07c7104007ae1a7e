# SPDX-License-Identifier: Apache-2.0
"""The diagram of every architecture shows all that is wired, and the run's numbers."""

import json

import pytest

from veldt.architectures import ARCHITECTURES
from veldt.dashboard.charts import live_diagram
from veldt.dashboard.reading import RunView
from veldt.diagram import describe, mermaid
from veldt.options import RunOptions
from veldt.run.plan import make_plan
from veldt.telemetry.counters import traffic_name
from veldt.topology import Topology


def topology_of(name: str) -> Topology:
    actors = 1 if name == "dqn" else 3
    env = ARCHITECTURES[name].example_env
    return make_plan(name, RunOptions(env, num_actors=actors, envs_per_actor=2), {}).topology


def view_of(description: dict, restarts: int = 0) -> RunView:
    roles = description["roles"]
    sides = [(channel, side) for channel in description["channels"] for side in (True, False)]
    status = {
        "rates": {kind: {traffic_name(*side): 1234.0 for side in sides} for kind in roles},
        "nodes": {
            node: {"busy": 0.25, "restarts": restarts} for names in roles.values() for node in names
        },
        "queues": dict.fromkeys(description["channels"], 1),
    }
    return RunView({"options": {}}, "running", status=status, topology=description)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_role_channel_and_link_is_drawn(name):
    topology = topology_of(name)
    description = json.loads(json.dumps(describe(topology)))
    drawn = mermaid(description)
    assert drawn == topology.describe("mermaid")
    for role, nodes in description["roles"].items():
        assert f'["{role} x{len(nodes)}"]' in drawn if len(nodes) > 1 else f'["{role}"]' in drawn
    uses = sum(link["writes"] + link["reads"] for link in description["links"])
    assert drawn.count(" --> ") == uses > 0
    text = topology.describe("text")
    assert all(f"[{queue.spec.name}]" in text for queue in topology.queues)
    if name == "gorila":  # channels of one kind are merged
        assert description["channels"]["gradients"] == {"sort": "queue", "count": 2, "slots": 12}


def test_a_role_and_a_channel_may_have_the_same_name():
    channel = {"sort": "queue", "count": 1, "slots": 2}
    link = {"role": "same", "channel": "same", "writes": True, "reads": False}
    drawn = mermaid({"roles": {"same": ["a"]}, "channels": {"same": channel}, "links": [link]})
    assert "role_same --> channel_same" in drawn


def test_live_numbers_are_in_the_labels():
    description = describe(topology_of("apex"))
    drawn = live_diagram(view_of(description, restarts=2))
    assert 'role_actor -->|"1.2k/s"| channel_trajectories' in drawn
    assert 'channel_priorities -->|"1.2k/s"| role_replay' in drawn
    assert "25% busy<br>restarts: 6" in drawn
    assert f"1/{description['channels']['batches']['slots']} filled" in drawn


def test_names_of_a_run_directory_are_no_syntax():
    link = {"role": 'a"] click x', "channel": "b", "writes": True, "reads": False}
    for odd in ({"roles": {link["role"]: ["a-0"]}}, {"roles": {"a": ["a-0"]}, "links": [link]}):
        view = RunView({"options": {}}, "running", topology={"channels": {}, "links": [], **odd})
        assert live_diagram(view) == "flowchart LR"
