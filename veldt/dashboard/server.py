# SPDX-License-Identifier: Apache-2.0
"""Serves the page to this machine only, from files that came with the library: no network."""

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
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response

from veldt.dashboard.overview import Overview
from veldt.dashboard.page import Page
from veldt.dashboard.prometheus import CONTENT_TYPE, exposition
from veldt.dashboard.reading import RunReader, RunView

_REFRESH_SECONDS = 1.0
_SAME_LOOK_SECONDS = 0.5
_NICENESS = 10  # training goes first


class _Looks:
    """The run as all visitors see it: read at most once per refresh, however many there are."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._view: RunView = reader.read()
        self._read_at = time.monotonic()

    def newest(self) -> RunView:
        if time.monotonic() - self._read_at > _SAME_LOOK_SECONDS:
            self._view, self._read_at = self._reader.read(), time.monotonic()
        return self._view


def serve(readers: Mapping[str, RunReader], listener: socket.socket, beside_run: bool) -> None:
    """Serve until interrupted or, beside a run, until standard input closes. Several runs stand
    side by side on the first page, which leads to the page of each."""
    looks = {name: _Looks(reader) for name, reader in readers.items()}
    several = len(looks) > 1

    def show(number: int) -> None:
        one = list(looks.values())[number]
        page = Page(one.newest(), home=several)
        ui.timer(_REFRESH_SECONDS, lambda: page.refresh(one.newest()))

    def newest() -> list[tuple[str, RunView]]:
        return [(name, one.newest()) for name, one in looks.items()]

    @ui.page("/")
    def first() -> None:
        if not several:
            show(0)
            return
        overview = Overview(newest())
        ui.timer(_REFRESH_SECONDS, lambda: overview.refresh(newest()))

    @ui.page("/run/{number}")
    def one_of_several(number: int) -> None:
        show(min(max(number, 0), len(looks) - 1))

    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @outer.get("/metrics")
    async def metrics() -> Response:
        runs = ((one.newest(), readers[name].run_dir) for name, one in looks.items())
        return Response(exposition(runs), media_type=CONTENT_TYPE)

    # A page of another site must not reach this one by a name that it lets point here.
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
        background_tasks.create(last_look())

    async def last_look() -> None:
        if Client.instances:
            await asyncio.sleep(_REFRESH_SECONDS + 0.3)  # visitors see how the run ended
        server.should_exit = True

    loop.add_reader(sys.stdin, closed)


_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16"'
    ' height="16" rx="4" fill="#2f9e6e"/><path d="M3.5 4.5 8 12l4.5-7.5" fill="none" stroke="#fff"'
    ' stroke-width="2"/>'
    "</svg>"
)
