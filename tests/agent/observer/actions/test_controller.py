"""The controller against ranks that behave badly: either all are held at one step, or none is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from ddptop.agent import wire
from ddptop.agent.observer.actions.controller import Controller
from ddptop.agent.observer.actions.polled import PolledRanks
from ddptop.agent.observer.actions.wait import Wait
from ddptop.agent.rank.commands.gate import Gate, GateError
from ddptop.agent.wire import Saved
from ddptop.agent.wire.refusals import Cancelled, Hung, Refused, Unholdable, Unsavable


class Clock:
    """A clock that moves when somebody sleeps, and a little whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Rank:
    """A real gate, and a training thread that steps when it is told to."""

    def __init__(self, steps: int, clock: Clock) -> None:
        self.gate = Gate(clock)
        self.gate.completed = steps
        self.moving = True
        self.outstanding = 0
        self.checkpoint: Callable[[], Saved] | None = None
        self.ended = False

    def advance(self) -> None:
        """Do what the training thread would in a while: a step, or what it is asked for where it is held."""
        gate = self.gate
        if self.ended or not self.moving:
            return
        with gate.lock:
            gate._lapse()
        if gate.limit is not None and gate.completed >= gate.limit:
            gate.held_at_ns = gate.held_at_ns or 1
            if gate._work is not None:
                gate._outcome = gate.untold = gate._work()
                gate._work = None
            self.ended = gate.ended_by is not None
        else:
            gate.completed += 1
            gate.held_at_ns = None

    def answer(self, command: wire.Command) -> wire.Reply:
        """Answer as the publisher does."""
        gate = self.gate
        try:
            match command:
                case wire.Hold(id, token, lease):
                    return wire.Reply(id, True, "", gate.promise(token, lease / 1000))
                case wire.Commit(id, token, step, lease):
                    gate.commit(token, step, lease / 1000)
                    return wire.Reply(id, True, "", step)
                case wire.Advance(id, step):
                    gate.advance(step)
                    return wire.Reply(id, True, "", step)
                case wire.End(id, who):
                    gate.end(who)
                    return wire.Reply(id, True, "", gate.completed)
                case wire.Resume(id):
                    text = "goes on" if gate.limit is not None else "was not paused"
                    gate.resume()
                    return wire.Reply(id, True, text, gate.completed)
                case wire.Save(id, token):
                    assert self.checkpoint is not None
                    saved = gate.do(token, token, "saving a checkpoint", self.checkpoint)
                    if saved is None:
                        return wire.Reply(id, False, "saving", pending=True)
                    return wire.Reply(id, saved.done, saved.text, took_ns=saved.took_ns)
                case wire.Query(id):
                    told = self.checkpoint is not None
                    return wire.Reply(
                        id, gate.held, "", gate.completed,
                        kept=gate.is_paused, checkpoints=told, outstanding=self.outstanding, limit=gate.limit,
                        saved=gate.untold if isinstance(gate.untold, Saved) else None,
                    )  # fmt: skip
            raise AssertionError(f"no rank is sent {command}")
        except GateError as refusal:
            return wire.Reply(command.id, False, str(refusal), gate.completed)


class Watched(Wait):
    """Notes what it waits for, and is cancelled after some lines."""

    def __init__(self, clock: Clock, most: float = math.inf) -> None:
        super().__init__(clock, self._sleep)
        self._clock, self._most = clock, most
        self.told: list[str] = []

    def _sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)
        self.told += [self.line] if self.line else []
        self.is_cancelled = len(self.told) > self._most


