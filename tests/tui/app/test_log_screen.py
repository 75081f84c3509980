"""The screen of logs: followed, scrolled through, searched, by level, and all ranks as one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.screens.dashboards import SIZES, dashboard, footer_keys, seen, settled, still_app, until
from support.screens.frames import StillSource, frame
from support.screens.hosts import hosted
from support.values.hostile import PIECES, marks
from textual.pilot import Pilot

from ddptop.agent.client.frame import Frame
from ddptop.tui.screens.lists import LogScreen
from ddptop.tui.screens.run import RunScreen
from ddptop.tui.views.screen.loglist import LogList

pytestmark = pytest.mark.usefixtures("utc")

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: no\n'


def logged(folder: Path, *texts: str) -> Frame:
    """Return a run whose first ranks have printed these."""
    shown = frame()
    ranks = list(shown.ranks)
    for rank, text in enumerate(texts):
        path = folder / f"rank-{rank}.log"
        path.write_text(text)
        ranks[rank] = replace(ranks[rank], log=str(path))
    return replace(shown, ranks=tuple(ranks))


def listing(pilot: Pilot[None]) -> LogList:
    """Return the list of the log screen."""
    assert isinstance(pilot.app.screen, LogScreen)
    return pilot.app.screen.query_one(LogList)


def top(pilot: Pilot[None]) -> str:
    """Return the first line in sight."""
    return listing(pilot).picture.lines[int(listing(pilot).scroll_y)].text


def long(number: int = 60_000) -> str:
    """Return a log of which a screen holds the end only."""
    return "".join(f"{'needle' if each % 20_000 == 7 else 'line'} {each}\n" for each in range(number))


async def test_all_of_a_long_log_can_be_scrolled_to(tmp_path: Path) -> None:
    """From the end up, with the same line on top while more is read; to the first line, and back to the end."""
    async with dashboard(StillSource(logged(tmp_path, long()))).run_test(size=(80, 24)) as pilot:
        await pilot.press("g")
        await until(pilot, lambda: "line 59999" in seen(pilot.app), "the end")
        assert "the last 5,000 lines of" in seen(pilot.app)
        first = listing(pilot).picture.lines[0].text
        listing(pilot).scroll_to(y=50, animate=False)
        await until(pilot, lambda: listing(pilot).picture.lines[0].text != first, "more above")
        assert top(pilot) == "line 55050"
        await pilot.press("home")
        await until(pilot, lambda: top(pilot) == "line 0", "the first line")
        assert "at 0% of" in seen(pilot.app)
        last = listing(pilot).picture.lines[-1].text
        below = int(listing(pilot).max_scroll_y) - 9
        listing(pilot).scroll_to(y=below, animate=False)
        await until(pilot, lambda: listing(pilot).picture.lines[-1].text != last, "more below")
        assert top(pilot) == f"line {below}"
        await pilot.press("end")
        await until(pilot, lambda: "line 59999" in seen(pilot.app), "the end again")
        await until(pilot, lambda: listing(pilot).following, "followed")


async def test_the_log_of_a_rank_that_is_no_more_stays(tmp_path: Path) -> None:
    """The group goes on with fewer ranks: the lines stay, it is told why none come, and the list can be moved."""
    source = StillSource(logged(tmp_path, "", "", long(100)))
    async with dashboard(source).run_test(size=(80, 24)) as pilot:
        await pilot.press("down", "down", "g")
        await until(pilot, lambda: "line 99" in seen(pilot.app), "the end")
        source.current = frame(world=2)
        await until(pilot, lambda: "the run has this rank no more" in seen(pilot.app), "it is told")
        await pilot.press("home", "end")
        await until(pilot, lambda: "line 99" in seen(pilot.app), "the end again")
        assert "rank 2" in seen(pilot.app)


async def test_a_line_that_is_too_long_says_so_or_wraps(tmp_path: Path) -> None:
    """It ends in a sign where it is cut, also beside other views; wrapped, all of it is there, and the top stays."""
    told = [f"{each}: {'ab' * 60}é{each:04}" for each in range(60)]
    app = dashboard(StillSource(logged(tmp_path, "\n".join(told))))

    def long_lines() -> list[bool]:
        """Return of each line of the log in sight whether it ends in the sign; at its right may be a bar."""
        return ["b…" in line[-4:] for line in seen(app).splitlines() if "abab" in line]

    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: long_lines() and all(long_lines()), "the sign beside the panels")
        await pilot.press("g")
        await until(pilot, lambda: len(long_lines()) > 10 and all(long_lines()), "the sign in all of the screen")
        await pilot.press(*["right"] * 120)
        assert "é0059" in seen(pilot.app)
        await pilot.press("w")
        await until(pilot, lambda: "é0059" in seen(pilot.app) and "59: ab" in seen(pilot.app), "both ends of a line")
        assert not any(long_lines())
        pieces = [line.text for line in listing(pilot)._items]
        assert "".join(pieces) == "".join(told)
        await pilot.press("up", "up", "up")
        assert not listing(pilot).following
        place = listing(pilot)._items[int(listing(pilot).scroll_y)].place
        (tmp_path / "rank-0.log").write_text("\n".join([*told, "one more", ""]))
        await until(pilot, lambda: listing(pilot)._items[-1].text == "one more", "more of it")
        assert listing(pilot)._items[int(listing(pilot).scroll_y)].place == place
        await pilot.resize_terminal(60, 24)
        await until(pilot, lambda: len(listing(pilot)._items) > 3 * 60, "narrower")
        await pilot.press("w")
        await until(pilot, lambda: len(listing(pilot)._items) == 61, "cut again")
        assert "…" in seen(pilot.app)


async def test_a_column_of_times_is_there_where_there_are_times(tmp_path: Path) -> None:
    """None of dashes alone: it comes with the first line that has a time, and goes for another rank's log."""
    path = tmp_path / "rank-0.log"
    async with dashboard(StillSource(logged(tmp_path, "plain\n", "other\n"))).run_test(size=(80, 24)) as pilot:
        await pilot.press("g")
        await until(pilot, lambda: "\n   plain " in seen(pilot.app), "no column")
        path.write_text("plain\n2026-11-23T03:50:11Z INFO epoch\n")
        await until(pilot, lambda: "03:50:11   2026" in seen(pilot.app), "a time")
        assert "       –   plain" in seen(pilot.app)
        await pilot.press("tab")
        await until(pilot, lambda: "\n   other " in seen(pilot.app), "no column again")


