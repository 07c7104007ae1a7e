# SPDX-License-Identifier: Apache-2.0
"""A learner on a GPU against a bare loop: the same network's PPO update as one CUDA graph in
bfloat16 over data that already lies on the device, with nothing around it.

python benchmarks/gpu_learner.py
python benchmarks/gpu_learner.py --cases nature:64 --device cpu --seconds 1   # a rehearsal

Samples are rows times epochs. Ours includes what a run does with every batch: its upload from host
memory, targets, shuffling, lag, the check for finite numbers, and publishing the weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import measuring
import numpy as np
import torch
from torch import Tensor, nn

from veldt.context import NodeContext
from veldt.devices import Compute
from veldt.losses.ppo import PPO, ClippedOptions
from veldt.networks import NetworkFactory, NetworkOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.fields import changed
from veldt.roles.gradients import LocalOptimizer
from veldt.roles.learner import Learner
from veldt.telemetry.counters import NodeTelemetry
from veldt.types import (
    ActionSpec,
    Batch,
    EnvironmentSpec,
    ObservationLeaf,
    Parameters,
    trajectory_layout,
)

ACTIONS, STEPS, EPOCHS, MINIBATCHES = 6, 32, 3, 4
SHAPE = (4, 84, 84)
SPEC = EnvironmentSpec(
    "images", (ObservationLeaf("observation", SHAPE, "uint8", "image"),),
    ActionSpec("discrete", (ACTIONS,)),
)  # fmt: skip


class InMemory:
    """A source that always has the same two batches, as a queue's slots always are the same."""

    def __init__(self, network: NetworkFactory, rows: int) -> None:
        layout = trajectory_layout(
            SPEC, STEPS, rows // STEPS, network.outline().output_fields()
        )  # fmt: skip
        self._batches = [self._batch(layout, seed) for seed in range(2)]
        self._taken = 0

    @staticmethod
    def _batch(layout: Any, seed: int) -> Batch:
        draw = np.random.default_rng(seed)
        arrays = {name: np.zeros(field.shape, field.dtype) for name, field in layout.items()}
        shape = arrays["observation"].shape
        arrays["observation"][:] = draw.integers(0, 256, shape, dtype=np.uint8)
        arrays["action"][:] = draw.integers(0, ACTIONS, arrays["action"].shape)
        arrays["reward"][:] = draw.normal(size=arrays["reward"].shape)
        return Batch(arrays, memory_stays=True)

    def take_batch(self) -> Batch:
        self._taken += 1
        return self._batches[self._taken % 2]

    def release(self, batch: Batch) -> None: ...


class Shelf:
    """A board for one: what is published is copied, as into shared memory."""

    def __init__(self, size: int) -> None:
        self._vector = np.empty(size, np.float32)

    def publish(self, parameters: Parameters) -> None:
        self._vector[:] = parameters.vector


def our_learner(encoder: str, rows: int, device: str) -> Learner:
    """One batch of `MINIBATCHES` minibatches of `rows`, EPOCHS times, per step."""
    network = NetworkFactory(NetworkOptions(encoder=encoder), SPEC, "policy_value")
    loss = changed(
        ClippedOptions(), trace_lambda=0.95, epochs=EPOCHS, minibatches=MINIBATCHES, target_kl=0.0
    )
    learner = Learner(
        network,
        InMemory(network, rows * MINIBATCHES),
        PPO(loss),
        LocalOptimizer(OptimizerOptions("adam", 1e-5)),
        weights=Shelf(network.size()),
        compute=Compute(device),
    )
    learner.open(NodeContext("learner-0", 0, 0, NodeTelemetry()))
    return learner


def bare_network(encoder: str) -> nn.Module:
    if encoder == "nature":
        layers = (nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1))
        images = [part for layer in layers for part in (layer, nn.ReLU())]
        tail = [nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, ACTIONS + 1)]
        return nn.Sequential(*images, *tail)
    blocks: list[nn.Module] = []
    channels = 4
    for width in (16, 32, 32):
        blocks += [nn.Conv2d(channels, width, 3, 1, 1), nn.MaxPool2d(3, 2, 1)]
        blocks += [BareResidual(width), BareResidual(width)]
        channels = width
    tail = [nn.ReLU(), nn.Flatten(), nn.Linear(32 * 11 * 11, 256), nn.ReLU()]
    return nn.Sequential(*blocks, *tail, nn.Linear(256, ACTIONS + 1))


