# SPDX-License-Identifier: Apache-2.0
"""One prioritized replay per class behind the same four calls; run in each library's environment.

`python benchmarks/replay_contestants.py LIBRARY CASE SECONDS FILL` prints one JSON line. Only NumPy
and the library are imported, since a peer's environment holds nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

CHUNK, BATCH, ALPHA, BETA = 64, 512, 0.6, 0.4
NUM_ENVS = NUM_STEPS = 8  # 8 steps of 8 environments are one chunk of 64 transitions
CYCLE = 16  # chunks until the stream repeats
CAPACITY = {"vector": 1_000_000, "frames": 50_000}


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Stream:
    """A stream of 8 environments that repeats after CYCLE chunks, the same for every library."""

    def __init__(self, case: str) -> None:
        random = np.random.default_rng(0)
        rows = CYCLE * NUM_STEPS
        if case == "vector":
            observations = random.normal(size=(rows, NUM_ENVS, 4)).astype(np.float32)
        else:
            frames = random.integers(0, 256, (rows, NUM_ENVS, 84, 84), dtype=np.uint8)
            parts = [np.roll(frames, 3 - age, axis=0) for age in range(4)]
            observations = np.stack(parts, axis=2)
        self.observations = np.concatenate([observations, observations[:1]])
        self.actions = random.integers(0, 2, (rows + 1, NUM_ENVS))
        self.rewards = random.normal(size=(rows + 1, NUM_ENVS)).astype(np.float32)
        self.priorities = random.random((CYCLE, BATCH)).astype(np.float32) + 1e-3

    def chunk(self, number: int) -> dict[str, np.ndarray]:
        """64 transitions, with next observations."""
        start = number % CYCLE * NUM_STEPS
        rows = slice(start, start + NUM_STEPS)
        after = slice(start + 1, start + NUM_STEPS + 1)
        shape = (CHUNK, *self.observations.shape[2:])
        return {
            "obs": self.observations[rows].reshape(shape),
            "next_obs": self.observations[after].reshape(shape),
            "act": self.actions[rows].reshape(CHUNK, 1),
            "rew": self.rewards[rows].reshape(CHUNK, 1),
            "done": np.zeros((CHUNK, 1), np.float32),
        }


class Veldt:
    """TransitionStore and PrioritizedSampler, writing into arrays allocated once."""

    def __init__(self, case: str, stream: Stream) -> None:
        from veldt.replay.samplers import PrioritizedSampler
        from veldt.replay.transitions import TransitionStore
        from veldt.types import ActionSpec, EnvironmentSpec, ObservationLeaf, trajectory_layout

        shape = stream.observations.shape[2:]
        image = case == "frames"
        dtype, kind = ("uint8", "image") if image else ("float32", "vector")
        leaf = ObservationLeaf("observation", shape, dtype, kind)
        spec = EnvironmentSpec("stream", (leaf,), ActionSpec("discrete", (2,)))
        layout = trajectory_layout(spec, NUM_STEPS, NUM_ENVS, {})
        self._store = TransitionStore(layout, CAPACITY[case], frame_stack=4 if image else 1)
        self._sampler = PrioritizedSampler(self._store, ALPHA, BETA)
        self._random = np.random.default_rng(0)
        fields = self._store.batch_layout(BATCH).items()
        self._out = {name: np.zeros(spec.shape, spec.dtype) for name, spec in fields}
        self._slots = [self._trajectory(layout, stream, number) for number in range(CYCLE)]

    @staticmethod
    def _trajectory(layout: Any, stream: Stream, number: int) -> dict[str, np.ndarray]:
        """A trajectory slot as an actor would have filled it; its arrays are reused."""
        start = number * NUM_STEPS
        rows = slice(start, start + NUM_STEPS + 1)
        filled = {name: np.zeros(spec.shape, spec.dtype) for name, spec in layout.items()}
        filled["observation"] = stream.observations[rows]
        filled["action"][:], filled["reward"][:] = stream.actions[rows], stream.rewards[rows]
        return filled

    def add(self, number: int) -> None:
        trajectory = self._slots[number % CYCLE]
        trajectory["provenance"][0, 2] = number
        self._sampler.apply(self._store.add(trajectory))

    def sample(self) -> None:
        indices, self.weights = self._sampler.sample(BATCH, self._random)
        self._store.sample(indices, self._out)

    def update(self, priorities: np.ndarray) -> None:
        self._sampler.update(self._out["item_id"], priorities)


class Cpprb:
    """cpprb with observation and next observation both stored, its plain setting."""

    def __init__(self, case: str, stream: Stream) -> None:
        from cpprb import PrioritizedReplayBuffer

        dtype = np.uint8 if case == "frames" else np.float32
        leaf = {"shape": stream.observations.shape[2:], "dtype": dtype}
        fields = {"obs": leaf, "next_obs": leaf, "act": {"dtype": np.int64}, "rew": {}, "done": {}}
        self._buffer = PrioritizedReplayBuffer(CAPACITY[case], fields, alpha=ALPHA)
        self._chunks = [stream.chunk(number) for number in range(CYCLE)]

    def add(self, number: int) -> None:
        self._buffer.add(**self._chunks[number % CYCLE])

    def sample(self) -> None:
        self._batch = self._buffer.sample(BATCH, BETA)

    def update(self, priorities: np.ndarray) -> None:
        self._buffer.update_priorities(self._batch["indexes"], priorities)


class CpprbCompressed(Cpprb):
    """cpprb keeping each frame once (`next_of`, `stack_compress`); one environment, frames last."""

    def __init__(self, case: str, stream: Stream) -> None:
        from cpprb import PrioritizedReplayBuffer

        if case == "vector":
            raise NotImplementedError("compression is for stacked frames")
        fields = {
            "obs": {"shape": (84, 84, 4), "dtype": np.uint8},
            "act": {"dtype": np.int64},
            "rew": {},
            "done": {},
        }
        self._buffer = PrioritizedReplayBuffer(
            CAPACITY[case], fields, alpha=ALPHA, next_of="obs", stack_compress="obs"
        )
        # 64 steps of one environment: consecutive rows are what the compression relies on.
        line = np.ascontiguousarray(np.moveaxis(stream.observations[:, 0], 1, -1))
        self._chunks = []
        for start in range(0, CHUNK * 2, CHUNK):
            chunk = dict(stream.chunk(start // NUM_STEPS))
            chunk["obs"] = line[start : start + CHUNK]
            chunk["next_obs"] = line[start + 1 : start + CHUNK + 1]
            self._chunks.append(chunk)

    def add(self, number: int) -> None:
        self._buffer.add(**self._chunks[number % 2])


class TorchRL:
    """TensorDictReplayBuffer over LazyTensorStorage with its PrioritizedSampler."""

    def __init__(self, case: str, stream: Stream) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        from torchrl.data.replay_buffers.samplers import PrioritizedSampler

        torch.set_num_threads(1)
        self._torch = torch
        self._buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(CAPACITY[case]),
            sampler=PrioritizedSampler(CAPACITY[case], alpha=ALPHA, beta=BETA),
            batch_size=BATCH,
        )
        chunks = [stream.chunk(number) for number in range(CYCLE)]
        self._chunks = [
            TensorDict({k: torch.from_numpy(v) for k, v in chunk.items()}, batch_size=[CHUNK])
            for chunk in chunks
        ]

    def add(self, number: int) -> None:
        self._buffer.extend(self._chunks[number % CYCLE])

    def sample(self) -> None:
        self._batch = self._buffer.sample()

    def update(self, priorities: np.ndarray) -> None:
        self._buffer.update_priority(self._batch["index"], self._torch.from_numpy(priorities))


class Reverb:
    """A Reverb table in this process, spoken to over localhost, read through TrajectoryDataset."""

    def __init__(self, case: str, stream: Stream) -> None:
        import reverb
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        chunk = stream.chunk(0)
        table = reverb.Table(
            "replay",
            sampler=reverb.selectors.Prioritized(ALPHA),
            remover=reverb.selectors.Fifo(),
            max_size=CAPACITY[case],
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature={k: tf.TensorSpec((1, *v.shape[1:]), v.dtype) for k, v in chunk.items()},
        )
        self._server = reverb.Server([table])
        address = f"localhost:{self._server.port}"
        self._client = reverb.Client(address)
        self._writer = self._client.trajectory_writer(num_keep_alive_refs=1)
        self._dataset = reverb.TrajectoryDataset.from_table_signature(
            address, "replay", max_in_flight_samples_per_worker=2 * BATCH
        ).batch(BATCH)
        self._batches: Any = None
        self._chunks = [stream.chunk(number) for number in range(CYCLE)]

    def add(self, number: int) -> None:
        chunk = self._chunks[number % CYCLE]
        for row in range(CHUNK):
            self._writer.append({name: value[row] for name, value in chunk.items()})
            item = {name: column[-1:] for name, column in self._writer.history.items()}
            self._writer.create_item("replay", 1.0, item)
        self._writer.flush()

    def sample(self) -> None:
        if self._batches is None:
            self._batches = iter(self._dataset)
        self._keys = next(self._batches).info.key.numpy().reshape(-1)

    def update(self, priorities: np.ndarray) -> None:
        pairs = zip(self._keys.tolist(), priorities.tolist(), strict=True)
        self._client.mutate_priorities("replay", updates=dict(pairs))


CONTESTANTS = {
    "veldt": Veldt,
    "cpprb": Cpprb,
    "cpprb_compressed": CpprbCompressed,
    "torchrl": TorchRL,
    "reverb": Reverb,
}


def per_second(action: Any, seconds: float, clock: Any) -> float:
    """Calls per second of `action(number)`, after a tenth of the time as warm-up."""
    count, begin, started = 0, 0, clock()
    measured_from = started
    while (now := clock()) - started < seconds * 1.1:
        if now - started < seconds * 0.1:
            begin, measured_from = count + 1, now
        action(count)
        count += 1
    return (count - begin) / (clock() - measured_from)


def measure(library: str, case: str, seconds: float, fill: float) -> dict[str, float]:
    # The thread's own time, since others may share the machine; Reverb works in threads of its own.
    clock = time.perf_counter if library == "reverb" else time.thread_time
    stream = Stream(case)
    before = resident_bytes()
    replay = CONTESTANTS[library](case, stream)
    chunks = int(CAPACITY[case] * fill) // CHUNK
    replay.add(0)  # loads what is compiled
    started = clock()
    for number in range(1, chunks):
        replay.add(number)
    adding = clock() - started
    used = resident_bytes() - before
    replay.sample()
    replay.update(stream.priorities[0])
    samples = per_second(lambda number: replay.sample(), seconds, clock)

    def update(number: int) -> None:
        replay.update(stream.priorities[number % CYCLE])

    updates = per_second(update, seconds, clock)

    def sample_update(number: int) -> None:
        replay.sample()
        update(number)

    pairs = per_second(sample_update, seconds, clock)

    def cycle(number: int) -> None:
        replay.add(chunks + number)
        sample_update(number)

    cycles = per_second(cycle, seconds, clock)
    return {
        "items": chunks * CHUNK,
        "adds_per_second": (chunks - 1) * CHUNK / adding,
        "samples_per_second": samples * BATCH,
        "updates_per_second": updates * BATCH,
        "sample_update_per_second": pairs * BATCH,
        "cycles_per_second": cycles,
        "memory_mb": used / 1e6,
    }


if __name__ == "__main__":
    name, case_name, duration, share = sys.argv[1:5]
    print(json.dumps(measure(name, case_name, float(duration), float(share))))
