"""Head and branches over the loopback interface, each turned by the test as the relay's thread turns it."""

from __future__ import annotations

import time

import msgspec
import pytest
from support.fakes.clocks import Ahead
from support.fakes.links import cable, hello, links

from ddptop.agent import wire
from ddptop.agent.observer.hosts.link import frames
from ddptop.agent.observer.hosts.link import side as link
from ddptop.agent.observer.hosts.link.branch import ANSWER_S, HEAD, REFUSED_S
from ddptop.agent.observer.hosts.link.peer import MOST_BYTES, SILENT_S, WINDOW

STEPS = b"steps/00002"


def test_a_branch_and_the_head_know_each_other_within_a_second() -> None:
    with links() as made:
        branch, told, name = made.linked("node2", (2, 3))
        assert branch.head is not None
        assert (branch.head.host, branch.head.ranks) == ("node1", (0, 1))
        peer = made.head.peers[name]
        assert (peer.host, peer.ranks, peer.is_linked) == ("node2", (2, 3), True)
        assert HEAD in told.changes
        assert name in made.told.changes
        assert sum(made.head.refused.values()) == sum(branch.refused.values()) == 0


def test_each_kind_arrives_as_it_was_sent_in_both_directions() -> None:
    sent: list[tuple[bytes, list[bytes]]] = [
        (frames.SUBSCRIBE, [b"steps"]),
        (frames.UNSUBSCRIBE, [b"steps"]),
        (frames.PUBLICATION, [STEPS, b"\0" * 1000]),
        (frames.COMMAND, [b"asker", b"3", b"payload"]),
        (frames.COMMAND, [b"asker", b"payload"]),
        (frames.ANSWER, [b"asker", b"3", b"payload"]),
        (frames.MEMBERS, [b"[]"]),
    ]
    with links() as made:
        branch, told, name = made.linked()
        for kind, content in sent:
            assert made.head.send(name, kind, *content)
            assert branch.send(HEAD, kind, *content)
        made.until(lambda: len(told.messages) == len(made.told.messages) == len(sent))
        assert [(kind, content) for _, kind, content in told.messages] == sent
        assert made.told.messages == [(name, kind, content) for kind, content in sent]


def test_both_sides_find_how_far_the_other_clock_is_ahead() -> None:
    with links() as made:
        branch, _ = made.branch(hello("node2", (2, 3)), wall_ns=lambda: time.time_ns() + 90 * 10**9)
        made.until(lambda: branch.is_linked)
        (peer,) = made.head.peers.values()
        made.until(lambda: peer.pings.offset_s is not None and branch.head and branch.head.pings.offset_s is not None)
        assert branch.head is not None
        for found, ahead_s in ((peer, 90), (branch.head, -90)):
            assert found.pings.offset_s is not None
            assert found.pings.offset_error_s is not None
            assert abs(found.pings.offset_s - ahead_s) <= found.pings.offset_error_s + 1e-6
            assert found.pings.offset_error_s < 0.5


def test_a_host_that_says_nothing_for_three_seconds_is_silent_and_not_any_more_once_it_is_heard() -> None:
    clock = Ahead()
    with links(clock=clock) as made:
        branch, _, name = made.linked()
        peer = made.head.peers[name]
        made.still.add(branch)
        clock.ahead += SILENT_S - 0.5
        made.turn()
        assert not peer.is_silent
        clock.ahead += 1
        made.until(lambda: peer.is_silent)
        assert made.told.changes[-1] == name
        assert not made.head.send(name, frames.COMMAND, b"a", b"b"), "a command to a silent host is refused at once"
        made.still.clear()
        made.until(lambda: peer.is_linked)
        assert made.told.changes[-1] == name


def test_a_branch_notices_the_silence_of_its_head_too() -> None:
    clock = Ahead()
    with links() as made:
        branch, told = made.branch(hello("node2", (2, 3)), clock=clock)
        made.until(lambda: branch.is_linked)
        made.still.add(made.head)
        clock.ahead += SILENT_S
        made.until(lambda: not branch.is_linked)
        assert branch.head is not None
        assert branch.head.is_silent
        made.still.clear()
        made.until(lambda: branch.is_linked)
        assert told.changes[-1] == HEAD


