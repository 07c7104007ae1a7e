# SPDX-License-Identifier: Apache-2.0
"""Every node in one thread, in an order drawn from the seed: the deterministic reference.

Asynchronous architectures keep their lag, but the same seed gives the same interleaving and so the
same bits. A lag bug seen once can be replayed in a debugger.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from veldt.backends.base import (
    DEFAULTS,
    BackendOptions,
    LocalBackend,
    NodeFailure,
    RunningNode,
    close_all,
    construct,
)
from veldt.backends.checkpoint_parts import (
    CHANNELS,
    Parts,
    captured_channels,
    captured_node,
)
from veldt.checkpoints.store import read_part
from veldt.context import NodeContext
from veldt.topology import Topology

_ROUNDS_PER_ADVANCE = 64
_SECONDS_PER_ROUND = 1e-3  # on the clock of roles that wait a little for each other
_ORDER = 0x0DE2  # separates the stream of interleavings from the other streams of a seed
_IDLE_ROUNDS_UNTIL_DEADLOCK = 1000


class SerialCapture:
    """Complete at once: between two steps of one thread the state of every node can be saved."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def ready(self) -> bool:
        return True

    def parts(self) -> Parts:
        return self._parts


class SerialBackend(LocalBackend):
    """Round-robin over `step()` in one thread."""

    _between_processes = False

    def __init__(self, topology: Topology, seed: int, options: BackendOptions = DEFAULTS) -> None:
        super().__init__(topology, seed, options)
        self._advanced_at = 0.0
        self._order = np.random.default_rng([seed, _ORDER])
        self._live = [self._counters(name) for name in self._telemetry]
        self._nodes: list[RunningNode] = []
        self._left: list[float] = []
        """When the last step of each node ended."""
        self._idle_rounds = 0
        self._rounds = 0
        self._threads_before: int | None = None

    def start(self) -> None:
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)  # sums over several threads may differ in the last bit
        self._construct()

    def _construct(self) -> None:
        for node, telemetry in zip(self._topology.nodes, self._live, strict=True):
            context = NodeContext(
                node.name,
                node.index,
                self._seed,
                telemetry,
                self._generation,
                self.run_dir,
                clock=lambda: self._rounds * _SECONDS_PER_ROUND,
            )
            saved = read_part(self._checkpoint, node.name) if self._checkpoint else None
            open_end = partial(self._fabric.open, holder=1)
            self._nodes.append(construct(node, context, open_end, saved))
        self._left = [time.perf_counter()] * len(self._nodes)

    def capture(self, wait_seconds: float) -> SerialCapture:
        parts = {node.name: captured_node(node) for node in self._nodes}
        return SerialCapture({**parts, CHANNELS: captured_channels(self._fabric)})

    def restore(self, checkpoint: Path, generation: int) -> None:
        """Begin from a checkpoint, also in the middle of a run.

        The run that saved it restores itself, too, which makes resuming exact."""
        self._checkpoint = checkpoint
        self._begin_from(checkpoint, generation)
        self._order = np.random.default_rng([self._seed, _ORDER, generation])
        if self._nodes:
            close_all(self._nodes)
            self._nodes = []
            self._construct()

    def advance(self, seconds: float) -> None:
        """Run a fixed number of rounds, because stopping must not depend on the clock.

        It ends earlier where the budget is spent, or a checkpoint or evaluation is due, so that a
        run that ends there and one that continues are at the same point."""
        self._advanced_at = self._env_steps()
        for _ in range(_ROUNDS_PER_ADVANCE):
            if self._is_due(self._env_steps()):
                break
            self._round()

    def _is_due(self, env_steps: float) -> bool:
        total, options = self._options.total_env_steps, self._options
        for period in (options.checkpoint_env_steps, options.evaluation_env_steps):
            if period is not None and env_steps // period > self._advanced_at // period:
                return True
        return total is not None and env_steps >= total

    def _env_steps(self) -> float:
        return sum(node.value("env_steps") for node in self._live)

    def pause(self) -> None:
        """Nodes only step in `advance`."""

    def _round(self) -> None:
        worked = False
        self._rounds += 1
        env_steps = self._env_steps()
        for index in self._order.permutation(len(self._nodes)):
            if self._is_due(env_steps):
                break
            # Summing over all nodes after each step would be quadratic in their number.
            before = self._live[index].value("env_steps")
            self._nodes[index].waiting.add(time.perf_counter() - self._left[index])
            worked |= self._nodes[index].step()
            self._left[index] = time.perf_counter()
            env_steps += self._live[index].value("env_steps") - before
        self._idle_rounds = 0 if worked else self._idle_rounds + 1
        if self._idle_rounds > _IDLE_ROUNDS_UNTIL_DEADLOCK:
            names = ", ".join(node.name for node in self._nodes)
            raise NodeFailure(names, "every node waits for another one: the topology is deadlocked")

    def process_ids(self) -> dict[str, int]:
        return {}

    def stop(self, wait_seconds: float = 5.0) -> None:
        close_all(self._nodes)
        self._nodes = []
        if self._threads_before is not None:
            torch.set_num_threads(self._threads_before)
            self._threads_before = None
