"""Servers of this machine that take messages, fail, hang, and come back: one for HTTP and one for mail."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Mood:
    """How a server behaves, and what it has taken."""

    def __init__(self) -> None:
        self.code = 200
        self.headers: dict[str, str] = {}
        self.body = b"because of secret-path"
        """What an answer that is no success says."""
        self.hangs = threading.Event()
        self.freed = threading.Event()
        self.taken: list[tuple[str, dict[str, str], bytes]] = []
        """Path, headers and content of each request that was answered with 200; of a mail the sender and its lines."""
        self.asked = 0
        self.port = 0

    def answers(self) -> bool:
        """Return whether this request is answered; while the server hangs that takes until nobody waits any more."""
        self.asked += 1
        if not self.hangs.is_set():
            return True
        self.freed.wait(60)
        return False


@contextlib.contextmanager
def http(port: int = 0) -> Iterator[Mood]:
    """Serve HTTP on the loopback."""
    mood = Mood()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if not mood.answers():
                return
            with contextlib.suppress(OSError):
                if mood.code == 200:
                    mood.taken.append((self.path, dict(self.headers), content))
                self.send_response(mood.code)
                for name, value in mood.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(mood.body if mood.code != 200 else b"")

        def log_message(self, *_: Any) -> None:
            pass

    with _served(ThreadingHTTPServer(("127.0.0.1", port), Handler), mood):
        yield mood


@contextlib.contextmanager
def mail() -> Iterator[Mood]:
    """Serve SMTP on the loopback."""
    mood = Mood()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            if mood.answers():
                with contextlib.suppress(OSError):
                    self._talk()

        def _talk(self) -> None:
            sender = ""
            self.wfile.write(b"220 test\r\n")
            for line in self.rfile:
                verb = line[:4].upper()
                if verb == b"MAIL":
                    sender = line.decode().strip()
                if verb == b"DATA" and mood.code == 200:
                    self.wfile.write(b"354 go on\r\n")
                    content = b"".join(iter(self.rfile.readline, b".\r\n"))
                    mood.taken.append((sender, {}, content))
                answers = {b"QUIT": b"221 bye\r\n", b"EHLO": b"250-test\r\n250 AUTH PLAIN\r\n", b"AUTH": b"235 ok\r\n"}
                self.wfile.write(answers.get(verb, b"451 later\r\n" if mood.code != 200 else b"250 ok\r\n"))
                if verb == b"QUIT":
                    return

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with _served(Server(("127.0.0.1", 0), Handler), mood):
        yield mood


@contextlib.contextmanager
def _served(server: socketserver.TCPServer, mood: Mood) -> Iterator[None]:
    mood.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        mood.freed.set()
        server.shutdown()
        thread.join()
        server.server_close()


def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
