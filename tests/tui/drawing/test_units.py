"""Numbers keep their width; foreign text loses everything a terminal could act on."""

from __future__ import annotations

import functools
import random

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from ddptop.agent.client.frame import Frame
from ddptop.agent.text import clean
from ddptop.agent.wire.frames import RankFrame
from ddptop.tui.cli.output.plain import line, summary
from ddptop.tui.cli.output.status import as_json
from ddptop.tui.drawing import units

RANK = RankFrame(rank=0, state="running", activity="forward", step=12)
FRAME = Frame(run="toy-1", state="running", program="toy.py", world=1, at=0.0, step=12, ranks=(RANK,))

HOSTILE = [
    ("plain", "plain"),
    ("\x1b[31mred\x1b[0m", "red"),
    ("\x1b]0;title\x07after", "after"),
    ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("\x1bPq#0;2\x1b\\sixel", "sixel"),
    ("\x9b2Jc1", "c1"),
    ("a\tb\rc\x00\x07\x7f", "a    b c"),
    ("\u202egnp.exe\u200b\u2066", "gnp.exe"),
    ("z\u0310\u0321algo", "zalgo"),
    ("e\u0301", "é"),
    ("[bold]kept[/]", "[bold]kept[/]"),
    ("line\u2028two", "line two"),
]


@pytest.mark.parametrize(("raw", "expected"), HOSTILE)
def test_known_tricks_are_taken_out(raw: str, expected: str) -> None:
    """Escape sequences, controls, direction marks and combining marks go, the text stays."""
    assert clean(raw) == expected


def test_no_random_text_keeps_an_unprintable_character() -> None:
    """Whatever comes in, what goes out is one printable line of bounded length."""
    rng = random.Random(5)
    for _ in range(2000):
        raw = "".join(chr(rng.choice([rng.randrange(0xA0), rng.randrange(0xD800)])) for _ in range(40))
        out = clean(raw, limit=30)
        assert out == "" or out.isprintable()
        assert len(out) <= 30


@pytest.mark.parametrize(
    ("write", "width"),
    [
        (units.milliseconds, 6),
        (units.short_milliseconds, 4),
        (units.rate, 5),
        (units.share, 6),
        (units.flops, 10),
        (units.age, 6),
        (units.loss, 7),
        (functools.partial(units.loss, unsure=True), 7),
        (units.percent, 4),
    ],
)
def test_numbers_keep_their_width(write: object, width: int) -> None:
    """From nothing known up to absurd sizes, a number takes the same cells."""
    values = [None, 0.0, 0.004, 0.5, 9.94, 9.95, 9.96, 99.4, 999.94, 999.96, 1e3, 9999.4]
    values += [1e4, 99_999.4, 1e5, 3e6, 9e6, 1.4e-11, -1.4e-11, -1.5e-30, float("nan")]
    for value in values:
        text = write(value)  # type: ignore[operator]
        assert cell_len(text) == width, (value, text)


@pytest.mark.parametrize("value", [1.4e-11, 1.25e-5, -1.2e-5, 0.0123, 3.5e7])
def test_small_and_large_numbers_keep_significant_digits(value: float) -> None:
    """On screens, in the plain output and in JSON a number reads back as itself, or as near as its cells allow."""
    frame = replace(FRAME, loss=value, ranks=(replace(RANK, loss=value, metrics={"f": value}),))
    rank = as_json(frame)["ranks"][0]
    assert rank["loss"] == rank["metrics"]["f"] == value
    (plain,) = (part for part in line(frame).split("  ") if part.startswith("loss "))
    for text in (plain.removeprefix("loss "), summary(frame)[1].split(" f ")[1].split(";")[0], units.number(value)):
        assert float(text) == value
    assert len(units.loss(value)) == 7
    assert float(units.loss(value)) == pytest.approx(value, rel=0.05)


@pytest.mark.parametrize("power", range(44))
def test_sizes_keep_their_width(power: int) -> None:
    """From a byte to terabytes it takes eight cells."""
    for factor in (1.0, 1.37, 1.99):
        assert len(units.size(int(2**power * factor))) == 8


def test_unknown_is_a_dash_and_never_zero() -> None:
    """None is drawn as a dash by every unit."""
    for write in (units.count, units.milliseconds, units.short_milliseconds, units.rate, units.age, units.loss):
        assert write(None).strip() == units.DASH
    for other in (units.size, units.percent, units.duration, units.share, units.flops):
        assert other(None).strip() == units.DASH


def test_fitting_counts_cells_not_characters() -> None:
    """Wide characters take two cells, and the ellipsis shows the cut."""
    assert units.fit("漢字漢字", 5) == "漢字…"
    assert cell_len(units.fit("漢字漢字", 4)) == 4
    assert cell_len(units.fit("漢字", 3)) == 3
    assert units.fit("ab", 4) == "ab  "
    assert units.shorten("abc", 3) == "abc"


@pytest.mark.parametrize("width", [-3, 0, 1, 2])
@pytest.mark.parametrize("text", ["ab cd", "a\u0301 \u0301", "漢 字", "\u0301", ""])
def test_a_screen_without_room_breaks_no_text(text: str, width: int) -> None:
    """A terminal may be one cell wide: every character is still in some line, and a line has one at least."""
    for lines in (units.wrapped(text, width), units.chopped(text, width)):
        assert lines
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert not text or all(lines)


def test_a_text_is_broken_between_words() -> None:
    """No line is wider than asked for, no word is broken that fits into a line, and nothing is lost."""
    assert units.wrapped("one two three", 7) == ["one two", "three"]
    assert units.wrapped("  12.5", 20) == ["  12.5"]
    assert units.wrapped("", 5) == [""]
    assert units.wrapped("abcdefgh ij", 3) == ["abc", "def", "gh", "ij"]
    rng = random.Random(2)
    for _ in range(200):
        text = "".join(rng.choice(["a", "bc ", "试", " ", "défg", "x\n"]) for _ in range(rng.randrange(60)))
        lines = units.wrapped(text, 9)
        assert all(cell_len(line) <= 9 for line in lines)
        assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize("width", [1, 2, 3, 9, 30])
@pytest.mark.parametrize(
    "text", ["/tmp/projects/experiments/model/train.py", "/home/世界/模型/训练/实验/数据/程序.py", "a.py", ""]
)
def test_a_path_without_room_keeps_its_end(text: str, width: int) -> None:
    """It never takes more cells than there are, and begins and ends as the whole."""
    shown = units.shorten_middle(text, width)
    assert cell_len(shown) <= width
    if cell_len(text) <= width:
        assert shown == text
    elif width > 8:
        begin, end = shown.split("…")
        assert text.startswith(begin.rstrip())
        assert text.endswith(end)
        assert len(end) >= width // 3


def test_a_table_is_aligned_by_cells() -> None:
    """A letter of two cells counts for two, so that what stands behind it is in one column."""
    rows = [("試験", "1", "ends"), ("abc", "12", "ends")]
    for left in (None, 1):
        assert len({cell_len(line.partition("ends")[0]) for line in units.aligned(rows, left)}) == 1
