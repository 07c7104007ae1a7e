# SPDX-License-Identifier: Apache-2.0
"""What `veldt train ARCH --help` shows: the options people use; `--help all` shows every one."""

from __future__ import annotations

import argparse
from itertools import pairwise

from veldt.options import RunOptions
from veldt.options.fields import option_fields

USUAL = {
    *("env", "backend", "seed", "run_dir", "total_env_steps", "max_seconds", "target_return"),
    *("num_actors", "envs_per_actor", "device", "preset", "network", "recurrent", "dashboard"),
    *("network_options", "wrappers", "quiet"),
}
USUAL_OWN = {
    *("learning_rate", "gamma", "entropy_coefficient", "trajectory_steps"),
    *("batch_size", "batch_trajectories", "num_learners", "matchmaking"),
}
"""Of those that an architecture has besides."""

_COMMON_GROUPS = {
    "what to run, and for how long": (
        *("env", "env_options", "preset", "seed", "total_env_steps", "max_seconds"),
        *("target_return", "evaluation_episodes", "wrappers"),
    ),
    "where it runs": (*("backend", "device", "num_actors", "envs_per_actor"),),
    "network": (*("network", "network_options", "recurrent", "from_run"),),
    "results": (
        *("run_dir", "dashboard", "trackers", "timeline", "quiet", "json", "checkpoint_options"),
    ),
    "experiments": ("extra_lag",),
}
_FURTHER = "further options"


def common_groups() -> dict[str, list[str]]:
    """Every common option under a heading."""
    found = {title: list(names) for title, names in _COMMON_GROUPS.items()}
    placed = {name for names in found.values() for name in names}
    further = [name for name in option_fields(RunOptions) if name not in placed]
    return found | ({_FURTHER: further} if further else {})


def own_groups(config: type, label: str) -> dict[str, list[str]]:
    """The options of an architecture by the group of its Config that they lie in."""
    found: dict[str, list[str]] = {f"options of {label}": []}
    for name, leaf in option_fields(config).items():
        heading = f"options of {label}"
        if leaf.path:
            heading += f", {leaf.path[-1].replace('_', ' ')}"
        found.setdefault(heading, []).append(name)
    return {title: names for title, names in found.items() if names}


class HelpAction(argparse.Action):
    """`--help` or `--help all`; which of the two, the parser was made for."""

    def __init__(self, option_strings: list[str], dest: str, **settings: object) -> None:
        super().__init__(
            option_strings,
            dest,
            nargs="?",
            metavar="all",
            default=argparse.SUPPRESS,
            help="show the options people use, or all of them",
        )

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.print_help()
        parser.exit()


def all_wanted(arguments: list[str]) -> bool:
    """Whether somebody asks for every option."""
    pairs = pairwise(arguments)
    return "--help=all" in arguments or any(
        flag in ("-h", "--help") and word == "all" for flag, word in pairs
    )


def usual_own(config: type) -> set[str]:
    """Those of an architecture that the short help shows; of a user's own one without any such,
    what stands in its Config itself."""
    known = option_fields(config)
    return USUAL_OWN & set(known) or {name for name, leaf in known.items() if not leaf.path}


def ending(program: str) -> str:
    return f"These are the options people use. {program} --help all shows every option, by group."
