# SPDX-License-Identifier: Apache-2.0
"""Which device each learner and each inference server computes on, where a user names several."""

from __future__ import annotations

from dataclasses import replace

import torch

from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.roles.hogwild import Hogwild, SharedModel
from veldt.roles.inference import SharedMemoryInference
from veldt.roles.learner import Learner
from veldt.roles.stream_inference import StreamInference
from veldt.topology import Topology

_SERVERS = (SharedMemoryInference, StreamInference)


def check_devices(options: RunOptions) -> None:
    """Refuse devices that this machine does not have, before anything is built."""
    known = ["cpu"]
    if torch.cuda.is_available():
        known += ["cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    for name in options.devices():
        if name not in known:
            raise ConfigurationError(
                f"device is {name}, which is not on this machine; there is {', '.join(known)}"
            )
        if options.backend == "ray" and ":" in name:
            raise ConfigurationError(
                f"device names {name}, but on Ray each process is given a GPU of its own and sees"
                " no other; use cuda without a number"
            )


def place(topology: Topology, options: RunOptions) -> None:
    """Put learners and inference servers on the devices that were named, if it was not one kind."""
    named = options.devices()
    if named in ((), ("cpu",), ("cuda",)):
        return
    learners = [node for node in topology.nodes if isinstance(node.role, Learner)]
    servers = [node for node in topology.nodes if isinstance(node.role, _SERVERS)]
    if len(named) == 1:
        named = named * (len(learners) + bool(servers))
    if len(named) not in (len(learners), len(learners) + bool(servers)):
        last = ", then one for the inference server" if servers else ""
        raise ConfigurationError(
            f"device names {len(named)} devices, but {topology.architecture} has {len(learners)}"
            f" learners here; name one for each{last}"
        )
    for node, device in zip(learners, named, strict=False):
        role = node.role
        assert isinstance(role, Learner)
        _require_own_model(topology, role.gradients)
        node.role = replace(role, compute=replace(role.compute, device=device))
    for node in servers:
        server = node.role
        assert isinstance(server, _SERVERS)
        _require_own_model(topology, server.policy.weights)
        node.role = replace(server, policy=replace(server.policy, device=named[-1]))


def _require_own_model(topology: Topology, weights: object) -> None:
    if isinstance(weights, SharedModel | Hogwild):
        raise ConfigurationError(
            f"all of {topology.architecture} shares one model on one device; use --device cpu or"
            " cuda"
        )
