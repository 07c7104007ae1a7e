# SPDX-License-Identifier: Apache-2.0
"""Writes a policy to a file that needs no Veldt (ONNX or torch.export) and checks its actions.

The file includes the metadata that a player needs.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from gymnasium.vector.utils import batch_space
from torch import Tensor

from veldt.environments.spaces import described
from veldt.errors import ConfigurationError, install
from veldt.policy.module import ACTION, FIRST, REWARD, STATE, PolicyModule, remembered
from veldt.policy.trained import TrainedPolicy
from veldt.types import ACTION_MASK

Format = Literal["onnx", "torch"]
FORMATS: tuple[str, ...] = get_args(Format)
METADATA = "veldt"
"""Name of the metadata in an ONNX file; veldt.json in one of torch.export."""
_WIDTH = 10
_NEW_EPISODES = 0.05  # share of the rows at which a new episode begins
_TOLERANCE = 1e-4

Program = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
Rows = dict[str, np.ndarray]


@dataclass(frozen=True)
class Exported:
    """A file that was written."""

    path: Path
    format: str
    observations: int
    """Number of observations on which its actions equal the policy's."""
    checked_with: str
    """"onnxruntime", "torch", or "" where neither is installed."""

    def text(self) -> str:
        proof = f"actions equal on {self.observations:,} observations ({self.checked_with})"
        if not self.checked_with:
            proof = f"not checked: run {install('export')}"
        return f"{self.path}: {self.format}, {proof}"


def export(
    policy: TrainedPolicy, format: str, path: Path, version: str, seed: int = 0, count: int = 1_000
) -> Exported:
    """Write `policy` and check on `count` random observations that the file acts the same.

    The file is removed if it does not."""
    if format not in FORMATS:
        raise ConfigurationError(f"format is unknown: '{format}'; use {' or '.join(FORMATS)}")
    module = policy.module().eval()
    metadata = {**metadata_of(policy, module), "veldt_version": version}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write = _write_onnx if format == "onnx" else _write_torch
            write(module, metadata, path)
        play = _onnx_program(path) if format == "onnx" else _torch_program(path)
        checked = 0 if play is None else _check(policy, module, play, count, seed)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    with_what = "" if play is None else {"onnx": "onnxruntime", "torch": "torch"}[format]
    return Exported(path, format, checked, with_what)


def metadata_of(policy: TrainedPolicy, module: PolicyModule) -> dict[str, Any]:
    """What a player needs to know, as JSON values."""
    inputs = module.inputs(1)
    return {
        "architecture": policy.architecture,
        "env": policy.env,
        "env_steps": policy.env_steps,
        "observation_space": described(policy.observation_space),
        "action_space": described(policy.action_space),
        "frame_stack": policy.interface.frame_stack,
        "inputs": {
            name: {"shape": list(entry.shape[1:]), "dtype": str(entry.dtype).removeprefix("torch.")}
            for name, entry in inputs.items()
        },
        "state": [name for name in inputs if name.startswith(STATE)],
    }


def _write_onnx(module: PolicyModule, metadata: dict[str, Any], path: Path) -> None:
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError as error:
        raise ConfigurationError(
            f"--format onnx needs {error.name}; run: {install('export')}"
        ) from error
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    inputs = module.inputs()
    program = torch.onnx.export(
        _traced(module),
        dynamo=True,
        verbose=False,
        input_names=list(inputs),
        output_names=list(module(inputs)),
    )
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, {METADATA: json.dumps(metadata)})
    onnx.save(model, str(path))


def _write_torch(module: PolicyModule, metadata: dict[str, Any], path: Path) -> None:
    files = {f"{METADATA}.json": json.dumps(metadata)}
    torch.export.save(_traced(module), path, extra_files=files)


def _traced(module: PolicyModule) -> torch.export.ExportedProgram:
    inputs, batch = module.inputs(), torch.export.Dim("batch")
    shapes = ({name: {0: batch} for name in inputs},)
    return torch.export.export(module, (inputs,), dynamic_shapes=shapes)


def _onnx_program(path: Path) -> Program | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def _torch_program(path: Path) -> Program:
    module = torch.export.load(path).module()

    def play(inputs: Rows) -> Rows:
        tensors: dict[str, Tensor] = {name: torch.from_numpy(row) for name, row in inputs.items()}
        return {name: entry.detach().numpy() for name, entry in module(tensors).items()}

    return play


def _check(
    policy: TrainedPolicy, module: PolicyModule, play: Program, count: int, seed: int
) -> int:
    """Compare actions of file and policy on random episodes; returns how many are equal."""
    scale = 1.0
    if module.network.spec.action.kind == "box":
        bounds = np.asarray([module.high.numpy(), -module.low.numpy()])
        scale = max(1.0, float(bounds[np.isfinite(bounds)].max(initial=1.0)))
    state, random = policy.initial_state(_WIDTH), np.random.default_rng(seed)
    space = batch_space(policy.observation_space, _WIDTH)
    space.seed(seed)
    blank = {name: entry.numpy() for name, entry in module.inputs(_WIDTH).items()}
    memory = {name: entry for name, entry in blank.items() if name.startswith(STATE)}
    for checked in range(0, count, _WIDTH):
        batch = space.sample()
        state.reset(random.random(_WIDTH) < _NEW_EPISODES)
        given = {entry.name: entry.array(batch) for entry in module.entries}
        given |= {FIRST: state.first, REWARD: random.standard_normal(_WIDTH)}
        mask = _any_mask(module, random)
        if mask is not None:
            given[ACTION_MASK] = mask
        inputs = {
            name: np.array(given.get(name, entry), entry.dtype) for name, entry in blank.items()
        }
        outputs = play(inputs | memory)
        memory = remembered(outputs)
        theirs, reward = outputs[ACTION], given[REWARD].astype(np.float32)
        ours = np.asarray(policy.act(batch, state, mask, reward=reward))
        if not np.allclose(theirs, ours, atol=_TOLERANCE * scale, rtol=_TOLERANCE):
            raise ConfigurationError(
                f"the exported policy acts otherwise: {theirs.tolist()} where it should be"
                f" {ours.tolist()} after {checked} equal ones; nothing was kept"
            )
    return checked + _WIDTH


def _any_mask(module: PolicyModule, random: np.random.Generator) -> np.ndarray | None:
    """A random mask: half of the actions, at least one of each choice."""
    spec = module.network.spec
    if not spec.action_mask_size:
        return None
    mask = random.random((_WIDTH, spec.action_mask_size)) < 0.5
    mask[:, np.cumsum((0, *spec.action.sizes[:-1]))] = True
    return mask
