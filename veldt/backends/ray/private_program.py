# SPDX-License-Identifier: Apache-2.0
"""The program that is a private cluster: Ray's head and one raylet, and none of the services that a
run on one machine never asks.

It imports Ray on one core while the run imports torch on another. One line on its standard output
says the address; it ends, with all it started, when its standard input is closed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

_CHECKED = ("2.60",)
"""Versions of Ray whose services are known to be left out well. Others start all they have."""
_STAND_IN = Path(__file__).with_name("agent_stand_in.py")
_NOT_IN_USE = -1  # what an agent without a port of its own writes

_end: Callable[[], object] | None = None


def main() -> None:
    num_processes = int(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGINT):  # the run's to handle, which still needs us
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_end_with_owner, daemon=True).start()
    global _end
    try:
        address, _end = _start(num_processes)
    except Exception as error:
        print(f"failed {type(error).__name__}: {' '.join(str(error).split())}", flush=True)
        return
    print(f"address {address}", flush=True)
    while True:
        signal.pause()


def _end_with_owner() -> None:
    """What Ray has started so far is ended by the kernel, with the thread that started it."""
    sys.stdin.buffer.read()
    try:
        if _end is not None:
            _end()
    finally:
        os._exit(0)


def _start(num_processes: int) -> tuple[str, Callable[[], object]]:
    """The address, and what ends the cluster."""
    import ray

    # An environment that is made to order, by such a hook, is made by one of Ray's agents.
    if is_checked(ray.__version__) and not os.environ.get("RAY_RUNTIME_ENV_HOOK"):
        return _start_lean(num_processes)
    ray.init(address="local", _node_ip_address="127.0.0.1", include_dashboard=False)
    return ray.get_runtime_context().gcs_address, ray.shutdown


def is_checked(version: str) -> bool:
    """Whether what is changed here in Ray was tried with this version of it."""
    return ".".join(version.split(".")[:2]) in _CHECKED


def _start_lean(num_processes: int) -> tuple[str, Callable[[], object]]:
    import ray
    from ray._private import parameter, services
    from ray._private.node import Node

    raylet: Any = ray._raylet
    parameters_of: Any = parameter.RayParams

    class LeanNode(Node):
        """No server of a dashboard, and a raylet that waits for no agents."""

        def start_api_server(self, **_: Any) -> None: ...

        def start_raylet(self, *given: Any, **named: Any) -> None:
            for name in (
                raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME,
                raylet.METRICS_AGENT_PORT_NAME,
                raylet.METRICS_EXPORT_PORT_NAME,
                raylet.RUNTIME_ENV_AGENT_PORT_NAME,
            ):
                raylet.persist_port(self._session_dir, self._node_id, name, _NOT_IN_USE)
            super().start_raylet(*given, **named)

    services.start_ray_process = partial(_start_leaner, services.start_ray_process, num_processes)
    parameters = parameters_of(
        node_ip_address="127.0.0.1",
        include_dashboard=False,
        include_log_monitor=False,  # nobody reads what it forwards: log_to_driver is off
        no_monitor=True,  # no machine can join, so there is nothing to scale
    )
    node = LeanNode(parameters, head=True, shutdown_at_exit=False, ray_init_cluster=True)
    return node.address, partial(node.kill_all_processes, check_alive=False, allow_graceful=True)


def _start_leaner(
    start: Any, num_processes: int, command: list[str], *given: Any, **named: Any
) -> Any:
    """Ray's own start of a process, with a raylet's agents and first workers replaced."""
    stand_in = subprocess.list2cmdline([sys.executable, "-I", "-S", str(_STAND_IN)])
    instead = {
        "--dashboard_agent_command": stand_in,
        "--runtime_env_agent_command": stand_in,
        "--num_prestart_python_workers": str(num_processes),
    }
    names = (word.partition("=")[0] for word in command)
    words = [
        f"{n}={instead[n]}" if n in instead else word
        for n, word in zip(names, command, strict=True)
    ]
    return start(words, *given, **named)


if __name__ == "__main__":
    main()
