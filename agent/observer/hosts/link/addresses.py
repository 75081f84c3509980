"""Where the head of a run listens: at the interface over which the other hosts reach the training, never at all.

By `DDPTOP_LISTEN=HOST:PORT`, which may say otherwise, or by `MASTER_ADDR`.  This module opens no port.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import psutil

from ddptop.agent.run.hosts import LISTEN_VARIABLE
from ddptop.agent.text import Complaint, clean_line

MASTER_VARIABLE: Final = "MASTER_ADDR"
MOST: Final = 16
"""Addresses that are told to the branches at most."""
_CURE: Final = f"{LISTEN_VARIABLE} is HOST:PORT, such as 10.0.0.1:4321, [fd00::1]:4321, or 10.0.0.1:0 for any free port"
# A name, an IPv4 address, or an IPv6 address in brackets, perhaps with the zone of its interface.
_FORM: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([\w.-]+))(?::([0-9]{1,5}))?", re.ASCII)
_SOMEWHERE: Final = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses for documentation (RFC 5737, RFC 3849): the way to them is the default route, and nothing is sent."""


@dataclass(frozen=True, slots=True)
class Place:
    """An address of this host, and a port of it; 0 is any free one."""

    address: str
    port: int = 0

    @property
    def endpoint(self) -> str:
        """The same for ZeroMQ."""
        return endpoint(self.address, self.port)

    @property
    def is_everywhere(self) -> bool:
        """Whether it stands for all addresses of this host."""
        return _ip(self.address).is_unspecified


def endpoint(address: str, port: int) -> str:
    """Return an address and a port for ZeroMQ."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def parse(text: str, source: str = LISTEN_VARIABLE) -> tuple[str, int]:
    """Return host and port; the port is 0 where none is given.

    Raises:
        Complaint: it has another form.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None or int(found[3] or 0) > 65_535:
        raise Complaint(f"{source}={_quoted(text)}: no address; {_CURE}")
    return found[1] or found[2], int(found[3] or 0)


def choose(environment: Mapping[str, str]) -> Place:
    """Return where the head of a run with this environment listens.

    Raises:
        Complaint: `DDPTOP_LISTEN` is no address of this host, or no interface leads to `MASTER_ADDR`.
    """
    told = environment.get(LISTEN_VARIABLE, "")
    if told:
        host, port = parse(told)
        return Place(_own(host, told), port)
    master = environment.get(MASTER_VARIABLE, "").strip().strip("[]")
    if not master:
        raise Complaint(f"no {MASTER_VARIABLE} says over which interface other hosts come; {_CURE}")
    return Place(_toward(master))


def told_to_others(place: Place) -> tuple[str, ...]:
    """Return the addresses, for ZeroMQ, under which others reach a place that is bound; the most likely one first."""
    if not place.is_everywhere:
        return (place.endpoint,)
    family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
    own = [address for address in (_source(there, kind) for there, kind in _SOMEWHERE if kind == family) if address]
    own += [address for address in _interfaces(family) if address not in own]
    return tuple(endpoint(address, place.port) for address in own[:MOST])


def _quoted(text: str) -> str:
    return repr(clean_line(text, 100))


def _own(host: str, told: str) -> str:
    """Return the address of this host that a name or an address stands for."""
    problem = "it cannot be resolved"
    for address, family in _resolve(host):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(_socket_address(address, 0))
            return address
        problem = f"{address} is no address of this host"
    raise Complaint(f"{LISTEN_VARIABLE}={_quoted(told)}: {problem}; {_CURE}")


def _toward(master: str) -> str:
    resolved = list(_resolve(master))
    if not resolved:
        raise Complaint(f"{MASTER_VARIABLE}={_quoted(master)} cannot be resolved; {_CURE}")
    # A host is often its own name's loopback address (127.0.1.1 on Debian), which no other host reaches.
    loopback = [address for address, _ in resolved if _ip(address).is_loopback]
    if loopback and not _says_loopback(master):
        if address := next(_outward(), None):
            return address
    else:
        for address, family in resolved:
            if source := _source(address, family):
                return source
    raise Complaint(f"no interface of this host leads to {MASTER_VARIABLE}={_quoted(master)}; {_CURE}")


def _says_loopback(master: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(master).is_loopback
    return master.lower().split(".")[0] in ("localhost", "localhost6", "ip6-localhost", "ip6-loopback")


def _outward() -> Iterator[str]:
    """Yield own addresses that are not of the loopback interface, that of the default route first."""
    for there, family in _SOMEWHERE:
        if (address := _source(there, family)) and not _ip(address).is_loopback:
            yield address
    for family in (socket.AF_INET, socket.AF_INET6):
        yield from _interfaces(family)


def _interfaces(family: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for addresses in psutil.net_if_addrs().values():
            for each in addresses:
                # A link-local address needs the zone of each host's own interface, which the others do not know.
                if each.family == family and not (_ip(each.address).is_loopback or _ip(each.address).is_link_local):
                    yield each.address


def _source(there: str, family: int) -> str | None:
    """Return the own address of the interface that leads there; None where there is no way."""
    # To connect a datagram socket finds the way, and sends nothing.
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(_socket_address(there, 9))
        return str(probe.getsockname()[0])
    return None


def _socket_address(address: str, port: int) -> tuple[str | int, ...]:
    """Return what `socket` wants: with an IPv6 address also the number of its zone."""
    plain, _, zone = address.partition("%")
    if ":" not in plain:
        return plain, port
    number = int(zone) if zone.isdigit() else socket.if_nametoindex(zone) if zone else 0
    return plain, port, 0, number


def _resolve(host: str) -> Iterator[tuple[str, int]]:
    with contextlib.suppress(OSError, UnicodeError):
        for family, _, _, _, found in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM):
            if family in (socket.AF_INET, socket.AF_INET6):
                yield str(found[0]), family


def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(address.partition("%")[0])
