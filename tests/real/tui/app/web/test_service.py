"""The dashboard in a browser, by the verb itself: a kill by a tab, the address, Chromium."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from support.harness import DDPTOP, DEADLINE_S, started, until
from support.screens.web import Tab, browser, children, gone, site, stub

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = pytest.importorskip("aiohttp", reason="the extra `serve` is not installed")

from ddptop.tui.app.web import browsertab, service

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.parametrize("end", ["tab", "server"])
async def test_a_kill_without_an_observer_is_carried_to_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    """It takes longer than a process gets to end: neither its tab nor the server cuts it off in the middle."""
    begun, left, may_end, done = (tmp_path / name for name in ("begun", "left", "may-end", "done"))
    code = (
        "import time\n"
        "from pathlib import Path\n"
        "from ddptop.tui.app.web import browser\n"
        "from ddptop.agent.client.acting.kill import Killing\n"
        "def kill(*_):\n"
        f"    Path({str(begun)!r}).touch()\n"
        f"    while not os.path.exists({str(may_end)!r}): time.sleep(0.01)\n"
        f"    Path({str(done)!r}).touch()\n"
        "    return 'killed'\n"
        "def shown(*_, **__):\n"
        "    Killing(kill, 'all').start()\n"
        "    sys.stdin.buffer.read()\n"
        f"    Path({str(left)!r}).touch()\n"
        "    return 0\n"
        "browser.exactly = browser.Watch = lambda *_, **__: None\n"
        "browser.run_dashboard = shown\n"
        "sys.argv[1:] = ['run', 'run']\n"
        "browser.main()"
    )
    for module in (browsertab, service):
        monkeypatch.setattr(module, "END_S", 0.5)
    before = children()

    async def closed() -> None:
        async with site("nobody", command=stub(code)) as made, browser(made) as (client, home):
            socket = await client.ws_connect(f"{home}ws")
            await asyncio.to_thread(until, begun.exists, "it has begun")
            if end == "tab":
                await socket.close()
                while made._tabs:
                    await asyncio.sleep(0.01)

    closing = asyncio.create_task(closed())
    await asyncio.to_thread(until, begun.exists, "it has begun")
    processes = children() - before
    await asyncio.to_thread(until, left.exists, "the dashboard has left")
    # Longer than a process gets after that, and than the server's own end takes.
    await asyncio.wait([closing], timeout=4 * browsertab.END_S)
    assert not closing.done()
    assert all(each.is_running() for each in processes)
    may_end.touch()
    await closing
    assert done.exists()
    await gone(processes)


async def test_with_control_a_tab_can_end_the_run(quiet_run: str) -> None:
    """The same key asks, as on a terminal; leaving closes the tab."""
    before = children()
    async with site(quiet_run, control=True) as made, browser(made) as (client, home):
        async with Tab(client, home) as tab:
            await tab.shows("Kill")
            processes = children() - before
            await tab.press("k")
            await tab.shows("SIGTERM")
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
        assert re.fullmatch(rf"{re.escape(quiet_run)} at http://127\.0\.0\.1:\d+/\?token=[\w-]{{32,}}\n", line), line
        yield process, line.split()[-1]


def test_the_address_is_printed_once(served: tuple[subprocess.Popen[str], str]) -> None:
    """With its token in the mode to look at, too; ctrl-c ends the site."""
    process, address = served
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    rest = process.stdout.read()
    assert process.wait(DEADLINE_S) in (0, 130)
    assert "read-only" in rest
    assert address.partition("=")[2] not in rest


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
