"""What the widgets draw from a frame, without a terminal."""

from __future__ import annotations

import itertools
import re
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from support.screens.dashboards import INK, KEYS, seen, settled, still_app, text_of
from support.screens.frames import EVIL, NOW, frame, frame_at, hung_frame, rank_frame, verdict_frame

from ddptop.agent import wire
from ddptop.agent.client.frame import Frame
from ddptop.agent.observer.model.store import Store
from ddptop.agent.run.rundir import Run
from ddptop.agent.wire import Verdict
from ddptop.agent.wire.frames import STATES, Calls, RankFrame, Restart
from ddptop.tui.cli.output import plain, status
from ddptop.tui.cli.output.card import card
from ddptop.tui.cli.view import farewell
from ddptop.tui.drawing.bars import binned, phase_bar, sparkline
from ddptop.tui.drawing.lines import width_of
from ddptop.tui.drawing.theme import DARK, LETTERS, LIGHT, MARKS
from ddptop.tui.screens.rank import fact_rows, history_rows
from ddptop.tui.views.panels import Shape, arrange, draw_panel
from ddptop.tui.views.screen.header import header_rows, message
from ddptop.tui.views.table.columns import columns_of


def test_every_state_and_phase_has_a_sign_and_a_hue() -> None:
    """What color says, a sign says too; both themes know the same names."""
    assert set(MARKS) == set(STATES)
    assert len(set(MARKS.values())) == len(STATES)
    assert len(set(LETTERS.values())) == len(LETTERS)
    assert DARK.variables.keys() == LIGHT.variables.keys()
    assert {f"state-{state}" for state in STATES} | {f"phase-{phase}" for phase in LETTERS} < DARK.variables.keys()


def test_a_bar_is_as_long_as_its_share_of_the_scale() -> None:
    """The filled part is the step's share of the common scale, each phase its share of the step."""
    phases = dict.fromkeys(LETTERS, 10.0)
    text = text_of(phase_bar(phases, 20.0 * len(LETTERS), 40, INK))
    assert len(text) == 40
    assert len(text.rstrip()) == 20
    counts = [text.count(letter) for letter in LETTERS.values()]
    assert sum(counts) == 20
    assert max(counts) - min(counts) <= 1


def test_a_bar_never_leaves_its_cells() -> None:
    """Steps longer than the scale, zero and infinite numbers stay inside."""
    for phases, scale in (({"data": 1e9}, 1.0), ({"data": float("inf")}, 1.0), ({}, 0.0), ({"wait": -5.0}, 10.0)):
        assert width_of(phase_bar(phases, scale, 17, INK)) == 17


def test_history_does_not_shimmer() -> None:
    """A bin keeps its values while steps come in: all but the outermost two stay the same."""
    values = [float(step) for step in range(1000)]
    before = binned(values[300:540], 539, 24)
    after = binned(values[301:541], 540, 24)
    assert set(before[1:-1]) <= set(after) | {after[0]}


def test_broken_losses_are_marked_not_hidden() -> None:
    """A NaN in the history shows as a sign of its own, an unknown value as a gap."""
    rows = sparkline([1.0, None, float("nan"), 2.0], 4, 4, INK)
    assert text_of(rows[0]) == "▁ ×█"


def test_the_largest_values_of_both_signs_have_a_course() -> None:
    """The difference of two losses need not be a float: with an unknown one among them, too."""
    assert text_of(sparkline([1.7e308, -1.7e308, 1.0], 3, 3, INK)[0]) == "█▁▅"
    assert text_of(sparkline([1.7e308, -1.7e308, None], 3, 3, INK)[0]) == "█▁ "
    assert text_of(sparkline([1.0], 1, 1, INK, ends=(-1.7e308, 1.7e308))[0]) == "▅"


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("shape", [(38, 7), (40, 7), (50, 10), (66, 8)])
def test_a_panel_fills_exactly_its_box(state: str, shape: tuple[int, int]) -> None:
    """In every state and size, with everything known, nothing known or hostile text in it."""
    whole = frame(state)
    ranks = [
        rank_frame(1, state),
        RankFrame(rank=1, state=state, activity=""),
        rank_frame(1, state, host=EVIL, activity=EVIL, device=EVIL, memory_total_bytes=2**33, step=10**12),
    ]
    for rank in ranks:
        rows = draw_panel(rank, whole, Shape(*shape, chosen=True), INK)
        assert [width_of(row) for row in rows] == [shape[0]] * shape[1]
        assert MARKS[state] in text_of(rows[0])


