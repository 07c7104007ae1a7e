# SPDX-License-Identifier: Apache-2.0
"""Objectives over replayed transitions against slow transcriptions, row by row."""

import numpy as np
import pytest
import torch
from network_specs import BOX, make_spec, vector
from transcriptions import TRANSITIONS, transitions

from veldt.losses.dpg import DPG, DPGOptions
from veldt.losses.q_learning import QLearning, QLearningOptions
from veldt.networks import FlatParameters, NetworkOptions, make_network

CHOICES, ARM = make_spec(vector(3)), make_spec(vector(3), action=BOX)


def network_of(spec, head, seed=0):
    return make_network(NetworkOptions(hidden_sizes=(8, 8)), spec, head, seed)


def q_learning(network, **options) -> QLearning:
    objective = QLearning(QLearningOptions(**options))
    objective.open(network)
    return objective


def q_of(network, observation: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        first = torch.zeros(1, dtype=torch.bool)
        return network.step({"observation": observation[None]}, (), first)[0].q_values[0].numpy()


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("td_loss", ["huber", "squared"])
def test_q_learning_equals_its_transcription(double, td_loss):
    online, target = network_of(CHOICES, "q", 0), network_of(CHOICES, "q", 1)
    objective = q_learning(online, double=double, td_loss=td_loss)
    FlatParameters(objective._target.network).load(FlatParameters(target).vector)
    batch = transitions(CHOICES)
    loss = objective(batch)
    errors, total = [], 0.0
    for i in range(TRANSITIONS):
        behind = q_of(target, batch["next_observation"][i])
        judge = q_of(online, batch["next_observation"][i]) if double else behind
        goal = float(batch["reward"][i]) + float(batch["discount"][i]) * behind[judge.argmax()]
        error = goal - q_of(online, batch["observation"][i])[int(batch["action"][i])]
        linear = td_loss == "huber" and abs(error) > 1
        term = abs(error) - 0.5 if linear else 0.5 * error**2
        total += float(batch["weight"][i]) * term / TRANSITIONS
        errors.append(abs(error))
    assert float(loss.total.detach()) == pytest.approx(total, rel=1e-4)
    np.testing.assert_allclose(loss.priorities.numpy(), errors, rtol=1e-4)


def test_no_row_pulls_harder_than_one():
    objective = q_learning(network_of(CHOICES, "q"))
    bias = dict(objective._network.named_parameters())["head.bias"]
    batch = transitions(CHOICES)
    batch["weight"].fill_(1.0)
    batch["reward"].fill_(1e6)
    objective(batch).total.backward()
    taken = torch.bincount(batch["action"], minlength=3) / TRANSITIONS
    torch.testing.assert_close(bias.grad, -taken)


def test_the_target_is_copied_once_per_period_even_if_versions_jump():
    network = network_of(CHOICES, "q")
    flat = FlatParameters(network)
    objective = q_learning(network, target_period_updates=10)
    target = FlatParameters(objective._target.network)
    copied_at = []
    for version in (1, 2, 9, 10, 11, 19, 23, 24, 47, 50):
        flat.vector.fill_(float(version))
        objective.after_update(version)
        if float(target.vector[0]) == version:
            copied_at.append(version)
    assert copied_at == [10, 23, 47, 50]


def dpg_pair() -> tuple[DPG, torch.nn.Module]:
    online, target = network_of(ARM, "dpg", 0), network_of(ARM, "dpg", 1)
    with torch.no_grad():
        for parameter in online.parameters():
            parameter.mul_(3.0)  # steep enough for the clip to matter
    objective = DPG(QLearningOptions(), DPGOptions())
    objective.open(online)
    FlatParameters(objective._target.network).load(FlatParameters(target).vector)
    return objective, target


def test_dpg_equals_its_transcription():
    objective, target = dpg_pair()
    online, batch = objective._network, transitions(ARM)
    loss = objective(batch)
    critic, gain, errors = 0.0, 0.0, []
    with torch.no_grad():
        for i in range(TRANSITIONS):
            now, later = (
                {"observation": batch[name][i][None]}
                for name in ("observation", "next_observation")
            )
            bootstrap = float(target.critic(later, target.actor(later)))
            goal = float(batch["reward"][i]) + float(batch["discount"][i]) * bootstrap
            error = goal - float(online.critic(now, batch["action"][i][None]))
            critic += float(batch["weight"][i]) * 0.5 * error**2 / TRANSITIONS
            gain += float(online.critic(now, online.actor(now))) / TRANSITIONS
            errors.append(abs(error))
    assert float(loss.total.detach()) == pytest.approx(critic - gain, rel=1e-4)
    np.testing.assert_allclose(loss.priorities.numpy(), errors, rtol=1e-4)


def test_dpg_gradients_reach_each_part_alone_and_clipped():
    objective, target = dpg_pair()
    online, batch = objective._network, transitions(ARM)
    flat = FlatParameters(online)
    objective(batch).total.backward()
    found = flat.gradient.clone()
    now = {"observation": batch["observation"]}
    later = {"observation": batch["next_observation"]}

    flat.zero_gradient()
    goal = batch["reward"] + batch["discount"] * target.critic(later, target.actor(later)).detach()
    td = goal - online.critic(now, batch["action"])
    (0.5 * batch["weight"] * td.square()).mean().backward()
    torch.testing.assert_close(
        found[flat.span("critic_part")], flat.gradient[flat.span("critic_part")]
    )
    assert not flat.gradient[flat.span("actor_part")].any()

    action = online.actor(now).detach().requires_grad_()
    (slope,) = torch.autograd.grad(online.critic(now, action).sum(), action)
    assert (slope.abs() > 1).any(), "the case is not steep enough to show clipping"
    flat.zero_gradient()
    (-(slope.clamp(-1, 1) * online.actor(now)).sum(1).mean()).backward()
    torch.testing.assert_close(
        found[flat.span("actor_part")], flat.gradient[flat.span("actor_part")]
    )
