# SPDX-License-Identifier: Apache-2.0
"""The flat vector is the module's memory, before and after everything done to either."""

import numpy as np
import pytest
import torch
from network_specs import make_spec, random_observations
from torch import nn

from veldt.networks import FlatParameters, NetworkOptions, make_network


def make(**options):
    network = make_network(
        NetworkOptions(hidden_sizes=(8,), normalize_observations=True, **options),
        make_spec(),
        "policy_value",
        0,
    )
    return network, FlatParameters(network)


def assert_views(network, flat):
    start = flat.vector.data_ptr()
    end = start + 4 * flat.size
    for entry in [*network.parameters(), *network.buffers()]:
        assert start <= entry.data_ptr() < end
    begin = flat.gradient.data_ptr()
    for parameter in network.parameters():
        assert begin <= parameter.grad.data_ptr() < begin + 4 * flat.num_trained
        assert parameter.grad.shape == parameter.shape


def loss_of(network):
    outputs, _ = network.step(random_observations(make_spec(), 6), (), torch.zeros(6).bool())
    return outputs.value.square().sum() + outputs.logits.sum()


def test_trained_first_then_buffers():
    network, flat = make()
    trained = torch.cat([p.detach().flatten() for p in network.parameters()])
    buffers = torch.cat([b.flatten() for b in network.buffers()])
    assert torch.equal(flat.vector, torch.cat((trained, buffers)))
    assert flat.num_trained == len(trained)
    assert flat.size == len(trained) + len(buffers)


def test_views_survive_backward_load_statistics_and_writes():
    network, flat = make(recurrent="none")
    loss_of(network).backward()
    assert flat.gradient.any()
    once = flat.gradient.clone()
    loss_of(network).backward()
    torch.testing.assert_close(flat.gradient, 2 * once)
    flat.zero_gradient()
    assert all(not p.grad.any() for p in network.parameters())
    loss_of(network).backward()
    torch.testing.assert_close(flat.gradient, once)
    network.update_statistics(random_observations(make_spec(), 50), torch.ones(50).bool())
    assert flat.vector[-1] == 50, "the count is the last buffer"
    flat.load(np.arange(flat.size, dtype=np.float32))
    assert next(network.parameters()).flatten()[1] == 1
    flat.load(torch.zeros(flat.size))
    assert all(not p.any() for p in network.parameters())
    flat.numpy()[0] = 7.0
    assert next(network.parameters()).flatten()[0] == 7.0
    assert_views(network, flat)


def test_memory_of_the_caller():
    network, flat = make()
    memory = torch.full((flat.size,), 3.0)
    twin = make_network(network.config, network.spec, "policy_value", 0)
    placed = FlatParameters(twin, memory=memory)
    assert placed.vector is memory
    assert torch.equal(memory, flat.vector)
    assert_views(twin, placed)
    with pytest.raises(ValueError, match="float32 vector of"):
        FlatParameters(twin, memory=torch.zeros(3))


def test_wrong_sizes_and_dtypes_are_refused():
    _, flat = make()
    with pytest.raises(ValueError, match="expected"):
        flat.load(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="keeps all weights in float32"):
        FlatParameters(nn.Linear(2, 2).double())


def test_frozen_parameters_and_integer_buffers():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    module[0].bias.requires_grad_(False)
    flat = FlatParameters(module)
    assert flat.num_trained == 4 + 2 + 2
    assert flat.size == flat.num_trained + 2 + 2 + 2
    assert flat.span("0") == slice(0, 4)
    with pytest.raises(KeyError):
        flat.span("2")