@pytest.mark.parametrize("width", [38, 44, 49, 60, 90])
@pytest.mark.parametrize("height", [7, 8, 9, 10])
def test_copies_to_a_gpu_take_nothing_from_a_panel(width: int, height: int) -> None:
    """With the seventh phase every number that a panel of this size has is still there."""
    rank = rank_frame(0)
    phases = rank.phases_ms or {}
    copying = replace(rank, phases_ms={**phases, "copy": 4.5, "other": phases["other"] - 4.5}, device="cuda:0")
    with_copies, without = (
        "\n".join(text_of(row) for row in draw_panel(each, frame(), Shape(width, height, False), INK))
        for each in (copying, rank)
    )
    assert "4.5" in with_copies
    for shown in ("all-reduce", "pid", "step", "812"):
        assert (shown in with_copies) == (shown in without), shown


def test_unknown_is_a_dash_in_the_panel() -> None:
    """A rank of which only its state is known shows dashes and no number."""
    rows = draw_panel(RankFrame(rank=0, state="running", activity=""), frame(), Shape(50, 10, False), INK)
    body = " ".join(map(text_of, rows[1:]))
    assert "–" in body
    assert not any(char.isdigit() and char != "0" for char in body.replace("p50", "").replace("p99", ""))


@pytest.mark.parametrize(
    ("ranks", "size", "columns"),
    [(4, (79, 14), 2), (4, (119, 24), 2), (4, (199, 30), 4), (16, (199, 30), 4), (2, (79, 14), 2), (1, (30, 5), 1)],
)
def test_panels_use_the_width_in_even_rows(ranks: int, size: tuple[int, int], columns: int) -> None:
    """As many panels in a row as fit, and no row much shorter than another."""
    found, rows, height = arrange(ranks, *size)
    assert found == columns
    assert found * rows >= ranks > found * (rows - 1)
    assert 7 <= height <= 10


@pytest.mark.parametrize("width", [76, 78, 118, 198])
@pytest.mark.parametrize("state", STATES)
def test_the_header_fits_and_names_the_state(state: str, width: int) -> None:
    """Three or four lines, five with a message of two; none too wide, with the run's name and its state in words."""
    whole = replace(frame(state), orphaned=state == "running", refused=3, supervised=False)
    rows = header_rows(whole, width, INK, KEYS, roomy=False)
    assert 3 <= len(rows) <= 4 + (state == "frozen" and width < 80)
    assert all(width_of(row) <= width for row in rows)
    assert "resnet-7f3a" in text_of(rows[0])
    assert state.upper() in text_of(rows[0])
    assert "synthetic" in " ".join(map(text_of, rows))


@pytest.mark.parametrize(
    ("state", "stands", "said"),
    [
        ("running", True, True),
        ("stalled", True, True),
        ("running", False, False),
        ("silent", True, False),
        ("paused", False, False),
    ],
)
def test_a_run_that_stands_says_for_how_long(state, stands, said):
    """By the newest step of any rank; not while it is held, and not where nobody knows what the ranks do."""
    ranks = tuple(rank_frame(rank, step_age_s=age) for rank, age in enumerate((8.2, 8.0)))
    run, *rest = header_rows(frame(state, world=2, ranks=ranks, stands=stands), 118, INK, KEYS, roomy=True)
    told = f"no step for 8 s: {KEYS['run.stacks']} shows where each rank stands" if said else "no step"
    assert (told in " ".join(text_of(row) for row in rest)) is said
    if state == "running":
        (word,) = (segment for segment in run if "RUNNING" in segment.text)
        assert word.style == INK[f"bold state-{'stalled' if said else 'running'}"], "it is not green"


LINE = "data/loading/images.py:188 AugmentedImages.load_image"
SLOW = Verdict(
    1, "slow_rank",
    f"rank 1 holds the group back by 24 ms a step (61%): backward pass, since step 63 · {LINE} (23 of 24 ms)",
    1, rank=1, phase="backward", cost_ms=24.0, line=LINE,
)  # fmt: skip


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("hint", ["", "p pauses"])
def test_the_line_of_code_is_not_cut(width: int, hint: str) -> None:
    """It has a row of its own where the rest of the verdict takes the first one; rank and cost are there, too."""
    rows = [text_of(row) for row in header_rows(frame(verdicts=(SLOW,)), width, INK, KEYS, hint=hint, roomy=True)]
    assert all(len(row) <= width for row in rows)
    assert any(f"{LINE} (23 of 24 ms)" in row for row in rows)
    assert any(row.startswith("rank 1 holds the group back by 24 ms a step (61%)") for row in rows)
    assert any(hint in row for row in rows)


