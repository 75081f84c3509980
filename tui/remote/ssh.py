"""A verb on another machine by OpenSSH: its options, and what its errors mean.

ssh itself asks for passwords and unknown host keys, on the terminal where there is one; without one it asks nothing.
Its own messages go into a file, so that they do not get between those of the other side.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ddptop.agent.client.host.settings import load_or_default
from ddptop.agent.text import clean_line
from ddptop.tui.remote import errand
from ddptop.tui.remote.target import Target, Unreachable

_OPTIONS: Final = (
    "ConnectTimeout=15", "ServerAliveInterval=5", "ServerAliveCountMax=3", "ClearAllForwardings=yes", "ForwardAgent=no",
    "ForwardX11=no", "RemoteCommand=none", "LogLevel=ERROR", "PermitLocalCommand=yes",
)  # fmt: skip
"""A connection that is cut is noticed after 15 s; nothing of the user's own forwarding is set up again by it."""


def carry_out(target: Target, verb: Sequence[str], command: str | None = None) -> int:
    """Carry a verb out there; return its exit code.

    Args:
        target: the machine.
        verb: its name and arguments, as they are to stand there.
        command: what starts ddptop there, where it is not what the environment or the settings say.

    Raises:
        Unreachable: the machine cannot be reached, or not any more.
    """
    program = shutil.which("ssh")
    if program is None:
        raise Unreachable("no ssh on this machine: install the OpenSSH client")
    command = command or os.environ.get(errand.COMMAND_VARIABLE) or load_or_default()[0].remote.command
    given = {**errand.marks(errand.BY_SSH), errand.HOST_VARIABLE: target.host}
    words = errand.line(command, verb, given, target.host, f"{errand.NAME_IT}, or command in [remote] of the settings")
    terminal = errand.Terminal()
    try:
        descriptor, name = tempfile.mkstemp(prefix="ddptop-ssh-")
    except OSError as problem:
        raise Unreachable(f"no file for its messages ({problem}); set TMPDIR to a folder of your own") from problem
    with os.fdopen(descriptor, "rb") as log, open(name, "ab") as errors:
        # Once it is connected the name is of no use: whatever ends this process then, nothing is left.
        gone = f"LocalCommand=rm -f {shlex.quote(name)}".replace("%", "%%")
        quiet = [] if sys.stdin.isatty() and sys.stderr.isatty() else ["BatchMode=yes"]
        options = [part for each in (*_OPTIONS, gone, *quiet) for part in ("-o", each)]
        kind = "-t" if terminal.is_there else "-T"
        start = [program, kind, "-E", name, "-S", "none", *options, "--", target.address, shlex.join(words)]
        try:
            # Of what is on a terminal there, all comes by stdout.
            code = errand.wait(start, terminal, errors if terminal.is_there else None)
        finally:
            connected = not os.path.exists(name)
            Path(name).unlink(missing_ok=True)
        lines = _lines(log.read(20_000))
    if code != errand.FAILED:
        return code if code != errand.OWN_FAILED else errand.FAILED
    if not connected:
        raise Unreachable(_explained(target, lines))
    terminal.restore()
    again = f"`ddptop attach {target.host}:{target.run}` connects again"
    raise Unreachable(f"{target.host}: the connection has ended; {again}; the run is untouched", code=1)


def _lines(written: bytes) -> list[str]:
    lines = (clean_line(line, 200) for line in written.decode(errors="replace").splitlines())
    return [line for line in lines if not set(line) <= {"@", " "}]


def _explained(target: Target, lines: Sequence[str]) -> str:
    """Return why ssh could not connect, by its messages, and what to do."""
    host = target.host
    for sign, advice in _ADVICE:
        if found := next((each for each in lines if sign in each), None):
            what = advice.format(host=host, address=target.address)
            return f"{host}: {what} ({found.removeprefix('ssh: ').rstrip('.')})"
    why = lines[-1].removeprefix("ssh: ") if lines else "no connection"
    return f"{host}: {why}; `ssh {host}` has to work first"


_ADVICE: Final = (
    ("HOST IDENTIFICATION HAS CHANGED",
     "its host key is another one than before: find out why; if that is right, `ssh-keygen -R {address}`, and connect "
     "once by `ssh {host}`"),
    ("Host key verification failed",
     "its host key is not known here: connect once by `ssh {host}`, and compare the key"),
    ("Permission denied",
     "it refuses your key: `ssh {host}` has to work first; `ssh-copy-id {host}` brings your key there"),
    ("Too many authentication failures", "it refuses your keys: name the right one in ~/.ssh/config (IdentityFile)"),
    ("Could not resolve hostname", "no such host; check its name, or its alias in ~/.ssh/config"),
    ("Connection refused", "nothing listens for ssh there; check the host and its port (~/.ssh/config)"),
    ("timed out", "it does not answer; check the host, the network and the VPN"),
    ("No route to host", "it cannot be reached; check the host, the network and the VPN"),
)  # fmt: skip
"""Messages of ssh, and their meanings; the first that is found counts."""
