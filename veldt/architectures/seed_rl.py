# SPDX-License-Identifier: Apache-2.0
"""SEED RL (Espeholt et al., 2020), with V-trace.

    actor x N ==observations==> stream ==> inference --trajectories--> queue --> learner
        <==actions, one stream per actor==     ^                                    |
                                               +------------- weights --------------+
                                            one process and device, a thread for each

New since IMPALA: actors hold no weights. They stream observations to a server on the learner's
device, which answers many of them in one forward pass and assembles the trajectories itself.
One datum: actor -> stream -> inference -> queue -> learner.
Lag: the wait in the queue and the rows still to come; each row has a version of its own.
Deviation: the server waits for half of all groups, but at most `batch_timeout_seconds`: a dead
actor cannot stall the others.
With --env external:HOST:PORT there are no actors: simulators elsewhere stream in what they see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from veldt.architectures import Architecture
from veldt.losses.actor_critic import ActorCritic, VTraceOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, CountOrNone, Nodes, NotNegative, Options
from veldt.options.groups import SAMPLING_OPTIONS
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients import LocalOptimizer
from veldt.roles.inference import BatchedPolicy, BatchRule
from veldt.roles.learner import Learner
from veldt.roles.policies import ScratchSink, StreamPolicy, stream_layouts
from veldt.roles.selection import SampleActions
from veldt.roles.stream_inference import StreamInference
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults suit small control tasks; the preset `paper` has the published constants. With a
    smaller epsilon RMSProp takes huge steps when a long time without errors ends."""

    loss: VTraceOptions = VTraceOptions(trace_lambda=0.95, normalize_returns=True)
    optimizer: OptimizerOptions = OptimizerOptions(
        "rmsprop", 8e-3, optimizer_epsilon=1e-4, max_grad_norm=2.0
    )
    trajectory_steps: Count = 10
    """Environment steps per trajectory."""
    num_envs: CountOrNone = 0
    """Environments of all actors together; 0: by the kind of environment and the cores."""
    batch_trajectories: CountOrNone = 0
    """Trajectories joined into one batch; 0: one of each group, which keeps lag low."""
    groups_per_actor: Annotated[Nodes, SAMPLING_OPTIONS] = 1
    """Groups of environments per actor; 2 hides inference behind stepping."""
    batch_timeout_seconds: Annotated[NotNegative, SAMPLING_OPTIONS] = 0.02
    """How long the server waits for half of all groups before it answers those that asked."""

    def enough_requests(self, problem: Problem) -> int:
        """Half of the groups that a run begins with are answered at once."""
        return max(1, self.groups_per_actor * problem.num_actors // 2)


def build(config: Config, problem: Problem) -> Topology:
    network = problem.network("policy_value", config.loss)
    environments = problem.environments(config.groups_per_actor)
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments)
    num_groups = config.groups_per_actor * problem.num_actors
    batch = config.batch_trajectories or num_groups

    topology = Topology(network)
    weights = topology.board("weights", network)
    trajectories = topology.queue("trajectories", layout, num_groups + 2 * batch)
    request, answer = stream_layouts(layout, problem.spec.action)
    stream = topology.stream("stream", request, answer, problem.num_actors, config.groups_per_actor)
    for index in range(problem.num_actors):
        topology.add(
            "actor",
            Actor(
                environments,
                StreamPolicy(request, stream.client(index)),
                ScratchSink(layout, config.groups_per_actor),
                gamma=config.loss.gamma,
            ),
        )
    policy = BatchedPolicy(network, weights.source(), SampleActions(), problem.compute.device)
    topology.add(
        "inference",
        StreamInference(
            stream.server,
            policy,
            trajectories.sink,
            BatchRule(config.enough_requests(problem), num_groups, config.batch_timeout_seconds),
            answer,
            config.groups_per_actor,
        ),
    )
    topology.add(
        "learner",
        Learner(
            network,
            trajectories.source(batch),
            ActorCritic(config.loss),
            LocalOptimizer(config.optimizer),
            weights.source(),
            weights.sink,
            decay=config.optimizer.decays_over(problem.schedule),
            compute=problem.compute,
        ),
    )
    topology.colocate(*topology.of("inference", "learner"), threads=True)
    return topology


ARCHITECTURE = Architecture(
    "seed_rl",
    Config,
    build,
    presets("seed_rl", Config()),
    paper_envs_per_actor=8,
    central_inference=True,
    takes_external=True,
)