@pytest.mark.parametrize("width", [78, 118])
@pytest.mark.parametrize("done", ["held", "waiting", "pausing", "paused", "frozen"])
def test_the_header_keeps_its_height_while_ranks_are_held(done: str, width: int) -> None:
    """What ddptop or somebody holds them for comes first, and a verdict of two rows keeps one: nothing below moves."""
    held = tuple(rank_frame(rank, state="held", activity="counting memory, 1 s") for rank in range(2))
    ranks = held if done == "held" else tuple(rank_frame(rank) for rank in range(2))
    running = frame(world=2, verdicts=(SLOW,))
    acted = frame(
        "running" if done == "waiting" else done, world=2, ranks=ranks, verdicts=(SLOW,),
        waiting="pausing: waiting for rank 1" if done == "waiting" else None,
    )  # fmt: skip
    before, during = (
        [text_of(row) for row in header_rows(each, width, INK, KEYS, roomy=True)] for each in (running, acted)
    )
    assert len(during) == len(before) == 5
    assert during[3].startswith("rank 1 holds the group back by 24 ms a step") or (done, width) == ("frozen", 78)
    assert all(len(row) <= width for row in during)


def test_a_verdict_follows_how_long_a_run_stands() -> None:
    """What was slow before is no longer the first thing to know."""
    verdict = Verdict(1, "slow_rank", "rank 2 holds the group back by 31 ms a step", 1, rank=2)
    ranks = tuple(rank_frame(rank, step_age_s=63.0) for rank in range(4))
    shown = frame(verdicts=(verdict,), stands=True, ranks=ranks)
    text = " ".join(text_of(row) for row in header_rows(shown, 118, INK, KEYS, roomy=True))
    assert f"no step for 63 s · {verdict.text}" in text


@pytest.mark.parametrize("state", ["starting", "running", "stalled"])
def test_the_header_says_at_once_that_a_rank_has_failed(state: str) -> None:
    """While the launcher still ends the others, and whatever these do."""
    failing = frame(state, cause="rank 0: unrecognized arguments: 2", launched=True)
    said = " ".join(text_of(row) for row in header_rows(failing, 118, INK, KEYS, roomy=True))
    assert "rank 0: unrecognized arguments: 2 · the other ranks are being ended" in said


@pytest.mark.parametrize(
    ("world", "most", "done", "said"),
    [
        (4, 2, 1, " · all ranks are being restarted"),
        (4, 2, 2, " · the other ranks are being ended"),
        (1, 2, 1, " · it is being restarted"),
        (1, 0, 0, ""),
    ],
)
def test_the_header_says_what_follows_on_a_failure(world: int, most: int, done: int, said: str) -> None:
    """A restart as long as one is left; the end of other ranks where there are others."""
    restarts = tuple(Restart(number + 1, NOW, 10) for number in range(done))
    failing = frame(cause="rank 0: bad lr", world=world, max_restarts=most, restarts=restarts)
    assert message(failing, KEYS)[0] == f"rank 0: bad lr{said}"


def test_the_header_says_what_a_restart_waits_for() -> None:
    """A machine that is gone keeps torchrun waiting: that is what has to be mended."""
    waiting = frame("silent", cause="host node2 gone (rank 1)", launched=True, awaits="1 of 2 hosts", max_restarts=3)
    assert message(waiting, KEYS)[0] == "host node2 gone (rank 1) · a new start waits for 1 of 2 hosts"


@pytest.mark.parametrize(("every", "said"), [(1, False), (8, True)])
def test_the_header_says_that_few_steps_are_recorded(every: int, *, said: bool) -> None:
    """The numbers are of these steps; where each is recorded nothing is said of it."""
    rows = header_rows(frame(recorded_every=every), 118, INK, KEYS, roomy=True)
    assert ("one step in 8 recorded" in " ".join(map(text_of, rows))) is said