class Group:
    """Ranks behind a connection that loses what it is told to lose."""

    def __init__(self, steps: list[int]) -> None:
        self.clock = Clock()
        self.members = [Rank(step, self.clock) for step in steps]
        self.deaf: set[tuple[int, type]] = set()
        """(rank, kind of command) that never arrives."""
        self.lost: set[tuple[int, type]] = set()
        """Those of which the next one does not arrive."""
        self.unheard_hosts = ""

    @property
    def ranks(self) -> list[int]:
        return [rank for rank, member in enumerate(self.members) if not member.ended]

    @property
    def gates(self) -> list[Gate]:
        return [member.gate for member in self.members]

    def send(self, command, ranks, timeout_s):
        for member in self.members:
            member.advance()
        unheard = self.deaf | self.lost
        self.lost -= {(rank, type(command)) for rank in ranks}
        heard = [rank for rank in ranks if (rank, type(command)) not in unheard]
        if len(heard) < len(ranks):
            self.clock.sleep(timeout_s)
        return {rank: self.members[rank].answer(command) for rank in heard if not self.members[rank].ended}

    def unheard(self, ranks):
        return self.unheard_hosts

    def departed(self):
        for member in self.members:
            member.advance()
        return {rank for rank, member in enumerate(self.members) if member.ended}

    def controller(self, wait: Wait | None = None) -> Controller:
        return Controller(Connected(self), "ada", wait or Watched(self.clock))

    def goes_on(self, steps: int = 20) -> None:
        """Let the training threads make steps, as far as they may, and leases run out that nobody renews."""
        self.clock.sleep(5.0)
        for gate in self.gates:
            with gate.lock:
                gate._lapse()
        for _ in range(steps):
            self.departed()


@pytest.fixture
def group_of():
    """Make a group of ranks that have done so many steps."""
    return lambda *steps: Group(list(steps))


def test_laggards_run_up_to_the_foremost(group_of):
    """Ranks a step apart are all held at the largest promise."""
    group = group_of(4, 5, 4)
    assert group.controller().pause().startswith("held at step 7 ")
    assert [(gate.completed, gate.held, gate.is_paused) for gate in group.gates] == [(7, True, True)] * 3


def test_a_refusal_names_the_host_that_is_not_heard(group_of):
    """Where a silent rank's whole host is silent, it is that which is told, and when to try again."""
    group = group_of(1, 1, 1)
    group.deaf.add((1, wire.Query))
    group.unheard_hosts = "node2 is not heard (rank 1)"
    with pytest.raises(Refused, match=r"^node2 is not heard \(rank 1\); an action is for all ranks or none: try again"):
        group.controller().pause()


@pytest.mark.parametrize("kind", [wire.Hold, wire.Commit, wire.Query])
def test_a_rank_that_does_not_answer_leaves_nobody_held(group_of, kind):
    """Whichever message is lost, the others are let go and the user is told who was silent."""
    group = group_of(1, 1, 1)
    group.deaf.add((1, kind))
    with pytest.raises(Refused, match="rank 1 did not answer"):
        group.controller().pause()
    group.goes_on()
    assert [gate.limit for gate in group.gates] == [None, None, None]


@pytest.mark.parametrize("kind", [wire.Commit, wire.Advance, wire.Resume, wire.End])
def test_what_some_ranks_have_done_is_asked_of_the_others_again(group_of, kind):
    """A message that is lost once costs a moment: all ranks are held, step, go on and end alike."""
    group = group_of(4, 4, 4)
    held = int(group.controller().pause().split()[3])
    if kind is wire.Commit:
        group.controller().resume()
        send = group.send

        def losing(command, ranks, timeout_s):
            if isinstance(command, wire.Commit) and not command.lease_ms:
                # The one that ends the lease.
                group.send = send
                group.lost.add((1, kind))
            return send(command, ranks, timeout_s)

        group.send = losing
        group.controller().pause()
        assert group.send is send
        assert [gate.is_paused for gate in group.gates] == [True] * 3
    group.lost.add((1, kind))
    if kind is wire.Advance:
        group.controller().advance(2)
        assert [(gate.completed, gate.is_paused) for gate in group.gates] == [(held + 2, True)] * 3
    elif kind is wire.Resume:
        group.controller().resume()
        assert [gate.limit for gate in group.gates] == [None] * 3
    elif kind is wire.End:
        group.controller().stop()
        assert [(gate.completed, gate.ended_by) for gate in group.gates] == [(held, "ada")] * 3
    assert len({(gate.limit, gate.is_paused) for gate in group.gates}) == 1


