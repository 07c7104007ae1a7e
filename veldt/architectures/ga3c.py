# SPDX-License-Identifier: Apache-2.0
"""GA3C (Babaeizadeh et al., 2017).

    agent x N_A ==rows==> prediction queue --> predictor x N_P --+
       |    <==actions==                                         +-- one model
       +----- trajectories ----> training queue --> trainer x N_T +
                 tuner: changes N_A, N_P, N_T by one, keeps what does not slow training

New since A3C: agents hold no model. Predictors answer whatever questions are waiting in one forward
pass, trainers learn from whatever trajectories are waiting, and all of them use one model.
One datum: agent -> predictor -> agent -> training queue -> trainer.
Lag: the model changes under a trajectory while it is written and while it waits. GA3C only puts a
floor under log pi; it has no off-policy correction.
Deviations: an agent steps several environments; an episode keeps its last reward; agents that are
annealed away finish their trajectory first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from veldt.networks import FlatParameters
from veldt.objectives.actor_critic import ActorCritic, ActorCriticSettings
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.annealing import AnnealingSettings, Gate, Tuner
from veldt.roles.gradients.hogwild import share_hogwild
from veldt.roles.gradients.one_model import OneModelConfig
from veldt.roles.inference.batch_rule import BatchRule
from veldt.roles.inference.batched_policy import state_size
from veldt.roles.inference.shared_memory import InferenceServer
from veldt.roles.learner import Learner
from veldt.roles.policies.shared_memory import RemotePolicyConfig
from veldt.settings import OptimizerSettings
from veldt.topology import Topology

_AGENTS, _PREDICTORS, _TRAINERS = range(3)


@dataclass(frozen=True)
class Config(ActorCriticSettings, AnnealingSettings, OptimizerSettings):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the published constants."""

    correction: str = "epsilon"
    optimizer: str = "rmsprop"
    learning_rate: float = 1.5e-3
    max_grad_norm: float = 2.0
    trace_lambda: float = 0.95
    normalize_returns: bool = True
    trajectory_steps: int = 10
    """Environment steps per trajectory."""
    batch_trajectories: int = 1
    """Trajectories that a trainer joins into one batch."""


PRESETS = {
    "control": Config(),
    "atari": Config(
        trajectory_steps=5,
        reduction="sum",
        optimizer="rmsprop",
        learning_rate=3e-4,
        optimizer_epsilon=0.1,
        max_grad_norm=0.0,
        trace_lambda=1.0,
        value_coefficient=1.0,
        normalize_returns=False,
    ),
}
CENTRAL_INFERENCE = True


def default_actors(cores: int) -> int:
    return cores


def build(config: Config, problem: Problem) -> Topology:
    tuner, width = config.tuner(problem.num_actors), problem.envs_per_actor
    most_agents, most_predictors, most_trainers = tuner.most
    make_network = problem.make_network("policy_value", normalize_returns=config.normalize_returns)
    network = make_network()
    layout = problem.trajectory_layout(network, config.trajectory_steps, width)
    topology = Topology("ga3c", make_network)
    training = topology.queue("training", layout, 2 * most_agents + config.batch_trajectories)
    prediction = topology.ask_about("prediction", training, num_clients=most_agents)
    trainers = share_hogwild(
        topology,
        problem.initial_weights(make_network),
        FlatParameters(network).num_trained,
        config.optimizer_config(),
        most_trainers,
    )
    weights, updates = trainers[0][1][:2]
    state_memory = np.zeros(max(1, state_size(network, most_agents, width)), np.float32)
    recurrent = topology.share("recurrent_state", state_memory)
    counts = topology.board("counts", np.array(tuner.start, np.float32))

    def gate(position: int) -> dict[str, object]:
        made = partial(Gate, size=len(tuner.start), position=position)
        return {"gate": made, "gate_port": counts.source()}

    agent = {
        "environment": problem.environment,
        "num_envs": width,
        "num_steps": config.trajectory_steps,
        "sink": training.sink,
        "policy": RemotePolicyConfig(problem.spec.action, problem.network.distribution),
        "gamma": config.gamma,
    }
    for index in range(most_agents):
        asks = prediction.client(index)
        topology.add("agent", Actor, policy_port=asks, **agent, **gate(_AGENTS))
    one_process = [
        topology.add(
            "predictor",
            InferenceServer,
            requests=prediction.server,
            make_network=make_network,
            group_width=width,
            groups_per_client=1,
            rule=BatchRule(most=most_agents),
            state=recurrent.end,
            memory=[weights, updates],
            **gate(_PREDICTORS),
        )
        for _ in range(most_predictors)
    ]
    for sink, port in trainers:
        one_process.append(
            topology.add(
                "trainer",
                Learner,
                source=training.source(config.batch_trajectories),
                weights=None,
                make_network=make_network,
                make_objective=partial(ActorCritic, config=config),
                gradients=OneModelConfig(sink.optimizer, sink.writer),
                gradient_port=port,
                total_env_steps=problem.total_env_steps if config.decay_learning_rate else None,
                memory=[weights, updates],
                **gate(_TRAINERS),
            )
        )
    annealer = topology.add("tuner", Tuner, counts=counts.sink, updates=updates, config=tuner)
    topology.colocate(*one_process, annealer, threads=True)
    return topology
