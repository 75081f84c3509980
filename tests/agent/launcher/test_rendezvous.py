"""What a start over several hosts waits for, against real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import msgspec
import pytest
from support.values.reports import RUN

from ddptop.agent.launcher import launcher, rendezvous
from ddptop.agent.run.identity import identify
from ddptop.agent.run.records import Ended, Member


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_connection_is_seen(family: socket.AddressFamily) -> None:
    """An answer of the endpoint is a connection of torchrun to its port; one that only listens there is none."""
    if not socket.has_ipv6 and family == socket.AF_INET6:
        pytest.skip("needs IPv6")
    with socket.socket(family) as store, socket.socket(family) as client:
        store.bind(("localhost" if family == socket.AF_INET else "::1", 0))
        store.listen()
        port = store.getsockname()[1]
        assert rendezvous.look(os.getpid(), port) == (False, 0)
        client.connect(store.getsockname())
        assert rendezvous.look(os.getpid(), port) == (True, 0)
        # It is that process's connection, and no other's.
        assert rendezvous.look(os.getppid(), port) in (None, (False, 0))
    assert rendezvous.look(os.getpid(), port) == (False, 0)


def test_the_host_of_the_store_counts_the_hosts_that_have_come() -> None:
    """By their addresses, however many connections each has; it says so until the last one is there."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(socket.socket())
        store.bind(("127.0.0.1", 0))
        store.listen()
        endpoint = f"localhost:{store.getsockname()[1]}"
        command = launcher.command("train.py", (), 1, 0, launcher.Rendezvous("3", endpoint, "a"))
        run = msgspec.structs.replace(RUN, launched=True, command=command, nodes=3)
        said = []
        for address in ("127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.3"):
            client = stack.enter_context(socket.socket())
            client.bind((address, 0))
            client.connect(store.getsockname())
            stack.enter_context(store.accept()[0])
            said.append(rendezvous.Awaited(run).text(identify(os.getpid()), (), lives=False))
        assert said == [
            f"2 of 3 hosts at the rendezvous {endpoint}",
            f"2 of 3 hosts at the rendezvous {endpoint}",
            f"1 of 3 hosts at the rendezvous {endpoint}",
            f"the other hosts at the rendezvous {endpoint}",
        ]


def test_a_process_that_is_gone_is_not_known() -> None:
    """Nothing is told of it, and nothing raised."""
    assert rendezvous.look(2**22 + 1, 29400) is None


def test_what_is_awaited() -> None:
    """First the rendezvous, then that it does not answer, then the other hosts, and nothing once a rank is there."""
    with socket.socket() as store, socket.socket() as client:
        store.bind(("127.0.0.1", 0))
        store.listen()
        endpoint = f"localhost:{store.getsockname()[1]}"
        command = launcher.command("train.py", ("--rdzv-endpoint=x:1",), 1, 0, launcher.Rendezvous("2", endpoint, "a"))
        clock = [0.0]
        awaited = rendezvous.Awaited(msgspec.structs.replace(RUN, launched=True, command=command), lambda: clock[0])
        own = identify(os.getpid())
        assert awaited.text(own, (), lives=False) == f"the rendezvous at {endpoint}"
        clock[0] = 31.0
        assert awaited.text(own, (), lives=False) == f"the rendezvous at {endpoint}, which does not answer"
        client.connect(store.getsockname())
        clock[0] = 33.0
        assert awaited.text(own, (), lives=False) == f"the other hosts at the rendezvous {endpoint}"
        assert awaited.text(own, (), lives=True) == ""
        assert awaited.text(None, (), lives=False) == ""


def test_a_start_after_a_failure_waits_for_the_same() -> None:
    """A few seconds after the last rank here has ended; not where all have done their work."""
    with socket.socket() as store, socket.socket() as client:
        store.bind(("127.0.0.1", 0))
        store.listen()
        endpoint = f"localhost:{store.getsockname()[1]}"
        command = launcher.command("train.py", (), 1, 3, launcher.Rendezvous("2", endpoint, "a"))
        clock = [0.0]
        awaited = rendezvous.Awaited(msgspec.structs.replace(RUN, launched=True, command=command), lambda: clock[0])
        own = identify(os.getpid())
        assert own is not None
        client.connect(store.getsockname())
        failed, done = (Member(0, 0, 2, own, "node1", 0, "", "", None, Ended(1, code)) for code in (1, 0))
        assert awaited.text(own, [failed], lives=True) == ""
        clock[0] = 3.0
        assert awaited.text(own, [failed], lives=False) == ""
        clock[0] = 6.0
        assert awaited.text(own, [failed], lives=False) == f"the other hosts at the rendezvous {endpoint}"
        assert awaited.text(own, [done], lives=False) == ""
        assert awaited.text(own, [done, failed], lives=False) != ""
        assert awaited.text(own, [msgspec.structs.replace(failed, ended=None)], lives=False) != ""


@pytest.mark.parametrize(
    ("endpoint", "port"), [("node1:29500", 29500), ("node1", 29400), ("[fe80::1]", 29400), ("[fe80::1]:7", 7)]
)
def test_the_port_of_an_endpoint(endpoint: str, port: int) -> None:
    """That of torchrun where none is given; an IPv6 address has colons of its own."""
    assert rendezvous.port_of(endpoint) == port


def test_one_host_has_no_endpoint() -> None:
    """An option of the program with that name is the program's."""
    alone = msgspec.structs.replace(
        RUN, launched=True, command=launcher.command("train.py", ("--rdzv-endpoint=x:1",), 2)
    )
    assert rendezvous.endpoint(alone) is None
    assert rendezvous.endpoint(msgspec.structs.replace(alone, launched=False)) is None


@pytest.mark.parametrize(
    ("words", "endpoint"),
    [
        (("torchrun", "--nnodes=2", "--rdzv-endpoint=node1:29400", "train.py"), "node1:29400"),
        (("/bin/torchrun", "--nnodes", "2", "-r3", "--rdzv_endpoint", "node1", "-t", "3", "train.py"), "node1"),
        (("-m", "torch.distributed.run", "--no_python", "--rdzv-endpoint", "node1:1", "./train"), "node1:1"),
        (("torchrun", "--standalone", "train.py", "--rdzv-endpoint", "x:1"), None),
        (("torchrun", "-m", "train", "--rdzv-endpoint=x:1"), None),
        (("torchrun", "--", "train.py", "--rdzv-endpoint=x:1"), None),
        (("torchrun", "--nnodes", "2", "--rdzv-endpoint"), None),
        (("launch.py", "--rdzv-endpoint", "node1:29400"), None),
        ((), None),
    ],
)
def test_the_endpoint_of_a_torchrun_that_was_started_by_hand(words: tuple[str, ...], endpoint: str | None) -> None:
    """Its own command line tells, in whatever way its options are written; those of the program are not its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        # It has no command line yet for a moment after the call.
        assert process.stdout is not None
        process.stdout.readline()
        run = msgspec.structs.replace(RUN, launched=False, torchrun=identify(process.pid), nodes=2)
        assert rendezvous.endpoint(run) == endpoint
        assert rendezvous.endpoint(msgspec.structs.replace(run, nodes=1)) is None
        assert rendezvous.endpoint(msgspec.structs.replace(run, torchrun=None)) is None
    finally:
        process.communicate(b"\n")
