"""The hosts of a launch that is given on each of them: the ranks of this one, and one name for the run on all."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from ddptop.agent.client.start.request import Request
from ddptop.agent.launcher import machine
from ddptop.agent.launcher.launcher import Rendezvous
from ddptop.agent.launcher.rendezvous import port_of
from ddptop.agent.run import rundir
from ddptop.agent.text import plural
from ddptop.agent.wire import MOST_RANKS

_UNNAMED: Final = "none"
"""The id of a rendezvous that torchrun takes where none is given."""
_RESOLVES_S: Final = 30.0
"""Seconds for which the name of a host may be unknown where a scheduler is still starting it."""
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]")


class Hosts(NamedTuple):
    """The hosts that a request names, and the ranks on each."""

    least: int
    most: int
    here: int
    """Ranks on each host."""
    rendezvous: Rendezvous

    @property
    def world(self) -> int:
        """Ranks of all hosts, where all come."""
        return self.most * self.here


def read(request: Request) -> Hosts | None:
    """Return the hosts of a request, None where it is for this host alone; a ValueError says what cannot work."""
    if request.nnodes is None:
        return None
    least, most = span(request.nnodes)
    if not request.rdzv_endpoint:
        if most == 1 and request.node_rank in (None, 0):
            return None
        raise ValueError(
            "--nnodes: say where the hosts meet, the same on each of them: --rdzv-endpoint HOST:29400, "
            "with the name of one of them"
        )
    if request.start == "spawn":
        raise ValueError("--nnodes needs --start torchrun: a program that spawns its ranks joins no others")
    _check_node(request, least, most)
    here = _ranks_here(request, least, most)
    if most * here > MOST_RANKS:
        raise ValueError(f"--nnodes {request.nnodes}: {most * here:,} ranks; a run has 1 to {MOST_RANKS:,}")
    host, port = split(request.rdzv_endpoint)
    ident = request.rdzv_id or _UNNAMED
    return Hosts(least, most, here, Rendezvous(request.nnodes, f"{host}:{port}", ident, request.node_rank))


def span(text: str) -> tuple[int, int]:
    """Return the least and the most hosts of `2` or `1:4`, or raise ValueError."""
    least, _, most = text.partition(":")
    return int(least), int(most or least)


def split(endpoint: str) -> tuple[str, int]:
    """Return host and port of an endpoint, or raise ValueError; a host is written in one way."""
    port = port_of(endpoint)
    host = endpoint.lower() if ":" not in endpoint.rpartition("]")[2] else endpoint.rpartition(":")[0].lower()
    if not _HOST.fullmatch(host) or not 0 < port < 65536 or endpoint.endswith(":"):
        raise ValueError(f"--rdzv-endpoint {endpoint!r}: say HOST:PORT, like node1:29400")
    if host[0] == "[":
        # One that is no address would reach torchrun as it is.
        ipaddress.ip_address(host[1:-1])
    return host, port


def _check_node(request: Request, least: int, most: int) -> None:
    if request.node_rank is None:
        return
    if least != most:
        raise ValueError("--node-rank: hosts that may come and go number themselves; leave it out")
    if request.node_rank >= most:
        raise ValueError(f"--node-rank {request.node_rank}: {plural(most, 'host')} have the numbers 0 to {most - 1}")
    if request.max_restarts:
        raise ValueError("--max-restarts: hosts that meet again number themselves; leave out --node-rank")


def _ranks_here(request: Request, least: int, most: int) -> int:
    if request.world is None:
        return ranks_a_host(request)
    if least != most:
        raise ValueError("--world: how many hosts come is not known; say --nproc-per-node")
    here, left = divmod(request.world, most)
    if left or not here:
        near = " or ".join(str(most * each) for each in (here, here + 1) if each)
        raise ValueError(f"--world {request.world}: {plural(most, 'host')} get as many ranks each: say {near}")
    if request.nproc_per_node not in (None, here):
        raise ValueError(
            f"--world {request.world}: {plural(most, 'host')} with {request.nproc_per_node} ranks each have "
            f"{most * (request.nproc_per_node or 0)}"
        )
    return here


def ranks_a_host(request: Request) -> int:
    """Return the ranks on a host, for a request that does not give their number over all."""
    return machine.default_world() if request.nproc_per_node is None else request.nproc_per_node


def check_endpoint(hosts: Hosts, *, patient: bool, sleep: Callable[[float], None] = time.sleep) -> None:
    """Raise ValueError where the name of the endpoint's host means nothing here.

    Args:
        hosts: the hosts.
        patient: whether a scheduler may still be giving that name away, as it does in Kubernetes.
        sleep: waits between two attempts.
    """
    host, port = split(hosts.rendezvous.endpoint)
    until = time.monotonic() + (_RESOLVES_S if patient else 0.0)
    while True:
        try:
            socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except OSError as problem:
            if time.monotonic() >= until:
                raise ValueError(
                    f"--rdzv-endpoint {hosts.rendezvous.endpoint}: no host {host!r} ({problem.strerror}); "
                    f"give a name or an address by which all hosts know it"
                ) from problem
            sleep(1.0)
        else:
            return


def name_of(program: str, hosts: Hosts) -> str:
    """Return the name of the run of a program, or of the path of a script, which is the same on all hosts."""
    ident = hosts.rendezvous.ident
    if ident == _UNNAMED:
        ident = _hash(hosts.rendezvous.endpoint)[:4]
    mark = re.sub(r"[^A-Za-z0-9._-]+", "-", ident).strip("-._")
    if not mark or len(mark) > rundir.LONGEST_NAME // 2:
        mark = _hash(ident)[:8]
    return f"{rundir.stem_of(program, min(30, rundir.LONGEST_NAME - 1 - len(mark)))}-{mark}"


def run_id_of(program: str, hosts: Hosts) -> str:
    """Return the id of the run, which is the same on all hosts."""
    return _hash(
        f"{rundir.stem_of(program, 30)} {hosts.rendezvous.endpoint} {hosts.rendezvous.ident} {hosts.rendezvous.nnodes}"
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
