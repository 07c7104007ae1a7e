# SPDX-License-Identifier: Apache-2.0
"""A run in words that can be read back: what config.json says."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from veldt.run.plan import Plan


def describe_plan(plan: Plan) -> dict[str, Any]:
    """The full resolved configuration, as written to config.json."""
    options = {entry.name: getattr(plan.options, entry.name) for entry in fields(plan.options)}
    options["env"] = plan.problem.environment.name
    if callable(options["network"]):
        function = getattr(options["network"], "func", options["network"])
        options["network"] = f"{function.__module__}:{function.__qualname__}"
    options["num_actors"] = plan.problem.num_actors
    options["envs_per_actor"] = plan.problem.envs_per_actor
    options["reward_clip"] = plan.problem.environment.reward_clip
    return {
        "architecture": plan.architecture,
        "options": options,
        "config": asdict(plan.config),
        "device": plan.problem.device,
        "parameters": plan.topology.num_weights,
    }
