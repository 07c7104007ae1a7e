# SPDX-License-Identifier: Apache-2.0
"""GA3C and Sample Factory: actors without a network, idle agents, lag bounds."""

from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn
from wiring import OpenRun

from veldt.roles.policies import SharedMemoryPolicy
from veldt.types import Slot


@pytest.mark.parametrize("architecture", ["ga3c", "sample_factory"])
def test_actors_hold_no_network(architecture):
    run = OpenRun(architecture, num_actors=1, envs_per_actor=4)
    actor = run.role("agent-0" if architecture == "ga3c" else "actor-0")
    seen: set[int] = set()

    def modules(thing, depth=0):
        if id(thing) in seen or depth > 6:
            return []
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            return [thing]
        inside = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
        if isinstance(thing, dict):
            inside += list(thing.values())
        elif isinstance(thing, list | tuple | set):
            inside += list(thing)
        return [found for part in inside for found in modules(part, depth + 1)]

    assert not modules(actor)


def test_an_answer_is_that_of_the_group_which_asked():
    answers = []
    requests = SimpleNamespace(
        send=lambda slot, row: None, answered=lambda: answers.pop() if answers else None
    )
    network = OpenRun("sample_factory", num_actors=1, envs_per_actor=4).topology.network
    policy = SharedMemoryPolicy(network, requests)
    policy.open(None, [1, 1])
    arrays = {"action": np.ones((2, 1), np.int64), "parameter_version": np.zeros((2, 1), np.int64)}
    for group in range(2):
        policy.request(group, Slot(group, arrays, np.zeros(0)), 1)
    answers.append((1, 1))
    assert policy.reply(0) is None
    assert policy.reply(1).action.tolist() == [1]


def test_an_annealed_agent_hands_over_its_trajectory_before_it_rests():
    run = OpenRun("ga3c", num_actors=1, envs_per_actor=2, trajectory_steps=4, annealing=False)
    agent, tuner = run.role("agent-0"), run.role("tuner-0")
    for _ in range(3):
        run.step()
    begun = agent._groups[0]
    assert begun.begun
    tuner._climber.setting = {**tuner._climber.setting, "agents": 0}
    tuner._publish()
    before = agent._trajectories.value
    for _ in range(40):
        run.step()
    assert agent._trajectories.value == before + 1
    assert not begun.begun
    assert begun.slot is None
