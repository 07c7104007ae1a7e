# SPDX-License-Identifier: Apache-2.0
"""R2D2 (Kapturowski et al., 2019), with the central inference of SEED RL.

    actor x N ==observations==> stream ==> inference --trajectories--> replay --> learner
        <==actions, one stream per actor==     ^        of sequences ^  priorities  |  |
                                               |                     +--------------+  |
                                               +-------------- weights ----------------+
                                            one process and device, a thread for each

New since Ape-X: the network has a memory, and the replay keeps sequences with the state that they
began with. A few rows of each bring that old state up to date before the rest is learned from.
One datum: actor -> stream -> inference -> queue -> replay -> learner.
Lag: none that matters to an off-policy method; the age of what is replayed is reported.
Deviations: actors hold no weights but ask a server, as in SEED RL's R2D2, where the paper's have a
copy. The server waits for half of all groups, but at most `batch_timeout_seconds`. First priorities
come from the values of the network that acted, with no second forward pass.
With --env external:HOST:PORT there are no actors: simulators elsewhere stream in what they see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from veldt.architectures import Architecture
from veldt.errors import ConfigurationError
from veldt.losses.r2d2 import R2D2, R2D2Options
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, Nodes, NotNegative, Options
from veldt.options.groups import SAMPLING_OPTIONS
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients import LocalOptimizer
from veldt.roles.inference import BatchedPolicy, BatchRule
from veldt.roles.learner import Learner
from veldt.roles.policies import ScratchSink, StreamPolicy, stream_layouts
from veldt.roles.replay import SequenceReplayOptions, SequenceTable, add_replay
from veldt.roles.selection import LadderOptions
from veldt.roles.stream_inference import StreamInference
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults suit small control tasks; the preset `paper` has the published constants."""

    loss: R2D2Options = R2D2Options()
    replay: SequenceReplayOptions = SequenceReplayOptions()
    exploration: LadderOptions = LadderOptions()
    optimizer: OptimizerOptions = OptimizerOptions(max_grad_norm=40.0)
    trajectory_steps: Count = 10
    """Environment steps per trajectory; unroll_steps is a multiple of it."""
    groups_per_actor: Annotated[Nodes, SAMPLING_OPTIONS] = 1
    """Groups of environments per actor; 2 hides inference behind stepping."""
    batch_timeout_seconds: Annotated[NotNegative, SAMPLING_OPTIONS] = 0.02
    """How long the server waits for half of all groups before it answers those that asked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss.unroll_steps % self.trajectory_steps:
            raise ConfigurationError(
                f"unroll_steps {self.loss.unroll_steps} is not a multiple of trajectory_steps"
                f" {self.trajectory_steps}; sequences begin where a trajectory does"
            )

    def enough_requests(self, problem: Problem) -> int:
        """Half of the groups that a run begins with are answered at once."""
        return max(1, self.groups_per_actor * problem.num_actors // 2)


def build(config: Config, problem: Problem) -> Topology:
    problem.require_actions("r2d2", "discrete")
    network = problem.network("q", config.loss)
    environments = problem.environments(config.groups_per_actor)
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments)
    num_groups = config.groups_per_actor * problem.num_actors
    table = SequenceTable(config.replay, layout, config.loss, problem.frame_stack)

    topology = Topology(network)
    weights = topology.board("weights", network)
    trajectories = topology.queue("trajectories", layout, 3 * num_groups)
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
    explore = config.exploration.greedy(num_groups * environments.width)
    policy = BatchedPolicy(network, weights.source(), explore, problem.compute.device)
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
            add_replay(topology, trajectories, table),
            R2D2(config.loss),
            LocalOptimizer(config.optimizer),
            weights.source(),
            weights.sink,
            decay=config.optimizer.decays_over(problem.schedule),
            compute=problem.compute,
        ),
    )
    topology.colocate(*topology.of("inference", "replay", "learner"), threads=True)
    return topology


ARCHITECTURE = Architecture(
    "r2d2",
    Config,
    build,
    presets("r2d2", Config()),
    central_inference=True,
    takes_external=True,
    clips_atari_rewards=False,
)
