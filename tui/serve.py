"""The dashboard in a browser: textual-serve on the loopback interface, and who may come in.

Every tab gets a process of its own (`browser`).  Any program of any user of this machine can
connect to the loopback interface, and any page that a browser shows can make it try: so the
names of host and origin are checked, and whoever could act on the run has to know a token.
"""

from __future__ import annotations

import hmac
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from textual_serve.server import Server

ADDRESS: Final = "127.0.0.1"
TABS: Final = 16
"""Tabs at a time: each is a process."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Site(Server):
    """One run, at one port."""

    def __init__(self, run: str, port: int, token: str | None) -> None:
        """Prepare to serve.

        Args:
            run: name of the run.
            port: where the site is, for the addresses in its pages.
            token: the first part of every path; with it the run can be acted on, None for a site to look at.
        """
        mode = ["--control"] if token is not None else []
        command = shlex.join([sys.executable, "-m", "ddptop.tui.browser", run, *mode])
        title = f"ddptop {run}" if token is not None else f"ddptop {run} (read-only)"
        super().__init__(command, host=ADDRESS, port=port, title=title)
        self._token = token
        self._names = {f"{ADDRESS}:{port}", f"localhost:{port}"}
        self._tabs = 0

    @property
    def address(self) -> str:
        """What to open."""
        return f"{self.public_url}/" if self._token is None else f"{self.public_url}/{self._token}/"

    async def application(self) -> web.Application:
        """Return the site, its guard before everything else."""
        site = web.Application(middlewares=[self._guard])
        site.on_response_prepare.append(self._harden)
        inner = await self._make_app()
        if self._token is None:
            inner.middlewares.append(self._guard)
            inner.on_response_prepare.append(self._harden)
            return inner
        site.add_subapp(f"/{self._token}/", inner)
        return site

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing: what is served is told by the verb."""

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.host not in self._names:
            # A name that somebody made to point here, to get around the browser's rule of the same origin.
            raise web.HTTPForbidden(text="unknown host name\n")
        origin = request.headers.get("Origin")
        if origin is not None and origin.removeprefix("http://") not in self._names:
            raise web.HTTPForbidden(text="unknown origin\n")
        if self._token is not None:
            given = request.path.lstrip("/").partition("/")[0]
            if not hmac.compare_digest(given.encode(), self._token.encode()):
                raise web.HTTPForbidden(text="the address needs the token that `ddptop serve --control` printed\n")
        return await handler(request)

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

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Show the dashboard in one more tab."""
        if not web.WebSocketResponse().can_prepare(request):
            raise web.HTTPBadRequest(text="this is the address of a websocket\n")
        if self._tabs >= TABS:
            raise web.HTTPServiceUnavailable(text=f"{TABS} tabs are open already\n")
        self._tabs += 1
        try:
            return await super().handle_websocket(request)
        finally:
            self._tabs -= 1


def listen(port: int) -> socket.socket:
    """Return a socket that listens on the loopback interface alone; port 0 takes any that is free.

    Raises:
        OSError: the port is taken, or not ours to take.
    """
    return socket.create_server((ADDRESS, port))


def serve(site: Site, listening: socket.socket) -> None:
    """Serve until it is interrupted."""
    web.run_app(site.application(), sock=listening, print=lambda *_: None, access_log=None, shutdown_timeout=1.0)
