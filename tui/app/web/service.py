"""The dashboard in a browser: textual-serve on the loopback interface, and who may come in.

Every tab gets a process of its own (`browsertab`).  Any program of any user of this machine can
connect to the loopback interface, and any page that a browser shows can make it try: so the
names of host and origin are checked, and whoever wants to see the run has to know a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shlex
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from aiohttp import WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError
from textual_serve.server import Server

from ddptop.agent.client.host.program import isolated
from ddptop.tui.app.web.browsertab import END_S, Tab, cells

ADDRESS: Final = "127.0.0.1"
TABS: Final = 8
"""Tabs at a time: each is a process."""
FULL: Final = f"{TABS} tabs are open already; close one\n"
STRANGERS: Final = 64
"""Connections at a time on which nobody has shown that they know the token; of more, the oldest go."""
PATIENCE_S: Final = 5.0
"""How long such a connection may stay."""
_SWEEP_S: Final = 0.5
_RELOAD_S: Final = 2.0
"""How long a page waits for a free place: a tab that is loaded again comes before its end has arrived."""
_IDLE_S: Final = 15.0
_HTTP: Final = 80
_MESSAGE_LIMIT: Final = 1 << 18
"""Bytes of a message of a browser: keys, or what was pasted."""
_KEY_NEEDED: Final = "open the address that `ddptop serve` printed when it started, with its token\n"
_ONCE_MORE: Final = '<!doctype html><meta http-equiv="refresh" content="0"><title>ddptop</title>'

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Site(Server):
    """One run, at one port."""

    def __init__(self, run: str, run_id: str, port: int, token: str, *, control: bool = False) -> None:
        """Prepare to serve.

        Args:
            run: name of the run.
            run_id: the run itself: a later one of that name is not shown.
            port: where the site is, for the addresses in its pages.
            token: what a browser has to say once; it gets a cookie for it.
            control: the run can be acted on, and not only looked at.
        """
        mode = ["--control"] if control else []
        command = shlex.join([*isolated("ddptop.tui.app.web.browser"), run, run_id, *mode])
        address = f"http://{ADDRESS}:{port}"
        title = f"ddptop {run}{'' if control else ' (read-only)'}"
        super().__init__(command, host=ADDRESS, port=port, public_url=address, title=title)
        self._token = token
        names = (ADDRESS, "localhost")
        # Of the port that stands for http, browsers say nothing.
        self._names = {f"{name}:{port}" for name in names} | ({*names} if port == _HTTP else set())
        self._cookie = f"ddptop-{port}"
        self._session = secrets.token_urlsafe(24)
        # Browsers send a cookie to every port of a host, also to another user's, but only to paths below its own.
        self._home = f"/{secrets.token_urlsafe(8)}"
        self._tabs = 0
        self._sockets: set[web.WebSocketResponse] = set()
        self._known: set[object] = set()
        """Connections that have shown the cookie."""
        self._leaving: set[asyncio.Task[None]] = set()
        """Tabs that are being ended."""

    @property
    def address(self) -> str:
        """The address to open."""
        return f"{self.public_url}/?token={self._token}"

    async def application(self) -> web.Application:
        """Return the site, its guard before everything else."""
        site = web.Application(middlewares=[self._guard])
        site.on_response_prepare.append(self._harden)
        site.router.add_get("/", self._enter)
        site.add_subapp(f"{self._home}/", await self._make_app())
        return site

    @contextlib.asynccontextmanager
    async def opened(self, listening: socket.socket) -> AsyncIterator[None]:
        """Serve at a socket as long as the block lasts."""
        runner = web.AppRunner(
            await self.application(), access_log=None, keepalive_timeout=_IDLE_S, shutdown_timeout=3 * END_S
        )
        # Anybody can send what is no request; that is no fault of this program, which would be printed.
        log = logging.getLogger("aiohttp.server")
        log.addFilter(_is_own_fault)
        await runner.setup()
        assert runner.server is not None
        sweeping = asyncio.create_task(self._sweep(runner.server))
        try:
            await web.SockSite(runner, listening).start()
            yield
        finally:
            sweeping.cancel()
            await runner.cleanup()
            log.removeFilter(_is_own_fault)
            await asyncio.gather(*self._leaving, return_exceptions=True)

    async def _sweep(self, server: web.Server) -> None:
        """Close connections on which nobody says who he is, so that they do not use up what the owner needs."""
        since: dict[object, float] = {}
        while True:
            now, there = time.monotonic(), server.connections
            self._known.intersection_update(there)
            # The oldest first, as they came.
            strangers = [each for each in there if each not in self._known]
            since = {each: since.get(each, now) for each in strangers}
            for place, each in enumerate(strangers):
                surplus = place < len(strangers) - STRANGERS
                if each.transport is not None and (surplus or now - since[each] > PATIENCE_S):
                    each.transport.abort()
            await asyncio.sleep(_SWEEP_S)

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing: the verb says what is served."""

    async def on_shutdown(self, app: web.Application) -> None:
        """Close all tabs."""
        for each in list(self._sockets):
            await each.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.host not in self._names:
            # A name that somebody made to point here, to get around the browser's rule of the same origin.
            raise web.HTTPForbidden(text="unknown host name\n")
        origin = request.headers.get("Origin")
        if origin is not None and origin.removeprefix("http://") not in self._names:
            raise web.HTTPForbidden(text="unknown origin\n")
        if request.path == "/":
            return await handler(request)
        if not _same(request.cookies.get(self._cookie, ""), self._session):
            asked = request.headers.get("Sec-Fetch-Site"), request.headers.get("Sec-Fetch-Mode")
            if asked == ("cross-site", "navigate"):
                # Behind a link on another site a strict cookie is not sent; asked for by our own page, it is.
                return web.Response(text=_ONCE_MORE, content_type="text/html")
            raise web.HTTPForbidden(text=_KEY_NEEDED)
        self._known.add(request.protocol)
        return await handler(request)

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        """Give a cookie for the token, and go on to where no token stands in the address."""
        if not _same(request.query.get("token", ""), self._token):
            raise web.HTTPForbidden(text=_KEY_NEEDED)
        if request.host.partition(":")[0] != ADDRESS:
            # The page asks for its files under one name, and a cookie is for one name.
            return web.Response(status=303, headers={"Location": self.address})
        answer = web.Response(status=303, headers={"Location": f"{self._home}/"})
        answer.set_cookie(self._cookie, self._session, path=f"{self._home}/", httponly=True, samesite="Strict")
        return answer

    async def _harden(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(
            {
                # The page asks for a font elsewhere; nothing leaves this machine, the token least of all.
                "Content-Security-Policy": f"default-src 'none'; script-src {self.public_url} 'unsafe-inline'; "
                f"style-src {self.public_url} 'unsafe-inline'; img-src {self.public_url} data:; "
                f"font-src {self.public_url}; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
                f"connect-src {self.public_url} {self.public_url.replace('http', 'ws', 1)}",
                "Referrer-Policy": "no-referrer",
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
                "X-Frame-Options": "DENY",
            }
        )

    async def handle_index(self, request: web.Request) -> Any:
        """Show the page, or why there is none."""
        deadline = time.monotonic() + _RELOAD_S
        while self._tabs >= TABS:
            if time.monotonic() > deadline:
                raise web.HTTPServiceUnavailable(text=FULL)
            await asyncio.sleep(0.05)
        return await super().handle_index(request)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Show the dashboard in one more tab, until either side ends."""
        # The pings find a browser that is gone without a word.
        browser = web.WebSocketResponse(heartbeat=_IDLE_S, timeout=END_S, max_msg_size=_MESSAGE_LIMIT)
        if not browser.can_prepare(request):
            raise web.HTTPBadRequest(text="this is the address of a websocket\n")
        if self._tabs >= TABS:
            raise web.HTTPServiceUnavailable(text=FULL)
        self._tabs += 1
        try:
            await browser.prepare(request)
            self._sockets.add(browser)
            tab = Tab(
                self.command,
                write_bytes=browser.send_bytes,
                write_str=browser.send_str,
                close=_closing(browser),
                download_manager=self.download_manager,
            )
            try:
                await tab.start(*cells(request.query.get("width"), request.query.get("height")))
                await _pass_on(browser, tab)
            finally:
                # In a task of its own: the server's end may cancel this one.
                leaving = asyncio.create_task(tab.stop())
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
                await asyncio.shield(leaving)
        finally:
            self._tabs -= 1
            self._sockets.discard(browser)
            if request.transport is not None and not browser.closed:
                request.transport.abort()
        return browser


def _is_own_fault(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def _closing(browser: web.WebSocketResponse) -> Callable[[], Awaitable[None]]:
    async def close() -> None:
        await browser.close()

    return close


async def _pass_on(browser: web.WebSocketResponse, tab: Tab) -> None:
    """Give the process what a browser sends; what is no message of textual-serve's page is left out."""
    async for message in browser:
        if message.type != WSMsgType.TEXT:
            continue
        with contextlib.suppress(ValueError, RecursionError):
            match message.json():
                case ["stdin", str(keys)]:
                    task: Awaitable[object] = tab.send_bytes(keys.encode(errors="replace"))
                case ["resize", {"width": width, "height": height}]:
                    task = tab.set_terminal_size(*cells(width, height))
                case ["ping", data]:
                    task = browser.send_json(["pong", data])
                case ["blur", *_]:
                    task = tab.blur()
                case ["focus", *_]:
                    task = tab.focus()
                case _:
                    continue
            try:
                await asyncio.wait_for(task, END_S)
            except (asyncio.TimeoutError, ConnectionError):
                # The process does not read, or the browser does not: the tab is of no use to anybody.
                return


def _same(given: str, expected: str) -> bool:
    # As bytes: text that is not ASCII would be refused with an exception.
    return secrets.compare_digest(given.encode(errors="replace"), expected.encode())


def listen(port: int) -> socket.socket:
    """Return a socket that listens on the loopback interface alone; port 0 takes any that is free.

    Raises:
        OSError: the port is taken, or not ours to take.
    """
    return socket.create_server((ADDRESS, port))


def serve(site: Site, listening: socket.socket) -> None:
    """Serve until it is interrupted."""
    asyncio.run(_serve(site, listening))


async def _serve(site: Site, listening: socket.socket) -> None:
    end = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Who starts it with nohup wants it to go on.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, end.set)
    async with site.opened(listening):
        await end.wait()
