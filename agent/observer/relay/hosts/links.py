"""How a link is opened: where the head listens and with which keys, and by what a branch finds it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psutil
import zmq

from ddptop.agent import wire
from ddptop.agent.observer.hosts import addresses, agreed, branch, head, keys
from ddptop.agent.observer.hosts.link import Arrived, Changed, Link, Say
from ddptop.agent.run import hosts
from ddptop.agent.run.hosts import Listen
from ddptop.agent.run.rundir import Member, Run, RunDir, is_alive

_OF_RANKS: Final = (addresses.LISTEN_VARIABLE, addresses.MASTER_VARIABLE, keys.KEY_FILE_VARIABLE)
"""Variables that a rank has and its observer may lack: another process may have started that."""


@dataclass(frozen=True)
class Calls:
    """What a link calls, all of it on the thread that calls `turn`."""

    arrived: Arrived
    changed: Changed
    say: Say


OpenHead = Callable[["zmq.Context[Any]", RunDir, Run, wire.HostHello, Mapping[int, Member], Calls], tuple[Link, Listen]]
"""Listens; returns the link, and what the branches need to connect.

Raises `Complaint`, `OSError` or `zmq.ZMQError`."""
OpenBranch = Callable[["zmq.Context[Any]", Listen, wire.HostHello, Calls], Link]
"""Connects; raises `ValueError` or `zmq.ZMQError`."""
Find = Callable[[RunDir, Run, Mapping[int, Member]], "Listen | None"]
"""Returns where the head listens, None where that is not known yet; raises `Complaint`."""


def open_head(
    context: zmq.Context[Any],
    directory: RunDir,
    run: Run,
    hello: wire.HostHello,
    members: Mapping[int, Member],
    calls: Calls,
) -> tuple[Link, Listen]:
    """Listen over the interface by which other hosts reach the training; see `OpenHead`."""
    environment = _environment(members)
    pairs = agreed.pairs(environment, run.run_id) or keys.generate()
    place = addresses.choose(environment)
    link = head.Head(pairs, place, hello, arrived=calls.arrived, changed=calls.changed, say=calls.say)
    return link, link.listen


def open_branch(context: zmq.Context[Any], listen: Listen, hello: wire.HostHello, calls: Calls) -> Link:
    """Connect to the head; see `OpenBranch`."""
    return branch.Branch(context, listen, hello, arrived=calls.arrived, changed=calls.changed, say=calls.say)


def find(directory: RunDir, run: Run, members: Mapping[int, Member]) -> Listen | None:
    """Return where the head listens, as an agent of this host has found it, or as all hosts were told; see `Find`."""
    found = hosts.read_listen(directory.path, hosts.HEAD)
    if found is not None and found.run_id == run.run_id:
        return found
    return agreed.listen(_environment(members), run.run, run.run_id)


def _environment(members: Mapping[int, Member]) -> dict[str, str]:
    """Return the variables that say how hosts find each other: those of the first rank here, and of this process."""
    found = {name: os.environ[name] for name in _OF_RANKS if name in os.environ}
    for _, member in sorted(members.items()):
        with contextlib.suppress(psutil.Error, OSError):
            if is_alive(member.process):
                theirs = psutil.Process(member.process.pid).environ()
                found |= {name: theirs[name] for name in _OF_RANKS if theirs.get(name)}
                break
    return found
