"""The fault matrix grades what is said of a run, as its table tells."""

from __future__ import annotations

from typing import Any

import pytest
from faulty import cases
from faulty.grading import Grade, Line, grade, is_told

NOTE = {"at": 100.0, "ranks": [1], "kinds": ["not_entered"], "says": "(?i)did not enter", "line": "hangs.py:23"}
"""What a program says that breaks on rank 1 at second 100."""
RIGHT = {"class": "not_entered", "ranks": [1], "where": "hangs.py:23 sleep"}


def line(at: float, *hangs: dict[str, Any], cause: str | None = None, rank: int | None = 1) -> Line:
    """Return a line of `watch --json`, with what the grading reads of it."""
    verdicts = [{"kind": "hang", "rank": rank, "text": f"it hangs, {at:.0f} s", "hang": hang} for hang in hangs]
    return {"at": at, "verdicts": verdicts, "cause": cause, "orphaned": False}


def graded(*lines: Line, report: dict[str, Any] | None = None, **note: Any) -> Grade:
    return grade({**NOTE, **note}, lines, report, 2)


def test_a_hang_that_is_told_rightly():
    """Rank, class and line are right, and the seconds are those from the fault to the first line that says it."""
    found = graded(line(99), line(101), line(104.5, RIGHT), line(105, RIGHT))
    assert (found.rank, found.kind, found.line, found.seconds, found.alarms) == (True, True, True, 4.5, [])


@pytest.mark.parametrize(
    ("hang", "right"),
    [
        ({**RIGHT, "class": "spinning"}, (True, False, True)),
        ({**RIGHT, "ranks": [0]}, (False, True, True)),
        ({**RIGHT, "ranks": [0, 1]}, (False, True, True)),
        ({**RIGHT, "where": "hangs.py:24 sleep"}, (True, True, False)),
        ({**RIGHT, "where": None}, (True, True, False)),
    ],
)
def test_each_part_is_graded_by_itself(hang, right):
    """Another class, another rank, one rank too many, another line and no line are wrong each, and nothing else is."""
    found = graded(line(104, hang))
    assert (found.rank, found.kind, found.line) == right
    assert (found.seconds is None) == (not (found.rank and found.kind))


def test_a_mind_that_changes():
    """What is said at last is graded; the seconds are those to the first that is right."""
    found = graded(line(103, {**RIGHT, "class": "waiting"}), line(104, RIGHT), line(110, {**RIGHT, "class": "data"}))
    assert (found.rank, found.kind, found.seconds) == (True, False, 4.0)
    found = graded(line(104, RIGHT), line(110, {**RIGHT, "ranks": [0]}))
    assert (found.rank, found.kind, found.seconds, len(found.alarms)) == (False, True, 4.0, 1)


def test_false_alarms():
    """A hang before the fault is one, whoever is named; later one of another rank is; each counts once."""
    other = {**RIGHT, "ranks": [0]}
    early = graded(line(97, RIGHT), line(98, RIGHT), line(104, RIGHT))
    assert len(early.alarms) == 1
    wrong = graded(line(102, other, rank=0), line(103, other, rank=0), line(104, RIGHT))
    assert (len(wrong.alarms), wrong.rank, wrong.seconds) == (1, True, 4.0)
    nobody = graded(line(102, {**RIGHT, "class": "all_outside", "ranks": []}, rank=None), line(104, RIGHT))
    assert nobody.alarms == []


def test_a_fault_of_all_ranks():
    """It is right to name none, all, or any of them."""
    for ranks in ([], [1], [0, 1]):
        assert graded(line(104, {**RIGHT, "ranks": ranks}, rank=None), ranks=[0, 1]).rank


def test_a_death_is_graded_by_its_report():
    """The report's rank, kind and line count; the seconds are those to the first line with the cause."""
    report = {
        "cause": "rank 1: ValueError",
        "cause_rank": 1,
        "kind": "exception",
        "ranks": [{"rank": 0, "where": "deaths.py:7 main"}, {"rank": 1, "where": "deaths.py:41 breaks"}],
    }
    dead = {"kinds": ["exception"], "line": "deaths.py:41"}
    found = graded(line(100.4, cause="rank 1: ValueError"), report=report, **dead)
    assert (found.rank, found.kind, found.line, round(found.seconds or 0, 3)) == (True, True, True, 0.4)
    found = graded(line(100.4, cause="rank 1: ValueError"), report={**report, "cause_rank": 0}, **dead)
    assert (found.rank, found.kind, found.line) == (False, True, False)
    found = graded(line(100.4, cause="rank 1: ValueError"), report={**report, "kind": "exit"}, **dead)
    assert (found.rank, found.kind, found.line) == (True, False, True)


def test_the_end_of_the_launcher():
    """No rank is to blame for it, and no kind in the report says it: the words do."""
    report: dict[str, Any] = {
        "cause": "torchrun was killed by SIGKILL",
        "cause_rank": None,
        "kind": "killed",
        "ranks": [],
    }
    found = graded(report=report, ranks=[], kinds=["launcher"], line=None)
    assert (found.rank, found.kind, found.line) == (True, True, None)


def test_a_death_without_a_report():
    """The words of the cause count."""
    found = graded(line(101, cause="rank 1 did not enter all_reduce"))
    assert (found.rank, found.kind, found.line, found.seconds) == (True, True, False, 1.0)
    found = graded(line(101, cause="rank 0: connection closed by peer"))
    assert (found.rank, found.kind, found.seconds, found.alarms) == (False, False, None, [])


def test_a_word_is_waited_for_until_rank_and_class_are_right():
    """The matrix watches on while a hang is told of another class, or of another rank."""
    assert is_told(NOTE, line(104, RIGHT), 2)
    assert not is_told(NOTE, line(104, {**RIGHT, "class": "waiting"}), 2)
    assert not is_told(NOTE, line(104, {**RIGHT, "ranks": [0]}), 2)
    assert not is_told(NOTE, line(104), 2)


def test_the_matrix_has_every_fault_once():
    """Without choice each fault comes once for each world and start; a mesh is left out where it cannot be."""
    found = list(cases.chosen((), (), (2, 4), ("launch",)))
    assert len(found) == 2 * sum("launch" in kind.starts for kind in cases.KINDS)
    assert len({kind.name for kind in cases.KINDS}) == len(cases.KINDS)
    meshes = list(cases.chosen(("sleep",), ("mesh",), (2, 4), ("launch",)))
    assert [each.world for each in meshes] == [4]
