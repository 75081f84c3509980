"""A group whose ranks and observers behave badly: either all ranks are held at one step, or none is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.fakes.acting import Acting
from support.fakes.hosts import Net

from ddptop.agent import wire
from ddptop.agent.observer.hosts.questions import OtherHosts
from ddptop.agent.wire import Saved

HUNG = wire.Verdict(1, "hang", "rank 1 hangs: it sleeps · 1,012 s", 1, hang=wire.Hang("stopped", (1,)))
OF_A_PAUSE = [wire.Hold, wire.Commit, wire.Keep]
GroupOf = Callable[..., Acting]


@pytest.fixture
def group_of(tmp_path: Path) -> Iterator[GroupOf]:
    """Make a group of ranks that have done so many steps."""
    made: list[Acting] = []

    def make(*steps: int, others: OtherHosts | None = None) -> Acting:
        made.append(Acting(tmp_path, *steps, others=others))
        return made[-1]

    yield make
    for each in made:
        each.close()


def paused(group: Acting) -> int:
    """Pause a group, and return the step."""
    return int(group.act("pause").text.split()[3].replace(",", ""))


def hangs(group: Acting) -> None:
    """Let rank 1 make no steps, and the run be judged to hang."""
    group.ranks[1].pace = 0
    group.second(hang=HUNG)


def saves(where: str | None, error: str = "") -> Callable[[], Saved]:
    """Return a checkpoint function's outcome."""
    return lambda: Saved(not error, error or where or "", 1_500_000_000)


def test_a_pause_waits_for_two_rounds(group_of: GroupOf) -> None:
    """Ranks a step apart are all held at the largest promise; a notice, which nobody waits for, lets that last."""
    group = group_of(4, 5, 4)
    asker = group.ask("pause")
    assert group.reply(asker).text.startswith("held at step 7 in ")
    assert [(gate.completed, gate.held, gate.is_paused) for gate in group.gates] == [(7, True, False)] * 3
    assert [type(command) for _, command in group.asked] == [wire.Hold] * 3 + [wire.Commit] * 3
    group.turn()
    assert [gate.is_paused for gate in group.gates] == [True] * 3
    group.goes_on()
    assert [gate.completed for gate in group.gates] == [7] * 3


@pytest.mark.parametrize("kind", [wire.Hold, wire.Commit])
def test_a_rank_that_does_not_answer_leaves_nobody_held(group_of: GroupOf, kind: type) -> None:
    """Whichever message is lost, the others are let go and the user is told who was silent."""
    group = group_of(1, 1, 1)
    group.deaf.add((1, kind))
    refused = group.act("pause")
    assert (refused.refusal, refused.text[:19]) == ("unheard", "rank 1 did not answ")
    group.turn()
    assert [gate.limit for gate in (group.gates[0], group.gates[2])] == [None, None]
    group.goes_on()
    assert group.gates[1].holding() is None


def test_a_refusal_names_the_host_that_is_not_heard(group_of: GroupOf) -> None:
    """Where a silent rank's whole host is silent, it is that which is told, and when to try again."""
    net = Net()
    here = net.side("node1", (0,))
    group = group_of(1, 1, others=here)
    net.side("node2", (1,)).is_("silent")
    group.silent.add(1)
    text = "node2 is not heard (rank 1); an action is for all ranks or none: try again when it is heard"
    assert group.act("pause").text == text
    group.second(5.0)
    assert group.act("resume").text == text, "before anybody is told to go on"
    assert not any(isinstance(command, wire.Resume) and command.token is None for _, command in group.asked)
    net.close()


@pytest.mark.parametrize("verb", ["resume", "step"])
def test_nobody_goes_on_alone_where_a_rank_has_just_fallen_silent(group_of: GroupOf, verb: str) -> None:
    """Its last sign of life is a moment old, as where a cable was cut: all ranks stay paused, or none."""
    group = group_of(4, 4)
    held = paused(group)
    group.deaf |= {(1, kind) for kind in (wire.Hold, wire.Resume, wire.Advance)}
    refused = group.act(verb)
    assert (refused.refusal, refused.text[:19]) == ("unheard", "rank 1 did not answ")
    group.turn()
    assert [(gate.completed, gate.is_paused) for gate in group.gates] == [(held, True)] * 2
    group.deaf.clear()
    assert group.act(verb).done


