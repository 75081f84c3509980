"""The dashboard in a browser: who gets in, what a tab can do, what is left when it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.harness import DEADLINE_S, ddptop, until
from support.screens.web import TOKEN, Tab, browser, children, gone, site, stub

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = pytest.importorskip("aiohttp", reason="the extra `serve` is not installed")

from ddptop.agent.run.rundir import RunDirError
from ddptop.tui.app.web import browsertab, service
from ddptop.tui.app.web.browser import exactly

ECHO = "while True: say(os.read(0, 65536) or sys.exit())"
DEAF = "import signal; [signal.pause() for _ in iter(int, 1)]"


@pytest.mark.parametrize("control", [False, True])
async def test_only_who_may_gets_anything(control: bool) -> None:
    """A wrong host, origin or token is refused on the page, its files and the websocket alike, in both modes."""
    async with site("nobody", control=control) as made, browser(made) as (client, home):
        own = f"{service.ADDRESS}:{made.port}"
        cases = [({}, 200), ({"Origin": f"http://{own}"}, 200), ({"Origin": f"http://localhost:{made.port}"}, 200)]
        cases += [({"Host": f"evil.example:{made.port}"}, 403), ({"Origin": "http://evil.example"}, 403)]
        cases += [({"Host": service.ADDRESS}, 403), ({"Origin": "null"}, 403), ({"Origin": f"https://{own}"}, 403)]
        for headers, expected in cases:
            for path in ("", "static/js/textual.js", "ws"):
                async with client.get(home + path, headers=headers) as answer:
                    # A websocket is not opened by a plain request, which is a bad one.
                    wanted = 400 if path == "ws" and expected == 200 else expected
                    assert answer.status == wanted, (headers, path)
                    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"] or expected == 403
        async with aiohttp.ClientSession() as stranger:
            for url in (home, f"{home}ws", f"{home}static/js/textual.js", f"{made.public_url}/no/such/page"):
                for cookie in (
                    {},
                    {"Cookie": f"ddptop-{made.port}=wr\u00f6ng"},
                    {"Cookie": f"ddptop-{made.port}={TOKEN}"},
                ):
                    async with stranger.get(url, headers=cookie) as answer:
                        assert answer.status == 403, (url, cookie)
            for query in ("", "?token=", "?token=a-toke", "?token=a-tokenn", "?token=%ff%00", "?TOKEN=a-token"):
                async with stranger.get(f"{made.public_url}/{query}") as answer:
                    assert answer.status == 403, query
                    assert "token" in await answer.text()


async def test_what_is_no_request_is_refused_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """A path without end, a header without end, a wrong length: the owner's terminal shows nothing of a stranger's."""
    long = b"x" * 20_000
    async with site("nobody") as made:
        for request in (
            b"GET /" + long + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: " + long + b"\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
            b"GET / HTTP/1.1\r\nHo st: x\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection(service.ADDRESS, made.port)
            writer.write(request)
            assert b" 400 " in await reader.readline()
            writer.close()
    assert [record.getMessage() for record in caplog.records] == []


async def test_at_the_port_of_http_browsers_name_no_port() -> None:
    """Host, origin and cookie are right without one there, and nowhere else; another host is none all the same."""
    for port, expected in ((80, 303), (8765, 403)):
        listening = service.listen(0)
        at = listening.getsockname()[1]
        made = service.Site("nobody", "nobody", port, TOKEN)
        async with made.opened(listening), aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client:
            url = f"http://{service.ADDRESS}:{at}"
            named = {"Host": service.ADDRESS, "Origin": f"http://{service.ADDRESS}"}
            entry = f"{url}/?token={TOKEN}"
            async with client.get(entry, headers=named, allow_redirects=False) as answer:
                assert answer.status == expected
                cookies = {name: each.value for name, each in answer.cookies.items()}
                home = answer.headers.get("Location", "/")
            if expected == 303:
                async with client.get(url + home, headers=named, cookies=cookies) as answer:
                    assert answer.status == 200
                    assert f"ws://{service.ADDRESS}:{port}" in answer.headers["Content-Security-Policy"]
            async with client.get(entry, headers={"Host": "evil.example"}, allow_redirects=False) as answer:
                assert answer.status == 403


async def test_the_token_does_not_stay_in_the_address() -> None:
    """It is exchanged for a cookie that no script, other site or other server gets; the name of the host is one."""
    async with site("nobody") as made, site("nobody") as other, aiohttp.ClientSession() as client:
        assert made.address == f"http://127.0.0.1:{made.port}/?token={TOKEN}"
        names = set()
        for each in (made, other):
            async with client.get(each.address, allow_redirects=False) as answer:
                assert answer.status == 303
                assert TOKEN not in answer.headers["Location"]
                (cookie,) = answer.cookies.values()
                assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
                assert cookie["path"] == answer.headers["Location"] != "/"
                assert TOKEN not in cookie.value
                names.add(cookie.key)
        assert len(names) == 2
        local = made.address.replace("127.0.0.1", "localhost")
        async with client.get(local, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"], len(answer.cookies)) == (303, made.address, 0)


async def test_a_link_on_another_site_leads_in_by_our_own_page() -> None:
    """Such a browser sends no strict cookie until our page asks for itself; it gets nothing but that page."""
    async with site("nobody") as made, browser(made) as (_, home), aiohttp.ClientSession() as client:
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        async with client.get(home, headers=headers) as answer:
            assert answer.status == 200
            assert 'http-equiv="refresh"' in (page := await answer.text())
            assert "nobody" not in page
        async with client.get(home, headers={**headers, "Sec-Fetch-Site": "same-origin"}) as answer:
            assert answer.status == 403


async def told(socket: aiohttp.ClientWebSocketResponse[bool], wanted: str) -> None:
    """Read what a stub says until this is in it."""
    said = b""
    while wanted.encode() not in said:
        message = await socket.receive(timeout=DEADLINE_S)
        assert message.type == aiohttp.WSMsgType.BINARY, (message, said)
        said += message.data


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        ("100", "30", (100, 30)), ("100000", "1000000000000", (500, 200)), ("1", "-7", (20, 5)), ("x", "", (80, 24)),
        ("9" * 5000, "1e9", (80, 24)),
    ],
)  # fmt: skip
async def test_sizes_are_within_limits(width: str, height: str, expected: tuple[int, int]) -> None:
    """Whatever the address or a message says, a tab has from 20 x 5 to 500 x 200 cells."""
    code = "say((os.environ['COLUMNS'] + ' x ' + os.environ['ROWS']).encode())\n" + ECHO
    async with (
        site("nobody", command=stub(code)) as made,
        browser(made) as (client, home),
        client.ws_connect(f"{home}ws?width={width}&height={height}") as socket,
    ):
        await told(socket, f"{expected[0]} x {expected[1]}")
        for given in ((width, height), (float(expected[0]), expected[1])):
            await socket.send_json(["resize", {"width": given[0], "height": given[1]}])
            await told(socket, json.dumps({"type": "resize", "width": expected[0], "height": expected[1]}))


async def test_what_is_no_message_is_left_out() -> None:
    """The tab goes on after it."""
    wrong = ("", "{", "null", "[]", '["stdin"]', '["stdin", 5]', '["resize", {"width": 1}]', "[" * 100_000)
    async with (
        site("nobody", command=stub(ECHO)) as made,
        browser(made) as (client, home),
        client.ws_connect(f"{home}ws") as socket,
    ):
        for text in wrong:
            await socket.send_str(text)
        await socket.send_json(["resize", {"width": None, "height": [1]}])
        await told(socket, '"width": 80, "height": 24')
        await socket.send_json(["stdin", "a\udc80b"])
        await told(socket, "a?b")


async def test_no_more_tabs_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says so, and what to do; when one is closed there is room again. Strangers do not count."""
    monkeypatch.setattr(service, "_RELOAD_S", 0.0)
    async with site("nobody", command=stub(ECHO)) as made, browser(made) as (client, home):
        sockets = []
        for _ in range(service.TABS):
            sockets.append(await client.ws_connect(f"{home}ws"))
        async with client.get(home) as answer:
            assert (answer.status, await answer.text()) == (503, f"{service.TABS} tabs are open already; close one\n")
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            await client.ws_connect(f"{home}ws")
        await sockets.pop().close()
        monkeypatch.setattr(service, "_RELOAD_S", DEADLINE_S)
        async with client.get(home) as answer:
            assert answer.status == 200
        async with client.ws_connect(f"{home}ws"):
            pass
        for each in sockets:
            await each.close()


