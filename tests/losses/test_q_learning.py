# SPDX-License-Identifier: Apache-2.0
"""Q-learning targets and losses against loops over transitions."""

import numpy as np
import pytest
import torch

from veldt.losses import q_learning

ROWS, ACTIONS = 16, 4


def transitions(seed=0):
    random = np.random.default_rng(seed)
    table = {name: random.normal(size=(ROWS, ACTIONS)) for name in ("q", "online", "target")}
    table |= {"action": random.integers(ACTIONS, size=ROWS), "reward": random.normal(size=ROWS)}
    table["discount"] = np.where(random.random(ROWS) < 0.3, 0.0, 0.9**3)
    table["mask"] = random.random((ROWS, ACTIONS)) < 0.5
    table["mask"][:, 1] = True
    table["weights"] = random.random(ROWS)
    return table


def slow_td(table, double, masked):
    errors = []
    for i in range(ROWS):
        legal = [a for a in range(ACTIONS) if not masked or table["mask"][i, a]]
        judge = table["online" if double else "target"][i]
        best = max(legal, key=lambda a: judge[a])
        target = table["reward"][i] + table["discount"][i] * table["target"][i, best]
        errors.append(target - table["q"][i, table["action"][i]])
    return np.array(errors)


def tensors(table, *names):
    return [torch.from_numpy(table[name]) for name in names]


CORE = ("q", "action", "reward", "discount", "online", "target")


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_td_errors_equal_the_loop(double, masked):
    table = transitions()
    mask = torch.from_numpy(table["mask"]) if masked else None
    found = q_learning.td_errors(*tensors(table, *CORE), double, mask)
    np.testing.assert_allclose(found, slow_td(table, double, masked), atol=1e-12)


def test_a_final_observation_without_legal_actions_is_harmless():
    table = transitions()
    table["mask"][0] = False
    table["discount"][0] = 0.0
    for double in (False, True):
        td = q_learning.td_errors(*tensors(table, *CORE), double, *tensors(table, "mask"))
        assert float(td[0]) == table["reward"][0] - table["q"][0, table["action"][0]]


def test_only_the_taken_action_of_the_online_network_learns():
    table = transitions()
    parts = dict(zip(CORE, tensors(table, *CORE), strict=True))
    for name in ("q", "online", "target"):
        parts[name].requires_grad_()
    q_learning.q_loss(q_learning.td_errors(*parts.values()), "squared").loss.backward()
    expected = np.zeros((ROWS, ACTIONS))
    expected[np.arange(ROWS), table["action"]] = -slow_td(table, True, False) / ROWS
    np.testing.assert_allclose(parts["q"].grad, expected, atol=1e-12)
    assert parts["online"].grad is None
    assert parts["target"].grad is None
