# SPDX-License-Identifier: Apache-2.0
"""A recorded gradient is the one that is launched kernel by kernel, and is given up where it would
not be."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from network_specs import image, make_spec

from veldt.context import NodeContext
from veldt.losses.actor_critic import ActorCritic, ActorCriticOptions
from veldt.losses.ppo import PPO, Appo, ClippedOptions
from veldt.losses.q_learning import QLearning, QLearningOptions
from veldt.networks import FlatParameters, NetworkOptions, make_network
from veldt.optimizers import OptimizerOptions
from veldt.options.fields import changed
from veldt.ports import Gradient
from veldt.roles.cuda_graphs import RecordedGradient
from veldt.roles.gradients import LocalOptimizer
from veldt.telemetry.counters import NodeTelemetry
from veldt.types import trajectory_layout

STEPS, ENVS, ACTIONS = 5, 8, 3
SHAPE = (2, 36, 36)
SPEC = make_spec(image(36, 2))
CLIPPED = changed(ClippedOptions(), max_policy_lag=3)
PASSES = changed(CLIPPED, epochs=2, minibatches=2, normalize_values=True)
OBJECTIVES = {
    "actor_critic": ("policy_value", lambda: ActorCritic(ActorCriticOptions())),
    "appo": ("policy_value", lambda: Appo(CLIPPED)),
    "ppo": ("policy_value", lambda: PPO(PASSES)),
    "m2po": ("policy_value", lambda: ActorCritic(ActorCriticOptions(correction="m2po"))),
    "drop": ("policy_value", lambda: Appo(changed(CLIPPED, correction="drop"))),
    "ess": ("policy_value", lambda: PPO(changed(PASSES, correction="ess"))),
    "q_learning": ("q", lambda: QLearning(QLearningOptions())),
}
TRAJECTORIES = ("actor_critic", "appo", "ppo", "m2po", "drop", "ess")
OPTIMIZER = OptimizerOptions("adam", 1e-3, max_grad_norm=0.1)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def network(head, device="cpu", recurrent="none"):
    config = NetworkOptions(
        encoder="nature", normalize_values=head == "policy_value", recurrent=recurrent
    )
    return make_network(config, SPEC, head, seed=2).train().to(device)


def trajectories(seed):
    draw = np.random.default_rng(seed)
    own = network("policy_value", recurrent="lstm")
    layout = trajectory_layout(SPEC, STEPS, ENVS, own.output_fields(), own.state_fields())
    batch = {name: np.zeros(field.shape, field.dtype) for name, field in layout.items()}
    batch["behaviour_value"] = draw.normal(size=batch["reward"].shape).astype(np.float32)
    batch["observation"][:] = draw.integers(0, 256, batch["observation"].shape)
    batch["action"][:] = draw.integers(0, ACTIONS, batch["action"].shape)
    batch["reward"][:] = draw.normal(size=batch["reward"].shape)
    batch["parameter_version"][:] = draw.integers(0, 6, batch["parameter_version"].shape)
    batch["terminated"][2, 0] = batch["ignored"][3, 0] = batch["first"][4, 0] = True
    return batch


def transitions(seed):
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (2, 16, *SHAPE), dtype=np.uint8)
    return {
        "observation": images[0],
        "next_observation": images[1],
        "action": draw.integers(0, ACTIONS, 16),
        "reward": draw.normal(size=16).astype(np.float32),
        "discount": np.full(16, 0.9, np.float32),
        "weight": draw.random(16, np.float32),
    }


def batch_of(head, seed, device="cpu"):
    arrays = trajectories(seed) if head == "policy_value" else transitions(seed)
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_loss_that_may_be_recorded_depends_on_its_tensors_and_networks_alone(name):
    """A number that Python holds would be the recorded one for ever."""
    head, make = OBJECTIVES[name]
    objective, batch = make(), batch_of(head, 1)
    objective.open(network(head))
    part = next(iter(objective.passes(batch)))
    first = objective(part)
    objective.after_loss(first)
    objective.after_update(5)
    objective.after_loss(first)
    again = objective(part)
    assert objective.constants() is not None
    assert torch.equal(first.total, again.total)
    assert float(first.learning_rate_scale) == float(again.learning_rate_scale)


def test_other_constants_are_another_loss():
    objective = PPO(PASSES)
    before = objective.constants()
    objective.adjust_entropy(0.5)
    assert objective.constants() != before


def launched_singly(objective, flat, device):
    def differentiate(part):
        flat.zero_gradient()
        loss = objective(part)
        loss.total.backward()
        return loss.detached(), False

    return differentiate


def run(kind, name, device, own=None, **more):
    """Gradients and reports of several batches with weights that change in between."""
    head, make = OBJECTIVES[name]
    own = own or network(head, device, **more)
    flat, objective = FlatParameters(own, device), make()
    objective.open(own)
    differentiate = kind(objective, flat, torch.device(device))
    found = []
    for seed in range(6):
        objective.after_update(seed)
        for part in objective.passes(batch_of(head, seed, device)):
            loss = objective.after_loss(differentiate(part)[0])
            gradient = flat.gradient.clone().cpu()
            found.append((gradient, float(loss.total)))
            flat.vector[: flat.num_trained] -= 1e-3 * flat.gradient
    return found, differentiate


def assert_near(ours, theirs):
    """Libraries may choose other kernels while they are recorded, which round in another order;
    the gradient of another minibatch would be as far away as it is long."""
    assert torch.linalg.vector_norm(ours - theirs) < 1e-2 * torch.linalg.vector_norm(theirs)


@needs_cuda
@pytest.mark.parametrize(
    ("name", "recurrent"),
    [*((name, "none") for name in OBJECTIVES), *((name, "lstm") for name in TRAJECTORIES)],
)
def test_recorded_gradients_are_those_of_single_launches(name, recurrent):
    launched, _ = run(launched_singly, name, "cuda", recurrent=recurrent)
    recorded, differentiate = run(RecordedGradient, name, "cuda", recurrent=recurrent)
    assert len(differentiate.graphs) == 1
    for (theirs, their_loss), (ours, our_loss) in zip(launched, recorded, strict=True):
        assert_near(ours, theirs)
        assert our_loss == pytest.approx(their_loss, rel=1e-3, abs=1e-4)


@needs_cuda
def test_threads_of_one_process_record_side_by_side():
    launched, _ = run(launched_singly, "actor_critic", "cuda")
    networks = [network("policy_value", "cuda") for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        jobs = [
            threads.submit(run, RecordedGradient, "actor_critic", "cuda", own) for own in networks
        ]
    for job in jobs:
        recorded, differentiate = job.result()
        assert len(differentiate.graphs) == 1
        for (theirs, _), (ours, _) in zip(launched, recorded, strict=True):
            assert_near(ours, theirs)


def train(name, step_is_recorded, poisoned=()):
    """Weights and moments after several batches, with a rate that changes; the sink's counts."""
    head, make = OBJECTIVES[name]
    own = network(head, "cuda")
    flat, objective, sink = FlatParameters(own, "cuda"), make(), LocalOptimizer(OPTIMIZER)
    telemetry = NodeTelemetry()
    sink.open(NodeContext("learner-0", 0, 0, telemetry), flat)
    objective.open(own)
    unseen = sink.device_step() if step_is_recorded else None
    differentiate = RecordedGradient(objective, flat, torch.device("cuda"), unseen)
    applied = 0
    for seed in range(6):
        batch = batch_of(head, seed, "cuda")
        if seed in poisoned:
            batch["reward"] = batch["reward"] * torch.nan
        for part in objective.passes(batch):
            rate = 1.0 / (1 + seed)
            loss, is_applied = differentiate(part, rate)
            applied += is_applied
            if not is_applied:
                scale = rate * float(loss.learning_rate_scale)
                sink.apply(Gradient(flat.gradient, seed, scale))
        if applied:
            sink.count_device_steps()
    assert bool(applied) == step_is_recorded
    return flat.vector.cpu(), sink.state()["main.optimizer"], telemetry


