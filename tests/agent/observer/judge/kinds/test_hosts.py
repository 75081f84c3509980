"""A run on several hosts: a slow host is told from a slow rank, and a slow network from both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from support.fakes.groups import Group, Slowness, slow
from support.fakes.judges import Judge

from ddptop.agent import wire

MUCH_LATER = 10**18


def states(*sizes: int, rtt_ms: tuple[float, ...] = ()) -> list[wire.HostFrame]:
    """Return hosts of so many ranks each."""
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [
        wire.HostFrame(
            f"node{number}", "linked", tuple(range(first, first + size)), rtt_ms=rtt_ms[number] if rtt_ms else 0.3
        )
        for number, (first, size) in enumerate(zip(firsts, sizes, strict=True))
    ]


def slow_host(ranks: range, phase: str, ms: float) -> Slowness:
    def more(step: int, rank: int) -> dict[str, float]:
        return {phase: ms} if rank in ranks else {}

    return more


def judged(world: int, hosts: list[wire.HostFrame], *more: Slowness, transfer: float = 8.0) -> list[wire.Verdict]:
    """Return all that is told after 300 steps."""
    group, judge = Group(world, seed=3), Judge(world)
    group.transfer = transfer
    judge.hosts(hosts)
    for rank, record in group.steps(300, *more):
        judge.steps(rank, (record,), 0)
    return list(judge.verdicts(MUCH_LATER))


@pytest.mark.parametrize(("sizes", "host"), [((2, 2), 1), ((4, 4), 0), ((8, 8, 8), 2), ((2, 2, 2, 2), 3)])
def test_a_host_whose_ranks_are_all_slow_is_named_and_no_rank_of_it(sizes: tuple[int, ...], host: int) -> None:
    """Once, with how many ranks it has, what it costs and the phase."""
    first = sum(sizes[:host])
    (told,) = judged(sum(sizes), states(*sizes), slow_host(range(first, first + sizes[host]), "forward", 31))
    assert (told.kind, told.host, told.rank, told.phase) == ("slow_host", f"node{host}", None, "forward")
    who = {2: "both ranks", 4: "all 4 ranks", 8: "all 8 ranks"}[sizes[host]]
    assert told.text.startswith(f"node{host}: {who} hold the group back by ")
    assert told.cost_ms == pytest.approx(31, abs=8)


def test_where_no_backward_pass_is_seen_a_slow_host_is_not_said_to_be_so_between_the_phases() -> None:
    """A loop of `autograd.grad`, say; and its share is no more than all of the step."""
    group, judge = Group(4, 3, forward=0.0, backward=0.0, other=40.0), Judge(4)
    judge.hosts(states(2, 2))
    for rank, record in group.steps(300, slow_host(range(2, 4), "other", 300)):
        judge.steps(rank, (replace(record, wall_ns=record.wall_ns - (record.wait_ns or 0), wait_ns=0),), 0)
    (told,) = judge.verdicts(MUCH_LATER)
    assert (told.kind, told.phase) == ("slow_host", "other")
    assert "(no backward pass is seen)" in told.text
    assert told.share == pytest.approx(300 / 345, abs=0.04)


@pytest.mark.parametrize("sizes", [(2, 2), (4, 4)])
def test_a_slow_rank_is_not_taken_for_its_host(sizes: tuple[int, ...]) -> None:
    """It is named with the host on which it runs."""
    (told,) = judged(sum(sizes), states(*sizes), slow(sum(sizes) - 1, "backward", 31))
    assert (told.kind, told.rank, told.host) == ("slow_rank", sum(sizes) - 1, "node1")
    assert told.text.startswith(f"rank {sum(sizes) - 1} (node1) holds the group back by ")


def test_a_rank_that_is_slower_than_its_slow_host_is_named_as_well() -> None:
    """What is left after the host is that rank's."""
    told = judged(8, states(4, 4), slow_host(range(4, 8), "forward", 20), slow(6, "forward", 40))
    assert {(each.kind, each.rank, each.host) for each in told} == {
        ("slow_host", None, "node1"),
        ("slow_rank", 6, "node1"),
    }