def test_the_header_says_what_to_do() -> None:
    """A verdict, a held, an orphaned and an ended run each say so; where the footer does not, the key that helps."""
    said = [
        " ".join(text_of(row) for row in header_rows(shown_frame, 118, INK, KEYS, roomy=True))
        for shown_frame in (verdict_frame(), frame("paused"), frame(orphaned=True), frame("failed"))
    ]
    assert "rank 2 holds the group back by 31 ms" in said[0]
    assert "held at step 1,284 since " in said[1]
    assert "(00:12): space resumes · no collective open" in said[1]
    assert "k ends them" in said[2]
    assert "exit code 1" in said[3]
    assert "rank 2: ValueError: bad lr" in said[3]
    assert "q leaves" in said[3]


def test_the_header_names_the_ranks_that_a_pause_waits_for() -> None:
    """At once where this dashboard pauses, whatever the state; else those not held yet, and in no collective."""
    keys = " · space cancels · F freezes"
    ours = frame("stalled", waiting="pausing: waiting for rank 1")
    ranks = tuple(replace(rank, state="paused" if rank.rank != 2 else "running") for rank in frame().ranks)
    inside = tuple(replace(rank, state="running", outstanding=int(rank.rank != 2)) for rank in ranks)
    for shown_frame, named in (
        (ours, "rank 1"),
        (frame("pausing", ranks=ranks), "rank 2"),
        (frame("pausing", ranks=inside), "rank 2"),
    ):
        rows = header_rows(shown_frame, 78, INK, KEYS, roomy=False)
        assert text_of(rows[2]) == f"pausing: waiting for {named}{keys}"


def stepped(at: float) -> Frame:
    """Return the frame, at a moment, of two ranks that completed a step of 81.3 ms at 10 s, and none since."""
    store = Store(Run("toy-1", "id", "toy.py", (), 2, "gloo", "cpu", 10**9, True))
    wall, own = 81_300_000, 60_000_000
    for rank in (0, 1):
        last = wire.Step(1, 300, 10 * 10**9, wall, 7_100_000, own, 0, 0, wall - own, 0, 0.8764, 32)
        for heard in (10.0, at):
            beat = wire.Beat(rank, int(heard * 1e9), "running", "backward", 300, 10 * 10**9, 0, total_steps=1000)
            store.apply(beat, heard)
            store.apply(wire.Steps(rank, (last,)), heard)
    return frame_at(store, at)


@pytest.mark.parametrize(
    ("known", "line"),
    [
        ({"missing_steps": 20}, "judging: about 20 more steps until a slow rank can be named"),
        ({"missing_steps": 1}, "judging: about 1 more step until a slow rank can be named"),
        ({"named_from_ms": 11.6}, "no slow rank (delays from 12 ms on would be named)"),
        ({"named_from_ms": 0.52}, "no slow rank (delays from 0.5 ms on would be named)"),
        ({"world": 1}, "one rank: there is no other to compare it with"),
        ({}, ""),
        ({"state": "finished", "missing_steps": 20}, ""),
        ({"stands": True, "missing_steps": 20}, ""),
    ],
)
def test_silence_of_the_judge_has_its_reason(known: dict[str, Any], line: str) -> None:
    """Header at 80x24 and `status` say why no rank is named, of a run that makes steps; JSON has the numbers."""
    shown = frame(**{"verdicts": (), "cause": None, **known})
    said = [text_of(row) for row in header_rows(shown, 78, INK, KEYS, roomy=False)]
    for text in ("\n".join(said), "\n".join(card(shown))):
        assert any(word in text for word in ("judging", "no slow rank", "one rank:")) == bool(line)
        assert line in text
    told = status.as_json(shown)
    assert (told["missing_steps"], told["named_from_ms"]) == (shown.missing_steps, shown.named_from_ms)


