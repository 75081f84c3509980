"""One connection of OpenSSH: its process, its forwarded sockets, and what its errors mean.

ssh itself asks for passwords and unknown host keys, on the terminal where there is one; without one it asks nothing.
Its own messages go into a file, so that they do not get into the screen, nor between those of the other side.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from ddptop.agent.run.base import BASE_VARIABLE, temporary_folder
from ddptop.agent.run.files import marks, private
from ddptop.agent.run.files.marks import Mark
from ddptop.agent.run.files.private import Hold
from ddptop.agent.text import clean_line
from ddptop.tui.remote.target import Target
from ddptop.tui.remote.unreachable import Unreachable
from ddptop.tui.settings import load_or_default

COMMAND_VARIABLE: Final = "DDPTOP_REMOTE"
"""Environment variable with the command that is ddptop on other machines."""
NO_COMMAND: Final = 127
"""Exit code of a shell that does not find a command."""
FAILED: Final = 255
"""Exit code of ssh where the connection failed."""
_MARK: Final = "ddptop connection"
_PREFIX: Final = "ddptop-far-"
_FORWARD_S: Final = 15.0
_END_S: Final = 3.0
_LONGEST_PATH: Final = 107
_OPTIONS: Final = (
    "ControlPersist=no", "ConnectTimeout=15", "ServerAliveInterval=5", "ServerAliveCountMax=3",
    "ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no", "RemoteCommand=none",
    "StreamLocalBindMask=0177", "StreamLocalBindUnlink=yes", "LogLevel=ERROR",
)  # fmt: skip
"""A connection that is cut is noticed after 15 s; nothing of the user's own forwarding is set up again by it."""


class Folder:
    """A private folder of one connection, which goes with it; what a killed process has left goes with the next one."""

    def __init__(self) -> None:
        """Make it.

        Raises:
            Unreachable: it cannot be made.
        """
        try:
            sweep(temporary_folder())
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=temporary_folder()))
            self._hold = Hold.acquire(self.path)
            marks.write(self.path, Mark(_MARK))
        except OSError as problem:
            raise Unreachable(
                f"{temporary_folder()}: {problem.strerror}; set TMPDIR to a folder of your own"
            ) from problem

    def close(self) -> None:
        """Remove it."""
        self._hold.release()
        shutil.rmtree(self.path, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove the folders of connections whose process is gone: those of this user that bear our mark."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, private.RunDirError):
            private.check_folder(folder, os.getuid(), "")
            mark = marks.read(folder, _MARK)
            if mark is not None and marks.is_original(folder, mark) and Hold.is_free(folder):
                shutil.rmtree(folder, ignore_errors=True)


def program() -> str:
    """Return the path of ssh.

    Raises:
        Unreachable: there is none.
    """
    found = shutil.which("ssh")
    if found is None:
        raise Unreachable("no ssh on this machine: install the OpenSSH client")
    return found


def options(*, terminal: bool) -> list[str]:
    """Return the options of each connection; without a `terminal`, ssh asks for nothing."""
    chosen = _OPTIONS if terminal else (*_OPTIONS, "BatchMode=yes")
    return [part for each in chosen for part in ("-o", each)]


def has_terminal() -> bool:
    """Say whether somebody is there whom ssh can ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def remote(command: str | None) -> str:
    """Return what starts ddptop on the other machine: a piece of a command line for the shell there."""
    return command or os.environ.get(COMMAND_VARIABLE) or load_or_default()[0].remote.command


def line(command: str, arguments: list[str], otherwise: str = "") -> str:
    """Return a command line for whatever shell is the user's there, which starts ddptop with some arguments.

    It ends with `NO_COMMAND`, and writes nothing, where there is none. With `otherwise`, what these arguments are to be
    where the first ones are refused as wrong options.
    """
    words = command.split()
    if words and "=" in words[0]:
        command = f"env {command}"
    first = next((word for word in words if word != "env" and "=" not in word), command)
    script = f"command -v {first} >/dev/null 2>&1 || exit {NO_COMMAND}; "
    if otherwise:
        script += f'{command} "$@"; c=$?; [ $c = 2 ] && {command} {otherwise}; exit $c'
    else:
        script += f'exec {command} "$@"'
    return shlex.join(["sh", "-c", script, "ddptop", *arguments])


def missing_command(target: Target, command: str) -> str:
    """Say that there is no ddptop on the other machine."""
    return (
        f"{target.host}: no `{command}` on the PATH that its shell has for ssh; name it: --remote-command "
        f"'~/venv/bin/ddptop', or set {COMMAND_VARIABLE}"
    )


def base_elsewhere(command: str) -> str:
    """Say how to name another folder of runs on the other machine."""
    return f"--remote-command 'env {BASE_VARIABLE}=DIR {command}' where its runs are in another folder"


def explained(target: Target, log: Path) -> str:
    """Return why ssh has failed, by its messages, and what to do; empty where it has written none."""
    try:
        said = log.read_text(errors="replace")[-20_000:]
    except OSError:
        return ""
    lines = [text for each in said.splitlines() if (text := clean_line(each, 200)) and not set(text) <= {"@", " "}]
    if not lines:
        return ""
    host = target.host
    for sign, advice in _ADVICE:
        if found := next((each for each in lines if sign in each), None):
            what = advice.format(host=host, address=target.address)
            return f"{host}: {what} ({found.removeprefix('ssh: ').rstrip('.')})" if "{" not in what else what
    return f"{host}: {lines[-1].removeprefix('ssh: ')}; `ssh {host}` has to work first"


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
"""What ssh writes, and what that means; the first that is found counts."""


class Connection:
    """A connection on which a command runs; with it, sockets are forwarded and the connection ends."""

    def __init__(self, target: Target, command: str) -> None:
        """Start it; nothing is waited for.

        Raises:
            Unreachable: there is no ssh, or no room for its folder.
        """
        self.target = target
        ssh = program()
        self._folder = Folder()
        self.folder = self._folder.path
        self._control = self.folder / "c"
        self._forwarding = [ssh, "-S", str(self._control), "-o", "ControlMaster=no"]
        self.log = self.folder / "log"
        self.process = subprocess.Popen(
            [
                ssh, "-M", "-S", str(self._control), "-T", "-E", str(self.log), *options(terminal=has_terminal()),
                "--", target.address, command,
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def forward(self, socket: Path, path: str) -> None:
        """Let a socket in the folder lead to one of the other machine.

        Raises:
            Unreachable: that is not allowed, or the path cannot be.
        """
        host = self.target.host
        if ":" in path or len(os.fsencode(socket)) > _LONGEST_PATH:
            raise Unreachable(
                f"{host}: {path}: no socket of that path can be forwarded; {BASE_VARIABLE} changes it there"
            )
        arguments = ["-O", "forward", "-L", f"{socket}:{path}", "--", self.target.address]
        try:
            done = subprocess.run(
                [*self._forwarding, *arguments], capture_output=True, timeout=_FORWARD_S, stdin=subprocess.DEVNULL,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{host}: it does not answer any more") from None
        if done.returncode:
            why = clean_line(done.stderr.decode(errors="replace")) or f"exit code {done.returncode}"
            raise Unreachable(f"{host}: its sockets cannot be forwarded ({why}); its sshd may forbid it")

    def close(self) -> None:
        """End it, and remove its folder; who reads what comes from there is to end by that."""
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._folder.close()
