# SPDX-License-Identifier: Apache-2.0
"""Each distribution against a slow NumPy transcription of its definition."""

import math

import numpy as np
import pytest
import torch

from veldt.networks.distributions import (
    MASKED_LOGIT,
    Categorical,
    Gaussian,
    MultiCategorical,
    TanhGaussian,
    make_distribution,
)
from veldt.types import ActionSpec


def softmax(logits):
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def normals(rng, *shape):
    return torch.tensor(rng.normal(size=shape), dtype=torch.float32)


def moments(params, d):
    """Mean and std by the documented map: std = 0.001 + softplus(raw + c), raw 0 being std 1."""
    mean, raw = params[..., :d], params[..., d:]
    return mean, np.log1p(np.exp(raw + math.log(math.expm1(0.999)))) + 1e-3


def normal_log_density(x, mean, std):
    return -0.5 * ((x - mean) / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi)


def test_categorical_matches_its_definition():
    rng = np.random.default_rng(0)
    distribution, p, q = Categorical(5), 2 * normals(rng, 3, 4, 5), normals(rng, 3, 4, 5)
    action = torch.tensor(rng.integers(0, 5, size=(3, 4)))
    log_prob, entropy = distribution.log_prob(p, action), distribution.entropy(p)
    kl = distribution.kl(p, q)
    for index in np.ndindex(3, 4):
        probs_p, probs_q = softmax(p[index].numpy()), softmax(q[index].numpy())
        assert log_prob[index] == pytest.approx(math.log(probs_p[action[index]]), abs=1e-5)
        assert entropy[index] == pytest.approx(-sum(x * math.log(x) for x in probs_p), abs=1e-5)
        expected = sum(a * math.log(a / b) for a, b in zip(probs_p, probs_q, strict=True))
        assert kl[index] == pytest.approx(expected, abs=1e-5)
    assert torch.equal(distribution.mode(p), torch.tensor(p.numpy().argmax(-1)))


def test_categorical_sampling_frequencies():
    logits = torch.tensor([0.5, -1.0, 2.0, MASKED_LOGIT])
    draws = Categorical(4).sample(logits.expand(200_000, 4).numpy(), np.random.default_rng(1))
    frequencies = np.bincount(draws, minlength=4) / 200_000
    expected = softmax(logits.numpy().astype(float))
    assert np.abs(frequencies - expected).max() < 5 * math.sqrt(0.25 / 200_000)
    assert frequencies[3] == 0.0


@pytest.mark.parametrize("sizes", [(3, 3), (2, 4, 3)])
def test_multi_categorical_is_a_product_of_categoricals(sizes):
    rng = np.random.default_rng(2)
    distribution = MultiCategorical(sizes)
    p, q = normals(rng, 6, sum(sizes)), normals(rng, 6, sum(sizes))
    action = torch.tensor(np.stack([rng.integers(0, n, size=6) for n in sizes], axis=1))
    parts_p, parts_q = p.split(sizes, -1), q.split(sizes, -1)
    singles = [Categorical(n) for n in sizes]
    pairs = list(zip(singles, parts_p, parts_q, strict=True))
    log_prob = sum(s.log_prob(a, action[:, i]) for i, (s, a, _) in enumerate(pairs))
    torch.testing.assert_close(distribution.log_prob(p, action), log_prob)
    torch.testing.assert_close(distribution.entropy(p), sum(s.entropy(a) for s, a, _ in pairs))
    torch.testing.assert_close(distribution.kl(p, q), sum(s.kl(a, b) for s, a, b in pairs))
    assert torch.equal(distribution.mode(p), torch.stack([a.argmax(-1) for a in parts_p], -1))
    one_hot = torch.cat([s.action_features(action[:, i]) for i, s in enumerate(singles)], -1)
    assert torch.equal(distribution.action_features(action), one_hot)


