# SPDX-License-Identifier: Apache-2.0
"""Data that roles exchange: fixed layouts, slots, parameters.

Every buffer is described by a Layout before anything starts and allocated once. A role fills a Slot
in place and hands over its number; nothing on a hot path is pickled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

_ALIGNMENT = 64  # one cache line, so that two fields never share one


@dataclass(frozen=True)
class Field:
    """Shape and dtype of one named array of a slot."""

    shape: tuple[int, ...]
    dtype: str
    join_axis: int = 0
    """The axis along which several slots are joined into one batch."""

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Layout(Mapping[str, Field]):
    """The fixed schema of a slot: name -> Field, in memory order."""

    fields: tuple[tuple[str, Field], ...]

    @staticmethod
    def of(**fields: Field) -> Layout:
        return Layout(tuple(fields.items()))

    def __getitem__(self, name: str) -> Field:
        for candidate, found in self.fields:
            if candidate == name:
                return found
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def nbytes(self) -> int:
        return sum(_aligned(spec.nbytes) for _, spec in self.fields)

    def views(self, buffer: memoryview | np.ndarray) -> dict[str, np.ndarray]:
        """Arrays over `buffer`, one per field; no copies."""
        raw = np.frombuffer(buffer, dtype=np.uint8)
        arrays, offset = {}, 0
        for name, spec in self.fields:
            flat = raw[offset : offset + spec.nbytes].view(spec.dtype)
            arrays[name] = flat.reshape(spec.shape)
            offset += _aligned(spec.nbytes)
        return arrays


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


@dataclass
class Slot:
    """One preallocated record. `arrays` are views that live as long as the pool."""

    index: int
    arrays: dict[str, np.ndarray]
    raw: np.ndarray
    """All bytes of the slot, for transports that copy it whole and for checksums."""

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def stamp(self, actor: int, incarnation: int, sequence: int, turn: int = 0) -> None:
        """Write the provenance of a trajectory; `turn` tells its batch, where that is paced."""
        self.arrays["provenance"][0, :PROVENANCE_CHECKSUM] = actor, incarnation, sequence
        self.arrays["provenance"][0, PROVENANCE_TURN] = turn


def slots_over(layout: Layout, buffer: memoryview | np.ndarray, count: int) -> list[Slot]:
    """Cut `buffer` into `count` slots of `layout`."""
    raw = np.frombuffer(buffer, dtype=np.uint8)
    size = layout.nbytes
    pieces = (raw[index * size : (index + 1) * size] for index in range(count))
    return [Slot(index, layout.views(piece), piece) for index, piece in enumerate(pieces)]


@dataclass(frozen=True)
class ObservationLeaf:
    """One array of an observation.

    A plain Box has one leaf named "observation"; the entries of Dict and Tuple spaces are named
    "observation.<key>" (nested keys joined by dots)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    """ "vector", "image" (uint8 or bool, channels first) or "discrete" (integers below
    `categories`)."""
    categories: int = 0


@dataclass(frozen=True)
class ActionSpec:
    """An action space. `kind` is "discrete", "multi_discrete" or "box"."""

    kind: str
    sizes: tuple[int, ...] = ()
    """Number of choices per dimension (discrete: one entry)."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    """Shape of one action as stored and as given to the environment: () for discrete."""

    @property
    def field_dtype(self) -> str:
        return "float32" if self.kind == "box" else "int64"


ACTION_MASK = "action_mask"
POLICY = "observation.policy"
"""The leaf with the number of the agent's policy, where a game's agents have several."""
LAST_ACTION = "last_action"
LAST_REWARD = "last_reward"
VALUE_TAKEN, VALUE_BEST = "value_taken", "value_best"
"""An actor's values of the action it takes and of the best one, for first priorities."""
ORDERS = "orders"
"""Name of the board with orders for several policies; a topology without it trains one."""
DISCOUNTED_RETURN = "discounted_return"
"""Running discounted return of each environment, for the learner's reward scale."""


