# SPDX-License-Identifier: Apache-2.0
"""CPU seconds that one env step costs in environment, inference and training, each measured alone.

The parts are those of `veldt train impala` with nothing between them, so cores / (sum of the costs)
is a ceiling that no arrangement of the same parts over the same cores can pass.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import torch

from veldt.losses.actor_critic import ActorCritic
from veldt.networks import FlatParameters
from veldt.optimizers import make_optimizer
from veldt.options import RunOptions
from veldt.run.plan import Plan, make_plan


def cpu_seconds_per_step(work: Callable[[], int], seconds: float) -> float:
    """`work` returns the steps it stands for; threads it starts are paid for, too."""
    for _ in range(3):
        work()
    steps, begun, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < seconds:
        steps += work()
    return (time.process_time() - cpu) / steps


def environment_work(plan: Plan) -> Callable[[], int]:
    environment = plan.problem.environment.make(plan.problem.envs_per_actor, seed=0)
    random = np.random.default_rng(0)
    actions = [environment.random_actions(random) for _ in range(64)]
    environment.reset()
    calls = 0

    def work() -> int:
        nonlocal calls
        calls += 1
        return environment.step(actions[calls % 64]).env_steps

    return work


def batch_of(plan: Plan) -> dict[str, torch.Tensor]:
    """A learner's batch of made-up rows; what is in it does not change what it costs."""
    config, problem = plan.config, plan.problem
    envs = problem.envs_per_actor * config.batch_trajectories
    network = plan.topology.make_network()
    layout = problem.trajectory_layout(network, config.trajectory_steps, envs)
    random = np.random.default_rng(0)
    batch = {}
    for name, field in layout.items():
        array = np.zeros(field.shape, field.dtype)
        if name in network.input_names and array.dtype == np.uint8:
            array[:] = random.integers(0, 256, field.shape, np.uint8)
        batch[name] = torch.from_numpy(array)
    return batch


def inference_work(plan: Plan) -> Callable[[], int]:
    network, width = plan.topology.make_network().eval(), plan.problem.envs_per_actor
    rows = {name: tensor[0][:width] for name, tensor in batch_of(plan).items()}
    inputs = {name: rows[name] for name in network.input_names}
    random, state = np.random.default_rng(0), network.initial_state(width)
    assert network.distribution is not None
    distribution = network.distribution

    def work() -> int:
        with torch.inference_mode():
            outputs, _ = network.step(inputs, state, rows["first"])
        distribution.env_action(distribution.sample(outputs.logits.numpy(), random))
        return width

    return work


def training_work(plan: Plan) -> Callable[[], int]:
    network = plan.topology.make_network().train()
    flat, batch = FlatParameters(network), batch_of(plan)
    objective = ActorCritic(network, config=plan.config)
    optimizer = make_optimizer(plan.config.optimizer_config(), flat.vector[: flat.num_trained])

    def work() -> int:
        loss = objective(batch)
        flat.zero_gradient()
        loss.total.backward()
        optimizer.step(flat.gradient)
        return batch["reward"][:-1].numel()

    return work


def measure(env: str, network: str, seconds: float, envs: int | None = None) -> dict[str, float]:
    torch.set_num_threads(1)
    options = RunOptions(env=env, network=network, max_seconds=1.0, envs_per_actor=envs)
    plan = make_plan("impala", options, {})
    works = {"env": environment_work, "inference": inference_work, "training": training_work}
    costs = {name: cpu_seconds_per_step(make(plan), seconds) for name, make in works.items()}
    return {**costs, "envs": plan.problem.envs_per_actor}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--network", default="nature")
    parser.add_argument("--envs", type=int, help="width; default: what an actor would choose")
    parser.add_argument("--seconds", type=float, default=5.0, help="per part")
    given = parser.parse_args()
    print(json.dumps(measure(given.env, given.network, given.seconds, given.envs)))


if __name__ == "__main__":
    main()
