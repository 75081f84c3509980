"""The controller against ranks that behave badly: either all are held at one step, or none is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ddptop.agent import wire
from ddptop.agent.control.controller import Awaiting, Busy, Cancelled, Controller, Hung, Refused, Unholdable, Unsavable
from ddptop.agent.rank.commands.follower import Follower
from ddptop.agent.rank.commands.gate import Gate, GateError, Saved
from ddptop.agent.rank.faults import Faults
from ddptop.agent.run.decisions import Decisions


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
    """A real gate and follower, and a training thread that steps when it is told to."""

    def __init__(self, steps: int, decisions: Decisions, clock: Clock) -> None:
        self.gate = Gate(clock)
        self.gate.completed = steps
        self.follower = Follower(self.gate, decisions, Faults())
        self.moving = True
        self.outstanding = 0
        self.checkpoint: Callable[[], Saved] | None = None
        self.ended = False

    def advance(self) -> None:
        """Do what the training thread would in a while: a step, or what it is asked for where it is held."""
        gate = self.gate
        if self.ended or not self.moving:
            return
        if gate.limit is not None and gate.completed >= gate.limit:
            gate.held_at_ns = gate.held_at_ns or 1
            if gate._work is not None:
                gate._saved, gate._work = gate._work(), None
            self.ended = gate.ended_by is not None
        else:
            gate.completed += 1
            gate.held_at_ns = None

    def answer(self, command: wire.Command) -> wire.Reply:
        """Answer as the publisher does."""
        gate = self.gate
        try:
            match command:
                case wire.Hold(id, token, lease, holder=holder):
                    self.follower.start_afresh()
                    return wire.Reply(id, True, "", gate.promise(token, lease / 1000, holder))
                case wire.Commit(id, token, step, lease):
                    gate.commit(token, step, lease / 1000)
                    return wire.Reply(id, True, "", step)
                case wire.Resume(id, serial):
                    self.follower.catch_up()
                    text = "goes on" if serial or gate.limit is not None else "was not paused"
                    gate.resume()
                    return wire.Reply(id, True, text, gate.completed)
                case wire.Save(id, token):
                    assert self.checkpoint is not None
                    saved = gate.save(token, self.checkpoint)
                    if saved is None:
                        return wire.Reply(id, False, "saving", pending=True)
                    return wire.Reply(id, saved.done, saved.text, took_ns=saved.took_ns)
                case wire.Query(id):
                    told = self.checkpoint is not None
                    return wire.Reply(
                        id, gate.held, "", gate.completed,
                        kept=gate.is_paused, checkpoints=told, outstanding=self.outstanding,
                    )  # fmt: skip
            self.follower.catch_up()
            return wire.Reply(command.id, True, "", gate.completed)
        except GateError as refusal:
            if isinstance(command, wire.Hold) and gate.lease is not None:
                holder, age_s = gate.lease
                return wire.Reply(command.id, False, str(refusal), held_by=holder, held_ns=int(age_s * 1e9))
            return wire.Reply(command.id, False, str(refusal), gate.completed)


class Group:
    """Ranks behind a connection that loses what it is told to lose."""

    def __init__(self, folder, steps: list[int]) -> None:
        self.clock = Clock()
        self.decisions = Decisions(folder)
        self.members = [Rank(step, self.decisions, self.clock) for step in steps]
        self.deaf: set[tuple[int, type]] = set()
        """(rank, kind of command) that never arrives."""
        self.unheard_hosts = ""

    @property
    def ranks(self) -> list[int]:
        return [rank for rank, member in enumerate(self.members) if not member.ended]

    @property
    def gates(self) -> list[Gate]:
        return [member.gate for member in self.members]

    def ask(self, commands, timeout_s):
        for member in self.members:
            member.advance()
        return {
            rank: self.members[rank].answer(command)
            for rank, command in commands.items()
            if (rank, type(command)) not in self.deaf and not self.members[rank].ended
        }

    def unheard(self, ranks):
        return self.unheard_hosts

    def departed(self):
        for member in self.members:
            member.advance()
        return {rank for rank, member in enumerate(self.members) if member.ended}

    def newest(self):
        return self.decisions.newest()

    def decide(self, serial, decision):
        return self.decisions.decide(serial, wire.encode(decision))

    def controller(self, who: str = "ada", **options) -> Controller:
        return Controller(self, who, clock=self.clock, sleep=self.clock.sleep, **options)

    def tick(self) -> None:
        """Let the agents look for decisions on their own, as they do ten times a second."""
        for member in self.members:
            if member.gate.limit is not None:
                member.follower.catch_up()


@pytest.fixture
def group_of(tmp_path):
    """Make a group of ranks that have done so many steps."""
    return lambda *steps: Group(tmp_path, list(steps))


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
    group.clock.sleep(5.0)
    group.tick()
    assert not any(gate.is_paused for gate in group.gates)
    for gate in group.gates:
        gate._lapse()
    assert [gate.limit for gate in group.gates] == [None, None, None]


def test_a_rank_that_misses_the_decision_follows_it_all_the_same(group_of):
    """One rank is not told that the hold is kept: when its lease ends it stays with the others."""
    group = group_of(1, 1, 1)
    group.deaf.add((1, wire.Keep))
    group.controller().pause()
    assert [gate.is_paused for gate in group.gates] == [True, False, True]
    group.clock.sleep(5.0)
    group.gates[1]._lapse()
    assert [(gate.limit, gate.is_paused) for gate in group.gates] == [(group.gates[0].limit, True)] * 3


def test_a_hold_that_lapses_first_cannot_be_kept(group_of, monkeypatch):
    """Where one rank has let go before the decision, the decision fails and nobody is held."""
    group = group_of(1, 1)
    controller = group.controller()
    decide = group.decide

    def late(serial, decision):
        group.clock.sleep(5.0)
        group.gates[0]._lapse()
        return decide(serial, decision)

    monkeypatch.setattr(group, "decide", late)
    with pytest.raises(Refused, match="somebody else acted"):
        controller.pause()
    group.tick()
    assert [gate.limit for gate in group.gates] == [None, None]


@pytest.mark.parametrize("act", [Controller.pause, Controller.stop])
def test_where_nothing_can_be_decided_nobody_is_held(group_of, monkeypatch, act):
    """A full disk refuses the action, and the ranks go on at once, not when their lease ends."""
    group = group_of(1, 1)

    def full(serial, decision):
        raise Refused("No space left on device")

    monkeypatch.setattr(group, "decide", full)
    with pytest.raises(Refused, match="No space left"):
        act(group.controller())
    assert [gate.limit for gate in group.gates] == [None, None]


def test_a_pause_names_the_rank_that_the_others_wait_for(group_of):
    """Of the ranks that are not held it is those outside of a collective, and all of them where there is none such."""
    for outstanding, named in (([1, 0, 1], "rank 1"), ([1, 1, 1], "ranks 0, 1, 2"), ([0, 0, 1], "ranks 0, 1")):
        group = group_of(4, 4, 4)
        told: list[str] = []
        for member, open_ones in zip(group.members, outstanding, strict=True):
            member.moving, member.outstanding = False, open_ones
        with pytest.raises(Unholdable):
            group.controller(waits=told.append).pause(patience_s=2.0)
        assert set(told) == {f"pausing: waiting for {named}"}


def test_a_pause_of_a_moment_tells_of_no_wait(group_of):
    """What is over before it could be read is not shown."""
    told: list[str] = []
    group_of(4, 5, 4).controller(waits=told.append).pause()
    assert told == []


@pytest.mark.parametrize("act", [Controller.pause, Controller.stop, Controller.checkpoint])
def test_an_action_that_waits_can_be_cancelled(group_of, act):
    """The ranks that it holds go on at once, and nothing is decided."""
    group = group_of(4, 4)
    group.members[1].moving = False
    for member in group.members:
        member.checkpoint = saves("/data/c.pt")
    told: list[str] = []
    with pytest.raises(Cancelled, match="cancelled; the run goes on"):
        act(group.controller(waits=told.append, cancelled=lambda: len(told) > 3))
    assert [gate.limit for gate in group.gates] == [None, None]
    assert group.newest() == 0
    assert "waiting for rank 1" in told[0]


@pytest.mark.parametrize("act", [Controller.pause, Controller.stop, Controller.checkpoint])
def test_ranks_of_a_run_that_hangs_are_not_waited_for(group_of, act):
    """How it hangs is told within a second, in place of a guess after a minute; nobody is held."""
    group = group_of(4, 4)
    group.members[1].moving = False
    for member in group.members:
        member.checkpoint = saves("/data/c.pt")
    with pytest.raises(Hung, match=r"^rank 1 hangs: it sleeps$"):
        act(group.controller(hangs=lambda: "rank 1 hangs: it sleeps"))
    assert group.clock.now < 1.0
    assert [gate.limit for gate in group.gates] == [None, None]


def test_a_run_that_comes_to_the_step_is_not_asked_whether_it_hangs(group_of):
    """A verdict may be older than the step that is being made; a wait that goes on asks about once a second."""
    group, asked = group_of(4, 5), []

    def hangs() -> str:
        asked.append(True)
        return ""

    group.controller(hangs=hangs).pause()
    assert asked == []
    group = group_of(4, 4)
    group.members[1].moving = False
    with pytest.raises(Unholdable):
        group.controller(hangs=hangs).pause(patience_s=5.0)
    assert 4 <= len(asked) <= 6


def test_a_step_of_a_run_that_hangs_is_not_waited_for(group_of):
    """The ranks are held where they were told to, should they come there."""
    group = group_of(4, 4)
    group.controller().pause()
    held = group.gates[0].limit
    group.members[1].moving = False
    with pytest.raises(Hung, match=f"rank 1 hangs; all are held at step {held + 2} when they come there"):
        group.controller(hangs=lambda: "rank 1 hangs").advance(2)


def test_what_waits_for_ranks_says_so_no_longer_once_they_are_held(group_of):
    """A checkpoint that comes after may take minutes: it waits for no rank, and cannot be cancelled."""
    group, told = group_of(4, 4), []
    group.members[1].moving = False

    def tell(line: str) -> None:
        told.append(line)
        group.members[1].moving = True

    def save() -> Saved:
        assert told[-1] == ""
        return Saved(True, "/data/c.pt", 1)

    for member in group.members:
        member.checkpoint = save
    group.controller(waits=tell).checkpoint()
    assert set(told[:-1]) == {"checkpoint: waiting for rank 1"}
    assert told[-1] == ""


def test_a_step_that_waits_can_be_cancelled(group_of):
    """It names the rank that it waits for; the ranks are held at the step when they come there."""
    group = group_of(4, 4)
    told: list[str] = []
    group.controller().pause()
    held = group.gates[0].limit
    group.members[1].moving = False
    with pytest.raises(Cancelled, match=f"cancelled; all ranks are held at step {held + 2} when they come there"):
        group.controller(waits=told.append, cancelled=lambda: len(told) > 3).advance(2)
    assert set(told) == {f"stepping to {held + 2}, then paused: waiting for rank 1"}
    assert [gate.limit for gate in group.gates] == [held + 2, held + 2]


def test_an_interrupted_pause_lets_the_ranks_go_at_once(group_of):
    """Ctrl+c at the terminal leaves nobody held for the rest of a lease."""
    group = group_of(4, 4)
    group.members[1].moving = False

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Cancelled, match="the run goes on"):
        group.controller(waits=interrupt).pause()
    assert [gate.limit for gate in group.gates] == [None, None]


def interrupted(group: Group, act: Callable[[Controller], object], when: Callable[[Rank], bool]) -> Controller:
    """Return a controller whose caller is interrupted as soon as something is so of a rank."""

    def sleep(seconds: float) -> None:
        group.clock.sleep(seconds)
        if any(map(when, group.members)):
            raise KeyboardInterrupt

    controller = Controller(group, "ada", clock=group.clock, sleep=sleep)
    with pytest.raises((KeyboardInterrupt, Cancelled)):
        act(controller)
    return controller


def test_what_goes_on_after_an_interrupt_is_told_from_what_is_undone(group_of):
    """Steps and an end that are decided go on, and so does a save; a stop that only saves ends nobody."""
    group = group_of(4, 4)
    group.controller().pause()
    assert interrupted(group, lambda controller: controller.advance(50), lambda rank: True).goes_on
    for act, goes_on in ((Controller.checkpoint, True), (Controller.stop, False)):
        group = group_of(4, 4)
        for member in group.members:
            member.checkpoint = saves("/data/c.pt")
        decided = group.newest()
        controller = interrupted(group, act, lambda rank: rank.gate._work is not None)
        assert controller.goes_on == goes_on
        assert [gate.limit for gate in group.gates] == [None, None]
        assert group.newest() == decided
    group.departed = set
    assert interrupted(group, Controller.stop, lambda rank: rank.gate.ended_by is not None).goes_on
    group = group_of(4, 4)
    group.members[1].moving = False
    assert not interrupted(group, Controller.pause, lambda rank: True).goes_on


def test_a_second_pause_tells_of_the_first(group_of):
    """It says who has begun what, for how long, and which ranks that waits for; a resume ends the first."""
    group = group_of(4, 4)
    group.members[1].moving = False
    seen: list[str] = []

    def second(line: str) -> None:
        if group.clock.now > 6.0 and not seen:
            with pytest.raises(Awaiting) as refusal:
                group.controller("bob (shell, pts/2)").pause()
            seen.append(str(refusal.value))
            group.controller("bob (shell, pts/2)").resume()

    with pytest.raises(Refused, match="cancelled by a resume"):
        group.controller("ada (dashboard, pts/1)", waits=second).pause()
    assert seen == ["pause by ada (dashboard, pts/1) is under way for 6 s, waiting for rank 1"]
    assert [gate.limit for gate in group.gates] == [None, None]


@pytest.mark.parametrize("kept", [True, False])
def test_a_pause_that_was_resumed_does_not_undo_the_next_one(group_of, kept):
    """Whether the other pause is done or still waits: its ranks stay held, and the first one is refused."""
    group = group_of(4, 4)
    group.members[1].moving = False
    seen: list[str] = []

    def second(line: str) -> None:
        if seen:
            return
        seen.append(line)
        group.controller("bob").resume()
        group.members[1].moving = True
        if kept:
            group.controller("bob").pause()
        else:
            group.ask({rank: wire.Hold(rank, "bob") for rank in group.ranks}, 2.0)

    with pytest.raises(Refused, match="cancelled by a resume"):
        group.controller("ada", waits=second).pause()
    assert [(gate.is_paused, gate.lease is None) for gate in group.gates] == [(kept, kept)] * 2
    assert all(gate.limit is not None for gate in group.gates)


def test_a_pause_during_a_checkpoint_is_told_of_it(group_of):
    """No rank is waited for then, so that nothing has to be frozen."""
    group = group_of(4, 4)
    refusals: list[Busy] = []
    for member in group.members:
        member.checkpoint = saves(None)
    ask = group.ask

    def saving(commands, timeout_s):
        if not refusals and isinstance(commands[0], wire.Save):
            group.ask = ask
            with pytest.raises(Busy) as refusal:
                group.controller("bob").pause()
            refusals.append(refusal.value)
        return ask(commands, timeout_s)

    group.ask = saving
    group.controller("ada (dashboard, pts/1)").checkpoint()
    (refusal,) = refusals
    assert str(refusal) == "checkpoint by ada (dashboard, pts/1) is under way for 0 s"
    assert not isinstance(refusal, Unholdable)


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
        for _ in range(steps + 2):
            group.tick()
            group.ask({}, 1)
        assert [(gate.completed, gate.held) for gate in group.gates] == [(held, True)] * 3
        group.deaf = set()
        assert group.controller().advance(1).startswith(f"held at step {held + 1} after 1 step ")
        held += 1


def test_a_resume_reaches_the_rank_that_was_not_told(group_of):
    """Nobody stays behind in a collective because a message was lost."""
    group = group_of(1, 1)
    group.controller().pause()
    group.deaf.add((1, wire.Resume))
    with pytest.raises(Refused, match="rank 1 did not answer"):
        group.controller().resume()
    group.tick()
    assert [gate.limit for gate in group.gates] == [None, None]


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
    """Also the rank that is not told, and from a pause as well."""
    group = group_of(3, 4, 3)
    group.deaf.add((1, wire.End))
    looked = group.departed

    def looks():
        group.tick()
        return looked()

    group.departed = looks
    step = int(group.controller().stop().split()[3].rstrip(","))
    assert [(gate.completed, gate.ended_by) for gate in group.gates] == [(step, "ada")] * 3
