# SPDX-License-Identifier: Apache-2.0
"""R2D2's loss on sequences: burn-in has no gradient; the whole against a slow transcription."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from network_specs import make_spec, vector
from transcriptions import h, h_inverse

from veldt.losses.r2d2 import R2D2, R2D2Options, after_burn_in
from veldt.networks import NetworkOptions, make_network

BURN_IN, UNROLL, BATCH, ACTIONS, SIZE = 3, 6, 4, 3, 5
ROWS = BURN_IN + UNROLL + 1
GAMMA, N_STEP = 0.9, 2


def make(same_step: bool = False, past: bool = False):
    spec = replace(make_spec(vector(2)), same_step_reset=same_step)
    config = NetworkOptions(
        hidden_sizes=(7,),
        recurrent="lstm",
        recurrent_size=SIZE,
        dueling=True,
        last_action_and_reward=past,
    )
    return make_network(config, spec, "q", 5)


def make_batch(seed: int = 0, same_step: bool = False, past: bool = False):
    random = np.random.default_rng(seed)
    shape = (ROWS, BATCH)
    ends = random.random(shape) < 0.2
    kind = random.random(shape) < 0.5
    batch = {
        "observation": random.standard_normal((*shape, 2), np.float32),
        "action": random.integers(0, ACTIONS, shape),
        "reward": random.standard_normal(shape, np.float32),
        "terminated": ends & kind,
        "truncated": ends & ~kind,
        "ignored": np.zeros(shape, bool),
        "first": np.zeros(shape, bool),
        "state.hidden": random.standard_normal((BATCH, SIZE), np.float32),
        "state.cell": random.standard_normal((BATCH, SIZE), np.float32),
        "weight": random.random(BATCH, np.float32) + 0.1,
        "item_id": np.arange(BATCH),
        "age": np.arange(BATCH),
    }
    after = 1 if same_step else 2  # NEXT_STEP has a row to be ignored in between
    batch["first"][after:] = ends[:-after]
    if same_step:
        batch["final_observation"] = random.standard_normal((*shape, 2), np.float32)
    else:
        batch["ignored"][1:] = ends[:-1]
        batch["terminated"] &= ~batch["ignored"]
        batch["truncated"] &= ~batch["ignored"]
    if past:
        batch["last_action"] = np.roll(batch["action"], 1, axis=0)
        batch["last_reward"] = np.roll(batch["reward"], 1, axis=0)
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def make_objective(network, **changes) -> R2D2:
    options = R2D2Options(
        gamma=GAMMA, n_step=N_STEP, burn_in_steps=BURN_IN, unroll_steps=UNROLL, **changes
    )
    objective = R2D2(options)
    objective.open(network)
    return objective


def gradient(network, batch) -> torch.Tensor:
    network.zero_grad()
    make_objective(network)(batch).total.backward()
    return torch.cat([entry.grad.reshape(-1) for entry in network.parameters()])


def test_burn_in_carries_the_state_but_no_gradient():
    network, batch = make(), make_batch()
    observation = batch["observation"] = batch["observation"].requires_grad_()
    batch["state.hidden"].requires_grad_()
    make_objective(network)(batch).total.backward()
    assert (observation.grad[:BURN_IN] == 0).all()
    assert batch["state.hidden"].grad is None
    assert (observation.grad[BURN_IN:-1].abs().sum((1, 2)) > 0).all()
    burnt = after_burn_in(network, make_batch(), BURN_IN)
    assert not burnt["state.hidden"].requires_grad
    changed = make_batch()
    changed["first"][:BURN_IN] = False
    changed["observation"][1] += 1.0
    other = after_burn_in(network, changed, BURN_IN)
    assert not torch.equal(burnt["state.hidden"], other["state.hidden"])


def test_burn_in_reaches_the_state_that_a_plain_unroll_reaches():
    network, batch = make(), make_batch()
    state = (batch["state.hidden"], batch["state.cell"])
    _, states = network.unroll(batch, state, batch["first"])
    burnt = after_burn_in(network, batch, BURN_IN)
    torch.testing.assert_close(burnt["state.hidden"], states[0][BURN_IN - 1])
    torch.testing.assert_close(burnt["state.cell"], states[1][BURN_IN - 1])
    assert burnt["action"].shape[0] == UNROLL + 1
    assert "weight" not in burnt


def slow_loss(network, target, batch, same_step) -> tuple[float, np.ndarray]:
    """The equations, one sequence and one row after the other."""
    arrays = {name: tensor.numpy() for name, tensor in batch.items()}

    def q_rows(net):
        state = (batch["state.hidden"], batch["state.cell"])
        rows, finals = [], []
        with torch.no_grad():
            for row in range(ROWS):
                now = {name: tensor[row] for name, tensor in batch.items() if tensor.ndim > 1
                       and not name.startswith("state.")}  # fmt: skip
                outputs, state = net.step(now, state, batch["first"][row])
                rows.append(outputs.q_values.double().numpy())
                if same_step:
                    last = {
                        "observation": batch["final_observation"][row],
                        "last_action": batch["action"][row],
                        "last_reward": batch["reward"][row],
                    }
                    never = torch.zeros(BATCH, dtype=torch.bool)
                    finals.append(net.step(last, state, never)[0].q_values.double().numpy())
        return rows, finals

    online, online_finals = q_rows(network)
    frozen, frozen_finals = q_rows(target)
    total, priorities = 0.0, np.zeros(BATCH)
    for b in range(BATCH):
        errors = []
        for t in range(BURN_IN, ROWS - 1):
            if arrays["ignored"][t, b]:
                continue
            reward, factor, row = 0.0, 1.0, t
            while True:
                reward += factor * arrays["reward"][row, b]
                factor *= GAMMA
                over = arrays["terminated"][row, b] or arrays["truncated"][row, b]
                if (
                    over
                    or row == ROWS - 2
                    or row == t + N_STEP - 1
                    or arrays["ignored"][row + 1, b]
                ):
                    break
                row += 1
            if not arrays["terminated"][row, b]:
                use_final = same_step and arrays["truncated"][row, b]
                judge = online_finals[row][b] if use_final else online[row + 1][b]
                values = frozen_finals[row][b] if use_final else frozen[row + 1][b]
                reward += factor * h_inverse(values[judge.argmax()])
            errors.append(h(reward) - online[t][b][arrays["action"][t, b]])
        total += arrays["weight"][b] * 0.5 * np.square(errors).sum() / BATCH
        sizes = np.abs(errors)
        priorities[b] = 0.9 * sizes.max() + 0.1 * sizes.mean()
    return total, priorities


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("same_step", [False, True])
def test_the_loss_and_the_priorities_are_those_of_the_equations(same_step, past):
    network, batch = make(same_step, past), make_batch(3, same_step, past)
    objective = make_objective(network)
    with torch.no_grad():
        for entry in network.parameters():
            entry.add_(0.1 * torch.randn_like(entry))  # the target network stays behind
    loss = objective(dict(batch))
    expected, priorities = slow_loss(network, objective._target.network, batch, same_step)
    assert loss.total.item() == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(loss.priorities.numpy(), priorities, rtol=1e-4)


def test_the_bootstrap_rows_own_inputs_are_restored():
    """A replay keeps nothing of the last row but what was seen."""
    network, batch = make(past=True), make_batch(past=True)
    whole = gradient(network, batch)
    for name in ("last_action", "last_reward"):
        batch[name][-1] = 0
    assert torch.equal(gradient(network, batch), whole)
