# SPDX-License-Identifier: Apache-2.0
"""Actions from outputs: epsilon-greedy, noise on Box actions, and the values kept with the row."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from network_specs import make_spec, vector
from wiring import context

from veldt.errors import ConfigurationError
from veldt.losses.asynchronous_q import AsynchronousQOptions
from veldt.networks import ActionOutput, NetworkOptions, QOutput, make_network
from veldt.roles.selection import (
    ENVIRONMENT,
    AnnealedEpsilon,
    ColoredNoise,
    EpsilonGreedy,
    EpsilonOptions,
    GaussianNoise,
    HeldOptions,
    LadderEpsilon,
    SquashedDraws,
    colored_noise,
)
from veldt.types import ACTION_MASK, ActionSpec

NO_NETWORK = SimpleNamespace()
BOX = make_spec(vector(3), action=ActionSpec("box", (), (-2.0, -1.0), (2.0, 3.0), (2,)))


def selecting(selection, network=NO_NETWORK, own_context=None):
    selection.open(network, own_context or context())
    return selection


def at(*rates, hold_exponent=0.0):
    """Exploration at these rates, whatever the number of steps."""
    rate = np.array(rates) if len(rates) > 1 else rates[0]
    select = EpsilonGreedy(lambda context: lambda env_steps, environments: rate, hold_exponent)
    return selecting(select)


def test_the_ladder_runs_over_the_environments_of_all_actors_and_stays():
    # 0.4^(1 + 7 i / 7), i = 0 .. 7, as printed in the paper's notation for N = 8.
    table = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536]
    ladder = LadderEpsilon(8, 0.4, 7.0)
    for env_steps in (0, 10**6):
        rungs = [ladder(context("actor", i))(env_steps, 4 * i + np.arange(4)) for i in range(2)]
        np.testing.assert_allclose(np.concatenate(rungs), table)
    np.testing.assert_allclose(LadderEpsilon(1, 0.4, 7.0)(context())(0, np.arange(1)), 0.4)


def test_actors_and_servers_ask_for_the_rungs_of_their_own_environments():
    seen = []

    def watched(context):
        return lambda env_steps, environments: seen.append(environments) or 0.0

    for index in range(2):
        select = selecting(EpsilonGreedy(watched), own_context=context("actor", index))
        select(QOutput(torch.zeros(4, 2)), {})
    np.testing.assert_array_equal(np.concatenate(seen), np.arange(8))
    batch = np.array([30, 2, 17, 5])  # an inference server answers any environments
    select(QOutput(torch.zeros(4, 2)), {ENVIRONMENT: torch.from_numpy(batch)})
    np.testing.assert_array_equal(seen[-1], batch)


def test_the_schedule_decreases_over_the_steps_of_all_actors():
    falls = AnnealedEpsilon(1.0, (0.1,), 100)(context())
    rates = [falls(steps, np.arange(2)) for steps in (0, 50, 100, 500)]
    assert rates == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert AnnealedEpsilon(1.0, (0.1,), 0)(context())(0, np.arange(2)) == 0.1

    def rate(exploration):
        return float(exploration(context())(50, np.arange(2)))

    annealed = EpsilonOptions(epsilon_start=1.0, epsilon_end=0.0, epsilon_env_steps=200)
    drawn = AsynchronousQOptions(epsilon_ends=(0.0,), epsilon_odds=(1.0,), epsilon_env_steps=200)
    for num_actors, expected in ((4, 0.0), (2, 0.5)):
        assert rate(annealed.greedy(num_actors).exploration) == expected
        assert rate(AnnealedEpsilon.drawn(drawn, num_actors)) == expected


def test_each_environment_explores_at_its_own_rate():
    rates = np.array([0.0, 0.1, 0.5, 1.0])
    select = at(*rates)
    q = torch.tensor([0.0, 1.0, 0.0, 0.0]).repeat(4, 1)
    actions = np.stack([select(QOutput(q), {}).action for _ in range(4000)])
    # A random action is the best one a quarter of the time.
    np.testing.assert_allclose((actions != 1).mean(0), rates * 0.75, atol=0.03)


def test_values_of_the_action_taken_and_of_the_best_are_kept():
    select = at(0.5)
    q = torch.from_numpy(np.random.default_rng(0).standard_normal((64, 5)).astype(np.float32))
    reply = select(QOutput(q), {})
    np.testing.assert_array_equal(reply.outputs["value_best"], q.numpy().max(1))
    taken = q.numpy()[np.arange(64), reply.action]
    np.testing.assert_array_equal(reply.outputs["value_taken"], taken)
    assert (taken < reply.outputs["value_best"]).any()


def test_random_actions_respect_the_mask():
    select = at(1.0)
    mask = torch.rand(1000, 6, generator=torch.manual_seed(0)) < 0.4
    mask[:, 5] |= ~mask.any(1)
    action = select(QOutput(torch.zeros(1000, 6)), {ACTION_MASK: mask}).action
    assert mask.numpy()[np.arange(1000), action].all()
    assert len(np.unique(action)) == 6


def test_a_random_action_is_held_and_then_ends():
    for exponent, remedy in ((0.5, "above 1"), (-2.0, "use 0")):
        with pytest.raises(ConfigurationError, match=remedy):
            HeldOptions(hold_exponent=exponent)
    select = at(1.0, hold_exponent=2.0)
    q_values = torch.zeros(3, 50)
    taken = np.stack([select(QOutput(q_values), {}).action for _ in range(4000)])
    repeats = (taken[1:] == taken[:-1]).mean()
    # A chance ~ n^-2 has 61% of single steps, but most steps lie in long stretches.
    assert 0.5 < repeats < 0.95
    changes = np.flatnonzero((taken[1:] != taken[:-1]).any(axis=1))
    assert len(changes) > 100


def test_a_held_action_that_is_no_longer_allowed_ends():
    select = at(1.0, hold_exponent=1.01)  # long
    mask = torch.ones(1, 2, dtype=torch.bool)
    first = int(select(QOutput(torch.zeros(1, 2)), {ACTION_MASK: mask}).action[0])
    mask[0, first] = False
    assert int(select(QOutput(torch.zeros(1, 2)), {ACTION_MASK: mask}).action[0]) == 1 - first


def box_network(head):
    return make_network(NetworkOptions(hidden_sizes=(16,)), BOX, head, 0)


def replies(select, network, rows, count):
    """Observations, outputs and several replies to them."""
    selecting(select, network)
    observations = {"observation": torch.randn(rows, 3, generator=torch.manual_seed(0))}
    with torch.inference_mode():
        outputs, _ = network.step(observations, (), torch.zeros(rows, dtype=torch.bool))
        return observations, outputs, [select(outputs, observations) for _ in range(count)]


def assert_scaled_to_the_bounds(reply):
    np.testing.assert_allclose(reply.env_action[:, 0], 2.0 * reply.action[:, 0], atol=1e-6)
    np.testing.assert_allclose(reply.env_action[:, 1], 1 + 2 * reply.action[:, 1], atol=1e-6)


def test_noise_has_its_deviation_and_stays_within_bounds():
    select = selecting(GaussianNoise(sigma=0.3), box_network("dpg"))
    own = torch.tensor([0.0, 0.9]).repeat(20_000, 1)
    with torch.inference_mode():
        reply = select(ActionOutput(own), {"observation": torch.zeros(20_000, 3)})
    assert reply.action[:, 0].std() == pytest.approx(0.3, rel=0.03)
    assert reply.action[:, 0].mean() == pytest.approx(0.0, abs=0.01)
    assert reply.action.min() >= -1.0
    assert (reply.action[:, 1] == 1.0).any(), "clipped at the bound"
    assert_scaled_to_the_bounds(reply)


def test_draws_of_soft_actor_critic_follow_its_policy():
    network = box_network("sac")
    _, outputs, (reply,) = replies(SquashedDraws(), network, 20_000, 1)
    u = np.arctanh(np.clip(reply.action, -0.999999, 0.999999))
    mean, std = network.normal.moments(outputs.params)
    z = (u - mean.numpy()) / std.numpy()
    np.testing.assert_allclose(z.mean(0), 0.0, atol=0.03)
    np.testing.assert_allclose(z.std(0), 1.0, atol=0.03)
    assert_scaled_to_the_bounds(reply)


@pytest.mark.parametrize(
    ("head", "select"), [("dpg", GaussianNoise(sigma=0.3)), ("sac", SquashedDraws())]
)
def test_the_critics_values_are_kept_with_the_row(head, select):
    network = box_network(head)
    observations, outputs, (reply,) = replies(select, network, 16, 1)
    with torch.inference_mode():
        taken = network.critic(observations, torch.from_numpy(reply.action)).numpy()
        best = network.critic(observations, outputs.action).numpy()
    np.testing.assert_allclose(reply.outputs["value_taken"], taken, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(reply.outputs["value_best"], best, rtol=1e-4, atol=1e-6)
    assert not np.allclose(taken, best)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("steps", [1, 2, 63, 64])
def test_every_value_of_colored_noise_is_standard_normal(exponent, steps):
    noise = colored_noise(steps, (4000, 2), exponent, np.random.default_rng(0))
    assert noise.shape == (steps, 4000, 2)
    assert noise.dtype == np.float32
    np.testing.assert_allclose(noise.mean(axis=(1, 2)), 0.0, atol=0.06)
    np.testing.assert_allclose(noise.std(axis=(1, 2)), 1.0, atol=0.05)


def test_the_power_of_pink_noise_falls_with_frequency():
    noise = colored_noise(1024, (500,), 1.0, np.random.default_rng(2))
    power = np.square(np.abs(np.fft.rfft(noise, axis=0))).mean(axis=1)
    slow, fast = power[8:16].mean(), power[128:256].mean()
    assert slow / fast == pytest.approx(16.0, rel=0.15)


@pytest.mark.parametrize(("share", "pink"), [(0.0, []), (0.25, [0, 4]), (1.0, list(range(8)))])
def test_a_share_of_the_environments_has_pink_noise(share, pink):
    noise = ColoredNoise(1.0, np.random.default_rng(3), share)
    rows = np.stack([noise.next(np.arange(8), 1)[:, 0] for _ in range(3000)])
    alike = (rows[1:] * rows[:-1]).mean(axis=0)
    assert list(np.flatnonzero(alike > 0.3)) == pink
    np.testing.assert_allclose(rows.std(axis=0), 1.0, atol=0.25)