def test_the_record_of_a_rank_on_a_linked_host_is_waited_for(group_of: GroupOf) -> None:
    """The ranks of a host are shown before all is written of them; of a host that is not linked nothing is awaited."""
    net = Net()
    group = group_of(1, 1, others=net.side("node1", (0,)))
    there, record = net.side("node2", (1,)), group.members[1]
    group.run = msgspec.structs.replace(group.run, local_world=1)
    group.store.ranks[1].member = None
    del group.members[1]
    for state in ("silent", "gone", "alone"):
        there.is_(state)
        assert "rank 1: on another host, of which nothing is heard here" in group.act("pause").text
    there.is_("linked")
    assert group.act("pause").text == "still starting: rank 1 has not reported yet; try again in a moment"
    asker = group.ask("pause")
    for _ in range(9):
        group.turn()
    assert asker not in group.replies
    group.members[1] = record
    assert group.reply(asker).done
    net.close()


@pytest.mark.parametrize("kind", [wire.Keep, wire.Advance, wire.Resume, wire.End])
def test_what_some_ranks_have_done_is_asked_of_the_others_again(group_of: GroupOf, kind: type) -> None:
    """A message that is lost once costs a moment: all ranks are held, step, go on and end alike."""
    group = group_of(4, 4, 4)
    group.lost.add((1, kind))
    held = paused(group)
    assert [gate.is_paused for gate in group.gates] == [True] * 3
    if kind is wire.Advance:
        group.act("step", steps=2)
        assert [(gate.completed, gate.is_paused) for gate in group.gates] == [(held + 2, True)] * 3
    elif kind is wire.Resume:
        group.act("resume")
        assert [gate.limit for gate in group.gates] == [None] * 3
    elif kind is wire.End:
        group.act("stop")
        assert [(gate.completed, gate.ended_by) for gate in group.gates] == [(held, "ada")] * 3
    assert not group.lost


@pytest.mark.parametrize("kind", OF_A_PAUSE)
@pytest.mark.parametrize("first", [True, False])
def test_a_pause_whose_observer_dies_goes_on_or_lasts_on_all_ranks(group_of: GroupOf, kind: type, first: bool) -> None:
    """One rank has got its last message, or all: leases run out; the next observer adopts a pause, or undoes it."""
    group = group_of(4, 4, 4)
    group.ask("pause")
    if first:
        group.deaf |= {(1, kind), (2, kind)}
    group.until(lambda: any(type(command) is kind for _, command in group.asked), "message")
    group.succeed()
    group.goes_on()
    is_kept = kind is wire.Keep
    assert [gate.is_paused for gate in group.gates] == [is_kept, is_kept and not first, is_kept and not first]
    for _ in range(8):
        group.second(is_held=is_kept, is_uneven=is_kept and first)
    group.until(lambda: group.actions.pause_s is None, "end of that")
    if is_kept and first:
        assert group.texts[-1] == "an action was left half done, with only rank 0 held: all ranks go on"
    elif is_kept:
        held = group.gates[0].limit or 0
        assert group.act("step").text.startswith(f"held at step {held + 1} after 1 step")
        assert group.act("resume").text == f"resumed at step {held + 1}"
    assert [gate.limit for gate in group.gates] == [None] * 3


def left_half_done(group: Acting, action: str, kind: type, **more: Any) -> None:
    """Have an observer die when one rank of three has got a command, and the others not yet."""
    group.ask(action, **more)
    group.deaf |= {(1, kind), (2, kind)}
    group.until(lambda: any(type(command) is kind for _, command in group.asked), "message")
    group.succeed()
    group.goes_on()
    for _ in range(8):
        group.second(is_held=True, is_uneven=True)
    group.until(lambda: group.actions.pause_s is None, "end of what is put right")


def test_a_resume_that_has_reached_some_ranks_alone_is_completed(group_of: GroupOf) -> None:
    """Nobody stays behind in a collective."""
    group = group_of(4, 4, 4)
    paused(group)
    left_half_done(group, "resume", wire.Resume)
    assert group.texts[-1] == "an action was left half done, with only ranks 1-2 held: all ranks go on"
    assert [gate.limit for gate in group.gates] == [None] * 3


