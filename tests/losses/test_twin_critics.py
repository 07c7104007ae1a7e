# SPDX-License-Identifier: Apache-2.0
"""SAC and TD3 over replayed transitions against slow transcriptions, row by row."""

import math

import numpy as np
import pytest
import torch
from network_specs import BOX, make_spec, vector
from transcriptions import TRANSITIONS, transitions

from veldt.losses.sac import SAC, SACOptions
from veldt.losses.target_network import TargetNetwork
from veldt.losses.td3 import TD3, TD3Options
from veldt.networks import FlatParameters, NetworkOptions, make_network


def opened(kind, network, seed=0, **options):
    objective = kind({SAC: SACOptions, TD3: TD3Options}[kind](**options))
    objective.seed = seed
    objective.open(network)
    return objective


SPEC = make_spec(vector(3), action=BOX)


def network_of(head: str, seed: int = 0):
    config = NetworkOptions(hidden_sizes=(8, 8), activation="relu")
    network = make_network(config, SPEC, head, seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)
    return network


def row_of(batch, i: int, prefix: str = "") -> dict[str, torch.Tensor]:
    return {"observation": batch[prefix + "observation"][i][None]}


def drawn(network, observations, noise) -> tuple[torch.Tensor, float]:
    """An action and the logarithm of its density in (-1, 1), dimension by dimension."""
    params = network.policy(observations)[0]
    action, log_density = [], 0.0
    for d in range(2):
        mean, raw = float(params[d]), float(params[2 + d])
        std = 1e-3 + math.log1p(math.exp(raw + math.log(math.expm1(1 - 1e-3))))
        u = mean + std * float(noise[d])
        action.append(math.tanh(u))
        log_density -= 0.5 * ((u - mean) / std) ** 2 + math.log(std) + 0.5 * math.log(2 * math.pi)
        log_density -= math.log(1 - math.tanh(u) ** 2)
    return torch.tensor([action]), log_density


def sac_pair(**settings):
    online, target = network_of("sac", 0), network_of("sac", 1)
    objective = opened(SAC, online, **settings)
    FlatParameters(objective._target.network).load(FlatParameters(target).vector)
    with torch.no_grad():
        online.temperature.log.fill_(math.log(0.3))
    return online, target, objective


def test_sac_equals_its_transcription():
    online, target, objective = sac_pair()
    batch = transitions(SPEC)
    loss = objective(batch)
    noise = torch.randn((2, TRANSITIONS, 2), generator=torch.Generator().manual_seed(0))
    critic = actor = heat = 0.0
    errors = []
    with torch.no_grad():
        for i in range(TRANSITIONS):
            later, now = row_of(batch, i, "next_"), row_of(batch, i)
            action, log_prob = drawn(online, later, noise[0, i])
            both = [float(c(later, action)) for c in target.critic_part]
            goal = float(batch["reward"][i])
            goal += float(batch["discount"][i]) * (min(both) - 0.3 * log_prob)
            found = [goal - float(c(now, batch["action"][i][None])) for c in online.critic_part]
            critic += float(batch["weight"][i]) * sum(e**2 / 2 for e in found) / TRANSITIONS
            errors.append(sum(abs(e) for e in found) / 2)
            action, log_prob = drawn(online, now, noise[1, i])
            best = min(float(c(now, action)) for c in online.critic_part)
            actor += (0.3 * log_prob - best) / TRANSITIONS
            heat -= math.log(0.3) * (log_prob - 2.0) / TRANSITIONS
    assert float(loss.total.detach()) == pytest.approx(critic + actor + heat, rel=1e-4)
    np.testing.assert_allclose(loss.priorities.numpy(), errors, rtol=1e-4)


