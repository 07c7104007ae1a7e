# SPDX-License-Identifier: Apache-2.0
"""Gymnasium spaces as named arrays: observations, actions and action masks.

Vectors become flat float32, images uint8 (bool where they contain only 0 and 1) with channels
first, discrete entries int64 from zero. Buffers and networks handle only these three kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from veldt.errors import ConfigurationError
from veldt.types import ACTION_MASK, ActionSpec, EnvironmentSpec, ObservationLeaf

Path = tuple[Any, ...]
MOST_NUMBERS = 1 << 23
"""Limit of numbers and choices in one described space; 1920 x 1080 pixels are below it."""
_DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64"),
)


@dataclass(frozen=True)
class Interface:
    """The spaces of one environment, as Gymnasium has them."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    mask_in_observation: bool = False
    frame_stack: int = 1
    """How many observations are joined into a network's input."""


@dataclass(frozen=True)
class LeafReader:
    """Reads one leaf from a batched observation. `view` works on arrays and on tensors."""

    leaf: ObservationLeaf
    path: Path
    view: Callable[[np.ndarray], np.ndarray]

    def read(self, observation: Any) -> np.ndarray:
        """The leaf [E, ...] in its declared shape; the dtype may differ."""
        for key in self.path:
            observation = observation[key]
        return self.view(observation)


def leaf_readers(space: gymnasium.Space, with_mask: bool) -> tuple[LeafReader, ...]:
    """Readers of all leaves; `with_mask` omits a top-level "action_mask" entry."""
    found = tuple(_walk(space, "observation", ()))
    if with_mask:
        found = tuple(reader for reader in found if reader.path[:1] != (ACTION_MASK,))
    if not found:
        raise ConfigurationError(f"the observation space {space} has no entries to learn from")
    return found