def test_a_hold_that_lapses_first_cannot_be_kept(group_of, monkeypatch):
    """Where one rank has let go before the lease is ended on all, nobody is held."""
    group = group_of(1, 1)
    send = group.send

    def late(command, ranks, timeout_s):
        if isinstance(command, wire.Commit) and not command.lease_ms:
            group.clock.sleep(5.0)
            with group.gates[0].lock:
                group.gates[0]._lapse()
        return send(command, ranks, timeout_s)

    monkeypatch.setattr(group, "send", late)
    with pytest.raises(Refused, match="the ranks were out of reach for too long; the run goes on"):
        group.controller().pause()
    assert [gate.limit for gate in group.gates] == [None, None]


def dies_after(group: Any, kind: type, act: Callable[[Controller], object]) -> None:
    """Have an action end, as with its process, when one rank of three has got a command, and the others not yet."""
    send = group.send

    def dying(command, ranks, timeout_s):
        if not isinstance(command, kind) or getattr(command, "lease_ms", None):
            return send(command, ranks, timeout_s)
        send(command, [0], timeout_s)
        raise SystemExit

    group.send = dying
    with pytest.raises(SystemExit):
        act(group.controller())
    group.send = send
    group.goes_on(3)


def test_a_pause_that_was_kept_on_some_ranks_alone_is_undone(group_of):
    """The lease of the others has run out: their next collective waits for the one that is held, until it goes on."""
    group = group_of(4, 4, 4)
    dies_after(group, wire.Commit, Controller.pause)
    assert [gate.is_paused for gate in group.gates] == [True, False, False]
    assert group.controller().settle("") == "an action was left half done, with only rank 0 held: all ranks go on"
    assert [gate.limit for gate in group.gates] == [None] * 3


def test_a_resume_that_has_reached_some_ranks_alone_is_completed(group_of):
    """Nobody stays behind in a collective."""
    group = group_of(4, 4, 4)
    group.controller().pause()
    dies_after(group, wire.Resume, Controller.resume)
    assert "only ranks 1-2 held: all ranks go on" in group.controller().settle("")
    assert [gate.limit for gate in group.gates] == [None] * 3


def test_a_step_that_has_reached_some_ranks_alone_is_completed(group_of):
    """All are held at the step that was asked for, by their own count."""
    group = group_of(4, 4, 4)
    held = int(group.controller().pause().split()[3])
    dies_after(group, wire.Advance, lambda controller: controller.advance(3))
    assert [gate.completed for gate in group.gates] == [held + 3, held, held]
    assert group.controller().settle("").startswith("a step was left half done: all ranks go on to step 9")
    group.goes_on()
    assert [(gate.completed, gate.is_paused) for gate in group.gates] == [(held + 3, True)] * 3
    assert group.controller().settle("") == ""


def test_a_stop_that_has_ended_some_ranks_alone_is_completed(group_of):
    """The others end at the same step, by the same author."""
    group = group_of(4, 4, 4)
    held = int(group.controller().pause().split()[3])
    dies_after(group, wire.End, Controller.stop)
    assert group.ranks == [1, 2]
    assert group.controller().settle("ada") == "a stop by ada was left half done: ranks 1-2 ended, too"
    assert [(gate.completed, gate.ended_by) for gate in group.gates] == [(held, "ada")] * 3


def test_a_group_that_is_paused_or_free_is_left_so(group_of):
    """What was not left half done is nobody's to put right."""
    group = group_of(4, 4)
    assert group.controller().settle("") == ""
    group.controller().pause()
    assert group.controller().settle("") == ""
    assert [gate.is_paused for gate in group.gates] == [True, True]


