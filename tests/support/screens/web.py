"""A site for a run in this process, and what a browser does with it."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import psutil
import pyte
import pytest

from support.harness import DEADLINE_S, until

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = pytest.importorskip("aiohttp", reason="the extra `serve` is not installed")
pytest.importorskip("textual_serve", reason="the extra `serve` is not installed")

from ddptop.tui.app.web import service

TOKEN = "a-token"


@asynccontextmanager
async def site(run: str, *, control: bool = False, command: str | None = None) -> AsyncIterator[service.Site]:
    """A site for the run, in this process; `command` instead of the dashboard behind its tabs."""
    listening = service.listen(0)
    # The runs of these tests have their names for their ids.
    made = service.Site(run, run, listening.getsockname()[1], TOKEN, control=control)
    made.command = command or made.command
    async with made.opened(listening):
        yield made


@asynccontextmanager
async def browser(made: service.Site) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """A client that has opened the printed address, and where that has led it."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as client, client.get(made.address) as answer:
        assert answer.status == 200
        yield client, str(answer.url)


def stub(code: str) -> str:
    """A program that speaks as one of Textual does."""
    says = (
        "import json, os, sys\n"
        "def say(text): sys.stdout.buffer.write(b'D' + len(text).to_bytes(4, 'big') + text); sys.stdout.flush()\n"
        "print('__GANGLION__', flush=True)\n"
    )
    return shlex.join([sys.executable, "-c", says + code])


class Tab:
    """What a browser does with the page: a websocket with keys in and a terminal's bytes out."""

    def __init__(self, client: aiohttp.ClientSession, home: str) -> None:
        self._opening = client.ws_connect(f"{home}ws?width=100&height=30")
        self._screen = pyte.Screen(100, 30)
        self._terminal = pyte.ByteStream(self._screen)
        self.seen: set[str] = set()
        """Every line that was on the screen at some time."""

    async def __aenter__(self) -> Tab:
        self._socket = await self._opening
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._socket.close()

    async def press(self, keys: str) -> None:
        await self._socket.send_json(["stdin", keys])

    async def shows(self, *texts: str) -> None:
        """Read until all these are on the screen."""
        deadline = time.monotonic() + DEADLINE_S
        while missing := [text for text in texts if not any(text in line for line in self._screen.display)]:
            assert time.monotonic() < deadline, missing
            message = await self._socket.receive(timeout=DEADLINE_S)
            assert message.type == aiohttp.WSMsgType.BINARY, message
            self._terminal.feed(message.data)
            self.seen.update(self._screen.display)

    async def read_to_the_end(self) -> None:
        """Read until the other side closes."""
        while (await self._socket.receive(timeout=DEADLINE_S)).type == aiohttp.WSMsgType.BINARY:
            pass


def children() -> set[psutil.Process]:
    """Return all processes that come from this one."""
    return set(psutil.Process().children(recursive=True))


async def gone(processes: set[psutil.Process]) -> None:
    """Wait until the processes behind a tab have gone."""
    assert processes
    # One that is ending is still running; nothing else can be asked of it.
    await asyncio.to_thread(
        until, lambda: not any(each.is_running() for each in processes), "the tab's process has gone"
    )
