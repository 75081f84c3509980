"""Requests for actions: one goes on at a time, each gets one reply, and what it waits for is there for all to see."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from support.fakes.acting import Acting, over_steps
from support.fakes.hosts import Net

from ddptop.agent import wire
from ddptop.agent.end import freezer
from ddptop.agent.observer.actions import actions
from ddptop.agent.observer.actions.action import Diagnosed, Turns
from ddptop.agent.observer.actions.profile import OnVerdict
from ddptop.agent.run.identity import identify
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.run.switches.thresholds import Profile
from ddptop.agent.wire.vocabulary.refusals import Refused

HUNG = wire.Verdict(1, "hang", "rank 1 hangs: it is stopped by SIGSTOP · 1,012 s", 1, hang=wire.Hang("stopped", (1,)))


@pytest.fixture
def observer(tmp_path: Path) -> Iterator[Acting]:
    """The observer of a run of two ranks, whose diagnoses never end."""
    made = Acting(tmp_path, 4, 4)
    for rank in made.ranks:
        rank.checkpoint = lambda: wire.Saved(True, "", 1)
        rank.diagnoses = over_steps({"probe": lambda command, device: None})
    made.hear()
    yield made
    made.close()


def test_an_action_is_one_request_with_one_reply_and_an_event(observer: Acting) -> None:
    """Both say what came of it; the event also who has asked."""
    done = observer.act("pause", "ada (shell, pts/1)")
    assert (done.id, done.done, done.refusal) == (7, True, "")
    assert done.text.startswith("held at step ")
    assert observer.texts == [f"pause: {done.text} · ada (shell, pts/1)"]
    refused = observer.act("pause", "bob")
    assert (refused.done, refused.text) == (False, f"already paused at step {observer.gates[0].limit}")
    assert observer.said.all[-1].level == "warning"
    assert observer.act("step", steps=3).text.startswith("held at step ")
    assert observer.act("resume").done
    assert observer.act("dance").text == "there is no action 'dance'"
    assert observer.actions.under_way == ""


def test_what_is_asked_for_right_after_a_pause_finds_it(observer: Acting) -> None:
    """The client is answered before the ranks have said that the pause is theirs, and need not know that."""
    observer.reply(observer.ask("pause"))
    assert not any(gate.is_paused for gate in observer.gates)
    assert observer.act("step").done
    observer.reply(observer.ask("resume"))
    assert observer.act("pause").done


def test_what_an_action_waits_for_is_told_while_it_waits(observer: Acting) -> None:
    """With its author: both are for the state of the run, which everybody sees."""
    observer.ranks[1].pace = 0
    observer.ask("pause")
    assert observer.waits() == "pausing: waiting for rank 1"
    assert observer.actions.under_way == "pause by ada"
    observer.ranks[1].pace = 1
    assert observer.reply(b"ada-pause").done
    assert (observer.actions.under_way, observer.actions.waiting) == ("", "")


def test_a_second_action_is_refused_and_told_of_the_first(observer: Acting) -> None:
    """Who has begun what, for how long, and the ranks that it waits for."""
    observer.ranks[1].pace = 0
    observer.ask("pause")
    observer.until(lambda: observer.clock.now > 6.0, "time")
    refused = observer.reply(observer.ask("checkpoint", "bob"))
    assert (refused.done, refused.refusal) == (False, "awaiting")
    assert refused.text == "pause by ada is under way for 6 s, waiting for rank 1"
    assert b"ada-pause" not in observer.replies


def test_a_resume_cancels_an_action_that_waits(observer: Acting) -> None:
    """Both askers are answered, and no rank is held."""
    observer.ranks[1].pace = 0
    observer.ask("pause")
    observer.waits()
    resumed = observer.act("resume", "bob")
    assert (resumed.done, resumed.text) == (True, "cancelled the pause by ada; the run goes on")
    assert observer.replies[b"ada-pause"].refusal == "cancelled"
    observer.turn()
    assert [gate.limit for gate in observer.gates] == [None, None]
    assert observer.texts[0] == "pause: cancelled · ada"


def test_who_has_asked_can_cancel_and_nobody_else(observer: Acting) -> None:
    """A wish that comes late leaves the action of another one alone; the ranks go on at once where it counts."""
    assert not observer.cancel(b"eve", "eve")
    observer.ranks[1].pace = 0
    asker = observer.ask("pause")
    observer.waits()
    assert not observer.cancel(b"bob", "bob")
    assert observer.cancel(asker)
    assert not observer.reply(asker).done
    assert observer.texts == ["pause: cancelled · ada"]


def test_all_who_ask_for_the_same_are_answered_alike(observer: Acting) -> None:
    """Each gets a reply; there is one action and one event, as when a scheduler ends all ranks."""
    observer.ranks[1].pace = 0
    askers = [observer.ask("pause", "SIGTERM", b"rank-%d" % rank) for rank in range(3)]
    observer.waits()
    observer.ranks[1].pace = 1
    assert [observer.reply(each).done for each in askers] == [True] * 3
    assert len(observer.texts) == 1


def test_two_that_ask_for_the_same_steps_do_not_share_them(observer: Acting) -> None:
    """Each script counts on its own: the later is refused, as any other action."""
    observer.act("pause")
    for rank in observer.ranks:
        rank.pace = 0
    observer.ask("step", steps=2)
    observer.waits()
    assert observer.reply(observer.ask("step", asker=b"second", steps=2)).refusal == "awaiting"
    for rank in observer.ranks:
        rank.pace = 1
    assert observer.reply(b"ada-step").done


def test_a_stop_without_a_checkpoint_is_not_one_with_it(observer: Acting) -> None:
    """The same person asks for both: the second is refused, and not told what came of the first."""
    observer.ranks[1].pace = 0
    observer.ask("stop", checkpoint=True)
    observer.waits()
    assert observer.reply(observer.ask("stop", asker=b"other", checkpoint=False)).refusal == "awaiting"


def saves_for_ever(observer: Acting) -> bytes:
    """Ask for a checkpoint whose function does not end."""
    observer.ranks[1].save = lambda token: None  # type: ignore[method-assign]
    asker = observer.ask("checkpoint")
    observer.until(lambda: any(type(each) is wire.Save for _, each in observer.asked), "checkpoint function")
    return asker


def test_what_saves_already_is_not_offered_to_be_cancelled(observer: Acting) -> None:
    """Neither is a resume told that a resume cancels it; the run goes on afterwards."""
    asker = saves_for_ever(observer)
    refused = observer.reply(observer.ask("resume", "bob"))
    text = "checkpoint by ada is under way for 0 s, and can no longer be cancelled"
    assert (refused.refusal, refused.text) == ("", text)
    del observer.ranks[1].save
    assert observer.reply(asker).done


def test_an_action_that_does_not_end_with_its_observer_is_answered(observer: Acting) -> None:
    """One that is executed anew keeps its pid: whoever waits for it to be gone would wait for ever."""
    asker = saves_for_ever(observer)
    leaving = threading.Thread(target=observer.actions.close)
    leaving.start()
    observer.until(lambda: not leaving.is_alive(), "end")
    left = observer.replies[asker]
    assert (left.refusal, left.text[:27]) == ("unheard", "its observer left meanwhile")
    assert observer.reply(observer.ask("pause")).text.startswith("not done: the run is over, or its observer leaves it")


def test_a_run_that_is_being_killed_does_nothing_else(observer: Acting) -> None:
    """Neither what is asked for, nor what would be put right."""
    observer.actions.is_killed = True
    assert observer.reply(observer.ask("pause")).text == "the run is being killed"
    for _ in range(9):
        observer.second(is_held=True, is_uneven=True)
    assert observer.actions.pause_s is None


@pytest.mark.parametrize("until_at_ns", [None, 9])
def test_a_rank_that_does_not_answer_is_told_as_the_hang_that_it_is(observer: Acting, until_at_ns: int | None) -> None:
    """One of a hang that is over is not."""
    observer.second(hang=msgspec.structs.replace(HUNG, until_at_ns=until_at_ns))
    observer.deaf.add((1, wire.Hold))
    refused = observer.act("pause")
    if until_at_ns is None:
        assert (refused.refusal, refused.text) == ("hung", "rank 1 hangs: it is stopped by SIGSTOP")
    else:
        assert (refused.refusal, refused.text[:19]) == ("unheard", "rank 1 did not answ")


def half_paused(observer: Acting) -> None:
    """Leave one rank held for good, as an observer that has died; the time after which that is put right is over."""
    observer.gates[0].promise("gone", 60.0)
    observer.gates[0].keep("gone")
    observer.hear()
    for seconds in (0.0, 1.0, 4.9):
        observer.second(seconds, is_held=True, is_uneven=True)
        assert observer.actions.pause_s is None
    observer.second(is_held=True, is_uneven=True)


def test_ranks_of_which_some_are_held_for_long_are_put_right(observer: Acting) -> None:
    """An observer that was killed has left it so; after the time of a lease and no sooner, and nobody has to ask."""
    half_paused(observer)
    assert observer.actions.under_way == ""
    observer.until(lambda: observer.texts, "event")
    assert observer.texts == ["an action was left half done, with only rank 0 held: all ranks go on"]
    assert [gate.limit for gate in observer.gates] == [None, None]


def test_what_is_asked_for_while_that_is_put_right_follows(observer: Acting) -> None:
    """Nobody is told of an action that nobody has asked for; what waits behind it can be cancelled."""
    observer.deaf.add((1, wire.Resume))
    half_paused(observer)
    asker = observer.ask("pause")
    assert observer.cancel(asker)
    assert observer.texts == ["pause: cancelled · ada"]
    asker = observer.ask("pause")
    observer.turn()
    assert asker not in observer.replies
    observer.deaf.clear()
    assert observer.reply(asker).done


def test_ranks_that_are_meant_to_be_uneven_are_looked_at_once(observer: Acting) -> None:
    """One has ended, or is on its way to a step: all that are asked are held alike, and nobody asks again."""
    observer.act("pause")
    asked = len(observer.asked)
    for _ in range(30):
        observer.second(is_held=True, is_uneven=True)
    assert (len(observer.asked), len(observer.texts)) == (asked, 1)
    assert [gate.is_paused for gate in observer.gates] == [True, True]


def accused(observer: Acting, monkeypatch: pytest.MonkeyPatch, most: int = 3) -> None:
    """Have a rank be accused for so long that the observer profiles it by itself."""
    monkeypatch.setattr(observer.actions, "_on_verdict", OnVerdict(Profile(on_verdict=True, most=most)))
    shown = []
    # A run that is paused has no steps.
    for seconds, is_held in ((1.0, False), (31.0, True), (1.0, False)):
        observer.second(seconds, blamed=(1, 0), is_held=is_held)
        shown.append(observer.actions.under_way)
    assert shown == ["", "", "profile by the observer"]


def test_a_profile_that_nobody_has_asked_for_makes_way(observer: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause is done at once; an event says what came of the profile, and another one may be made in its place."""
    accused(observer, monkeypatch, most=1)
    assert observer.act("pause").done
    assert observer.texts[0] == "profile: cancelled · the observer"
    assert observer.act("resume").done
    observer.second(blamed=(0, 1))
    observer.second(31.0)
    assert observer.actions.under_way == "profile by the observer"