async def test_a_process_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither it nor a browser that reads nothing keeps a place; what it has said comes clean to the terminal."""
    monkeypatch.setattr(browsertab, "END_S", 0.2)
    before = children()
    for code in (DEAF, "while True: say(bytes(65536))"):
        async with site("nobody", command=stub(code)) as made, browser(made) as (client, home):
            socket = await client.ws_connect(f"{home}ws")
            await asyncio.to_thread(until, lambda: children() - before, "the tab's process is up")
            processes = children() - before
            # Gone without a word: the connection is cut, no close is said.
            assert socket._response.connection is not None
            assert socket._response.connection.transport is not None
            socket._response.connection.transport.abort()
            await gone(processes)
            while made._tabs:
                await asyncio.sleep(0.01)


def test_a_tab_shows_the_run_that_is_served_and_no_other(quiet_run: str) -> None:
    """Neither one that has its name since, nor one whose name begins so."""
    assert exactly(quiet_run, quiet_run).name == quiet_run
    for name, run_id in ((quiet_run, "another"), (quiet_run[:-1], quiet_run), ("nobody", "nobody")):
        with pytest.raises(RunDirError, match="is gone"):
            exactly(name, run_id)


async def test_a_process_that_dies_closes_its_tab(capfd: pytest.CaptureFixture[str]) -> None:
    """Its last words reach the terminal without escape sequences."""
    code = "sys.exit('no \\x1b]0;title\\x07\\x1b[2J memory')"
    async with site("nobody", command=stub(code)) as made, browser(made) as (client, home):
        async with client.ws_connect(f"{home}ws") as socket:
            message = await socket.receive(timeout=DEADLINE_S)
            assert message.type == aiohttp.WSMsgType.CLOSE
        while made._tabs:
            await asyncio.sleep(0.01)
    assert "no  memory\n" in capfd.readouterr().err


async def test_idle_connections_do_not_lock_the_owner_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that say nothing, or half of something, are closed after a while, and at once where they are too many."""
    monkeypatch.setattr(service, "PATIENCE_S", 0.3)
    async with site("nobody", command=stub(ECHO)) as made, browser(made) as (client, home):
        async with client.ws_connect(f"{home}ws") as owner:
            silent = [socket.create_connection((service.ADDRESS, made.port)) for _ in range(8)]
            for each in silent[::2]:
                each.sendall(b"GET / HTTP/1.1\r\nHost: ")
            for each in silent:
                each.settimeout(DEADLINE_S)
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.to_thread(each.recv, 100) == b""
                each.close()
            # The owner's own, as idle, is still there.
            await owner.send_json(["stdin", "hello"])
            await told(owner, "hello")
        monkeypatch.setattr(service, "PATIENCE_S", 1000.0)
        many = [socket.create_connection((service.ADDRESS, made.port)) for _ in range(service.STRANGERS + 5)]
        many[0].settimeout(DEADLINE_S)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(many[0].recv, 100) == b""
        async with client.get(home) as answer:
            assert answer.status == 200
        for each in many:
            each.close()


