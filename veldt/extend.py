# SPDX-License-Identifier: Apache-2.0
"""The classes and functions to build architectures, roles, losses and policies from.

These names are stable: they change only with a new minor version and a line in CHANGELOG.md.
Everything else in the package may change at any time.
"""

from veldt.architectures import Architecture
from veldt.context import NodeContext
from veldt.devices import Compute
from veldt.environments import EnvironmentFactory, Environments
from veldt.errors import ConfigurationError
from veldt.losses import Loss, Objective, Tensors
from veldt.losses.actor_critic import ActorCritic, ActorCriticOptions, policy_gradient_loss
from veldt.losses.ppo import PPO, Appo, ClippedOptions, PPOOptions, SynchronousOptions
from veldt.losses.q_learning import QLearning, QLearningOptions
from veldt.losses.returns import Rows, n_step_returns, reduce_over_valid
from veldt.losses.trajectories import Evaluated, Minibatches, TrajectoryReader, select_rows
from veldt.losses.vtrace import Traces, VTrace, vtrace
from veldt.networks import FlatParameters, Network, NetworkFactory, PolicyValueNetwork
from veldt.networks.encoders import make_encoder
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import (
    Bounds,
    Count,
    CountOrNone,
    Decay,
    Fraction,
    NotNegative,
    Options,
    Positive,
)
from veldt.options.fields import changed
from veldt.options.presets import presets
from veldt.ports import (
    ExperiencePart,
    ExperienceSink,
    ExperienceSource,
    Gradient,
    GradientSink,
    ParameterSink,
    ParameterSource,
    Policy,
    RequestClient,
    RequestServer,
    StreamClient,
    StreamServer,
)
from veldt.problem import Problem
from veldt.role import Arrays, Part, Role
from veldt.roles.actor import Actor
from veldt.roles.gradients import LocalOptimizer, synchronous_group
from veldt.roles.hogwild import HogwildOptions, hogwild_workers
from veldt.roles.inference import BatchedPolicy, BatchRule, SharedMemoryInference, recurrent_memory
from veldt.roles.learner import Learner
from veldt.roles.pacing import Pacing
from veldt.roles.parameter_server import (
    RemoteGradients,
    ServerOptions,
    add_parameter_server,
)
from veldt.roles.policies import (
    LocalPolicy,
    ScratchSink,
    SharedMemoryPolicy,
    StreamPolicy,
    stream_layouts,
)
from veldt.roles.replay import (
    PrioritizedReplayOptions,
    PrioritizedSource,
    PrioritizedTable,
    Replay,
    ReplayOptions,
    UniformTable,
)
from veldt.roles.selection import (
    EpsilonGreedy,
    EpsilonOptions,
    LadderOptions,
    SampleActions,
    Selection,
)
from veldt.roles.stream_inference import StreamInference
from veldt.topology import Board, End, Node, Queue, Requests, Shared, Stream, Topology
from veldt.types import (
    ActionSpec,
    Batch,
    EnvironmentSpec,
    Field,
    Layout,
    ObservationLeaf,
    Parameters,
    PolicyReply,
    Slot,
)

__all__ = [
    "ActionSpec",
    "Actor",
    "ActorCritic",
    "ActorCriticOptions",
    "Appo",
    "Architecture",
    "Arrays",
    "Batch",
    "BatchedPolicy",
    "BatchRule",
    "Board",
    "Bounds",
    "ClippedOptions",
    "Compute",
    "ConfigurationError",
    "Count",
    "CountOrNone",
    "Decay",
    "End",
    "EnvironmentFactory",
    "Environments",
    "EnvironmentSpec",
    "EpsilonGreedy",
    "EpsilonOptions",
    "Evaluated",
    "ExperiencePart",
    "ExperienceSink",
    "ExperienceSource",
    "Field",
    "FlatParameters",
    "Fraction",
    "Gradient",
    "GradientSink",
    "HogwildOptions",
    "LadderOptions",
    "Layout",
    "Learner",
    "LocalOptimizer",
    "LocalPolicy",
    "Loss",
    "Minibatches",
    "Network",
    "NetworkFactory",
    "Node",
    "NodeContext",
    "NotNegative",
    "Objective",
    "ObservationLeaf",
    "OptimizerOptions",
    "Options",
    "Parameters",
    "ParameterSink",
    "Pacing",
    "ParameterSource",
    "Part",
    "Policy",
    "PolicyReply",
    "PolicyValueNetwork",
    "Positive",
    "PPO",
    "PPOOptions",
    "PrioritizedReplayOptions",
    "PrioritizedSource",
    "PrioritizedTable",
    "Problem",
    "QLearning",
    "QLearningOptions",
    "Queue",
    "RemoteGradients",
    "Replay",
    "ReplayOptions",
    "RequestClient",
    "Requests",
    "RequestServer",
    "Role",
    "Rows",
    "SampleActions",
    "ScratchSink",
    "Selection",
    "ServerOptions",
    "Shared",
    "SharedMemoryInference",
    "SharedMemoryPolicy",
    "Slot",
    "Stream",
    "StreamClient",
    "StreamInference",
    "StreamPolicy",
    "StreamServer",
    "SynchronousOptions",
    "Tensors",
    "Topology",
    "Traces",
    "TrajectoryReader",
    "UniformTable",
    "VTrace",
    "add_parameter_server",
    "changed",
    "hogwild_workers",
    "make_encoder",
    "n_step_returns",
    "policy_gradient_loss",
    "presets",
    "recurrent_memory",
    "reduce_over_valid",
    "select_rows",
    "stream_layouts",
    "synchronous_group",
    "vtrace",
]
