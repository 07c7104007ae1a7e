# SPDX-License-Identifier: Apache-2.0
"""The options common to every architecture. The command line is generated from these fields."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from veldt.errors import ConfigurationError
from veldt.options.checked import Bounds, Count, CountOrNone, KeyedOptions, Options, Positive

Backend = Literal["serial", "process", "ray"]
Tracker = Literal["auto", "tensorboard", "wandb", "mlflow", "none"]
Correction = Literal[
    "vtrace",
    "one_step",
    "epsilon",
    "none",
    "clip",
    "decoupled",
    "tis",
    "icepop",
    "m2po",
    "ess",
    "drop",
]
BACKENDS: tuple[str, ...] = get_args(Backend)
ENCODERS = ("auto", "mlp", "nature", "resnet", "small_conv")
DEFAULT_ENV_STEPS = 1_000_000
Steps = Annotated[int, Bounds(1, 1e15)]
Width = Annotated[int, Bounds(1, 65_536)]
_PERIOD = re.compile(r"(\d+(?:\.\d*)?(?:[eE]\d+)?)(s?)", re.ASCII)
_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?", re.ASCII)


@dataclass(frozen=True)
class Wrappers(KeyedOptions):
    """How Veldt wraps and steps environments."""

    frame_stack: Annotated[int, Bounds(1, 256)] = 1
    """observations joined into one"""
    time_limit: Count | None = None
    """truncate episodes after this many steps"""
    reward_clip: Positive | None = None
    """clip the rewards used for learning to +- this; by default 1 in Atari games, else none"""
    vectorization: Literal["auto", "in_process"] = "auto"
    """auto (the environment's own vector form if it has one) or in_process (copies)"""
    task_input: bool = False
    """with several environments: the network sees which one it plays"""
    policies: str = ""
    """in a PettingZoo game: networks for groups of agents, as wolf=a,b;sheep=c (* for any name)"""


@dataclass(frozen=True)
class NetworkDetails(KeyedOptions):
    """Sizes and inputs of the network."""

    hidden_sizes: tuple[Width, ...] = (64, 64)
    """widths of the MLP layers"""
    activation: Literal["tanh", "relu"] = "tanh"
    """of MLP layers: tanh or relu"""
    image_activation: Literal["relu", "elu"] = "relu"
    """of convolutional layers: relu or elu; the ResNet always uses relu"""
    image_precision: Literal["auto", "float32"] = "auto"
    """auto or float32; auto convolves large images in bfloat16 where that is faster"""
    recurrent_size: Width = 128
    """width of the recurrent core"""
    last_action_and_reward: bool = False
    """feed the last action and reward to the network"""
    distribution: Literal["auto", "gaussian", "tanh_gaussian"] = "auto"
    """for Box actions: auto (tanh_gaussian where the bounds are finite), gaussian or
    tanh_gaussian"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden_sizes:
            raise ConfigurationError("hidden_sizes needs at least one layer")


@dataclass(frozen=True)
class CheckpointOptions(KeyedOptions):
    """When checkpoints are saved, and how many are kept."""

    seconds: Positive = 60.0
    """between two checkpoints (process, ray)"""
    env_steps: Steps = 500_000
    """between two checkpoints (serial, where environments are reset at each)"""
    keep: Annotated[int, Bounds(2, 10_000)] = 2
    """newest checkpoints to keep; the best weights are kept besides, in RUN_DIR/best"""


@dataclass(frozen=True)
class RunOptions(Options):
    """What to run, for how long, and where."""

    env: str | Callable[..., object]
    """Gymnasium id, ALE/..., envpool:..., veldt:..., pettingzoo:... (games of several players), or
    module:function that makes an environment."""
    env_options: dict[str, object] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    wrappers: Wrappers = Wrappers()
    backend: Backend = "process"
    """Where nodes run: serial (one thread, deterministic), process (shared memory) or ray."""
    seed: Annotated[int, Bounds(0, 2**63, below=True)] = 0
    """Seed of weights, environments and exploration; fixes every bit of a serial run."""
    run_dir: str | None = None
    """Directory of the results; default: runs/<architecture>-<env>-<time>. A run with the same
    options that is already there is resumed. A URL (s3://..., gs://..., file://...) needs the extra
    remote."""
    total_env_steps: Steps | None = None
    """Stop after this many environment steps (1,000,000 if no other end is given)."""
    max_seconds: Positive | None = None
    """Stop after this many seconds."""
    target_return: float | None = None
    """Stop when fresh evaluation episodes reach this mean return."""
    from_run: str | None = field(default=None, metadata={"flag": "--from"})
    """Fine-tune: start from the weights of RUN_DIR, or RUN_DIR:best|last|ENV_STEPS [best]. With
    :encoder after it, only the encoder and its normaliser are taken."""
    num_actors: Annotated[int, Bounds(1, 4096)] | None = None
    """Actors; default: from the number of cores."""
    envs_per_actor: Annotated[int, Bounds(1, 65_536)] | None = None
    """Environments each actor steps together; default: from the environment and the preset."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N; or a list, one for each learner, then one for the inference
    server. auto: cuda, if present, for images, own networks and layers of 512 or more."""
    preset: str = "auto"
    """A preset of the architecture; auto: chosen from the observation and action spaces."""
    network: str | Callable[..., object] = "auto"
    """auto, mlp, nature, resnet, small_conv, or module:function that makes an nn.Module."""
    network_options: NetworkDetails = NetworkDetails()
    recurrent: Literal["none", "lstm", "gru"] = "none"
    """Recurrent core: none, lstm or gru."""
    checkpoint_options: CheckpointOptions = CheckpointOptions()
    evaluation_episodes: CountOrNone = 20
    """Fresh episodes that confirm a target and that are played at the end; 0: none at the end."""
    evaluate_every: Annotated[int, Bounds(1, 1e15)] | str | None = None
    """Evaluate during the run, every N env steps (50000) or seconds (60s): a learning curve
    without exploration."""
    extra_lag: Annotated[int, Bounds(0, 10_000)] = 0
    """For experiments: actors use weights this many updates older than the newest."""
    timeline: Annotated[float, Bounds(0, 60, above=True)] | None = None
    """Record for this many seconds what each node did when: timeline.json, for Perfetto."""
    trackers: tuple[Tracker, ...] = ("auto",)
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, mlflow or none; auto: TensorBoard
    event files where tensorboard is installed."""
    dashboard: bool | Annotated[int, Bounds(0, 65_535)] = False
    """Serve a live page of the run, on this port or any that is free; needs the extra dashboard."""
    quiet: bool = False
    """Print nothing but errors."""
    json: bool = False
    """Print progress and result as JSON lines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target_return is not None and self.evaluation_episodes < 1:
            raise ConfigurationError("target_return needs evaluation_episodes of 1 or more")
        if self.evaluation_period() is not None and self.evaluation_episodes < 1:
            raise ConfigurationError("evaluate_every needs evaluation_episodes of 1 or more")
        for name in self.devices() or ("cpu",):
            if _DEVICE.fullmatch(name) is None:
                raise ConfigurationError(
                    f"device is unknown: '{name}'; use auto, cpu, cuda, cuda:1 or a list of these"
                )

    def evaluation_period(self) -> tuple[float, bool] | None:
        """The period of `evaluate_every`, and whether it is in seconds; None without it."""
        if self.evaluate_every is None:
            return None
        found = _PERIOD.fullmatch(str(self.evaluate_every))
        if found is None or float(found[1]) <= 0.0:
            raise ConfigurationError(
                f"evaluate_every is '{self.evaluate_every}'; use env steps, such as 50000, or"
                " seconds with an s, such as 60s"
            )
        return float(found[1]), bool(found[2])

    def devices(self) -> tuple[str, ...]:
        """The devices that were named; none for auto."""
        return () if self.device == "auto" else tuple(self.device.split(","))
