# SPDX-License-Identifier: Apache-2.0
"""The options common to every architecture. The command line is generated from these fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

BACKENDS = ("serial", "process", "ray")
DEVICES = ("auto", "cpu", "cuda")
CHOICES = {
    "backend": BACKENDS,
    "device": DEVICES,
    "network": ("auto", "mlp", "nature", "resnet", "small_conv"),
    "activation": ("tanh", "relu"),
    "recurrent": ("none", "lstm", "gru"),
    "distribution": ("auto", "gaussian", "tanh_gaussian"),
    "vectorization": ("auto", "native", "in_process", "subprocess"),
}
"""What help and shell completion offer; whoever uses an option checks it."""
DEFAULT_ENV_STEPS = 1_000_000


@dataclass(frozen=True)
class RunOptions:
    """What to run, for how long, and where."""

    env: str | Callable[..., Any]
    """Gymnasium id, ALE/..., envpool:..., or module:function that makes an environment."""
    backend: str = "process"
    """Where nodes run: serial (one thread, deterministic), process (shared memory) or ray."""
    seed: int = 0
    """Fixes weights, environments and exploration; on serial every bit of the run."""
    run_dir: str | None = None
    """Where results go; default: runs/<architecture>-<env>-<time>."""
    total_env_steps: int | None = None
    """Stop after this many environment steps (1,000,000 if no other end is given)."""
    max_seconds: float | None = None
    """Stop after this many seconds."""
    target_return: float | None = None
    """Stop when the last 100 training episodes and 20 fresh evaluation episodes both reach it."""
    num_actors: int | None = None
    """Actors; default: from the number of cores."""
    envs_per_actor: int | None = None
    """Environments each actor steps together; default: from a quick measurement."""
    extra_lag: int = 0
    """For experiments: actors act with weights this many updates older than the newest."""
    autotune: bool = False
    """Try actors, environments per actor and batch for some seconds each, then use the fastest."""
    autotune_seconds: float = 3.0
    """How long each setting is tried."""
    device: str = "auto"
    """Where learning happens: auto, cpu or cuda. auto: cuda, if there is one, for images, own
    networks and layers of 512 or more; on smaller ones a core is faster."""
    learner_threads: int = 1
    """CPU threads of the learner."""
    preset: str = "auto"
    """auto (atari for images, else control), or a preset of the architecture."""
    network: str | Callable[..., Any] = "auto"
    """auto, mlp, nature, resnet, small_conv, or module:function that makes an nn.Module."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the MLP's layers, comma separated."""
    activation: str = "tanh"
    """tanh or relu in MLPs."""
    recurrent: str = "none"
    """none, lstm or gru."""
    recurrent_size: int = 128
    """Width of the recurrent core."""
    last_action_and_reward: bool = False
    """Feed the last action and reward to the network."""
    distribution: str = "auto"
    """For Box actions: auto, gaussian or tanh_gaussian."""
    normalize_observations: bool = False
    """Scale observations by statistics shared by all actors."""
    vectorization: str = "auto"
    """auto, native, in_process or subprocess."""
    frame_stack: int = 1
    """Join this many last observations."""
    time_limit: int | None = None
    """End episodes by truncation after this many steps."""
    reward_clip: float | None = None
    """Clip learned-from rewards to +- this (atari preset: 1)."""
    env_options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment: key=value, comma separated."""
    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints (process and ray)."""
    checkpoint_env_steps: int = 500_000
    """Env steps between two checkpoints (serial, where episodes begin anew at each)."""
    hang_seconds: float = 60.0
    """A node that is silent for so long is replaced (process)."""
    chaos: str | None = None
    """SEED,RATE: kill, stop and delay nodes about RATE times per second (process)."""
    chaos_spares: str = "learner"
    """Kinds of nodes that chaos leaves alone, comma separated."""
    evaluation_episodes: int = 20
    """Fresh episodes that confirm a target, and that close a run; 0: none at the end."""
    dashboard: bool = False
    """Serve a live page of the run on this machine while it goes; needs the extra dashboard."""
    port: int = 0
    """Port of the live page; 0: any that is free."""
    quiet: bool = False
    """Print nothing but errors."""
    json: bool = False
    """Print progress and result as JSON lines."""