@needs_cuda
@pytest.mark.parametrize("name", ["actor_critic", "q_learning"])
def test_a_recorded_step_is_the_optimizers(name):
    theirs, their_moments, _ = train(name, step_is_recorded=False)
    ours, our_moments, _ = train(name, step_is_recorded=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert our_moments[-1] == their_moments[-1] == 6  # steps are counted alike


@needs_cuda
def test_a_recorded_step_drops_what_is_not_finite():
    theirs, their_moments, seen = train("actor_critic", step_is_recorded=False, poisoned=(4,))
    ours, our_moments, unseen = train("actor_critic", step_is_recorded=True, poisoned=(4,))
    assert torch.isfinite(ours).all()
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert our_moments[-1] == their_moments[-1] == 5
    for telemetry in (seen, unseen):
        assert telemetry.counter("dropped.not_finite").value == 1


@needs_cuda
def test_a_network_that_looks_at_a_number_is_launched_as_it_is():
    own = network("policy_value", "cuda")

    def look(module, inputs, output):
        assert float(output.detach().sum()) != 0.0

    own.encoder.register_forward_hook(look)
    flat, objective = FlatParameters(own, "cuda"), OBJECTIVES["actor_critic"][1]()
    objective.open(own)
    differentiate = RecordedGradient(objective, flat, torch.device("cuda"))
    for seed in range(5):
        differentiate(batch_of("policy_value", seed, "cuda"))
    assert not differentiate.graphs
    assert torch.isfinite(flat.gradient).all()
