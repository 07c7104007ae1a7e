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
Deviations: an agent steps several environments, with the paper preset one; an episode keeps its
last reward; agents that are annealed away finish their trajectory first. Returns are computed by
the trainer, from values of the model it has by then, and not by the agent. The floor is under the
log pi of the action taken, not under those in the entropy, where p log p vanishes by itself. The
tuner compares a window with the last setting that it kept, where GA3C's code compares with the
window before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veldt.architectures import Architecture, one_actor_per_core
from veldt.losses.actor_critic import ActorCritic, ActorCriticOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, Options
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.ga3c_tuner import AGENTS, PREDICTORS, TRAINERS, AnnealingOptions, Gate, Tuner
from veldt.roles.hogwild import HogwildOptions, OneModel, hogwild_workers
from veldt.roles.inference import BatchedPolicy, BatchRule, SharedMemoryInference, recurrent_memory
from veldt.roles.learner import Learner
from veldt.roles.policies import SharedMemoryPolicy
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults suit small control tasks; the preset `paper` has the published constants."""

    loss: ActorCriticOptions = ActorCriticOptions(
        correction="epsilon", trace_lambda=0.95, normalize_returns=True
    )
    optimizer: OptimizerOptions = OptimizerOptions("rmsprop", 1.5e-3, max_grad_norm=2.0)
    annealing: AnnealingOptions = AnnealingOptions()
    trajectory_steps: Count = 10
    """Environment steps per trajectory."""
    batch_trajectories: Count = 1
    """Trajectories that a trainer joins into one batch."""


def build(config: Config, problem: Problem) -> Topology:
    network = problem.network("policy_value", config.loss)
    environments = problem.environments()
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments)
    most = config.annealing.most(problem.num_actors)

    topology = Topology(network)
    workers = hogwild_workers(
        topology, network, config.optimizer, HogwildOptions(), most[TRAINERS], OneModel
    )
    model = workers[0].model
    num_slots = 2 * most[AGENTS] + config.batch_trajectories
    trajectories = topology.queue("training", layout, num_slots)
    requests = topology.ask_about("prediction", trajectories, most[AGENTS])
    recurrent = topology.share("recurrent", recurrent_memory(network, most[AGENTS], environments))
    start = config.annealing.start(problem.num_actors)
    counts = topology.board("counts", np.array(list(start.values()), np.float32))
    for index in range(most[AGENTS]):
        topology.add(
            "agent",
            Actor(
                environments,
                SharedMemoryPolicy(network, requests.client(index)),
                trajectories.sink,
                gamma=config.loss.gamma,
                gate=Gate(counts.source(), AGENTS),
            ),
        )
    for _ in range(most[PREDICTORS]):
        topology.add(
            "predictor",
            SharedMemoryInference(
                requests.server,
                BatchedPolicy(network, model, device=problem.compute.device),
                BatchRule(most=most[AGENTS]),
                recurrent.end,
                environments.width,
                gate=Gate(counts.source(), PREDICTORS),
            ),
        )
    for gradients in workers:
        topology.add(
            "trainer",
            Learner(
                network,
                trajectories.source(config.batch_trajectories),
                ActorCritic(config.loss),
                gradients,
                decay=config.optimizer.decays_over(problem.schedule),
                compute=problem.compute,
                gate=Gate(counts.source(), TRAINERS),
            ),
        )
    topology.add("tuner", Tuner(counts.sink, model.updates, config.annealing, problem.num_actors))
    topology.colocate(*topology.of("predictor", "trainer", "tuner"), threads=True)
    return topology


ARCHITECTURE = Architecture(
    "ga3c",
    Config,
    build,
    presets("ga3c", Config()),
    paper_envs_per_actor=1,
    default_actors=one_actor_per_core,
    central_inference=True,
    refuses={
        "ray": "ga3c's agents send every row through the memory of one machine; use --backend"
        " process, or seed_rl on a cluster"
    },
)
