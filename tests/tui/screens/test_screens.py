"""Snapshots of the screens with still frames, compared with those that a person has looked at.

After a wanted change: `pytest tests/tui/screens/test_screens.py --snapshot-update`, and look at the new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.screens.dashboards import SIZES, settled, still_app, until
from support.screens.frames import frame, rank_frame, verdict_frame
from textual.pilot import Pilot

from ddptop.agent.client.frame import Frame
from ddptop.tui.views.screen.loglist import LogList

GPU: dict[str, Any] = {
    "device": "cuda:0",
    "memory_kind": "device",
    "memory_bytes": 5 * 2**30,
    "memory_total_bytes": 8 * 2**30,
}
VIEWS: dict[str, Callable[[], Frame]] = {
    "starting": lambda: frame("starting"),
    "running": lambda: verdict_frame(),
    "paused": lambda: frame("paused", world=2),
    "failed": lambda: frame("failed"),
    "finished": lambda: frame("finished", world=1, note=None),
    "gpus": lambda: frame(
        world=16, backend="nccl", device="cuda", note=None, placement="a GPU for each rank: NCCL", one_device=None,
        ranks=tuple(rank_frame(rank, device_percent=93.0, **GPU) for rank in range(16)),
    ),
}  # fmt: skip
"""Made in the tests: every worker reads this file."""


@cache
def many_ranks() -> Frame:
    """Return 1,024 ranks in many states, one of them slow."""
    odd: dict[int, dict[str, Any]] = {
        5: {"state": "stalled", "step_age_s": 14.0}, 7: {"state": "silent"}, 9: {"state": "paused"},
        11: {"health": "loss is nan since step 123", "loss": float("nan")},
        13: {"state": "failed", "ended": "exit code 1: ValueError: bad lr"}, 15: {"missed": 12},
    }  # fmt: skip
    ranks = [rank_frame(rank, host=f"node-{rank // 8:03d}") for rank in range(1024)]
    for rank, changes in odd.items():
        ranks[rank] = replace(ranks[rank], **changes)
    ranks[3] = rank_frame(3, "starting")
    return replace(verdict_frame(), world=1024, ranks=tuple(ranks))


pytestmark = pytest.mark.usefixtures("utc")


@pytest.mark.parametrize(
    ("view", "size"),
    [
        ("starting", "80x24"), ("running", "80x24"), ("paused", "80x24"), ("failed", "80x24"), ("gpus", "80x24"),
        ("starting", "120x40"), ("running", "120x40"), ("finished", "120x40"),
        ("running", "200x50"), ("gpus", "200x50"),
    ],
)  # fmt: skip
def test_the_run(snap_compare: Callable[..., bool], view: str, size: str) -> None:
    """The main screen in its states and sizes."""
    assert snap_compare(still_app(VIEWS[view]()), terminal_size=SIZES[size], run_before=settled)


@pytest.mark.parametrize(
    ("name", "keys", "size"),
    [
        ("rank", ("tab", "tab", "enter"), "120x40"),
        ("rank", ("tab", "tab", "enter"), "80x24"),
        ("kill", ("tab", "k"), "80x24"),
        ("kill rank", ("tab", "k", "right", "right"), "120x40"),
        ("help", ("question_mark",), "120x40"),
    ],
)
def test_the_other_screens(snap_compare: Callable[..., bool], name: str, keys: tuple[str, ...], size: str) -> None:
    """A rank's screen, the kill dialog and the help."""

    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await settled(pilot, *keys)

    assert snap_compare(still_app(frame()), terminal_size=SIZES[size], run_before=before)


def test_the_log(snap_compare: Callable[..., bool], tmp_path: Path) -> None:
    """The log screen; its path is not in the frame, because it differs from run to run."""
    log = tmp_path / "rank-0.log"
    log.write_text("".join(f"epoch 0 step {step} loss {2 / step:.3f}\n" for step in range(1, 60)))
    whole = frame()
    app = still_app(replace(whole, ranks=(replace(whole.ranks[0], log=str(log)), *whole.ranks[1:])))

    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot, "g")
        await until(pilot, lambda: pilot.app.screen.query_one(LogList).picture.lines, "read")
        pilot.app.screen.query_one("#caption").display = False
        await pilot.pause()

    assert snap_compare(app, terminal_size=SIZES["80x24"], run_before=before)


@pytest.mark.parametrize(
    ("name", "keys", "size"),
    [
        ("all", (), "80x24"), ("all", (), "120x40"), ("all", (), "200x50"),
        ("sorted", ("greater_than_sign",) * 3, "120x40"),
        ("filtered", ("slash", *"node-001"), "120x40"),
        ("nothing", ("slash", *"xyz"), "80x24"),
        ("columns", ("C", "down"), "80x24"),
    ],
)  # fmt: skip
def test_the_table(snap_compare: Callable[..., bool], name: str, keys: tuple[str, ...], size: str) -> None:
    """A line for each of 1,024 ranks, at each size and as it is worked with."""

    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await settled(pilot, "2", *keys)

    assert snap_compare(still_app(many_ranks()), terminal_size=SIZES[size], run_before=before)