class BareResidual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1),
            nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1),
        )  # fmt: skip

    def forward(self, image: Tensor) -> Tensor:
        return image + self.body(image)


def bare_loop(encoder: str, rows: int, device: str) -> Callable[[], object]:
    """One minibatch per call."""
    network = bare_network(encoder).to(device).to(memory_format=torch.channels_last)
    on_gpu = device == "cuda"
    optimizer = torch.optim.Adam(network.parameters(), 1e-5, capturable=on_gpu, foreach=True)
    image = torch.randint(0, 256, (rows, *SHAPE), dtype=torch.uint8, device=device)
    image = image.to(memory_format=torch.channels_last)
    action = torch.randint(0, ACTIONS, (rows, 1), device=device)
    old, advantage, target = torch.randn(3, rows, device=device).unbind()

    def update() -> None:
        with torch.autocast(device, torch.bfloat16):
            both = network(image.to(torch.bfloat16) / 255.0).float()
        log_pi = both[:, :ACTIONS].log_softmax(1)
        ratio = (log_pi.gather(1, action).squeeze(1) - old).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.25) * advantage)
        entropy = -(log_pi.exp() * log_pi).sum(1)
        loss = (
            -surrogate.mean() + (both[:, ACTIONS] - target).square().mean() - 0.01 * entropy.mean()
        )
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5, foreach=True)
        optimizer.step()

    return recorded(update) if on_gpu else update


def recorded(update: Callable[[], None]) -> Callable[[], object]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            update()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update()

    def replay() -> None:
        graph.replay()

    replay.keeps = update  # type: ignore[attr-defined]  # the graph does not hold what it reads
    return replay


def calls_per_second(call: Callable[[], object], seconds: float, device: str) -> float:
    def finish() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(5):
        call()
    finish()
    started, calls = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        for _ in range(4):
            call()
        calls += 4
        finish()
    return calls / (time.perf_counter() - started)


def compare(case: str, device: str, seconds: float) -> dict[str, Any]:
    """Ours between two measurements of the bare loop: the machine's pace changes."""
    encoder, rows = case.split(":")
    count = int(rows)
    bare = bare_loop(encoder, count, device)
    before = calls_per_second(bare, seconds / 2, device) * count
    ours = our_learner(encoder, count, device)
    own = calls_per_second(ours.step, seconds, device) * count * MINIBATCHES * EPOCHS
    ours.close()
    after = calls_per_second(bare, seconds / 2, device) * count
    mean = (before + after) / 2
    found = {"network": encoder, "rows": count, "bare": [before, after], "ours": own}
    return {**found, "ratio": own / mean}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ["nature:512", "nature:1024", "nature:4096", "resnet:4096"]
    parser.add_argument("--cases", nargs="+", default=default, help="NETWORK:ROWS of a minibatch")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--name", default="gpu_learner", help="of the file with results")
    arguments = parser.parse_args()
    cases = []
    for case in arguments.cases:
        found = compare(case, arguments.device, arguments.seconds)
        bare = " and ".join(f"{rate:,.0f}" for rate in found["bare"])
        print(f"{case}: ours {found['ours']:,.0f} samples/s, bare {bare}: {found['ratio']:.2f}",
              flush=True)  # fmt: skip
        cases.append(found)
    gpu = torch.cuda.get_device_name() if arguments.device == "cuda" else "none"
    machine = {**measuring.machine(), "gpu": gpu}
    settings = {"epochs": EPOCHS, "minibatches": MINIBATCHES, "device": arguments.device}
    measuring.save(arguments.name, {"machine": machine, "settings": settings, "cases": cases})


if __name__ == "__main__":
    main()