@pytest.mark.parametrize("sizes", [(4,), (2, 2), (1, 1, 1, 1)])
def test_nobody_is_named_where_nobody_is_slow(sizes: tuple[int, ...]) -> None:
    """However the ranks are spread over hosts."""
    assert judged(sum(sizes), states(*sizes)) == []


def test_of_a_host_with_one_rank_the_rank_is_named() -> None:
    """It is both; the rank has panels, stacks and logs."""
    (told,) = judged(2, states(1, 1), slow(1, "data", 31))
    assert (told.kind, told.rank, told.host) == ("slow_rank", 1, "node1")


def test_ranks_without_a_host_are_judged_as_on_one() -> None:
    """As long as one rank has not said where it runs, no host is named."""
    hosts = states(2, 2)
    hosts[1] = wire.HostFrame("node1", "linked", (2,))
    told = judged(4, hosts, slow_host(range(2, 4), "forward", 31))
    assert not [each for each in told if each.host or "node" in each.text]


@pytest.mark.parametrize(
    ("rtt_ms", "remark"),
    [
        ((0.3, 0.4, 21.0), "the network to node2 is slow: 21 ms there and back, to others 0.3 ms"),
        ((0.3, 0.4, 0.9), ""),
        ((20.0, 21.0, 22.0), ""),
    ],
)
def test_a_slow_network_to_one_host_is_said_where_collectives_take_the_time(
    rtt_ms: tuple[float, ...], remark: str
) -> None:
    """By the round trips between the observers; equal ones, and short ones, say nothing."""
    (told,) = judged(6, states(2, 2, 2, rtt_ms=rtt_ms), transfer=400.0)
    assert told.kind == "communication_bound"
    assert told.text.partition("; ")[2] == remark


def test_of_two_hosts_the_network_is_compared_with_itself_before() -> None:
    """There is no other host to compare with."""
    group, judge = Group(2, seed=5), Judge(2)
    group.transfer = 400.0
    judge.hosts(states(1, 1, rtt_ms=(0.0, 0.4)))
    judge.hosts([states(1, 1)[0], wire.HostFrame("node1", "linked", (1,), rtt_ms=18.0)][1:])
    for rank, record in group.steps(300):
        judge.steps(rank, (record,), 0)
    (told,) = judge.verdicts(MUCH_LATER)
    assert told.text.endswith("; the network to node1 is slow: 18 ms there and back, at best 0.4 ms")


@pytest.fixture
def large() -> Callable[[int, Slowness], list[wire.Verdict]]:
    """Return what is told of a large group, by its summaries."""

    def judged(hosts: int, more: Slowness) -> list[wire.Verdict]:
        world = 8 * hosts
        group, judge = Group(world, seed=7), Judge(world)
        judge.hosts(states(*[8] * hosts))
        for rank, step in group.steps(30, more):
            judge.summary(
                wire.Summary(
                    rank, step.step, step.end_at_ns, step.step, step.step, 10, step.wall_ns, step.data_ns,
                    step.forward_ns, step.backward_ns, step.optimizer_ns, step.wait_ns, step.other_ns, samples=32,
                )
            )  # fmt: skip
        return list(judge.verdicts(MUCH_LATER))

    return judged


@pytest.mark.parametrize("hosts", [10, 128])
def test_a_slow_host_of_a_large_group_is_named(
    hosts: int, large: Callable[[int, Slowness], list[wire.Verdict]]
) -> None:
    """By the summaries of the ranks."""
    (told,) = large(hosts, slow_host(range(24, 32), "forward", 31))
    assert (told.kind, told.host) == ("slow_host", "node3")


def test_restarted_ranks_may_be_on_other_hosts() -> None:
    """What was known of the former ones is forgotten."""
    group, judge = Group(4, seed=9), Judge(4)
    judge.hosts(states(2, 2))
    judge.restart(1)
    judge.hosts([wire.HostFrame("nodeA", "linked", (0, 2)), wire.HostFrame("nodeB", "linked", (1, 3))])
    for rank, record in group.steps(300, slow_host(range(1, 4, 2), "forward", 31)):
        judge.steps(rank, (record,), 1)
    (told,) = judge.verdicts(MUCH_LATER)
    assert (told.kind, told.host) == ("slow_host", "nodeB")
