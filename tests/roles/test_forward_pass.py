# SPDX-License-Identifier: Apache-2.0
"""The pass over host memory gives what the network gives, with and without CUDA graphs."""

import pytest
import torch
from network_specs import make_spec, vector

from veldt.networks import FlatParameters, NetworkOptions, make_network
from veldt.roles.inference import CudaForwardPass

SPEC = make_spec(vector(4))
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def network(recurrent="lstm"):
    config = NetworkOptions(hidden_sizes=(8,), recurrent=recurrent, recurrent_size=5)
    return make_network(config, SPEC, "policy_value", seed=2).eval()


def rows(count, seed):
    draw = torch.Generator().manual_seed(seed)
    inputs = {
        "observation": torch.randn(count, 4, generator=draw),
        "first": torch.rand(count, generator=draw) < 0.3,
    }
    state = tuple(torch.randn_like(part) for part in network().initial_state(count))
    return inputs, state


def flattened(result):
    outputs, state = result
    return torch.cat([part.reshape(-1) for part in (*outputs, *state)])


@needs_cuda
def test_graphs_follow_new_inputs_and_new_weights():
    on_host, on_device = network(), network().cuda()
    flat = FlatParameters(on_device, "cuda")
    flat_on_host = FlatParameters(on_host)
    ours = CudaForwardPass(on_device, torch.device("cuda"))
    with torch.inference_mode():
        for turn in range(12):
            flat_on_host.vector.add_(0.01)
            flat.load(flat_on_host.numpy())
            count = 4 if turn % 2 else 6
            inputs, state = rows(count, seed=turn)
            mine = ours(inputs, state)
            theirs = on_host.step(inputs, state, inputs["first"])
            assert all(not part.is_cuda for part in (*mine[0], *mine[1]))
            torch.testing.assert_close(flattened(mine), flattened(theirs), rtol=1e-3, atol=1e-3)
    assert len(ours.graphs) == 2