def test_a_pause_names_the_rank_that_the_others_wait_for(group_of):
    """Of the ranks that are not held it is those outside of a collective, and all of them where there is none such."""
    for outstanding, named in (([1, 0, 1], "rank 1"), ([1, 1, 1], "ranks 0-2"), ([0, 0, 1], "ranks 0-1")):
        group = group_of(4, 4, 4)
        wait = Watched(group.clock)
        for member, open_ones in zip(group.members, outstanding, strict=True):
            member.moving, member.outstanding = False, open_ones
        with pytest.raises(Unholdable):
            group.controller(wait).pause(patience_s=2.0)
        assert set(wait.told) == {f"pausing: waiting for {named}"}


def test_a_pause_of_a_moment_tells_of_no_wait(group_of):
    """What is over before it could be read is not shown."""
    group = group_of(4, 5, 4)
    wait = Watched(group.clock)
    group.controller(wait).pause()
    assert wait.told == []


@pytest.mark.parametrize("act", [Controller.pause, Controller.stop, Controller.checkpoint])
def test_an_action_that_waits_can_be_cancelled(group_of, act):
    """The ranks that it holds go on at once."""
    group = group_of(4, 4)
    group.members[1].moving = False
    for member in group.members:
        member.checkpoint = saves("/data/c.pt")
    wait = Watched(group.clock, most=3)
    with pytest.raises(Cancelled, match="cancelled; the run goes on"):
        act(group.controller(wait))
    assert [gate.limit for gate in group.gates] == [None, None]
    assert "waiting for rank 1" in wait.told[0]


@pytest.mark.parametrize("act", [Controller.pause, Controller.stop, Controller.checkpoint])
def test_ranks_of_a_run_that_hangs_are_not_waited_for(group_of, act):
    """How it hangs is told within a second, in place of a guess after a minute; nobody is held."""
    group = group_of(4, 4)
    group.members[1].moving = False
    for member in group.members:
        member.checkpoint = saves("/data/c.pt")
    with pytest.raises(Hung, match=r"^rank 1 hangs: it sleeps$"):
        act(group.controller(hanging(group, "rank 1 hangs: it sleeps")))
    assert group.clock.now < 1.0
    assert [gate.limit for gate in group.gates] == [None, None]


def test_a_run_that_comes_to_the_step_is_held_whatever_is_said_of_it(group_of):
    """A verdict may be older than the step that is being made."""
    group = group_of(4, 5)
    assert "held at step" in group.controller(hanging(group, "rank 1 hangs")).pause()


def test_a_step_of_a_run_that_hangs_is_not_waited_for(group_of):
    """The ranks are held where they were told to, should they come there."""
    group = group_of(4, 4)
    group.controller().pause()
    held = group.gates[0].limit
    group.members[1].moving = False
    with pytest.raises(Hung, match=f"rank 1 hangs; all ranks are held at step {held + 2} when they come there"):
        group.controller(hanging(group, "rank 1 hangs")).advance(2)


def test_what_waits_for_ranks_says_so_no_longer_once_they_are_held(group_of):
    """A checkpoint that comes after may take minutes: it waits for no rank, and cannot be cancelled."""
    group = group_of(4, 4)
    wait = Watched(group.clock)
    group.members[1].moving = False

    def move(seconds: float) -> None:
        wait._sleep(seconds)
        group.members[1].moving = bool(wait.told)

    def save() -> Saved:
        assert (wait.line, wait.is_decided) == ("", True)
        return Saved(True, "/data/c.pt", 1)

    wait.sleep = move
    for member in group.members:
        member.checkpoint = save
    group.controller(wait).checkpoint()
    assert set(wait.told) == {"checkpoint: waiting for rank 1"}


