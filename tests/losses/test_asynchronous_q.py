# SPDX-License-Identifier: Apache-2.0
"""A3C's value-based workers: targets row by row, and one target network for all of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from network_specs import make_spec, vector

from veldt.losses.asynchronous_q import AsynchronousQ, AsynchronousQOptions
from veldt.networks import FlatParameters, NetworkOptions, make_network

STEPS, ENVS, GAMMA = 4, 2, 0.8
WORKERS = ("one_step", "n_step", "sarsa")


def spec_of(same_step):
    return replace(make_spec(vector(3)), same_step_reset=same_step)


def network_of(spec, seed):
    return make_network(NetworkOptions(hidden_sizes=(8,)), spec, "q", seed)


def objective_of(network, kind, port, **options):
    target, refreshes = port
    objective = AsynchronousQ(
        AsynchronousQOptions(gamma=GAMMA, worker=kind, **options), target, refreshes
    )
    objective.open(network)
    return objective


def make_batch(same_step):
    draw = np.random.default_rng(2)
    rows = (STEPS + 1, ENVS)
    flags = {name: np.zeros(rows, bool) for name in ("first", "ignored", "terminated", "truncated")}
    flags["terminated"][1, 0] = flags["truncated"][2, 1] = True
    if not same_step:
        flags["ignored"][2, 0] = flags["ignored"][3, 1] = True
    batch = {
        "observation": draw.normal(size=(*rows, 3)).astype(np.float32),
        "action": draw.integers(3, size=rows),
        "reward": draw.normal(size=rows).astype(np.float32),
        **flags,
    }
    if same_step:
        batch["final_observation"] = draw.normal(size=(*rows, 3)).astype(np.float32)
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def slow_loss(kind, network, target, batch, same_step):
    """The mean over learned rows of half the squared error; one row at a time."""

    def values(which, observation):
        one = {"observation": observation[None]}
        return which.step(one, (), torch.zeros(1, dtype=torch.bool))[0].q_values[0]

    terms = []
    for env in range(ENVS):
        following = None
        for t in reversed(range(STEPS)):
            row = {name: array[t, env] for name, array in batch.items()}
            if row["ignored"]:
                following = None
                continue
            end = bool(row["terminated"] or row["truncated"])
            truncated_here = same_step and bool(row["truncated"])
            seen = row["final_observation"] if truncated_here else batch["observation"][t + 1, env]
            after = values(target, seen)
            if row["terminated"]:
                bootstrap = 0.0
            elif kind == "sarsa":
                bootstrap = float(after.detach()[batch["action"][t + 1, env]])
            elif kind == "n_step" and not end and following is not None:
                bootstrap = following
            else:
                bootstrap = float(after.detach().max())
            goal = float(row["reward"]) + GAMMA * bootstrap
            following = goal
            unknown = not row["terminated"] and (t == STEPS - 1 or truncated_here)
            if kind == "sarsa" and unknown:
                continue
            q = values(network, row["observation"])[row["action"]]
            terms.append(0.5 * (goal - float(q.detach())) ** 2)
    return float(np.mean(terms))


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("kind", ["one_step", "n_step", "sarsa"])
def test_loss_equals_the_row_by_row_transcription(kind, same_step):
    spec = spec_of(same_step)
    network, target = network_of(spec, 1), network_of(spec, 2)
    port = [FlatParameters(target).numpy().copy(), np.zeros(1, np.int64)]
    objective = objective_of(network, kind, port)
    batch = make_batch(same_step)
    loss = objective(batch).total
    loss.backward()  # it has a graph
    expected = slow_loss(kind, network, target, batch, same_step)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)


class Announced(list):
    """A number of refreshes that others may only see once the weights are there."""

    def __setitem__(self, place, number):
        assert self.whole()
        super().__setitem__(place, number)


def test_the_target_is_shared_and_refreshed_once_per_period():
    spec = spec_of(False)
    networks = [network_of(spec, 1), network_of(spec, 5)]
    flats = [FlatParameters(network) for network in networks]
    port = [FlatParameters(network_of(spec, 9)).numpy().copy(), Announced([0])]
    first, second = (
        objective_of(network, "one_step", port, target_period_updates=10) for network in networks
    )
    untouched = port[0].copy()
    first.after_update(9)
    assert np.array_equal(port[0], untouched)
    port[1].whole = lambda: np.array_equal(port[0], flats[0].numpy())
    first.after_update(11)  # update 10 was another worker's
    assert port[1] == [1]
    second.after_update(12)  # this period has its refresh
    assert np.array_equal(port[0], flats[0].numpy())
    batch = make_batch(False)
    expected = slow_loss("one_step", networks[1], networks[0], batch, False)
    assert float(second(batch).total.detach()) == pytest.approx(expected, rel=1e-5)
    port[1].whole = lambda: np.array_equal(port[0], flats[1].numpy())
    second.after_update(20)
    assert port[1] == [2]
