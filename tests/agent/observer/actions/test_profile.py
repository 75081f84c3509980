"""The same steps of all chosen ranks are profiled, their traces come together, and a refusal leaves nothing behind."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bases import marked
from support.harness import WAITING

from ddptop.agent import wire
from ddptop.agent.observer.actions import profile as module
from ddptop.agent.observer.actions.diagnosis import Diagnosed
from ddptop.agent.observer.actions.polled import PolledRanks
from ddptop.agent.observer.actions.profile import OnVerdict, profile
from ddptop.agent.observer.actions.wait import Wait
from ddptop.agent.run.files import marks
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.run.switches.thresholds import Profile
from ddptop.agent.wire.diagnoses.kept import Summary
from ddptop.agent.wire.refusals import Cancelled, Hung, Refused, Unheard

TRACE = bytes(range(256)) * 3_000
"""Longer than two pieces."""
SENTENCES = ["aten::sort takes 18 ms a step on rank 1 and 0.4 ms on rank 0", "aten::add takes 5 ms a step on rank 1"]
COMPARED = "rank 1, which holds the group back, against rank 0"


class Ranks(PolledRanks):
    """Ranks that make steps whenever somebody asks, and have profiled once these are made."""

    def __init__(self, *steps: int, pace: int = 1, problem: Mapping[int, str] | None = None) -> None:
        super().__init__(range(len(steps)))
        self.completed = list(steps)
        self.pace = pace
        self.problem = dict(problem or {})
        self.asked: list[set[tuple[str, int, int]]] = [set() for _ in steps]
        self.held = False
        self.now = 0.0
        self.trace = TRACE
        self.read: list[int] = []
        self.cancelled: list[str] = []
        """Tokens of profiles that ranks were said to make no more."""
        self.losing: set[int] = set()
        """Offsets of pieces whose first answers get lost."""

    def move(self, seconds: float = 0.0) -> None:
        self.now += seconds + 0.001
        self.completed = [step + self.pace for step in self.completed]

    def send(self, command: wire.Command, ranks: Collection[int], timeout_s: float) -> Mapping[int, wire.Reply]:
        self.move()
        if isinstance(command, wire.ReadProfile) and command.offset in self.losing:
            self.losing.remove(command.offset)
            return {}
        return {rank: self._answer(rank, command) for rank in ranks}

    def _answer(self, rank: int, command: wire.Command) -> wire.Reply:
        completed = self.completed[rank]
        match command:
            case wire.Query():
                return wire.Reply(0, self.held, "", completed)
            case wire.Profile(_, token, cancelled=True):
                self.cancelled.append(token)
                return wire.Reply(0, True, "", completed)
            case wire.Profile(_, token, _, first, steps):
                if rank in self.problem:
                    return wire.Reply(0, False, self.problem[rank])
                if (token, first, steps) not in self.asked[rank]:
                    if completed >= first - 1:
                        return wire.Reply(0, False, "has passed it", completed)
                    self.asked[rank].add((token, first, steps))
                if completed < first + steps - 1:
                    return wire.Reply(0, False, "", completed, pending=True)
                span = wire.PhaseSpan(0, 5, "data")
                done = wire.Profiled(len(self.trace), (wire.ProfiledStep(first, (span,)),))
                return wire.Reply(0, True, "", completed, profiled=done)
            case wire.ReadProfile(_, token, offset):
                assert any(token == known for known, _, _ in self.asked[rank])
                self.read.append(offset)
                piece = wire.ProfilePiece(offset, self.trace[offset : offset + wire.MOST_OF_PROFILE])
                return wire.Reply(0, True, piece=piece)
        raise AssertionError(command)

    def departed(self) -> set[int]:
        return set()

    def unheard(self, ranks: Collection[int]) -> str:
        return ""


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return what is said to the process that joins the traces, which is not begun."""
    said: list[dict[str, Any]] = []

    def join(folder: Path, wait: Wait) -> None:
        said.append(json.loads((folder / "parts.json").read_text()))
        (folder / "trace.json.gz").touch()
        found = Summary("run", (5, 7), [0, 1], 1, 0, 1.5e9, SENTENCES, [], 0, compared=COMPARED)
        (folder / "summary.json").write_bytes(msgspec.json.encode(found))

    monkeypatch.setattr(module, "_join", join)
    return said


def act(path: Path, group: Ranks, /, **changes: Any) -> Diagnosed:
    blamed = changes.pop("blamed", None)
    wait = Wait(lambda: group.now, group.move)
    wait.is_cancelled, wait.hang = changes.pop("cancelled", False), changes.pop("hang", "")
    return profile(RunDir(marked(path)), group, wire.Act(1, "profile", steps=3, **changes), blamed, wait)


