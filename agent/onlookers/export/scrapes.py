"""Where Prometheus gets the samples: over HTTP whenever it asks, or from a file that the node exporter reads."""

from __future__ import annotations

import contextlib
import errno
import hmac
import socket
import sys
import time
from collections.abc import Callable, Sequence
from http.server import ThreadingHTTPServer
from typing import Final

from prometheus_client import MetricsHandler, write_to_textfile

from ddptop.agent.client import look, runs
from ddptop.agent.client.frame import Frame
from ddptop.agent.client.runs import Run, RunDirError
from ddptop.agent.onlookers.export.samples import registry

ENDED_S: Final = 600.0
"""Seconds for which a run is shown after its end, so that a rule can see how it ended."""
_HEADERS_S: Final = 10.0
"""Seconds that somebody who asks may take to do so."""


def frames(named: Sequence[Run], who: str) -> list[Frame]:
    """Return the frames of some runs, of all that go on or have ended just now where none is named."""
    return look.frames([run for run in named or runs.listed() if _is_shown(run)], who, measured=False)


def _is_shown(run: Run) -> bool:
    with contextlib.suppress(RunDirError):
        ended = run.ended()
        return ended is None or time.time() - (ended.ended_at_ns or 0) / 1e9 < ENDED_S
    return False


class Server(ThreadingHTTPServer):
    """Answers `GET /metrics`."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], look_at: Callable[[], Sequence[Frame]], token: str = "") -> None:
        """Listen.

        Args:
            address: where.
            look_at: returns the frames of now.
            token: what who asks has to know; empty: nothing.

        Raises:
            OSError: nobody can listen there.
        """
        try:
            self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        except UnicodeError:
            # A name that cannot be asked for, such as one with an empty part.
            raise OSError(errno.EINVAL, "no name of a host") from None
        super().__init__(address, _Answer)
        self.token = token
        self.registry = registry(look_at)

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing of somebody who is gone before the answer is: that is no fault here."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Answer(MetricsHandler):
    server: Server
    server_version = "ddptop"
    sys_version = ""
    timeout = _HEADERS_S

    def do_GET(self) -> None:  # noqa: N802 - its name in the base
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if self.server.token and not hmac.compare_digest(given.encode(), self.server.token.encode()):
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "only /metrics is here")
        else:
            self.registry = self.server.registry
            super().do_GET()


def write(file: str, look_at: Callable[[], Sequence[Frame]]) -> None:
    """Write the samples of now into a file, which a reader finds as it was or whole.

    Raises:
        OSError: it cannot be written.
    """
    write_to_textfile(file, registry(look_at))
