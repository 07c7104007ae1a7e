# SPDX-License-Identifier: Apache-2.0
"""A five-step rollout through the real Learner gives the gradient of A3C's Algorithm S3."""

import numpy as np
import pytest
import torch
from network_specs import make_spec, vector

from veldt.context import NodeContext
from veldt.losses.actor_critic import ActorCritic, ActorCriticOptions
from veldt.networks import FlatParameters, NetworkFactory, NetworkOptions
from veldt.ports import GradientSink
from veldt.roles.learner import Learner
from veldt.telemetry.counters import NodeTelemetry
from veldt.types import Batch, trajectory_layout

STEPS, GAMMA, BETA = 5, 0.9, 0.03
SPEC = make_spec(vector(4))


def build(recurrent):
    config = NetworkOptions(hidden_sizes=(8,), recurrent=recurrent, recurrent_size=6)
    return NetworkFactory(config, SPEC, "policy_value", seed=3)


class Capture(GradientSink):
    """Keeps the gradient it is given."""

    def __init__(self):
        self.gradient = None

    def apply(self, gradient):
        self.gradient, self.rows = gradient.vector.clone(), gradient.rows
        return gradient.version + 1


class OneBatch:
    def __init__(self, arrays):
        self.batches = [Batch(arrays)]

    def take_batch(self):
        return self.batches.pop() if self.batches else None

    def release(self, batch): ...


class OneBoard:
    def __init__(self, vector):
        self.vector, self.published = vector, []

    def pull(self, into, newer_than):
        into[:] = self.vector
        return 7

    def publish(self, parameters):
        self.published.append(parameters.version)


def rollout(network, end):
    """Rows 0..5 of one environment; `end` is what happens in row 4, or in row 2 for "midway"."""
    layout = trajectory_layout(SPEC, STEPS, 1, network.output_fields(), network.state_fields())
    arrays = layout.views(np.zeros(layout.nbytes, np.uint8))
    draw = np.random.default_rng(5)
    arrays["observation"][:] = draw.normal(size=(STEPS + 1, 1, 4))
    arrays["action"][:, 0] = [0, 2, 1, 1, 0, 0]
    arrays["reward"][:, 0] = [1.0, -0.5, 2.0, 0.0, 1.5, 0.0]
    for name in network.state_fields():
        arrays[f"state.{name}"][:] = draw.normal(size=arrays[f"state.{name}"].shape)
    if end == "terminated":
        arrays["terminated"][4] = True
    elif end == "truncated":
        arrays["truncated"][4] = True
    elif end == "midway":  # row 3 is then a reset row, and row 4 begins another episode
        arrays["terminated"][2], arrays["ignored"][3], arrays["first"][4] = True, True, True
    return arrays


def transcription(network, arrays):
    """Algorithm S3, step by step backwards, with the entropy term that the text adds to it."""
    flat = FlatParameters(network)
    total = torch.zeros(flat.num_trained)
    state = tuple(torch.from_numpy(arrays[f"state.{name}"]) for name in network.state_fields())
    outputs = []
    for row in range(STEPS + 1):
        observation = {"observation": torch.from_numpy(arrays["observation"][row])}
        first = torch.from_numpy(arrays["first"][row])
        output, state = network.step(observation, state, first)
        outputs.append(output)
    bootstrap = 0.0 if arrays["terminated"][4, 0] else float(outputs[STEPS].value[0].detach())
    target = bootstrap
    for row in reversed(range(STEPS)):
        if arrays["ignored"][row, 0]:
            continue
        if arrays["terminated"][row, 0]:
            target = 0.0
        target = float(arrays["reward"][row, 0]) + GAMMA * target
        log_pi = outputs[row].logits[0].log_softmax(-1)
        value = outputs[row].value[0]
        advantage = target - float(value.detach())
        entropy = -(log_pi.exp() * log_pi).sum()
        ascent = log_pi[int(arrays["action"][row, 0])] * advantage + BETA * entropy
        descent = (target - value) ** 2
        flat.zero_gradient()
        (descent - ascent).backward(retain_graph=True)
        total += flat.gradient
    return total


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
@pytest.mark.parametrize("end", ["goes on", "terminated", "truncated", "midway"])
def test_the_learners_gradient_is_that_of_algorithm_s3(recurrent, end):
    factory = build(recurrent)
    network, weights = factory.make(), factory.initial_vector().copy()
    arrays = rollout(network, end)
    board, sink = OneBoard(weights), Capture()
    options = ActorCriticOptions(
        gamma=GAMMA,
        correction="none",
        entropy_coefficient=BETA,
        reduction="sum",
        value_coefficient=2.0,  # a plain square, as the algorithm prints it
    )
    learner = Learner(factory, OneBatch(arrays), ActorCritic(options), sink, board, board)
    learner.open(NodeContext("learner-0", 0, seed=1, telemetry=NodeTelemetry()))
    assert learner.step()
    expected = transcription(network, arrays)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(sink.gradient, expected, rtol=1e-4, atol=1e-5)
    assert sink.rows == (4 if end == "midway" else 5)
    assert board.published == [8]
    assert not learner.step()
