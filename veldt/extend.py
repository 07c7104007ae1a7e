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
from veldt.losses.actor_critic import ActorCritic, ActorCriticOptions
from veldt.losses.ppo import PPO, Appo, ClippedOptions, PPOOptions, SynchronousOptions
from veldt.losses.q_learning import QLearning, QLearningOptions
from veldt.networks import FlatParameters, Network, NetworkFactory
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
    "ClippedOptions",
    "PPO",
    "PPOOptions",
    "SynchronousOptions",
    "Architecture",
    "Arrays",
    "Batch",
    "BatchRule",
    "BatchedPolicy",
    "Board",
    "Bounds",
    "Compute",
    "ConfigurationError",
    "Count",
    "CountOrNone",
    "Decay",
    "End",
    "EnvironmentFactory",
    "EnvironmentSpec",
    "Environments",
    "EpsilonGreedy",
    "EpsilonOptions",
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
    "Network",
    "NetworkFactory",
    "Node",
    "NodeContext",
    "NotNegative",
    "Objective",
    "ObservationLeaf",
    "OptimizerOptions",
    "Options",
    "ParameterSink",
    "ParameterSource",
    "Parameters",
    "Part",
    "Policy",
    "PolicyReply",
    "Positive",
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
    "RequestServer",
    "Requests",
    "Role",
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
    "Tensors",
    "Topology",
    "UniformTable",
    "add_parameter_server",
    "changed",
    "hogwild_workers",
    "recurrent_memory",
    "stream_layouts",
    "synchronous_group",
]
