# SPDX-License-Identifier: Apache-2.0
"""Serves the page, and metrics for Prometheus, to this machine only and from installed files."""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import uvicorn
from fastapi import FastAPI, Request
from nicegui import Client, app, background_tasks, ui
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response

from veldt.dashboard.page import RunPage
from veldt.dashboard.reading import RunReader, RunView

_REFRESH_SECONDS = 1.0
_SECURITY_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none';"
    " connect-src 'self' ws://127.0.0.1:* ws://localhost:*"
)
"""Nothing but this server; NiceGUI needs inline code and evaluates the templates of its page."""
disable_created_metrics()
_LABELS = ("run", "architecture", "env", "seed")
_COUNTED = ("env_steps", "updates", "episodes")
_FAMILIES = ("info", "queue", "busy", "counter")
"""Metrics "family/name" whose names depend on the run: the name becomes a label."""


def serve(reader: RunReader, listener: socket.socket, beside_run: bool) -> None:
    """Serve until interrupted or, beside a run, until standard input closes."""

    @ui.page("/")
    def page() -> None:
        # Files of a stranger that make no sense must not end the server.
        try:
            shown = RunPage(reader.read())
        except Exception as error:
            ui.label(f"These files cannot be shown ({type(error).__name__}: {error})")
            return

        def update() -> None:
            with suppress(Exception):
                shown.refresh(reader.read())

        ui.timer(_REFRESH_SECONDS, update)

    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @outer.get("/metrics")
    async def metrics() -> Response:
        content = b""
        with suppress(Exception):  # files that make no sense
            content = exposition(reader.read(), reader.run_dir.name)
        return Response(content, media_type=CONTENT_TYPE_PLAIN_0_0_4)

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
    server = uvicorn.Server(uvicorn.Config(outer, log_level="warning", timeout_graceful_shutdown=1))
    if beside_run:
        app.on_startup(lambda: background_tasks.create(_end_with_input(server)))
    server.run(sockets=[listener])


async def _end_with_input(server: uvicorn.Server) -> None:
    # Returns when the run ends, however it does.
    await asyncio.to_thread(os.read, sys.stdin.fileno(), 1)
    if Client.instances:
        await asyncio.sleep(_REFRESH_SECONDS + 0.3)  # visitors see the result
    server.should_exit = True


def exposition(view: RunView, run: str) -> bytes:
    """The newest metrics in Prometheus' text format, with the run as labels."""
    registry = CollectorRegistry()
    metrics: dict[str, Counter | Gauge] = {}
    labels = [run, view.config["architecture"], view.option("env"), view.option("seed")]
    for name, label, value in _samples(view):
        if name not in metrics:
            kind = Counter if name.removeprefix("veldt_") in _COUNTED else Gauge
            known = _LABELS if label is None else (*_LABELS, "name")
            metrics[name] = kind(name, name, known, registry=registry)
        metrics[name].labels(*labels, *([] if label is None else [label])).inc(value)
    return generate_latest(registry)


def _samples(view: RunView) -> Iterator[tuple[str, str | None, float]]:
    """Name, value of the label `name` if there is one, and value."""
    yield "veldt_up", None, float(view.state in ("starting", "running"))
    for metric, value in view.curve[-1].items() if view.curve else ():
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
