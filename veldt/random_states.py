# SPDX-License-Identifier: Apache-2.0
"""Random states and other JSON-able values as arrays, for a role's `state()`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np


def json_to_array(value: Any) -> np.ndarray:
    """UTF-8 bytes of the JSON text of `value`."""
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8).copy()


def json_from_array(array: np.ndarray) -> Any:
    return json.loads(np.asarray(array, dtype=np.uint8).tobytes())


def generator_to_array(generator: np.random.Generator) -> np.ndarray:
    """The exact state of any NumPy bit generator; PCG64's 128-bit integers do not fit an array."""
    return json_to_array(_plain(generator.bit_generator.state))


def restore_generator(generator: np.random.Generator, array: np.ndarray) -> None:
    """Continue `generator` from a saved state of the same kind of bit generator."""
    state, kind = json_from_array(array), type(generator.bit_generator).__name__
    if state["bit_generator"] != kind:
        raise ValueError(f"the saved state is of {state['bit_generator']}, the generator of {kind}")
    generator.bit_generator.state = _with_arrays(state)


def torch_generator_to_array(generator: Any) -> np.ndarray:
    """The state of a `torch.Generator` on any device."""
    return generator.get_state().cpu().numpy().copy()


def restore_torch_generator(generator: Any, array: np.ndarray) -> None:
    import torch  # processes that only write checkpoints need not load it

    generator.set_state(torch.from_numpy(np.array(array, dtype=np.uint8)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "values": value.tolist()}
    return value.item() if isinstance(value, np.generic) else value


def _with_arrays(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {"dtype", "values"}:
        return np.array(value["values"], dtype=value["dtype"])
    return {key: _with_arrays(entry) for key, entry in value.items()}
