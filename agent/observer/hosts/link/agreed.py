"""Keys and address of a link that the hosts of a run have agreed on beforehand: `DDPTOP_KEY_FILE`, `DDPTOP_LISTEN`."""

from __future__ import annotations

from collections.abc import Mapping

from ddptop.agent.observer.hosts.link import addresses, keys
from ddptop.agent.observer.hosts.link.addresses import LISTEN_VARIABLE
from ddptop.agent.observer.hosts.link.keys import KEY_FILE_VARIABLE, Pair
from ddptop.agent.run.hosts import Listen
from ddptop.agent.text import Complaint, clean_line


def pairs(environment: Mapping[str, str], run_id: str) -> tuple[Pair, Pair] | None:
    """Return the key pairs of a run by the key file; None where the environment names none.

    Raises:
        Complaint: the file is no key file.
    """
    path = environment.get(KEY_FILE_VARIABLE, "")
    return keys.derive(keys.read_key_file(path), run_id) if path else None


def listen(environment: Mapping[str, str], run: str, run_id: str) -> Listen | None:
    """Return where the head of a run listens by the environment of a branch; None where no key file is named.

    Raises:
        Complaint: the file is no key file, or `DDPTOP_LISTEN` does not say the head's address with its port.
    """
    found = pairs(environment, run_id)
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
