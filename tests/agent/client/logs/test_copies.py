"""Logs of ranks on other hosts, copied from any host to any other, through the real relays of three hosts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import msgspec
import pytest
import zmq
from support.bases import base_of_its_own
from support.fakes.relays import Host, several
from support.harness import until
from support.values.watches import watched

from ddptop.agent import wire
from ddptop.agent.client.logs.copies import TAIL, CopiedLogs
from ddptop.agent.client.logs.excerpt import Excerpt, LogSource
from ddptop.agent.client.runs import Run
from ddptop.agent.observer.relay.relay import Relay
from ddptop.tui.cli.output import logs

LINES = b"".join(b"line %07d of the log\n" % number for number in range(40_000))


@contextmanager
def linked(base: Path, *ranks: int) -> Iterator[tuple[list[Host], list[Relay]]]:
    """Make hosts whose observers are linked, with ranks whose output is kept."""
    with several(base, *ranks) as hosts, ExitStack() as later:
        for host in hosts:
            for member in host.directory.members().values():
                host.directory.write_member(msgspec.structs.replace(member, log="kept"))
        relays = [later.enter_context(host.observed()) for host in hosts]
        for host in hosts[1:]:
            host.find(hosts[0])
        until(lambda: all(each.hosts.role == "branch" for each in relays[1:]), "the links")
        count = sum(ranks)
        until(lambda: all(len(host.directory.everyone()) == count for host in hosts), "all records at all hosts")
        yield hosts, relays


def log_of(host: Host, rank: int) -> Path:
    """Return the log that a rank of a host writes to."""
    path = host.directory.rank_log(rank)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    return path


@contextmanager
def copies_at(host: Host) -> Iterator[CopiedLogs]:
    """Copy logs to a host, for as long as this lasts."""
    copies = CopiedLogs(host.directory)
    try:
        yield copies
    finally:
        copies.close()


def content(copies: CopiedLogs, rank: int) -> bytes:
    """Return what was copied of a log."""
    path = Path(copies.path(rank))
    return path.read_bytes() if path.exists() else b""


@pytest.fixture(scope="module")
def kept() -> Iterator[list[Host]]:
    """Three hosts of a rank each."""
    with base_of_its_own() as base, linked(base, 1, 1, 1) as (hosts, _):
        yield hosts


@pytest.fixture
def three(kept: list[Host]) -> Iterator[list[Host]]:
    """The same, without a log of any rank."""
    yield kept
    for rank, host in enumerate(kept):
        log_of(host, rank).unlink(missing_ok=True)


def test_every_host_has_the_logs_of_all_others(three: list[Host]) -> None:
    """Byte for byte and as they grow: of the head at a branch, of a branch at the head, of one branch at the other."""
    for rank, host in enumerate(three):
        log_of(host, rank).write_bytes(b"of rank %d\n" % rank)
    for number, host in enumerate(three):
        others = [rank for rank in range(3) if rank != number]
        with copies_at(host) as copies:
            assert copies.fetch(others, 20.0) == {}
            assert [content(copies, rank) for rank in others] == [
                log_of(three[rank], rank).read_bytes() for rank in others
            ]
            with log_of(three[others[0]], others[0]).open("ab") as file:
                file.write(b"one more\n")

            def grows(copies: CopiedLogs = copies, rank: int = others[0]) -> bool:
                copies.want([rank])
                return content(copies, rank).endswith(b"one more\n")

            until(grows, "what was added")
            folder = Path(copies.path(0)).parent
        assert not folder.exists()


def test_of_a_long_log_the_end_is_copied_and_what_is_missing_is_told(three: list[Host]) -> None:
    """Offsets are those of the log itself; a file that takes its place is copied anew."""
    log = log_of(three[1], 1)
    log.write_bytes(LINES)
    with copies_at(three[0]) as copies:
        assert copies.fetch([1], 20.0) == {}
        path = Path(copies.path(1))
        assert path.stat().st_size == len(LINES)
        assert path.stat().st_blocks * 512 <= TAIL + 8192
        assert path.read_bytes()[-TAIL:] == LINES[-TAIL:]
        window = Excerpt(LogSource(str(path), 1))
        window.open_at(0)
        first = window.entries[0].lines[0].text
        assert "MiB are not here" in first
        other = log.with_name("other")
        other.write_bytes(b"begun anew\n")
        other.replace(log)

        def is_new() -> bool:
            copies.want([1])
            return content(copies, 1) == b"begun anew\n"

        until(is_new, "the other file")


def test_a_log_is_read_on_only_while_somebody_wants_it(three: list[Host]) -> None:
    """And of a log that is not there the reason is known."""
    with copies_at(three[0]) as copies:
        assert copies.fetch([2], 20.0) == {2: "not written yet"}
        assert not copies.has(2)
        log_of(three[2], 2).write_bytes(b"x\n")
        until(lambda: copies.fetch([2], 20.0) == {}, "the log")
        assert copies.has(2)
        # Nobody wants it any more.
        later = copies._copies[2].wanted_until + 0.5 - time.monotonic()
        copies._clock = lambda: time.monotonic() + later
        log_of(three[2], 2).write_bytes(b"x\ny\n")
        # While the other one is asked for some times, this one would have its turn.
        for lines in range(1, 5):
            log_of(three[1], 1).write_bytes(b"z\n" * lines)

            def is_read(lines: int = lines) -> bool:
                copies.want([1])
                return content(copies, 1) == b"z\n" * lines

            until(is_read, "the other log")
        assert content(copies, 2) == b"x\n"


def test_the_log_of_a_rank_that_is_gone_can_be_read(runtime: Path) -> None:
    """Its host answers, as the rank cannot."""
    with linked(runtime, 1, 1) as ((one, two), (head, branch)):
        log_of(two, 1).write_bytes(b"its last words\n")
        branch.lose(two.directory.members()[1])
        until(lambda: [each.gone for each in head.hosts.hosts()] == [(1,)], "the head to know it")
        with copies_at(one) as copies:
            assert copies.fetch([1], 20.0) == {}
            assert content(copies, 1) == b"its last words\n"


def test_a_host_that_is_cut_off_is_told_and_read_again_later(runtime: Path) -> None:
    """Nothing waits for it."""
    with several(runtime, 1, 1) as (one, two), one.observed() as head, two.cable(one) as cable, two.observed() as far:
        until(lambda: far.hosts.role == "branch", "the link")
        log_of(two, 1).write_bytes(b"before\n")
        with copies_at(one) as copies:
            assert copies.fetch([1], 20.0) == {}
            cable.cut()
            until(lambda: [each.state for each in head.hosts.hosts()] == ["silent"], "the head to notice")

            def is_missed() -> bool:
                copies.want([1])
                return "not answer" in copies._copies[1].problem

            until(is_missed, "it is told")
            log_of(two, 1).write_bytes(b"before\nafter\n")
            cable.mend()

            def is_read() -> bool:
                copies.want([1])
                return content(copies, 1) == b"before\nafter\n"

            until(is_read, "what was written meanwhile")


def test_a_log_is_no_way_to_other_files(three: list[Host], tmp_path: Path) -> None:
    """A link in its place is not followed."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    log_of(three[1], 1).symlink_to(secret)
    with copies_at(three[0]) as copies:
        (problem,) = copies.fetch([1], 20.0).values()
        assert problem
        assert not content(copies, 1)


