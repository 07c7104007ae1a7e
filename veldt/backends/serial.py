# SPDX-License-Identifier: Apache-2.0
"""Every node in one thread, in an order drawn from the seed: the deterministic reference.

Asynchronous architectures keep their lag, but the same seed gives the same interleaving and so the
same bits. A lag bug seen once can be replayed in a debugger.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

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
    restore_counters,
    restore_role,
    with_saved_channels,
)
from veldt.backends.shared_memory.fabric import build_fabric
from veldt.checkpoints.store import read_part
from veldt.context import NodeContext
from veldt.telemetry.counters import TELEMETRY_BYTES, NodeSnapshot, NodeTelemetry, Spans, span_bytes
from veldt.topology import End, Node, Topology

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

    def __init__(self, topology: Topology, seed: int, options: BackendOptions = DEFAULTS) -> None:
        super().__init__(topology, seed, options)
        self._advanced_at = 0.0
        self._fabric = build_fabric(topology, between_processes=False, verify=options.verify)
        self._order = np.random.default_rng([seed, _ORDER])
        size = TELEMETRY_BYTES + span_bytes(options.timeline_seconds)
        self._telemetry = [NodeTelemetry(memoryview(bytearray(size))) for _ in topology.nodes]
        self._nodes: list[RunningNode] = []
        self._idle_rounds = 0
        self._rounds = 0
        self._threads_before: int | None = None

    def start(self) -> None:
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)  # sums over several threads may differ in the last bit
        self._construct()

    def _construct(self) -> None:
        for node, telemetry in zip(self._topology.nodes, self._telemetry, strict=True):
            seed, generation = self._seed, self._generation
            context = NodeContext(
                node.name, node.index, seed, telemetry, generation, self.run_dir, self._clock
            )
            running = construct(node, context, self._open)
            self._nodes.append(running)
            if self._checkpoint is not None:
                restore_role(running, read_part(self._checkpoint, node.name))

    def capture(self, patience_seconds: float) -> SerialCapture:
        parts = {node.name: captured_node(node) for node in self._nodes}
        return SerialCapture({**parts, CHANNELS: captured_channels(self._fabric)})

    def restore(self, checkpoint: Path, generation: int) -> None:
        """Begin from a checkpoint, also in the middle of a run.

        The run that saved it restores itself, too, which makes resuming exact."""
        self._checkpoint, self._generation = checkpoint, generation
        topology = with_saved_channels(self._topology, read_part(checkpoint, CHANNELS))
        self._fabric = build_fabric(topology, between_processes=False, verify=self._options.verify)
        self._order = np.random.default_rng([self._seed, _ORDER, generation])
        for node, telemetry in zip(self._topology.nodes, self._telemetry, strict=True):
            restore_counters(telemetry.memory, read_part(checkpoint, node.name))
        if self._nodes:
            close_all(self._nodes)
            self._nodes = []
            self._construct()

    def _open(self, node: Node, end: End) -> Any:
        return self._fabric.open(node, end, holder=1)

    def advance(self, seconds: float) -> None:
        """Run a fixed number of rounds, because stopping must not depend on the clock.

        It ends earlier where the budget is spent or a checkpoint is due, so that a run that ends
        there and one that continues are at the same point."""
        self._advanced_at = self._env_steps()
        for _ in range(_ROUNDS_PER_ADVANCE):
            if self._is_due(self._env_steps()):
                break
            self._round()

    def _is_due(self, env_steps: float) -> bool:
        total, period = self._options.total_env_steps, self._options.checkpoint_env_steps
        if period is not None and env_steps // period > self._advanced_at // period:
            return True
        return total is not None and env_steps >= total

    def _env_steps(self) -> float:
        return sum(node.value("env_steps") for node in self._telemetry)

    def pause(self) -> None:
        """Nodes only step in `advance`."""

    def _clock(self) -> float:
        return self._rounds * _SECONDS_PER_ROUND

    def _round(self) -> None:
        worked = False
        self._rounds += 1
        busy = []
        env_steps = self._env_steps()
        started = clock = time.perf_counter()
        for index in self._order.permutation(len(self._nodes)):
            if self._is_due(env_steps):
                break
            # Summing over all nodes after each step would be quadratic in their number.
            before = self._telemetry[index].value("env_steps")
            worked |= self._nodes[index].step()
            env_steps += self._telemetry[index].value("env_steps") - before
            now = time.perf_counter()
            busy.append((index, clock, now))
            clock = now
        for index, left, returned in busy:
            self._nodes[index].waiting.add_except(started, left, returned, clock)
        self._idle_rounds = 0 if worked else self._idle_rounds + 1
        if self._idle_rounds > _IDLE_ROUNDS_UNTIL_DEADLOCK:
            names = ", ".join(node.name for node in self._nodes)
            raise NodeFailure(names, "every node waits for another one: the topology is deadlocked")

    def snapshots(self) -> list[NodeSnapshot]:
        return [telemetry.snapshot() for telemetry in self._telemetry]

    def take_spans(self) -> dict[str, Spans]:
        names = (node.name for node in self._topology.nodes)
        return {n: node.take_spans() for n, node in zip(names, self._telemetry, strict=True)}

    def process_ids(self) -> dict[str, int]:
        return {}

    def stop(self) -> None:
        close_all(self._nodes)
        self._nodes = []
        if self._threads_before is not None:
            torch.set_num_threads(self._threads_before)
            self._threads_before = None
