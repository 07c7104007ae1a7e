# SPDX-License-Identifier: Apache-2.0
"""Bytes per env step, from the counters of channels."""

from typing import Any

import pytest

from veldt.compare.traffic import actor_traffic
from veldt.options import RunOptions
from veldt.run.plan import make_plan


def topology_of(name: str) -> Any:
    options = RunOptions(env="CartPole-v1", backend="serial", num_actors=2, envs_per_actor=4)
    return make_plan(name, options, {}).topology


def test_traffic_of_local_inference_is_trajectories_and_weights():
    topology = topology_of("impala")
    [queue], [board] = topology.queues, topology.boards
    own = {"env_steps": 400.0, "sent.trajectories": 10.0, "taken.weights": 5.0}
    up, down = actor_traffic(topology, {"actor-0": own, "actor-1": own})
    assert up == pytest.approx(10 * queue.spec.layout.nbytes / 400)
    assert down == pytest.approx(5 * 4 * board.spec.size / 400)
    assert actor_traffic(topology, {}) == (0.0, 0.0)


def test_traffic_of_central_inference_is_rows_and_actions():
    topology = topology_of("seed_rl")
    [stream] = topology.streams
    counted = {"env_steps": 400.0, f"sent.{stream.spec.name}": 100.0}
    up, down = actor_traffic(topology, {"actor-0": counted})
    assert up == pytest.approx(100 * stream.spec.request.nbytes / 400)
    assert down == pytest.approx(100 * stream.spec.reply.nbytes / 400)
