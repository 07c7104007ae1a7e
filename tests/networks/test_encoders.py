# SPDX-License-Identifier: Apache-2.0
"""Encoders for every kind of observation space."""

import pytest
import torch
from network_specs import (
    discrete,
    image,
    make_linear_encoder,
    make_spec,
    random_observations,
    vector,
)
from torch import nn

from veldt.networks import NetworkFactory, NetworkOptions, encoders, make_network
from veldt.networks.encoders import make_encoder
from veldt.networks.layers import MLP
from veldt.types import ObservationLeaf


def encode(spec, seed=0, **options):
    encoder = make_encoder(NetworkOptions(**options), spec, torch.Generator().manual_seed(seed))
    features = encoder(random_observations(spec, 5))
    assert features.shape == (5, encoder.num_features)
    assert torch.isfinite(features).all()
    return encoder


NATURE = {"encoder": "nature"}


@pytest.mark.parametrize(
    ("leaves", "options", "num_features"),
    [
        ([vector()], {}, 64),
        ([vector()], {"hidden_sizes": (32, 48, 16), "activation": "relu"}, 16),
        ([ObservationLeaf("observation", (3, 2), "float64", "vector")], {}, 64),
        ([ObservationLeaf("observation", (), "float32", "vector")], {}, 64),
        ([discrete(10)], {}, 64),
        ([discrete(500)], {}, 64),
        ([discrete(5, shape=(3,))], {}, 64),
        ([image()], {}, 512),
        ([image()], NATURE, 512),
        ([image()], {"encoder": "small_conv"}, 256),
        ([image(72)], {"encoder": "resnet"}, 256),
        ([image(10)], {}, 128),
        ([image(3, 1)], {}, 128),
        ([image(32, 3)], {}, 128),
        ([image(10)], {"encoder": "resnet"}, 256),
        ([image(10)], {"encoder": "mlp"}, 64),
        ([ObservationLeaf("observation", (3, 40, 40), "float32", "vector")], {}, 64),
        ([ObservationLeaf("observation", (3, 40, 40), "float32", "vector")], NATURE, 512),
        ([vector(3, "observation.a"), discrete(4, "observation.b")], {}, 64),
        ([image(84, 1, "observation.a"), vector(3, "observation.b")], {}, 512),
    ],
)
def test_feature_counts(leaves, options, num_features):
    assert encode(make_spec(*leaves), **options).num_features == num_features


def test_grids_of_zeros_and_ones_are_convolved_without_a_border_unless_tiny():
    def hidden(side, dtype):
        leaf = ObservationLeaf("observation", (4, side, side), dtype, "image")
        return encode(make_spec(leaf)).output.layers[0].in_features

    assert hidden(10, "bool") == 16 * 8 * 8
    assert hidden(3, "bool") == 16 * 3 * 3
    assert hidden(10, "uint8") == 16 * 10 * 10


@pytest.mark.parametrize(
    ("activation", "function"), [("tanh", nn.Tanh()), ("relu", nn.ReLU()), ("elu", nn.ELU())]
)
def test_mlp_gradient_matches_torch_modules(activation, function):
    mlp = MLP(3, (5, 4), activation, torch.Generator().manual_seed(0))
    plain = nn.Sequential(mlp.layers[0], function, mlp.layers[1], function)
    x = torch.randn(6, 3)
    expected = torch.autograd.grad(plain(x).square().sum(), list(plain.parameters()))
    actual = torch.autograd.grad(mlp(x).square().sum(), list(mlp.parameters()))
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["nature", "small_conv", "resnet", "mlp"])
def test_bytes_are_scaled(name):
    generator = torch.Generator().manual_seed(0)
    encoder = make_encoder(NetworkOptions(encoder=name), make_spec(image()), generator)
    floats = ObservationLeaf("observation", (4, 84, 84), "float32", "vector")
    generator = torch.Generator().manual_seed(0)
    unscaled = make_encoder(NetworkOptions(encoder=name), make_spec(floats), generator)
    pixels = random_observations(make_spec(image()), 2)["observation"]
    with torch.no_grad():
        actual = encoder({"observation": pixels})
        expected = unscaled({"observation": pixels.float() / 255.0})
    torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)
    assert pixels.dtype == torch.uint8


@pytest.mark.parametrize("name", ["nature", "resnet"])
def test_memory_order_of_acting_and_learning_agrees(name):
    encoder = encode(make_spec(image()), encoder=name)
    observations = random_observations(make_spec(image()), 2)
    with torch.no_grad():
        acting = encoder(observations)
    torch.testing.assert_close(encoder(observations).detach(), acting, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["nature", "resnet"])