async def test_a_text_is_found_wherever_it_is(tmp_path: Path) -> None:
    """Upwards from what is in sight, then up and down; it is marked, and what was not found is said."""
    async with dashboard(StillSource(logged(tmp_path, long()))).run_test(size=(80, 24)) as pilot:
        await pilot.press("g")
        await until(pilot, lambda: "line 59999" in seen(pilot.app), "the end")
        assert "Next" not in footer_keys(pilot.app)
        await pilot.press("slash", *"NEEDLE")
        await until(pilot, lambda: "/NEEDLE▏" in seen(pilot.app), "what is typed")
        assert "line 59999" in seen(pilot.app)
        await pilot.press("enter")
        await until(pilot, lambda: "needle 40007" in seen(pilot.app), "the last one")
        await until(pilot, lambda: "scrolled back: end follows again" in seen(pilot.app), "it says so")
        for key, number in (("N", 20007), ("N", 7), ("n", 20007), ("n", 40007)):
            await pilot.press(key)
            await until(pilot, lambda number=number: f"needle {number}" in seen(pilot.app), key)  # type: ignore[misc]
        await pilot.press("n")
        await until(pilot, lambda: "/NEEDLE  not found below" in seen(pilot.app), "it says so")
        found = next(line for line in listing(pilot).picture.lines if line.found)
        row = listing(pilot).row_of(found, listing(pilot).ink)
        assert [segment.text for segment in row if segment.style is not None and segment.style.reverse] == ["needle"]
        await pilot.press("escape")
        await until(pilot, lambda: "NEEDLE" not in seen(pilot.app), "no search")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "back")


