# SPDX-License-Identifier: Apache-2.0
"""Errors in the input of a user, and their messages."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from types import ModuleType


class ConfigurationError(ValueError):
    """Invalid input. The message names the remedy; the command line exits with code 2."""


class UploadFailure(RuntimeError):  # noqa: N818 - a public name
    """A run has ended, but its store lacks some of its files."""


def text_of(error: BaseException) -> str:
    """The text of an error, also of one that has none because its `__str__` raises."""
    try:
        return str(error)
    except Exception as another:
        return f"(its text cannot be read: {type(another).__name__})"


def install(extra: str) -> str:
    """The command that installs an extra: of the installed Veldt, else of the tree it runs from."""
    try:
        metadata.distribution("veldt")  # then pip takes the extra's libraries from its metadata
    except metadata.PackageNotFoundError:
        return f'pip install -e "{Path(__file__).parents[1]}[{extra}]"'
    return f'pip install "veldt[{extra}]"'


def extra_module(module: str, need: str, extra: str) -> ModuleType:
    """Import a library of an extra of Veldt; `need` says what for, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(f"{need}; run: {install(extra)}") from error


def nearest(given: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names that are most similar to `given`; empty if none is."""
    return difflib.get_close_matches(given, list(known), n=most)


_ALSO_CALLED = {
    "batch_size": "minibatches",
    "buffer_size": "replay_transitions",
    "clip_coef": "ppo_clip",
    "clip_param": "ppo_clip",
    "clip_range": "ppo_clip",
    "cuda": "device cuda",
    "ent_coef": "entropy_coefficient",
    "env_kwargs": "env_options",
    "eval_freq": "evaluate_every",
    "from": "from_run",
    "frame_stack": "wrappers frame_stack=4",
    "gae_lambda": "trace_lambda",
    "gpu": "device cuda",
    "lambda": "trace_lambda",
    "learning_starts": "min_replay_transitions",
    "load": "from_run",
    "log_dir": "run_dir",
    "logdir": "run_dir",
    "lr": "learning_rate",
    "lstm": "recurrent lstm",
    "minibatch_size": "minibatches",
    "max_episode_steps": "wrappers time_limit=500",
    "n_envs": "num_envs|envs_per_actor",
    "n_epochs": "epochs",
    "n_steps": "trajectory_steps",
    "net_arch": "network_options hidden_sizes=64x64",
    "num_env_steps": "total_env_steps",
    "n_timesteps": "total_env_steps",
    "num_env_runners": "num_actors",
    "num_envs": "envs_per_actor",
    "num_epochs": "epochs",
    "num_gpus": "device cuda",
    "num_minibatches": "minibatches",
    "num_sgd_iter": "epochs",
    "num_steps": "trajectory_steps",
    "num_workers": "num_actors",
    "policy_kwargs": "network_options hidden_sizes=64x64",
    "reward_clip": "wrappers reward_clip=1",
    "rollout": "trajectory_steps",
    "rollout_fragment_length": "trajectory_steps",
    "save_freq": "checkpoint_options seconds=60",
    "tau": "soft_update",
    "tensorboard_log": "run_dir",
    "timesteps": "total_env_steps",
    "track": "trackers wandb",
    "train_for_env_steps": "total_env_steps",
    "value_coef": "loss_options value_coefficient=0.5",
    "vf_coef": "loss_options value_coefficient=0.5",
    "wandb": "trackers wandb",
}
"""Options by their names in other libraries, some with an example of a value. Of two, the first
that the system has."""


def did_you_mean(given: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The remedy for an unknown name: the nearest known one, or `otherwise`."""
    known = list(known)
    names, _, value = _ALSO_CALLED.get(given.lstrip("-").replace("-", "_"), "").partition(" ")
    spellings = [
        spelt for each in names.split("|") for spelt in (each, "--" + each.replace("_", "-"))
    ]
    same = [f"{each} {value}".rstrip() for each in spellings if each in known]
    if near := same or ([] if names else nearest(given, known)):
        return f"did you mean {near[0]}?"
    return otherwise or f"there are {', '.join(known)}"
