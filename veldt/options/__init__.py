# SPDX-License-Identifier: Apache-2.0
"""The options common to every architecture. The command line is generated from these fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from veldt.errors import ConfigurationError
from veldt.options.checked import Bounds, Count, CountOrNone, Options, Positive

Backend = Literal["serial", "process", "ray"]
Tracker = Literal["auto", "tensorboard", "wandb", "mlflow", "none"]
BACKENDS: tuple[str, ...] = get_args(Backend)
ENCODERS = ("auto", "mlp", "nature", "resnet", "small_conv")
DEFAULT_ENV_STEPS = 1_000_000
Steps = Annotated[int, Bounds(1, 1e15)]


@dataclass(frozen=True)
class RunOptions(Options):
    """What to run, for how long, and where."""

    env: str | Callable[..., object]
    """Gymnasium id, ALE/..., envpool:..., veldt:... or pettingzoo:... (games of several players),
    or module:function that makes an environment."""
    backend: Backend = "process"
    """Where nodes run: serial (one thread, deterministic), process (shared memory) or ray."""
    seed: Annotated[int, Bounds(0, 2**63, below=True)] = 0
    """Fixes weights, environments and exploration; on serial every bit of the run."""
    run_dir: str | None = None
    """Where results go; default: runs/<architecture>-<env>-<time>. A URL (s3://..., gs://...,
    file://...): written on this machine and uploaded while it goes on; needs the extra remote."""
    local_dir: str | None = None
    """Where a run whose run_dir is a URL is written on this machine; default:
    ~/.cache/veldt/runs/<name>."""
    resume: Literal["auto", "never"] | None = None
    """If run_dir already holds a run. auto: one of the same options goes on from its newest
    checkpoint; never: refuse. Default: auto for a URL, never on this machine."""
    store_seconds: Positive = 60.0
    """How long the store of a URL is waited for: at the start for an answer, at the end for the
    last upload; training never waits."""
    total_env_steps: Steps | None = None
    """Stop after this many environment steps (1,000,000 if no other end is given)."""
    max_seconds: Positive | None = None
    """Stop after this many seconds."""
    target_return: float | None = None
    """Stop when fresh evaluation episodes reach it: those played once the last 100 training
    episodes do, or two rounds of those played every few seconds (process, ray)."""
    from_run: str | None = field(default=None, metadata={"flag": "--from"})
    """Fine-tune: begin with the weights of RUN_DIR, or RUN_DIR:best|last|ENV_STEPS [best]."""
    from_part: Literal["all", "encoder"] = "all"
    """What is taken from there: all, or the encoder with its normaliser; the rest is drawn."""
    num_actors: Annotated[int, Bounds(1, 4096)] | None = None
    """Actors; default: from the number of cores."""
    envs_per_actor: Annotated[int, Bounds(1, 65_536)] | None = None
    """Environments each actor steps together; default: by its kind and the preset."""
    extra_lag: Annotated[int, Bounds(0, 10_000)] = 0
    """For experiments: actors act with weights this many updates older than the newest."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where learning happens: auto, cpu or cuda. auto: cuda, if there is one, for images, own
    networks and layers of 512 or more; on smaller ones a core is faster."""
    learner_devices: tuple[str, ...] = ()
    """Where each learner computes, one device for each: cuda:0,cuda:1; default: --device."""
    inference_device: str | None = None
    """Where an inference server computes: cpu, cuda or cuda:2; default: --device."""
    learner_threads: Annotated[int, Bounds(1, 1024)] | None = None
    """CPU threads of the learner; default: 1, or for images a core each, up to 8, where the actors
    wait while it learns, and one while other programs want these cores."""
    preset: str = "auto"
    """auto (by the kind of task, which its spaces tell), or a preset of the architecture."""
    network: str | Callable[..., object] = "auto"
    """auto, mlp, nature, resnet, small_conv, or module:function that makes an nn.Module."""
    hidden_sizes: tuple[Annotated[int, Bounds(1, 65_536)], ...] = (64, 64)
    """Widths of the MLP's layers, comma separated."""
    activation: Literal["tanh", "relu"] = "tanh"
    """tanh or relu in MLPs."""
    image_activation: Literal["relu", "elu"] = "relu"
    """relu or elu in convolutional networks but the ResNet."""
    image_precision: Literal["auto", "float32"] = "auto"
    """auto or float32. auto: large images are convolved in bfloat16 where that is faster, on CUDA
    and on CPUs that multiply it; serial and evaluations always use float32."""
    recurrent: Literal["none", "lstm", "gru"] = "none"
    """none, lstm or gru."""
    recurrent_size: Annotated[int, Bounds(1, 65_536)] = 128
    """Width of the recurrent core."""
    last_action_and_reward: bool = False
    """Feed the last action and reward to the network."""
    distribution: Literal["auto", "gaussian", "tanh_gaussian"] = "auto"
    """For Box actions: auto, gaussian or tanh_gaussian."""
    vectorization: Literal["auto", "native", "in_process", "subprocess"] = "auto"
    """auto, native, in_process or subprocess."""
    frame_stack: Annotated[int, Bounds(1, 256)] = 1
    """Join this many last observations."""
    time_limit: Count | None = None
    """End episodes by truncation after this many steps."""
    reward_clip: Positive | None = None
    """Clip learned-from rewards to +- this; default: 1 in Atari games, elsewhere none."""
    env_options: dict[str, object] = field(default_factory=dict)
    """Keyword arguments of the environment: key=value, comma separated."""
    checkpoint_seconds: Positive = 60.0
    """Seconds between two checkpoints (process and ray)."""
    checkpoint_env_steps: Steps = 500_000
    """Env steps between two checkpoints (serial, where episodes begin anew at each)."""
    keep_checkpoints: Annotated[int, Bounds(2, 10_000)] = 2
    """Newest checkpoints that stay; the best weights are kept besides, in RUN_DIR/best."""
    hang_seconds: Positive = 60.0
    """A node that is silent for so long is replaced (process)."""
    evaluation_episodes: CountOrNone = 20
    """Fresh episodes that confirm a target, and that close a run; 0: none at the end."""
    timeline: Annotated[float, Bounds(0, 60, above=True)] | None = None
    """Record for so many seconds, once the run has settled, when each node did what: timeline.json
    (opens in Perfetto)."""
    dashboard: bool = False
    """Serve a live page of the run on this machine while it goes; needs the extra dashboard."""
    port: Annotated[int, Bounds(0, 65_535)] = 0
    """Port of the live page; 0: any that is free."""
    trackers: tuple[Tracker, ...] = ("auto",)
    """Where metrics go besides metrics.jsonl, comma separated: tensorboard, wandb, mlflow, or none;
    auto: TensorBoard event files where tensorboard is installed."""
    quiet: bool = False
    """Print nothing but errors."""
    json: bool = False
    """Print progress and result as JSON lines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.from_part != "all" and self.from_run is None:
            raise ConfigurationError("from_part says what is taken of a run; name it with --from")
        if self.target_return is not None and self.evaluation_episodes < 1:
            raise ConfigurationError("target_return needs evaluation_episodes of 1 or more")
