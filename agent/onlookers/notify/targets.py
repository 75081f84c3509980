"""Where messages go, each by a URL: `http://` and `https://` take JSON, `exec:` starts a command, Apprise has the rest.

A URL may be a secret: what is printed or written of it is its beginning.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import logging
import os
import re
import shlex
import signal
import subprocess
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from ddptop.agent.client.host.program import VERSION
from ddptop.agent.onlookers.notify.messages import Message
from ddptop.agent.text import MASK, Complaint, clean_line

COMMAND: Final = "exec:"
TIMEOUT_S: Final = 10.0
"""Seconds that a server may take for each part of its answer."""
COMMAND_S: Final = 30.0
"""Seconds that a command may take."""
_ANSWER: Final = 4096
"""Bytes that are read of an answer that is no success: more than is shown, which may end within a secret."""


class TargetError(Complaint):
    """A URL that no message can go to, and the remedy, in one line."""


class Undelivered(Complaint):
    """A message was not taken; the text is one line without secrets."""

    code = 1

    def __init__(self, text: str, after_s: float = 0.0) -> None:
        super().__init__(clean_line(text))
        self.after_s = after_s
        """Seconds after which the target wants to be asked again."""


class Target(ABC):
    """Somewhere that messages go."""

    def __init__(self, url: str) -> None:
        self.shown = masked(url)
        """Its URL without what may be a secret."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Deliver a message.

        Raises:
            Undelivered: it was not taken.
        """


def masked(url: str) -> str:
    """Return a URL with a mask in the place of all that may be a secret: `https://hooks.slack.com/***`."""
    if url.startswith(COMMAND):
        first, _, rest = url.strip().partition(" ")
        return f"{first} {MASK}" if rest else first
    scheme, colon, rest = url.partition("://")
    if not colon or scheme.lower() not in ("http", "https"):
        # Where other services have their secrets nobody knows but them.
        return f"{scheme}://{MASK}" if colon else MASK
    server = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in rest[len(server) :]:
        # A password may have one of these in it: where it ends is not sure.
        return f"{scheme}://{MASK}"
    # What stands in the place of a port and is none may be a password, too.
    known = re.match(r"(\[[0-9A-Fa-f:.]*\]|[^:\[\]\s]*)(:[0-9]{1,5}$)?", server.rpartition("@")[2])
    shown = known[0] if known else ""
    return f"{scheme}://{shown}" if rest.rstrip("/") == shown else f"{scheme}://{shown}/{MASK}"


def _hidden(text: str, *secrets: str) -> str:
    """Return a text with a mask in the place of these parts of a URL, whole or in pieces."""
    found = {each for secret in secrets for each in (secret, unquote(secret))}
    found |= {piece for each in found for piece in re.split(r"[/:@?&=,;#]", each)}
    for each in sorted(found, key=len, reverse=True):
        if len(each) > 3:
            text = text.replace(each, MASK)
    return text


def target(url: str) -> Target:
    """Return the target that a URL means.

    Raises:
        TargetError: it means none.
    """
    try:
        if url.startswith(COMMAND):
            return _Command(url)
        scheme = urlsplit(url).scheme.lower()
        if scheme in ("http", "https"):
            return _Webhook(url)
    except ValueError:
        # Its text may quote the part of the URL that is a secret.
        raise TargetError(
            f"{masked(url)}: no URL; a port has digits only, up to 65535, and / ? # @ in a password are %2F %3F %23 %40"
        ) from None
    if "://" not in url:
        raise TargetError(f"{masked(url)}: no URL; give https://…, exec:COMMAND, or a service as slack://…")
    if find_spec("apprise") is None:
        raise TargetError(f"{scheme}://… needs apprise: pip install 'ddptop[notify]'; or give an https:// webhook")
    return _Service(url)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A message, and the secret in its URL, is for the server that was named, and for no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Webhook(Target):
    """A server that takes JSON by POST."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        parts = urlsplit(url)
        login, _, server = parts.netloc.rpartition("@")
        # Reading the port checks it.
        if not parts.hostname or parts.port == 0:
            raise TargetError(f"{self.shown}: names no host")
        self._url = urlunsplit((parts.scheme, server, parts.path or "/", parts.query, ""))
        if not re.fullmatch(r"[!-~]*", self._url):
            raise TargetError(f"{self.shown}: has characters that no URL has; write them as %20")
        self._headers = {"Content-Type": "application/json", "User-Agent": f"ddptop/{VERSION}"}
        if parts.username is not None:
            named = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(named).decode()}"
        self._secrets = (parts.path, parts.query, login, self._headers.get("Authorization", "").removeprefix("Basic "))
        self._opener = urllib.request.build_opener(_NoRedirects)

    def send(self, message: Message) -> None:
        request = urllib.request.Request(self._url, message.json, self._headers, method="POST")
        try:
            self._opener.open(request, timeout=TIMEOUT_S).close()
        except urllib.error.HTTPError as answer:
            with answer:
                raise Undelivered(f"{self.shown}: {self._said(answer)}", _after(answer)) from None
        except (OSError, http.client.HTTPException, ValueError) as problem:
            said = str(getattr(problem, "reason", problem)) or type(problem).__name__
            raise Undelivered(f"{self.shown}: {_hidden(said, *self._secrets)}") from None

    def _said(self, answer: urllib.error.HTTPError) -> str:
        if 300 <= answer.code < 400:
            there = masked(answer.headers.get("Location") or "elsewhere")
            return f"is now at {there} ({answer.code}): messages are sent only to the address that is given"
        content = b""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            content = answer.read1(_ANSWER) if isinstance(answer.fp, http.client.HTTPResponse) else b""
        # Many a server quotes the path that it does not know.
        said = _hidden(f"{answer.reason} {content.decode(errors='replace')}", *self._secrets)
        return f"answers {answer.code} {clean_line(said, 200)}".rstrip()


