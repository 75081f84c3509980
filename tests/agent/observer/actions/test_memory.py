"""Some ranks take censuses over the same steps, which are kept, and a refusal leaves nothing behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fakes.acting import Acting, over_steps

from ddptop.agent import wire
from ddptop.agent.observer.actions.memory import Censuses
from ddptop.agent.rank.ahead import Passed, Unanswered
from ddptop.agent.record import diagnoses
from ddptop.agent.wire.diagnoses.kept import Censused, Kept

KIND = wire.ObjectKind("tensor", "Tensor", "float32", (8,), "cpu", 9, 1 << 20, 3, 1 << 20, "train.py:52")
HUNG = wire.Verdict(1, "hang", "rank 1 hangs", 1, hang=wire.Hang("stopped", (1,)))


class Census:
    """The censuses of one rank."""

    def __init__(self, grows: bool) -> None:
        self.grows = grows
        self.problem = ""
        self.asked: set[tuple[str, int, int]] = set()
        self.is_cancelled = False

    def ask(self, command: wire.Memory, completed: int) -> wire.MemoryUse | None:
        """See `Censuses.ask` of a rank."""
        if self.problem:
            raise Unanswered(self.problem)
        asked = command.token, command.first, command.steps
        if asked not in self.asked and completed >= command.first - 1:
            raise Passed
        self.asked.add(asked)
        last = command.first + command.steps - 1
        if completed < last:
            return None
        kinds = (KIND,) if self.grows else ()
        # The pages that the C library gives back or takes are more than what leaks.
        resident = wire.Resident(1 << 30, 0, 0, anonymous_grown=-60_000 if kinds else -40_000)
        grown = KIND.grown_bytes if kinds else 0
        return wire.MemoryUse(command.first, last, kinds, tensor_grown=grown, resident=resident)

    def cancel(self, token: str) -> None:
        """Take none."""
        self.is_cancelled = True


class Group(Acting):
    """Ranks of which the memory of the last one grows."""

    def __init__(self, folder: Path, *steps: int) -> None:
        super().__init__(folder, *steps)
        self.censuses = [Census(rank.rank == len(steps) - 1) for rank in self.ranks]
        for rank, census in zip(self.ranks, self.censuses, strict=True):
            rank.diagnoses = over_steps({"censuses": census})

    @property
    def who(self) -> list[bool]:
        """Say of each rank whether it was asked."""
        return [bool(each.asked) for each in self.censuses]

    @property
    def kept(self) -> list[Kept[Censused]]:
        """The censuses that are kept, the newest first."""
        return diagnoses.kept(self.directory, "memory")


@pytest.fixture
def group_of(tmp_path: Path) -> Iterator[Callable[..., Group]]:
    """Make a group of ranks that have done so many steps."""
    made: list[Group] = []

    def make(*steps: int) -> Group:
        made.append(Group(tmp_path, *steps))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_all_are_asked_over_the_same_steps_and_that_is_kept(group_of: Callable[..., Group]) -> None:
    """The rank that grew most first, with its sentence."""
    group = group_of(10, 12, 11)
    made = group.act("memory", steps=3)
    (kept,) = group.kept
    assert (made.text, kept.number) == (str(group.directory.diagnoses("memory") / "0001"), "0001")
    assert [each.rank for each in kept.found.ranks] == [2, 0, 1]
    ((first, last),) = {(each.use.first, each.use.last) for each in kept.found.ranks}
    assert last == first + 2
    assert kept.found.ranks[0].cause == "train.py:52 made 3 more float32[8] in 3 steps (1 MiB)"
    assert kept.found.ranks[1].cause == "nothing grew in 3 steps"
    assert kept.found.sentences == [
        ("rank 2", kept.found.ranks[0].cause),
        ("ranks 0-1", "nothing grew in 3 steps"),
    ]
    assert group.texts == [f"memory 0001: rank 2: {kept.found.ranks[0].cause} · ada"]
    group = group_of(1, 1)
    assert group.act("memory", steps=3, ranks=(1,)).done
    assert group.texts == [f"memory 0002: {kept.found.ranks[0].cause} · ada"]
    assert [(each.number, len(each.found.ranks)) for each in group.kept] == [("0002", 1), ("0001", 3)]


def test_the_rank_whose_memory_grows_is_asked_alone(group_of: Callable[..., Group]) -> None:
    """Without a verdict those that are named for this."""
    group = group_of(5, 5, 5)
    group.second(growing=2)
    assert group.act("memory", steps=3, culprit=True, ranks=(0, 1)).done
    assert group.who == [False, False, True]
    group = group_of(5, 5, 5)
    assert group.act("memory", steps=3, culprit=True, ranks=(0, 1)).done
    assert group.who == [True, True, False]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"culprit": True}, "no verdict says that the memory of a rank grows"),
        ({"ranks": (0, 7)}, "rank 7: not in this run, or ended"),
        ({"steps": 1001}, "over 1 to 1000 steps"),
        ({"problem": "its script has ended before these steps"}, "rank 0: its script has ended"),
        ({"pace": 0}, "no step within 60 s; `ddptop stacks` shows why"),
        ({"is_paused": True}, "resume it first"),
        ({"free": 1 << 20}, "no room: less than 16 MiB is free at"),
    ],
)
def test_a_refusal_says_why_and_leaves_nothing(
    group_of: Callable[..., Group], monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], reason: str
) -> None:
    """No folder of a census that is not made; without room on the disk no rank is asked for one."""
    group = group_of(5, 5)
    if (free := changes.pop("free", None)) is not None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    if changes.pop("is_paused", False):
        group.act("pause")
    for rank in group.ranks:
        rank.pace = changes.get("pace", 1)
    group.censuses[0].problem = changes.pop("problem", "")
    changes.pop("pace", None)
    assert reason in group.act("memory", **{"steps": 3} | changes).text
    assert free is None or group.who == [False, False]
    assert not list(group.directory.diagnoses("memory").glob("*"))


def test_a_wait_ends_when_it_has_to(group_of: Callable[..., Group]) -> None:
    """Somebody cancels it, or the run hangs; the ranks hear that nobody waits for them."""
    for hang, refusal in ((None, "cancelled"), (HUNG, "hung")):
        group = group_of(5, 5)
        for rank in group.ranks:
            rank.pace = 0
        asker = group.ask("memory", steps=3)
        assert group.waits().startswith("looking at the memory over steps 8 to 10: ranks 0-1 at step 5")
        if hang is None:
            group.cancel(asker)
        group.second(hang=hang)
        assert group.reply(asker).refusal == refusal
        group.turn()
        assert [each.is_cancelled for each in group.censuses] == [True, True]
        assert not list(group.directory.diagnoses("memory").glob("*"))


def test_what_is_no_census_is_not_shown(group_of: Callable[..., Group]) -> None:
    """Whatever else is in the folder."""
    group = group_of(5, 5)
    assert group.act("memory", steps=3).done
    (group.directory.diagnoses("memory") / "0001" / "memory.json").write_text('{"run": 1}')
    assert group.kept == []


def test_ranks_that_are_waited_for_are_named_by_their_spans(tmp_path: Path) -> None:
    """A line has no room for eight numbers."""
    line = Censuses(tmp_path / "0001", 3).waiting(4, {0: 6, 1: 5, 2: 6, 5: 7})
    assert line == "looking at the memory over steps 5 to 7: ranks 0-2, 5 at step 5"