def test_what_changes_on_a_host_is_told_over_the_connection_that_is_there() -> None:
    with links() as made:
        branch, told, name = made.linked("node2", (2,))
        peer = made.head.peers[name]
        session = peer.session
        branch.update(hello("node2", (2, 3)))
        made.until(lambda: peer.ranks == (2, 3))
        assert peer.session == session
        told.changes.clear()
        made.head.update(hello("node1", (0, 1, 7)))
        made.until(lambda: branch.head is not None and branch.head.ranks == (0, 1, 7))
        assert told.changes == [HEAD]


def test_over_a_new_connection_a_branch_is_the_same_peer_in_a_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cable is cut without a word, for longer than a connection lives, and mended."""
    monkeypatch.setattr(link, "BROKEN_S", 1.5)
    with links() as made, cable(made) as (cut, listen):
        branch, _ = made.branch(hello("node2", (2, 3)), listen)
        made.until(lambda: branch.is_linked)
        (name, peer), *_ = made.head.peers.items()
        session = peer.session
        cut.cut()
        made.until(lambda: not peer.is_connected)
        assert made.head.peers == {name: peer}
        cut.mend()
        made.until(lambda: peer.is_linked and branch.is_linked)
        assert made.head.peers == {name: peer}
        assert peer.session > session
        assert branch.head is not None
        assert branch.head.session == peer.session
        assert branch.send(HEAD, frames.COMMAND, b"a", b"after")
        made.until(lambda: made.told.of(frames.COMMAND) == [[b"a", b"after"]])


def test_a_branch_that_is_killed_is_noticed() -> None:
    with links() as made:
        branch, _, name = made.linked()
        peer = made.head.peers[name]
        made.leave(branch)
        made.until(lambda: not peer.is_connected)
        assert name in made.head.peers, "who it was is not forgotten"


def test_the_next_address_is_tried_where_none_answers() -> None:
    clock = Ahead()
    with links() as made:
        # 192.0.2.1 is for documentation; nobody listens at the port of the second.
        listen = msgspec.structs.replace(
            made.head.listen, addresses=("tcp://192.0.2.1:9", "tcp://127.0.0.1:1", *made.head.listen.addresses)
        )
        branch, _ = made.branch(hello("node2", (2, 3)), listen, clock=clock)
        for _ in range(2):
            made.turn()
            assert not branch.is_linked
            clock.ahead += ANSWER_S
        made.until(lambda: branch.is_linked)


def test_an_address_that_is_none_is_said_once_and_the_next_is_tried() -> None:
    clock = Ahead()
    with links() as made:
        listen = msgspec.structs.replace(made.head.listen, addresses=("tcp://nonsense", *made.head.listen.addresses))
        branch, told = made.branch(hello("node2", (2, 3)), listen, clock=clock)
        made.until(lambda: told.events)
        clock.ahead += ANSWER_S
        made.until(lambda: branch.is_linked)
        (event,) = told.events
        assert "tcp://nonsense cannot be reached" in event


@pytest.mark.parametrize(
    ("greeting", "why"),
    [
        (hello("node2", (2,), run_id="another"), "it belongs to another run"),
        (hello("node2", (2,), world=4), "its world is 4, that of the head 8"),
        (
            hello("node2", (2,), protocol=99, agent_version="9.1"),
            f"it speaks protocol 99 (ddptop 9.1), the head {wire.PROTOCOL}",
        ),
        (hello("node2", (1, 2)), "it claims rank 1, which is on node1"),
        (hello("node2", (8,)), "it claims ranks beyond its world of 8"),
    ],
)
def test_a_host_that_does_not_belong_to_the_run_is_refused_once_and_rests(greeting: wire.HostHello, why: str) -> None:
    """Both sides say why in one event each, and no second attempt is made for half a minute."""
    clock = Ahead()
    with links() as made:
        branch, told = made.branch(greeting, clock=clock)
        made.until(lambda: told.events)
        assert why in told.events[0]
        assert why in made.told.events[0]
        assert "node2" in made.told.events[0]
        assert not made.head.peers
        assert not branch.peers
        clock.ahead += REFUSED_S - 5
        made.until(lambda: made.head.connections == 0)
        assert made.head.refused["run"] == 1
        clock.ahead += 5
        made.until(lambda: made.head.refused["run"] == 2)
        assert len(told.events) == len(made.told.events) == 1


def test_ranks_of_a_linked_host_are_not_given_to_another() -> None:
    with links() as made:
        made.linked("node2", (2, 3))
        _, told = made.branch(hello("node3", (3, 4)))
        made.until(lambda: told.events)
        assert "it claims rank 3, which is on node2" in told.events[0]


def test_another_observer_of_the_same_host_takes_the_place_of_the_one_before() -> None:
    """The first was killed, or hangs; the second does not have to wait until that is known."""
    with links() as made:
        first, _, name = made.linked("node2", (2, 3))
        made.still.add(first)
        second, _ = made.branch(hello("node2", (2, 3)))
        made.until(lambda: second.is_linked)
        assert name not in made.head.peers
        assert name in made.told.changes
        (peer,) = made.head.peers.values()
        assert peer.is_linked


def test_after_a_restart_of_the_group_ranks_may_be_on_other_hosts() -> None:
    with links() as made:
        made.linked("node2", (2, 3))
        branch, _ = made.branch(hello("node3", (2, 3), generation=1, world=4))
        made.until(lambda: branch.is_linked)
        assert [peer.host for peer in made.head.peers.values()] == ["node3"]


def test_publications_to_who_does_not_read_are_dropped_and_counted_and_commands_come_in_order() -> None:
    """Memory is bounded: the window, and what waits; what is accepted comes, once and in order."""
    with links() as made:
        branch, told, name = made.linked()
        peer = made.head.peers[name]
        made.still.add(branch)
        payload = bytes(200_000)
        passed = [made.head.send(name, frames.PUBLICATION, STEPS, b"%d " % number + payload) for number in range(100)]
        assert 0 < sum(passed) * len(payload) <= WINDOW
        assert peer.dropped == passed.count(False) > 0
        assert made.head.send(name, frames.ANSWER, b"a", b"0 " + payload), "waits"
        commands = [made.head.send(name, frames.COMMAND, b"a", b"%d" % number) for number in range(3000)]
        assert all(commands)
        assert not made.head.send(name, frames.PUBLICATION, STEPS, b""), "what waits comes first"
        answers = [made.head.send(name, frames.ANSWER, b"a", b"%d " % number + payload) for number in range(1, 100)]
        assert peer.waiting_bytes <= MOST_BYTES
        assert answers.count(True) + 1 == MOST_BYTES // len(payload)
        made.still.clear()
        made.until(lambda: len(told.of(frames.ANSWER)) == answers.count(True) + 1)
        assert [content[1] for content in told.of(frames.COMMAND)] == [b"%d" % number for number in range(3000)]
        assert len(told.of(frames.PUBLICATION)) == sum(passed)
        assert made.head.send(name, frames.PUBLICATION, STEPS, b"again")


@pytest.mark.parametrize("upward", [False, True])
def test_more_than_any_queue_holds_goes_over_a_link_that_is_read(upward: bool) -> None:
    """An answer of 60 MiB, as fast as the other side reads: the window opens as it is acknowledged."""
    part = bytes(1 << 19)
    with links() as made:
        branch, told, name = made.linked()
        side, to, other = (branch, HEAD, made.told) if upward else (made.head, name, told)
        left = 120
        deadline = time.monotonic() + 60
        while len(other.messages) < 120:
            while left and side.peers[to].waiting_bytes < 1 << 20 and side.send(to, frames.ANSWER, b"a", b"2", part):
                left -= 1
            made.turn()
            assert time.monotonic() < deadline
        assert {len(content[2]) for _, _, content in other.messages} == {1 << 19}
        assert side.peers[to].dropped == 0


def test_a_link_ends_with_what_was_sent_last() -> None:
    with links() as made:
        branch, _, _ = made.linked()
        for number in range(50):
            assert branch.send(HEAD, frames.ANSWER, b"a", b"%d" % number)
        made.leave(branch)
        made.until(lambda: len(made.told.of(frames.ANSWER)) == 50)


def test_a_branch_follows_to_another_head_with_other_keys() -> None:
    """As after the head's observer was replaced: the branch is made anew by the record of the new one."""
    with links() as made:
        branch, _, _ = made.linked()
        made.succeed()
        made.until(lambda: not branch.is_linked)
        made.leave(branch)
        made.linked()


def test_many_branches_at_once() -> None:
    with links(hello=hello(world=200)) as made:
        branches = [made.branch(hello(f"node{n}", (2 * n, 2 * n + 1), world=200))[0] for n in range(1, 40)]
        made.until(lambda: all(branch.is_linked for branch in branches))
        assert len(made.head.peers) == 39
        for branch in branches:
            branch.send(HEAD, frames.COMMAND, b"a", b"b")
        made.until(lambda: len(made.told.messages) == 39)
        assert sum(made.head.refused.values()) == 0
