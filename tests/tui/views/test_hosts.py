"""The views of a run on several hosts: ranks grouped by host, hosts that are not heard, at several sizes."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from support.screens.dashboards import INK, KEYS, SIZES, lines, numbers, seen, settled, still_app, table_of, text_of
from support.screens.frames import rank_frame
from support.screens.hosts import hosted
from textual.pilot import Pilot

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire import Verdict
from ddptop.agent.wire.frames import EventLine
from ddptop.tui.cli.output import plain, status
from ddptop.tui.cli.output.card import card
from ddptop.tui.views.heatmap.heatmap import Heatmap
from ddptop.tui.views.panels import Shape, draw_panel
from ddptop.tui.views.screen.header import header_rows
from ddptop.tui.views.screen.log import absence
from ddptop.tui.views.table.grouping import natural


def hosts_in(pilot: Pilot[None]) -> list[str]:
    """Return the lines of hosts in the table, without the cells behind the number of ranks."""
    found = (re.match(r"([▾▸] \S+) +(\d+ ranks?)", line) for line in lines(pilot.app))
    return [" ".join(each.groups()) for each in found if each]


async def test_ranks_stand_under_their_host_and_fold() -> None:
    """Each host has a line of its own; folded, it stands for its ranks, and the chosen rank stays chosen."""
    async with still_app(hosted(3, 2)).run_test(size=(120, 40)) as pilot:
        await settled(pilot, "2", "down", "down")
        assert table_of(pilot.app).chosen == 2
        assert hosts_in(pilot) == ["▾ node0 2 ranks", "▾ node1 2 ranks", "▾ node2 2 ranks"]
        assert numbers(pilot.app) == [0, 1, 2, 3, 4, 5]
        await settled(pilot, "left")
        assert hosts_in(pilot) == ["▾ node0 2 ranks", "▸ node1 2 ranks", "▾ node2 2 ranks"]
        assert numbers(pilot.app) == [0, 1, 4, 5]
        assert table_of(pilot.app).chosen == 2
        for key, chosen in (("down", 4), ("up", 2), ("up", 1), ("up", 0), ("up", 0), ("end", 5), ("home", 0)):
            await pilot.press(key)
            assert table_of(pilot.app).chosen == chosen, key
        await settled(pilot, "H")
        assert numbers(pilot.app) == []
        await settled(pilot, "H")
        assert numbers(pilot.app) == [0, 1, 2, 3, 4, 5]
        await settled(pilot, "h")
        assert (hosts_in(pilot), numbers(pilot.app)) == ([], [0, 1, 2, 3, 4, 5])
        assert "host" in lines(pilot.app)[0]


async def test_hosts_come_in_the_order_of_their_first_rank() -> None:
    """Sorted by a column, the host with the highest value comes first, and its ranks in that order."""
    shown = hosted(3, 2)
    losses = (1.0, 3.0, 9.0, 2.0, 5.0, 4.0)
    ranks = tuple(replace(rank, loss=loss) for rank, loss in zip(shown.ranks, losses, strict=True))
    async with still_app(replace(shown, ranks=ranks)).run_test(size=(120, 40)) as pilot:
        await settled(pilot, "2")
        table_of(pilot.app)._sort_by("loss")
        await settled(pilot)
        assert numbers(pilot.app) == [2, 3, 4, 5, 1, 0]
        assert [line.split()[1] for line in hosts_in(pilot)] == ["node1", "node2", "node0"]


async def test_a_filter_leaves_hosts_with_what_matches() -> None:
    """A host is found by its name, and one of which nothing matches has no line."""
    async with still_app(hosted(3, 2)).run_test(size=(120, 40)) as pilot:
        await settled(pilot, "2", *"/node1")
        assert numbers(pilot.app) == [2, 3]
        assert [line.split()[1] for line in hosts_in(pilot)] == ["node1"]


async def test_ranks_without_a_host_come_last() -> None:
    """Ranks that have not reported stand under a line of their own."""
    whole = hosted(2, 2)
    more = (rank_frame(4, "starting", host=None), rank_frame(5, "starting", host=None))
    async with still_app(replace(whole, world=6, ranks=(*whole.ranks, *more))).run_test(size=(120, 40)) as pilot:
        await settled(pilot, "2", "end")
        assert numbers(pilot.app) == [0, 1, 2, 3, 4, 5]
        assert any(line.startswith("▾ 2 ranks not reported yet") for line in lines(pilot.app))
        assert table_of(pilot.app).chosen == 5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("hosts", [2, 16, 128])
async def test_every_view_shows_many_hosts(size: str, hosts: int) -> None:
    """At each size no view fails, nothing is wider than the screen, and a silent host is named in the first line."""
    app = still_app(hosted(hosts, 2, silent=(1,)))
    async with app.run_test(size=SIZES[size]) as pilot:
        for key in "1234":
            await settled(pilot, key)
            first, *_ = seen(app).splitlines()
            assert "node1 is not heard since" in first, key
            assert all(len(line) == SIZES[size][0] for line in seen(app).splitlines())


async def test_the_heatmap_reads_the_rank_that_it_points_at() -> None:
    """Where hosts have their ranks in turns, as with a cyclic distribution, the ranks of each stand together."""
    whole = hosted(2, 2)
    turns = replace(whole.hosts[0], ranks=(0, 2)), replace(whole.hosts[1], ranks=(1, 3))
    async with still_app(replace(whole, hosts=type(whole.hosts)(turns))).run_test(size=(120, 40)) as pilot:
        await settled(pilot, "3")
        heatmap = pilot.app.screen.query_one(Heatmap)
        chosen = []
        for _ in range(4):
            chosen.append(heatmap.chosen)
            await settled(pilot, "down")
        assert chosen == [0, 2, 1, 3]
        await settled(pilot, "home", "n")
        assert heatmap.chosen == 2, "the slow one"


def test_a_panel_has_its_host_in_its_lower_edge() -> None:
    """In the width of the panel, whatever the name; of a run on one host there is none."""
    shown = hosted(2, 1)
    for width in (38, 60):
        rows = [text_of(row) for row in draw_panel(shown.ranks[1], shown, Shape(width, 8, False), INK)]
        assert rows[-1].startswith("╰─ node1 ─")
        assert {len(row) for row in rows} == {width}
    host = replace(shown.hosts[1], host="n" * 200)
    long = replace(shown, hosts=type(shown.hosts)((shown.hosts[0], host)))
    assert len(text_of(draw_panel(long.ranks[1], long, Shape(38, 8, False), INK)[-1])) == 38


def test_the_header_counts_hosts_and_names_the_one_that_is_silent() -> None:
    """Of several the first ones; and which ranks nobody tells of."""
    assert "2 hosts" in text_of(header_rows(hosted(), 118, INK, KEYS, roomy=True)[0])
    assert "node1 is not heard since" in text_of(header_rows(hosted(silent=(1,)), 78, INK, KEYS, roomy=False)[0])
    many = text_of(header_rows(hosted(9, 1, silent=range(4, 9)), 118, INK, KEYS, roomy=True)[0])
    assert "5 hosts are not heard: node4, node5, node6, …" in many
    alone = header_rows(hosted(unlinked=(4, 5, 6, 7)), 118, INK, KEYS, roomy=True)
    assert any("ranks 4-7 run on other hosts: not linked" in text_of(row) for row in alone)


def test_status_and_plain_lines_name_hosts() -> None:
    """The card has a column, the JSON hosts with their states, and lines the host of a rank."""
    shown = hosted(2, 2, silent=(1,), slowest=2)
    told = card(shown)
    assert "4 ranks on 2 hosts" in told[0]
    assert "node1 is not heard since" in told[1]
    assert next(line for line in told if line.startswith("RANK")).split()[1] == "HOST"
    found = status.as_json(shown)
    assert [(each["host"], each["state"], each["ranks"]) for each in found["hosts"]] == [
        ("node0", "linked", [0, 1]), ("node1", "silent", [2, 3]),
    ]  # fmt: skip
    assert [rank["host"] for rank in found["ranks"]] == ["node0", "node0", "node1", "node1"]
    assert status.run_json(shown)["hosts"] == found["hosts"]
    assert "4 on 2 hosts" in status.table([shown], shown.at)[1]
    assert "slowest rank 2 (node1)" in plain.line(shown)
    assert status.as_json(frame_of_one())["hosts"][0]["ranks"] == [0, 1]


def frame_of_one() -> Frame:
    """Return a run on one host."""
    from support.screens.frames import frame

    return frame(world=2)


async def test_events_name_the_host_of_their_rank() -> None:
    """Also one that came before anybody told of hosts."""
    events = (EventLine(1.0, "rank 2 is silent", 2, "warning"), EventLine(2.0, "loader is slow", 3, "warning"))
    async with still_app(hosted(events=events)).run_test(size=(120, 40)) as pilot:
        await settled(pilot, "e")
        assert "rank 2 (node1) is silent" in seen(pilot.app)
        assert "rank 3 (node1): loader is slow" in seen(pilot.app)


def test_a_pause_that_a_silent_host_may_not_share_says_so() -> None:
    """Ranks that are held are not said to be waited for: no key would do anything until that host is heard."""
    shown = hosted(silent=(1,), state="pausing")
    held = replace(shown, ranks=(*(replace(each, state="paused") for each in shown.ranks[:2]), *shown.ranks[2:]))
    said = " ".join(text_of(row) for row in header_rows(held, 118, INK, KEYS, roomy=True))
    assert "paused as far as is heard: ranks stay held until node1 is heard again" in said
    assert "waiting for" not in said


def test_the_log_of_another_host_is_said_to_be_there() -> None:
    """It is not looked for here, and not said to be on the terminal."""
    far = hosted().ranks[2]
    assert absence(far) == "the log of rank 2 is on node1: `ddptop logs` there shows it"
    assert absence(replace(far, unkept=True)) == "it writes to the terminal that started it on node1: look there"
    assert absence(replace(far, far=False, unkept=True)) == "it writes to the terminal that started it: look there"
    assert absence(replace(far, far=False)) == "nothing has come of this rank yet"
    assert absence(replace(far, log="/x")) == ""


def test_names_are_sorted_by_their_numbers() -> None:
    """As people count."""
    assert sorted(["node10", "node9", "node100", "a"], key=lambda name: natural(name) or "") == [
        "a", "node9", "node10", "node100",
    ]  # fmt: skip


def test_a_folded_host_tells_of_the_rank_that_is_blamed() -> None:
    """Else the slow rank would be hidden with the others."""
    from ddptop.tui.views.table.grouping import host_row

    verdict = Verdict(1, "slow_rank", "rank 3 is slow", 0, rank=3, phase="data")
    shown = hosted(verdicts=(verdict,))
    rows = [text_of(host_row(host, (("running", 2),), shown, 120, INK, folded=True)) for host in shown.hosts]
    assert ["◀ rank 3" in row for row in rows] == [False, True]
