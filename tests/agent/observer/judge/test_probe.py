"""Ranks and connections that are slower than their like each time are named with the reason; chance names nobody."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ddptop.agent.observer.judge import probe as judge
from ddptop.agent.observer.judge.probe import NOTHING
from ddptop.agent.wire import Board, Facts
from ddptop.agent.wire.diagnoses.probed import Connection, Experiments, Probe, Rank

FACTS = Facts(0.9, cores=8, which="0-7", threads=1, nice=0, group="/job", load=1.0, steal_percent=0.0, mhz=2400.0)


def made(compute: float, *, ran: float = 1.0, **rates: float) -> Experiments:
    """Return experiments in which a rank computes at `compute` of the usual rate for the time that it `ran`."""
    usual = {"compute": 100e9, "disk_write": 1e9, "disk_read": 1e9}
    values = {name: rate * rates.get(name, compute if name == "compute" else 1.0) for name, rate in usual.items()}
    return Experiments({name: [rate] * 3 for name, rate in values.items()}, {"compute": [ran] * 3})


def rank(number: int, compute: float = 1.0, *, host: str = "", again: Any = None, **facts: Any) -> Rank:
    """Return a rank that computes at a part of the usual rate, alone, together, and again each time."""
    parts = [compute] * 3 if again is None else again
    told = replace(FACTS, **facts)
    ran = facts.pop("ran", 1.0)
    return Rank(
        number, host, alone=made(compute, ran=ran), together=made(compute, ran=ran),
        again=[made(part) for part in parts], facts=told,
    )  # fmt: skip


def judged(*ranks: Rank, connections: list[Connection] | None = None) -> Probe:
    found = Probe("r", 5, 0.0, ranks=list(ranks), connections=connections or [])
    judge.judge(found)
    return found


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, ""),
        (
            {"others_percent": 55.0, "rivals": "another process on core 1 (pid 4242)", "load": 3.1},
            ": its cores are shared (another process on core 1 (pid 4242), load 3.1)",
        ),
        ({"steal_percent": 20.0, "load": 3.1}, ": its cores are shared (load 3.1, steal 20 %)"),
        (
            {"quota": 0.5, "throttled_ms": 400},
            ": its control group is limited to 0.5 cores, and was kept from running for 400 ms of 900",
        ),
        ({"mhz": 1200.0}, ": its core runs at 1,200 MHz, others at 2,400"),
        ({"overheated": 3}, ": its processor was slowed down for heat, 3 times"),
        ({"cores": 1, "which": "3"}, ": it may run on fewer cores than others (1, others on 8)"),
        ({"board": Board(throttled=("heat (hardware)",))}, ": the clock of its device is held back (heat (hardware))"),
        ({"board": Board(errors=2)}, ": its device has 2 memory errors"),
        ({"swapped": 3 << 20, "swap_reads": 7}, ": it is swapped out (3 MiB)"),
    ],
)
def test_a_slow_rank_is_named_with_the_likely_reason(facts: dict[str, Any], reason: str) -> None:
    """By the circumstances of its experiments."""
    found = judged(*(rank(each) for each in range(3)), rank(3, 0.62, **facts))
    assert found.sentences == [f"rank 3 computes 38 % slower than the others{reason}"]


@pytest.mark.parametrize(
    "facts", [{"others_percent": 60.0}, {"steal_percent": 60.0}, {"quota": 0.5, "throttled_ms": 0}]
)
def test_what_all_suffer_from_alike_is_no_reason_why_one_is_slow(facts: dict[str, Any]) -> None:
    """That the cores of all are taken is a remark, also where no rank is slow."""
    found = judged(rank(0, **facts), rank(1, **facts), rank(2, 0.5, **facts))
    assert found.sentences == ["rank 2 computes 50 % slower than the others"]
    remarks = {"others_percent": ["other processes use"], "steal_percent": ["the hypervisor takes"]}
    expected = [f"{who} 60 % of the cores of the ranks" for name in facts for who in remarks.get(name, [])]
    assert found.notes == expected
    healthy = judged(rank(0, **facts), rank(1, **facts))
    assert (healthy.sentences, healthy.notes) == ([NOTHING], expected)


def test_a_rank_with_cores_of_its_own_that_others_take_is_slow_for_that_reason() -> None:
    """However much others take of those of all ranks."""
    busy = [rank(each, others_percent=90.0, load=3.0) for each in (0, 1)]
    found = judged(*busy, rank(2, 0.5, which="7", cores=1, others_percent=95.0, load=3.0))
    assert ": its cores are shared (others use 95 %, load 3.0)" in found.sentences[0]


def test_ranks_of_one_host_that_are_slow_alike_share_a_sentence() -> None:
    """They are compared with those that are not slow, of which one was looked at again with them."""
    usual = [rank(each, host="node1", again=None if each == 2 else []) for each in range(5)]
    found = judged(*usual, *(rank(each, 0.5, host="node2") for each in (5, 6)))
    assert found.sentences == ["ranks 5-6 (node2) compute 50 % slower than the others"]


def test_healthy_ranks_name_nobody() -> None:
    """Also where they differ by some per cent, or one alone has none to be compared with."""
    assert judged(*(rank(each, 1 - 0.05 * each) for each in range(4))).sentences == [NOTHING]
    assert judged(rank(0)).sentences == ["a single rank has none to be compared with"]


@pytest.mark.parametrize("again", [[1.0, 1.0], [0.9, 0.6, 1.0]])
def test_a_rank_that_is_not_slow_each_time_is_not_named(again: list[float]) -> None:
    """What slowed it down was something that passed."""
    assert judged(rank(0), rank(1), rank(2, 0.6, again=again)).sentences == [NOTHING]


@pytest.mark.parametrize("again", [[], [0.6], [0.6, 1.0, 0.6]])
def test_where_a_rank_was_slow_too_seldom_to_be_named_that_is_said(again: list[float]) -> None:
    """Neither a name without evidence, nor that there is nothing."""
    assert judged(rank(0), rank(1), rank(2, 0.6, again=again)).sentences == [
        "no sure difference: rank 2 looked slow, and not in enough other looks; probe again"
    ]


def test_of_two_with_the_same_share_of_a_host_a_core_that_is_waited_for_names_none() -> None:
    """It is named where its cores, its control group or its niceness are others."""
    for facts, is_named in (({}, False), ({"which": "3"}, True), ({"group": "/small"}, True), ({"nice": 10}, True)):
        slow = rank(1, **facts)
        for done in (slow.alone, slow.together, *slow.again):
            done.rates["compute"] = [50e9] * 3
            done.ran["compute"] = [0.5] * 3
        assert (judged(rank(0), slow).sentences != [NOTHING]) is is_named, facts


def test_a_rank_that_its_control_group_holds_back_is_named_whatever_it_reaches() -> None:
    """Unless all of them are held back alike."""
    limited: dict[str, Any] = {"quota": 0.5, "throttled_ms": 0}
    assert judged(rank(0), rank(1, **limited)).sentences == ["rank 1: its control group is limited to 0.5 cores"]
    assert judged(rank(0, **limited), rank(1, **limited)).sentences == [NOTHING]


def test_ranks_pinned_to_one_core_are_named_together() -> None:
    """Each alone is as fast as the others."""
    pinned = [rank(each, host="node1", cores=1, which="3") for each in (2, 3)]
    for each in pinned:
        each.together = made(0.5)
    free = [rank(each, host="node1") for each in (0, 1)]
    assert judged(*free, *pinned).sentences == [
        "ranks 2-3 (node1) share core 3: together each computes 50 % slower than alone"
    ]


def test_more_ranks_than_cores_are_a_note_and_no_culprit() -> None:
    ranks = [rank(each, cores=2, which="0-1") for each in range(4)]
    for each in ranks:
        each.together = made(0.5)
    found = judged(*ranks)
    assert found.sentences == [NOTHING]
    assert found.notes == ["ranks 0-3 share cores 0-1: together each computes 50 % slower than alone"]


def _connection(
    sender: int,
    receiver: int,
    part: float = 1.0,
    small_ms: float = 0.1,
    again: float | None = None,
    small_again_ms: float | None = None,
) -> Connection:
    took, later = 0.03 / part, 0.03 / (part if again is None else again)
    few, few_later = ([each / 1e3] * 5 for each in (small_ms, small_ms if small_again_ms is None else small_again_ms))
    return Connection(sender, receiver, 1 << 20, [took] * 3, few, [later] * 3, few_later)


def _all(slow: dict[tuple[int, int], dict[str, Any]], hosts: int = 4) -> Probe:
    ranks = [rank(each, host=f"node{each + 1}") for each in range(hosts)]
    pairs = [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
    return judged(*ranks, connections=[_connection(*pair, **slow.get(pair, {})) for pair in pairs])


def test_a_slow_connection_is_named_in_its_direction() -> None:
    """By what it carries, or by how late a small message is; not where these are slow only once."""
    assert _all({}).sentences == [NOTHING]
    assert _all({(1, 2): {"part": 0.4}}).sentences == ["node2 to node3 carries 40 % of what other pairs do"]
    assert _all({(1, 2): {"part": 0.4, "again": 1.0}}).sentences == [NOTHING]
    assert _all({(1, 2): {"part": 0.4, "again": 1.0, "small_again_ms": 5.0}}).sentences == [NOTHING]
    assert _all({(1, 2): {"small_ms": 5.0}}).sentences == [
        "small messages from node2 to node3 take 5.0 ms, others 0.1 ms"
    ]


def test_a_host_with_which_all_connections_are_slow_is_named_alone() -> None:
    slow = {pair: {"part": 0.4} for each in (0, 1, 3) for pair in ((each, 2), (2, each))}
    assert _all(slow).sentences == ["node3 carries 40 % of what other hosts do, with each of them"]


def test_other_looks_are_compared_with_connections_that_were_not_slow_at_first() -> None:
    """Of these one alone was tried again beside them."""
    slow = {pair: {"part": 0.4} for each in (0, 1, 3) for pair in ((each, 2), (2, each))}
    probe = _all(slow)
    for each in probe.connections:
        pair = each.sender, each.receiver
        if pair not in slow and pair != (0, 1):
            each.again_s, each.small_again_s = [], []
    judge.judge(probe)
    assert probe.sentences == ["node3 carries 40 % of what other hosts do, with each of them"]


def test_segments_that_were_sent_again_are_the_reason() -> None:
    probe = _all({})
    probe.ranks[1].resent = 1204
    probe.connections = [
        each if (each.sender, each.receiver) != (1, 2) else _connection(1, 2, 0.4) for each in probe.connections
    ]
    judge.judge(probe)
    assert probe.sentences == [
        "node2 to node3 carries 40 % of what other pairs do: node2 has sent 1,204 segments of TCP again"
    ]


def test_the_connections_of_a_rank_that_computes_slowly_are_not_named() -> None:
    """They are late for that reason; and within a host whose cores are shared chance decides."""
    slow = rank(1, 0.5, which="3")
    found = judged(rank(0), slow, rank(2), connections=[_connection(0, 1, 0.2), _connection(0, 2), _connection(2, 0)])
    assert [text.startswith("rank 1 computes") for text in found.sentences] == [True]
    found = judged(rank(0), rank(1), rank(2), connections=[_connection(0, 1, 0.2), _connection(0, 2)])
    assert found.sentences == [NOTHING]


def test_the_rates_of_many_ranks_are_taken_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are held meanwhile: twice as many ranks take twice as many rates, and not four times as many."""
    counts: list[int] = []
    rate_of = judge._rate_of

    def counted(*arguments: Any) -> Any:
        counts[-1] += 1
        return rate_of(*arguments)

    monkeypatch.setattr(judge, "_rate_of", counted)
    for world in (40, 80):
        counts.append(0)
        judged(*(rank(each, host=f"node{each // 8}") for each in range(world)))
    assert counts[1] == 2 * counts[0]
