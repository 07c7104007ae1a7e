# SPDX-License-Identifier: Apache-2.0
"""Which device each learner and each inference server computes on, where a user names them."""

from __future__ import annotations

from dataclasses import replace

import torch

from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.roles.gradients.hogwild import Hogwild, SharedModel
from veldt.roles.inference.server import SharedMemoryInference
from veldt.roles.inference.stream import StreamInference
from veldt.roles.learner import Learner
from veldt.topology import Topology


def check_devices(options: RunOptions, why_not_on_cuda: str | None) -> None:
    """Refuse devices that are not here, before anything is built."""
    named = dict.fromkeys(options.learner_devices, "learner_devices")
    if options.inference_device is not None:
        named[options.inference_device] = "inference_device"
    for name, option in named.items():
        _check(name, option)
        if name != "cpu" and why_not_on_cuda is not None:
            raise ConfigurationError(why_not_on_cuda)
        if options.backend == "ray" and ":" in name:
            raise ConfigurationError(
                f"{option} names {name}, but on Ray each process is given a GPU of its own and sees"
                " no other; use cuda without a number"
            )


def _check(name: str, option: str) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["cpu", *(["cuda"] if count else []), *(f"cuda:{index}" for index in range(count))]
    if name not in known:
        raise ConfigurationError(
            f"{option} is {name!r}, which is not on this machine; there is {', '.join(known)}"
        )


def place(topology: Topology, options: RunOptions) -> None:
    """Put learners and servers where `options` says; who is not named stays where it is."""
    _place_learners(topology, options.learner_devices)
    if options.inference_device is not None:
        _place_inference(topology, options.inference_device)


def _place_learners(topology: Topology, devices: tuple[str, ...]) -> None:
    learners = [node for node in topology.nodes if isinstance(node.role, Learner)]
    if devices and len(devices) != len(learners):
        raise ConfigurationError(
            f"learner_devices names {len(devices)} devices, but {topology.architecture} has"
            f" {len(learners)} learners here; name one for each"
        )
    for node, device in zip(learners, devices, strict=bool(devices)):
        assert isinstance(node.role, Learner)
        _require_own_model(topology, node.role.gradients, "learner_devices")
        node.role = replace(node.role, compute=replace(node.role.compute, device=device))


def _place_inference(topology: Topology, device: str) -> None:
    kinds = (SharedMemoryInference, StreamInference)
    servers = [node for node in topology.nodes if isinstance(node.role, kinds)]
    if not servers:
        raise ConfigurationError(
            f"{topology.architecture} has no inference server, so inference_device does not go with"
            " it; try seed_rl or sample_factory"
        )
    for node in servers:
        role = node.role
        assert isinstance(role, kinds)
        _require_own_model(topology, role.policy.weights, "inference_device")
        node.role = replace(role, policy=replace(role.policy, device=device))


def _require_own_model(topology: Topology, weights: object, option: str) -> None:
    if isinstance(weights, SharedModel | Hogwild):
        raise ConfigurationError(
            f"all of {topology.architecture} shares one model on one device, so {option} does not"
            " go with it; use --device"
        )
