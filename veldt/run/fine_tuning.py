# SPDX-License-Identifier: Apache-2.0
"""`--from RUN[:checkpoint]`: the weights and statistics that a fine-tuned run begins with."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, cast

import torch

from veldt.networks import FirstWeights, FlatParameters, tensors_of
from veldt.networks.factory import Part
from veldt.options import RunOptions
from veldt.run.best import BEST
from veldt.run.directory import CONFIG_FILE
from veldt.run.home import local_run
from veldt.run.loading import LAST, restored
from veldt.run.plan import Plan

ORIGIN = "from"
"""The entry of config.json that says where weights came from."""


def first_weights(options: RunOptions, trust_code: bool = False) -> FirstWeights | None:
    """What the run named by `from_run` has learned; None where none is named. Its environment need
    not be there."""
    if options.from_run is None:
        return None
    run_dir, checkpoint, part = _split(options.from_run)
    run = local_run(run_dir, checkpoint)
    found = restored(run, checkpoint, trust_code=trust_code, without_environment=True)
    factory = found.plan.topology.network
    flat = FlatParameters(factory.blank())
    flat.load(torch.from_numpy(found.weights.vector))
    tensors = {name: entry.detach().numpy() for name, entry in tensors_of(flat.module).items()}
    return FirstWeights(
        options.from_run,
        tensors,
        factory.config,
        factory.spec,
        factory.head,
        part,
        env_steps=found.env_steps,
        sha256=hashlib.sha256(found.weights.vector.tobytes()).hexdigest(),
    )


def _split(given: str) -> tuple[str, str, Part]:
    """RUN_DIR, the checkpoint [best] and the part [all] of RUN_DIR:CHECKPOINT:encoder."""
    run_dir, part, ending = given, cast(Part, "all"), ":encoder"
    if given.endswith(ending):
        run_dir, part = given.removesuffix(ending), cast(Part, "encoder")
    folder, colon, checkpoint = run_dir.rpartition(":")
    if colon and (checkpoint in (BEST, LAST) or checkpoint.isdecimal()):
        return folder, checkpoint, part
    return run_dir, BEST, part


def origin(plan: Plan) -> dict[str, Any] | None:
    """For config.json: where the first weights are from."""
    first = plan.problem.first
    if first is None:
        return None
    return {
        "run": first.run,
        "part": first.part,
        "env_steps": first.env_steps,
        "parameters_sha256": first.sha256,
    }


def recorded_origin(run_dir: Path) -> dict[str, Any] | None:
    """The same of a run that is resumed, which does not look for these weights again."""
    try:
        found = json.loads((run_dir / CONFIG_FILE).read_text(encoding="utf-8")).get(ORIGIN)
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, dict) else None
