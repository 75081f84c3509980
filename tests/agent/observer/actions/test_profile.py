"""The same steps of all chosen ranks are profiled, their traces come together, and a refusal leaves nothing behind."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bases import marked
from support.fakes.acting import Acting, over_steps
from support.harness import WAITING

from ddptop.agent import wire
from ddptop.agent.observer.actions import profile as module
from ddptop.agent.observer.actions.action import Action
from ddptop.agent.observer.actions.profile import OnVerdict
from ddptop.agent.rank.ahead import Passed, Unanswered
from ddptop.agent.run.files import marks
from ddptop.agent.run.switches.thresholds import Profile
from ddptop.agent.wire.diagnoses.kept import Summary

TRACE = bytes(range(256)) * 3_000
"""Longer than two pieces."""
SENTENCES = ["aten::sort takes 18 ms a step on rank 1 and 0.4 ms on rank 0", "aten::add takes 5 ms a step on rank 1"]
COMPARED = "rank 1, which holds the group back, against rank 0"
HUNG = wire.Verdict(1, "hang", "rank 1 hangs", 1, hang=wire.Hang("stopped", (1,)))


class Profiling:
    """The profiles of one rank, which are made once their steps are."""

    def __init__(self) -> None:
        self.problem = ""
        self.asked: set[tuple[str, int, int]] = set()
        self.trace = TRACE
        self.read_at: list[int] = []
        self.cancelled: list[str] = []
        """Tokens of profiles that the rank was said to make no more."""
        self.is_endless = False

    def ask(self, command: wire.Profile, completed: int) -> wire.Profiled | None:
        """See `Profiling.ask` of a rank."""
        if self.problem:
            raise Unanswered(self.problem)
        asked = command.token, command.first, command.steps
        if asked not in self.asked and completed >= command.first - 1:
            raise Passed
        self.asked.add(asked)
        if completed < command.first + command.steps - 1:
            return None
        return wire.Profiled(len(self.trace), (wire.ProfiledStep(command.first, (wire.PhaseSpan(0, 5, "data"),)),))

    def cancel(self, token: str) -> None:
        """Make it no more."""
        self.cancelled.append(token)

    def read(self, token: str, offset: int) -> wire.ProfilePiece:
        """Return a piece."""
        assert any(token == known for known, _, _ in self.asked)
        self.read_at.append(offset)
        at = 0 if self.is_endless else offset
        return wire.ProfilePiece(offset, self.trace[at : at + wire.MOST_OF_PROFILE])


class Group(Acting):
    """Ranks that profile."""

    def __init__(self, folder: Path, *steps: int) -> None:
        super().__init__(folder, *steps)
        self.profiling = [Profiling() for _ in self.ranks]
        for rank, profiling in zip(self.ranks, self.profiling, strict=True):
            rank.diagnoses = over_steps({"profiling": profiling})

    @property
    def folders(self) -> list[str]:
        """The profiles that are kept."""
        return sorted(each.name for each in self.directory.diagnoses("profile").glob("*"))


GroupOf = Callable[..., Group]


@pytest.fixture
def group_of(tmp_path: Path) -> Iterator[GroupOf]:
    """Make a group of ranks that have done so many steps."""
    made: list[Group] = []

    def make(*steps: int, pace: int = 1) -> Group:
        made.append(Group(tmp_path, *steps))
        for rank in made[-1].ranks:
            rank.pace = pace
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return what is said to the process that joins the traces, which is not begun."""
    said: list[dict[str, Any]] = []

    def join(folder: Path, action: Action) -> Iterator[float]:
        said.append(json.loads((folder / "parts.json").read_text()))
        (folder / "trace.json.gz").touch()
        found = Summary("run", (5, 7), [0, 1], 1, 0, 1.5e9, SENTENCES, [], 0, compared=COMPARED)
        (folder / "summary.json").write_bytes(msgspec.json.encode(found))
        yield 0.0

    monkeypatch.setattr(module, "_join", join)
    return said


@pytest.mark.parametrize(("sentences", "finding"), [(SENTENCES, SENTENCES[0]), ([], COMPARED)])
def test_the_finding_is_the_largest_difference(
    group_of: GroupOf,
    joined: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    sentences: list[str],
    finding: str,
) -> None:
    """In the words of the summary, which has them for all who read it; else which ranks were compared."""
    monkeypatch.setattr(sys.modules[__name__], "SENTENCES", sentences)
    group = group_of(5, 5)
    assert group.act("profile", steps=3).text == str(group.directory.diagnoses("profile") / "0001")
    assert group.texts == [f"profile 0001: {finding} · ada"]