def test_a_step_that_has_reached_some_ranks_alone_is_completed(group_of: GroupOf) -> None:
    """All are held at the step that was asked for, by their own count."""
    group = group_of(4, 4, 4)
    held = paused(group)
    left_half_done(group, "step", wire.Advance, steps=3)
    assert group.texts[-1].startswith("a step was left half done: all ranks go on to step 9")
    group.goes_on()
    assert [(gate.completed, gate.is_paused) for gate in group.gates] == [(held + 3, True)] * 3


def test_a_stop_that_has_ended_some_ranks_alone_is_completed(group_of: GroupOf) -> None:
    """The others end at the same step, by the same author."""
    group = group_of(4, 4, 4)
    held = paused(group)
    left_half_done(group, "stop", wire.End)
    assert group.texts[-1] == "a stop by ada was left half done: ranks 1-2 ended, too"
    group.turn()
    assert [(gate.completed, gate.ended_by) for gate in group.gates] == [(held, "ada")] * 3


def test_a_hold_whose_lease_ends_meanwhile_is_refused(group_of: GroupOf) -> None:
    """The observer was out of reach for too long: the ranks have let go, and nobody is held."""
    group = group_of(1, 1)
    group.ranks[1].pace = 0
    asker = group.ask("pause")
    group.waits()
    group.turn(5.0)
    refused = group.reply(asker)
    assert refused.text == "the ranks were out of reach for too long; the run goes on"
    group.goes_on()
    assert [gate.holding() for gate in group.gates] == [None, None]


def test_the_lease_is_renewed_without_an_answer(group_of: GroupOf) -> None:
    """A rank that takes half a minute to come to the step is held with the others."""
    group = group_of(1, 1)
    group.ranks[1].pace = 0
    asker = group.ask("pause")
    group.until(lambda: group.clock.now > 30.0, "time")
    assert group.gates[0].held
    group.ranks[1].pace = 1
    assert group.reply(asker).done


def test_a_pause_names_the_rank_that_the_others_wait_for(group_of: GroupOf) -> None:
    """Of the ranks that are not held it is those outside of a collective, and all of them where there is none such."""
    for outstanding, named in (([1, 0, 1], "rank 1"), ([1, 1, 1], "ranks 0-2"), ([0, 0, 1], "ranks 0-1")):
        group = group_of(4, 4, 4)
        for rank, calls in zip(group.ranks, outstanding, strict=True):
            rank.pace, rank.outstanding = 0, calls
        assert group.act("pause").refusal == "unholdable"
        assert group.waiting == [f"pausing: waiting for {named}"]


def test_a_pause_of_a_moment_tells_of_no_wait(group_of: GroupOf) -> None:
    """What is over before it could be read is not shown."""
    group = group_of(4, 5, 4)
    paused(group)
    assert group.waiting == []


@pytest.mark.parametrize("action", ["pause", "stop", "checkpoint"])
def test_an_action_that_waits_can_be_cancelled(group_of: GroupOf, action: str) -> None:
    """The ranks that it holds go on at once; of a run that hangs nobody waits for a minute."""
    for is_cancelled in (True, False):
        group = group_of(4, 4)
        group.ranks[1].pace = 0
        for rank in group.ranks:
            rank.checkpoint = saves("/data/c.pt")
        group.hear()
        if not is_cancelled:
            group.second(hang=HUNG)
        asker = group.ask(action)
        if is_cancelled:
            assert "waiting for rank 1" in group.waits()
            assert group.cancel(asker)
        refused, at = group.reply(asker), group.clock.now
        if is_cancelled:
            assert (refused.refusal, refused.text) == ("cancelled", "cancelled; the run goes on")
        else:
            assert (refused.refusal, refused.text) == ("hung", "rank 1 hangs: it sleeps")
            assert at < 2.5
        group.turn()
        assert [gate.limit for gate in group.gates] == [None, None]


def test_a_run_that_comes_to_the_step_is_held_whatever_is_said_of_it(group_of: GroupOf) -> None:
    """A verdict may be older than the step that is being made."""
    group = group_of(4, 5)
    group.second(hang=HUNG)
    assert "held at step" in group.act("pause").text


