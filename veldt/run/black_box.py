# SPDX-License-Identifier: Apache-2.0
"""Replays what a learner left behind when its gradient was not finite for the first time.

The batch, the weights and the run's config.json are enough to compute the same loss again, at any
time and without the run; what is found says where the numbers broke first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from veldt.checkpoints.store import CheckpointError, CheckpointStore
from veldt.errors import ConfigurationError
from veldt.networks import FlatParameters
from veldt.role import EndLike, bound
from veldt.roles.learner import Learner
from veldt.run.plan import make_plan
from veldt.run.saved_options import saved_options
from veldt.topology import End, Node, Topology


@dataclass(frozen=True)
class Replayed:
    """What a black box shows."""

    node: str
    version: int
    seed: int
    loss: float
    first_not_finite: str | None
    """Where NaN or infinity appears first, in the order of computing: "batch reward", "weights",
    "output of encoder", "loss", "gradient of ..."; None when all is finite this time."""


def replay(path: str | Path) -> Replayed:
    """Compute the loss and the gradient of the black box RUN_DIR/black_box/<node> again."""
    path = Path(path)
    try:
        box = CheckpointStore(path).newest()
    except CheckpointError as error:
        raise ConfigurationError(str(error)) from error
    if box is None:
        raise ConfigurationError(f"{path} is no black box; give RUN_DIR/black_box/<node>")
    architecture, options, own = saved_options(path.parent.parent)
    topology = make_plan(architecture, options, own).topology
    learner = next(node for node in topology.nodes if node.name == box.meta["node"])
    batch, vector = box.load("batch"), box.load("weights")["vector"]
    trace: list[str] = []
    loss = _compute(topology, learner, batch, vector, box.load("objective"), trace)
    meta = box.meta
    first = trace[0] if trace else None
    return Replayed(meta["node"], meta["version"], meta["seed"], loss, first)


def _compute(
    topology: Topology,
    learner: Node,
    batch: dict[str, np.ndarray],
    vector: np.ndarray,
    objective_state: dict[str, np.ndarray],
    trace: list[str],
) -> float:
    """The loss; `trace` gets what is not finite, in the order of computing."""
    assert isinstance(learner.role, Learner)
    network = learner.role.network.make().train()
    flat = FlatParameters(network)
    flat.load(vector)
    objective = bound(learner.role.objective, partial(_memory_of_its_own, topology))
    objective.open(network)
    objective.load_state(objective_state)
    trace += [f"batch {name}" for name, array in batch.items() if not _finite(array)]
    trace += [f"weights {name}" for name, value in network.named_parameters() if not _finite(value)]
    for name, module in network.named_modules():
        if name:
            module.register_forward_hook(_watching(name, trace))
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    loss = objective(next(iter(objective.passes(tensors))))
    trace += [f"loss {name}" for name, value in loss.metrics.items() if not _finite(value)]
    if not _finite(loss.total):
        trace.append("loss")
    flat.zero_gradient()
    loss.total.backward()
    for name, value in network.named_parameters():
        if value.grad is not None and not _finite(value.grad):
            trace.append(f"gradient of {name}")
    return float(loss.total.detach())


def _memory_of_its_own(topology: Topology, end: EndLike) -> np.ndarray:
    """A copy of the shared memory that an objective works on, as it was at the start."""
    assert isinstance(end, End)
    memories = {memory.spec.name: memory.initial for memory in topology.shared}
    return memories[end.channel.name].copy()


def _watching(name: str, trace: list[str]) -> Any:
    def look(module: object, inputs: object, output: Any) -> None:
        if not all(map(_finite, _tensors(output))):
            trace.append(f"output of {name}")

    return look


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _tensors(entry)


def _finite(values: Any) -> bool:
    return bool(torch.isfinite(torch.as_tensor(values)).all())
