# SPDX-License-Identifier: Apache-2.0
"""The rules under which an Atari score was made, without which it says little: sticky actions,
lives, clipped rewards, frames; and the same score on the scale from a random player to a human."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from veldt.environments import lookup
from veldt.environments.atari import atari_arguments
from veldt.environments.factory import EnvironmentFactory


@dataclass(frozen=True)
class AtariRules:
    """How one game is trained and evaluated."""

    game: str
    sticky_actions: float
    """Probability with which the last action is repeated whatever was chosen."""
    frames_per_step: int
    max_frames: int
    """After so many frames a game is cut off."""
    life_loss_ends: bool
    """Whether a lost life ended an episode in training. In evaluation whole games are played."""
    reward_clip: float | None
    """Bound of the rewards that were learned from. Evaluation counts them as they are."""

    def text(self) -> str:
        lives = "a lost life ended an episode" if self.life_loss_ends else "whole games"
        clip = "rewards as they are"
        if self.reward_clip is not None:
            clip = f"rewards clipped to {self.reward_clip:g}"
        return (
            f"whole games of at most {self.max_frames:,} frames, {self.frames_per_step} a step,"
            f" sticky actions {self.sticky_actions:g}, rewards as they are;"
            f" trained with {lives} and {clip}"
        )

    def human_normalized(self, score: float) -> float | None:
        """0 is a random player and 1 a human; None for a game that nobody has played for us."""
        known = _scores().get(self.game)
        if known is None:
            return None
        random, human = known
        return (score - random) / (human - random)


def atari_rules(factory: EnvironmentFactory) -> AtariRules | None:
    """Those of an ALE/ id; None for any other environment."""
    if not factory.is_atari:
        return None
    arguments = atari_arguments(factory, dict(factory.options))
    return AtariRules(
        game=lookup.gymnasium_spec(factory.name).kwargs["game"],
        sticky_actions=arguments["repeat_action_probability"],
        frames_per_step=arguments["frameskip"],
        max_frames=arguments["max_num_frames_per_episode"],
        life_loss_ends=arguments["life_loss_info"],
        reward_clip=factory.reward_clip,
    )


@cache
def _scores() -> dict[str, list[float]]:
    """Random and human by game."""
    text = resources.files("veldt.environments").joinpath("atari_scores.toml").read_text("utf-8")
    return tomllib.loads(text)
