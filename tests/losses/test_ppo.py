# SPDX-License-Identifier: Apache-2.0
"""APPO's clipped losses against loops over rows."""

import numpy as np
import pytest
import torch
import transcriptions as slow
from hypothesis import given
from hypothesis import strategies as st

from veldt.losses import ppo
from veldt.losses.returns import Rows
from veldt.losses.vtrace import Traces

NAMES = ("log_probs", "behaviour", "advantages", "values", "old_values", "targets", "entropies")
CLIP, VALUE_CLIP = 0.1, 0.2


def random_batch(seed=0):
    random = np.random.default_rng(seed)
    batch = {name: random.normal(size=(5, 4)) for name in NAMES}
    batch["log_probs"] = batch["behaviour"] + 0.2 * random.normal(size=(5, 4))
    return batch, random.random((5, 4)) < 0.7


def tensors(batch, *learned):
    return {name: torch.from_numpy(batch[name]).requires_grad_(name in learned) for name in NAMES}


def slow_loss(batch, valid, reduction):
    rows = np.argwhere(valid)
    advantages = np.array([batch["advantages"][t, b] for t, b in rows])
    policy = value = entropy = outside = 0.0
    for t, b in rows:
        ratio = np.exp(batch["log_probs"][t, b] - batch["behaviour"][t, b])
        bounded = min(max(ratio, 1 / (1 + CLIP)), 1 + CLIP)
        outside += ratio != bounded
        advantage = batch["advantages"][t, b] - advantages.mean()
        advantage /= advantages.std() + 1e-5
        policy -= min(ratio * advantage, bounded * advantage)
        v, old, target = (batch[name][t, b] for name in ("values", "old_values", "targets"))
        near = old + min(max(v - old, -VALUE_CLIP), VALUE_CLIP)
        value += max((v - target) ** 2, (near - target) ** 2) / 2
        entropy += batch["entropies"][t, b]
    count = len(rows) if reduction == "mean" else 1
    total = policy + 0.5 * value - 0.01 * entropy
    return np.array([total, policy, value, entropy]) / count, outside / len(rows)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_loss_equals_the_loop(reduction):
    batch, valid = random_batch()
    mask = torch.from_numpy(valid)
    parts = tensors(batch).values()
    found = ppo.ppo_loss(*parts, mask, CLIP, VALUE_CLIP, 0.5, 0.01, reduction)
    expected, outside = slow_loss(batch, valid, reduction)
    np.testing.assert_allclose([float(part) for part in found[:4]], expected, atol=1e-12)
    assert 0 < outside < 1
    assert float(found.clipped_fraction) == pytest.approx(outside)
    log_ratio = (batch["log_probs"] - batch["behaviour"])[valid]
    divergence = (np.exp(log_ratio) - 1 - log_ratio).mean()
    assert float(found.divergence) == pytest.approx(divergence)


def test_one_valid_row_or_equal_advantages_do_not_blow_up():
    single = torch.zeros(2, 2, dtype=torch.bool)
    single[0, 0] = True
    for valid in (single, None):
        found = ppo.normalize_advantages(torch.full((2, 2), 0.1), valid)
        assert found.abs().max() < 0.01


@given(slow.rows, st.sampled_from([0.0, 0.8, 1.0]), st.sampled_from([(1.0, 1.0), (2.0, 0.5)]))
def test_targets_and_advantages_equal_the_loop(data, lambda_, bars):
    traces = Traces(0.9, lambda_, *bars)
    rows = Rows(*data.tensors("rewards", "values", "next_values", *slow.FLAGS))
    found = ppo.ppo_targets(*data.tensors("log_rhos"), rows, traces)
    expected = slow.per_row(data, slow.vtrace_target, *traces)
    np.testing.assert_allclose(found.vs, expected, atol=1e-10)
    expected = slow.per_row(data, slow.ppo_advantage, *traces)
    np.testing.assert_allclose(found.advantages, expected, atol=1e-10)
