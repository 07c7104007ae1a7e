# SPDX-License-Identifier: Apache-2.0
"""GA3C and Sample Factory: actors without a network, requests by number, lag bounds, groups."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from wiring import OpenRun, context, opened

import veldt
from veldt.backends.shared_memory.memory import IndexPipe
from veldt.environments import EnvironmentFactory, Environments
from veldt.errors import ConfigurationError
from veldt.losses.ppo import Appo, ClippedOptions
from veldt.networks import NetworkOptions, make_network
from veldt.options.fields import changed
from veldt.ports import Policy
from veldt.roles.actor import Actor
from veldt.types import Field, PolicyReply, slots_over, trajectory_layout

TINY = {
    "env": "CartPole-v1",
    "preset": "control",
    "backend": "serial",
    "num_actors": 2,
    "envs_per_actor": 4,
    "trajectory_steps": 5,
    "total_env_steps": 1200,
    "evaluation_episodes": 0,
    "network_options": {"hidden_sizes": (16,)},
}


def train(tmp_path, architecture, **options):
    run_dir = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
    return veldt.train(architecture, **{**TINY, **options}, run_dir=str(run_dir))


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("ga3c", {}),
        ("ga3c", {"annealing_window_seconds": 0.1, "annealing_warm_up_seconds": 0.1}),
        (
            "ga3c",
            {"recurrent": "lstm", "network_options": {"hidden_sizes": (16,), "recurrent_size": 8}},
        ),
        ("sample_factory", {}),
        ("sample_factory", {"num_policy_workers": 2, "enough_requests": 2}),
        (
            "sample_factory",
            {"recurrent": "gru", "network_options": {"hidden_sizes": (16,), "recurrent_size": 8}},
        ),
    ],
)
def test_the_same_seed_gives_the_same_bits(architecture, options, tmp_path):
    one, again = (train(tmp_path, architecture, seed=5, **options) for _ in range(2))
    other = train(tmp_path, architecture, seed=6, **options)
    assert one.parameters_sha256 == again.parameters_sha256
    assert one.parameters_sha256 != other.parameters_sha256
    assert one.updates > 0
    assert one.policy_lag["max"] >= 1, "central inference changes weights within a trajectory"


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_synchronous_sample_factory_has_no_lag_like_a2c(backend, tmp_path):
    result = train(tmp_path, "sample_factory", backend=backend, synchronous=True)
    assert result.updates * 2 * TINY["envs_per_actor"] * TINY["trajectory_steps"] >= 1000
    assert result.policy_lag["max"] == 0


@pytest.mark.parametrize("architecture", ["ga3c", "sample_factory"])
def test_actors_hold_no_network(architecture):
    run = OpenRun(architecture, num_actors=1, envs_per_actor=4)
    actor = run.role("agent-0" if architecture == "ga3c" else "actor-0")
    seen: set[int] = set()

    def modules(thing, depth=0):
        if id(thing) in seen or depth > 6:
            return []
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            return [thing]
        inside = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
        if isinstance(thing, dict):
            inside += list(thing.values())
        elif isinstance(thing, list | tuple | set):
            inside += list(thing)
        return [found for part in inside for found in modules(part, depth + 1)]

    assert not modules(actor)


def test_ga3cs_annealing_is_logged_with_verdicts(tmp_path):
    result = train(
        tmp_path,
        "ga3c",
        total_env_steps=20_000,
        annealing_window_seconds=0.5,
        annealing_warm_up_seconds=0.2,
    )
    with open(f"{result.run_dir}/tuning.jsonl", encoding="utf-8") as file:
        verdicts = [json.loads(line) for line in file]
    assert len(verdicts) >= 5
    for verdict in verdicts:
        assert verdict["kept"] == (verdict["throughput"] >= verdict["previous"])
        assert min(verdict["setting"].values()) >= 1


def test_an_annealed_agent_hands_over_its_trajectory_before_it_rests():
    run = OpenRun("ga3c", num_actors=1, envs_per_actor=2, trajectory_steps=4, annealing=False)
    agent, tuner = run.role("agent-0"), run.role("tuner-0")
    for _ in range(3):
        run.step()
    begun = agent._groups[0]
    assert begun.begun
    tuner._climber.setting["agents"] = 0
    tuner._publish()
    before = agent._trajectories.value
    for _ in range(40):
        run.step()
    assert agent._trajectories.value == before + 1
    assert not begun.begun
    assert begun.slot is None


def test_what_travels_does_not_grow_with_the_observation():
    pipe = IndexPipe()
    try:
        for rows, slot in ((5, 0), (33, 70_000)):
            pipe.push(slot * rows + rows - 1)
        assert len(pipe) == 2  # four bytes each, whatever the slot holds
    finally:
        pipe.close()


@dataclass(eq=False)
class _SlowPolicy(Policy):
    """Answers `delay` looks after it was asked, like a server that is busy elsewhere."""

    delay: int

    def open(self, context, widths):
        self._asked, self._width = [0] * len(widths), widths[0]

    def request(self, group, slot, row):
        self._asked[group] = self.delay

    def reply(self, group):
        self._asked[group] -= 1
        if self._asked[group] > 0:
            return None
        action = np.zeros(self._width, np.int64)
        return PolicyReply(action, action, {}, 0)


@pytest.mark.parametrize("delay", [2, 3, 5])
def test_two_groups_step_while_the_other_waits(delay):
    """Each look at the policy stands for one unit of time; one group works every `delay` of them,
    two groups together twice as often: the share of time an actor is busy doubles."""
    factory = EnvironmentFactory("CartPole-v1")
    busy = {}
    for groups in (1, 2):
        layout = trajectory_layout(factory.spec(), 8, 4 // groups, {})
        memory = np.zeros(layout.nbytes * groups, np.uint8)
        free = slots_over(layout, memory, groups)
        sink = SimpleNamespace(reserve=lambda f=free: f.pop() if f else None)
        sink.commit = lambda slot, f=free: f.append(slot)
        actor = Actor(Environments(factory, 4, groups), _SlowPolicy(delay), sink)
        opened(actor, context("actor-0"))
        steps = 0
        for _ in range(240):
            for group in actor._groups:
                steps += actor._advance(group)
        busy[groups] = steps
        actor.close()
    assert busy[2] == pytest.approx(2 * busy[1], rel=0.1)


def test_groups_must_split_the_environments():
    with pytest.raises(ConfigurationError, match="equal groups"):
        OpenRun("sample_factory", envs_per_actor=5)


@pytest.mark.parametrize("architecture", ["ga3c", "sample_factory"])
def test_they_say_why_they_do_not_run_on_ray(architecture, tmp_path):
    with pytest.raises(ConfigurationError, match="shared memory of one machine") as refusal:
        train(tmp_path, architecture, backend="ray")
    assert "use --backend process, or seed_rl" in str(refusal.value)
    assert not list(tmp_path.iterdir())


def appo_batch(network, steps=6, envs=4, seed=0):
    spec = network.spec
    outputs = {**network.output_fields(), "behaviour_value": Field((), "float32")}
    layout = trajectory_layout(spec, steps, envs, outputs)
    random = np.random.default_rng(seed)
    arrays = {name: np.zeros(field.shape, field.dtype) for name, field in layout.items()}
    arrays["observation"][:] = random.normal(size=arrays["observation"].shape)
    arrays["action"][:] = random.integers(0, 2, arrays["action"].shape)
    arrays["reward"][:] = random.normal(size=arrays["reward"].shape)
    arrays["behaviour_logits"][:] = random.normal(size=arrays["behaviour_logits"].shape) * 0.1
    arrays["behaviour_value"][:] = random.normal(size=arrays["behaviour_value"].shape)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def test_every_row_beyond_the_lag_bound_is_masked_and_the_step_shrinks():
    spec = EnvironmentFactory("CartPole-v1").spec()
    network = make_network(NetworkOptions(hidden_sizes=(8,)), spec, "policy_value", 0)
    objective = Appo(changed(ClippedOptions(), max_policy_lag=3, normalize_advantages=False))
    objective.open(network)
    objective.after_update(10)
    batch = appo_batch(network)
    batch["parameter_version"][:] = 10
    batch["parameter_version"][:3] = 7  # exactly at the bound: too old

    def loss_of(data):
        [part] = objective.passes(data)
        return objective(part)

    masked = loss_of(batch)
    assert masked.learning_rate_scale == pytest.approx(0.5)

    # What the old rows' own log-probabilities and values say must not matter any more.
    spoiled = {name: tensor.clone() for name, tensor in batch.items()}
    spoiled["behaviour_value"][:3] += 5.0
    gradients = []
    for data in (batch, spoiled):
        network.zero_grad()
        loss_of(data).total.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1])

    batch["parameter_version"][:3] = 8
    assert loss_of(batch).learning_rate_scale == pytest.approx(1.0)
