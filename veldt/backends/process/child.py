# SPDX-License-Identifier: Apache-2.0
"""One node process, as its supervisor sees it: alive or not, what it reported, how it is ended.

The kernel is asked whether it lives, not the fork server: that one may be killed, and the nodes it
made go on. A node leads a process group, so that what its environments start ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess

from veldt.backends.base import NodeFailure
from veldt.backends.process.forkserver import keep_running, server_context
from veldt.backends.process.worker import Launch, run_group
from veldt.backends.shared_memory.memory import Descriptor
from veldt.backends.shared_memory.sent import SentFabric
from veldt.environments.processes import kill_group
from veldt.topology import Group

_LAUNCHES = 3
_EXIT_CODE_SECONDS = 1.0
_DEATH_SECONDS = 5.0  # a killed process that is still there is stuck in the kernel
_STACK_SECONDS = 0.3
_SERVER_GONE = 255  # what multiprocessing says when nobody is left to tell the exit code


@dataclass(frozen=True)
class Unsaved:
    """A node could not hand over its state."""

    number: int
    node: str
    cause: str


class Child:
    """A running process group of nodes and what ties it to this process."""

    def __init__(self, group: Group, launch: Launch) -> None:
        """`launch` without its pipes, which are made here."""
        self.group, self.holder, self.incarnation = group, launch.holder, launch.incarnation
        self.unsaved: list[Unsaved] = []
        self._failure: NodeFailure | None = None
        for attempt in range(_LAUNCHES):
            try:
                self._start(launch)
                break
            except (EOFError, OSError) as error:  # the fork server died in these milliseconds
                if attempt == _LAUNCHES - 1:
                    raise NodeFailure(
                        group.name,
                        f"its process could not be started ({type(error).__name__}: {error})",
                    ) from error
        self.started = time.monotonic()

    def _start(self, launch: Launch) -> None:
        keep_running()
        reader, self._lifeline = os.pipe()
        self._errors, writer = os.pipe()
        launch = replace(launch, lifeline=Descriptor(reader), errors=Descriptor(writer))
        try:
            self._process = _launched(launch, self.group.name)
        except BaseException:
            # With its lifeline goes a process that was made although nobody could tell us so.
            os.close(self._lifeline)
            os.close(self._errors)
            raise
        finally:
            os.close(reader)
            os.close(writer)
        os.set_blocking(self._errors, False)
        self._pidfd = _open_process(self.process_id)

    @property
    def process_id(self) -> int:
        return self._process.pid or 0

    @property
    def end(self) -> int:
        """A descriptor that is readable once the process has ended."""
        return self._process.sentinel if self._pidfd is None else self._pidfd

    def is_alive(self) -> bool:
        return not connection.wait([self.end], timeout=0)

    def kill(self) -> None:
        """At once, and all of its process group with it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process_id, signal.SIGKILL)
        connection.wait([self.end], timeout=_DEATH_SECONDS)
        self.end_descendants()

    def end_descendants(self) -> None:
        """Kill what a dead node's environments left running."""
        kill_group(self.process_id)

    def cause_of_death(self) -> str:
        self._process.join(_EXIT_CODE_SECONDS)
        code = self._process.exitcode
        if code is None or code == _SERVER_GONE:
            return "an unknown exit code, as the fork server is gone too"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def stack(self) -> str:
        """Where its Python code is at this moment."""
        self.read()
        os.kill(self.process_id, signal.SIGUSR1)
        time.sleep(_STACK_SECONDS)
        return self.read() or "(no Python stack: the process does not react to signals)"

    def failure(self) -> NodeFailure | None:
        """What a role raised, if the process reported that before it gave up."""
        self.read()
        return self._failure

    def read(self) -> str:
        """Take what the process wrote: reports are kept, the rest, a stack, is returned."""
        try:
            text = os.read(self._errors, 1 << 16).decode(errors="replace")
        except BlockingIOError:
            return ""
        return "\n".join(line for line in text.splitlines() if not self._keep(line))

    def _keep(self, line: str) -> bool:
        try:
            report = json.loads(line)
            if "number" in report:
                self.unsaved.append(Unsaved(**report))
            else:
                self._failure = NodeFailure(report["node"], report["cause"], report["trace"])
        except (ValueError, TypeError, KeyError):
            return False
        return True

    def close(self) -> None:
        os.close(self._lifeline)
        os.close(self._errors)
        if self._pidfd is not None:
            os.close(self._pidfd)
        with contextlib.suppress(ValueError):  # without its server nobody knows that it has ended
            self._process.close()


def _launched(launch: Launch, name: str) -> ForkServerProcess:
    process = server_context().Process(target=run_group, args=(launch,), name=name)
    try:
        process.start()
    except ValueError:  # a fork server takes some 250 descriptors
        if isinstance(launch.fabric, SentFabric):
            raise
        return _launched(replace(launch, fabric=SentFabric.of(launch.fabric)), name)
    return process


def _open_process(process_id: int) -> int | None:
    """A descriptor of the process itself; None where the system has none or it is gone by now."""
    try:
        return os.pidfd_open(process_id)
    except (AttributeError, OSError):
        return None