def test_large_cuda_batches_give_nearly_what_the_host_gives(name):
    encoder = encode(make_spec(image()), encoder=name)
    observations = random_observations(make_spec(image()), 128)
    with torch.no_grad():
        expected = encoder(observations)
        encoder.cuda()
        actual = encoder({key: value.cuda() for key, value in observations.items()}).cpu()
    assert (actual - expected).norm() < 2e-2 * expected.norm()


def gradient_of(name, rows, **options):
    """Of the sum of squared features, and the features, with the weights of one seed."""
    encoder = encode(make_spec(image()), encoder=name, **options)
    features = encoder(random_observations(make_spec(image()), rows))
    gradients = torch.autograd.grad(features.square().mean(), list(encoder.parameters()))
    return torch.cat([each.flatten() for each in gradients]), features.detach()


@pytest.mark.parametrize("name", ["nature", "resnet"])
def test_what_is_rounded_on_the_cpu_stays_near_float32(name, monkeypatch):
    monkeypatch.setattr(encoders, "multiplies_bfloat16", lambda: True)
    rounded, features = gradient_of(name, 48)
    exact, expected = gradient_of(name, 48, image_precision="float32")
    assert features.dtype == torch.float32
    assert 0 < (features - expected).norm() < 2e-2 * expected.norm()
    assert nn.functional.cosine_similarity(rounded, exact, dim=0) > 0.995
    assert (rounded - exact).norm() < 0.1 * exact.norm()


def test_who_judges_or_ships_a_policy_has_float32(monkeypatch):
    monkeypatch.setattr(encoders, "multiplies_bfloat16", lambda: True)
    spec = make_spec(image())
    factory = NetworkFactory(NetworkOptions(), spec, "policy_value")
    row = random_observations(spec, 12)
    first, alone = torch.ones(12, dtype=torch.bool), torch.ones(1, dtype=torch.bool)
    one = {name: value[:1] for name, value in row.items()}
    for network, is_exact in ((factory.in_float32().make(), True), (factory.make(), False)):
        with torch.no_grad():
            together, _ = network.step(row, (), first)
            single, _ = network.step(one, (), alone)
        difference = (together.logits[:1] - single.logits).norm() / single.logits.norm()
        assert (float(difference) < 1e-5) is is_exact


def test_every_leaf_reaches_the_features():
    spec = make_spec(
        image(10, 2, "observation.image"),
        vector(3, "observation.vector"),
        discrete(5, "observation.few"),
        discrete(100, "observation.many"),
    )
    encoder = encode(spec)
    before = encoder(random_observations(spec, 5))
    for leaf in spec.observation:
        changed = random_observations(spec, 5)
        changed[leaf.name] = random_observations(spec, 5, seed=1)[leaf.name]
        assert not torch.equal(encoder(changed), before), leaf.name


def test_own_factory():
    spec = make_spec(vector(6))
    for encoder in (make_linear_encoder, "network_specs:make_linear_encoder"):
        network = make_network(NetworkOptions(encoder=encoder), spec, "policy_value", 0)
        outputs, _ = network.step(random_observations(spec, 5), (), torch.zeros(5).bool())
        assert outputs.logits.shape == (5, 3)
        assert network.head.in_features == 7


@pytest.mark.parametrize(
    ("leaf", "encoder", "message"),
    [
        (vector(), "nature", "use mlp or auto"),
        (image(10), "nature", "36x36 or more"),
        (image(10), "small_conv", "20x20 or more"),
        (vector(), "no_such_module:make", "cannot import"),
        (vector(), "network_specs:no_such_function", "is not there"),
        (vector(), lambda spec: "not a module", "must return an nn.Module"),
        (vector(), lambda spec: nn.Flatten(0), r"features \[N, F\]"),
        (vector(), lambda spec: nn.LSTM(4, 8), "must return a tensor"),
        (image(9), lambda spec: nn.Linear(9, 2), r"receives observation uint8\[2, 4, 9, 9\]"),
    ],
)
def test_what_does_not_fit_names_the_remedy(leaf, encoder, message):
    with pytest.raises(ValueError, match=message):
        encode(make_spec(leaf), encoder=encoder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "natur"}, "network is unknown: 'natur'; use auto"),
        ({"activation": "gelu"}, "use tanh, relu"),
        ({"recurrent": "rnn"}, "use none, lstm, gru"),
        ({"distribution": "beta"}, "use auto, gaussian"),
        ({"hidden_sizes": ()}, "at least one layer"),
        ({"recurrent_size": 0}, "use 1 to 65,536"),
    ],
)
def test_bad_config_values_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        NetworkOptions(**options)
