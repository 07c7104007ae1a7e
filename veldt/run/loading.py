# SPDX-License-Identifier: Apache-2.0
"""From a run directory to a plan and the weights of one of its checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from veldt.checkpoints.store import Checkpoint, CheckpointError, CheckpointStore
from veldt.environments.lookup import one_line
from veldt.errors import ConfigurationError
from veldt.networks import FirstWeights, FlatParameters, tensors_of
from veldt.run.best import BEST
from veldt.run.checkpoints import weights_in
from veldt.run.config_files import CONFIG_FILE, saved_options
from veldt.run.description import changed_space, saved_environment
from veldt.run.directory import CHECKPOINTS
from veldt.run.plan import Plan, make_plan
from veldt.types import Parameters

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
    checkpoint: str | int = BEST,
    *,
    policy: int | None = None,
    env: str | None = None,
    trust_code: bool = False,
    without_environment: bool = False,
) -> Restored:
    """A plan for the CPU of this machine, and the weights of a checkpoint; as `veldt.evaluate`.

    With `without_environment` the recorded spaces are used, and it need not be installed."""
    # The best weights are those of one policy; the others are in complete checkpoints.
    is_other = policy is not None and checkpoint == BEST
    found = find_checkpoint(run_dir, LAST if is_other else checkpoint)
    try:
        architecture, options, own = saved_options(run_dir, trust_code)
        weights = weights_in(found, policy)
        env_steps = int(found.meta["env_steps"])
        known = None
        if without_environment:
            stored = json.loads((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
            known = saved_environment(stored)
    except ConfigurationError:
        raise
    except (KeyError, TypeError, ValueError, CheckpointError) as error:
        raise ConfigurationError(
            f"{run_dir} cannot be read ({one_line(error)}); was it written by this version?"
        ) from error
    for name in (options.network, *([] if known else [env or options.env])):
        module, _, function = str(name).partition(":")
        if module == "__main__" or "<" in function:
            raise ConfigurationError(
                f"the run used {name}, which cannot be imported here; define it at the top level of"
                " a module and train with module:function to evaluate later"
            )
    options = replace(options, backend="serial", device="cpu", run_dir=None)
    if env is not None:
        options = replace(options, env=env, env_options={})
    plan = make_plan(architecture, options, own, known)
    changed = changed_space(run_dir, plan.problem.spec) if env is not None else None
    if changed is not None:
        what, before, now = changed
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


def find_checkpoint(run_dir: Path, which: str | int = LAST) -> Checkpoint:
    """The checkpoint "last", "best", or that of a number of env steps."""
    if not (run_dir / CONFIG_FILE).is_file():
        raise ConfigurationError(
            f"{run_dir} is not a run directory: it has no {CONFIG_FILE}; give the directory that"
            " 'veldt train' printed"
        )
    stored = CheckpointStore(run_dir / CHECKPOINTS)
    try:
        best = CheckpointStore(run_dir / BEST).newest()
        if which in (LAST, BEST):
            # No weights are known to be best before 100 episodes have ended.
            found = best if which == BEST and best is not None else stored.newest()
        elif str(which).isdecimal() and int(which) in stored.steps():
            return stored.at(int(which))
        elif best is not None and str(best.meta["env_steps"]) == str(which):
            return best
        else:
            known = ", ".join(map(str, stored.steps())) or "none"
            raise ConfigurationError(
                f"{run_dir} has no checkpoint '{which}'; use best, last, or the env steps of one"
                f" that is there: {known}"
            )
    except CheckpointError as error:
        raise ConfigurationError(str(error)) from error
    if found is None:
        raise ConfigurationError(
            f"{run_dir} has no checkpoint yet; wait for the first one or let the run end"
        )
    return found


def first_weights(
    from_run: str, locate: Callable[[str, str], Path], trust_code: bool = False
) -> FirstWeights:
    """The weights and statistics of RUN[:CHECKPOINT][:encoder]: of its best checkpoint, and all.

    `locate` gives the directory on this machine from the run and the checkpoint."""
    given = re.fullmatch(rf"(.*?)(?::({BEST}|{LAST}|\d+))?(:encoder)?", from_run, re.DOTALL)
    assert given is not None  # every text matches
    checkpoint = given[2] or BEST
    run_dir = locate(given[1], checkpoint)
    found = restored(run_dir, checkpoint, trust_code=trust_code, without_environment=True)
    factory = found.plan.topology.network
    flat = FlatParameters(factory.blank())
    flat.load(torch.from_numpy(found.weights.vector))
    tensors = {name: entry.detach().numpy() for name, entry in tensors_of(flat.module).items()}
    return FirstWeights(
        from_run,
        tensors,
        factory.config,
        factory.spec,
        factory.head,
        "encoder" if given[3] else "all",
    )
