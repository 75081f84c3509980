"""Requests for actions: one goes on at a time, each gets one reply, and what it waits for is there for all to see."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from support.fakes.events import SaidEvents
from support.fakes.hosts import Net, Side
from support.harness import until
from support.values.messages import replies_of

from ddptop.agent import wire
from ddptop.agent.observer.actions import actions
from ddptop.agent.observer.actions.actions import Actions
from ddptop.agent.observer.actions.diagnosis import Diagnosed
from ddptop.agent.observer.actions.profile import OnVerdict
from ddptop.agent.observer.model.situation import Circumstances
from ddptop.agent.observer.service.requests import Replies
from ddptop.agent.rank.commands.gate import Gate, GateError
from ddptop.agent.run import rundir
from ddptop.agent.run.identity import identify
from ddptop.agent.run.rundir import Ended, Member, Run
from ddptop.agent.run.switches.thresholds import Profile
from ddptop.agent.wire.refusals import Refused

HUNG = wire.Verdict(1, "hang", "rank 1 hangs: it is stopped by SIGSTOP \u00b7 1,012 s", 1, None, rank=1,
                    hang=wire.Hang("stopped", (1,)))  # fmt: skip


class Ranks:
    """Two ranks with real gates, whose training threads are moved on whenever somebody asks."""

    def __init__(self) -> None:
        self.gates = [Gate(), Gate()]
        self.standing: set[int] = set()
        """Ranks that make no steps."""
        self.deaf: set[int] = set()
        """Ranks that answer nothing."""
        self.saves = threading.Event()
        """Set unless their checkpoint functions are not to end."""
        self.saves.set()
        self.is_saving = False

    def ask(self, command: wire.Command, ranks: Collection[int], replies: Replies) -> None:
        """Answer as the agents of the ranks do, through the relay."""
        for rank in ranks:
            if rank not in self.deaf:
                self._move(rank)
                replies.put((rank, self._obey(self.gates[rank], command)))

    def _move(self, rank: int) -> None:
        gate = self.gates[rank]
        if gate.limit is not None and gate.completed >= gate.limit:
            gate.held_at_ns = 1
        elif rank not in self.standing:
            gate.completed, gate.held_at_ns = gate.completed + 1, None

    def _obey(self, gate: Gate, command: wire.Command) -> wire.Reply:
        try:
            match command:
                case wire.Hold(id, token, lease_ms):
                    return wire.Reply(id, True, "", gate.promise(token, lease_ms / 1000))
                case wire.Commit(id, token, step, lease_ms):
                    gate.commit(token, step, lease_ms / 1000)
                case wire.Advance(_, step):
                    gate.advance(step)
                case wire.Resume(id):
                    text = "goes on" if gate.limit is not None else "was not paused"
                    gate.resume()
                    return wire.Reply(id, True, text, gate.completed)
                case wire.Query(id):
                    return wire.Reply(
                        id, gate.held, "", gate.completed, kept=gate.is_paused, limit=gate.limit, checkpoints=True
                    )
                case wire.Profile(id) | wire.Probe(id):
                    return wire.Reply(id, False, "", gate.completed, pending=True)
                case wire.Save(id):
                    self.is_saving = True
                    done = self.saves.is_set()
                    return wire.Reply(id, done, "", gate.completed, pending=not done)
        except GateError as refusal:
            return wire.Reply(command.id, False, str(refusal), gate.completed)
        return wire.Reply(command.id, True, "", gate.completed)


class Observer:
    """The actions of an observer, without its threads but those that act."""

    def __init__(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        me = rundir.identify(os.getpid())
        assert me is not None
        self.directory = rundir.create(run)
        for rank in range(run.world):
            self.directory.write_member(Member(rank, rank, run.world, me, "host", 0, "", "", None))
        self.ranks, self.net = Ranks(), Net()
        self.side: Side = self.net.side("node1", (0, 1))
        self.hang: wire.Verdict | None = None
        self.blamed: tuple[int, int] | None = None
        self.said = SaidEvents()
        self.events = self.said.all
        self.replies: dict[bytes, wire.Reply] = {}
        self.now = 0.0
        monkeypatch.setattr(actions, "time", self)
        self.actions = Actions(self.directory, self.ranks.ask, self.side.requests, self.said, self.side)

    def monotonic(self) -> float:
        """Return the time that the requests are told, which is moved by hand."""
        return self.now

    time_ns = staticmethod(time.time_ns)

    def turn(self, *, uneven: bool = False, held: bool = False) -> bool:
        """Have a turn of the main thread."""
        self.actions.turn(Circumstances(held, uneven, self.hang, self.blamed))
        self.replies |= dict(replies_of(self.side.requests))
        return True

    def ask(self, action: str, who: str = "ada", **more: Any) -> bytes:
        """Ask for an action, and return the name of the asker."""
        asker = f"{who}-{action}".encode()
        self.actions.obey(asker, wire.Act(7, action, who, **more))
        return asker

    def reply(self, asker: bytes) -> wire.Reply:
        """Wait for the reply to an asker."""
        until(lambda: self.turn() and asker in self.replies, f"a reply to {asker!r}")
        return self.replies[asker]

    @property
    def texts(self) -> list[str]:
        """What the events say."""
        return [each.text for each in self.events]


@pytest.fixture
def observer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Observer]:
    """The observer of a run of two ranks."""
    run = Run("acts", "id", "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, state="running")
    made = Observer(run, monkeypatch)
    yield made
    made.ranks.standing.clear()
    made.actions.close()
    made.net.close()
    # The records name this process as ranks.
    shutil.rmtree(made.directory.path)


def waits(observer: Observer) -> str:
    """Wait until an action waits for ranks, and return what it says."""
    until(lambda: observer.turn() and observer.actions.waiting, "an action that waits")
    return observer.actions.waiting


def test_an_action_is_one_request_with_one_reply_and_an_event(observer: Observer) -> None:
    """Both say what came of it; the event also who has asked."""
    done = observer.reply(observer.ask("pause", "ada (shell, pts/1)"))
    assert (done.id, done.done, done.refusal) == (7, True, "")
    assert done.text.startswith("held at step ")
    assert observer.texts == [f"pause: {done.text} \u00b7 ada (shell, pts/1)"]
    assert [gate.is_paused for gate in observer.ranks.gates] == [True, True]
    refused = observer.reply(observer.ask("pause", "bob"))
    assert (refused.done, refused.text) == (False, f"already paused at step {observer.ranks.gates[0].limit}")
    assert observer.events[-1].level == "warning"
    assert observer.reply(observer.ask("step", steps=3)).text.startswith("held at step ")
    assert observer.reply(observer.ask("resume")).done
    assert observer.actions.under_way == ""


def test_what_an_action_waits_for_is_told_while_it_waits(observer: Observer) -> None:
    """With its author: both are for the state of the run, which everybody sees."""
    observer.ranks.standing.add(1)
    observer.ask("pause")
    assert waits(observer) == "pausing: waiting for rank 1"
    assert observer.actions.under_way == "pause by ada"
    observer.ranks.standing.clear()
    assert observer.reply(b"ada-pause").done
    assert (observer.actions.under_way, observer.actions.waiting) == ("", "")


def test_a_second_action_is_refused_and_told_of_the_first(observer: Observer) -> None:
    """Who has begun what, for how long, and the ranks that it waits for."""
    observer.ranks.standing.add(1)
    observer.ask("pause")
    waits(observer)
    observer.now = 6.0
    refused = observer.reply(observer.ask("checkpoint", "bob"))
    assert (refused.done, refused.refusal) == (False, "awaiting")
    assert refused.text == "pause by ada is under way for 6 s, waiting for rank 1"
    assert b"ada-pause" not in observer.replies


def test_a_resume_cancels_an_action_that_waits(observer: Observer) -> None:
    """Both askers are answered, and no rank is held."""
    observer.ranks.standing.add(1)
    observer.ask("pause")
    waits(observer)
    resumed = observer.reply(observer.ask("resume", "bob"))
    assert (resumed.done, resumed.text) == (True, "cancelled the pause by ada; the run goes on")
    cancelled = observer.reply(b"ada-pause")
    assert (cancelled.done, cancelled.refusal) == (False, "cancelled")
    assert [gate.limit for gate in observer.ranks.gates] == [None, None]
    assert observer.texts[0] == "pause: cancelled \u00b7 ada"


def test_who_has_asked_can_cancel_and_nobody_else(observer: Observer) -> None:
    """A wish that comes late leaves the action of another one alone; the ranks go on at once where it counts."""
    observer.actions.obey(b"eve", wire.Cancel(1, "eve"))
    assert not observer.reply(b"eve").done
    observer.ranks.standing.add(1)
    asker = observer.ask("pause")
    waits(observer)
    observer.actions.obey(b"bob", wire.Cancel(1, "bob"))
    assert not observer.reply(b"bob").done
    observer.actions.obey(asker, wire.Cancel(8, "ada"))
    until(lambda: observer.turn() and not observer.actions.under_way, "the end of the action")
    assert observer.texts == ["pause: cancelled \u00b7 ada"]
    assert [gate.limit for gate in observer.ranks.gates] == [None, None]


def test_all_who_ask_for_the_same_are_answered_alike(observer: Observer) -> None:
    """Each gets a reply; there is one action and one event, as when a scheduler ends all ranks."""
    observer.ranks.standing.add(1)
    for rank in range(3):
        observer.actions.obey(b"rank-%d" % rank, wire.Act(rank, "pause", "SIGTERM"))
    waits(observer)
    observer.ranks.standing.clear()
    replies = [observer.reply(b"rank-%d" % rank) for rank in range(3)]
    assert [(each.id, each.done) for each in replies] == [(0, True), (1, True), (2, True)]
    assert len(observer.events) == 1


def test_two_that_ask_for_the_same_steps_do_not_share_them(observer: Observer) -> None:
    """Each script counts on its own: the later is refused, as any other action."""
    observer.reply(observer.ask("pause"))
    observer.ranks.standing |= {0, 1}
    observer.ask("step", steps=2)
    waits(observer)
    observer.actions.obey(b"second", wire.Act(8, "step", "ada", 2))
    assert observer.reply(b"second").refusal == "awaiting"
    observer.ranks.standing.clear()
    assert observer.reply(b"ada-step").done


def test_what_saves_already_is_not_offered_to_be_cancelled(observer: Observer) -> None:
    """Neither is a resume told that a resume cancels it; the run goes on afterwards."""
    observer.ranks.saves.clear()
    observer.ask("checkpoint")
    until(lambda: observer.turn() and observer.ranks.is_saving, "the checkpoint function")
    refused = observer.reply(observer.ask("resume", "bob"))
    assert (refused.refusal, refused.text) == (
        "",
        "checkpoint by ada is under way for 0 s, and can no longer be cancelled",
    )
    observer.ranks.saves.set()
    assert observer.reply(b"ada-checkpoint").done


def test_an_action_that_does_not_end_with_its_observer_is_answered(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is executed anew keeps its pid: whoever waits for it to be gone would wait for ever."""
    monkeypatch.setattr(actions, "_END_S", 0.0)
    observer.ranks.saves.clear()
    asker = observer.ask("checkpoint")
    until(lambda: observer.turn() and observer.ranks.is_saving, "the checkpoint function")
    observer.actions.close()
    left = observer.reply(asker)
    assert (left.refusal, left.text[:27]) == ("unheard", "its observer left meanwhile")
    observer.ranks.saves.set()


