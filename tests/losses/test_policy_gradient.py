# SPDX-License-Identifier: Apache-2.0
"""The actor-critic loss; its gradient is checked against A3C's Algorithm S3 worked out by hand."""

import math

import numpy as np
import pytest
import torch

from veldt.losses.actor_critic import policy_gradient_loss
from veldt.losses.returns import n_step_returns

GAMMA, BETA = 0.9, 0.01


def five_steps():
    """States, actions, rewards of a rollout, a linear policy theta and a linear critic theta_v."""
    random = np.random.default_rng(7)
    states, actions = random.normal(size=(6, 4)), np.array([0, 2, 1, 1, 2])
    rewards = np.array([1.0, -0.5, 0.0, 2.0, 0.25])
    return states, actions, rewards, random.normal(size=(4, 3)), random.normal(size=4)


def algorithm_s3(states, actions, rewards, theta, theta_v, terminal):
    """Accumulated gradients as printed, backwards from R; entropy term as in the text."""
    d_theta, d_theta_v = np.zeros_like(theta), np.zeros_like(theta_v)
    bootstrap = 0.0 if terminal else states[5] @ theta_v
    for i in reversed(range(5)):
        bootstrap = rewards[i] + GAMMA * bootstrap
        logits = states[i] @ theta
        pi = np.exp(logits - logits.max())
        pi /= pi.sum()
        entropy = -(pi * np.log(pi)).sum()
        advantage = bootstrap - states[i] @ theta_v
        d_logits = (np.eye(3)[actions[i]] - pi) * advantage - BETA * pi * (np.log(pi) + entropy)
        d_theta += np.outer(states[i], d_logits)
        d_theta_v += -2.0 * advantage * states[i]
    return d_theta, d_theta_v


@pytest.mark.parametrize("terminal", [False, True])
def test_gradient_of_a_five_step_rollout_equals_algorithm_s3(terminal):
    rollout = five_steps()
    d_theta, d_theta_v = algorithm_s3(*rollout, terminal)
    states, actions, rewards, theta, theta_v = (torch.from_numpy(part) for part in rollout)
    theta.requires_grad_()
    theta_v.requires_grad_()
    values = states @ theta_v
    flags = torch.zeros(3, 5, 1, dtype=torch.bool)
    flags[0, 4] = terminal
    targets = n_step_returns(rewards[:, None], values[1:, None].detach(), *flags, GAMMA)[:, 0]
    policy = torch.distributions.Categorical(logits=states[:5] @ theta)
    loss = policy_gradient_loss(
        policy.log_prob(actions),
        targets - values[:5],
        values[:5],
        targets,
        policy.entropy(),
        valid=None,
        value_coefficient=2.0,  # the paper differentiates a square without the factor 1/2
        entropy_coefficient=BETA,
        reduction="sum",
    )
    loss.total.backward()
    np.testing.assert_allclose(-theta.grad, d_theta, atol=1e-12)
    np.testing.assert_allclose(theta_v.grad, d_theta_v, atol=1e-12)


def random_terms(seed=0):
    random = np.random.default_rng(seed)
    terms = [torch.from_numpy(random.normal(size=(4, 3))) for _ in range(5)]
    return terms, torch.from_numpy(random.random((4, 3)) < 0.6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_loss_runs_over_valid_rows_only(reduction):
    terms, valid = random_terms()
    found = policy_gradient_loss(*terms, valid, 0.5, 0.1, reduction)
    log_probs, advantages, values, targets, entropies = terms
    policy = value = entropy = 0.0
    for row in map(tuple, valid.nonzero().tolist()):
        policy -= log_probs[row] * advantages[row]
        value += (targets[row] - values[row]) ** 2 / 2
        entropy += entropies[row]
    count = 1 if reduction == "sum" else int(valid.sum())
    total = (policy + 0.5 * value - 0.1 * entropy) / count
    expected = [total, policy / count, value / count, entropy / count]
    np.testing.assert_allclose([float(part) for part in found], expected, atol=1e-12)


def test_illegal_action_in_an_invalid_row_gives_no_nan():
    terms, valid = random_terms()
    terms[0][~valid] = -torch.inf
    terms[1][~valid] = 0.0
    log_probs, values = terms[0].requires_grad_(), terms[2].requires_grad_()
    loss = policy_gradient_loss(*terms, valid, 0.5, 0.1)
    loss.total.backward()
    assert torch.isfinite(loss.total)
    assert (log_probs.grad[~valid] == 0).all()
    assert (values.grad[~valid] == 0).all()


def test_gradient_stops_at_advantages_and_targets():
    terms, valid = random_terms()
    advantages, targets = terms[1].requires_grad_(), terms[3].requires_grad_()
    terms[0].requires_grad_()
    policy_gradient_loss(*terms, valid, 0.5, 0.1).total.backward()
    assert advantages.grad is None
    assert targets.grad is None


def test_no_valid_row_gives_zero():
    terms, valid = random_terms()
    loss = policy_gradient_loss(*terms, torch.zeros_like(valid), 0.5, 0.1)
    assert [float(part) for part in loss] == [0.0, 0.0, 0.0, 0.0]


def test_unknown_reduction_is_refused():
    terms, valid = random_terms()
    with pytest.raises(ValueError, match="mean or sum"):
        policy_gradient_loss(*terms, valid, 0.5, 0.1, "median")


def test_floor_bounds_the_loss_and_stops_the_gradient_below_it():
    log_probs = torch.tensor([-1.0, -40.0], requires_grad=True)
    rest = torch.tensor([1.0, 1.0]), *torch.zeros(3, 2)
    loss = policy_gradient_loss(log_probs, *rest, None, 0.0, 0.0, "sum", probability_floor=1e-6)
    loss.total.backward()
    assert float(loss.policy.detach()) == pytest.approx(1.0 - math.log(1e-6))
    assert log_probs.grad.tolist() == [-1.0, 0.0]