@pytest.mark.parametrize("pace", [1, 7, 60])
def test_all_ranks_profile_the_same_steps(group_of: GroupOf, joined: list[dict[str, Any]], pace: int) -> None:
    """Whatever steps they make while they are asked, and the traces of other hosts are whole."""
    group = group_of(10, 12, 11, pace=pace)
    # Of another host is what has no record here.
    folder = Path(group.act("profile", steps=3).text)
    (said,) = joined
    assert [part["rank"] for part in said["ranks"]] == [0, 1, 2]
    first, last = said["steps"]
    assert last == first + 2
    assert all(any(each[1:] == (first, 3) for each in every.asked) for every in group.profiling)
    assert [(folder / part["file"]).read_bytes() for part in said["ranks"]] == [TRACE] * 3
    assert said["ranks"][0]["phases"] == [[first, [[0, 5, "data"]]]]
    # Behind the end of each, so that the rank removes it.
    assert [each.read_at[-1] for each in group.profiling] == [len(TRACE)] * 3


def test_the_accused_rank_is_profiled_with_an_ordinary_one(group_of: GroupOf, joined: list[dict[str, Any]]) -> None:
    """Whoever asks for the culprit need not know who it is."""
    group = group_of(5, 5, 5, 5)
    group.second(blamed=(3, 1))
    group.act("profile", steps=3, culprit=True)
    group.act("profile", steps=3, ranks=(0, 2))
    first, second = joined
    assert (first["asked"], first["culprit"], first["peer"]) == ([1, 3], 3, 1)
    assert (second["asked"], second["culprit"], second["peer"]) == ([0, 2], None, None)
    assert group.folders == ["0001", "0002"]


@pytest.mark.parametrize(
    ("steps", "pace", "changes", "reason"),
    [
        ((5, 5), 1, {"culprit": True}, "no verdict accuses a rank"),
        ((5, 5), 1, {"ranks": ()}, "no rank is named"),
        ((5, 5), 1, {"ranks": (0, 7, 9)}, "ranks 7, 9: not in this run"),
        ((5, 5), 1, {"problem": "its script uses the profiler at this moment"}, "rank 1: its script uses"),
        ((5, 500), 1, {}, "do not share a step count"),
        ((5, 5), 5_000, {}, "too fast"),
        ((5, 5), 0, {}, "no step within 60 s"),
        ((5,) * 65, 1, {}, "65 ranks are too many"),
        ((5, 5), 1, {"is_paused": True}, "resume it first"),
    ],
)
def test_a_refusal_says_why_and_leaves_nothing(
    group_of: GroupOf, joined: list[dict[str, Any]], steps: tuple[int, ...], pace: int, changes: dict[str, Any],
    reason: str,
) -> None:  # fmt: skip
    """The folder of a profile that is not made is removed."""
    group = group_of(*steps, pace=pace)
    group.profiling[1].problem = changes.pop("problem", "")
    if changes.pop("is_paused", False):
        group.act("pause")
    assert reason in group.act("profile", steps=3, **changes).text
    assert not joined
    assert group.folders == []


def test_a_wait_ends_when_it_has_to(group_of: GroupOf, joined: list[dict[str, Any]]) -> None:
    """Somebody cancels it, or the run hangs; the ranks would make it all the same."""
    for hang, refusal in ((None, "cancelled"), (HUNG, "hung")):
        group = group_of(5, 5, pace=0)
        asker = group.ask("profile", steps=3)
        group.waits()
        if hang is None:
            group.cancel(asker)
        group.second(hang=hang)
        assert group.reply(asker).refusal == refusal
        group.turn()
        assert group.folders == []
        ((token, _, _),) = group.profiling[0].asked
        assert [each.cancelled for each in group.profiling] == [[token], [token]]


def test_a_lost_piece_of_a_trace_is_asked_for_once_more(group_of: GroupOf, joined: list[dict[str, Any]]) -> None:
    """Its answer may get lost between hosts; the copy is whole."""
    group = group_of(5, 5)
    group.lost = {(0, wire.ReadProfile), (1, wire.ReadProfile)}
    folder = Path(group.act("profile", steps=3).text)
    assert [(folder / part["file"]).read_bytes() for part in joined[0]["ranks"]] == [TRACE] * 2
    assert not group.lost