def test_sac_gradients_reach_each_part_alone():
    online, _, objective = sac_pair(target_entropy=-1.0)
    flat, batch = FlatParameters(online), transitions(SPEC)
    objective(batch).total.backward()
    found = flat.gradient.clone()
    noise = torch.randn((2, TRANSITIONS, 2), generator=torch.Generator().manual_seed(0))
    now = {"observation": batch["observation"]}

    flat.zero_gradient()
    action, log_prob = online.draw(online.policy(now), noise[1])
    (0.3 * log_prob - online.critics(now, action).amin(0)).mean().backward()
    actor = flat.span("actor_part")
    torch.testing.assert_close(found[actor], flat.gradient[actor])

    surplus = (log_prob.detach() - 1.0).mean()
    torch.testing.assert_close(found[flat.span("temperature")], -surplus.reshape(1))

    flat.zero_gradient()
    later = {"observation": batch["next_observation"]}
    targets = objective._targets(batch, later, noise[0], torch.tensor(0.3))
    errors = targets - online.critics(now, batch["action"])
    (batch["weight"] * 0.5 * errors.square()).mean(1).sum().backward()
    critic = flat.span("critic_part")
    torch.testing.assert_close(found[critic], flat.gradient[critic])


def test_td3_equals_its_transcription():
    online, target = network_of("td3", 0), network_of("td3", 1)
    objective = opened(TD3, online)
    FlatParameters(objective._target.network).load(FlatParameters(target).vector)
    batch = transitions(SPEC)
    loss = objective(batch)
    noise = torch.randn((TRANSITIONS, 2), generator=torch.Generator().manual_seed(0))
    critic = actor = 0.0
    with torch.no_grad():
        for i in range(TRANSITIONS):
            later, now = row_of(batch, i, "next_"), row_of(batch, i)
            push = (0.2 * noise[i]).clamp(-0.5, 0.5)
            action = (target.actor(later) + push).clamp(-1, 1)
            best = min(float(c(later, action)) for c in target.critic_part)
            goal = float(batch["reward"][i]) + float(batch["discount"][i]) * best
            for c in online.critic_part:
                error = goal - float(c(now, batch["action"][i][None]))
                critic += float(batch["weight"][i]) * error**2 / 2 / TRANSITIONS
            actor -= float(online.critic_part[0](now, online.actor(now))) / TRANSITIONS
    assert float(loss.total.detach()) == pytest.approx(critic + actor, rel=1e-4)


def test_the_actor_of_td3_is_learned_every_second_update():
    online = network_of("td3")
    flat, objective, batch = FlatParameters(online), opened(TD3, online), transitions(SPEC)
    learned = []
    for version in range(4):
        objective.after_update(version)
        flat.zero_gradient()
        objective(batch).total.backward()
        learned.append(bool(flat.gradient[flat.span("actor_part")].any()))
        assert flat.gradient[flat.span("critic_part")].any()
    assert learned == [True, False, True, False]


def test_soft_target_moves_by_its_share_once_per_period():
    network = network_of("td3")
    flat = FlatParameters(network)
    target = TargetNetwork(network, tau=0.25, period_updates=2)
    followed = FlatParameters(target.network)
    start = followed.vector.clone()
    flat.vector.fill_(1.0)
    target.after_update(1)
    torch.testing.assert_close(followed.vector, start)
    target.after_update(2)
    torch.testing.assert_close(followed.vector, start + 0.25 * (1.0 - start))


def test_targets_take_over_statistics_as_they_are():
    for make in (lambda n: TargetNetwork(n, tau=0.25), lambda n: TargetNetwork(n, 1)):
        network = torch.nn.Linear(2, 2)
        network.register_buffer("mean", torch.zeros(2))
        target = make(network)
        network.mean.fill_(8.0)
        target.after_update(1)
        assert target.network.mean.tolist() == [8.0, 8.0]


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_targets_and_noise_survive_a_restart(kind):
    head = kind.__name__.lower()
    first, second = (opened(kind, network_of(head, seed)) for seed in (0, 1))
    first.after_update(6)
    second.load_state({name: np.array(array) for name, array in first.state().items()})
    second._network.load_state_dict(first._network.state_dict())
    batch = transitions(SPEC)
    torch.testing.assert_close(first(batch).total, second(batch).total)


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_noise_depends_on_the_learners_seed_and_not_on_the_version(kind):
    def loss(seed, version=2):
        objective = opened(kind, network_of(kind.__name__.lower()), seed=seed)
        objective.after_update(version)
        return float(objective(transitions(SPEC)).total.detach())

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)
    assert loss(1) == loss(1, version=4)
