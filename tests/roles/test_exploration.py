# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from wiring import context

from veldt.errors import ConfigurationError
from veldt.losses.asynchronous_q import AsynchronousQOptions
from veldt.networks import ActionOutput, NetworkOptions, QOutput, make_network
from veldt.roles.policies.selection import (
    AnnealedEpsilon,
    DrawnEpsilon,
    EpsilonGreedy,
    EpsilonOptions,
    GaussianNoise,
    HeldOptions,
    LadderEpsilon,
)
from veldt.types import ACTION_MASK, ActionSpec, EnvironmentSpec, ObservationLeaf

OBSERVATION = (ObservationLeaf("observation", (3,), "float32", "vector"),)
NO_NETWORK = SimpleNamespace()


def selecting(selection, network=NO_NETWORK, told=None):
    selection.open(network, told or context())
    return selection


def at(*rates):
    """Exploration at these rates, whatever the number of steps."""
    rate = np.array(rates) if len(rates) > 1 else rates[0]
    return EpsilonGreedy(lambda told: lambda env_steps, environments: rate)


def test_the_ladder_runs_over_the_environments_of_all_actors():
    # 0.4^(1 + 7 i / 7), i = 0 .. 7, as printed in the paper's notation for N = 8.
    table = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536]
    ladder = LadderEpsilon(8, 0.4, 7.0)
    rungs = [ladder(context("actor", i))(0, 4 * i + np.arange(4)) for i in range(2)]
    np.testing.assert_allclose(np.concatenate(rungs), table)


def test_ladder_is_base_to_the_power_one_to_eight():
    rungs = LadderEpsilon(360, 0.4, 7.0)(context())(0, np.arange(360))
    np.testing.assert_allclose(rungs, 0.4 ** np.linspace(1, 8, 360))
    np.testing.assert_allclose(LadderEpsilon(1, 0.4, 7.0)(context())(0, np.arange(1)), 0.4)


def test_actors_ask_for_the_rungs_of_their_own_environments():
    seen = []

    def watched(told):
        return lambda env_steps, environments: seen.append(environments) or 0.0

    for index in range(2):
        select = selecting(EpsilonGreedy(watched), told=context("actor", index))
        select(QOutput(torch.zeros(4, 2)), {})
    np.testing.assert_array_equal(np.concatenate(seen), np.arange(8))


def test_the_ladder_stays_while_the_schedule_falls():
    here = context("actor", 1)
    ladder = LadderEpsilon(6, 0.4, 7.0)(here)
    first, late = (ladder(steps, 2 + np.arange(2)) for steps in (0, 10**6))
    np.testing.assert_array_equal(first, late)
    falls = AnnealedEpsilon(1.0, 0.1, 100)(here)
    rates = [falls(steps, np.arange(2)) for steps in (0, 50, 100, 500)]
    assert rates == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert AnnealedEpsilon(1.0, 0.1, 0)(here)(0, np.arange(2)) == 0.1


def test_each_environment_explores_at_its_own_rate():
    rates = np.array([0.0, 0.1, 0.5, 1.0])
    select = selecting(at(*rates))
    q = torch.tensor([0.0, 1.0, 0.0, 0.0]).repeat(4, 1)
    actions = np.stack([select(QOutput(q), {}).action for _ in range(4000)])
    # A random action is the best one a quarter of the time.
    np.testing.assert_allclose((actions != 1).mean(0), rates * 0.75, atol=0.03)


def test_values_of_the_action_taken_and_of_the_best_are_kept():
    select = selecting(at(0.5))
    q = torch.from_numpy(np.random.default_rng(0).standard_normal((64, 5)).astype(np.float32))
    reply = select(QOutput(q), {})
    np.testing.assert_array_equal(reply.outputs["value_best"], q.numpy().max(1))
    np.testing.assert_array_equal(
        reply.outputs["value_taken"], q.numpy()[np.arange(64), reply.action]
    )
    assert (reply.outputs["value_taken"] < reply.outputs["value_best"]).any()


@pytest.fixture
def dpg_network():
    action = ActionSpec("box", low=(-2.0, -1.0), high=(2.0, 3.0), shape=(2,))
    spec = EnvironmentSpec("test", OBSERVATION, action)
    return make_network(NetworkOptions(), spec, "dpg", 0)


