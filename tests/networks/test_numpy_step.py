# SPDX-License-Identifier: Apache-2.0
"""Acting in NumPy gives what torch gives, wherever it may be used."""

import numpy as np
import pytest
import torch
from network_specs import BOX, MULTI_DISCRETE, discrete, image, make_spec, random_observations

from veldt.networks import FlatParameters, NetworkOptions, acting_step, make_network
from veldt.networks.acting import most_rows, numpy_step
from veldt.types import ObservationLeaf

BYTES = ObservationLeaf("observation", (9,), "uint8", "vector")
TABLE = ObservationLeaf("observation", (3, 2), "float32", "vector")
CASES = {
    "discrete policy": (make_spec(), "policy_value", {}),
    "several choices": (make_spec(action=MULTI_DISCRETE), "policy_value", {}),
    "masked": (make_spec(action_mask_size=3), "policy_value", {}),
    "box": (make_spec(action=BOX), "policy_value", {"activation": "relu"}),
    "normalised": (
        make_spec(action=BOX),
        "policy_value",
        {"normalize_observations": True, "normalize_values": True},
    ),
    "table": (make_spec(TABLE), "policy_value", {}),
    "q": (make_spec(), "q", {}),
    "dueling q": (make_spec(), "q", {"dueling": True}),
    "layer norm": (make_spec(), "q", {"layer_norm": True}),
    "dpg": (make_spec(action=BOX), "dpg", {}),
    "sac": (make_spec(action=BOX), "sac", {}),
    "td3": (make_spec(action=BOX), "td3", {"normalize_observations": True}),
}


def both(network, step, spec, rows, seed=0):
    observations = random_observations(spec, rows, seed=seed)
    first = torch.zeros(rows, dtype=torch.bool)
    with torch.inference_mode():
        return step(observations, (), first)[0], network.step(observations, (), first)[0]


@pytest.mark.parametrize(("spec", "head", "options"), CASES.values(), ids=CASES.keys())
def test_few_rows_give_the_outputs_of_many(spec, head, options):
    network = make_network(NetworkOptions(hidden_sizes=(8, 6), **options), spec, head, 3).eval()
    flat = FlatParameters(network)
    assert numpy_step(network) is not None
    step, random = acting_step(network), np.random.default_rng(0)
    for seed in range(2):
        found, expected = both(network, step, spec, 5, seed)
        assert type(found) is type(expected)
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.shape == theirs.shape
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        # Others write new weights and statistics into the same memory.
        flat.numpy()[:] += 0.1 * random.random(flat.size).astype(np.float32)


def test_rows_beyond_the_limit_are_torchs():
    spec = make_spec()
    network = make_network(NetworkOptions(), spec, "policy_value", 0).eval()
    assert most_rows(network) == 64
    wide = make_network(NetworkOptions(hidden_sizes=(256, 256)), spec, "policy_value", 0)
    assert most_rows(wide) == 4
    found, expected = both(network, acting_step(network), spec, 65)
    assert torch.equal(found.logits, expected.logits)


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (make_spec(), {"recurrent": "gru", "recurrent_size": 8}),
        (make_spec(), {"last_action_and_reward": True}),
        (make_spec(image()), {}),
        (make_spec(discrete(5)), {}),
        (make_spec(BYTES), {}),
        (make_spec(), {"encoder": lambda spec: torch.nn.Linear(4, 7)}),
    ],
    ids=["memory", "past", "image", "discrete", "bytes", "own encoder"],
)
def test_networks_that_need_torch_have_it(spec, options):
    network = make_network(NetworkOptions(**options), spec, "policy_value", 0)
    assert numpy_step(network) is None
    assert acting_step(network) == network.step