@pytest.mark.parametrize(("sentences", "finding"), [(SENTENCES, SENTENCES[0]), ([], COMPARED)])
def test_the_finding_is_the_largest_difference(
    tmp_path: Path, joined: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, sentences: list[str], finding: str
) -> None:
    """In the words of the summary, which has them for all who read it; else which ranks were compared."""
    monkeypatch.setattr(sys.modules[__name__], "SENTENCES", sentences)
    assert act(tmp_path, Ranks(5, 5)).finding == finding


@pytest.mark.parametrize("pace", [1, 7, 60])
def test_all_ranks_profile_the_same_steps(tmp_path: Path, joined: list[dict[str, Any]], pace: int) -> None:
    """Whatever steps they make while they are asked, and the traces of other hosts are whole."""
    ranks = Ranks(10, 12, 11, pace=pace)
    folder = act(tmp_path, ranks).folder
    (said,) = joined
    assert [part["rank"] for part in said["ranks"]] == [0, 1, 2]
    first, last = said["steps"]
    assert last == first + 2
    assert all(any(each[1:] == (first, 3) for each in asked) for asked in ranks.asked)
    assert [(folder / part["file"]).read_bytes() for part in said["ranks"]] == [TRACE] * 3
    assert said["ranks"][0]["phases"] == [[first, [[0, 5, "data"]]]]
    # Behind the end of each, so that the rank removes it.
    assert ranks.read.count(len(TRACE)) == 3


def test_the_accused_rank_is_profiled_with_an_ordinary_one(tmp_path: Path, joined: list[dict[str, Any]]) -> None:
    """Whoever asks for the culprit need not know who it is."""
    act(tmp_path, Ranks(5, 5, 5, 5), culprit=True, blamed=(3, 1))
    act(tmp_path, Ranks(5, 5, 5, 5), ranks=(0, 2), blamed=(3, 1))
    first, second = joined
    assert (first["asked"], first["culprit"], first["peer"]) == ([1, 3], 3, 1)
    assert (second["asked"], second["culprit"], second["peer"]) == ([0, 2], None, None)
    assert sorted(each.name for each in (tmp_path / "profiles").iterdir()) == ["0001", "0002"]


@pytest.mark.parametrize(
    ("ranks", "changes", "reason"),
    [
        (Ranks(5, 5), {"culprit": True}, "no verdict accuses a rank"),
        (Ranks(5, 5), {"ranks": ()}, "no rank is named"),
        (Ranks(5, 5), {"ranks": (0, 7, 9)}, "ranks 7, 9: not in this run"),
        (Ranks(5, 5, problem={1: "its script uses the profiler at this moment"}), {}, "rank 1: its script uses"),
        (Ranks(5, 500), {}, "do not share a step count"),
        (Ranks(5, 5, pace=5_000), {}, "too fast"),
        (Ranks(5, 5, pace=0), {}, "no step within 60 s"),
        (Ranks(*[5] * 65), {}, "65 ranks are too many"),
    ],
)
def test_a_refusal_says_why_and_leaves_nothing(
    tmp_path: Path, joined: list[dict[str, Any]], ranks: Ranks, changes: dict[str, Any], reason: str
) -> None:
    """The folder of a profile that is not made is removed."""
    with pytest.raises(Refused, match=reason):
        act(tmp_path, ranks, **changes)
    assert not joined
    assert not list((tmp_path / "profiles").glob("*"))


def test_a_paused_run_has_no_steps_to_profile(tmp_path: Path, joined: list[dict[str, Any]]) -> None:
    """It is to be resumed first."""
    ranks = Ranks(5, 5, pace=0)
    ranks.held = True
    with pytest.raises(Refused, match="resume it first"):
        act(tmp_path, ranks)
    assert not joined


@pytest.mark.parametrize(("given", "refusal"), [({"cancelled": True}, Cancelled), ({"hang": "rank 1 hangs"}, Hung)])
def test_a_wait_ends_when_it_has_to(
    tmp_path: Path, joined: list[dict[str, Any]], given: dict[str, Any], refusal: type[Refused]
) -> None:
    """Somebody cancels it, or the run hangs."""
    ranks = Ranks(5, 5, pace=0)
    with pytest.raises(refusal):
        act(tmp_path, ranks, **given)
    assert not list((tmp_path / "profiles").glob("*"))
    # The ranks would make it all the same.
    ((token, _, _),) = ranks.asked[0]
    assert ranks.cancelled == [token, token]