def test_a_run_that_stands_has_no_rates() -> None:
    """ETA, step time, phases and samples/s are dashes in header, panel, table, `status`, lines; the loss stays."""
    going, still = stepped(10.5), stepped(60.0)
    lines = [text_of(header_rows(each, 78, INK, KEYS, roomy=False)[1]) for each in (going, still)]
    assert re.search(r"ETA 00:5\d +81\.3 ms/step  loss 0\.8764 +\d+ samples/s", lines[0]), lines[0]
    assert re.search(r"ETA +– +– ms/step  loss 0\.8764 +– samples/s", lines[1]), lines[1]
    first = still.ranks[0]
    panel = "\n".join(text_of(row) for row in draw_panel(first, still, Shape(60, 10, False), INK))
    assert re.search(r"step +– ms", panel), panel
    for moves, stands in ((plain.line(going), plain.line(still)), ("\n".join(card(going)), "\n".join(card(still)))):
        assert "81.3" in moves
        assert "81.3" not in stands
    assert "7.1" in "\n".join(card(going))
    assert "7.1" not in "\n".join(card(still))
    columns = columns_of(still)
    assert {column.key for column in columns if column.value(first) == first.step_ms} == set()
    rows = ["\n".join(text_of(row) for row in fact_rows(each.ranks[0], each, 78, INK)) for each in (going, still)]
    assert ["last steps" in row for row in rows] == [False, True]
    assert [status.as_json(each)["standing_s"] for each in (going, still)] == [None, 50.0]


def test_a_run_that_goes_on_without_optimizer_steps_is_not_said_to_stand_still() -> None:
    """Header, card, plain line and JSON say what it does, in the same words; a NaN is said before it."""
    says = "makes no optimizer step since step 8, and goes on: 848 calls in group 0"
    shown = frame("stalled", stands=True, goes_on=says)
    shown = replace(shown, ranks=tuple(replace(rank, step_age_s=50.0) for rank in shown.ranks))
    assert shown.standing_s == 50.0
    assert message(shown, KEYS)[0].startswith(f"{says} · ")
    sick = replace(shown, ranks=(replace(shown.ranks[0], health="loss is nan since step 9"), *shown.ranks[1:]))
    assert message(sick, KEYS)[0] == f"rank 0: loss is nan since step 9 · {says}"
    assert says in card(shown)
    assert status.as_json(shown)["goes_on"] == says


def test_a_narrow_header_keeps_what_matters() -> None:
    """In 80 cells the loss stays before samples/s, and a verdict is there whole, in two rows."""
    text = "rank 2 holds the group back by 31.4 ms a step (38%): all phases, most in data loading, since step 1204"
    found = replace(verdict_frame(), step=1_284_000, total_steps=4_000_000)
    assert found.verdict is not None
    found = replace(found, verdicts=(replace(found.verdicts[0], text=text),))
    rows = [text_of(row) for row in header_rows(found, 78, INK, KEYS, roomy=False)]
    assert "loss 0.8764" in rows[1]
    assert "samples/s" not in rows[1]
    assert " ".join(rows[2:4]) == text
    assert max(map(len, rows)) <= 78


async def test_a_small_screen_tells_the_whole_cause() -> None:
    """At 60x15 neither the cause of an end nor that of a delay is cut: the message has two rows."""
    cause = "rank 1: ValueError: could not read shard 17 of the data set, /data/train/shard-0017.tar is missing"
    text = "rank 2 holds the group back by 31.4 ms a step (38%): data loading, since step 1204"
    found = verdict_frame()
    assert found.verdict is not None
    found = replace(found, verdicts=(replace(found.verdicts[0], text=text),))
    for shown, told in ((replace(frame("failed"), cause=cause), cause), (found, text)):
        app = still_app(shown)
        async with app.run_test(size=(60, 15)) as pilot:
            await settled(pilot)
            rows = [line.strip() for line in seen(app).splitlines()]
            assert told in " ".join(rows[2:4])


@pytest.mark.parametrize("key", ["1", "2", "3", "4"])
async def test_a_few_ranks_leave_the_room_to_the_plot(key: str) -> None:
    """With two ranks at 200x50 each view takes the lines that it needs, and the plot all others."""
    app = still_app(frame(world=2))
    async with app.run_test(size=(200, 50)) as pilot:
        await settled(pilot, key)
        assert app.screen.query_one("#plots").region.height >= 30


def test_percent_and_eta_only_with_a_known_end() -> None:
    """Without a number of steps there is no share and no time left."""
    known, unknown = (
        " ".join(text_of(row) for row in header_rows(frame(total_steps=total), 118, INK, KEYS, roomy=True))
        for total in (4000, None)
    )
    assert "32%" in known
    assert "ETA" in known
    assert "%" not in unknown
    assert "ETA" not in unknown


