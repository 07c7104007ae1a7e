# SPDX-License-Identifier: Apache-2.0
"""A run as data: the content of config.json, the command that repeats it, and its environment as
read back from there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from veldt.environments import Interface
from veldt.environments.spaces import action_spec, described, leaf_readers, space_from, stacked
from veldt.options.fields import flat, plain
from veldt.roles.learner import Learner
from veldt.run.config_files import CONFIG_FILE, code_hashes
from veldt.run.plan import Plan
from veldt.run.process import output_stream
from veldt.telemetry.progress import Progress, make_progress
from veldt.telemetry.result import RunResult
from veldt.types import EnvironmentSpec


def describe_plan(plan: Plan) -> dict[str, Any]:
    """The resolved options, and what was chosen where the user left it open."""
    options = {entry.name: getattr(plan.options, entry.name) for entry in fields(plan.options)}
    environment, spec = plan.problem.environment, plan.problem.spec
    options["env"] = environment.name
    options["network"] = _network_name(plan)
    options |= _sizes(plan)
    options["wrappers"] = replace(plan.options.wrappers, reward_clip=environment.reward_clip)
    interface = environment.interface()
    return {
        "architecture": plan.architecture,
        "options": plain(options),
        "config": plain(flat(plan.config)),
        "chosen": choices(plan),
        "device": plan.problem.compute.device,
        "parameters": plan.topology.num_weights,
        "environment": {
            "observation_space": described(interface.observation_space),
            "action_space": described(interface.action_space),
            "mask_in_observation": interface.mask_in_observation,
            "frame_stack": interface.frame_stack,
            "action_mask_size": spec.action_mask_size,
            "same_step_reset": spec.same_step_reset,
            "frames_per_step": spec.frames_per_step,
            "rows_per_env_step": spec.rows_per_env_step,
            "policies": spec.policies,
        },
        "code": code_hashes(plan.architecture, options["env"], options["network"]),
    }


def _network_name(plan: Plan) -> str:
    network = plan.options.network
    if not callable(network):
        return network
    function = getattr(network, "func", network)
    return f"{function.__module__}:{function.__qualname__}"


def _sizes(plan: Plan) -> dict[str, int]:
    return {
        "num_actors": plan.problem.num_actors,
        "envs_per_actor": plan.problem.envs_per_actor,
    }


def choices(plan: Plan) -> dict[str, Any]:
    """What was chosen for this task and machine."""
    return {
        "family": plan.family,
        "preset": plan.preset,
        **_sizes(plan),
        "rows_per_update": plan.rows_per_update(),
        "hidden_sizes": list(plan.topology.network.config.hidden_sizes),
        "parameters": plan.topology.num_weights,
        "schedule": _schedule(plan),
    }


def _schedule(plan: Plan) -> str | None:
    """What changes over the run, and whether it follows env steps or seconds."""
    roles = [node.role for node in plan.topology.nodes if isinstance(node.role, Learner)]
    names = " and ".join(roles[0].scheduled()) if roles else ""
    return f"{names} over {plan.problem.schedule}" if names else None


_LEAST_SIDE = 8  # of three-dimensional floats that are probably an image


def choices_line(plan: Plan) -> str:
    """The same in one line."""
    problem = plan.problem
    noun = "place" if problem.environment.is_external else "actor"
    actors = f"{plan.problem.num_actors} {noun}{'s' if problem.num_actors > 1 else ''}"
    schedule = _schedule(plan)
    change = f"; {schedule}" if schedule else ""
    space = problem.environment.interface().observation_space
    shape = (space.shape or ()) if space.dtype in (np.float32, np.float64) else ()
    if len(shape) == 3 and sorted(shape)[1] > _LEAST_SIDE:
        sides = " x ".join(map(str, shape))
        change += (
            f"; the observation of {sides} {space.dtype} is read as numbers: give images as uint8"
            " (0 to 255), which convolutions read"
        )
    is_atari = problem.environment.is_atari or problem.environment.is_envpool
    task = plan.family if is_atari else plan.family.replace("atari", "large images")
    return (
        f"{plan.architecture} on {task}: preset {plan.preset}, {actors} x"
        f" {problem.envs_per_actor} environments, {plan.rows_per_update():,} rows per update,"
        f" {plan.topology.num_weights:,} weights on {problem.compute.device}{change}"
    )


def first_result(plan: Plan, run_dir: str) -> RunResult:
    """What is known of the outcome before the run."""
    return RunResult(
        plan.architecture,
        plan.problem.environment.name,
        plan.options.backend,
        plan.options.seed,
        run_dir=run_dir,
        chosen=choices(plan),
        command=_rerun_command(plan, run_dir),
    )


def display(plan: Plan) -> Progress:
    """What shows the progress and the result of a run, as its options ask for."""
    options = plan.options
    env = plan.problem.environment.name
    title = f"{plan.architecture}  {env}  {options.backend}, seed {options.seed}"
    return make_progress(title, options, output_stream())


def _rerun_command(plan: Plan, run_dir: str) -> str | None:
    """The command that repeats the run; None where config.json cannot name its Python objects."""
    env, network = plan.problem.environment.name, _network_name(plan)
    for name, given in ((env, plan.options.env), (network, plan.options.network)):
        is_main, is_partial = name.startswith("__main__:"), not hasattr(given, "__qualname__")
        if callable(given) and (is_main or is_partial or "<" in name):
            return None
    return shlex.join(["veldt", "train", "--config", f"{run_dir}/{CONFIG_FILE}"])


def saved_environment(stored: Mapping[str, Any]) -> tuple[EnvironmentSpec, Interface]:
    """The environment as config.json describes it, without making it."""
    found = stored["environment"]
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
        found["rows_per_env_step"],
        tuple(found.get("policies", ())),
    )
    return spec, interface


def changed_space(run_dir: Path, spec: EnvironmentSpec) -> tuple[str, str, str] | None:
    """Where an environment differs from the run's: observation or action, before and now."""
    with suppress(OSError, ValueError, KeyError, TypeError):  # a file without what it should have
        stored = json.loads((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
        before, _ = saved_environment(stored)
        if before.observed() != spec.observed():
            return "observation", before.observed(), spec.observed()
        if before.acted() != spec.acted():
            return "action", before.acted(), spec.acted()
    return None
