"""Two hosts (or more) on one machine, made of namespaces, for tests of runs over several hosts.

    with Cluster() as cluster:
        node1, node2 = cluster.hosts
        process = node2.popen([sys.executable, "-m", "torch.distributed.run", ...])
        node1.ddptop("status", "--json")

Each host has its own hostname, network (`e0` with an address, `lo`), processes, /tmp, /run and /dev/shm; all of them
see `cluster.shared` at the same path, and the repository and the environment of the tests read-only. The bridge between
them is in a network namespace of its own: nothing of it is seen on the machine, any number of clusters can be up at
once, and what holds them together are processes that the kernel ends with the thread that has made the cluster.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from support.cluster import slurm
from support.harness import DDPTOP, until
from support.processes.asking import WARM, Warm

REPOSITORY: Final = Path(__file__).resolve().parents[3]
_INIT: Final = Path(__file__).with_name("host.sh")
_TOOLS: Final = ("ip", "nsenter", "setpriv", "unshare")
_NETWORK: Final = "10.78.0"
"""The same in every cluster: no packet leaves it."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MORTAL: Final = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: the kernel ends it with the thread that has started it."""
_UNSHARE: Final = ("unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child=KILL")
_SETUP_S: Final = 60.0

Arguments = Sequence[str | Path]


