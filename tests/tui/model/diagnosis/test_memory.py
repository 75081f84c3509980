"""The memory of ranks as text: what grew first, and no table wider than a terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from msgspec import structs

from ddptop.agent.wire import DeviceMemory, MemoryUse, ObjectKind, Resident
from ddptop.agent.wire.diagnoses.kept import Censused, Kept, RankMemory
from ddptop.tui.drawing.units import COLUMNS
from ddptop.tui.model.diagnosis import memory
from ddptop.tui.model.diagnosis.report import plain

MIB = 1 << 20
CAUSE = "train.py:52 made 3 more float32[64, 32, 256] in 3 steps (6 MiB), held by list `kept` of main()"
LEAK = ObjectKind(
    "tensor",
    "Tensor",
    "float32",
    (64, 32, 256),
    "cpu",
    1840,
    3680 * MIB,
    3,
    6 * MIB,
    "train.py:52",
    "list `kept` of main()",
)
WEIGHT = ObjectKind("tensor", "Parameter", "float32", (1000, 512), "cuda:0", 1, 2 * MIB)
USE = MemoryUse(
    120, 122, (LEAK, WEIGHT, ObjectKind("object", "dict", count=31_000, bytes=13 * MIB)), 900, 3682 * MIB, 6 * MIB,
    46 * MIB, 2048,
    Resident(3900 * MIB, 315 * MIB, 0, 6 * MIB, heap=3700 * MIB, heap_grown=6 * MIB, heap_kept=40 * MIB),
    (
        DeviceMemory("cuda:0", 3 << 30, 5 << 30, 0, MIB, 4 << 30, "/run/memory/0003/rank-1.pickle"),
        DeviceMemory("cuda:1", 0, 0, problem="it has no history"),
    ),
    1_400_000_000, 300_000_000,
)  # fmt: skip
QUIET = "nothing grew in 3 steps"
KEPT = Kept(
    "0003",
    Path("/run/memory/0003"),
    1,
    Censused("r", 1.5e9, 1, (RankMemory(1, "", CAUSE, USE), *(RankMemory(rank, "", QUIET, USE) for rank in (0, 2, 3)))),
)


def test_what_grew_comes_first() -> None:
    """Ranks of which the same is said stand together, and the table is of the rank that grew most, with its origin."""
    lines = [plain(line) for line in memory.lines(KEPT, 4)]
    assert lines[0].startswith("memory 0003: ranks 0-3 over steps 120 to 122, ")
    assert lines[2:4] == [f"found:     rank 1: {CAUSE}", f"found:     ranks 0, 2-3: {QUIET}"]
    rows = [line.split("  ") for line in lines]
    assert rows[5][0] == "what lives in rank 1"
    assert [each.strip() for each in rows[6] if each.strip()][1:] == ["1,840", "3.59 GiB", "+3", "+6 MiB"]
    assert lines[7] == "    made at train.py:52, held by list `kept` of main()"
    assert any(each.startswith("Parameter float32[1000, 512] on cuda:0") for each in lines)
    assert "and 900 kinds more" in lines
    assert lines[-9:] == [
        "resident:  anonymous 3.81 GiB (+6 MiB), mapped files 315 MiB, shared 0 B",
        "C heap:    3.61 GiB (+6 MiB) given out, 40 MiB freed and kept",
        "Python:    tensors and arrays 3.60 GiB (+6 MiB), other objects 46 MiB (+2 KiB)",
        "cuda:0:    3.00 GiB allocated of 5.00 GiB (+1 MiB) reserved, at most 4.00 GiB",
        "history:   /run/memory/0003/rank-1.pickle, opened by https://docs.pytorch.org/memory_viz",
        "cuda:1:    0 B allocated of 0 B reserved, at most 0 B",
        "history:   it has no history",
        "held:      for 1.4 s, by both counts",
        "more:      3 kinds of each rank: ddptop memory r --list --json",
    ]


def test_the_table_fits_a_terminal() -> None:
    """Whatever the names, and however many kinds there are."""
    long = ObjectKind("object", "x" * 80, count=1, bytes=1, made="y/" * 60 + "a.py:1", holder="z " * 60)
    use = MemoryUse(1, 3, (long, LEAK, *[WEIGHT] * 11), 7)
    text = [
        line.text
        for line in memory.lines(replace(KEPT, found=Censused("r", 1.0, None, (RankMemory(0, "", QUIET, use),))), 1)
    ]
    table = text[text.index("", 3) + 1 : text.index("", 5)]
    assert max(map(len, table)) <= COLUMNS
    assert sum("Parameter" in line for line in table) == 10
    assert table[-1] == "and 8 kinds more"


def test_the_ranks_that_are_left_out_are_named() -> None:
    """Where there are more than are looked at without being named; where others were named, none are left out."""
    first = Censused("r", 1.0, None, tuple(RankMemory(rank, "", QUIET, USE) for rank in (3, *range(3), *range(4, 8))))
    said = {line.label: line.text for line in memory.lines(replace(KEPT, found=first), 12)}
    assert said["left out"] == "ranks 8-11: without --ranks at most 8 are looked at"
    for kept, world in ((replace(KEPT, found=first), 8), (KEPT, 12)):
        assert "left out" not in {line.label for line in memory.lines(kept, world)}


def test_all_that_is_known_is_in_the_json() -> None:
    """What is not known is null."""
    found = memory.as_json(KEPT)
    assert (found["number"], found["steps"], found["accused"]) == ("0003", [120, 122], 1)
    first = found["ranks"][0]
    assert (first["rank"], first["host"], first["cause"]) == (1, None, CAUSE)
    assert first["kinds"][0] == {
        "name": "float32[64, 32, 256]", "kind": "tensor", "type": "Tensor", "dtype": "float32", "shape": [64, 32, 256],
        "device": "cpu", "count": 1840, "bytes": 3680 * MIB, "grown": 3, "grown_bytes": 6 * MIB, "made": "train.py:52",
        "holder": "list `kept` of main()", "graphs": 0,
    }  # fmt: skip
    assert first["resident"]["heap_grown"] == 6 * MIB
    assert first["census_ms"] == 1400.0


def test_each_label_is_followed_by_a_space() -> None:
    """On the screen, too, whose column of labels is ten cells; also that of what there was no time to count."""
    cut = structs.replace(USE, remarks=("9 of 20 objects were counted in this time",))
    lines = memory.lines(replace(KEPT, found=structs.replace(KEPT.found, ranks=(RankMemory(1, "", CAUSE, cut),))), 4)
    assert "remark:    rank 1: 9 of 20 objects were counted in this time" in map(plain, lines)
    assert max(len(line.label) for line in lines) < 10


def test_each_that_is_kept_has_a_line() -> None:
    """With what grew most, and where."""
    (line,) = memory.listing([KEPT])
    assert line.startswith("0003  ")
    assert line.endswith(f"steps 120 to 122  ranks 0-3  rank 1: {CAUSE}")