def _after(answer: urllib.error.HTTPError) -> float:
    wanted = (answer.headers.get("Retry-After") or "").strip()
    return float(min(int(wanted), 600)) if wanted.isascii() and wanted.isdecimal() and len(wanted) < 9 else 0.0


class _Command(Target):
    """A command with each message as JSON on its standard input; it prints into the notifier's log."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        try:
            self._words = shlex.split(url.removeprefix(COMMAND))
        except ValueError as problem:
            raise TargetError(f"{self.shown}: {problem}") from None
        if not self._words:
            raise TargetError(f"{self.shown}: names no command")

    def send(self, message: Message) -> None:
        try:
            process = subprocess.Popen(self._words, stdin=subprocess.PIPE, start_new_session=True)
        except (OSError, ValueError) as problem:
            raise Undelivered(f"{self.shown}: {getattr(problem, 'strerror', None) or problem}") from None
        try:
            process.communicate(message.json, COMMAND_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise Undelivered(f"{self.shown}: not done after {COMMAND_S:g} s, and ended") from None
        if process.returncode:
            raise Undelivered(f"{self.shown}: exit code {process.returncode}")


class _Service(Target):
    """A service that Apprise knows: mail, ntfy, Slack, Teams and a hundred others."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        import apprise

        # What it logs may have secrets; it is caught, and masked.
        apprise.logger.setLevel(logging.CRITICAL)
        found = apprise.Apprise.instantiate(url, suppress_exceptions=True)
        if found is None:
            raise TargetError(f"{self.shown}: Apprise knows no such URL; https://appriseit.com/services has them")
        self._service = found
        self._url = url

    def send(self, message: Message) -> None:
        import apprise

        capture: Any = apprise.LogCapture
        with capture(level=logging.WARNING, fmt="%(message)s") as said:
            try:
                is_done = self._service.notify(
                    title=message.title, body=message.body, body_format="text",
                    notify_type="success" if message.resolved else "info" if message.kind == "test" else "warning",
                )  # fmt: skip
                reason = said.getvalue()
            except Exception as problem:
                # A hundred services, and what each of them raises.
                is_done, reason = False, f"{type(problem).__name__}: {problem}"
        if not is_done:
            raise Undelivered(f"{self.shown}: {_hidden(reason, self._url) or 'not taken'}")
