# SPDX-License-Identifier: Apache-2.0
"""The model pool: frozen weights as files, and the networks of those that an actor plays."""

from __future__ import annotations

import io
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from veldt.files import write_atomically
from veldt.networks import FlatParameters, Network, NetworkFactory
from veldt.telemetry.record import LEAGUE_FOLDER

BEST_MODEL, BEST_FACTS = "best-model.npy", "best-model.json"


class ModelPool:
    """RUN_DIR/league/model-<number>.npy, flat float32 vectors. A model is on disk before its number
    is published, and never changes, so that no death of a process can lose it."""

    def __init__(self, run_dir: Path | None) -> None:
        if run_dir is None:
            raise RuntimeError("a league keeps its models in the run's directory; there is none")
        self.folder = run_dir / LEAGUE_FOLDER

    def path(self, number: int) -> Path:
        return self.folder / f"model-{number:06d}.npy"

    def write(self, number: int, vector: np.ndarray) -> None:
        self._write(self.path(number), vector)

    def read(self, number: int) -> np.ndarray:
        try:
            vector: np.ndarray = np.load(self.path(number), allow_pickle=False)
        except OSError as error:
            raise RuntimeError(
                f"the frozen model {self.path(number)} cannot be read; on several machines RUN_DIR"
                " must be on a file system that all of them share"
            ) from error
        return vector

    def write_best(self, vector: np.ndarray, facts: Mapping[str, float]) -> None:
        """The main player at its best measure, with what was measured. Facts are written last, so
        that a reader finds a model that is at least as good."""
        self._write(self.folder / BEST_MODEL, vector)
        write_atomically(self.folder / BEST_FACTS, json.dumps(dict(facts)) + "\n")

    def read_best(self) -> tuple[np.ndarray, dict[str, float]] | None:
        """None if nothing was measured, or what was written cannot be read."""
        try:
            vector: np.ndarray = np.load(self.folder / BEST_MODEL, allow_pickle=False)
            facts = json.loads((self.folder / BEST_FACTS).read_text(encoding="utf-8"))
            return vector, {name: float(value) for name, value in facts.items()}
        except (OSError, ValueError, AttributeError):
            return None

    def append(self, log: str, entry: Mapping[str, object]) -> None:
        """Add a line to a log in the pool's folder."""
        self.folder.mkdir(exist_ok=True)
        with open(self.folder / log, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _write(self, path: Path, vector: np.ndarray) -> None:
        self.folder.mkdir(exist_ok=True)
        content = io.BytesIO()
        np.save(content, np.asarray(vector, np.float32), allow_pickle=False)
        write_atomically(path, content.getvalue(), durable=True)


class ResidentModels:
    """Networks by key, at most `most` of them; a missing one replaces the least recently used."""

    def __init__(
        self, factory: NetworkFactory, most: int, load: Callable[[int], np.ndarray]
    ) -> None:
        self._factory, self._most, self._load = factory, most, load
        self._models: OrderedDict[int, tuple[Network, FlatParameters]] = OrderedDict()
        self._idle: list[tuple[Network, FlatParameters]] = []

    def __call__(self, key: int) -> Network:
        if key in self._models:
            self._models.move_to_end(key)
            return self._models[key][0]
        if self._idle:
            entry = self._idle.pop()
        elif len(self._models) < self._most:
            network = self._factory.make().eval()
            entry = (network, FlatParameters(network))
        else:
            _, entry = self._models.popitem(last=False)
        entry[1].load(self._load(key))
        self._models[key] = entry
        return entry[0]

    def forget(self) -> None:
        """Load each model again when it is next used, because its weights may have changed."""
        self._idle += self._models.values()
        self._models.clear()
