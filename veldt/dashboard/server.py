# SPDX-License-Identifier: Apache-2.0
"""Serves the pages to this machine only, from installed files: no network is needed."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Mapping

import uvicorn
from fastapi import FastAPI
from nicegui import Client, app, background_tasks, ui
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response

from veldt.dashboard.page import Overview, RunPage
from veldt.dashboard.prometheus import exposition
from veldt.dashboard.reading import RunReader, RunView

_REFRESH_SECONDS = 1.0
_CACHE_SECONDS = 0.5
_NICENESS = 10  # training goes first


class _CachedReader:
    """Reads a run at most once per refresh, however many visitors there are."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._view: RunView = reader.read()
        self._read_at = time.monotonic()

    def newest(self) -> RunView:
        if time.monotonic() - self._read_at > _CACHE_SECONDS:
            self._view, self._read_at = self._reader.read(), time.monotonic()
        return self._view


def serve(readers: Mapping[str, RunReader], listener: socket.socket, beside_run: bool) -> None:
    """Serve until interrupted or, beside a run, until standard input closes.

    Several runs have an overview as first page, with links to the page of each."""
    runs = {name: _CachedReader(reader) for name, reader in readers.items()}
    has_overview = len(runs) > 1

    def show(number: int) -> None:
        run = list(runs.values())[number]
        page = RunPage(run.newest(), is_one_of_several=has_overview)
        ui.timer(_REFRESH_SECONDS, lambda: page.refresh(run.newest()))

    def newest() -> list[tuple[str, RunView]]:
        return [(name, run.newest()) for name, run in runs.items()]

    @ui.page("/")
    def first() -> None:
        if not has_overview:
            show(0)
            return
        overview = Overview(newest())
        ui.timer(_REFRESH_SECONDS, lambda: overview.refresh(newest()))

    @ui.page("/run/{number}")
    def one_of_several(number: int) -> None:
        show(min(max(number, 0), len(runs) - 1))

    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @outer.get("/metrics")
    async def metrics() -> Response:
        views = ((run.newest(), readers[name].run_dir) for name, run in runs.items())
        return Response(exposition(views), media_type=CONTENT_TYPE_PLAIN_0_0_4)

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


_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16"'
    ' height="16" rx="4" fill="#2f9e6e"/><path d="M3.5 4.5 8 12l4.5-7.5" fill="none" stroke="#fff"'
    ' stroke-width="2"/>'
    "</svg>"
)
