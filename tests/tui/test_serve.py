"""The dashboard in a browser: who gets in, what a tab can do, what is left when it is closed."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pyte
import pytest
from harness import DDPTOP, DEADLINE_S, ddptop, started, until

aiohttp = pytest.importorskip("aiohttp", reason="the extra `serve` is not installed")
pytest.importorskip("textual_serve", reason="the extra `serve` is not installed")

from aiohttp import web  # noqa: E402 - after the check

from ddptop.tui import serve  # noqa: E402

TOKEN = "a-token"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@asynccontextmanager
async def site(run: str, token: str | None = None) -> AsyncIterator[serve.Site]:
    """A site for the run, in this process."""
    listening = serve.listen(0)
    made = serve.Site(run, listening.getsockname()[1], token)
    runner = web.AppRunner(await made.application())
    await runner.setup()
    await web.SockSite(runner, listening).start()
    try:
        yield made
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_only_who_may_gets_anything(token: str | None) -> None:
    """A wrong host, origin or token is refused on the page, its files and the websocket alike."""
    async with site("nobody", token) as made, aiohttp.ClientSession() as client:
        own = f"{serve.ADDRESS}:{made.port}"
        cases = [({}, 200), ({"Origin": f"http://{own}"}, 200), ({"Host": f"localhost:{made.port}"}, 200)]
        cases += [({"Host": f"evil.example:{made.port}"}, 403), ({"Origin": "http://evil.example"}, 403)]
        cases += [({"Host": serve.ADDRESS}, 403), ({"Origin": "null"}, 403), ({"Origin": f"https://{own}"}, 403)]
        for headers, expected in cases:
            for path in ("", "static/js/textual.js", "ws"):
                async with client.get(made.address + path, headers=headers) as answer:
                    # A websocket is not opened by a plain request, which is a bad one.
                    wanted = 400 if path == "ws" and expected == 200 else expected
                    assert answer.status == wanted, (headers, path)
                    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"] or expected == 403
        if token is not None:
            for path in ("/", "/ws", "/static/js/textual.js", "/a-toke/", "/a-tokenn/ws", "//", "/%20"):
                async with client.get(made.public_url + path) as answer:
                    assert answer.status == 403, path


def test_it_listens_on_the_loopback_interface_alone() -> None:
    """No other machine can connect."""
    with serve.listen(0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"


class Tab:
    """What a browser does with the page: a websocket with keys in and a terminal's bytes out."""

    def __init__(self, made: serve.Site, client: aiohttp.ClientSession) -> None:
        self._opening = client.ws_connect(f"{made.address.replace('http', 'ws', 1)}ws?width=100&height=30")
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


async def test_a_tab_shows_the_run_and_cannot_touch_it(quiet_run: str) -> None:
    """Kill and pause do nothing and are not offered; help says nothing of a dialog; closing leaves no process."""
    before = children()
    async with site(quiet_run) as made, aiohttp.ClientSession() as client:
        async with Tab(made, client) as tab:
            await tab.shows("Leave", "Logs", quiet_run)
            processes = children() - before
            await tab.press("k g")
            await tab.shows("log of rank 0")
            assert not re.findall("Kill|Pause|End ", "\n".join(tab.seen))
        await gone(processes)


async def test_with_the_token_a_tab_can_end_the_run(quiet_run: str) -> None:
    """The same key asks, as on a terminal; leaving closes the tab."""
    before = children()
    async with site(quiet_run, TOKEN) as made, aiohttp.ClientSession() as client:
        async with Tab(made, client) as tab:
            await tab.shows("Kill")
            processes = children() - before
            await tab.press("k")
            await tab.shows("They get TERM")
            await tab.press("\x03")
            await tab.read_to_the_end()
        await gone(processes)


@pytest.fixture
def served(quiet_run: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The verb itself, and the address that it prints."""
    command = (*DDPTOP, "serve", quiet_run, "--port", "0")
    with started(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"{quiet_run} at http://127.0.0.1:"), line
        yield process, line.split()[-1]


def test_bad_calls_get_one_line(quiet_run: str) -> None:
    """A port that is taken, and the extra that is missing: what it is and what to do, exit code 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = ddptop("serve", quiet_run, "--port", str(taken.getsockname()[1]))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "--port" in done.stderr
    code = (
        "import sys; sys.modules['textual_serve'] = None; sys.argv = ['ddptop', 'serve']\n"
        "from ddptop.tui.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "pip install 'ddptop[serve]'" in done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
async def test_in_a_browser(served: tuple[subprocess.Popen[str], str], tmp_path: Path) -> None:
    """Chromium shows the dashboard; ctrl-c on the server ends the site and the process behind the tab."""
    process, address = served
    browser = subprocess.Popen(
        [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         f"--user-data-dir={tmp_path}", "--remote-debugging-port=0", "--window-size=1200,800", "about:blank"],
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        port_file = tmp_path / "DevToolsActivePort"
        await asyncio.to_thread(until, lambda: port_file.exists() and port_file.read_text(), "Chromium is up")
        port = port_file.read_text().splitlines()[0]
        async with aiohttp.ClientSession() as client:
            async with client.put(f"http://127.0.0.1:{port}/json/new?{address}") as answer:
                target = json.loads(await answer.text())["webSocketDebuggerUrl"]
            async with client.ws_connect(target, max_msg_size=0) as devtools:
                numbers = iter(range(1, 10_000))

                async def ask(method: str, **parameters: object) -> dict[str, object]:
                    number = next(numbers)
                    await devtools.send_json({"id": number, "method": method, "params": parameters})
                    while True:
                        reply = await devtools.receive_json(timeout=DEADLINE_S)
                        if reply.get("id") == number:
                            return dict(reply["result"])

                async def page_is(css_class: str) -> None:
                    deadline = time.monotonic() + DEADLINE_S
                    expression = f"document.body.classList.contains('{css_class}')"
                    while True:
                        found = await ask("Runtime.evaluate", expression=expression)
                        if found["result"] == {"type": "boolean", "value": True}:
                            return
                        assert time.monotonic() < deadline, css_class
                        await asyncio.sleep(0.1)

                await page_is("-first-byte")
                if keep := os.environ.get("DDPTOP_TEST_PICTURE"):
                    await asyncio.sleep(2)
                    Path(keep).write_bytes(base64.b64decode(str((await ask("Page.captureScreenshot"))["data"])))
                tabs = set(psutil.Process(process.pid).children(recursive=True))
                process.send_signal(signal.SIGINT)
                await page_is("-closed")
        assert await asyncio.to_thread(process.wait, DEADLINE_S) in (0, 130)
        await gone(tabs)
    finally:
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