def test_the_facts_of_a_rank_name_what_is_not_seen() -> None:
    """Where collectives are not hooked it says so; faults and losses of records are there."""
    rank = rank_frame(1, mechanism=None, missed=3, fault="ValueError: in a hook", collective_ms=Calls())
    text = "\n".join(text_of(row) for row in fact_rows(rank, frame(), 80, INK))
    for part in ("not hooked", "3 missed", "ValueError: in a hook", "4712", "node-a", "accuracy", "0.4375"):
        assert part in text
    for width, state in itertools.product((30, 60, 100), STATES):
        rows = fact_rows(rank_frame(1, state, log="/x" * 90, ended=EVIL), frame(state), width, INK)
        assert text_of(rows[0]).startswith("rank 1 of 4")


@pytest.mark.parametrize("width", [30, 46, 100])
def test_a_number_of_a_rank_keeps_its_unit(width: int) -> None:
    """Where a remark has no room beside a number it goes below, without the unit."""
    rows = [text_of(row).split() for row in fact_rows(rank_frame(1), frame(), width, INK)]
    (time,) = (row for row in rows if row[:1] == ["time"])
    assert time[2].startswith("ms")


def test_the_screen_of_a_rank_begins_with_what_it_does() -> None:
    """Phases, all-reduces, loss and histories stand above pid, host and device; a rank that stands still says where."""
    rank = rank_frame(1, coordinates={"dp": 1})
    histories = history_rows(frame(), 1, 80, INK)
    rows = [text_of(row) for row in fact_rows(rank, frame(), 80, INK, histories)]
    titles = [row for row in rows if row and not row.startswith(" ")]
    assert titles[:5] == ["rank 1 of 4  ● running", "step", "communication", "loss", "history"]
    assert titles[5:] == ["custom metrics", "resources", "process", "telemetry"]
    process = rows.index("process")
    for label in ("place", "pid", "host", "device"):
        assert [row.split()[0] for row in rows].index(label) > process
    assert not any(row.startswith("  doing") for row in rows)
    stalled = [text_of(row) for row in fact_rows(replace(rank, state="stalled"), frame("stalled"), 80, INK)]
    assert stalled[1].split() == ["doing", "backward"]


def test_a_rank_that_has_called_no_collective_is_told_from_one_that_nobody_sees() -> None:
    """Where collectives would be seen, the panel and the screen of the rank say that there was none so far."""
    for communicated, panel, screen in ((False, "no collective so far", "no collective so far"),
                                        (None, "not seen: open the rank", "not hooked")):  # fmt: skip
        rank = rank_frame(1, mechanism=None, collective_ms=Calls(), communicated=communicated)
        drawn = "\n".join(map(text_of, draw_panel(rank, frame(), Shape(50, 10, False), INK)))
        assert panel in drawn
        assert screen in "\n".join(map(text_of, fact_rows(rank, frame(), 100, INK)))


@pytest.mark.parametrize("width", [24, 38, 60, 118])
def test_the_sentences_of_a_rank_are_not_cut(width: int) -> None:
    """However narrow its screen: all of a cause, a fault and a remark is there, and no line of it is too wide."""
    cause = "exit code 1: RuntimeError: size mismatch for layer4.1.weight: 试试 copying a param with shape [512, 512]"
    rank = rank_frame(
        1, "failed", ended=cause, fault="ValueError: in a hook " * 4, log="/data/" + "long-" * 30 + "rank-1.log",
        memory_total_bytes=None, mechanism=None,
    )  # fmt: skip
    rows = fact_rows(rank, frame("failed", history=None), width, INK)
    text = "".join(text_of(row)[13:].strip() for row in rows).replace(" ", "")
    for whole in (cause, rank.fault or "", rank.log or "", "collectives are not hooked in this process",
                  "resident memory of the process", "of one core, workers included"):  # fmt: skip
        assert whole.replace(" ", "") in text
    first, ended = text_of(rows[0]), [row for row in rows[1:] if width_of(row) > max(width, 34)]
    assert first.startswith("rank 1 of 4")
    assert ended == []


