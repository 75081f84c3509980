"""The memory of ranks as text: what grew first, and no line wider than a terminal."""

from __future__ import annotations

from pathlib import Path

from ddptop.agent.observer.record.memory import Censused, Kept, RankMemory
from ddptop.agent.wire import DeviceMemory, MemoryUse, ObjectKind, Resident
from ddptop.tui.model.diagnosis import memory

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
    (DeviceMemory("cuda:0", 3 << 30, 5 << 30, 0, MIB, 4 << 30, "/run/memory/0003/rank-1.pickle"),),
    1_400_000_000, 300_000_000,
)  # fmt: skip
QUIET = "nothing grew in 3 steps"
KEPT = Kept(
    "0003",
    Path("/run/memory/0003"),
    Censused("r", 1.5e9, 1, (RankMemory(1, "", CAUSE, USE), *(RankMemory(rank, "", QUIET, USE) for rank in (0, 2, 3)))),
)


def test_what_grew_comes_first_and_fits_a_terminal() -> None:
    """Ranks of which the same is said stand together, and the table is of the rank that grew most."""
    text = memory.text(KEPT)
    assert max(map(len, text)) <= 80
    assert text[0].startswith("memory 0003: ranks 0-3 over steps 120 to 122, ")
    assert " ".join(each.strip() for each in text[1:3]) == f"rank 1: {CAUSE}"
    assert text[3] == "ranks 0, 2-3: nothing grew in 3 steps"
    rows = [each.split("  ") for each in text]
    assert [each.strip() for each in rows[6] if each.strip()][1:] == ["1,840", "3.59 GiB", "+3", "+6 MiB"]
    assert text[7] == "    made at train.py:52, held by list `kept` of main()"
    assert any(each.startswith("Parameter float32[1000, 512] on cuda:0") for each in text)
    assert "and 900 more kinds: --json has 3 of them" in text
    whole = " ".join(each.strip() for each in text)
    assert "resident memory: anonymous 3.81 GiB (+6 MiB), mapped files 315 MiB, shared 0 B" in whole
    assert "given out by the C heap: 3.61 GiB (+6 MiB) freed, and kept by the C heap: 40 MiB" in whole
    assert "cuda:0: allocated 3.00 GiB of 5.00 GiB (+1 MiB) reserved, at most 4.00 GiB" in whole
    assert "/run/memory/0003/rank-1.pickle" in whole
    assert "the two counts held the rank for 1.4 s" in whole
    assert text[-1] == "the table is of rank 1; --ranks names another one"


def test_the_screen_says_the_same() -> None:
    """With the ranks beside their sentences; without any, that there is none."""
    lines = memory.newest([KEPT])
    assert (lines[2].label, lines[2].text) == ("rank 1", CAUSE)
    assert [each.text for each in memory.newest([])] == ["no look at the memory is kept with this run"]


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


def test_each_that_is_kept_has_a_line() -> None:
    """With what grew most."""
    (line,) = memory.listing([KEPT])
    assert line.startswith("0003  ")
    assert line.endswith(f"steps 120 to 122  ranks 0-3  {CAUSE}")
