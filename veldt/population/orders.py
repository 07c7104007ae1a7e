# SPDX-License-Identifier: Apache-2.0
"""Messages of a population: orders to its learners, their answers and the actors' scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veldt.ports import ParameterSource
from veldt.types import Field, Layout

HYPERPARAMETERS = LEARNING_RATE, ENTROPY = 0, 1
"""Columns of a member's hyperparameters."""
HYPERPARAMETER_NAMES = ("learning_rate", "entropy_coefficient")
_EPISODES_PER_MESSAGE = 256


@dataclass
class Orders:
    """The state of a population, one small vector on a board; arrays have one entry per member.

    The newest orders are complete: a learner that missed some in between loses nothing.
    """

    best: int
    """The member with the best mean return."""
    replacements: np.ndarray
    """Number of the last replacement that each member has to carry out; 0: none yet."""
    parents: np.ndarray
    """Member whose weights it then takes."""
    hyperparameters: np.ndarray
    """[P, H]"""

    @staticmethod
    def start(hyperparameters: np.ndarray) -> Orders:
        members = len(hyperparameters)
        return Orders(0, np.zeros(members, np.int64), np.arange(members), hyperparameters)

    @staticmethod
    def vector_size(num_members: int) -> int:
        return 1 + num_members * (2 + len(HYPERPARAMETERS))

    def to_vector(self) -> np.ndarray:
        """float32, exact for numbers of members and replacements below 2^24."""
        table = np.column_stack((self.replacements, self.parents, self.hyperparameters))
        return np.concatenate(([self.best], table.ravel())).astype(np.float32)

    @staticmethod
    def from_vector(vector: np.ndarray, num_members: int) -> Orders:
        table = vector[1:].reshape(num_members, -1).astype(np.float64)
        replacements, parents = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
        return Orders(int(vector[0]), replacements, parents, table[:, 2:].copy())


class Generations:
    """The last replacement that each member has carried out.

    A member publishes its number on its own board, with the first version of its weights since as
    the board's version. Rows of older versions were acted by the policy before.
    """

    def __init__(self, boards: list[ParameterSource]) -> None:
        self._boards, self._number = boards, np.zeros(1, np.float32)
        self.generations = np.zeros(len(boards), np.int64)
        self.first_versions = np.full(len(boards), -1, np.int64)
        self.refresh()

    def refresh(self) -> None:
        for member, board in enumerate(self._boards):
            newer = board.pull(self._number, newer_than=int(self.first_versions[member]))
            if newer is not None:
                self.generations[member] = int(self._number[0])
                self.first_versions[member] = newer


def scores_layout() -> Layout:
    """A message of an actor to the controller: its policy's finished episodes, and its steps."""
    per_episode = (_EPISODES_PER_MESSAGE,)
    return Layout.of(
        policy=Field((1,), "int64"),
        env_steps=Field((1,), "int64"),
        count=Field((1,), "int64"),
        generation=Field(per_episode, "int64"),
        episode_return=Field(per_episode, "float64"),
    )
