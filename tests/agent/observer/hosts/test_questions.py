"""One command to several hosts: the answers add up, and a host that does not answer is named with its ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.fakes.clocks import Clock
from support.fakes.hosts import Net, Side

from ddptop.agent import wire
from ddptop.agent.end.escalation import Outcome
from ddptop.agent.observer.end.run_ending import add_up
from ddptop.agent.observer.hosts.elsewhere import is_elsewhere
from ddptop.agent.observer.hosts.questions import Spread

HERE = Outcome(4, 8)


Make = Callable[..., tuple[Net, Side]]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make a host with the ranks 0 to 3, and others."""
    net = Net()

    def add(**ranks: tuple[int, ...]) -> tuple[Net, Side]:
        head = net.side("node1", (0, 1, 2, 3))
        for name, of_host in ranks.items():
            net.side(name, of_host)
        return net, head

    yield add
    net.close()


def _answer(side: Side, ranks: int, helpers: int, *left: str) -> None:
    for sender, command in side.requests.received():
        census = wire.Census(ranks, helpers, left)
        side.requests.reply(sender, wire.Reply(command.id, not left, "ended", census=census))
    side.replies()


def test_what_all_hosts_have_ended_adds_up(make: Make) -> None:
    """Eight ranks and sixteen helpers on two hosts: the words of the issue."""
    net, head = make(node2=(4, 5, 6, 7))
    spread = Spread(head, wire.Kill(0, 1.0), 10.0)
    assert spread.is_waiting
    _answer(net.hosts["node2"], 4, 8)
    assert not spread.is_waiting
    total = add_up(spread, "node1", HERE)
    assert (total.text, total.done) == ("8 ranks and 16 helpers on 2 hosts ended, 0 left", True)


def test_a_host_that_is_not_heard_is_given_up_soon_and_named(make: Make) -> None:
    """A silent host is waited for three seconds and not for the whole ladder; its ranks are unknown."""
    net, head = make(node2=(4, 5, 6, 7))
    clock = Clock(100.0)
    net.hosts["node2"].answers = False
    spread = Spread(head, wire.Kill(0, 600.0), 610.0, clock=clock)
    net.hosts["node2"].is_("silent")
    assert spread.is_waiting
    clock.now += 2.9
    assert spread.is_waiting
    clock.now += 0.2
    assert not spread.is_waiting
    total = add_up(spread, "node1", HERE)
    expected = "4 ranks and 8 helpers on node1 ended, 0 left; node2 did not answer: 4 ranks unknown"
    assert (total.text, total.done) == (expected, False)


def test_a_host_that_is_heard_is_waited_for_until_its_ladder_must_be_over(make: Make) -> None:
    """A linked host that does not answer is given up after the time that it was given, and not before."""
    net, head = make(node2=(4,))
    clock = Clock(100.0)
    net.hosts["node2"].answers = False
    spread = Spread(head, wire.Kill(0, 20.0), 30.0, clock=clock)
    clock.now += 29.9
    assert spread.is_waiting
    clock.now += 0.2
    assert not spread.is_waiting
    assert spread.unknown == {"node2": 1}


def test_ranks_that_have_ended_before_are_not_unknown(make: Make) -> None:
    """A host that is gone after all its ranks have ended leaves no doubt; one with a rank more does."""
    net, head = make(node2=(4, 5), node3=(6, 7))
    net.hosts["node2"].is_("gone", gone=(4,))
    net.hosts["node3"].is_("gone", gone=(6,))
    spread = Spread(head, wire.Kill(0, 1.0), 10.0, spared={5})
    assert not spread.is_waiting
    assert spread.unknown == {"node3": 1}


def test_survivors_are_told_with_their_host(make: Make) -> None:
    """A process that did not die is named as its host names it."""
    net, head = make(node2=(4,))
    spread = Spread(head, wire.Kill(0, 1.0), 10.0)
    _answer(net.hosts["node2"], 1, 0, "helper with pid 7 (stopped)")
    assert not spread.is_waiting
    total = add_up(spread, "node1", Outcome(4, 0))
    assert total.text == "5 ranks on 2 hosts ended, 1 left; node2: helper with pid 7 (stopped)"
    assert not total.done


def test_ranks_of_hosts_that_were_never_heard_are_unknown(make: Make) -> None:
    """A run of eight ranks of which only four were ever heard is not ended by the end of four."""
    _, head = make()
    total = add_up(Spread(head, wire.Kill(0, 1.0), 10.0), "node1", HERE, missing=4)
    assert total.text.endswith("other hosts are not linked: 4 ranks unknown")
    assert not total.done


def test_a_reply_after_the_end_of_patience_changes_nothing(make: Make) -> None:
    """What was told as unknown stays so."""
    clock = Clock(100.0)
    net, head = make(node2=(4,))
    spread = Spread(head, wire.Kill(0, 1.0), 1.0, clock=clock)
    clock.now += 1.1
    assert not spread.is_waiting
    _answer(net.hosts["node2"], 1, 0)
    assert not spread.is_waiting
    assert spread.unknown == {"node2": 1}
    assert not spread.replies


def test_commands_of_other_observers_are_known_by_their_sender() -> None:
    """The sender that ZeroMQ makes up is never taken for another observer."""
    assert is_elsewhere(b"link:1:2")
    assert not is_elsewhere(b"\x00link:")
