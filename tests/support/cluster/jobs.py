"""A training over the hosts of a cluster, started by hand on each of them, and what ddptop says of it on each."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from support.cluster import Cluster, Host
from support.harness import LIGHT, until

TRAIN: Final = Path(__file__).with_name("train.py")
MARKS: Final = Path(__file__).with_name("marks.py")
"""Before a training: its agent notes what it has published."""
CYCLES: Final = Path(__file__).with_name("cycles.py")
"""Pauses, steps and resumes a run from the host on which it is started."""
TORCHRUN: Final = (sys.executable, "-m", "torch.distributed.run")
COLD_S: Final = 240.0
"""How long ranks may take to their first step: torch is imported by all of them at once."""
_CALM: Final = {"TORCH_CPP_LOG_LEVEL": "ERROR"}

Result = TypeVar("Result")


class Job:
    """A training on all hosts of a cluster, in its shared folder; its ranks are numbered through the hosts."""

    def __init__(
        self, cluster: Cluster, per_host: int = 2, *, agent: bool = True, port: int = 29400, marked: bool = False
    ) -> None:
        self.cluster = cluster
        self.per_host = per_host
        self.world = per_host * len(cluster.hosts)
        self.port = port
        self.folder = cluster.shared
        self.agent = agent
        self.marked = marked
        """Its ranks note the last step that they have published; see `published`."""
        self.processes: list[subprocess.Popen[str]] = []

    def start(
        self, *arguments: str, rdzv_id: str = "demo", env: Mapping[str, str] | None = None, options: Sequence[str] = ()
    ) -> Job:
        """Start it by the command of the manual on each host; what it prints goes to `out-HOST` in the folder.

        Args:
            arguments: of the script.
            rdzv_id: the name of the job.
            env: more variables.
            options: of torchrun; they win over those of the manual.
        """
        self.prepare()
        for host in self.cluster.hosts:
            self.start_on(host, *arguments, rdzv_id=rdzv_id, env=env, options=options)
        return self

    def start_on(
        self,
        host: Host,
        *arguments: str,
        rdzv_id: str = "demo",
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> subprocess.Popen[str]:
        """Start the part of one host; see `start`."""
        number = str(len(self.cluster.hosts))
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"node1:{self.port}", "--rdzv-id", rdzv_id]
        script = ["-m", "ddptop.agent", "train.py"] if self.agent else ["train.py"]
        command = [*TORCHRUN, "--nnodes", number, "--nproc-per-node", str(self.per_host), *rendezvous, *options]
        return self.popen(host, [*command, *script, *arguments], env)

    def start_by_hand(
        self, *arguments: str, kept: bool = False, turned: bool = False, env: Mapping[str, str] | None = None
    ) -> Job:
        """Start the ranks without torchrun.

        Rank 0 holds the store, unless one is `kept` by `a_store`; it is on the last host where all is `turned` round.
        """
        self.prepare()
        script = ["-m", "ddptop.agent", "train.py"] if self.agent else ["train.py"]
        placed = self.cluster.hosts[::-1] if turned else self.cluster.hosts
        for node, host in enumerate(placed):
            for local in range(self.per_host):
                position = {
                    "RANK": str(node * self.per_host + local),
                    "LOCAL_RANK": str(local),
                    "WORLD_SIZE": str(self.world),
                    "LOCAL_WORLD_SIZE": str(self.per_host),
                    "MASTER_ADDR": "node1" if kept else placed[0].name,
                    "MASTER_PORT": str(self.port),
                    **({"TORCHELASTIC_USE_AGENT_STORE": "True"} if kept else {}),
                }
                # By a shell, whose pid the ranks of a host have in common: they are told apart from others by it.
                command = ["sh", "-c", '"$@"; exit $?', "-", sys.executable, *script, *arguments]
                self.popen(host, command, {**position, **(env or {})})
        return self

    def prepare(self) -> None:
        """Put the script into the folder."""
        (self.folder / "light.py").write_text(LIGHT.read_text())
        program = TRAIN.read_text()
        (self.folder / "train.py").write_text(MARKS.read_text() + program if self.marked else program)

    def popen(self, host: Host, command: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a part of the training on a host."""
        with (self.folder / f"out-{host.name}").open("ab") as out:
            process = host.popen(command, {**_CALM, **(env or {})}, stdout=out, stderr=out, cwd=self.folder)
        self.processes.append(process)
        return process

    def said(self, host: Host) -> str:
        """Return what its launcher and ranks on a host have printed."""
        return (self.folder / f"out-{host.name}").read_text(errors="replace")

    def wait_for_first_step(self) -> float:
        """Wait until all ranks have made a step; return when the last one did, in seconds since 1970."""
        paths = [self.folder / f"first-{rank}" for rank in range(self.world)]

        def all_there() -> bool:
            ended = [process for process in self.processes if process.poll() is not None]
            assert not ended, "\n".join(self.said(host) for host in self.cluster.hosts)
            return all(path.exists() for path in paths)

        until(all_there, "the first step of all ranks", COLD_S)
        return max(path.stat().st_mtime for path in paths)

    def wait_for_end(self) -> list[int]:
        """Wait until the launchers have ended; return their exit codes."""
        return [process.wait(COLD_S) for process in self.processes]

    def counts(self) -> list[int]:
        """Return the steps that each rank has begun, by its own count."""
        paths = [self.folder / f"count-{rank}" for rank in range(self.world)]
        return [struct.unpack("<q", path.read_bytes())[0] for path in paths]

    def published(self) -> list[int]:
        """Return the last step that the agent of each rank has published for sure."""
        paths = [self.folder / f"published-{rank}" for rank in range(self.world)]
        return [struct.unpack("<q", path.read_bytes())[0] for path in paths]

    def digests(self) -> dict[int, str]:
        """Return the digests of the parameters that its ranks have printed."""
        texts = [self.said(host) for host in self.cluster.hosts]
        return {
            int(rank): digest for text in texts for rank, digest in re.findall(r"digest (\d+) ([0-9a-f]{64})", text)
        }

    def goes_on(self, timeout: float = 60.0) -> None:
        """Wait until each rank has begun another two steps."""
        before = self.counts()
        until(
            lambda: all(now >= then + 2 for now, then in zip(self.counts(), before, strict=True)),
            f"steps after {before}",
            timeout,
        )


