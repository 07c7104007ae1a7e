# SPDX-License-Identifier: Apache-2.0
"""A run in words that can be read back: what config.json says, and what must still be true when the
run is resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from veldt.environments import Interface
from veldt.environments.spaces import action_spec, described, leaf_readers, space_from, stacked
from veldt.errors import ConfigurationError
from veldt.options.fields import flat, plain
from veldt.run.directory import CONFIG_FILE
from veldt.run.plan import Plan
from veldt.run.trust import code_of
from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.progress import RunGoal
from veldt.types import EnvironmentSpec


def describe_plan(plan: Plan) -> dict[str, Any]:
    """The full resolved configuration, as written to config.json."""
    options = {entry.name: getattr(plan.options, entry.name) for entry in fields(plan.options)}
    options["env"] = plan.problem.environment.name
    if callable(options["network"]):
        function = getattr(options["network"], "func", options["network"])
        options["network"] = f"{function.__module__}:{function.__qualname__}"
    options["num_actors"] = plan.problem.num_actors
    options["envs_per_actor"] = plan.problem.envs_per_actor
    reward_clip = plan.problem.environment.reward_clip
    options["wrappers"] = replace(plan.options.wrappers, reward_clip=reward_clip)
    return {
        "architecture": plan.architecture,
        "options": plain(options),
        "config": plain(flat(plan.config)),
        "chosen": choices(plan),
        "device": plan.problem.compute.device,
        "parameters": plan.topology.num_weights,
        "spaces": _spaces(plan.problem.spec),
        "environment": _environment(plan),
        "code": code_of(plan.architecture, options["env"], options["network"]),
    }


def choices(plan: Plan) -> dict[str, Any]:
    """What was chosen for this task and machine where the user left it open."""
    return {
        "family": plan.family,
        "preset": plan.preset,
        "num_actors": plan.problem.num_actors,
        "envs_per_actor": plan.problem.envs_per_actor,
        "rows_per_update": plan.rows_per_update(),
        "hidden_sizes": list(plan.topology.network.config.hidden_sizes),
        "parameters": plan.topology.num_weights,
    }


def choices_line(plan: Plan) -> str:
    """The same in a line."""
    problem = plan.problem
    noun = "place" if problem.environment.is_external else "actor"
    actors = f"{plan.problem.num_actors} {noun}{'s' if problem.num_actors > 1 else ''}"
    return (
        f"{plan.architecture} on {plan.family}: preset {plan.preset}, {actors} x"
        f" {problem.envs_per_actor} environments, {plan.rows_per_update():,} rows per update,"
        f" {plan.topology.num_weights:,} weights on {problem.compute.device}"
    )


def _environment(plan: Plan) -> dict[str, Any]:
    """What `remembered` reads."""
    interface, spec = plan.problem.environment.interface(), plan.problem.spec
    return {
        "observation_space": described(interface.observation_space),
        "action_space": described(interface.action_space),
        "mask_in_observation": interface.mask_in_observation,
        "frame_stack": interface.frame_stack,
        "action_mask_size": spec.action_mask_size,
        "same_step_reset": spec.same_step_reset,
        "frames_per_step": spec.frames_per_step,
        "rows_per_env_step": spec.rows_per_env_step,
    }


def remembered(stored: dict[str, Any]) -> tuple[EnvironmentSpec, Interface] | None:
    """The environment as config.json describes it; None where it does not."""
    found = stored.get("environment")
    if found is None:
        return None
    interface = Interface(
        space_from(found["observation_space"]),
        space_from(found["action_space"]),
        found["mask_in_observation"],
        found["frame_stack"],
    )
    readers = leaf_readers(interface.observation_space, interface.mask_in_observation)
    spec = EnvironmentSpec(
        str(stored["options"]["env"]),
        tuple(stacked(reader.leaf, interface.frame_stack) for reader in readers),
        action_spec(interface.action_space),
        found["action_mask_size"],
        found["same_step_reset"],
        found["frames_per_step"],
        found.get("rows_per_env_step", 1),
    )
    return spec, interface


def check_spaces(run_dir: Path, plan: Plan) -> None:
    """Refuse an environment that observes or acts otherwise than when the run began."""
    for what, before, now in other_spaces(run_dir, plan.problem.spec):
        raise ConfigurationError(
            f"the {what} of the environment '{plan.problem.environment.name}' has changed since"
            f" the run began, from {before} to {now}; train anew with another --run-dir"
        )


def other_spaces(run_dir: Path, spec: EnvironmentSpec) -> Iterator[tuple[str, str, str]]:
    """Where an environment differs from the run's: observation or action, then and now."""
    try:
        before = json.loads((run_dir / CONFIG_FILE).read_text(encoding="utf-8")).get("spaces")
    except (OSError, ValueError, AttributeError):
        return  # it was written before this was kept
    now = _spaces(spec)
    for what in now if isinstance(before, dict) else ():
        if before.get(what) != now[what]:
            yield what, str(before.get(what)), now[what]


def telemetry_of(plan: Plan) -> RunTelemetry:
    on_serial = plan.options.backend == "serial"
    take_turns = [
        node.name
        for group in plan.topology.groups()
        if on_serial or (len(group.nodes) > 1 and not group.threads)
        for node in group.nodes
    ]
    nodes = [(node.name, node.kind) for node in plan.topology.nodes]
    return RunTelemetry(nodes, take_turns)


def goal_of(plan: Plan) -> RunGoal:
    return RunGoal(
        plan.architecture,
        plan.problem.environment.name,
        plan.options.backend,
        plan.options.seed,
        plan.options.target_return,
        plan.options.total_env_steps,
        plan.options.max_seconds,
    )


def _spaces(spec: EnvironmentSpec) -> dict[str, str]:
    return {"observation": spec.observed(), "action": spec.acted()}
