"""A real sshd on the loopback with its own keys, and an `ssh` that knows it as `node1`: another machine of a test."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.harness import free_port, until

HOST: Final = "node1"
SSHD: Final = shutil.which("sshd") or "/usr/sbin/sshd"


def missing() -> str:
    """Return what is missing for such a machine; empty where nothing is."""
    programs = {name: shutil.which(name) for name in ("ssh", "ssh-keygen")} | {"sshd": shutil.which(SSHD)}
    absent = [name for name, path in programs.items() if path is None]
    if absent:
        return f"no {', '.join(absent)} on this machine"
    return "" if os.getuid() or Path("/run/sshd").is_dir() or os.access("/run", os.W_OK) else "no /run/sshd"


@dataclass
class Machine:
    """The other machine."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    base: Path
    """Where its runs are."""
    environment: dict[str, str]
    """With which a program here finds it."""

    @property
    def sessions(self) -> list[int]:
        """The processes that serve its connections."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def write_config(self, **options: object) -> None:
        """Write the configuration of ssh, with other options of the host."""
        usual: dict[str, object] = {
            "HostName": "127.0.0.1", "Port": self.port, "User": getpass.getuser(), "IdentitiesOnly": "yes",
            "IdentityFile": self.folder / "key", "UserKnownHostsFile": self.folder / "known",
            "GlobalKnownHostsFile": "none",
        }  # fmt: skip
        lines = [f"  {name} {value}" for name, value in (usual | options).items()]
        (self.folder / "config").write_text("\n".join([f"Host {HOST}", *lines, ""]))


def make_key(file: Path) -> str:
    """Make a key pair; return the public one."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)
    return file.with_suffix(".pub").read_text()


@contextlib.contextmanager
def machine(base: Path, given: Mapping[str, str] | None = None) -> Iterator[Machine]:
    """Start it with runs in `base`; its programs have `given` in their environment besides."""
    folder = Path(tempfile.mkdtemp(prefix="dt-ssh-", dir="/tmp"))
    if not os.getuid():
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    port = free_port()
    host_key = make_key(folder / "host")
    (folder / "authorized").write_text(make_key(folder / "key"))
    (folder / "known").write_text(f"[127.0.0.1]:{port} {host_key}")
    programs = folder / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    there = folder / "there"
    there.mkdir()
    (there / "ddptop").write_text(f'#!/bin/sh\nexec {sys.executable} -m ddptop.tui.cli.main "$@"\n')
    for program in (programs / "ssh", there / "ddptop"):
        program.chmod(0o755)
    path = os.environ["PATH"]
    environment = {"DDPTOP_RUNTIME_DIR": str(base), "PATH": f"{there}:{path}", "OMP_NUM_THREADS": "1"} | dict(
        given or {}
    )
    (folder / "sshd").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\nPidFile none\n"
        "PermitRootLogin prohibit-password\nMaxSessions 20\n"
        f"SetEnv {' '.join(f'{name}={value}' for name, value in environment.items())}\n"
    )
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "sshd")], stderr=subprocess.DEVNULL)
    here = {**os.environ, "PATH": f"{programs}:{path}", "DDPTOP_RUNTIME_DIR": str(folder / "nothing-here")}
    found = Machine(folder, port, process, base, here)
    found.write_config()
    try:
        until(lambda: _listens(port), "sshd to listen")
        yield found
    finally:
        for pid in found.sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 15)
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