@pytest.mark.parametrize("is_endless", [True, False])
def test_a_rank_that_hands_over_too_much_is_not_believed(
    group_of: GroupOf, joined: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, is_endless: bool
) -> None:
    """What it sends beyond its own word does not fill the disk, nor is its own word on the size a bound."""
    group = group_of(5, 5)
    group.profiling[0].is_endless = is_endless
    if not is_endless:
        monkeypatch.setattr(wire, "LARGEST_PROFILE", 2 * wire.MOST_OF_PROFILE)
    assert "more than its trace" in group.act("profile", steps=3).text
    assert group.folders == []


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_rank_that_writes_its_trace_is_waited_for(
    group_of: GroupOf, joined: list[dict[str, Any]], is_heard: bool
) -> None:
    """Torch writes it without letting the agent's thread run, for longer than a rank usually has; not without end."""
    group = group_of(5, 5)
    asker = group.ask("profile", steps=3)
    group.until(lambda: group.profiling[1].asked, "question")
    group.deaf.add((1, wire.Profile))
    since = group.clock.now
    group.until(lambda: group.clock.now > since + 10.0, "time")
    assert asker not in group.replies
    if is_heard:
        group.deaf.clear()
        assert group.reply(asker).done
    else:
        text = "rank 1 did not answer within 2 s; `ddptop status` shows the state of each rank"
        assert group.reply(asker).text == text
        assert group.folders == []


def test_a_profile_that_an_observer_has_left_is_removed(
    group_of: GroupOf, joined: list[dict[str, Any]], tmp_path: Path
) -> None:
    """It was killed meanwhile; profiles that are complete stay."""
    left, whole = marked(tmp_path) / "profiles/0001", tmp_path / "profiles/0002"
    for folder, name in ((left, "rank-0.json.gz"), (whole, "trace.json.gz")):
        marks.make(folder)
        (folder / name).write_bytes(TRACE)
    assert group_of(5, 5).act("profile", steps=3).text.endswith("0003")
    assert not left.exists()
    assert (whole / "trace.json.gz").exists()


def test_a_join_can_be_cancelled(group_of: GroupOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that somebody asks for meanwhile need not wait for minutes, and no process stays."""
    python, started = tmp_path / "python", tmp_path / "started"
    python.write_text(f"#!/bin/sh\necho $$ > {started}.new; mv {started}.new {started}; exec {shlex.join(WAITING)}\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    group = group_of(5, 5)
    group.nap_s = 0.001
    asker = group.ask("profile", steps=3)
    group.until(started.exists, "process that joins")
    assert group.cancel(asker)
    assert group.reply(asker).refusal == "cancelled"
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert group.folders == []


def test_a_join_that_fails_is_a_refusal(group_of: GroupOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last line is the reason."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    group = group_of(5, 5)
    group.nap_s = 0.001
    assert "cannot be joined: exit code 1" in group.act("profile", steps=3).text


def test_the_observer_profiles_an_accused_rank_once() -> None:
    """Where its user wants that: half a minute into an accusation, when no action is under way, and only so often."""
    unasked = OnVerdict(Profile(on_verdict=True, most=2))
    assert unasked.due((3, 1), 0.0, is_free=True) is None
    assert unasked.due((3, 2), 29.0, is_free=True) is None
    assert unasked.due((3, 1), 31.0, is_free=False) is None
    command = unasked.due((3, 1), 32.0, is_free=True)
    assert command is not None
    assert (command.action, command.culprit) == ("profile", True)
    assert unasked.due((3, 1), 90.0, is_free=True) is None
    # Another rank, then nobody, then the first again.
    assert unasked.due((0, 1), 91.0, is_free=True) is None
    assert unasked.due(None, 110.0, is_free=True) is None
    assert unasked.due((0, 1), 122.0, is_free=True) is None
    assert unasked.due((0, 1), 152.0, is_free=True) is not None
    assert unasked.due((3, 1), 160.0, is_free=True) is None
    assert unasked.due((3, 1), 300.0, is_free=True) is None, "two are the most"


def test_a_profile_that_was_not_made_is_none_of_those_that_may_be() -> None:
    """It was refused, or made way for somebody; of this accusation there is no other."""
    unasked = OnVerdict(Profile(on_verdict=True, most=1))
    for moment, blamed in ((0.0, (3, 1)), (100.0, (0, 1)), (200.0, (3, 1))):
        assert unasked.due(blamed, moment, is_free=True) is None
        assert unasked.due(blamed, moment + 31, is_free=True) is not None
        unasked.not_made()
        assert unasked.due(blamed, moment + 90, is_free=True) is None


def test_nobody_is_profiled_who_has_not_asked_for_it() -> None:
    """The usual setting: a profile slows the steps down that it is of."""
    unasked = OnVerdict(Profile())
    unasked.due((3, 1), 0.0, is_free=True)
    assert unasked.due((3, 1), 500.0, is_free=True) is None
