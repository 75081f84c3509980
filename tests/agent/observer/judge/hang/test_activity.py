"""A rank that works is not accused, however still its stack stands; it is as soon as nothing of it moves any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.processes.standing import BARRIER, Run, Spot, in_library, in_user_code, waits

from ddptop.agent.wire import Work

READS = in_library("socket.py", "recv_into", 1, "fetch", 12)
PATTERN = in_user_code(31, source="re.match(pattern, text)")


def done(run: Run, seconds: float, **rates: float) -> Work:
    """Return what a rank has done after so many seconds, by what it does in one."""
    names = (
        "file_bytes",
        "socket_bytes",
        "child_bytes",
        "child_cpu_ms",
        "thread_cpu_ms",
        "connections",
        "written_bytes",
    )
    grown = {name: int(seconds * rates.get(name, 0.0)) for name in names}
    return Work(at_ns=run.now_ns, children=2, **grown)


def stands(run: Run, work: Callable[[float], Work], frames=READS, since_s: float = 0.1) -> Callable[[int, float], Spot]:
    """Return the places of ranks: rank 0 in one line, the others in a barrier."""

    def where(rank: int, at: float) -> Spot:
        if rank:
            return waits(run.calls + 1, BARRIER, seconds=at + since_s)
        return Spot(frames, calls=run.calls, work=work(at))

    return where


@pytest.mark.parametrize(
    ("rates", "says"),
    [
        ({"socket_bytes": 240_000}, "rank 0 works: it reads from a socket, 240 kB/s"),
        ({"file_bytes": 12_000_000}, "rank 0 works: it reads files, 12 MB/s"),
        ({"file_bytes": 12_000_000, "written_bytes": 12_000_000}, "rank 0 works: it writes files, 12 MB/s"),
        ({"file_bytes": 24_000_000, "written_bytes": 12_000_000}, "rank 0 works: it reads and writes files, 24 MB/s"),
        ({"child_cpu_ms": 1900}, "rank 0 works: its 2 child processes compute, 190% CPU"),
        ({"child_bytes": 800_000}, "rank 0 works: its 2 child processes move data, 800 kB/s"),
        ({"thread_cpu_ms": 1500}, "rank 0 works: its threads compute, 150% CPU"),
    ],
)
def test_a_rank_whose_bytes_or_children_move_is_at_work_for_as_long_as_they_do(rates, says):
    """Five minutes in one line: told once in grey, with the rate and the line, and never accused."""
    run = Run(2, 0.2)
    run.train(5)
    run.spend(300, stands(run, lambda at: done(run, at, **rates)))
    ((_, finding),) = run.told
    assert (finding.kind, finding.rank) == ("standing", 0)
    assert finding.text.startswith(f"{says} (train.py:12 fetch); rank 1 waits · ")


@pytest.mark.parametrize("every_s", [1.5, 4.0, 9.0, 25.0])
def test_work_in_pieces_does_not_let_the_word_change_from_moment_to_moment(every_s):
    """A server that sends a piece now and then: after the first it may be accused once, where pieces are rare."""
    run = Run(2, 0.2)
    run.train(5)
    run.spend(200, stands(run, lambda at: done(run, at // every_s, socket_bytes=2_000_000)))
    kinds = [finding.kind for _, finding in run.told]
    assert kinds in (["standing"], ["hang", "standing"]), kinds
    if every_s < 5:
        assert kinds == ["standing"]


def test_a_rank_that_was_at_work_is_accused_once_nothing_of_it_moves():
    """A download that gets stuck after 30 s is told within 15 s more, with what the rank waits for."""
    run = Run(2, 0.2)
    run.train(5)
    run.spend(30, stands(run, lambda at: done(run, at, socket_bytes=240_000)))
    assert run.hangs == []
    finding = run.until_told(20, stands(run, lambda _: done(run, 30, socket_bytes=240_000), since_s=30.1))
    assert (finding.kind, finding.rank) == ("hang", 0)
    assert "it waits for a socket" in finding.text


@pytest.mark.parametrize("frames", [READS, PATTERN])
def test_a_rank_of_which_nothing_moves_is_accused_as_soon_as_ever(frames):
    """To measure its work costs no more than two seconds; little bytes, as libraries exchange, are no work."""
    run = Run(2, 0.2)
    run.train(5)
    rates = {"socket_bytes": 300, "file_bytes": 900, "child_cpu_ms": 20, "thread_cpu_ms": 30}
    finding = run.until_told(3 * 0.2 + 5, stands(run, lambda at: done(run, at, **rates), frames))
    assert (finding.kind, finding.rank) == ("hang", 0)


def test_one_small_download_after_the_other_is_work_although_no_look_sees_its_bytes():
    """Each look finds another connection, on which nothing but the request has moved yet."""
    run = Run(2, 0.2)
    run.train(5)
    run.spend(120, stands(run, lambda at: done(run, at, connections=1, socket_bytes=150)))
    ((_, finding),) = run.told
    assert finding.kind == "standing"
    assert finding.text.startswith("rank 0 works: it opens one connection after the other (train.py:12 fetch); rank 1 ")


@pytest.mark.parametrize(("frames", "rate"), [(PATTERN, 1.0), (READS, 0.0)])
def test_a_thread_that_reports_does_not_hide_that_its_rank_hangs(frames, rate):
    """The connections of another thread are no work of a rank that waits for none; nor is an old one to wait on."""
    run = Run(2, 0.2)
    run.train(5)
    finding = run.until_told(3 * 0.2 + 5, stands(run, lambda at: done(run, at, connections=rate), frames))
    assert (finding.kind, finding.rank) == ("hang", 0)
