"""How a link is opened: where the head listens and with which keys, and by what a branch finds it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import zmq

from ddptop.agent import wire
from ddptop.agent.observer.hosts.link import addresses, agreed, branch, head, keys
from ddptop.agent.observer.hosts.link.side import Arrived, Changed, Link, Say
from ddptop.agent.run import hosts
from ddptop.agent.run.hosts import Listen
from ddptop.agent.run.rundir import Run, RunDir

_TOLD: Final = (addresses.LISTEN_VARIABLE, addresses.MASTER_VARIABLE, keys.KEY_FILE_VARIABLE)
"""Variables that say how hosts find each other."""


@dataclass(frozen=True)
class Calls:
    """What a link calls, all of it on the thread that calls `turn`."""

    arrived: Arrived
    changed: Changed
    say: Say


@dataclass(frozen=True)
class Opening:
    """How a link is opened at either side, and found."""

    head: Callable[[RunDir, Run, wire.HostHello, Calls], tuple[Link, Listen]]
    """Listens; returns the link, and what the branches need to connect. Raises `Complaint`, `OSError` or `ZMQError`."""
    branch: Callable[[zmq.Context[Any], Listen, wire.HostHello, Calls], Link]
    """Connects; raises `ValueError` or `ZMQError`."""
    find: Callable[[RunDir, Run], Listen | None]
    """Returns where the head listens, None where that is not known yet; raises `Complaint`."""


def open_head(directory: RunDir, run: Run, hello: wire.HostHello, calls: Calls) -> tuple[Link, Listen]:
    """Listen over the interface by which other hosts reach the training; see `Opening.head`."""
    environment = _environment(directory)
    pairs = agreed.pairs(environment, run.run_id) or keys.generate()
    place = addresses.choose(environment)
    link = head.Head(pairs, place, hello, arrived=calls.arrived, changed=calls.changed, say=calls.say)
    return link, link.listen


def open_branch(context: zmq.Context[Any], listen: Listen, hello: wire.HostHello, calls: Calls) -> Link:
    """Connect to the head; see `Opening.branch`."""
    return branch.Branch(context, listen, hello, arrived=calls.arrived, changed=calls.changed, say=calls.say)


def find(directory: RunDir, run: Run) -> Listen | None:
    """Return where the head listens, as an agent of this host has found it, or as all hosts were told."""
    found = hosts.read_listen(directory.path, hosts.HEAD)
    return found or agreed.listen(_environment(directory), run.run, run.run_id)


def _environment(directory: RunDir) -> dict[str, str]:
    """Return the variables that say how hosts find each other: those of the ranks here, else of this process."""
    rendezvous = hosts.read_rendezvous(directory.path)
    own = {name: os.environ[name] for name in _TOLD if name in os.environ}
    return own if rendezvous is None else own | rendezvous.environment


OPENING: Final = Opening(open_head, open_branch, find)