@pytest.mark.parametrize("is_hung", [True, False])
def test_a_step_that_waits_can_be_cancelled(group_of: GroupOf, is_hung: bool) -> None:
    """It names the rank that it waits for; the ranks are held at the step when they come there."""
    group = group_of(4, 4)
    held = paused(group)
    group.ranks[1].pace = 0
    if is_hung:
        group.second(hang=HUNG)
    asker = group.ask("step", steps=2)
    if not is_hung:
        assert group.waits() == f"stepping to {held + 2}, then paused: waiting for rank 1"
        assert group.cancel(asker)
    why = "rank 1 hangs: it sleeps" if is_hung else "cancelled"
    assert group.reply(asker).text == f"{why}; all ranks are held at step {held + 2} when they come there"
    assert [gate.limit for gate in group.gates] == [held + 2, held + 2]


def test_what_waits_for_ranks_says_so_no_longer_once_they_are_held(group_of: GroupOf) -> None:
    """A checkpoint that comes after may take minutes: it waits for no rank, and cannot be cancelled."""
    group = group_of(4, 4)
    group.ranks[1].pace = 0
    seen: list[tuple[str, bool]] = []

    def save() -> Saved:
        seen.append((group.actions.waiting, group.cancel(b"ada-checkpoint")))
        return Saved(True, "/data/c.pt", 1)

    for rank in group.ranks:
        rank.checkpoint = save
    group.hear()
    asker = group.ask("checkpoint")
    assert group.waits() == "checkpoint: waiting for rank 1"
    group.ranks[1].pace = 1
    group.until(lambda: len(seen) == 2, "checkpoints")
    assert seen == [("", False)] * 2
    assert group.reply(asker).done


def test_a_group_without_steps_is_told_so_and_goes_on(group_of: GroupOf) -> None:
    """A rank that never comes to the boundary is named, and all are let go; sooner where no rank has made a step."""
    group = group_of(1, 1)
    group.ranks[1].pace = 0
    assert "rank 1 did not finish step 3 within 60 s" in group.act("pause").text
    group.goes_on()
    assert [gate.holding() for gate in group.gates] == [None, None]
    group = group_of(0, 0)
    for rank in group.ranks:
        rank.pace = 0
    refused = group.act("pause")
    assert (refused.refusal, refused.text[:28]) == ("unholdable", "no rank has completed an opt")
    assert group.clock.now < 12


def test_ranks_that_do_not_count_alike_are_told_apart_at_once(group_of: GroupOf) -> None:
    """Counts that are hundreds apart have no common step: nobody waits for it."""
    group = group_of(12, 400)
    assert "do not share a step count" in group.act("pause").text
    assert group.clock.now < 1
    group.turn()
    assert [gate.limit for gate in group.gates] == [None, None]


def test_a_second_pause_does_not_undo_the_first(group_of: GroupOf) -> None:
    """Refused with the step at which the run is held, which it still is."""
    group = group_of(1, 1)
    held = paused(group)
    assert group.act("pause").text == f"already paused at step {held}"
    assert [gate.limit for gate in group.gates] == [held, held]
    assert group.act("resume").text == f"resumed at step {held}"
    assert group.act("resume").text == "not paused"


def test_a_step_is_exact_whatever_is_lost(group_of: GroupOf) -> None:
    """All ranks come to the same target, also the one that was not told."""
    group = group_of(7, 7, 7)
    assert group.act("step").text == "not paused; pause it first"
    held = paused(group)
    for steps in (1, 10, 3):
        group.deaf = {(steps % 3, wire.Advance)}
        assert f"rank {steps % 3} did not answer" in group.act("step", steps=steps).text
        held += steps
        group.deaf = set()
        for _ in range(8):
            group.second(is_held=True, is_uneven=True)
        group.goes_on()
        assert [(gate.completed, gate.held) for gate in group.gates] == [(held, True)] * 3
        assert group.act("step").text.startswith(f"held at step {held + 1} after 1 step ")
        held += 1


def test_a_rank_that_ends_between_two_rounds_does_not_hold_up_the_others(group_of: GroupOf) -> None:
    """One script is over while the pause is under way: the others are held without it."""
    for kind in (wire.Hold, wire.Commit):
        group = group_of(5, 5, 5)
        group.ask("pause")
        group.until(lambda kind=kind, group=group: kind in {type(each) for _, each in group.asked}, "message")  # type: ignore[misc]
        group.ranks[2].has_ended = True
        assert group.reply(b"ada-pause").done
        group.until(lambda group=group: group.actions.pause_s is None, "end of it")  # type: ignore[misc]
        assert [gate.is_paused for gate in group.gates[:2]] == [True, True]
        assert group.act("step", steps=2).done