def test_a_stop_does_not_wait_for_a_profile(observer: Acting) -> None:
    """Whoever has asked for the profile is told; a pause waits all the same, as it ends nothing."""
    profile = observer.ask("profile", steps=3)
    observer.turn()
    assert not observer.reply(observer.ask("pause", "bob")).done
    stop = observer.ask("stop", "the scheduler", checkpoint=False)
    assert observer.reply(profile).text == "cancelled; the run goes on"
    assert observer.reply(stop).done


def test_the_event_of_a_diagnosis_says_what_was_found(observer: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the number of what is kept, and with no other; whoever has asked is told the folder."""
    made = Diagnosed(
        observer.directory.diagnoses("memory") / "0012", "train.py:9 made 3 more float32[32, 64] in 3 steps (24 KiB)"
    )

    def memory(action: object) -> Turns[Diagnosed]:
        yield 0.0
        return made

    monkeypatch.setitem(actions._ASKED, "memory", memory)
    assert observer.act("memory", steps=3).text == str(made.folder)
    assert observer.texts == [f"memory 0012: {made.finding} · ada"]
    assert observer.said.all[0].action == "memory"
    monkeypatch.setitem(actions._ASKED, "memory", Mock(side_effect=Refused("no room")))
    assert not observer.act("memory", "bob", steps=3).done
    assert observer.texts[1] == "memory refused: no room · bob"


@pytest.mark.parametrize("action", ["profile", "probe", "memory"])
def test_a_diagnosis_ends_with_whoever_has_asked(observer: Acting, action: str) -> None:
    """One that nobody waits for any more keeps nobody from a pause; as long as one of those lives, it goes on."""
    me = identify(os.getpid())
    assert me is not None
    here = wire.Caller(me.pid, me.started, me.boot, me.namespace)
    gone = msgspec.structs.replace(here, started=me.started - 1.0)
    probe = observer.ask(action, caller=here)
    observer.second()
    assert observer.actions.under_way == f"{action} by ada"
    observer.ask("resume", "bob")
    observer.reply(probe)
    abandoned = observer.ask(action, "eve", caller=gone)
    observer.second()
    assert observer.reply(abandoned).text == "cancelled; the run goes on"
    assert observer.act("pause", "bob", caller=gone).done


def test_what_an_earlier_observer_was_doing_has_an_event(observer: Acting) -> None:
    """A diagnosis is lost with it; where the run is over, it is said who knows."""
    observer.actions.note_left("profile by ada (shell, pts/1)")
    observer.turn()
    assert observer.texts == ["profile: lost with its observer · ada (shell, pts/1)"]
    observer.run = msgspec.structs.replace(observer.run, state="failed")
    observer.actions.note_left("checkpoint by eve")
    observer.until(lambda: len(observer.texts) == 2, "event")
    left = "its observer left meanwhile"
    assert observer.texts[1] == f"checkpoint: {left}; `ddptop status` tells whether it was done · eve"


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_resume_cancels_a_probe_and_the_run_goes_on(observer: Acting, is_paused: bool) -> None:
    """Also where the run was paused before: the probe leaves it as it was."""
    if is_paused:
        observer.act("pause")
    probe = observer.ask("probe")
    observer.until(lambda: observer.actions.waiting.startswith("probing"), "probe")
    resume = observer.ask("resume", "bob")
    after = "the ranks stay paused" if is_paused else "the run goes on"
    assert observer.reply(probe).text == f"cancelled; {after}"
    assert observer.reply(resume).done
    observer.turn()
    assert not any(gate.held for gate in observer.gates)


def test_a_branch_leaves_to_the_head_what_is_put_right(tmp_path: Path) -> None:
    """The head knows of all ranks."""
    net = Net()
    net.side("node1", (0,))
    branch = Acting(tmp_path, 4, 4, others=net.side("node2", (1,)))
    for _ in range(9):
        branch.second(is_held=True, is_uneven=True)
    assert branch.actions.pause_s is None
    branch.close()
    net.close()


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Stop no process in truth; what was done instead."""
    done: list[object] = []

    def freeze(directory: RunDir, who: str, timeout_s: float | None) -> str:
        if done:
            raise Refused("already frozen by bob")
        done.append((who, timeout_s))
        return "frozen: 2 ranks got SIGSTOP"

    def thaw(directory: RunDir) -> str:
        done.clear()
        return "goes on after 3 s"

    monkeypatch.setattr(freezer, "freeze", freeze)
    monkeypatch.setattr(freezer, "thaw", thaw)
    monkeypatch.setattr(freezer, "has_stopped", lambda _: bool(done))
    monkeypatch.setattr(freezer, "frozen", lambda _: freezer.Frozen(1, "bob", None) if done else None)
    return done


def test_a_freeze_stops_the_processes_whatever_is_under_way(observer: Acting, stopping: list[object]) -> None:
    """With the shortest timeout of the ranks' collectives; a resume lets them go on where they are stopped."""
    for rank, timeout_s in zip(observer.ranks, (30.0, 60.0), strict=True):
        beat = msgspec.structs.replace(rank.beat(), timeout_s=timeout_s)
        rank.beat = lambda beat=beat: beat  # type: ignore[method-assign, misc]
    observer.hear()
    observer.ranks[1].pace = 0
    observer.ask("pause")
    observer.waits()
    assert observer.reply(observer.ask("freeze", "bob")).text == "frozen: 2 ranks got SIGSTOP"
    assert stopping == [("bob", 30.0)]
    assert observer.reply(observer.ask("freeze", "eve")).text == "already frozen by bob"
    assert observer.actions.under_way == "pause by ada"
    # Who is stopped answers nobody.
    observer.silent |= {0, 1}
    refused = observer.reply(b"ada-pause")
    assert (refused.done, refused.text) == (False, "frozen meanwhile by bob")
    observer.silent.clear()
    assert observer.act("resume", "eve").text == "goes on after 3 s"
    assert stopping == []
    assert observer.texts[0] == "frozen: 2 ranks got SIGSTOP · bob"
    assert observer.texts[-1] == "resume: goes on after 3 s · eve"


def test_a_freeze_is_refused_while_the_run_is_killed(observer: Acting, stopping: list[object]) -> None:
    """As all else."""
    observer.actions.is_killed = True
    assert observer.reply(observer.ask("freeze")).text == "the run is being killed"
    assert stopping == []


def test_a_run_on_several_hosts_is_not_frozen(tmp_path: Path, stopping: list[object]) -> None:
    """It is refused in one line that says what to do instead, and that is an event."""
    here = Acting(tmp_path, 4, 4, local_world=1, nodes=2)
    refused = here.act("freeze")
    assert not refused.done
    assert "several hosts" in refused.text
    assert refused.text.endswith("nothing is frozen; `ddptop pause acts` holds all hosts at the same step")
    assert (stopping, len(here.texts)) == ([], 1)
    here.close()
