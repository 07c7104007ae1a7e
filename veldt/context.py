# SPDX-License-Identifier: Apache-2.0
"""What a backend passes to a role when it opens it."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from veldt.telemetry.counters import NodeTelemetry


def do_nothing() -> None: ...


@dataclass
class NodeContext:
    """Name, place in the run, random streams and counters of one node."""

    name: str
    index: int
    seed: int
    """The run's seed; `random` and `derived_seed` give the node's own streams."""
    telemetry: NodeTelemetry
    incarnation: int = 0
    """How often this node has been restarted; data of an older incarnation is refused."""
    run_dir: Path | None = None
    """Where a node may write files, such as logs."""
    clock: Callable[[], float] = time.monotonic
    """Seconds. On the serial backend they advance with each round."""
    wake: Callable[[], None] = do_nothing
    """Lets this node take a step soon; may be called from any thread."""

    def derived_seed(self, purpose: str) -> int:
        """A 63-bit seed of this node, incarnation and purpose, independent of the others."""
        key = [self.seed, zlib.crc32(self.name.encode()), self.incarnation]
        entropy = np.random.SeedSequence([*key, zlib.crc32(purpose.encode())])
        return int(entropy.generate_state(1, np.uint64)[0] >> 1)

    def random(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(self.derived_seed(purpose))