def missing(with_slurm: bool = False) -> str | None:
    """Return why there can be no cluster here; None where there can be one."""
    if os.getuid() != 0:
        return "needs root, to make hosts out of namespaces"
    tools = _TOOLS + (slurm.TOOLS if with_slurm else ())
    if absent := [tool for tool in tools if shutil.which(tool, path=_PATH) is None]:
        return f"needs {', '.join(absent)}" + (" (packages slurm-wlm and munge)" if with_slurm else "")
    tried = subprocess.run(
        [
            "unshare",
            "--net",
            "--uts",
            "--ipc",
            "--pid",
            "--mount",
            "--fork",
            "sh",
            "-c",
            "ip link add bridge type bridge",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"needs namespaces and bridges: {tried.stderr.strip()}" if tried.returncode else None


class Host:
    """One host of a cluster, whose names are those that a machine would have."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.number = number
        self.name = f"node{number}"
        self.address = f"{_NETWORK}.{number}"
        self.port = f"v{number}"
        """Its end of the cable at the bridge."""
        self.pid = 0
        """Process 1 of the host, as the machine numbers it."""
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None
        self._warm = Warm(self._start_warm)

    @property
    def root(self) -> Path:
        """Its file system as seen from the machine: `host.root / "tmp/x"` is its /tmp/x."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def shared(self) -> Path:
        """The folder that all hosts of the cluster see."""
        return self._cluster.shared

    def command(self, arguments: Arguments, env: Mapping[str, str] | None = None, cwd: str | Path = "") -> list[str]:
        """Return the command line that runs `arguments` on this host, with `env` beside the environment of a login.

        `nsenter` passes no signal on: the command is killed when it has ended, by whichever signal.
        """
        # Another process may have its pid otherwise, and all of this machine's namespaces.
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} is down"
        told = {
            "HOME": "/tmp/home",
            "HOSTNAME": self.name,
            "LANG": "C.UTF-8",
            "PATH": f"{Path(sys.executable).parent}:{_PATH}",
            "GLOO_SOCKET_IFNAME": "e0",
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        enter = ["nsenter", "-t", str(self.pid), "-a", f"--wd={self.root}{cwd or self.shared}"]
        kept = [f"{name}={value}" for name, value in told.items()]
        return [*enter, *_MORTAL, "env", "-i", *kept, *map(str, arguments)]

    def run(
        self,
        arguments: Arguments,
        env: Mapping[str, str] | None = None,
        *,
        cwd: str | Path = "",
        timeout: float = 120.0,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on this host to its end; return what it wrote."""
        return subprocess.run(
            self.command(arguments, env, cwd),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
        )

    def popen(
        self, arguments: Arguments, env: Mapping[str, str] | None = None, *, cwd: str | Path = "", **options: Any
    ) -> subprocess.Popen[str]:
        """Start a command on this host; it goes with the cluster at the latest. `signal` reaches it."""
        process = subprocess.Popen(
            self.command(arguments, env, cwd), text=True, **{"stdin": subprocess.DEVNULL, **options}
        )
        self._cluster.started.append(process)
        return process

    def signal(self, process: subprocess.Popen[str], number: int) -> None:
        """Send a signal to the command itself that `popen` has started: nobody else in between gets it."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(children.read_text, "the command of nsenter")
        os.kill(int(children.read_text()), number)

    def python(self, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the Python of the tests to its end; options as in `run`."""
        return self.run([sys.executable, *arguments], **options)

    def ddptop(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end, without a terminal; options as in `run`."""
        return self.run([*DDPTOP, *arguments], **options)

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command line that only looks, as `ddptop` does, in a fork of a process that is kept for it.

        For those who ask again and again: this takes a tenth of the time of the processor.
        """
        return self._warm.ask(arguments)

    def _start_warm(self) -> subprocess.Popen[str]:
        # It ends with its input, and not with the thread that happens to be the first to ask.
        command = [word for word in self.command([sys.executable, WARM]) if word not in _MORTAL]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._cluster.started.append(process)
        return process

    def processes(self) -> dict[int, str]:
        """Return the command lines of the host's processes by its own process ids.

        Those that keep the host up are left out: its process 1, and that of `ask`.
        """
        found = {}
        for folder in (self.root / "proc").iterdir():
            if folder.name.isdigit() and folder.name != "1":
                with contextlib.suppress(OSError):
                    # A process that has ended and waits for its parent has no command line.
                    if words := (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                        found[int(folder.name)] = words.strip()
        return {pid: words for pid, words in found.items() if words != "sleep infinity" and str(WARM) not in words}

    def left(self, word: str = "") -> list[str]:
        """Return the command lines with a word of the processes that run on this host."""
        return [words for words in self.processes().values() if word in words]

    def cut(self) -> None:
        """Pull the cable: nothing passes, and nobody is told."""
        self._cluster.link("set", self.port, "down")

    def mend(self) -> None:
        """Plug the cable in again."""
        self._cluster.link("set", self.port, "up")

    def delay(self, ms: float) -> None:
        """Let each packet to this host take `ms` longer.

        Raises:
            OSError: the kernel has no network emulator (module sch_netem).
        """
        done = self._cluster.switch("tc", "qdisc", "replace", "dev", self.port, "root", "netem", "delay", f"{ms}ms")
        if done.returncode:
            raise OSError(f"no network emulator: {done.stderr.strip()}")

    def kill_all(self) -> None:
        """End all processes of the host at once (SIGKILL); the host itself stays and closes their connections."""
        self.run(["sh", "-c", "kill -9 -1"])
        if self._warm.process is not None:
            self._warm.process.wait()
        until(lambda: not self.processes(), f"all processes of {self.name} are gone")

    # For the cluster alone.

    def start(self, state: Path, seen: Sequence[str]) -> None:
        """Start process 1, which makes the host out of its namespaces and tells its pid."""
        told = state / f"{self.name}.pid"
        with (state / f"{self.name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*_MORTAL, *_UNSHARE, "bash", str(_INIT), str(told), self.name, str(state / "etc"), *seen],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

        def pid() -> int | None:
            assert self._process is not None
            assert self._process.poll() is None, (state / f"{self.name}.log").read_text()
            text = told.read_text() if told.exists() else ""
            return int(text) if text else None

        found = until(pid, f"{self.name} is up", _SETUP_S)
        assert isinstance(found, int)
        self.pid = found

    def stop(self) -> None:
        """End the host with all that runs on it, and wait until it is gone."""
        if self._process is not None:
            # Process 1 goes with `unshare`, and with it all others.
            self._process.kill()
            self._process.wait()


class Cluster:
    """Hosts on one machine for as long as the block runs, with Slurm where it is asked for.

    Raises:
        AssertionError: a host did not come up; nothing of it is left then.
    """

    def __init__(self, hosts: int = 2, *, slurm: bool = False) -> None:
        self.hosts = tuple(Host(self, number) for number in range(1, hosts + 1))
        self.shared = Path()
        """A folder that all hosts see at the same path, empty at first, on the machine too."""
        self.started: list[subprocess.Popen[str]] = []
        self._slurm = slurm
        self._switch: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    def __enter__(self) -> Cluster:
        # Short: sockets may be made in it.
        self._folder = Path(tempfile.mkdtemp(prefix="dc-", dir="/tmp"))
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set_up(self) -> None:
        self._folder.chmod(0o755)
        self.shared = self._folder / "shared"
        self.shared.mkdir()
        etc = self._folder / "etc"
        etc.mkdir()
        # The mapped addresses too: the store of torch listens on IPv6, and warns of each client that it cannot name.
        names = "".join(f"{host.address} {host.name}\n::ffff:{host.address} {host.name}.v6\n" for host in self.hosts)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n::ffff:127.0.0.1 localhost.v6\n{names}")
        if self._slurm:
            slurm.configure(etc, [host.address for host in self.hosts])
        # Hosts cannot write beside the modules: each process there would compile what is not compiled yet.
        packages = (str(REPOSITORY / name) for name in ("agent", "tui"))
        subprocess.run([sys.executable, "-m", "compileall", "-q", *packages], check=True)
        self._switch = subprocess.Popen([*_MORTAL, "unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL)
        outside, inside = Path("/proc/self/ns/net"), Path(f"/proc/{self._switch.pid}/ns/net")
        until(lambda: os.readlink(inside) != os.readlink(outside), "a network for the bridge")
        self.link("add", "bridge", "type", "bridge")
        self.link("set", "bridge", "up")
        seen = [f"rw:{self.shared}", *(f"ro:{path}" for path in _needed())]
        for host in self.hosts:
            host.start(self._folder, seen)
            cable = ("type", "veth", "peer", "name", "e0", "netns", str(host.pid))
            self.link("add", host.port, "master", "bridge", *cable)
            self.link("set", host.port, "up")
            for line in (f"addr add {host.address}/24 dev e0", "link set e0 up", "link set lo up"):
                host.run(["ip", *line.split()], cwd="/", check=True)
        if self._slurm:
            slurm.start(self.hosts)

    def switch(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command where the bridge is."""
        assert self._switch is not None
        enter = ["nsenter", "-t", str(self._switch.pid), "-n"]
        return subprocess.run([*enter, *arguments], capture_output=True, text=True, check=False)

    def link(self, *arguments: str) -> None:
        """Run `ip link` where the bridge is."""
        done = self.switch("ip", "link", *arguments)
        assert not done.returncode, f"ip link {' '.join(arguments)}: {done.stderr}"

    def kill_host(self, number: int) -> None:
        """End all processes of host `number` (from 1) at once."""
        self.hosts[number - 1].kill_all()

    def reset(self) -> None:
        """Make all hosts as new: no process, no run, an empty shared folder, all cables in. Not for Slurm."""
        for host in self.hosts:
            host.mend()
            host.kill_all()
            for folder in (host.root / "tmp/home", host.root / f"tmp/ddptop-{os.getuid()}", host.root / "tmp/r"):
                shutil.rmtree(folder, ignore_errors=True)
            (host.root / "tmp/home").mkdir(mode=0o700)
        for entry in self.shared.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self._reap()

    def close(self) -> None:
        """End the hosts and all that runs on them; remove what was made."""
        for host in self.hosts:
            host.stop()
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
        self._reap()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _reap(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self.started.clear()


@contextlib.contextmanager
def on(host: Host, *arguments: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a command on a host that is killed with the block."""
    process = host.popen(arguments, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _needed() -> list[Path]:
    """Return the folders that hold the repository and the environment, none inside of another."""
    wanted = {REPOSITORY, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    wanted |= {Path(path).resolve() for path in sys.path if path and Path(path).is_dir()}
    # Of the others only what the host's own /tmp would hide.
    wanted = {path for path in wanted if path == REPOSITORY or path.is_relative_to("/tmp")}
    return sorted(path for path in wanted if not any(path != other and path.is_relative_to(other) for other in wanted))
