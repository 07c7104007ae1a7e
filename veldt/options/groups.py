# SPDX-License-Identifier: Apache-2.0
"""Groups of options that few users change; each group is one option with keys.

A field `momentum: Annotated[Decay, OPTIMIZER_OPTIONS] = 0.0` in any part of a Config is given as
`--optimizer-options momentum=0.9`, or `optimizer_options={"momentum": 0.9}` in Python.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """An option whose keys are fields of a Config."""

    name: str
    """Name of the option."""
    text: str
    """Its help text."""


ANNEALING_OPTIONS = Group("annealing_options", "Bounds and periods of the annealing.")
EXPLORATION_OPTIONS = Group("exploration_options", "Noise and random actions.")
LEAGUE_OPTIONS = Group("league_options", "Who plays whom, and when a player is frozen.")
LOSS_OPTIONS = Group("loss_options", "Terms and constants of the loss.")
OPTIMIZER_OPTIONS = Group("optimizer_options", "Constants of the optimizer.")
POPULATION_OPTIONS = Group(
    "population_options", "Population-based training (PBT) of several policies."
)
PPO_OPTIONS = Group("ppo_options", "Limits on the change of the policy and the value.")
REPLAY_OPTIONS = Group("replay_options", "Priorities and prefetching of the replay.")
SAMPLING_OPTIONS = Group("sampling_options", "How actors and inference servers share the work.")
SERVER_OPTIONS = Group("server_options", "Traffic with the parameter server, and what it refuses.")
