"""`status` as text: what is wrong first, then progress, then the phases of each rank."""

from __future__ import annotations

import re

import msgspec
import pytest
from msgspec.structs import replace
from support.screens.frames import frame, hung_frame, rank_frame
from support.screens.hosts import hosted

from ddptop.agent import wire
from ddptop.tui.cli.output.card import card
from ddptop.tui.cli.output.status import as_json

SLOW = wire.Verdict(1, "slow_rank", "rank 1 holds the group back by 41 ms a step: data loading", 0, rank=1)


def titles(line: str) -> list[str]:
    """Return the cells of a line of the table."""
    return re.split(r" {2,}", line)


def shared(world: int = 2) -> list[str]:
    """Return the lines of a run whose rank 1 waits for data while rank 0 waits for rank 1."""
    ranks = [
        rank_frame(rank, step=51284, phases_ms={"data": 53.0 if rank else 12.0, "wait": 6.0 if rank else 47.0})
        for rank in range(world)
    ]
    return card(replace(frame(world=world), ranks=tuple(ranks), verdicts=(SLOW,), step=51284))


def test_the_verdict_comes_first() -> None:
    """Right after the line that names the run; the cause of a failure stands there as well."""
    assert shared()[1] == SLOW.text
    failed = card(frame("failed", cause="rank 1: ValueError: x", exit_code=1))
    assert failed[1] == "rank 1: ValueError: x"
    assert failed[2].startswith("step ")


def test_it_is_told_that_not_all_steps_are_recorded() -> None:
    """In one place, and only where that is so."""
    assert not any("recorded" in line for line in card(frame()))
    found = [line for line in card(frame(recorded_every=8)) if "recorded" in line]
    assert [line.rpartition("  ")[2] for line in found] == ["one step in 8 recorded"]


def test_each_rank_has_its_own_data_and_wait() -> None:
    """No mean over the ranks stands anywhere, and each column says which number it is."""
    lines = shared()
    head, *ranks = map(titles, lines[-3:])
    assert head[:7] == ["RANK", "STATE", "STEP", "LOSS", "STEP ms", "data", "wait"]
    assert "all-reduce p50 ms" in head
    assert [cells[5:7] for cells in ranks] == [["12.0", "47.0"], ["53.0", "6.0"]]
    assert [cells[2] for cells in ranks] == ["51,284", "51,284"]
    assert not any("32.5" in line or "26.5" in line for line in lines)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_columns_that_do_not_fit_are_left_out(width: int) -> None:
    """Of those that matter least; on 80 columns data and wait are there, and no line is longer than the terminal."""
    table = card(frame(), width)[-5:]
    assert max(map(len, table)) <= width
    assert table[0].startswith("RANK  STATE")
    assert width < 80 or {"data", "wait", "STEP"} <= set(table[0].split())
    shown, everything = titles(table[0]), titles(card(frame())[-5])
    assert shown == [title for title in everything if title in shown]


def test_numbers_have_one_form() -> None:
    """Thousands are set off, of ranks as of steps."""
    assert "1,024 ranks" in card(frame(world=1024))[0]
    assert "51,284" in shared()[2]


def test_a_run_that_stands_says_so() -> None:
    """`status` has the sentence of the dashboard, before any verdict."""
    shown = replace(frame(), stands=True, ranks=tuple(rank_frame(rank, step_age_s=8.0) for rank in range(4)))
    assert "no step for 8 s" in card(shown)
    assert not any("no step" in line for line in card(frame()))


def test_a_fault_of_the_agent_inside_a_rank_is_told() -> None:
    """In a line of its own for all ranks, and in JSON at its rank."""
    fault = "a call of a collective: OSError: a fault of ours"
    ranks = tuple(rank_frame(rank, fault=None if rank == 0 else fault, faults=rank) for rank in range(4))
    shown = replace(frame(), ranks=ranks)
    line = f"a fault of the agent in rank 1, and 2 other ranks; numbers may be missing: {fault}"
    assert line in card(shown)
    assert not any("fault of the agent" in each for each in card(frame()))
    assert [rank["fault"] for rank in as_json(shown)["ranks"]] == [None, fault, fault, fault]


def test_a_hang_is_the_first_line() -> None:
    """Then the time that is left and what can be done; that no step was made need not be said besides."""
    first, second, third, *rest = card(hung_frame())
    assert first.startswith("rank 1 hangs: it sleeps; it never entered all_reduce 4 MiB")
    assert second.split(" · ") == [
        "gloo's timeout in 1,742 s",
        "ddptop stacks resnet-7f3a shows where each rank stands",
        "ddptop kill resnet-7f3a ends it",
    ]
    assert third.startswith("resnet-7f3a  stalled")
    assert not any("no step" in line for line in rest)
    assert [line.endswith("◀ hangs") for line in rest[-4:]] == [False, True, False, False]


def test_how_a_stopped_rank_goes_on_is_told() -> None:
    """With its process, before what else can be done."""
    hung = hung_frame()
    assert hung.verdict is not None
    stopped = msgspec.structs.replace(hung.verdict, hang=wire.Hang("stopped", (1,)))
    _, second, *_ = card(replace(hung, verdicts=(stopped,)))
    does = f"kill -CONT {hung.ranks[1].pid} lets it go on, unless a debugger holds it"
    assert second.startswith(f"{does} · ddptop stacks")
    assert "kill -CONT" not in "".join(card(hung))


def test_what_shows_the_data_workers_is_told() -> None:
    """Of a rank that waits for its data loader: only its own stack is in `ddptop stacks`."""
    hung = hung_frame()
    assert hung.verdict is not None
    loads = msgspec.structs.replace(hung.verdict, hang=wire.Hang("data", (1,)))
    _, second, *_ = card(replace(hung, verdicts=(loads,)))
    assert f"py-spy dump --subprocesses --pid {hung.ranks[1].pid} shows its data workers · " in second
    assert "py-spy" not in "".join(card(hung))


def test_the_time_that_the_scheduler_leaves_is_told() -> None:
    """Beside the progress; nothing where nobody limits it."""
    limited = replace(frame(), ends_at=frame().at + 3 * 3600 + 725)
    assert any("ends in 3:12:05" in line for line in card(limited))
    assert not any("ends in" in line for line in card(frame()))


def test_a_host_that_is_not_heard_is_told_once() -> None:
    """Not beside each of its ranks again; of several hosts, each rank says since when its own is not heard."""
    one = card(hosted(2, 4, silent=(1,)))
    assert sum("node1 is not heard since" in line for line in one) == 1
    assert [titles(line)[1:3] for line in one[-4:]] == [["node1", "silent"]] * 4
    several = card(hosted(3, 4, silent=(1, 2)))
    assert sum("is not heard since" in line for line in several[-8:]) == 8
