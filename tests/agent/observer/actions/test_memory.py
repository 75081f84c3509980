"""Some ranks take censuses over the same steps, which are kept, and a refusal leaves nothing behind."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.bases import marked

from ddptop.agent import wire
from ddptop.agent.observer.actions.diagnosis import Diagnosed
from ddptop.agent.observer.actions.memory import Censuses, memory
from ddptop.agent.observer.actions.polled import PolledRanks
from ddptop.agent.observer.actions.wait import Wait
from ddptop.agent.record import diagnoses
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.wire.refusals import Cancelled, Hung, Refused

KIND = wire.ObjectKind("tensor", "Tensor", "float32", (8,), "cpu", 9, 1 << 20, 3, 1 << 20, "train.py:52")


class Ranks(PolledRanks):
    """Ranks that make a step whenever somebody asks; the memory of the last one grows."""

    def __init__(self, *steps: int, pace: int = 1, problem: str = "") -> None:
        super().__init__(range(len(steps)))
        self.world = len(steps)
        self.completed = list(steps)
        self.pace = pace
        self.problem = problem
        self.asked: list[set[tuple[str, int, int]]] = [set() for _ in steps]
        self.held = False
        self.cancelled: set[int] = set()
        self.now = 0.0

    def move(self, seconds: float = 0.0) -> None:
        self.now += seconds + 0.001
        self.completed = [step + self.pace for step in self.completed]

    def send(self, command: wire.Command, ranks: Collection[int], timeout_s: float) -> Mapping[int, wire.Reply]:
        self.move()
        return {rank: self._answer(rank, command) for rank in ranks}

    def _answer(self, rank: int, command: wire.Command) -> wire.Reply:
        completed = self.completed[rank]
        if isinstance(command, wire.Query):
            return wire.Reply(0, self.held, "", completed)
        assert isinstance(command, wire.Memory)
        if command.cancelled:
            self.cancelled.add(rank)
            return wire.Reply(0, True)
        if self.problem:
            return wire.Reply(0, False, self.problem)
        asked = command.token, command.first, command.steps
        if asked not in self.asked[rank]:
            if completed >= command.first - 1:
                return wire.Reply(0, False, "has passed it", completed)
            self.asked[rank].add(asked)
        last = command.first + command.steps - 1
        if completed < last:
            return wire.Reply(0, False, "", completed, pending=True)
        kinds = (KIND,) if rank == self.world - 1 else ()
        grown = KIND.grown_bytes if kinds else 0
        # The pages that the C library gives back or takes are more than what leaks.
        resident = wire.Resident(1 << 30, 0, 0, anonymous_grown=-60_000 if kinds else -40_000)
        use = wire.MemoryUse(command.first, last, kinds, tensor_grown=grown, resident=resident)
        return wire.Reply(0, True, "", completed, memory=use)

    def departed(self) -> set[int]:
        return set()

    def unheard(self, ranks: Collection[int]) -> str:
        return ""


def act(path: Path, group: Ranks, /, growing: int | None = None, **changes: Any) -> Diagnosed:
    wait = Wait(lambda: group.now, group.move)
    wait.is_cancelled, wait.hang = changes.pop("cancelled", False), changes.pop("hang", "")
    changes.setdefault("steps", 3)
    return memory(RunDir(marked(path)), group, wire.Act(1, "memory", **changes), growing, wait)


def test_all_are_asked_over_the_same_steps_and_that_is_kept(tmp_path: Path) -> None:
    """The rank that grew most first, with its sentence."""
    ranks = Ranks(10, 12, 11)
    made = act(tmp_path, ranks)
    kept = diagnoses.read("memory", made.folder)
    assert kept is not None
    assert kept.number == "0001"
    assert [each.rank for each in kept.found.ranks] == [2, 0, 1]
    assert {(each.use.first, each.use.last) for each in kept.found.ranks} == {(16, 18)}
    assert kept.found.ranks[0].cause == "train.py:52 made 3 more float32[8] in 3 steps (1 MiB)"
    assert kept.found.ranks[1].cause == "nothing grew in 3 steps"
    assert kept.found.sentences == [
        ("rank 2", kept.found.ranks[0].cause),
        ("ranks 0-1", "nothing grew in 3 steps"),
    ]
    assert made.finding == f"rank 2: {kept.found.ranks[0].cause}"
    assert act(tmp_path, Ranks(1, 1), ranks=(1,)).finding == kept.found.ranks[0].cause
    assert [(each.number, len(each.found.ranks)) for each in diagnoses.kept(RunDir(tmp_path), "memory")] == [
        ("0002", 1),
        ("0001", 3),
    ]


def test_the_rank_whose_memory_grows_is_asked_alone(tmp_path: Path) -> None:
    """Without a verdict those that are named for this."""
    ranks = Ranks(5, 5, 5)
    act(tmp_path, ranks, 2, culprit=True, ranks=(0, 1))
    assert [bool(each) for each in ranks.asked] == [False, False, True]
    ranks = Ranks(5, 5, 5)
    act(tmp_path, ranks, culprit=True, ranks=(0, 1))
    assert [bool(each) for each in ranks.asked] == [True, True, False]


@pytest.mark.parametrize(
    ("ranks", "changes", "reason"),
    [
        (Ranks(5, 5), {"culprit": True}, "no verdict says that the memory of a rank grows"),
        (Ranks(5, 5), {"ranks": (0, 7)}, "rank 7: not in this run, or ended"),
        (Ranks(5, 5), {"steps": 1001}, "over 1 to 1000 steps"),
        (Ranks(5, 5, problem="its script has ended before these steps"), {}, "rank 0: its script has ended"),
        (Ranks(5, 5, pace=0), {}, "no step within 60 s; `ddptop stacks` shows why"),
    ],
)
def test_a_refusal_says_why_and_leaves_nothing(
    tmp_path: Path, ranks: Ranks, changes: dict[str, Any], reason: str
) -> None:
    """No folder of a census that is not made."""
    with pytest.raises(Refused, match=reason):
        act(tmp_path, ranks, **changes)
    assert not list((tmp_path / "memory").glob("*"))


def test_without_room_on_the_disk_no_rank_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be held for a census that cannot be kept."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    ranks = Ranks(5, 5)
    with pytest.raises(Refused, match="no room: less than 16 MiB is free at"):
        act(tmp_path, ranks)
    assert not any(ranks.asked)


def test_a_paused_run_has_no_steps(tmp_path: Path) -> None:
    """It is to be resumed first."""
    ranks = Ranks(5, 5, pace=0)
    ranks.held = True
    with pytest.raises(Refused, match="resume it first"):
        act(tmp_path, ranks)


@pytest.mark.parametrize(("given", "refusal"), [({"cancelled": True}, Cancelled), ({"hang": "rank 1 hangs"}, Hung)])
def test_a_wait_ends_when_it_has_to(tmp_path: Path, given: dict[str, Any], refusal: type[Refused]) -> None:
    """Somebody cancels it, or the run hangs; the ranks hear that nobody waits for them."""
    ranks = Ranks(5, 5, pace=0)
    with pytest.raises(refusal):
        act(tmp_path, ranks, **given)
    assert ranks.cancelled == {0, 1}
    assert not list((tmp_path / "memory").glob("*"))


def test_what_is_no_census_is_not_shown(tmp_path: Path) -> None:
    """Whatever else is in the folder."""
    folder = act(tmp_path, Ranks(5, 5)).folder
    (folder / "memory.json").write_text('{"run": 1}')
    assert diagnoses.read("memory", folder) is None
    assert diagnoses.kept(RunDir(tmp_path), "memory") == []


def test_ranks_that_are_waited_for_are_named_by_their_spans(tmp_path: Path) -> None:
    """A line has no room for eight numbers."""
    line = Censuses(tmp_path / "0001", 3).waiting(4, {0: 6, 1: 5, 2: 6, 5: 7})
    assert line == "looking at the memory over steps 5 to 7: ranks 0-2, 5 at step 5"