async def test_a_search_that_goes_on_is_told_and_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With how far it has come; the keys work meanwhile, and `escape` ends it and nothing else."""
    monkeypatch.setattr("ddptop.tui.link.reader._PROGRESS_S", 0.0)
    monkeypatch.setattr("ddptop.agent.client.logs.excerpt._SCANNED", 64)
    async with dashboard(StillSource(logged(tmp_path, long(300_000)))).run_test(size=(80, 24)) as pilot:
        await pilot.press("g")
        await until(pilot, lambda: "line 299999" in seen(pilot.app), "the end")
        await pilot.press("slash", *"nowhere", "enter")
        await until(pilot, lambda: "%: esc cancels" in seen(pilot.app), "its progress")
        await pilot.press("escape")
        await until(pilot, lambda: "search cancelled" in seen(pilot.app), "its end")
        assert isinstance(pilot.app.screen, LogScreen)
        assert "/nowhere" in seen(pilot.app)


async def test_lines_of_a_level_are_shown(tmp_path: Path) -> None:
    """Warnings and errors, then errors only with their whole tracebacks, then all; the sign says it without color."""
    text = f"plain\nWARNING: look\n{TRACEBACK}" + "more\n" * 3
    async with dashboard(StillSource(logged(tmp_path, text, "plain\n"))).run_test(size=(80, 24)) as pilot:
        await pilot.press("g")
        await until(pilot, lambda: "ValueError: no" in seen(pilot.app), "all")
        assert " ! WARNING: look" in seen(pilot.app)
        assert " ✗ Traceback" in seen(pilot.app)
        await pilot.press("L")
        await until(pilot, lambda: "plain" not in seen(pilot.app), "warnings and errors")
        assert "WARNING: look" in seen(pilot.app)
        await pilot.press("L")
        await until(pilot, lambda: "WARNING: look" not in seen(pilot.app), "errors")
        for line in TRACEBACK.splitlines():
            assert line in seen(pilot.app)
        await pilot.press("tab")
        await until(
            pilot, lambda: "nothing says that it is one of the errors; L shows others" in seen(pilot.app), "none"
        )
        await pilot.press("L")
        await until(pilot, lambda: "plain" in seen(pilot.app), "all of the other rank")


async def test_the_logs_of_all_ranks_are_one(tmp_path: Path) -> None:
    """With the ranks before each line, and the host where there are several; a key goes back to the one."""
    shown = logged(tmp_path, "alike\nof 0\n", "alike\n[rank1]: of 1\n")
    ranks = tuple(replace(rank, host=f"node-{rank.rank}") for rank in shown.ranks)
    source = StillSource(shown)
    async with dashboard(source).run_test(size=(80, 24)) as pilot:
        await pilot.press("g", "a")
        await until(pilot, lambda: "0-1 alike" in seen(pilot.app), "what is alike")
        assert "0   of 0" in seen(pilot.app)
        assert "1   of 1" in seen(pilot.app)
        assert "the ends of 2 logs" in seen(pilot.app)
        source.current = replace(shown, ranks=ranks, one_host=None)
        await until(pilot, lambda: "0 node-0    of 0" in seen(pilot.app), "the host")
        assert "0-1 2 hosts alike" in seen(pilot.app)
        await pilot.press("a")
        await until(pilot, lambda: "of 1" not in seen(pilot.app), "one log")
        await pilot.press("a", "tab")
        await until(pilot, lambda: "[rank1]" not in seen(pilot.app) and "of 1" in seen(pilot.app), "the next rank's")


@pytest.mark.parametrize("size", [(80, 24), (20, 8), (200, 50)])
@pytest.mark.parametrize("together", [False, True])
async def test_garbage_breaks_nothing(tmp_path: Path, size: tuple[int, int], together: bool) -> None:
    """Binary, a line of a MiB, markup and marks of direction: nothing leaves its cells, whatever is searched for."""
    shown = logged(tmp_path, "", "")
    garbage = bytes(range(256)) * 40 + "".join(PIECES).encode() + b"x" * (1 << 20) + b"\nend [/foo] \xf0\x9f\n"
    for rank in (0, 1):
        (tmp_path / f"rank-{rank}.log").write_bytes(garbage)
    async with dashboard(StillSource(shown)).run_test(size=size) as pilot:
        await pilot.press("g", *("a" if together else ""))
        await until(pilot, lambda: listing(pilot).picture.lines, "read")
        for keys in (("slash", *"[/", "enter"), ("n",), ("N",), ("home",), ("L",), ("L",), ("L",), ("end",)):
            await pilot.press(*keys)
            await pilot.pause()
            assert not marks(seen(pilot.app))
        await pilot.press("escape", "escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "back")


@pytest.mark.parametrize(("size", "keys"), [("80x24", ("slash", *"epoch", "enter")), ("120x40", ("a",))])
def test_pictures(
    snap_compare: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, keys: tuple[str, ...]
) -> None:
    """The screen with a search, and with the logs of all ranks."""
    monkeypatch.chdir(tmp_path)
    told = "".join(f"2026-11-23T03:50:{each:02d}Z INFO epoch {each}\nloss 0.{each}\n" for each in range(9))
    shown = logged(Path(), told, f"{told}W1123 03:50:10.100000 4711 gloo.cc:9] slow\n", f"{told}{TRACEBACK}")

    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot, "g")
        await until(pilot, lambda: listing(pilot).picture.lines, "read")
        await pilot.press(*keys)
        await until(pilot, lambda: listing(pilot).picture.found or listing(pilot)._label, "shown")
        await settled(pilot)

    assert snap_compare(still_app(shown), terminal_size=SIZES[size], run_before=before)


async def test_the_log_of_a_rank_on_another_host_is_copied_while_it_is_in_sight(tmp_path: Path) -> None:
    """The source is asked for what stands on the screen: one log, or all; before anything has come, that is said."""
    whole = hosted(2, 2)
    path = tmp_path / "copy"
    far = replace(whole.ranks[2], log=str(path))
    source = StillSource(replace(whole, ranks=(*whole.ranks[:2], far, whole.ranks[3])))

    def wanted() -> frozenset[int]:
        # Time goes on, so that there are frames.
        source.current = replace(source.current, at=source.current.at + 1)
        return source.watched_logs

    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        await settled(pilot, "3", "2", "down", "down", "g")
        await until(pilot, lambda: "not copied from node1 yet" in seen(pilot.app), "that it is missing")
        await until(pilot, lambda: wanted() == {2}, "the rank that is asked for")
        path.write_text("printed afar\n")
        await until(pilot, lambda: "printed afar" in seen(pilot.app), "the line")
        assert "copied from node1" in seen(pilot.app)
        await pilot.press("a")
        await until(pilot, lambda: wanted() == {0, 1, 2, 3}, "all ranks")
