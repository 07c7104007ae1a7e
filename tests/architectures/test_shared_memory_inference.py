# SPDX-License-Identifier: Apache-2.0
"""GA3C and Sample Factory: actors without a network, idle agents, lag bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from wiring import OpenRun

from veldt.environments import EnvironmentFactory
from veldt.losses.ppo import Appo, ClippedOptions
from veldt.networks import NetworkOptions, make_network
from veldt.options.fields import changed
from veldt.types import Field, trajectory_layout


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


def appo_batch(network, steps=6, envs=4, seed=0):
    spec = network.spec
    outputs = {**network.output_fields(), "behaviour_value": Field((), "float32")}
    layout = trajectory_layout(spec, steps, envs, outputs)
    random = np.random.default_rng(seed)
    arrays = {name: np.zeros(field.shape, field.dtype) for name, field in layout.items()}
    arrays["observation"][:] = random.normal(size=arrays["observation"].shape)
    arrays["action"][:] = random.integers(0, 2, arrays["action"].shape)
    arrays["reward"][:] = random.normal(size=arrays["reward"].shape)
    arrays["behaviour_logits"][:] = random.normal(size=arrays["behaviour_logits"].shape) * 0.1
    arrays["behaviour_value"][:] = random.normal(size=arrays["behaviour_value"].shape)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def test_every_row_beyond_the_lag_bound_is_masked_and_the_step_shrinks():
    spec = EnvironmentFactory("CartPole-v1").spec()
    network = make_network(NetworkOptions(hidden_sizes=(8,)), spec, "policy_value", 0)
    objective = Appo(changed(ClippedOptions(), max_policy_lag=3, normalize_advantages=False))
    objective.open(network)
    objective.after_update(10)
    batch = appo_batch(network)
    batch["parameter_version"][:] = 10
    batch["parameter_version"][:3] = 7  # exactly at the bound: too old

    def loss_of(data):
        [part] = objective.passes(data)
        return objective(part)

    masked = loss_of(batch)
    assert masked.learning_rate_scale == pytest.approx(0.5)

    # What the old rows' own log-probabilities and values say must not matter any more.
    spoiled = {name: tensor.clone() for name, tensor in batch.items()}
    spoiled["behaviour_value"][:3] += 5.0
    gradients = []
    for data in (batch, spoiled):
        network.zero_grad()
        loss_of(data).total.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1])

    batch["parameter_version"][:3] = 8
    assert loss_of(batch).learning_rate_scale == pytest.approx(1.0)
