# SPDX-License-Identifier: Apache-2.0
"""What a population's controller tells its learners, as one small vector on a board.

The newest orders say everything: a learner that missed some in between loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veldt.ports import ParameterSource
from veldt.types import Field, Layout

POLICY = "policy"
"""Field of a trajectory: the policy that acted, [T+1, E]."""
LEARNING_RATE, ENTROPY = 0, 1
"""Places among a member's hyperparameters; weights on rewards follow."""
_EPISODES_PER_MESSAGE = 256


@dataclass
class Orders:
    """The state of a population; arrays have one entry per member."""

    best: int
    """The member with the best mean return."""
    replacements: np.ndarray
    """Number of the replacement each member has to be through with; 0: none yet."""
    parents: np.ndarray
    """Whose weights it takes then."""
    hyperparameters: np.ndarray
    """[P, H]"""

    @staticmethod
    def start(hyperparameters: np.ndarray) -> Orders:
        members = len(hyperparameters)
        return Orders(0, np.zeros(members, np.int64), np.arange(members), hyperparameters)

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
    """What members last said of themselves, each on a board of its own: the number of its last
    replacement, and, as the board's version, the first version of its weights since. Rows of older
    versions were acted by the policy before."""

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


def scores_layout(num_members: int) -> Layout:
    """A message of an actor to the controller: finished episodes, and steps by member."""
    per_episode = (_EPISODES_PER_MESSAGE,)
    return Layout.of(
        count=Field((1,), "int64"),
        policy=Field(per_episode, "int64"),
        generation=Field(per_episode, "int64"),
        episode_return=Field(per_episode, "float64"),
        env_steps=Field((num_members,), "int64"),
    )


def board_of(policy: int) -> str:
    """Name of the board that holds a policy's weights."""
    return f"weights-{policy}" if policy else "weights"
