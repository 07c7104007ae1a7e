# SPDX-License-Identifier: Apache-2.0
"""Statistics merged batch by batch equal NumPy's over all data at once."""

import numpy as np
import pytest
import torch
from network_specs import discrete, make_spec, vector

from veldt.networks import NetworkOptions, make_network
from veldt.networks.normalizers import MAX_COUNT, RunningMoments
from veldt.types import ObservationLeaf


def batches(rng, count=20):
    for _ in range(count):
        rows, envs = rng.integers(1, 9, size=2)
        data = rng.normal([5.0, -300.0, 0.01], [2.0, 0.5, 0.001], size=(rows, envs, 3))
        yield data.astype(np.float32), rng.random((rows, envs)) < 0.7


def test_merge_equals_numpy_over_all_valid_rows():
    spec = make_spec(vector(3, "observation.a"), discrete(4, "observation.b"))
    network = make_network(NetworkOptions(normalize_observations=True), spec, "policy_value", 0)
    seen = []
    for data, valid in batches(np.random.default_rng(0)):
        observations = {"observation.a": torch.tensor(data), "observation.b": torch.zeros(1)}
        network.update_statistics(observations, torch.tensor(valid))
        seen.append(data[valid])
    everything = np.concatenate(seen).astype(float)
    (moments,) = network.normalizer.moments
    assert moments.count == len(everything)
    np.testing.assert_allclose(moments.mean, everything.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.variance, everything.var(0), rtol=1e-4)
    data = torch.tensor([[5.0, -300.0, 0.0], [1e6, -300.0, -1e6]])
    inputs = {"observation.a": data, "observation.b": torch.ones(2)}
    normalized = network.normalizer(inputs)
    expected = (data.numpy() - everything.mean(0)) / np.sqrt(everything.var(0) + 1e-8)
    actual = normalized["observation.a"]
    np.testing.assert_allclose(actual, expected.clip(-10, 10), atol=2e-3)
    assert torch.equal(normalized["observation.b"], inputs["observation.b"])
    assert inputs["observation.a"][1, 0] == 1e6, "the raw batch stays raw"


@pytest.mark.parametrize(("value", "valid"), [("nan", False), ("nan", True), ("1e30", True)])
def test_rows_that_are_not_valid_or_too_large_change_nothing(value, valid):
    moments = RunningMoments((2,))
    rows = torch.tensor([[0.0, float(value)], [0.0, -float(value)]])
    moments.update(rows, torch.full((2,), valid))
    assert moments.count == 0
    assert moments.mean.tolist() == [0.0, 0.0]
    assert moments.variance.tolist() == [1.0, 1.0]


def test_a_capped_count_keeps_following_the_data():
    moments = RunningMoments(())
    moments.count.fill_(MAX_COUNT)
    moments.update(torch.full((1_000_000,), 11.0), torch.ones(1_000_000).bool())
    assert moments.count == MAX_COUNT
    assert moments.mean == pytest.approx(1.0)
    assert MAX_COUNT + 6e6 < 2**24, "float32 counts no further than that"


def test_reward_scale_is_one_over_the_std_of_the_return():
    network = make_network(NetworkOptions(normalize_returns=True), make_spec(), "policy_value", 0)
    assert network.reward_scale() == 1.0
    network.update_return_statistics(torch.zeros(4, 5), torch.ones(4, 5).bool())
    assert network.reward_scale() == 1.0, "returns that never vary leave rewards alone"
    returns, valid = torch.randn(30, 40) * 25 + 7, torch.rand(30, 40) < 0.5
    network = make_network(NetworkOptions(normalize_returns=True), make_spec(), "policy_value", 0)
    network.update_return_statistics(returns, valid)
    std = returns.numpy()[valid.numpy()].std()
    assert float(network.reward_scale()) == pytest.approx(1 / std, rel=1e-4)


def test_pixels_are_normalized_one_by_one():
    spec = make_spec(ObservationLeaf("observation", (1, 36, 36), "uint8", "image"))
    network = make_network(NetworkOptions(normalize_images=True), spec, "policy_value", 0)
    unseen = torch.full((2, 1, 36, 36), 51, dtype=torch.uint8)
    before = network.normalizer({"observation": unseen})["observation"]
    torch.testing.assert_close(before, torch.full_like(before, 0.2))

    images = np.full((40, 1, 36, 36), 87, np.uint8)
    rows = np.arange(40)
    images[rows, 0, rows % 36, 3] = 236  # a ball that is at each place once or twice
    valid = rows != 7
    network.update_statistics({"observation": torch.from_numpy(images)}, torch.from_numpy(valid))
    actual = network.normalizer({"observation": torch.from_numpy(images)})["observation"]
    counted = images[valid].astype(np.float64)
    scaled = (images - counted.mean(0)) / np.sqrt(counted.var(0) + 1.0)
    np.testing.assert_allclose(actual.numpy(), scaled.clip(-10.0, 10.0), atol=1e-4)
    assert float(actual[0, 0, 0, 3]) > 4.0  # the ball stands out
    assert float(actual[0, 0, 20, 20]) == 0.0  # and the background does not

    first = torch.zeros(40, dtype=torch.bool)
    seen = network.step({"observation": torch.from_numpy(images)}, (), first)[0].value
    plain = make_network(NetworkOptions(), spec, "policy_value", 0)
    plain.load_state_dict(network.state_dict(), strict=False)
    torch.testing.assert_close(seen, plain.step({"observation": actual}, (), first)[0].value)