def test_a_panel_names_only_what_differs_between_ranks() -> None:
    """Host and device of all ranks are in the header once; in a panel they have their names, and stand where needed."""

    def last_line(shown: Frame, rank: RankFrame) -> str:
        return text_of(draw_panel(rank, shown, Shape(60, 10, False), INK)[-2]).strip("│ ")

    rank = rank_frame(1, device="cuda:1", host="node-b")
    assert last_line(frame(one_host="node-a", one_device="cpu"), rank_frame(1)) == "pid 4712"
    assert last_line(frame(one_host=None, one_device=None), rank) == "pid 4712  device cuda:1  host node-b"
    assert last_line(frame(one_host="node-b", one_device=None), rank) == "pid 4712  device cuda:1"
    header = text_of(header_rows(frame(), 118, INK, KEYS, roomy=True)[0])
    assert "cpu  on node-a" in header
    shared = frame(device="cuda", one_device="cuda:0")
    assert "cuda:0  on node-a" in text_of(header_rows(shared, 118, INK, KEYS, roomy=True)[0])
    several = frame(device="cuda", one_device=None)
    assert "cuda  on node-a" in text_of(header_rows(several, 118, INK, KEYS, roomy=True)[0])
    assert "on node" not in text_of(header_rows(frame(one_host=None), 118, INK, KEYS, roomy=True)[0])


def said(whole: Frame, width: int = 198) -> str:
    """Return what the header says of a run."""
    return "\n".join(text_of(row) for row in header_rows(whole, width, INK, KEYS, roomy=True))


def test_the_countdown_of_a_freeze_begins_at_the_oldest_step() -> None:
    """A rank may have waited in a collective since its last step, long before the freeze; one that ended does not."""
    ages = (("frozen", 3.0), ("frozen", 135.0), ("failed", 900.0))
    ranks = tuple(rank_frame(rank, state, step_age_s=age) for rank, (state, age) in enumerate(ages))
    frozen = frame("frozen", ranks=ranks, timeout_s=1800.0)
    assert "a collective may fail in 27:45" in said(frozen)
    assert "a collective may fail in" not in said(replace(frozen, timeout_s=None))
    assert "may fail" in said(replace(frozen, timeout_s=130.0))
    first = replace(frozen, ranks=(replace(ranks[0], step=None, step_age_s=None),), started_at=frozen.at - 60)
    assert "a collective may fail in 29:00" in said(first)


def test_an_observer_that_is_still_starting_is_not_told_to_be_gone() -> None:
    """In the first moments of a launch there is none yet; one that was heard and is silent is missed even then."""
    assert "observer" not in said(frame("starting", supervised=False))
    assert "observer is gone" in said(frame("starting", supervised=False, unobserved_s=3.0))
    assert "observer is gone" in said(frame("running", supervised=False))


def test_a_run_whose_ranks_have_all_ended_is_not_told_to_run() -> None:
    """Until the observer has said how it ended; where torchrun may restart the ranks, that is left open."""
    over = frame("running", ranks=tuple(rank_frame(rank, "finished") for rank in range(4)))
    assert "ENDING" in said(over)
    assert "RUNNING" not in said(over)
    assert "all ranks have ended, their launcher has not noticed yet" in said(over)
    assert "launcher" not in said(replace(over, max_restarts=1))
    one_left = (*over.ranks[:3], rank_frame(3))
    assert "RUNNING" in said(replace(over, ranks=one_left))
    assert "FINISHED" in said(frame("finished"))


def test_ranks_that_never_communicated_are_told_after_the_end() -> None:
    """After the exit code, and in the line that the dashboard leaves behind; a verdict on speed is over by then."""
    text = "these ranks do not communicate: 2 trainings of their own?"
    alone = Verdict(1, "no_communication", f"{text} · is the model wrapped in DistributedDataParallel?", 0)
    ended = frame("finished", verdicts=(alone,))
    assert f"exit code 0 · {text}" in said(ended)
    assert text in farewell(ended)[0]
    slow = verdict_frame().verdict
    assert slow is not None
    assert slow.text not in said(frame("finished", verdicts=(slow,)))


def test_wrong_arguments_are_to_be_changed_not_tried_again() -> None:
    """A script that ended with exit code 2 before any step; one that failed later may be started again."""
    again, change = f"{KEYS['run.restart']} starts it again", f"{KEYS['app.launch']} changes the arguments"
    refused = frame("failed", step=None, exit_code=2)
    by_torchrun = frame(
        "failed", step=None, exit_code=1, cause_rank=0, ranks=(rank_frame(0, "failed", ended="exit code 2"),)
    )
    for whole in (refused, by_torchrun):
        assert change in said(whole)
        assert again not in said(whole)
    assert again in said(frame("failed", step=None, exit_code=1))
    assert again in said(frame("failed", exit_code=2))


