# SPDX-License-Identifier: Apache-2.0
"""Bytes per env step: by hand from sizes and counters, and of every architecture's real ends."""

import pytest

from veldt.options import RunOptions
from veldt.run.plan import make_plan
from veldt.telemetry.traffic import actor_traffic, node_bytes


def topology_of(name, width=64):
    options = RunOptions(
        env="CartPole-v1",
        backend="serial",
        num_actors=2,
        envs_per_actor=4,
        network_options={"hidden_sizes": (width,)},
    )
    return make_plan(name, options, {}).topology


def test_local_inference_sends_trajectories_and_takes_weights():
    topology = topology_of("impala")
    [queue], [board] = topology.queues, topology.boards
    own = {"env_steps": 400.0, "sent.trajectories": 10.0, "taken.weights": 5.0}
    traffic = actor_traffic(topology, {"actor-0": own, "actor-1": own})
    assert traffic.up == pytest.approx(10 * queue.spec.layout.nbytes / 400)
    assert traffic.down == pytest.approx(5 * 4 * board.spec.size / 400)


def test_central_inference_sends_rows_and_takes_actions_whatever_the_width():
    own = {"env_steps": 400.0, "sent.observations": 100.0, "sent.inference": 100.0}
    found = []
    for width in (16, 256):
        topology = topology_of("seed_rl", width)
        [stream] = topology.streams
        counted = own | {f"sent.{stream.spec.name}": 100.0}
        found.append(actor_traffic(topology, {"actor-0": counted}))
        assert found[-1].up == pytest.approx(100 * stream.spec.request.nbytes / 400)
    assert found[0] == found[1]


def test_only_channels_between_processes_count_if_asked():
    topology = topology_of("impala")
    node = topology.of("actor")[0]
    counters = {"sent.trajectories": 1.0, "taken.weights": 1.0}
    one_process = {"trajectories": {"a"}, "weights": {"a"}}
    assert node_bytes(node, counters, one_process) == (0.0, 0.0)


def test_nobody_who_steps_is_no_traffic():
    assert actor_traffic(topology_of("impala"), {}).up == 0.0
