# SPDX-License-Identifier: Apache-2.0
"""What a backend takes long to start, begun while this process still imports torch and finds out
what is to run; it ends with whoever began it, if nothing ran."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_STARTING = "veldt.backends.ray.starting"


def prepare(backend: object, num_actors: object, modules: Sequence[str]) -> None:
    """Returns at once. `num_actors`: as the option says it; `modules` are imported there."""
    if backend == "process":
        from veldt.backends.process.forkserver import warm_up

        warm_up(*modules)
    elif backend == "ray":
        from veldt.backends.ray.starting import begin_early

        begin_early(num_actors, modules)


def give_up() -> None:
    """End what was begun for a run that never came. The fork server is kept for the next one."""
    if _STARTING in sys.modules:
        sys.modules[_STARTING].give_up()


@contextmanager
def prepared(backend: object, num_actors: object, modules: Sequence[str]) -> Iterator[None]:
    """Prepare, and give up what is not used within."""
    prepare(backend, num_actors, modules)
    try:
        yield
    finally:
        give_up()
