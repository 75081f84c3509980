"""Pickers, each alone over an empty screen: what they offer, where the mark goes, and what they return."""

from __future__ import annotations

import signal
from typing import Any

from support.screens.dashboards import until
from support.screens.frames import StillSource, frame
from textual.app import App
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Input, OptionList, Static

from ddptop.agent.client.acting.membership import ProcessLine
from ddptop.agent.run.identity import Process
from ddptop.agent.wire.steps.numbers import RECORDED
from ddptop.tui.model.metrics import offered
from ddptop.tui.screens.dialogs.pickers import ColumnsDialog, MetricPicker, ProcessMenu, SignalMenu
from ddptop.tui.views.table.columns import columns_of


class Host(App[Any]):
    """An app without a style sheet, which knows no more than the names of the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.key_names = {
            "run.pause": "space",
            **{
                binding.id: binding.key.partition(",")[0]
                for picker in (ColumnsDialog, MetricPicker, ProcessMenu, SignalMenu)
                for binding in picker.BINDINGS
                if isinstance(binding, Binding) and binding.id is not None
            },
        }


def rows(app: App[Any]) -> list[str]:
    """Return the rows that are offered; none before the picker is laid out."""
    return [str(option.prompt) for listing in app.screen.query(OptionList) for option in listing.options]


def marked(app: App[Any]) -> str:
    """Return the row that is marked."""
    option = app.screen.query_one(OptionList).highlighted_option
    return "" if option is None else str(option.prompt)


async def test_typing_filters_and_the_arrows_go_round() -> None:
    """The first row that fits is marked; the one after the last is the first; Enter returns the marked one."""
    host = Host()
    chosen: list[Any] = []
    async with host.run_test() as pilot:
        host.push_screen(SignalMenu("rank 1", 4), chosen.append)
        await until(pilot, lambda: isinstance(host.focused, Input), "the field")
        assert marked(host) == "", "a signal is chosen first"
        await pilot.press("down")
        assert "SIGTERM" in marked(host)
        await pilot.press(*"usr")
        assert [name for row in rows(host) for name in row.split()[1:2]] == ["SIGUSR1", "SIGUSR2"]
        seen = []
        for key in ("", "down", "down", "up"):
            await pilot.press(*[key] if key else [])
            seen.append(marked(host).split()[1])
        assert seen == ["SIGUSR1", "SIGUSR2", "SIGUSR1", "SIGUSR2"]
        await pilot.press("x")
        assert rows(host) == []
        warning = host.screen.query_one("#warning", Static)
        assert str(warning.content) == "no signal of that name or number"
        await pilot.press("down", "enter")
        assert isinstance(host.screen, SignalMenu), "there is nothing to send"
        await pilot.press("backspace", "up", "enter")
    assert chosen == [signal.SIGUSR2]


async def test_two_numbers_of_one_name_say_whose_they_are() -> None:
    """The loss that ddptop reads stands beside the one that the script logs; other names are clear as they are."""
    host = Host()
    async with host.run_test() as pilot:
        host.push_screen(MetricPicker(offered(["loss", "accuracy"]), "loss"))
        await until(pilot, lambda: rows(host), "the list")
        assert [row for row in rows(host) if "loss" in row] == ["loss  read by ddptop", "loss  logged by the script"]
        assert "accuracy  logged by the script" in rows(host)


async def test_the_metric_that_is_shown_is_marked_at_first() -> None:
    """The plot's own metric is marked; all words that are typed must fit; escape returns none."""
    host = Host()
    chosen: list[Any] = []
    metrics = offered(["val/loss [bold]"])
    async with host.run_test() as pilot:
        host.push_screen(MetricPicker(metrics, RECORDED[2]), chosen.append)
        await until(pilot, lambda: rows(host), "the list")
        assert marked(host).startswith(metrics[2].title)
        assert len(rows(host)) == len(metrics)
        await pilot.press(*"LOSS val")
        assert rows(host) == ["val/loss [bold]  logged by the script"]
        await pilot.press("enter")
        host.push_screen(MetricPicker(metrics, "no longer there"), chosen.append)
        await until(pilot, lambda: rows(host), "the list")
        assert marked(host).startswith(metrics[0].title)
        await pilot.press("escape")
    assert chosen == [metrics[-1].name, None]


async def test_a_tick_leaves_the_mark_and_the_list_where_they_are() -> None:
    """Space and Enter tick the marked column; the list does not jump; the ticked ones are returned."""
    host = Host()
    chosen: list[Any] = []
    columns = columns_of(frame())
    async with host.run_test(size=(80, 12)) as pilot:
        host.push_screen(ColumnsDialog(columns, {columns[0].key}, set()), chosen.append)
        await until(pilot, lambda: rows(host), "the list")
        assert rows(host)[0].startswith("[✓]")
        assert rows(host)[0].endswith("no room now")
        await pilot.press("end", *["up"] * 3)
        listing = host.screen.query_one(OptionList)
        before = listing.scroll_offset, listing.highlighted
        assert before[1] == len(columns) - 4
        await pilot.press("space", "down", "enter", "enter")
        await pilot.press("up")
        assert (listing.scroll_offset, listing.highlighted) == before
        await pilot.press("escape")
    assert chosen == [{columns[0].key, columns[-4].key}]


async def test_the_mark_stays_with_its_process() -> None:
    """Another order moves the mark; where its process is gone the first is marked; none is told."""
    host, source = Host(), StillSource(frame())
    chosen: list[Any] = []
    first, second = line(100), line(200)

    there = [first, second]

    async def shows(*lines: ProcessLine) -> None:
        there[:] = lines
        host.screen.post_message(ProcessMenu.Found(list(lines)))
        pids = [str(each.process.pid) for each in lines]
        await until(pilot, lambda: [row.split()[0] for row in rows(host)] == pids, "the list")

    source.processes = lambda: list(there)  # type: ignore[method-assign]
    async with host.run_test() as pilot:
        host.push_screen(ProcessMenu(source, "run"), chosen.append)
        await until(pilot, lambda: len(rows(host)) == 2, "the list")
        await pilot.press("down")
        assert marked(host).split()[0] == "200"
        await shows(second, first)
        assert marked(host).split()[0] == "200"
        await shows(first)
        assert marked(host).split()[0] == "100"
        await shows()
        assert "no process of it is alive; escape closes" in str(host.screen.query_one("#hint", Static).content)
        await shows(second)
        await pilot.press("enter")
    assert chosen == [second]


async def test_a_hint_names_the_keys_as_the_user_has_them() -> None:
    """Of a key that was moved the new one is told."""
    host = Host()
    host.key_names["signals.cancel"] = "ctrl+z"
    async with host.run_test() as pilot:
        host.push_screen(SignalMenu("rank 1", 4))
        await until(pilot, lambda: rows(host), "the list")
        hint = host.screen.query_one("#hint", Static).content
        assert isinstance(hint, Content)
        assert "ctrl+z cancels" in hint.plain


def line(pid: int) -> ProcessLine:
    """Return a process of the run."""
    return ProcessLine(Process(pid, 1.0, "boot", "pid:[1]"), "rank", 0, "sleeping", 60.0, 5.0, 1 << 20, "train.py")