@dataclass(frozen=True)
class EnvironmentSpec:
    """Properties of an environment that determine buffers and networks."""

    id: str
    observation: tuple[ObservationLeaf, ...]
    action: ActionSpec
    action_mask_size: int = 0
    """Length of the boolean mask per environment (sum of `action.sizes`); 0 when there is none."""
    same_step_reset: bool = False
    """True: the observation after an end is already the next episode's first one, and the true last
    one is delivered separately (Gymnasium's SAME_STEP). False: it is the true last one, and the row
    that follows is a reset row whose action is ignored (NEXT_STEP)."""
    frames_per_step: int = 1
    rows_per_env_step: int = 1
    """In a turn-based game every seat records one row per env step, whether it moved or waited."""
    policies: tuple[str, ...] = ()
    """Name of the policy of each agent of a game, whose columns alternate; empty: all share one."""

    def observed(self) -> str:
        """The observation as text."""
        return ", ".join(f"{leaf.name} {leaf.kind}{list(leaf.shape)}" for leaf in self.observation)

    def acted(self) -> str:
        """The action as text."""
        action = self.action
        return f"{action.kind}{list(action.sizes) if action.sizes else list(action.shape)}"


@dataclass(frozen=True)
class Parameters:
    """All weights of a network as one flat float32 vector, and their number of updates."""

    vector: np.ndarray
    version: int


@dataclass
class PolicyReply:
    """Actions for one group of environments and the policy's outputs for the learner.

    `action` is stored; `env_action` is what the environment receives (squashed, clipped). The
    arrays belong to the policy and are valid until the next request of the same group."""

    action: np.ndarray
    env_action: np.ndarray
    outputs: dict[str, np.ndarray]
    version: int | np.ndarray
    """One per environment if several policies answered."""


_ANSWERED = ("reward", "terminated", "truncated", "ignored", DISCOUNTED_RETURN)


def is_answer_of_environment(name: str) -> bool:
    """Whether a field of a trajectory is the environment's answer to the action of a row.

    Between machines it is sent with the next row."""
    return name in _ANSWERED or name.startswith("final_")


def trajectory_layout(
    spec: EnvironmentSpec,
    num_steps: int,
    num_envs: int,
    outputs: Mapping[str, Field],
    state: Mapping[str, Field] | None = None,
) -> Layout:
    """The one record of every system: `num_steps` + 1 rows of `num_envs` environments.

    Row t holds the observation, whether it begins an episode (`first`), the action taken on it, the
    policy's `outputs`, and what the environment answered. Row `num_steps` only bootstraps: it has
    an observation and `first`, and is row 0 of the next trajectory. `ignored` marks reset rows,
    which are neither learned from nor counted. `state.*` is the recurrent state before row 0.
    """
    fields: dict[str, Field] = {}

    def per_row(name: str, shape: tuple[int, ...], dtype: str) -> None:
        fields[name] = Field((num_steps + 1, num_envs, *shape), dtype, join_axis=1)

    for leaf in spec.observation:
        per_row(leaf.name, leaf.shape, leaf.dtype)
        if spec.same_step_reset:
            per_row("final_" + leaf.name, leaf.shape, leaf.dtype)
    if spec.action_mask_size:
        per_row(ACTION_MASK, (spec.action_mask_size,), "bool")
    per_row("action", spec.action.shape, spec.action.field_dtype)
    per_row("reward", (), "float32")
    for flag in ("first", "ignored", "terminated", "truncated"):
        per_row(flag, (), "bool")
    for name, output in outputs.items():
        per_row(name, output.shape, output.dtype)
    for name, entry in (state or {}).items():
        fields["state." + name] = Field((num_envs, *entry.shape), entry.dtype, join_axis=0)
    fields["parameter_version"] = Field((num_steps + 1, 1), "int64", join_axis=1)
    fields["provenance"] = Field((1, 5), "int64", join_axis=0)
    return Layout(tuple(fields.items()))


PROVENANCE_ACTOR, PROVENANCE_INCARNATION, PROVENANCE_SEQUENCE, PROVENANCE_CHECKSUM = range(4)
PROVENANCE_TURN = 4


@dataclass
class Batch:
    """What a learner takes: named arrays, time-major [T+1, B, ...] or transitions [B, ...].

    `slots` are held until the batch is released, because `arrays` may be views into them.
    `memory_stays`: the memory of `arrays` lives as long as the batch's source."""

    arrays: dict[str, np.ndarray]
    slots: list[Slot] = field(default_factory=list)
    memory_stays: bool = False

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]