@pytest.mark.parametrize("width", [78, 118, 198])
def test_a_hang_is_told_whole_and_before_all_else(width: int) -> None:
    """Its cause in the first words of the header, the whole line, the time that is left, and what can be done."""
    rows = [text_of(row).strip() for row in header_rows(hung_frame(), width, INK, KEYS, roomy=False)]
    assert "RANK 1 HANGS" in rows[0]
    verdict = hung_frame().verdict
    assert verdict is not None
    assert " ".join(rows[2:-1]) == verdict.text
    assert rows[-1] == "gloo's timeout in 1,742 s · s stacks · k kill"
    assert len(rows) <= 5
    other = " ".join(text_of(row) for row in header_rows(hung_frame(backend="nccl"), width, INK, KEYS, roomy=False))
    assert "nccl's timeout in 1,742 s" in other


def test_how_a_stopped_rank_goes_on_is_told_where_there_is_room() -> None:
    """The command with its process, behind the keys; a clause that does not fit is left out whole."""
    hung = hung_frame()
    assert hung.verdict is not None
    verdict = msgspec.structs.replace(hung.verdict, hang=wire.Hang("stopped", (1,)))
    shown = replace(hung, verdicts=(verdict,))
    for width in (20, 118):
        last = text_of(header_rows(shown, width, INK, KEYS, roomy=False)[-1]).strip()
        does = f" · kill -CONT {hung.ranks[1].pid} lets it go on, unless a debugger holds it"
        assert last == f"s stacks · k kill{does if width > 20 else ''}"


def test_a_hang_is_told_in_every_state_but_one_that_somebody_brought_about() -> None:
    """Ranks that are stopped are silent, one that never comes keeps a run starting; a pause is told as the pause."""
    for state in ("starting", "running", "stalled", "silent"):
        assert message(replace(hung_frame(), state=state), KEYS)[1] == "bold level-error", state
    for state in ("paused", "frozen", "killing", "failed"):
        shown = replace(hung_frame(), state=state)
        assert "RANK 1 HANGS" not in said(shown)
        assert "hangs" not in message(shown, KEYS)[0], state


def test_a_run_that_only_stands_accuses_nobody() -> None:
    """A long save is told in no color of an error; no rank is marked, and no kill is proposed."""
    text = "rank 0 saves a checkpoint (train.py:88); 3 ranks wait · 21 s"
    verdict = Verdict(3, "standing", text, 0, rank=0, hang=wire.Hang("working", (0,)))
    shown = replace(hung_frame(), verdicts=(verdict,))
    assert message(shown, KEYS) == (text, "value")
    assert "HANGS" not in said(shown)
    assert "kill" not in said(shown)
    assert "timeout" not in said(shown)
    assert "s shows where each rank stands" in said(shown)
    assert "◀ hangs" not in panel_text(shown, 0)


def panel_text(shown: Frame, rank: int) -> str:
    """Return the panel of a rank."""
    return "\n".join(text_of(row) for row in draw_panel(shown.ranks[rank], shown, Shape(60, 10, False), INK))


def test_the_cause_of_a_hang_is_marked_among_the_ranks() -> None:
    """In its panel and its line of the table; no other rank is."""
    shown = hung_frame()
    assert ["◀ hangs" in panel_text(shown, rank) for rank in range(4)] == [False, True, False, False]
    mark = next(column for column in columns_of(shown) if column.key == "mark")
    assert [text_of(mark.draw(rank, shown, INK)) for rank in shown.ranks] == [" ", "◀", " ", " "]


@pytest.mark.parametrize(("width", "shown"), [(78, ["103k tokens/s"]), (118, ["103k tokens/s", "MFU 41.2%"])])
def test_a_header_has_tokens_in_the_place_of_samples_and_mfu_where_there_is_room(width: int, shown: list[str]) -> None:
    """In 80 cells MFU gives way: the table and the rank's screen have it, and tokens say the same."""
    found = replace(frame(), step=1_284, total_steps=4_000, tokens_per_s=103_000.0, mfu=0.412)
    rows = [text_of(row) for row in header_rows(found, width, INK, KEYS, roomy=False)]
    assert [each for each in ("samples/s", "103k tokens/s", "MFU 41.2%") if each in rows[1]] == shown
    assert "loss 0.8764" in rows[1]
    assert max(map(len, rows)) <= width