def test_a_question_for_what_is_there_is_small(three: list[Host]) -> None:
    """An onlooker that has all of a log is sent nothing of it again."""
    log_of(three[1], 1).write_bytes(LINES)
    status = log_of(three[1], 1).stat()
    with zmq.Context() as context, context.socket(zmq.DEALER) as asker:
        asker.linger = 0
        asker.connect(three[0].directory.address("observer", "cmd"))
        for offset, expected in ((status.st_size, 0), (status.st_size - 5, 5), (0, wire.MOST_OF_LOG)):
            asker.send_multipart([b"1", wire.encode(wire.ReadLog(3, status.st_ino, offset))])
            assert asker.poll(20_000)
            rank, payload = asker.recv_multipart()
            reply = wire.read_answer(payload)
            assert isinstance(reply, wire.Reply)
            assert (rank, reply.id, reply.done) == (b"1", 3, True)
            assert (0 if reply.log is None else len(reply.log.content)) == expected


def test_the_dashboard_s_frame_has_the_copy_while_the_log_is_looked_at(runtime: Path) -> None:
    """Of a rank on this host it has the log itself; a link that shows no screens copies nothing."""
    with linked(runtime, 1, 1) as ((one, two), _):
        log_of(two, 1).write_bytes(b"from afar\n")
        link = watched(one.directory, onlooker=True, looks_back=True)
        try:

            def shown() -> bool:
                link.poll()
                link.watch(frozenset(), frozenset({0, 1}))
                log = link.frame().ranks[1].log
                return log is not None and Path(log).exists() and Path(log).read_bytes() == b"from afar\n"

            until(shown, "the copy")
            frame = link.frame()
            assert frame.ranks[0].log == str(log_of(one, 0))
            assert frame.ranks[1].log is not None
            assert not frame.ranks[1].log.startswith(str(one.directory.path))
        finally:
            link.close()
        assert not os.path.exists(frame.ranks[1].log)
        plain = watched(one.directory, onlooker=True)
        try:

            def is_known() -> bool:
                plain.poll()
                return plain.frame().ranks[1].far

            until(is_known, "the rank")
            assert plain.frame().ranks[1].log is None
        finally:
            plain.close()


