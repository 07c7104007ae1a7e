# SPDX-License-Identifier: Apache-2.0
"""Heads, cores, masks, seeds: acting step by step and learning on trajectories must agree."""

import numpy as np
import pytest
import torch
from network_specs import BOX, DISCRETE, MULTI_DISCRETE, make_spec, random_observations, vector

from veldt.networks import (
    LAST_ACTION,
    LAST_REWARD,
    MASKED_LOGIT,
    FlatParameters,
    NetworkFactory,
    NetworkOptions,
    PolicyValueNetwork,
    make_network,
    masked_q,
)
from veldt.types import ACTION_MASK

ROWS, ENVS = 7, 5


def random_first(seed=0):
    first = torch.rand(ROWS, ENVS, generator=torch.Generator().manual_seed(seed)) < 0.3
    assert first[1:].any()
    return first


def random_state(network):
    generator = torch.Generator().manual_seed(3)
    return tuple(
        torch.randn(entry.shape, generator=generator) for entry in network.initial_state(ENVS)
    )


def vector_of(config, spec, head, seed):
    return FlatParameters(make_network(config, spec, head, seed)).vector


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("head", ["policy_value", "q"])
@pytest.mark.parametrize("recurrent", ["none", "lstm", "gru"])
def test_unroll_equals_repeated_steps(recurrent, head, past):
    config = NetworkOptions(recurrent=recurrent, recurrent_size=16, last_action_and_reward=past)
    spec = make_spec(action_mask_size=3)
    network = make_network(config, spec, head, 0)
    observations, first = random_observations(spec, ROWS, ENVS), random_first()
    if past:
        observations[LAST_ACTION] = torch.randint(0, 3, (ROWS, ENVS))
        observations[LAST_REWARD] = torch.randn(ROWS, ENVS)
    start = state = random_state(network)
    outputs, states = network.unroll(observations, start, first)
    assert len(states) == len(state)
    for t in range(ROWS):
        row = {name: value[t] for name, value in observations.items()}
        output, state = network.step(row, state, first[t])
        for together, alone in zip(outputs, output, strict=True):
            torch.testing.assert_close(together[t], alone, atol=1e-5, rtol=1e-5)
        for together, alone in zip(states, state, strict=True):
            torch.testing.assert_close(together[t], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("recurrent", ["lstm", "gru"])
def test_an_episode_remembers_nothing_of_the_one_before(recurrent):
    network = make_network(NetworkOptions(recurrent=recurrent), make_spec(), "policy_value", 0)
    first = torch.zeros(ROWS, ENVS, dtype=torch.bool)
    first[3] = True
    observations = random_observations(make_spec(), ROWS, ENVS)
    changed = random_observations(make_spec(), ROWS, ENVS, seed=1)
    changed["observation"][3:] = observations["observation"][3:]
    before, _ = network.unroll(observations, network.initial_state(ENVS), first)
    after, _ = network.unroll(changed, random_state(network), first)
    assert torch.equal(before.value[3:], after.value[3:])
    assert not torch.equal(before.value[2], after.value[2])
    remembered, _ = network.unroll(changed, random_state(network), torch.zeros_like(first))
    assert not torch.equal(remembered.value[3:], after.value[3:])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_cells_agree_with_torch(kind):
    network = make_network(NetworkOptions(recurrent=kind, recurrent_size=6), make_spec(), "q", 0)
    core, x = network.core, torch.randn(ENVS, 64)
    state = random_state(network)
    with torch.no_grad():
        core.bias.normal_()
        new = core.step(x, state, torch.zeros(ENVS, dtype=torch.bool))
        if kind == "lstm":  # torch orders input, forget, candidate, output
            blocks = [0, 1, 3, 2]
            rows = torch.cat([torch.arange(6) + 6 * block for block in blocks])
            weights = (core.input_weight[rows], core.state_weight[rows], core.bias[rows])
            expected = torch.lstm_cell(x, state, *weights, torch.zeros(24))
        else:
            core.state_bias.normal_()
            new = core.step(x, state, torch.zeros(ENVS, dtype=torch.bool))
            bias = torch.cat((torch.zeros(12), core.state_bias))
            weights = (core.input_weight, core.state_weight, core.bias, bias)
            expected = (torch.gru_cell(x, state[0], *weights),)
    for ours, theirs in zip(new, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_the_past_counts_except_where_an_episode_begins():
    spec = make_spec()
    network = make_network(NetworkOptions(last_action_and_reward=True), spec, "policy_value", 0)
    first = torch.tensor([True, False])
    observations = random_observations(spec, 2)
    values = []
    for action, reward in ((0, 0.0), (2, 0.0), (0, 1.0)):
        past = {LAST_ACTION: torch.full((2,), action), LAST_REWARD: torch.full((2,), reward)}
        values.append(network.step({**observations, **past}, (), first)[0].value.tolist())
    assert values[0][0] == values[1][0] == values[2][0]
    assert len({value[1] for value in values}) == 3


@pytest.mark.parametrize("action", [DISCRETE, MULTI_DISCRETE])
def test_masked_actions_are_never_drawn_and_are_stored_as_masked(action):
    spec = make_spec(action=action, action_mask_size=sum(action.sizes))
    network = make_network(NetworkOptions(), spec, "policy_value", 0)
    observations = random_observations(spec, 2000)
    mask = observations[ACTION_MASK]
    start = 0
    for size in action.sizes:
        mask[:, start] = True
        start += size
    outputs, _ = network.step(observations, (), torch.zeros(2000, dtype=torch.bool))
    assert (outputs.logits[~mask] == MASKED_LOGIT).all()
    assert (outputs.logits[mask] > MASKED_LOGIT).all()
    logits, random = outputs.logits.detach().numpy(), np.random.default_rng(0)
    drawn = torch.from_numpy(network.distribution.sample(logits, random))
    chosen = network.distribution.action_features(drawn).bool()
    assert mask[chosen].all()
    assert torch.isfinite(network.distribution.entropy(outputs.logits)).all()
    (network.distribution.log_prob(outputs.logits, drawn).sum() + outputs.value.sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters())


def test_q_values_are_masked_at_selection_only():
    spec = make_spec(action_mask_size=3)
    network = make_network(NetworkOptions(), spec, "q", 0)
    observations = random_observations(spec, 50)
    q_values = network.step(observations, (), torch.zeros(50, dtype=torch.bool))[0].q_values
    assert (q_values.abs() < 100).all()
    chosen = masked_q(q_values, observations).argmax(-1, keepdim=True)
    assert observations[ACTION_MASK].gather(-1, chosen).all()
    assert masked_q(q_values, {}) is q_values


def test_dueling_advantages_have_mean_zero():
    network = make_network(NetworkOptions(dueling=True, hidden_sizes=(16, 8)), make_spec(), "q", 0)
    observations = random_observations(make_spec(), 6)
    q_values = network.step(observations, (), torch.zeros(6, dtype=torch.bool))[0].q_values
    value, _ = network.streams(network.encoder(observations)).split(8, dim=1)
    torch.testing.assert_close(q_values.mean(-1), network.value(value).squeeze(1))
    assert network.encoder.num_features == 16


@pytest.mark.parametrize("head", ["policy_value", "q"])
@pytest.mark.parametrize("encoder", ["auto", "network_specs:make_linear_encoder"])
def test_the_seed_alone_decides_the_weights(head, encoder):
    config, spec = NetworkOptions(encoder=encoder, recurrent="lstm"), make_spec()
    torch.manual_seed(1)
    first = vector_of(config, spec, head, 5)
    position = torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(vector_of(config, spec, head, 5), first)
    assert not torch.equal(vector_of(config, spec, head, 6), first)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), position), "the global stream must not move"


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
def test_the_number_of_threads_has_no_part_in_the_weights(recurrent):
    config = NetworkOptions(hidden_sizes=(256, 256), recurrent=recurrent)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(vector_of(config, make_spec(vector(8)), "policy_value", 3))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("action", "head", "options", "message"),
    [
        (BOX, "q", {}, "needs a Discrete action space"),
        (MULTI_DISCRETE, "q", {}, "needs a Discrete action space"),
        (DISCRETE, "dpg", {}, "are for bounded Box"),
        (BOX, "dpg", {"recurrent": "lstm"}, "set recurrent none"),
        (DISCRETE, "actor", {}, "use policy_value, q, dpg"),
    ],
)
def test_heads_that_do_not_fit_are_refused(action, head, options, message):
    with pytest.raises(ValueError, match=message):
        make_network(NetworkOptions(**options), make_spec(action=action), head, 0)


class OneLogit(PolicyValueNetwork):
    def outputs(self, features, observations):
        both = super().outputs(features, observations)
        return both._replace(logits=both.logits[:, :1])


def test_an_own_head_of_another_shape_is_refused():
    spec = make_spec(action_mask_size=3)
    config = NetworkOptions(recurrent="lstm", last_action_and_reward=True)
    NetworkFactory(config, spec, PolicyValueNetwork).require_outputs("policy_value")
    with pytest.raises(ValueError, match=r"OneLogit: .*'logits': \(2, 3\).*'logits': \(2, 1\)"):
        NetworkFactory(config, spec, OneLogit).require_outputs("policy_value")


def test_heads_start_small_and_orthogonal():
    network = make_network(NetworkOptions(), make_spec(), "policy_value", 0)
    policy, value = network.head.weight.data.split((3, 1))
    torch.testing.assert_close(policy @ policy.T, 1e-4 * torch.eye(3), atol=1e-8, rtol=1e-4)
    torch.testing.assert_close(value.norm(), torch.tensor(1.0))
    hidden = network.encoder.mlp.layers[1].weight.data
    torch.testing.assert_close(hidden @ hidden.T, 2 * torch.eye(64), atol=1e-5, rtol=1e-4)