def test_a_checkpoint_is_saved_at_one_step_and_the_run_goes_on(group_of: GroupOf) -> None:
    """All ranks save where they are held; the answer names the place once; a paused run stays paused."""
    group = group_of(3, 4)
    assert group.act("checkpoint").refusal == "unsavable"
    group.ranks[0].checkpoint = saves("/data/c.pt")
    group.hear()
    assert group.act("checkpoint").text == "no checkpoint function on rank 1; every rank must register one"
    group.ranks[1].checkpoint = saves(None)
    group.hear()
    assert group.act("checkpoint").text.endswith("saved in /data/c.pt (1.5 s)")
    assert [gate.limit for gate in group.gates] == [None, None]
    paused(group)
    assert group.act("checkpoint").done
    assert [gate.is_paused for gate in group.gates] == [True, True]


@pytest.mark.parametrize(("savers", "says"), [((0, 1), ""), ((0,), " by rank 0")])
def test_a_checkpoint_is_known_without_the_observer_that_has_asked(
    group_of: GroupOf, savers: tuple[int, ...], says: str
) -> None:
    """The ranks have saved, or some, and nobody was told: they say it to whoever comes next, once they go on."""
    group = group_of(4, 4)
    for rank in group.ranks:
        rank.checkpoint = lambda: Saved(True, "/data/c.pt", 1_500_000_000, 6)
    group.hear()
    group.ask("checkpoint", "eve")
    group.deaf |= {(rank, wire.Save) for rank in (0, 1) if rank not in savers}
    group.until(lambda: any(type(each) is wire.Save for _, each in group.asked), "message")
    group.succeed()
    group.actions.note_left("checkpoint by eve")
    group.until(lambda: group.texts, "event")
    left = "checkpoint: its observer left meanwhile"
    assert group.texts[-1] == f"{left}; step 6 saved in /data/c.pt (1.5 s){says}; the run goes on · eve"
    assert group.act("checkpoint").done
    group.actions.note_left("checkpoint by eve")
    group.until(lambda: len(group.texts) == 3, "event")
    assert group.texts[-1] == f"{left}; the run goes on · eve", "whoever has asked was told"


def test_steps_are_known_without_the_observer_that_has_asked(group_of: GroupOf) -> None:
    """The ranks go on to the step, and are held there; it is said once they are."""
    group = group_of(4, 4)
    held = paused(group)
    group.ask("step", "bob", steps=20)
    group.until(lambda: any(type(each) is wire.Advance for _, each in group.asked), "message")
    group.succeed()
    group.actions.note_left("step 20 by bob")
    group.turn(0.0)
    assert group.actions.under_way == "", "nobody has asked for it here"
    group.until(lambda: len(group.texts) == 2, "event")
    assert group.texts[-1] == f"step 20: its observer left meanwhile; all ranks are held at step {held + 20} · bob"


def test_a_checkpoint_that_fails_ends_nothing(group_of: GroupOf) -> None:
    """The rank and its words are told; neither checkpoint nor stop ends or holds a run that could not be saved."""
    group = group_of(3, 3)
    group.ranks[0].checkpoint, group.ranks[1].checkpoint = saves("/data/c.pt"), saves(None, "OSError: disk full")
    group.hear()
    for action in ("checkpoint", "stop"):
        assert group.act(action).text == "no checkpoint, the run goes on: rank 1: OSError: disk full"
        group.turn()
        assert [(gate.limit, gate.ended_by) for gate in group.gates] == [(None, None)] * 2
    assert "without a checkpoint" in group.act("stop", checkpoint=False).text


def test_a_stop_ends_all_at_one_step(group_of: GroupOf) -> None:
    """Whether their counts differ by one, or they were paused."""
    group = group_of(3, 4, 3)
    step = int(group.act("stop").text.split()[3].rstrip(","))
    assert [(gate.completed, gate.ended_by) for gate in group.gates] == [(step, "ada")] * 3
