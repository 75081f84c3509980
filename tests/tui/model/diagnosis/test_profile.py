"""A profile as lines that fit a terminal."""

from __future__ import annotations

from pathlib import Path

from ddptop.agent.wire.diagnoses.kept import Difference, Kept, Summary
from ddptop.tui.drawing.units import COLUMNS
from ddptop.tui.model.diagnosis import profile


def test_the_table_fits_a_narrow_terminal() -> None:
    """Whatever the names and numbers; shapes have a line of their own, from the first on that differs."""
    long, shape = "autograd::engine::evaluate_function: " + "x" * 60, "[64, 32, 16, 16], " * 3
    operators = [
        Difference(long, 12_345.6, 1_234.5, 11_111.1, 1000, 1000, [f"{shape}[1]", "[7]"], [f"{shape}[2]", "[7]"]),
        Difference("aten::mm", 2.0, 1.0, 1.0, 3, 3, ["[5]", "[8, 2], [4]"], ["[5]", "[9, 2], [4]"]),
        Difference("aten::add", 2.0, 1.0, 1.0, 3, 3, [], []),
    ]
    kept = Kept("0001", Path("trace.json.gz"), 1, Summary("r", (5, 7), [0, 1], 1, 0, 0.0, [], operators, 4))
    lines = [line.text for line in profile.lines(kept, 2)]
    table = lines[lines.index("") + 2 : -3]
    assert max(map(len, table)) <= COLUMNS
    assert [line.split()[0] for line in table] == ["own", "engine:", "…[1]", "aten::mm", "[8,", "aten::add", "and"]
    assert [line.strip() for line in table if " against " in line] == [
        "…[1] against …[2]",
        "[8, 2], [4] against [9, 2], [4]",
    ]