def test_a_step_that_waits_can_be_cancelled(group_of):
    """It names the rank that it waits for; the ranks are held at the step when they come there."""
    group = group_of(4, 4)
    wait = Watched(group.clock, most=3)
    group.controller().pause()
    held = group.gates[0].limit
    group.members[1].moving = False
    with pytest.raises(Cancelled, match=f"cancelled; all ranks are held at step {held + 2} when they come there"):
        group.controller(wait).advance(2)
    assert set(wait.told) == {f"stepping to {held + 2}, then paused: waiting for rank 1"}
    assert [gate.limit for gate in group.gates] == [held + 2, held + 2]


def test_a_group_without_steps_is_told_so_and_goes_on(group_of):
    """A rank that never comes to the boundary is named, and all are let go."""
    group = group_of(1, 1)
    group.members[1].moving = False
    with pytest.raises(Unholdable, match="rank 1 did not finish step 3 within 60 s"):
        group.controller().pause()
    assert [gate.limit for gate in group.gates] == [None, None]


def test_a_group_that_has_never_stepped_is_not_waited_for_long(group_of):
    """Without a single optimizer step there may be none to come, and nobody waits a minute for it."""
    group = group_of(0, 0)
    for member in group.members:
        member.moving = False
    with pytest.raises(Unholdable, match="no rank has completed an optimizer step yet"):
        group.controller().pause()
    assert group.clock.now < 12
    assert [gate.limit for gate in group.gates] == [None, None]


def test_ranks_that_do_not_count_alike_are_told_apart_at_once(group_of):
    """Counts that are hundreds apart have no common step: nobody waits for it."""
    group = group_of(12, 400)
    with pytest.raises(Unholdable, match="do not share a step count"):
        group.controller().pause()
    assert group.clock.now < 1
    assert [gate.limit for gate in group.gates] == [None, None]


def test_a_second_pause_does_not_undo_the_first(group_of):
    """Refused with the step at which the run is held, which it still is."""
    group = group_of(1, 1)
    group.controller().pause()
    with pytest.raises(Refused, match="already paused at step 3"):
        group.controller().pause()
    assert [gate.limit for gate in group.gates] == [3, 3]
    assert group.controller().resume() == "resumed at step 3"
    with pytest.raises(Refused, match="not paused"):
        group.controller().resume()


def test_a_step_is_exact_whatever_is_lost(group_of):
    """All ranks come to the same target, also the one that was not told."""
    group = group_of(7, 7, 7)
    with pytest.raises(Refused, match="not paused; pause it first"):
        group.controller().advance(1)
    held = int(group.controller().pause().split()[3])
    for steps in (1, 10, 3):
        group.deaf = {(steps % 3, wire.Advance)}
        with pytest.raises(Refused, match=f"rank {steps % 3} did not answer"):
            group.controller().advance(steps)
        held += steps
        group.deaf = set()
        group.controller().settle("")
        group.goes_on()
        assert [(gate.completed, gate.held) for gate in group.gates] == [(held, True)] * 3
        assert group.controller().advance(1).startswith(f"held at step {held + 1} after 1 step ")
        held += 1


def test_a_rank_that_ends_does_not_hold_up_the_others(group_of):
    """One script is over while the pause is under way: the others are held without it."""
    group = group_of(5, 5, 5)
    answer = group.members[2].answer

    def ends(command):
        reply = answer(command)
        group.members[2].ended = isinstance(command, wire.Commit)
        return reply

    group.members[2].answer = ends
    assert group.controller().pause().startswith("held at step 7 ")
    assert [gate.held for gate in group.gates] == [True, True, False]
    assert group.controller().advance(2).startswith("held at step 9 ")


class Connected(PolledRanks):
    """The ranks of such a group, for one action."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.ranks)
        self._group = group

    def send(self, command, ranks, timeout_s):
        return self._group.send(command, ranks, timeout_s)

    def departed(self):
        return self._group.departed()

    def unheard(self, ranks):
        return self._group.unheard(ranks)


def hanging(group: Group, line: str) -> Wait:
    """Return the wait of an action on a run of which a hang was judged."""
    wait = Watched(group.clock)
    wait.hang = line
    return wait


def saves(where: str | None, error: str = ""):
    """Return a checkpoint function's outcome."""
    return lambda: Saved(not error, error or where or "", 1_500_000_000)


