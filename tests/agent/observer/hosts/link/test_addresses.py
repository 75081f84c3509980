"""Where a head listens: at the interface by which the others reach the training, and nowhere else."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddptop.agent.observer.hosts.link import addresses
from ddptop.agent.observer.hosts.link.addresses import Place
from ddptop.agent.observer.hosts.link.admission import Port
from ddptop.agent.text import Complaint

OWN = [
    each.address
    for found in psutil.net_if_addrs().values()
    for each in found
    if each.family == socket.AF_INET and not ipaddress.ip_address(each.address).is_loopback
]
"""The addresses of this host that others may reach."""
needs_network = pytest.mark.skipif(not OWN, reason="this machine has a loopback interface only")


def resolving(monkeypatch: pytest.MonkeyPatch, **names: str) -> None:
    """Let names stand for addresses, as /etc/hosts does."""
    real = socket.getaddrinfo

    def resolve(host: str, *rest: Any, **more: Any) -> Any:
        return real(names.get(host, host), *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@needs_network
@pytest.mark.parametrize("own", OWN)
def test_an_own_address_of_the_master_is_where_the_head_listens(own: str) -> None:
    assert addresses.choose({"MASTER_ADDR": own}) == Place(own)


@pytest.mark.parametrize("master", ["127.0.0.1", "localhost", "127.0.1.1"])
def test_a_run_on_the_loopback_interface_stays_there(master: str) -> None:
    found = addresses.choose({"MASTER_ADDR": master})
    assert ipaddress.ip_address(found.address).is_loopback
    assert found.port == 0


@needs_network
def test_a_name_of_this_host_that_stands_for_its_loopback_address_is_not_taken_at_its_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Debian writes the host's name beside 127.0.1.1; no other host reaches that."""
    resolving(monkeypatch, node7="127.0.1.1")
    assert addresses.choose({"MASTER_ADDR": "node7"}).address in OWN


@needs_network
def test_another_host_is_reached_by_the_interface_that_leads_there() -> None:
    found = addresses.choose({"MASTER_ADDR": "192.0.2.55"})
    assert found.address in OWN


def test_an_address_that_was_told_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"MASTER_ADDR": "192.0.2.55", "DDPTOP_LISTEN": "127.0.0.2:4321"}
    assert addresses.choose(environment) == Place("127.0.0.2", 4321)
    assert addresses.choose(environment | {"DDPTOP_LISTEN": "127.0.0.2"}) == Place("127.0.0.2", 0)
    resolving(monkeypatch, here="127.0.0.3")
    assert addresses.choose(environment | {"DDPTOP_LISTEN": "here:1"}) == Place("127.0.0.3", 1)


def test_all_interfaces_only_for_who_says_so() -> None:
    """The branches are then told addresses of this host, never the one that stands for all."""
    place = addresses.choose({"DDPTOP_LISTEN": "0.0.0.0:4321"})
    assert place == Place("0.0.0.0", 4321)
    told = addresses.told_to_others(place)
    assert set(told) == {f"tcp://{own}:4321" for own in OWN}


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({}, "no MASTER_ADDR"),
        ({"MASTER_ADDR": "no-such-host.invalid"}, "cannot be resolved"),
        ({"DDPTOP_LISTEN": "192.0.2.1:80"}, "192.0.2.1 is no address of this host"),
        ({"DDPTOP_LISTEN": "no-such-host.invalid:80"}, "cannot be resolved"),
        ({"DDPTOP_LISTEN": "10.0.0.1:70000"}, "no address"),
        ({"DDPTOP_LISTEN": "tcp://10.0.0.1:1"}, "no address"),
        ({"DDPTOP_LISTEN": "fd00::1:80"}, "no address"),
        ({"DDPTOP_LISTEN": ":80"}, "no address"),
        ({"DDPTOP_LISTEN": "a b:80"}, "no address"),
        ({"DDPTOP_LISTEN": "x" * 5000 + ":80"}, "cannot be resolved"),
    ],
)
def test_what_leads_nowhere_is_one_line_with_the_cure(environment: dict[str, str], what: str) -> None:
    with pytest.raises(Complaint, match=what) as found:
        addresses.choose(environment)
    assert "\n" not in str(found.value)
    assert "DDPTOP_LISTEN is HOST:PORT" in str(found.value)


@given(st.text(alphabet="[]:.%-_/ \naZ09\x1b٣é", max_size=20))
def test_any_text_is_an_address_or_a_complaint(text: str) -> None:
    try:
        host, port = addresses.parse(text)
    except Complaint:
        return
    assert host
    assert 0 <= port <= 65_535
    assert text.strip() in (host, f"[{host}]") or text.strip().rpartition(":")[2] in (str(port), text.strip()[-5:])


@pytest.mark.parametrize(
    ("text", "address", "port"),
    [
        ("10.0.0.1:80", "10.0.0.1", 80), ("node-1.cluster:0", "node-1.cluster", 0), ("[fd00::1]:4321", "fd00::1", 4321),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1), ("node1", "node1", 0), (" node1:7 \n", "node1", 7),
    ],
)  # fmt: skip
def test_forms_of_an_address(text: str, address: str, port: int) -> None:
    assert addresses.parse(text) == (address, port)


def test_a_port_that_is_taken_is_one_line() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    with (
        taken,
        pytest.raises(Complaint, match=r"port \d+: cannot listen there \(Address already in use\)"),
    ):
        Port(Place("127.0.0.1", taken.getsockname()[1]))


def test_a_foreign_address_is_one_line() -> None:
    with pytest.raises(Complaint, match="Cannot assign requested address"):
        Port(Place("192.0.2.1", 0))


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="this machine has no IPv6")
def test_ipv6_addresses_have_brackets_for_zeromq() -> None:
    try:
        port = Port(addresses.choose({"DDPTOP_LISTEN": "[::1]:0"}))
    except Complaint as problem:
        pytest.skip(f"no IPv6: {problem}")
    assert addresses.told_to_others(port.place) == (f"tcp://[::1]:{port.place.port}",)
    port.close()
