# SPDX-License-Identifier: Apache-2.0
"""Serves the pages, and metrics for Prometheus, to this machine only and from installed files."""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import uvicorn
from fastapi import FastAPI, Request
from nicegui import Client, app, background_tasks, ui
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response

from veldt.dashboard.page import Overview, RunPage
from veldt.dashboard.reading import RunReader, RunView

Page = TypeVar("Page", RunPage, Overview)

_REFRESH_SECONDS = 1.0
_NICENESS = 10
_SECURITY_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none';"
    " connect-src 'self' ws://127.0.0.1:* ws://localhost:*"
)
"""Nothing but this server; NiceGUI needs inline code and evaluates the templates of its page."""
_LABELS = ("run", "architecture", "env", "seed")
_COUNTED = ("env_steps", "updates", "episodes")
_FAMILIES = ("info", "environment", "queue", "busy", "counter")
"""Metrics "family/name" whose names depend on the run: the name becomes a label."""


def serve(readers: Mapping[str, RunReader], listener: socket.socket, beside_run: bool) -> None:
    """Serve until interrupted or, beside a run, until standard input closes.

    With several runs, the first page is an overview with links to the page of each."""

    def views() -> list[tuple[str, RunView]]:
        return [(name, reader.read()) for name, reader in readers.items()]

    def show(number: int) -> None:
        read = list(readers.values())[number].read
        _show(lambda: RunPage(read(), len(readers) > 1), lambda page: page.refresh(read()))

    @ui.page("/")
    def first() -> None:
        if len(readers) == 1:
            show(0)
        else:
            _show(lambda: Overview(views()), lambda page: page.refresh(views()))

    @ui.page("/run/{number}")
    def one_of_several(number: int) -> None:
        show(min(max(number, 0), len(readers) - 1))

    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @outer.get("/metrics")
    async def metrics() -> Response:
        found = []
        for reader in readers.values():
            with suppress(Exception):  # files that make no sense
                found.append((reader.read(), reader.run_dir))
        return Response(exposition(found), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @outer.middleware("http")
    async def restrict(
        request: Request, answer: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = await answer(request)
        response.headers["Content-Security-Policy"] = _SECURITY_POLICY
        return response

    # Against DNS rebinding: pages of other sites must not reach this one.
    outer.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    ui.run_with(
        outer,
        title="Veldt",
        favicon=_ICON,
        dark=None,
        tailwind=False,
        binding_refresh_interval=None,
        reconnect_timeout=10.0,
        show_welcome_message=False,
    )
    config = uvicorn.Config(outer, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    if beside_run:
        os.nice(_NICENESS)
        app.on_startup(lambda: _end_with_input(server))
    server.run(sockets=[listener])


def _show(make: Callable[[], Page], refresh: Callable[[Page], None]) -> None:
    """Show a page and keep it up to date.

    A run directory may come from a stranger: files that make no sense must not end the server."""
    try:
        page = make()
    except Exception as error:
        ui.label(f"These files cannot be shown ({type(error).__name__}: {error})")
        return

    def update() -> None:
        with suppress(Exception):
            refresh(page)

    ui.timer(_REFRESH_SECONDS, update)


def _end_with_input(server: uvicorn.Server) -> None:
    loop = asyncio.get_running_loop()

    def closed() -> None:
        loop.remove_reader(sys.stdin)
        background_tasks.create(stop())

    async def stop() -> None:
        if Client.instances:
            await asyncio.sleep(_REFRESH_SECONDS + 0.3)  # visitors see the result
        server.should_exit = True

    loop.add_reader(sys.stdin, closed)


def exposition(runs: Iterable[tuple[RunView, Path]]) -> bytes:
    """The newest metrics in Prometheus' text format, with the run as labels."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Runs(list(runs)))
    return generate_latest(registry)


class _Runs(Collector):
    def __init__(self, runs: list[tuple[RunView, Path]]) -> None:
        self._runs = runs

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        names = Counter(run_dir.name for _, run_dir in self._runs)
        for view, run_dir in self._runs:
            # Prometheus refuses two runs of the same name, so those get their whole path.
            run = run_dir.name if names[run_dir.name] == 1 else str(run_dir)
            labels = [run, view.config["architecture"], view.option("env"), view.option("seed")]
            for name, label, value in _samples(view):
                more = [] if label is None else [label]
                family = families.setdefault(name, _family(name, label is not None))
                family.add_metric([*map(str, labels), *more], value)  # type: ignore[attr-defined]
        yield from families.values()


def _family(name: str, is_named: bool) -> Metric:
    kind = CounterMetricFamily if name.removeprefix("veldt_") in _COUNTED else GaugeMetricFamily
    return kind(name, name, labels=[*_LABELS, "name"] if is_named else _LABELS)


def _samples(view: RunView) -> Iterator[tuple[str, str | None, float]]:
    """Name, value of the label `name` if there is one, and value."""
    yield "veldt_up", None, float(view.state in ("starting", "running"))
    for metric, value in view.latest.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            continue
        family, _, name = metric.partition("/")
        if metric == "time":
            yield "veldt_reported_timestamp_seconds", None, value
        elif family in _FAMILIES:
            yield f"veldt_{family}", name, value
        else:
            yield "veldt_" + re.sub(r"[^a-zA-Z0-9_]", "_", metric), None, value


_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16"'
    ' height="16" rx="4" fill="#2f9e6e"/><path d="M3.5 4.5 8 12l4.5-7.5" fill="none" stroke="#fff"'
    ' stroke-width="2"/>'
    "</svg>"
)
