"""How a link is opened: where the head listens and with which keys, and by what a branch finds it.

The hosts of a run may have agreed on both beforehand, by `DDPTOP_KEY_FILE` and `DDPTOP_LISTEN`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.hosts.link import addresses, keys
from ddptop.agent.observer.hosts.link.head import Head
from ddptop.agent.observer.hosts.link.keys import Pair
from ddptop.agent.run import hosts
from ddptop.agent.run.hosts import KEY_FILE_VARIABLE, LISTEN_VARIABLE, Listen
from ddptop.agent.run.rundir import Run, RunDir
from ddptop.agent.text import Complaint, clean_line

_VARIABLES: Final = (LISTEN_VARIABLE, addresses.MASTER_VARIABLE, KEY_FILE_VARIABLE)
"""Variables that say how hosts find each other."""


def open_head(directory: RunDir, run: Run, hello: wire.HostHello) -> Head:
    """Listen over the interface by which other hosts reach the training.

    Raises:
        Complaint: there is no such interface, nobody can listen there, or the key file is none.
        zmq.ZMQError: there cannot be a socket.
    """
    environment = _environment(directory)
    return Head(agreed_pairs(environment, run.run_id) or keys.generate(), addresses.choose(environment), hello)


def find(directory: RunDir, run: Run) -> Listen | None:
    """Return where the head listens, as an agent of this host has found it, or as all hosts were told.

    None where that is not known yet.

    Raises:
        Complaint: what they were told is not enough.
    """
    found = hosts.read_listen(directory.path, hosts.HEAD)
    return found or agreed_listen(_environment(directory), run.run, run.run_id)


def _environment(directory: RunDir) -> dict[str, str]:
    """Return the variables that say how hosts find each other: those of the ranks here, else of this process."""
    rendezvous = hosts.read_rendezvous(directory.path)
    own = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return own if rendezvous is None else own | rendezvous.environment


def agreed_pairs(environment: Mapping[str, str], run_id: str) -> tuple[Pair, Pair] | None:
    """Return the key pairs of a run by the key file; None where the environment names none.

    Raises:
        Complaint: the file is no key file.
    """
    path = environment.get(KEY_FILE_VARIABLE, "")
    return keys.derive(keys.read_key_file(path), run_id) if path else None


def agreed_listen(environment: Mapping[str, str], run: str, run_id: str) -> Listen | None:
    """Return where the head of a run listens by the environment of a branch; None where no key file is named.

    Raises:
        Complaint: the file is no key file, or `DDPTOP_LISTEN` does not say the head's address with its port.
    """
    found = agreed_pairs(environment, run_id)
    if found is None:
        return None
    server, client = found
    told = environment.get(LISTEN_VARIABLE, "")
    host, port = addresses.parse(told) if told else ("", 0)
    if not port:
        quoted = clean_line(told, 100)
        raise Complaint(
            f"{LISTEN_VARIABLE}={quoted!r}: with {KEY_FILE_VARIABLE} it has to name host and port of the "
            "observer on the host of rank 0, the same on all hosts, such as 10.0.0.1:4321"
        )
    return Listen(
        run=run,
        run_id=run_id,
        host=host,
        addresses=(addresses.endpoint(host, port),),
        server=server.public,
        client_public=client.public,
        client_secret=client.secret,
    )