def test_gaussian_matches_its_definition():
    rng = np.random.default_rng(4)
    distribution = Gaussian((-1.0,) * 3, (1.0,) * 3)
    p, q, action = normals(rng, 7, 6), normals(rng, 7, 6), normals(rng, 7, 3)
    mean_p, std_p = moments(p.numpy().astype(float), 3)
    mean_q, std_q = moments(q.numpy().astype(float), 3)
    log_prob = normal_log_density(action.numpy(), mean_p, std_p).sum(-1)
    entropy = (0.5 * np.log(2 * math.pi * math.e * std_p**2)).sum(-1)
    square = std_p**2 + (mean_p - mean_q) ** 2
    kl = (np.log(std_q / std_p) + square / (2 * std_q**2) - 0.5).sum(-1)
    np.testing.assert_allclose(distribution.log_prob(p, action), log_prob, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(distribution.entropy(p), entropy, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(distribution.kl(p, q), kl, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", [Gaussian, TanhGaussian])
def test_gaussian_samples_have_the_stated_moments(family):
    params = torch.tensor([0.5, -1.0, 0.0, 1.5])
    distribution = family((-1.0, -1.0), (1.0, 1.0))
    draws = distribution.sample(params.expand(200_000, 4).numpy(), np.random.default_rng(5))
    mean, std = moments(params.numpy(), 2)
    assert std[0] == pytest.approx(1.0)
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(draws.std(0), std, rtol=0.01)


def test_tanh_gaussian_log_prob_is_the_density_of_the_squashed_action():
    distribution = TanhGaussian((-1.0,), (1.0,))
    params = torch.tensor([0.7, -0.3])
    mean, std = moments(params.numpy().astype(float), 1)
    u = np.linspace(-3, 3, 25)
    expected = normal_log_density(u, mean, std) - np.log(1 - np.tanh(u) ** 2)
    stored = torch.tensor(u[:, None], dtype=torch.float32)
    actual = distribution.log_prob(params.expand(25, 2), stored)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_tanh_gaussian_is_finite_where_tanh_saturates():
    params = torch.tensor([0.0, 0.0]).expand(4, 2).clone().requires_grad_()
    stored = torch.tensor([[-60.0], [-15.0], [15.0], [60.0]])
    log_prob = TanhGaussian((-1.0,), (1.0,)).log_prob(params, stored)
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(params.grad).all()


@pytest.mark.parametrize("mean", [0.0, 1.0, -3.0])
@pytest.mark.parametrize("raw", [-3.0, 0.0, 1.4])
def test_tanh_gaussian_entropy_estimate(mean, raw):
    _, std = moments(np.array([mean, raw]), 1)
    u = np.linspace(mean - 10 * std[0], mean + 10 * std[0], 200_001)
    density = np.exp(normal_log_density(u, mean, std[0]))
    log_slope = 2 * (math.log(2) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u))))
    integrand = density * (log_slope - np.log(np.maximum(density, 1e-300)))
    expected = integrand.sum() * (u[1] - u[0])
    distribution = TanhGaussian((-1.0,), (1.0,))
    assert distribution.entropy(torch.tensor([mean, raw])) == pytest.approx(expected, abs=0.01)


def test_env_actions_respect_the_bounds():
    low, high = (-2.0, 0.0), (2.0, 10.0)
    stored = np.array([[-50.0, -50.0], [0.0, 0.0], [50.0, 50.0], [0.5, 3.0]], np.float32)
    squashed = TanhGaussian(low, high).env_action(stored)
    np.testing.assert_allclose(squashed[:3], [[-2, 0], [0, 5], [2, 10]])
    np.testing.assert_allclose(squashed[3], [2 * math.tanh(0.5), 5 + 5 * math.tanh(3)], rtol=1e-6)
    clipped = Gaussian(low, high).env_action(stored)
    np.testing.assert_allclose(clipped, [[-2, 0], [0, 0], [2, 10], [0.5, 3]])
    assert squashed.dtype == clipped.dtype == np.float32


@pytest.mark.parametrize(
    "distribution",
    [
        Categorical(4),
        MultiCategorical((2, 4, 3)),
        Gaussian((-1.0, -2.0), (1.0, 2.0)),
        TanhGaussian((-1.0, -2.0), (1.0, 2.0)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_log_prob_and_entropy_are_the_same_together(distribution):
    random = np.random.default_rng(0)
    params = torch.from_numpy(random.normal(size=(5, distribution.num_params)).astype(np.float32))
    action = torch.from_numpy(distribution.sample(params.numpy(), random))
    log_prob, entropy = distribution.log_prob_and_entropy(params, action)
    torch.testing.assert_close(log_prob, distribution.log_prob(params, action))
    torch.testing.assert_close(entropy, distribution.entropy(params))


def test_auto_squashes_only_between_finite_bounds():
    finite = ActionSpec("box", (), (-1.0,), (1.0,), (1,))
    endless = ActionSpec("box", (), (-math.inf,), (math.inf,), (1,))
    assert isinstance(make_distribution(finite, "auto"), TanhGaussian)
    assert type(make_distribution(endless, "auto")) is Gaussian
    with pytest.raises(ValueError, match="use distribution gaussian"):
        make_distribution(endless, "tanh_gaussian")
