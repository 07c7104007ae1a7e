# SPDX-License-Identifier: Apache-2.0
"""SAC's and TD3's networks: shapes, bounds, densities, and what they refuse."""

import numpy as np
import pytest
import torch
from network_specs import BOX, DISCRETE, image, make_spec, random_observations, vector

from veldt.networks import NetworkOptions, make_network
from veldt.types import ActionSpec

CONFIG = NetworkOptions(hidden_sizes=(16, 16), activation="relu")
FIRST = torch.zeros(5, dtype=torch.bool)


@pytest.mark.parametrize("head", ["sac", "td3"])
@pytest.mark.parametrize(
    "leaves", [(vector(),), (image(10),), (vector(3, "a"), image(10, name="b"))]
)
def test_actions_lie_in_bounds_and_both_critics_answer(head, leaves):
    spec = make_spec(*leaves, action=BOX)
    network = make_network(CONFIG, spec, head, 0)
    observations = random_observations(spec, 5)
    outputs, _ = network.step(observations, (), FIRST)
    assert outputs.action.shape == (5, 2)
    assert (outputs.action.abs() <= 1).all()
    qs = network.critics(observations, outputs.action)
    assert qs.shape == (2, 5)
    assert not torch.equal(qs[0], qs[1])
    torch.testing.assert_close(network.critic(observations, outputs.action), qs.amin(0))
    edges = np.array([[-1.0, -1.0], [1.0, 1.0]], np.float32)
    np.testing.assert_allclose(network.env_action(edges), [[-2.0, 0.0], [2.0, 1.0]])


@pytest.mark.parametrize("head", ["sac", "td3"])
def test_unbounded_or_discrete_actions_and_memory_are_refused(head):
    endless = ActionSpec("box", (), (-np.inf,), (np.inf,), (1,))
    for action in (DISCRETE, endless):
        with pytest.raises(ValueError, match="bounded Box"):
            make_network(CONFIG, make_spec(action=action), head, 0)
    with pytest.raises(ValueError, match="without memory"):
        make_network(NetworkOptions(recurrent="lstm"), make_spec(action=BOX), head, 0)


@pytest.mark.parametrize("head", ["sac", "td3"])
def test_layers_begin_as_small_as_the_published_ones(head):
    """The deviation of a uniform within 1 / sqrt(n) of n inputs, in actor and critics."""
    wide = NetworkOptions(hidden_sizes=(256, 256), activation="relu")
    network = make_network(wide, make_spec(vector(17), action=BOX), head, 0)
    trunks = [network.actor_part["encoder"].mlp, *(each.joint for each in network.critic_part)]
    for trunk in trunks:
        deviation = float(trunk.layers[1].weight.detach().std())
        assert deviation == pytest.approx(1.0 / np.sqrt(3.0 * 256), rel=0.02)
