"""The conditions under which the values of a request work here, checked before anything starts."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Final

from ddptop.agent.client.start import hosts
from ddptop.agent.client.start.request import Request, RequestError
from ddptop.agent.launcher import machine
from ddptop.agent.run import rundir
from ddptop.agent.run.switches import injection
from ddptop.agent.text import MASK, Complaint, is_secret

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS: Final = "DDPTOP_"
BASIC: Final = frozenset({"world", "nproc_per_node", "nnodes", "node_rank", "rdzv_endpoint", "rdzv_id"})
"""Keys of what the number of ranks comes from."""


def ranks(request: Request) -> int:
    """Return how many ranks a request asks for, over all hosts."""
    found = hosts.read(request)
    if found is not None:
        return found.world
    return hosts.ranks_a_host(request) if request.world is None else request.world


def ranks_here(request: Request) -> int:
    """Return how many of these are on this host."""
    found = hosts.read(request)
    return ranks(request) if found is None else found.here


def faults(request: Request) -> tuple[injection.Injection, ...]:
    """Return the faults to put into the ranks, those of our environment where none is given, or raise ValueError."""
    return injection.parse_all(request.inject or injection.listed(os.environ), ranks(request))


def variables(assignments: Iterable[str]) -> dict[str, str]:
    """Return what `KEY=VALUE` each says, or the value that `KEY` has in our own environment, or raise ValueError."""
    found = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not _VARIABLE.fullmatch(key):
            # What stands there may be the end of a secret, cut at a space.
            shown = key if len(key) < len(text) else text[:20]
            raise ValueError(f"environment {shown!r}: say KEY=VALUE or KEY, with letters, digits and _ in KEY")
        if key.startswith(_OURS):
            raise ValueError(f"environment {key!r}: ddptop itself sets {_OURS}…")
        if not equals:
            if key not in os.environ:
                raise ValueError(f"environment {key!r}: not set here; export it, or say {key}=VALUE")
            value = os.environ[key]
        elif value == MASK and is_secret(key):
            raise ValueError(f"environment {key!r}: {value} stands for a secret that was not kept; say it again")
        found[key] = value
    return found


def _check_on_term(request: Request) -> None:
    if request.start == "spawn" and request.on_term:
        raise ValueError("--on-term needs --start torchrun: a program that spawns its ranks ends them on SIGTERM")


def _check_restarts(request: Request) -> None:
    if request.start == "spawn" and request.max_restarts:
        raise ValueError("--max-restarts needs --start torchrun, which does the restarting")


def _check_with_hosts(flag: str, value: object, request: Request) -> None:
    if value not in (None, "") and request.nnodes is None:
        raise ValueError(f"{flag} needs --nnodes, the number of hosts")


def _check_endpoint(request: Request) -> None:
    _check_with_hosts("--rdzv-endpoint", request.rdzv_endpoint, request)
    if request.rdzv_endpoint:
        hosts.split(request.rdzv_endpoint)


def _check_ranks(request: Request) -> None:
    given = request.world, request.nproc_per_node
    if request.nnodes is None and None not in given and given[0] != given[1]:
        raise ValueError(f"--world {given[0]}: one host with --nproc-per-node {given[1]} has {given[1]}")
    machine.check_world(ranks_here(request))


CHECKS: Final[dict[str, Callable[[Request], object]]] = {
    "rdzv_endpoint": _check_endpoint,
    "rdzv_id": lambda request: _check_with_hosts("--rdzv-id", request.rdzv_id, request),
    "node_rank": lambda request: _check_with_hosts("--node-rank", request.node_rank, request),
    "nnodes": hosts.read,
    "world": _check_ranks,
    "backend": lambda request: machine.choose(ranks_here(request), request.backend),
    "name": lambda request: request.name and rundir.check_name(request.name),
    "on_term": _check_on_term,
    "max_restarts": _check_restarts,
    "inject": faults,
    "environment": lambda request: variables(request.environment),
}
"""By key of an option, what raises a ValueError or a Complaint where its value cannot work."""


def problems(request: Request) -> dict[str, str]:
    """Return what cannot work, one line by key of the option."""
    found = {}
    for key, check in CHECKS.items():
        try:
            check(request)
        except (ValueError, Complaint) as problem:
            found[key] = str(problem)
        if not BASIC.isdisjoint(found):
            # What depends on a wrong number of ranks or of hosts is not wrong itself.
            break
    return found


def check(request: Request) -> None:
    """Raise RequestError where a request cannot work."""
    check_torch()
    for problem in problems(request).values():
        raise RequestError(problem)


def check_torch() -> None:
    """Raise RequestError where the ranks would have no torch."""
    if importlib.util.find_spec("torch") is None:
        raise RequestError(
            f"torch is not installed beside {sys.executable}: pip install 'ddptop[trainers]', "
            f"or run ddptop from the environment that has torch"
        )