def test_a_lost_piece_of_a_trace_is_asked_for_once_more(tmp_path: Path, joined: list[dict[str, Any]]) -> None:
    """Its answer may get lost between hosts; the copy is whole."""
    ranks = Ranks(5, 5)
    ranks.losing = {0, wire.MOST_OF_PROFILE}
    folder = act(tmp_path, ranks).folder
    assert [(folder / part["file"]).read_bytes() for part in joined[0]["ranks"]] == [TRACE] * 2


def test_a_rank_that_hands_over_too_much_is_not_believed(tmp_path: Path, joined: list[dict[str, Any]]) -> None:
    """What it sends beyond its own word does not fill the disk."""
    ranks = Ranks(5, 5)
    answer = ranks._answer

    def longer(rank: int, command: wire.Command) -> wire.Reply:
        reply = answer(rank, command)
        if isinstance(command, wire.ReadProfile):
            return wire.Reply(0, True, piece=wire.ProfilePiece(command.offset, bytes(wire.MOST_OF_PROFILE)))
        return reply

    ranks._answer = longer  # type: ignore[method-assign]
    with pytest.raises(Refused, match="more than its trace"):
        act(tmp_path, ranks)
    assert not list((tmp_path / "profiles").glob("*"))


def test_a_rank_may_not_claim_a_trace_without_bounds(
    tmp_path: Path, joined: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own word on the size is no bound."""
    monkeypatch.setattr(wire, "LARGEST_PROFILE", 2 * wire.MOST_OF_PROFILE)
    with pytest.raises(Refused, match="more than its trace"):
        act(tmp_path, Ranks(5, 5))
    assert not list((tmp_path / "profiles").glob("*"))


def silence(ranks: Ranks, rounds: int) -> None:
    """Let rank 1 answer nothing for so many rounds once it profiles."""
    send, left = ranks.send, [rounds]

    def some(command: wire.Command, asked: Collection[int], timeout_s: float) -> Mapping[int, wire.Reply]:
        replies = send(command, asked, timeout_s)
        if not left[0] or not isinstance(command, wire.Profile) or not replies[1].pending:
            return replies
        left[0] -= 1
        ranks.now += timeout_s
        return {rank: reply for rank, reply in replies.items() if rank != 1}

    ranks.send = some  # type: ignore[method-assign, assignment]


def test_a_rank_that_writes_its_trace_is_waited_for(tmp_path: Path, joined: list[dict[str, Any]]) -> None:
    """Torch writes it without letting the agent's thread run, for longer than a rank usually has for an answer."""
    ranks = Ranks(5, 5)
    silence(ranks, 3)
    act(tmp_path, ranks)
    assert joined


def test_a_rank_that_stays_silent_is_named(tmp_path: Path, joined: list[dict[str, Any]]) -> None:
    """It is not waited for without end."""
    ranks = Ranks(5, 5, pace=0)
    silence(ranks, 10_000)
    with pytest.raises(Unheard, match="rank 1 did not answer within 2 s; `ddptop status` shows the state of each rank"):
        act(tmp_path, ranks)
    assert not list((tmp_path / "profiles").glob("*"))


def test_a_profile_that_an_observer_has_left_is_removed(tmp_path: Path, joined: list[dict[str, Any]]) -> None:
    """It was killed meanwhile; profiles that are complete stay."""
    left, whole = marked(tmp_path) / "profiles/0001", tmp_path / "profiles/0002"
    for folder, name in ((left, "rank-0.json.gz"), (whole, "trace.json.gz")):
        marks.make(folder)
        (folder / name).write_bytes(TRACE)
    assert act(tmp_path, Ranks(5, 5)).folder.name == "0003"
    assert not left.exists()
    assert (whole / "trace.json.gz").exists()


def test_a_join_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that somebody asks for meanwhile need not wait for minutes, and no process stays."""
    python, started = tmp_path / "python", tmp_path / "started"
    python.write_text(f"#!/bin/sh\necho $$ > {started}.new; mv {started}.new {started}; exec {shlex.join(WAITING)}\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    wait = Wait(sleep=lambda seconds: cancel_once_begun())

    def cancel_once_begun() -> None:
        time.sleep(0.001)
        wait.is_cancelled = started.exists()

    with pytest.raises(Cancelled):
        profile(RunDir(marked(tmp_path)), Ranks(5, 5), wire.Act(1, "profile", steps=3), None, wait)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert not list((tmp_path / "profiles").glob("*"))


def test_a_join_that_fails_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last line is the reason."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Refused, match="cannot be joined: exit code 1"):
        act(tmp_path, Ranks(5, 5))


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