def test_noise_has_the_deviation_asked_for_and_stays_within_bounds(dpg_network):
    select = selecting(GaussianNoise(0.3), dpg_network)
    observations = {"observation": torch.zeros(20_000, 3)}
    own = torch.tensor([0.0, 0.9]).repeat(20_000, 1)
    with torch.inference_mode():
        reply = select(ActionOutput(own), observations)
    assert reply.action[:, 0].std() == pytest.approx(0.3, rel=0.03)
    assert reply.action[:, 0].mean() == pytest.approx(0.0, abs=0.01)
    assert reply.action.min() >= -1.0
    assert (reply.action[:, 1] == 1.0).any(), "clipped at the bound"
    np.testing.assert_allclose(reply.env_action[:, 0], 2.0 * reply.action[:, 0], atol=1e-6)
    np.testing.assert_allclose(reply.env_action[:, 1], 1 + 2 * reply.action[:, 1], atol=1e-6)


def test_the_critics_values_go_with_the_row(dpg_network):
    select = selecting(GaussianNoise(0.3), dpg_network)
    observations = {"observation": torch.randn(16, 3, generator=torch.manual_seed(0))}
    with torch.inference_mode():
        outputs, _ = dpg_network.step(observations, (), torch.zeros(16, dtype=torch.bool))
        reply = select(outputs, observations)
        taken = dpg_network.critic(observations, torch.from_numpy(reply.action)).numpy()
        best = dpg_network.critic(observations, outputs.action).numpy()
    np.testing.assert_allclose(reply.outputs["value_taken"], taken, rtol=1e-5)
    np.testing.assert_allclose(reply.outputs["value_best"], best, rtol=1e-5)
    assert not np.allclose(taken, best)


def test_exploration_is_a_stream_of_its_own():
    q = QOutput(torch.zeros(32, 4))
    runs = [
        [selecting(at(1.0), told=context(name))(q, {}).action for name in ("a", "b")]
        for _ in range(2)
    ]
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert (runs[0][0] != runs[0][1]).any()


def test_a_random_action_is_held_and_then_ends():
    select = at(1.0)
    select.hold_exponent = 2.0
    selecting(select)
    q_values = torch.zeros(3, 50)
    taken = np.stack([select(QOutput(q_values), {}).action for _ in range(4000)])
    repeats = (taken[1:] == taken[:-1]).mean()
    # A chance ~ n^-2 has 61% of single steps, but most steps lie in long stretches.
    assert 0.5 < repeats < 0.95
    changes = np.flatnonzero((taken[1:] != taken[:-1]).any(axis=1))
    assert len(changes) > 100


def test_a_held_action_that_is_no_longer_allowed_ends():
    select = at(1.0)
    select.hold_exponent = 1.01  # long
    selecting(select)
    mask = torch.ones(1, 2, dtype=torch.bool)
    first = int(select(QOutput(torch.zeros(1, 2)), {ACTION_MASK: mask}).action[0])
    mask[0, first] = False
    assert int(select(QOutput(torch.zeros(1, 2)), {ACTION_MASK: mask}).action[0]) == 1 - first


def test_without_holding_no_draw_changes():
    with pytest.raises(ConfigurationError, match="above 1"):
        HeldOptions(hold_exponent=0.5)
    held, plain = (selecting(at(0.3)) for _ in range(2))
    held.hold_exponent = 0.0
    for _ in range(20):
        q_values = QOutput(torch.zeros(4, 3))
        np.testing.assert_array_equal(held(q_values, {}).action, plain(q_values, {}).action)


def test_random_actions_respect_the_mask():
    select = selecting(at(1.0))
    mask = torch.rand(1000, 6, generator=torch.manual_seed(0)) < 0.4
    mask[:, 5] |= ~mask.any(1)
    action = select(QOutput(torch.zeros(1000, 6)), {ACTION_MASK: mask}).action
    assert mask.numpy()[np.arange(1000), action].all()
    assert len(np.unique(action)) == 6


def test_the_schedule_counts_the_steps_of_all_actors():
    def rate(exploration):
        return float(exploration(context())(50, np.arange(2)))

    annealed = EpsilonOptions(epsilon_start=1.0, epsilon_end=0.0, epsilon_env_steps=200)
    assert rate(annealed.greedy(4).exploration) == 0.0
    assert rate(annealed.greedy(2).exploration) == 0.5
    drawn = AsynchronousQOptions(epsilon_ends=(0.0,), epsilon_odds=(1.0,), epsilon_env_steps=200)
    assert rate(DrawnEpsilon.of(drawn, 4)) == 0.0
    assert rate(DrawnEpsilon.of(drawn, 2)) == 0.5
