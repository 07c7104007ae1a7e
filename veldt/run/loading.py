# SPDX-License-Identifier: Apache-2.0
"""From a run directory to a plan and the weights of one of its checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from veldt.checkpoints.store import Checkpoint, CheckpointError, CheckpointStore
from veldt.environments import Interface
from veldt.environments.lookup import one_line
from veldt.errors import ConfigurationError
from veldt.policy import TrainedPolicy
from veldt.run.best import BEST
from veldt.run.checkpoints import weights_in
from veldt.run.description import other_spaces, remembered
from veldt.run.directory import CHECKPOINTS, CONFIG_FILE
from veldt.run.plan import Plan, make_plan
from veldt.run.saved_options import saved_options
from veldt.types import EnvironmentSpec, Parameters

LAST = "last"


@dataclass(frozen=True)
class Restored:
    """What was trained, as it was at one checkpoint."""

    plan: Plan
    weights: Parameters
    env_steps: int
    """Age of the weights: env steps of training before the checkpoint."""


def restored(
    run_dir: Path,
    checkpoint: str | int = LAST,
    *,
    policy: int | None = None,
    env: str | None = None,
    trust_code: bool = False,
    without_environment: bool = False,
) -> Restored:
    """The plan for this machine, whatever the run's was, and the weights of a checkpoint: "last",
    "best", or the env steps it was made at. `env`: another environment of the same spaces.
    `without_environment`: believe what the run has written about it, so that it need not be
    there."""
    found = find_checkpoint(run_dir, checkpoint)
    try:
        architecture, options, own = saved_options(run_dir, trust_code)
        weights = weights_in(found, policy)
        env_steps = int(found.meta["env_steps"])
        known = _remembered(run_dir) if without_environment else None
    except ConfigurationError:
        raise
    except (KeyError, TypeError, ValueError, CheckpointError) as error:
        raise ConfigurationError(
            f"{run_dir} cannot be read ({one_line(error)}); was it written by this version?"
        ) from error
    named = [options.network, *([] if known else [options.env if env is None else env])]
    for name in named:
        module, _, function = str(name).partition(":")
        if module == "__main__" or "<" in function:
            raise ConfigurationError(
                f"the run used {name}, which cannot be imported here; define it at the top level of"
                " a module and train with module:function to evaluate later"
            )
    options = replace(
        options,
        backend="serial",
        device="cpu",
        run_dir=None,
    )
    if env is not None:
        options = replace(options, env=env, env_options={})
    plan = make_plan(architecture, options, own, known)
    for what, before, now in other_spaces(run_dir, plan.problem.spec) if env is not None else ():
        raise ConfigurationError(
            f"{env} does not fit what was trained: its {what} is {now}, not {before}; name an"
            " environment of the same spaces"
        )
    expected = plan.topology.num_weights
    if weights.vector.size != expected:
        raise ConfigurationError(
            f"the checkpoint has {weights.vector.size:,} weights but {CONFIG_FILE} describes"
            f" {expected:,}; the environment or the network has changed since"
        )
    return Restored(plan, weights, env_steps)


def loaded(
    run_dir: Path,
    checkpoint: str | int = BEST,
    policy: int | None = None,
    seed: int = 0,
    trust_code: bool = False,
) -> TrainedPolicy:
    """The policy at a checkpoint, without the environment."""
    found = restored(
        run_dir, checkpoint, policy=policy, trust_code=trust_code, without_environment=True
    )
    environment = found.plan.problem.environment
    return TrainedPolicy(
        found.plan.topology.network,
        found.weights,
        environment.interface(),
        architecture=found.plan.architecture,
        env=environment.name,
        env_steps=found.env_steps,
        seed=seed,
    )


def _remembered(run_dir: Path) -> tuple[EnvironmentSpec, Interface] | None:
    return remembered(json.loads((run_dir / CONFIG_FILE).read_text(encoding="utf-8")))


def find_checkpoint(run_dir: Path, which: str | int = LAST) -> Checkpoint:
    """ "last", "best", or that of so many env steps."""
    if not (run_dir / CONFIG_FILE).is_file():
        raise ConfigurationError(
            f"{run_dir} is not a run directory: it has no {CONFIG_FILE}; give the directory that"
            " 'veldt train' printed"
        )
    stored = CheckpointStore(run_dir / CHECKPOINTS)
    try:
        best = CheckpointStore(run_dir / BEST).newest()
        found = stored.newest() if which in (LAST, BEST) else _at(stored, best, run_dir, which)
    except CheckpointError as error:
        raise ConfigurationError(str(error)) from error
    # Before 100 episodes have ended nobody can say which weights are best.
    found = best or found if which == BEST else found
    if found is None:
        raise ConfigurationError(
            f"{run_dir} has no checkpoint yet; wait for the first one or let the run end"
        )
    return found


def _at(
    stored: CheckpointStore, best: Checkpoint | None, run_dir: Path, which: str | int
) -> Checkpoint:
    """The checkpoint made at so many env steps."""
    there = stored.steps()
    if str(which).isdecimal() and int(which) in there:
        return stored.at(int(which))
    if best is not None and str(best.meta["env_steps"]) == str(which):
        return best
    known = ", ".join(map(str, there)) or "none"
    raise ConfigurationError(
        f"{run_dir} has no checkpoint '{which}'; use best, last, or the env steps of one that is"
        f" there: {known}"
    )
