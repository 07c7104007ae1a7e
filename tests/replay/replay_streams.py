# SPDX-License-Identifier: Apache-2.0
"""A counting stream and a slow transcription of what a replay must make of it.

Every observation names its actor, incarnation, environment and row, so that a sampled transition
can be looked up in the stream and checked field by field.
"""

from dataclasses import dataclass, field

import numpy as np

from veldt.types import ActionSpec, EnvironmentSpec, Field, ObservationLeaf, trajectory_layout

OUTPUTS = {"q_taken": Field((), "float32"), "q_max": Field((), "float32")}
STATE = {"hidden": Field((3,), "float32")}


def make_spec(same_step: bool = False, frame_stack: int = 0, mask: bool = True) -> EnvironmentSpec:
    leaves = [ObservationLeaf("observation.place", (4,), "float32", "vector")]
    if frame_stack:
        leaves.append(ObservationLeaf("observation.screen", (frame_stack, 4, 4), "uint8", "image"))
    action = ActionSpec("discrete", (5,))
    return EnvironmentSpec("Counting-v0", tuple(leaves), action, 5 if mask else 0, same_step)


@dataclass
class Row:
    """One row of one environment."""

    leaves: dict[str, np.ndarray]
    first: bool
    action: int = 0
    reward: float = 0.0
    ignored: bool = False
    terminated: bool = False
    truncated: bool = False
    q_taken: float = 0.0
    q_max: float = 0.0
    final: dict[str, np.ndarray] | None = None
    version: int = 0


@dataclass
class Environment:
    """Counts its rows; episodes end at random, one way or the other."""

    spec: EnvironmentSpec
    name: tuple[int, int, int]
    random: np.random.Generator
    padding: str = "repeat"
    end_chance: float = 0.25
    rows: list[Row] = field(default_factory=list)
    _reset_next: bool = False
    _frames: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows.append(Row(self._observe(True), True))

    def _observe(self, begins: bool, number: float | None = None) -> dict[str, np.ndarray]:
        count = len(self.rows) if number is None else number
        leaves = {"observation.place": np.array([*self.name, count], np.float32)}
        if len(self.spec.observation) > 1:
            shape = self.spec.observation[1].shape
            newest = self.random.integers(0, 256, shape[1:], dtype=np.uint8)
            if begins:
                self._frames = self._padding(newest, shape[0] - 1)
            self._frames = [*self._frames[-(shape[0] - 1) :], newest]
            leaves["observation.screen"] = np.stack(self._frames)
        if self.spec.action_mask_size:
            leaves["action_mask"] = self.random.random(self.spec.action_mask_size) < 0.5
        return leaves

    def _padding(self, newest: np.ndarray, count: int) -> list[np.ndarray]:
        if self.padding == "repeat":
            return [newest] * count
        if self.padding == "zero":
            return [np.zeros_like(newest)] * count
        return [self.random.integers(0, 256, newest.shape, dtype=np.uint8) for _ in range(count)]

    def step(self, version: int) -> None:
        row = self.rows[-1]
        row.action, row.version = int(self.random.integers(5)), version
        row.q_taken, row.q_max = (float(np.float32(v)) for v in self.random.normal(size=2))
        if self._reset_next:
            row.ignored, self._reset_next = True, False
            self.rows.append(Row(self._observe(True), True))
            return
        row.reward = float(np.float32(self.random.normal()))
        if self.random.random() < self.end_chance:
            row.terminated, row.truncated = ((True, False), (False, True), (True, True))[
                self.random.integers(3)
            ]
        ends = row.terminated or row.truncated
        if ends and self.spec.same_step_reset:
            row.final = self._observe(False, -len(self.rows))
            self.rows.append(Row(self._observe(True), True))
        else:
            self._reset_next = ends
            self.rows.append(Row(self._observe(False), False))


class Actor:
    """Environments stepped together and cut into trajectories."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        num_steps: int,
        num_envs: int,
        actor: int = 0,
        incarnation: int = 0,
        seed: int = 0,
        **options: object,
    ) -> None:
        self.layout = trajectory_layout(spec, num_steps, num_envs, OUTPUTS, STATE)
        self.spec, self.num_steps = spec, num_steps
        self.actor, self.incarnation, self.sequence = actor, incarnation, 0
        self.environments = [
            Environment(
                spec,
                (actor, incarnation, env),
                np.random.default_rng([seed, actor, incarnation, env]),
                **options,  # type: ignore[arg-type]
            )
            for env in range(num_envs)
        ]

    def trajectory(self) -> dict[str, np.ndarray]:
        arrays = {name: np.zeros(spec.shape, spec.dtype) for name, spec in self.layout.items()}
        start = self.sequence * self.num_steps
        for step in range(self.num_steps):
            for environment in self.environments:
                environment.step(version=start + step)
        for env, environment in enumerate(self.environments):
            for row in range(self.num_steps + 1):
                self._fill(arrays, row, env, environment.rows[start + row])
        arrays["parameter_version"][:, 0] = np.arange(start, start + self.num_steps + 1)
        arrays["provenance"][0, :3] = self.actor, self.incarnation, self.sequence
        for env in range(len(self.environments)):
            arrays["state.hidden"][env] = self.actor, start, env
        self.sequence += 1
        return arrays

    def _fill(self, arrays: dict[str, np.ndarray], row: int, env: int, source: Row) -> None:
        for name, value in source.leaves.items():
            arrays[name][row, env] = value
        arrays["first"][row, env] = source.first
        if row == self.num_steps:  # nothing else is known yet; what lies there must not matter
            arrays["reward"][row, env] = np.nan
            arrays["terminated"][row, env] = True
            return
        for name, value in (source.final or {}).items():
            if name != "action_mask":
                arrays["final_" + name][row, env] = value
        for name in ("action", "reward", "ignored", "terminated", "truncated", "q_taken", "q_max"):
            arrays[name][row, env] = getattr(source, name)


def window(rows: list[Row], start: int, n_step: int, discount: float) -> dict | None:
    """The transition that starts at `start` of one environment's rows, or None if there is none.

    The last row only bootstraps."""
    if rows[start].ignored or start == len(rows) - 1:
        return None
    total, factor, position = 0.0, 1.0, start
    for _ in range(n_step):
        if position == len(rows) - 1:
            return None
        row = rows[position]
        assert not row.ignored
        total += factor * row.reward
        factor *= discount
        position += 1
        if row.terminated:
            factor = 0.0
            break
        if row.truncated:
            break
    last, following = rows[position - 1], rows[position].leaves
    if last.truncated and last.final is not None:
        following = {**last.final, "action_mask": np.ones(5, bool)}
    found = {"reward": total, "discount": factor, "next": following}
    return {**found, "next_row": rows[position], "last_row": last}
