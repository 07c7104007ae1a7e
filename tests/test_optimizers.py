# SPDX-License-Identifier: Apache-2.0
"""Optimizers against NumPy, against torch where torch has the same rule, and in slices."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from veldt.optimizers import OptimizerOptions, make_optimizer, state_size

_RMSPROP = OptimizerOptions("rmsprop", 0.01, rmsprop_decay=0.9, optimizer_epsilon=0.1)
CONFIGS = {
    name: replace(options, max_grad_norm=0.0)
    for name, options in {
        "sgd": OptimizerOptions("sgd", 0.1),
        "sgd_momentum": OptimizerOptions("sgd", 0.1, momentum=0.9),
        "rmsprop": _RMSPROP,
        "rmsprop_momentum": replace(_RMSPROP, momentum=0.5),
        "rmsprop_centered": replace(_RMSPROP, rmsprop_centered=True),
        "rmsprop_both": replace(_RMSPROP, rmsprop_centered=True, momentum=0.5),
        "adagrad": OptimizerOptions("adagrad", 0.05, optimizer_epsilon=0.1),
        "adam": OptimizerOptions("adam", 0.01, adam_beta1=0.8, optimizer_epsilon=1e-8),
        "radam": OptimizerOptions("radam", 0.01, adam_beta1=0.8, optimizer_epsilon=1e-8),
    }.items()
}
SIZE, STEPS = 11, 8


def start_and_gradients():
    rng = np.random.default_rng(0)
    return rng.normal(size=SIZE), rng.normal(size=(STEPS, SIZE))


def slowly(config, theta, gradients):
    """The update rules of the papers, entry by entry in float64."""
    theta = theta.copy()
    for i in range(len(theta)):
        square = mean = velocity = 0.0
        for t, d in enumerate(gradients[:, i], start=1):
            if config.optimizer == "sgd":
                velocity = config.momentum * velocity + d
                theta[i] -= config.learning_rate * velocity
            elif config.optimizer == "rmsprop":
                square = config.rmsprop_decay * square + (1 - config.rmsprop_decay) * d * d
                mean = config.rmsprop_decay * mean + (1 - config.rmsprop_decay) * d
                below = square - mean * mean if config.rmsprop_centered else square
                change = config.learning_rate * d / math.sqrt(below + config.optimizer_epsilon)
                velocity = config.momentum * velocity + change
                theta[i] -= velocity
            elif config.optimizer == "adagrad":
                square += d * d
                theta[i] -= config.learning_rate * d / math.sqrt(square + config.optimizer_epsilon)
            elif config.optimizer == "adam":
                beta1, beta2 = config.adam_beta1, 0.999
                mean = beta1 * mean + (1 - beta1) * d
                square = beta2 * square + (1 - beta2) * d * d
                root = math.sqrt(square / (1 - beta2**t)) + config.optimizer_epsilon
                theta[i] -= config.learning_rate * mean / (1 - beta1**t) / root
            elif config.optimizer == "radam":
                beta1, beta2 = config.adam_beta1, 0.999
                mean = beta1 * mean + (1 - beta1) * d
                square = beta2 * square + (1 - beta2) * d * d
                step, limit = mean / (1 - beta1**t), 2 / (1 - beta2) - 1
                length = limit - 2 * t * beta2**t / (1 - beta2**t)
                if length > 5:
                    rest = (length - 4) * (length - 2) * limit
                    rest /= (limit - 4) * (limit - 2) * length
                    step *= math.sqrt(rest) / (math.sqrt(square / (1 - beta2**t)) + 1e-8)
                theta[i] -= config.learning_rate * step
    return theta


def run(config, theta, gradients, state=None):
    vector = torch.tensor(theta, dtype=torch.float32)
    optimizer = make_optimizer(config, vector, state)
    for gradient in gradients:
        assert optimizer.step(torch.tensor(gradient, dtype=torch.float32))
    return vector, optimizer


@pytest.mark.parametrize("name", CONFIGS)
def test_follows_the_written_rule(name):
    theta, gradients = start_and_gradients()
    vector, optimizer = run(CONFIGS[name], theta, gradients)
    np.testing.assert_allclose(vector, slowly(CONFIGS[name], theta, gradients), atol=1e-5)
    assert optimizer.state_vector.shape == (state_size(CONFIGS[name], SIZE),)
    assert optimizer.state_vector[-1] == STEPS


@pytest.mark.parametrize("name", CONFIGS)
def test_continues_from_a_stored_state(name):
    theta, gradients = start_and_gradients()
    whole, _ = run(CONFIGS[name], theta, gradients)
    half, optimizer = run(CONFIGS[name], theta, gradients[:3])
    restored = optimizer.state_vector.clone()
    continued, _ = run(CONFIGS[name], half.numpy(), gradients[3:], restored)
    assert torch.equal(continued, whole)
    assert restored[-1] == STEPS


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_gradient_that_is_not_finite_changes_nothing(name, bad):
    theta, gradients = start_and_gradients()
    vector, optimizer = run(CONFIGS[name], theta, gradients[:2])
    before, state = vector.clone(), optimizer.state_vector.clone()
    gradient = torch.ones(SIZE)
    gradient[5] = bad
    assert not optimizer.step(gradient)
    assert torch.equal(vector, before)
    assert torch.equal(optimizer.state_vector, state)
    assert optimizer.step(torch.ones(SIZE))
    assert not torch.equal(vector, before)


def test_norm_clipping():
    vector = torch.zeros(2)
    optimizer = make_optimizer(OptimizerOptions("sgd", 1.0, max_grad_norm=1.0), vector)
    optimizer.step(torch.tensor([3.0, 4.0]))
    torch.testing.assert_close(vector, torch.tensor([-0.6, -0.8]))
    assert optimizer.last_norm == pytest.approx(5.0)
    optimizer.step(torch.tensor([0.3, 0.4]))
    torch.testing.assert_close(vector, torch.tensor([-0.9, -1.2]))


def test_the_learning_rate_is_scaled_by_the_step():
    options = OptimizerOptions("sgd", 2.0, max_grad_norm=0.0)
    vector = torch.zeros(1)
    make_optimizer(options, vector).step(torch.ones(1), 0.625)
    assert vector.item() == -1.25


def test_centered_rmsprop_survives_rounding():
    """For equal gradients the variance is 0, and rounding puts it below 0 by more than epsilon."""
    options = OptimizerOptions(
        "rmsprop", 1e-6, rmsprop_centered=True, optimizer_epsilon=1e-12, max_grad_norm=0.0
    )
    vector = torch.zeros(100)
    optimizer = make_optimizer(options, vector)
    for _ in range(3000):
        optimizer.step(torch.linspace(1.0, 3.0, 100))
    assert torch.isfinite(vector).all()


def test_bad_choices_name_the_remedy():
    with pytest.raises(ValueError, match="use adam, radam, rmsprop, sgd, adagrad"):
        OptimizerOptions("lion")
    with pytest.raises(ValueError, match="learning_rate is -1"):
        OptimizerOptions("sgd", -1.0)
    with pytest.raises(ValueError, match=r"expected \(7,\)"):
        make_optimizer(CONFIGS["adam"], torch.zeros(3), torch.zeros(3))


DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_that_looks_at_no_number_is_the_same_step(name, device):
    """Also when steps of both kinds take turns, as for batches of several sizes."""
    config = replace(CONFIGS[name], max_grad_norm=2.0)
    start, gradients = start_and_gradients()
    gradients[2, 3], gradients[4, 0] = math.inf, math.nan
    seen, unseen = (
        make_optimizer(config, torch.tensor(start, dtype=torch.float32, device=device))
        for _ in range(2)
    )
    for step, entries in enumerate(gradients):
        gradient = torch.tensor(entries, dtype=torch.float32, device=device)
        scale = 1.0 / (1 + step)
        if step in (1, 3):
            unseen.step(gradient.clone(), scale)
            norm = unseen.last_norm
        else:
            norm = float(
                unseen.step_on_device(gradient.clone(), torch.tensor(scale, device=device))
            )
        seen.step(gradient, scale)
        assert norm == pytest.approx(seen.last_norm, nan_ok=True)
        torch.testing.assert_close(unseen.vector, seen.vector)
        torch.testing.assert_close(unseen.state_vector, seen.state_vector)
    assert float(unseen.count) == STEPS - 2