def test_a_checkpoint_is_saved_at_one_step_and_the_run_goes_on(group_of):
    """All ranks save where they are held; the answer names the place once; a paused run stays paused."""
    group = group_of(3, 4)
    with pytest.raises(Unsavable, match="no checkpoint function registered"):
        group.controller().checkpoint()
    group.members[0].checkpoint = saves("/data/c.pt")
    with pytest.raises(Refused, match="no checkpoint function on rank 1; every rank must register one"):
        group.controller().checkpoint()
    group.members[1].checkpoint = saves(None)
    said = group.controller().checkpoint()
    assert said.endswith("saved in /data/c.pt (1.5 s)")
    assert [gate.limit for gate in group.gates] == [None, None]
    group.controller().pause()
    group.controller().checkpoint()
    assert [gate.is_paused for gate in group.gates] == [True, True]


@pytest.mark.parametrize(("savers", "says"), [((0, 1), ""), ((0,), " by rank 0")])
def test_a_checkpoint_is_known_without_the_observer_that_has_asked(group_of, savers, says):
    """The ranks have saved, or some, and nobody was told: they say it to whoever asks next, once they go on."""
    group = group_of(4, 4)
    for rank, member in enumerate(group.members):
        member.checkpoint = lambda: Saved(True, "/data/c.pt", 1_500_000_000, 6)
        for command in (wire.Hold(0, "t", 4000), wire.Commit(0, "t", 6, 4000)):
            assert member.answer(command).done
        for _ in range(3):
            member.advance()
        assert rank not in savers or member.answer(wire.Save(0, "t")).pending
    assert group.controller().follow_up(saves=True) == f"step 6 saved in /data/c.pt (1.5 s){says}; the run goes on"
    assert group.controller().follow_up(saves=False) == "the run goes on"
    group.controller().checkpoint()
    assert group.controller().follow_up(saves=True) == "the run goes on", "whoever has asked was told"


def test_steps_are_known_without_the_observer_that_has_asked(group_of):
    """The ranks go on to the step, and are held there; it is said once they are. At two steps nobody is waited for."""
    group = group_of(4, 4)
    group.controller().pause()
    target = group.gates[0].limit + 20
    for member in group.members:
        member.answer(wire.Advance(0, target))
    assert group.controller().follow_up(saves=False) == f"all ranks are held at step {target}"
    group.members[0].answer(wire.Advance(0, target + 5))
    group.controller().follow_up(saves=False)
    assert [gate.limit for gate in group.gates] == [target + 5, target], "to put that right is another action"


def test_a_checkpoint_that_fails_ends_nothing(group_of):
    """The rank and its words are told; neither checkpoint nor stop ends or holds a run that could not be saved."""
    group = group_of(3, 3)
    group.members[0].checkpoint = saves("/data/c.pt")
    group.members[1].checkpoint = saves(None, "OSError: disk full")
    for act in (Controller.checkpoint, Controller.stop):
        with pytest.raises(Refused, match="no checkpoint, the run goes on: rank 1: OSError: disk full"):
            act(group.controller())
        assert [(gate.limit, gate.ended_by) for gate in group.gates] == [(None, None)] * 2
    assert "without a checkpoint" in group.controller().stop(checkpoint=False)


def test_a_stop_ends_all_at_one_step(group_of):
    """Whether their counts differ by one, or they were paused."""
    group = group_of(3, 4, 3)
    step = int(group.controller().stop().split()[3].rstrip(","))
    assert [(gate.completed, gate.ended_by) for gate in group.gates] == [(step, "ada")] * 3
