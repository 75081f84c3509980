"""The process behind one tab of a browser, as the site sees it: started, heard, and ended whatever it does."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from typing import Any, Final

from textual_serve.app_service import AppService

from ddptop.agent.text import clean

WIDTHS: Final = (20, 500)
"""Columns of a tab at least and at most: a screen costs memory and time with every cell."""
HEIGHTS: Final = (5, 200)
END_S: Final = 3.0
"""How long either side of a tab may take to end, or to take in a message."""
_USUAL: Final = (80, 24)
_READY: Final = b"__GANGLION__\n"
"""The first bytes of a program of Textual."""
_BUFFER: Final = 1 << 16
_SAID_LIMIT: Final = 16384


class Tab(AppService):
    """A process that a websocket drives."""

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        # Without a shell in between, which would be what gets our signals; and with a transport that can be closed.
        loop = asyncio.get_running_loop()
        self._transport, protocol = await loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(_BUFFER, loop),
            *shlex.split(self.command),
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env=self._build_environment(width, height),
            # Ctrl-c on the server's terminal is for the server, which ends the tabs.
            start_new_session=True,
        )  # fmt: skip
        self._process = process = Process(self._transport, protocol, loop)
        self._stdin = process.stdin
        return process

    async def run(self) -> None:
        """Give the browser what the process sends, until one of them ends."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        listening = asyncio.create_task(_tail(process.stderr))
        try:
            await self._relay(process.stdout)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            # It has ended, or the browser has.
            pass
        finally:
            with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
                await asyncio.wait_for(self.remote_close(), END_S)
            if process.returncode is None and not listening.done():
                await asyncio.wait([listening], timeout=END_S)
            listening.cancel()
        if listening.done() and not listening.cancelled():
            for line in listening.result().decode(errors="replace").splitlines():
                # The terminal may be gone.
                with contextlib.suppress(OSError):
                    print(clean(line), file=sys.stderr, flush=True)

    async def _relay(self, output: asyncio.StreamReader) -> None:
        while (line := await output.readline()) != _READY:
            if not line:
                return
        while True:
            head = await output.readexactly(5)
            payload = await output.readexactly(int.from_bytes(head[1:], "big"))
            match head[:1]:
                case b"D":
                    await self.on_data(payload)
                case b"M":
                    await self.on_meta(payload)
                case b"P":
                    await self.on_packed(payload)

    async def stop(self) -> None:
        """End the process, by force where its dashboard does not leave by itself.

        The observer goes on with what was asked of it. A kill without an observer is the process's own, and comes to
        its end before the process does: it must not leave half a group.
        """
        process, task, self._task = self._process, self._task, None
        if process is None or task is None:
            return
        try:
            await asyncio.wait_for(self._leave(task), END_S)
            if not await _has_ended(process):
                with contextlib.suppress(OSError):
                    print("ddptop: a closed tab first finishes the kill that it has begun", file=sys.stderr, flush=True)
                await process.wait()
        except asyncio.TimeoutError:
            pass
        finally:
            task.cancel()
            # This kills it, where it still runs.
            self._transport.close()
        await asyncio.wait([task], timeout=END_S)
        await process.wait()

    async def _leave(self, task: asyncio.Task[None]) -> None:
        """Ask the dashboard to leave, and wait for the end of its output; see `browser`."""
        await self._download_manager.cancel_app_downloads(app_service_id=self.app_service_id)
        await self.send_meta({"type": "quit"})
        self.stdin.close()
        await asyncio.wait([task])


async def _has_ended(process: Process) -> bool:
    """Return whether a process ends in a moment."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(process.wait(), END_S)
    return process.returncode is not None


async def _tail(stream: asyncio.StreamReader) -> bytes:
    """Return the end of what a stream has said, when it is over."""
    said = b""
    while more := await stream.read(_SAID_LIMIT):
        said = (said + more)[-_SAID_LIMIT:]
    return said


def cells(width: object, height: object) -> tuple[int, int]:
    """Return columns and rows within the limits, whatever a browser says they are."""
    return _within(width, WIDTHS, _USUAL[0]), _within(height, HEIGHTS, _USUAL[1])


def _within(value: Any, limits: tuple[int, int], usual: int) -> int:
    least, most = limits
    try:
        return max(least, min(most, int(value)))
    except (TypeError, ValueError):
        return usual
    except OverflowError:
        return most