@pytest.mark.parametrize("until_at_ns", [None, 9])
def test_a_rank_that_does_not_answer_is_told_as_the_hang_that_it_is(
    observer: Observer, until_at_ns: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a hang that is over is not."""
    monkeypatch.setattr("ddptop.agent.observer.actions.polled.ANSWER_S", 0.05)
    observer.hang = msgspec.structs.replace(HUNG, until_at_ns=until_at_ns)
    observer.ranks.deaf.add(1)
    refused = observer.reply(observer.ask("pause"))
    if until_at_ns is None:
        assert (refused.refusal, refused.text) == ("hung", "rank 1 hangs: it is stopped by SIGSTOP")
    else:
        assert (refused.refusal, refused.text[:19]) == ("unheard", "rank 1 did not answ")


def test_what_is_no_action_is_refused(observer: Observer) -> None:
    """Nothing is begun."""
    assert observer.reply(observer.ask("dance")).text == "there is no action 'dance'"
    assert observer.actions.under_way == ""


def test_ranks_of_which_some_are_held_for_long_are_put_right(observer: Observer) -> None:
    """An observer that was killed has left it so; after the time of a lease and no sooner, and nobody has to ask."""
    gate = observer.ranks.gates[0]
    gate.promise("gone", 60.0)
    gate.commit("gone", 1)
    for now in (0.0, 1.0, 5.0):
        observer.now = now
        observer.turn(uneven=True)
        assert observer.actions.under_way == ""
    observer.turn(uneven=False)
    for now in (10.0, 15.9):
        observer.now = now
        observer.turn(uneven=True)
        assert observer.actions.under_way == ""
    observer.now = 16.1
    observer.turn(uneven=True)
    until(lambda: observer.turn() and observer.events, "an event")
    assert observer.texts == ["an action was left half done, with only rank 0 held: all ranks go on"]
    assert [gate.limit for gate in observer.ranks.gates] == [None, None]


def test_what_is_asked_for_while_that_is_put_right_follows(observer: Observer) -> None:
    """Nobody is told of an action that nobody has asked for."""
    observer.ranks.deaf.add(1)
    observer.turn(uneven=True)
    observer.now = 7.0
    observer.turn(uneven=True)
    assert observer.actions._present is not None
    asker = observer.ask("pause")
    observer.turn()
    assert asker not in observer.replies
    observer.ranks.deaf.clear()
    assert observer.reply(asker).done


def test_a_stop_that_was_left_half_done_ends_the_others(observer: Observer) -> None:
    """One rank has ended by it: the other is held, and would be for ever."""
    member = observer.directory.members()[0]
    ended = Ended(time.time_ns(), 0, stopped_by="bob")
    observer.directory.write_member(msgspec.structs.replace(member, ended=ended))
    gate = observer.ranks.gates[1]
    gate.promise("gone", 60.0)
    gate.commit("gone", 1)
    observer.turn(uneven=True)
    observer.now = 7.0
    observer.turn(uneven=True)
    until(lambda: observer.turn() and observer.events, "an event")
    assert observer.texts == ["a stop by bob was left half done: rank 1 ended, too"]


def half_paused(observer: Observer) -> None:
    """Leave one rank held for good, as an observer that has died; the time after which that is put right is over."""
    observer.ranks.gates[0].promise("gone", 60.0)
    observer.ranks.gates[0].commit("gone", 1)
    observer.turn(uneven=True)
    observer.now += 7.0


def test_what_waits_behind_the_observers_own_work_can_be_cancelled(observer: Observer) -> None:
    """Else a pause that somebody has given up would hold the run for good."""
    half_paused(observer)
    # The observer's own work goes on until it has waited for this rank.
    observer.ranks.deaf.add(1)
    observer.turn(uneven=True)
    assert observer.actions.under_way == ""
    asker = observer.ask("pause")
    observer.actions.obey(asker, wire.Cancel(8, "ada"))
    assert observer.texts == ["pause: cancelled \u00b7 ada"]
    until(lambda: observer.turn() and observer.actions._present is None, "the end of that")
    assert observer.texts == ["pause: cancelled \u00b7 ada"]


def test_a_profile_that_nobody_has_asked_for_makes_way(observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause is done at once, and the profile is not refused to anybody: an event says what came of it."""
    monkeypatch.setattr(observer.actions, "_on_verdict", OnVerdict(Profile(on_verdict=True)))
    observer.blamed = (1, 0)
    observer.turn()
    observer.now = 31.0
    observer.turn()
    assert observer.actions.under_way == "profile by the observer"
    assert observer.reply(observer.ask("pause")).done
    assert observer.texts[0] == "profile: cancelled \u00b7 the observer"
    assert all(gate.held for gate in observer.ranks.gates)


def test_a_profile_that_nobody_has_asked_for_waits_for_a_run_that_is_paused(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are no steps to profile; it is made once there are, and its number is not used up by one that made way."""
    monkeypatch.setattr(observer.actions, "_on_verdict", OnVerdict(Profile(on_verdict=True, most=1)))
    observer.blamed = (1, 0)
    observer.turn()
    observer.now = 31.0
    for _ in range(3):
        observer.turn(held=True)
        assert not observer.actions.under_way
    observer.turn()
    assert observer.actions.under_way == "profile by the observer"
    assert observer.reply(observer.ask("pause")).done
    observer.blamed = (0, 1)
    observer.turn(held=True)
    observer.now = 90.0
    assert observer.reply(observer.ask("resume")).done
    observer.turn()
    assert observer.actions.under_way == "profile by the observer"
    observer.actions.close()


def test_a_stop_does_not_wait_for_a_profile(observer: Observer) -> None:
    """Whoever has asked for the profile is told; a pause waits all the same, as it ends nothing."""
    profile = observer.ask("profile", "ada", steps=3)
    observer.turn()
    assert not observer.reply(observer.ask("pause", "bob")).done
    stop = observer.ask("stop", "the scheduler", checkpoint=False)
    assert observer.reply(profile).text == "cancelled; the run goes on"
    until(lambda: observer.turn() and observer.actions.under_way == "stop by the scheduler", "the stop")
    shutil.rmtree(observer.directory.path / "ranks")
    observer.reply(stop)


def test_the_event_of_a_diagnosis_says_what_was_found(observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the number of what is kept, and with no other; whoever has asked is told the folder."""
    made = Diagnosed(observer.directory.memory / "0012", "train.py:9 made 3 more float32[32, 64] in 3 steps (24 KiB)")
    monkeypatch.setattr(actions, "memory", lambda *_: made)
    assert observer.reply(observer.ask("memory", steps=3)).text == str(made.folder)
    assert observer.texts == [f"memory 0012: {made.finding} \u00b7 ada"]
    assert observer.events[0].action == "memory"
    monkeypatch.setattr(actions, "memory", Mock(side_effect=Refused("no room")))
    assert not observer.reply(observer.ask("memory", "bob", steps=3)).done
    assert observer.texts[1] == "memory refused: no room \u00b7 bob"


@pytest.mark.parametrize("action", ["profile", "probe", "memory"])
def test_a_diagnosis_ends_with_whoever_has_asked(observer: Observer, action: str) -> None:
    """One that nobody waits for any more keeps nobody from a pause; as long as one of those lives, it goes on."""
    me = identify(os.getpid())
    assert me is not None
    here = wire.Caller(me.pid, me.started, me.boot, me.namespace)
    gone = msgspec.structs.replace(here, started=me.started - 1.0)
    probe = observer.ask(action, "ada", caller=here)
    observer.turn()
    observer.turn()
    assert observer.actions.under_way == f"{action} by ada"
    observer.ask("resume", "bob")
    observer.reply(probe)
    abandoned = observer.ask(action, "eve", caller=gone)
    assert observer.reply(abandoned).text == "cancelled; the run goes on"
    assert observer.reply(observer.ask("pause", "bob", caller=gone)).done


def test_what_an_earlier_observer_was_doing_has_an_event(observer: Observer) -> None:
    """A diagnosis is lost with it; of what the ranks go on with, these say what came of it, or it is said who knows."""
    left, gates = "its observer left meanwhile", observer.ranks.gates
    observer.actions.note_left("profile by ada (shell, pts/1)")
    assert observer.texts.pop() == "profile: lost with its observer \u00b7 ada (shell, pts/1)"
    observer.reply(observer.ask("pause"))
    target = (gates[0].limit or 0) + 3
    for gate in gates:
        gate.advance(target)
    observer.actions.note_left("step 3 by bob")
    assert observer.actions.under_way == "", "nobody has asked for it here"
    until(lambda: observer.turn() and len(observer.texts) > 2, "the event")
    assert observer.texts[2] == f"step 3: {left}; all ranks are held at step {target} \u00b7 bob"
    observer.directory.update(state="failed")
    observer.actions.note_left("checkpoint by eve")
    until(lambda: observer.turn() and len(observer.texts) > 3, "the event")
    assert observer.texts[3] == f"checkpoint: {left}; `ddptop status` tells whether it was done \u00b7 eve"


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_resume_cancels_a_probe_and_the_run_goes_on(observer: Observer, is_paused: bool) -> None:
    """Also where the run was paused before: the probe leaves it as it was."""
    if is_paused:
        observer.reply(observer.ask("pause"))
    probe = observer.ask("probe")
    until(lambda: observer.turn() and observer.actions.waiting.startswith("probing"), "the probe")
    resume = observer.ask("resume", "bob")
    after = "the ranks stay paused" if is_paused else "the run goes on"
    assert observer.reply(probe).text == f"cancelled; {after}"
    assert observer.reply(resume).done
    observer.ranks.ask(wire.Query(1), (0, 1), Replies())
    assert not any(gate.held for gate in observer.ranks.gates)


def test_ranks_that_are_meant_to_be_uneven_are_looked_at_once(observer: Observer) -> None:
    """One has ended, or is on its way to a step: all that are asked are held alike, and nobody asks again."""
    observer.reply(observer.ask("pause"))
    observer.turn(uneven=True)
    observer.now += 7.0
    observer.turn(uneven=True)
    until(lambda: observer.turn(uneven=True) and observer.actions._is_settled, "the look")
    observer.ranks.deaf |= {0, 1}
    for _ in range(3):
        observer.now += 7.0
        observer.turn(uneven=True)
        assert observer.actions._present is None
    assert [gate.is_paused for gate in observer.ranks.gates] == [True, True]


def test_a_stop_without_a_checkpoint_is_not_one_with_it(observer: Observer) -> None:
    """The same person asks for both: the second is refused, and not told what came of the first."""
    observer.ranks.standing.add(1)
    observer.ask("stop", checkpoint=True)
    waits(observer)
    observer.actions.obey(b"other", wire.Act(8, "stop", "ada", checkpoint=False))
    assert observer.reply(b"other").refusal == "awaiting"