STORE: Final = """
import signal, sys, torch.distributed as dist
store = dist.TCPStore("0.0.0.0", int(sys.argv[1]), None, True, wait_for_workers=False)
open("store", "w").close()
signal.pause()
"""


def a_store(host: Host, port: int = 29400) -> subprocess.Popen[str]:
    """Start a store for `start_by_hand` in a process of its own, and wait until it listens."""
    process = host.popen([sys.executable, "-c", STORE, str(port)])
    until((host.shared / "store").exists, "the store", COLD_S)
    return process


def runs(host: Host) -> list[Path]:
    """Return the run directories on a host, as paths of the machine."""
    base = host.root / f"tmp/ddptop-{os.getuid()}"
    return sorted(path.parent for path in base.glob("*/run.json"))


def run_of(host: Host) -> str:
    """Return the name of the only run on a host."""
    (path,) = runs(host)
    return path.name


def on_all(hosts: Sequence[Host], ask: Callable[[Host], Result]) -> list[Result]:
    """Ask on all hosts at the same time."""
    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(ask, hosts))


def status(host: Host, *run: str) -> dict[str, Any]:
    """Return what `ddptop status --json` says on a host; nothing while there is no run."""
    done = host.ask("status", *run, "--json")
    if not done.stdout:
        return {}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def events(host: Host, *run: str) -> list[dict[str, Any]]:
    """Return what `ddptop events --json` says on a host."""
    done = host.ask("events", *run, "--json")
    assert not done.returncode, done.stderr
    text = done.stdout.strip()
    found: list[dict[str, Any]] = (
        json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    )
    return found


def accusations(told: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts of the verdicts among events."""
    return [each["text"] for each in told if each.get("kind")]