def test_the_command_prints_the_logs_of_all_hosts(runtime: Path) -> None:
    """Each line with its host; what is printed elsewhere is told to be there, and so is all of an ended run."""
    with linked(runtime, 1, 1, 1) as (hosts, _):
        one, two, three = hosts
        member = three.directory.members()[2]
        three.directory.write_member(msgspec.structs.replace(member, log=None))
        until(lambda: one.directory.everyone()[2].log is None, "the record")
        log_of(one, 0).write_bytes(b"here\n")
        log_of(two, 1).write_bytes(b"there\n")
        said: list[str] = []
        noted: list[str] = []
        logs.show(Run(one.directory), follow=False, say=said.append, note=noted.append)
        assert sorted(line.split("[")[1] for line in said) == ["0 node1] here", "1 node2] there"]
        assert noted == ["the log of rank 2 is on node3: `ddptop logs train` there"]
        said.clear()
        logs.show(Run(one.directory), (1,), follow=False, say=said.append, note=noted.append)
        assert said == ["there"]


def test_whoever_follows_to_the_end_is_told_where_the_last_lines_are(runtime: Path) -> None:
    """What another host wrote last may have come too late; of a run that goes on that is not said."""
    with linked(runtime, 1, 1) as ((one, two), _):
        log_of(two, 1).write_bytes(b"there\n")
        said: list[str] = []
        noted: list[str] = []

        def say(line: str) -> None:
            assert noted == []
            said.append(line)
            one.directory.update(state="finished", exit_code=0)

        logs.show(Run(one.directory), follow=True, say=say, note=noted.append)
        assert len(said) == 1
        assert noted == ["the log of rank 1 is on node2: `ddptop logs train` there"]


def test_whoever_follows_from_before_the_link_sees_the_output_of_the_other_host(runtime: Path) -> None:
    """As at the start of a run, when its hosts have not found each other; of all ranks, and of a far one alone."""
    with several(runtime, 1, 1) as (one, two), ExitStack() as later:
        for host in (one, two):
            for member in host.directory.members().values():
                host.directory.write_member(msgspec.structs.replace(member, log="kept"))
        later.enter_context(one.observed())
        branch = later.enter_context(two.observed())
        log_of(one, 0).write_bytes(b"here\n")
        log_of(two, 1).write_bytes(b"there\n")
        said: list[list[str]] = [[], []]
        noted: list[list[str]] = [[], []]
        threads = [
            Thread(
                target=logs.show,
                args=(Run(one.directory), ranks),
                kwargs={"follow": True, "say": said[number].append, "note": noted[number].append},
            )
            for number, ranks in enumerate([(), (1,)])
        ]
        for thread in threads:
            thread.start()
        try:
            until(lambda: said[0] and noted[1], "what is known here")
            two.find(one)
            until(lambda: branch.hosts.role == "branch", "the link")
            until(lambda: len(said[0]) == 2 and said[1], "the output of the other host")
        finally:
            one.directory.update(state="finished", exit_code=0)
            for thread in threads:
                thread.join()
    assert [line.split("[")[1] for line in said[0]] == ["0] here", "1 node2] there"]
    assert said[1] == ["there"]
    assert noted[1] == [
        "rank 1 has printed nothing yet; waiting for it",
        "the log of rank 1 is on node2: `ddptop logs train` there",
    ]