def _walk(space: gymnasium.Space, name: str, path: Path) -> Iterator[LeafReader]:
    if isinstance(space, spaces.Dict):
        for key, entry in space.spaces.items():
            yield from _walk(entry, f"{name}.{key}", (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, entry in enumerate(space.spaces):
            yield from _walk(entry, f"{name}.{index}", (*path, index))
    elif isinstance(space, spaces.Discrete):
        yield _discrete(name, path, int(space.n), int(space.start), _whole)
    elif isinstance(space, spaces.MultiDiscrete):
        starts = np.broadcast_to(space.start, space.nvec.shape).reshape(-1)
        for index, count in enumerate(space.nvec.reshape(-1)):
            column = _column(index)
            yield _discrete(f"{name}.{index}", path, int(count), int(starts[index]), column)
    elif isinstance(space, spaces.Box) and _is_image(space):
        # Ones must stay ones: a network divides bytes by 255.
        dtype = "bool" if np.all(space.high <= 1) else "uint8"
        yield _image(name, path, space.shape, dtype)
    elif isinstance(space, spaces.Box | spaces.MultiBinary):
        shape = (int(np.prod(space.shape)),)
        leaf = ObservationLeaf(name, shape, "float32", "vector")
        yield LeafReader(leaf, path, _whole if space.shape == shape else _flat)
    else:
        raise ConfigurationError(
            f"the observation entry '{name}' has the unsupported space {space}; "
            "use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
        )


def _whole(array: np.ndarray) -> np.ndarray:
    return array


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(array.shape[0], -1)


def _column(index: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: array.reshape(array.shape[0], -1)[:, index]


def _channels_at(axis: int, array: np.ndarray) -> np.ndarray:
    """[..., H, W, C] with the channels before them, at `axis`."""
    return array.swapaxes(axis, axis + 2).swapaxes(axis + 1, axis + 2)


def _discrete(
    name: str, path: Path, count: int, start: int, view: Callable[[np.ndarray], np.ndarray]
) -> LeafReader:
    leaf = ObservationLeaf(name, (), "int64", "discrete", count)
    if start == 0:
        return LeafReader(leaf, path, view)
    return LeafReader(leaf, path, lambda array: view(array) - start)


def _is_image(space: spaces.Box) -> bool:
    """Bytes in two to four dimensions; booleans in three, such as MinAtar's channels."""
    if space.dtype == np.uint8:
        return len(space.shape) in (2, 3, 4)
    return space.dtype == np.bool_ and len(space.shape) == 3


def _image(name: str, path: Path, shape: tuple[int, ...], dtype: str) -> LeafReader:
    """[H, W], [H, W, C], [C, H, W] or [K, H, W, C]; the shorter end of three is the channels."""
    view: Callable[[np.ndarray], np.ndarray]
    if len(shape) == 2:
        view, shape = (lambda array: array[:, None]), (1, *shape)
    elif len(shape) == 4:
        frames, height, width, channels = shape
        shape = (frames * channels, height, width)
        view = lambda array: _channels_at(2, array).reshape(array.shape[0], *shape)  # noqa: E731
    elif shape[2] <= shape[0]:
        view, shape = partial(_channels_at, 1), (shape[2], *shape[:2])
    else:
        view = _whole
    return LeafReader(ObservationLeaf(name, shape, dtype, "image"), path, view)


def action_spec(space: gymnasium.Space) -> ActionSpec:
    """The actions that a policy must produce."""
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", sizes=(int(space.n),))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        sizes = tuple(int(count) for count in space.nvec)
        return ActionSpec("multi_discrete", sizes=sizes, shape=(len(sizes),))
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return ActionSpec("multi_discrete", sizes=(2,) * space.shape[0], shape=space.shape)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low = tuple(float(bound) for bound in space.low.reshape(-1))
        high = tuple(float(bound) for bound in space.high.reshape(-1))
        return ActionSpec("box", low=low, high=high, shape=tuple(space.shape))
    raise ConfigurationError(
        f"the action space {space} is unsupported; use Discrete, one-dimensional MultiDiscrete or "
        "MultiBinary, or a Box of floats"
    )


def action_offset(space: gymnasium.Space) -> np.ndarray | None:
    """The offset of actions that do not start at zero; None where all do."""
    start = getattr(space, "start", None)
    if start is None or not np.any(start):
        return None
    return np.asarray(start, dtype=np.int64)


def random_actions(
    spec: ActionSpec, num_envs: int, random: np.random.Generator, mask: np.ndarray | None = None
) -> np.ndarray:
    """Uniform actions [E, ...] in the environment's format; only allowed ones with a mask."""
    if spec.kind == "box":
        low = np.asarray(spec.low).clip(-1e3) if np.isfinite(spec.low).all() else -1.0
        high = np.asarray(spec.high).clip(None, 1e3) if np.isfinite(spec.high).all() else 1.0
        width = int(np.prod(spec.shape))
        drawn = random.uniform(low, high, size=(num_envs, width))
        return drawn.astype(np.float32).reshape(num_envs, *spec.shape)
    columns, offset = [], 0
    for size in spec.sizes:
        score = random.random((num_envs, size))
        if mask is not None:
            score[~mask[:, offset : offset + size]] = -1.0
        columns.append(score.argmax(axis=1))
        offset += size
    if spec.kind == "discrete":
        return columns[0]
    return np.stack(columns, axis=1)


class MaskReader:
    """Reads masks [E, M] from observations or, with `in_info`, from infos; M: number of choices."""

    def __init__(self, action: ActionSpec, num_envs: int, in_info: bool) -> None:
        self._in_info = in_info
        self._mask = np.ones((num_envs, sum(action.sizes)), dtype=bool)
        ends = np.cumsum(action.sizes)
        self._segments = [
            slice(int(end) - size, int(end)) for end, size in zip(ends, action.sizes, strict=True)
        ]

    def read(self, observation: Any, info: dict[str, Any]) -> np.ndarray:
        """The masks of the current observations; the array is reused.

        An environment without a mask in its info allows all actions."""
        if not self._in_info:
            masks = observation[ACTION_MASK]
            self._mask[:] = np.concatenate(masks, axis=1) if isinstance(masks, tuple) else masks
        else:
            self._mask[:] = True
            if ACTION_MASK in info:
                self._write(info[ACTION_MASK], info.get("_" + ACTION_MASK))
        # A finished game allows no action; the policy still needs a distribution to draw from.
        for segment in self._segments:
            part = self._mask[:, segment]
            part[~part.any(axis=1)] = True
        return self._mask

    def _write(self, masks: np.ndarray, given: np.ndarray | None) -> None:
        if given is None:
            given = np.ones(len(self._mask), dtype=bool)
        if masks.dtype == object:
            for row in np.flatnonzero(given):
                self._mask[row] = _joined(masks[row])
        else:
            self._mask[given] = masks[given]


def joined_mask(size: int, mask: Any) -> np.ndarray:
    """One environment's mask in one piece, checked against the number of choices."""
    joined = _joined(mask)
    if len(joined) != size:
        raise ConfigurationError(
            f"the action mask has {len(joined)} entries but the action space has {size} choices;"
            " for MultiDiscrete join the masks of all dimensions"
        )
    return joined


def _joined(mask: Any) -> np.ndarray:
    if isinstance(mask, tuple | list):
        return np.concatenate([np.asarray(part).reshape(-1) for part in mask])
    return np.asarray(mask).reshape(-1)


def stacked(leaf: ObservationLeaf, depth: int) -> ObservationLeaf:
    """The leaf after stacking: [C*k, H, W] or [n*k]; discrete entries are unchanged."""
    if depth == 1 or leaf.kind == "discrete":
        return leaf
    return replace(leaf, shape=(leaf.shape[0] * depth, *leaf.shape[1:]))


class FrameStack:
    """The last `depth` observations of each environment, joined along the first axis, oldest first.

    The first observation of an episode fills the whole stack."""

    def __init__(self, leaf: ObservationLeaf, num_envs: int, depth: int) -> None:
        self._depth = depth
        self._width = leaf.shape[0]
        shape = stacked(leaf, depth).shape
        self.frames = np.zeros((num_envs, *shape), dtype=leaf.dtype)

    def push(self, newest: np.ndarray, first: np.ndarray) -> None:
        """Append the newest frame; where `first`, it fills the stack."""
        width = self._width
        # Frame by frame from the oldest: one overlapping assignment would allocate a temporary.
        for start in range(0, width * (self._depth - 1), width):
            middle = start + width
            self.frames[:, start:middle] = self.frames[:, middle : middle + width]
        self.frames[:, -width:] = newest
        if first.any():
            tiles = (1, self._depth) + (1,) * (newest.ndim - 2)
            self.frames[first] = np.tile(newest[first], tiles)

    def ending_with(self, last: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The stacks of `rows` (before `push`) followed by `last` [len(rows), ...]."""
        return np.concatenate([self.frames[rows, self._width :], last], axis=1)


def is_finite(observation: Any) -> bool:
    """Whether a (nested) observation of one environment has neither NaN nor infinity.

    A sum of squares is finite only if every entry is; it costs one dot product. Entries are checked
    one by one only where it is not, because large finite entries overflow it too."""
    if isinstance(observation, np.ndarray):
        if observation.dtype.kind != "f":
            return True
        flat = observation if observation.ndim == 1 else observation.ravel()
        return math.isfinite(flat.dot(flat)) or bool(np.isfinite(flat).all())
    if isinstance(observation, dict):
        return all(map(is_finite, observation.values()))
    if isinstance(observation, tuple):
        return all(map(is_finite, observation))
    return not isinstance(observation, float) or math.isfinite(observation)


def bad_rows(array: np.ndarray) -> np.ndarray | None:
    """bool [E]: environments with entries that are not finite; None where there are none."""
    if array.dtype.kind != "f":
        return None
    flat = array.ravel()
    if math.isfinite(flat.dot(flat)):
        return None
    bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    return bad if bad.any() else None


def cleared(observation: Any) -> Any:
    """A copy with zeros where entries are not finite."""
    if isinstance(observation, dict):
        return {name: cleared(value) for name, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(map(cleared, observation))
    array = np.array(observation)
    if array.dtype.kind == "f":
        array[~np.isfinite(array)] = 0.0
    return array


def external_interface(observation: gymnasium.Space, action: gymnasium.Space) -> Interface:
    """The interface of these spaces; a top-level entry "action_mask" is a mask."""
    has_mask = isinstance(observation, spaces.Dict) and ACTION_MASK in observation.spaces
    return Interface(observation, action, has_mask and action_spec(action).kind != "box")


def external_spec(name: str, interface: Interface, takes_masks: bool) -> EnvironmentSpec:
    """The spec of declared spaces. A client resets within the step."""
    action = action_spec(interface.action_space)
    if takes_masks and action.kind == "box":
        raise ConfigurationError("Box actions have no mask; leave action_masks out")
    readers = leaf_readers(interface.observation_space, interface.mask_in_observation)
    return EnvironmentSpec(
        name,
        tuple(reader.leaf for reader in readers),
        action,
        sum(action.sizes) if takes_masks or interface.mask_in_observation else 0,
        same_step_reset=True,
    )


def described(space: gymnasium.Space) -> dict[str, Any]:
    """The space as JSON values; `veldt_client.described` writes the same."""
    match space:
        case spaces.Dict():
            entries = {key: described(each) for key, each in space.spaces.items()}
            return {"type": "Dict", "spaces": entries}
        case spaces.Tuple():
            return {"type": "Tuple", "spaces": [described(each) for each in space.spaces]}
        case spaces.Discrete():
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            starts = (space.nvec * 0 + space.start).tolist()
            return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": starts}
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "shape": list(space.shape)}
        case spaces.Box():
            bounds = {"low": _bound(space.low), "high": _bound(space.high)}
            shape, dtype = list(space.shape), str(space.dtype)
            return {"type": "Box", "shape": shape, "dtype": dtype, **bounds}
    raise ConfigurationError(f"the space {space} cannot be described as JSON")


def _bound(bound: np.ndarray) -> Any:
    """A bound for JSON, which has no infinity; equal values are written once."""
    values = [v if math.isfinite(v) else str(v) for v in bound.astype(float).reshape(-1).tolist()]
    return values[0] if values and len(set(values)) == 1 else values


def space_from(text: Any) -> gymnasium.Space:
    """The reverse of `described`; its size is checked before anything is allocated."""
    try:
        numbers = _numbers(text)
        if numbers > MOST_NUMBERS:
            raise ValueError(f"it has {numbers:,} numbers and choices, more than {MOST_NUMBERS:,}")
        return _space(text)
    except (KeyError, TypeError, ValueError, OverflowError, AssertionError) as error:
        raise ConfigurationError(f"{text!r:.200} does not describe a space: {error}") from error


def _numbers(text: Any) -> int:
    """Numbers in a value of a described space, and choices where one of several is taken."""
    match text:
        case {"type": "Dict", "spaces": dict(entries)}:
            return sum(map(_numbers, entries.values()))
        case {"type": "Tuple", "spaces": list(entries)}:
            return sum(map(_numbers, entries))
        case {"type": "Discrete", "n": int(n), "start": int()}:
            return n
        case {"type": "MultiDiscrete", "nvec": list(nvec), "start": _}:
            return sum(map(abs, np.array(nvec, np.int64).reshape(-1).tolist()))
        case {"type": "MultiBinary", "shape": list(shape)}:
            return math.prod(map(abs, shape))
        case {"type": "Box", "shape": list(shape), "dtype": dtype} if dtype in _DTYPES:
            return math.prod(map(abs, shape))
    raise ValueError(f"no such space: {text!r:.80}")


def _space(text: Any) -> gymnasium.Space:
    match text["type"]:
        case "Dict":
            return spaces.Dict({key: _space(entry) for key, entry in text["spaces"].items()})
        case "Tuple":
            return spaces.Tuple([_space(entry) for entry in text["spaces"]])
        case "Discrete":
            return spaces.Discrete(text["n"], start=text["start"])
        case "MultiDiscrete":
            sizes, start = (np.array(text[key], np.int64) for key in ("nvec", "start"))
            return spaces.MultiDiscrete(sizes, start=start)
        case "MultiBinary":
            shape = text["shape"]
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    shape, dtype = tuple(text["shape"]), np.dtype(text["dtype"])
    low, high = (_array(text[end], shape, dtype) for end in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _array(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    values = np.array(bound, np.float64).astype(dtype)
    return np.broadcast_to(values, shape) if values.ndim == 0 else values.reshape(shape)