def test_memory_of_a_tab_is_limited() -> None:
    """What it has at its start is no part of it; what comes on top is, and ends with an error and not the machine."""
    code = (
        "from ddptop.agent.client.host.program import limit_memory\n"
        "limit_memory(64 << 20)\n"
        "small = bytearray(16 << 20)\n"
        "try: bytearray(256 << 20)\n"
        "except MemoryError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("refused\n", "")


def test_it_listens_on_the_loopback_interface_alone() -> None:
    """No other machine can connect."""
    with service.listen(0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"


async def test_a_tab_shows_the_run_and_cannot_touch_it(quiet_run: str) -> None:
    """Kill and pause do nothing and are not offered; help says nothing of a dialog; closing leaves no process."""
    before = children()
    async with site(quiet_run) as made, browser(made) as (client, home):
        async with Tab(client, home) as tab:
            await tab.shows("Leave", "Logs", quiet_run)
            processes = children() - before
            await tab.press("k g")
            await tab.shows("log of rank 0")
            assert not re.findall("Kill|Pause|End ", "\n".join(tab.seen))
        await gone(processes)


def test_bad_calls_get_one_line(quiet_run: str) -> None:
    """A port that is taken, and the extra that is missing: what it is and what to do, exit code 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = ddptop("serve", quiet_run, "--port", str(taken.getsockname()[1]))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "--port" in done.stderr
    code = (
        "import sys; sys.modules['textual_serve'] = None; sys.argv = ['ddptop', 'serve']\n"
        "from ddptop.tui.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "pip install 'ddptop[serve]'" in done.stderr
