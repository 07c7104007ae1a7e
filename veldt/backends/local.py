# SPDX-License-Identifier: Apache-2.0
"""What backends on one machine remember of the run that drives them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from veldt.backends.base import DEFAULTS, BackendOptions
from veldt.backends.shared_memory.fabric import OverFabric
from veldt.topology import Topology


class LocalBackend(OverFabric):
    """All channels are in one fabric."""

    def __init__(self, topology: Topology, seed: int, options: BackendOptions = DEFAULTS) -> None:
        self._topology, self._seed, self._options = topology, seed, options
        self._checkpoint: Path | None = None
        self._generation = 0
        self.run_dir: Path | None = None
        self.notes: list[str] = []
        """What the backend saw and did, for the run to report."""
        self.restarts = 0
        self.restarted: Counter[str] = Counter()
