"""The observer that was there from the beginning and one that comes in its place say the same of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.screens.frames import frame_at

from ddptop.agent import wire
from ddptop.agent.client.frame import Frame
from ddptop.agent.observer.model.situation import Liveness, Supervision
from ddptop.agent.observer.model.store import Store
from ddptop.agent.run.identity import Process, Row
from ddptop.agent.run.rundir import Ended, Member, Run
from ddptop.agent.run.switches.thresholds import Thresholds
from ddptop.agent.wire.frames import ENDED
from ddptop.tui.cli.output import status

WORLD = 2
RUN = Run("toy-1", "id", "toy.py", (), WORLD, "gloo", "cpu", 10**9, True, max_restarts=50)
SILENT_S = Thresholds().silent_s
GRAY = ("starting", "silent", "frozen")
"""What may be said of a rank that nobody has seen to run."""


@dataclass
class Rank:
    """One rank as it really is."""

    up: bool = False
    step: int = 0
    paused: bool = False
    stopped: bool = False
    deaf: bool = False
    """It holds the interpreter lock: it lives and says nothing."""
    alive: bool = False
    ended: Ended | None = None
    beat: wire.Beat | None = None
    """Its last one, as the observer has recorded it."""


@dataclass
class World:
    """A run as it really is, what is on disk of it, and the observer that was there from the beginning."""

    now: float = 100.0
    generation: int = 0
    ranks: list[Rank] = field(default_factory=lambda: [Rank() for _ in range(WORLD)])
    told: Supervision | None = None
    old: Store = field(default_factory=lambda: Store(RUN))

    def do(self, act: str, rank: int) -> None:
        """Let something happen, as far as it can."""
        one = self.ranks[rank]
        if self.told is not None and self.told.state in ENDED:
            return
        match act:
            case "up" if not one.up:
                one.up = one.alive = True
                self.look()
            case "step" if self.is_well(one) and not one.paused:
                one.step += 1
            case "pause" if self.is_well(one) and one.step:
                one.paused = not one.paused
            case "SIGSTOP" if one.alive:
                one.stopped = not one.stopped
            case "lock" if self.is_well(one):
                one.deaf = True
            case "unlock":
                one.deaf = False
            case "end" if self.is_well(one) and not one.paused:
                one.ended = Ended(round(self.now * 1e9), rank % 2, step=one.step)
            case "die" if one.alive:
                one.alive = one.stopped = False
            case "kill -9" if one.alive:
                one.alive = one.stopped = False
            case "restart" if any(each.up and not each.alive for each in self.ranks):
                self.generation += 1
                self.ranks = [Rank() for _ in range(WORLD)]
                self.ranks[rank].up = self.ranks[rank].alive = True
                self.look()
            case "over" if all(each.up and not each.alive for each in self.ranks):
                self.told = Supervision("failed" if rank else "finished")
        self.speak()

    def is_well(self, one: Rank) -> bool:
        """Say whether a rank's script can do anything."""
        return one.alive and one.ended is None and not one.stopped and not one.deaf

    def speak(self) -> None:
        """Let who can be heard be heard, by the old observer and by the recorder."""
        for number, one in enumerate(self.ranks):
            if one.alive and not one.stopped and not one.deaf:
                state = "ended" if one.ended else "paused" if one.paused else "running" if one.step else "starting"
                one.beat = wire.Beat(
                    number, round(self.now * 1e9), state, "forward", one.step, round(self.now * 1e9), 0,
                    generation=self.generation,
                )  # fmt: skip
                self.old.apply(one.beat, self.now)
        if self.told is not None:
            self.old.supervise(self.told, self.now)

    def members(self) -> dict[int, Member]:
        """Return the ranks' records."""
        return {
            number: Member(
                number, number, WORLD, Process(number + 1, 1.0), "h", self.generation, "p", "c", None, one.ended
            )
            for number, one in enumerate(self.ranks)
            if one.up
        }  # fmt: skip

    def look(self, *others: Store) -> None:
        """Let observers look at the records and the process table."""
        for store in (self.old, *others):
            store.know_members(self.members())
            seen = {
                number: Row(Process(number + 1, 1.0), 1, 1, "stopped" if one.stopped else "sleeping", 0)
                for number, one in enumerate(self.ranks)
                if one.alive
            }
            store.know_liveness(Liveness("running", True, False, frozenset(seen), seen=seen, at=self.now))

    def successor(self) -> Store:
        """Return one who comes now: it reads what is recorded, and hears who speaks."""
        fresh = Store(RUN)
        fresh.know_members(self.members())
        for number in self.members():
            fresh.listen(number, self.now)
        for one in self.ranks:
            if one.beat is not None:
                fresh.recall(one.beat, self.now)
        self.look(fresh)
        if self.told is not None:
            fresh.supervise(self.told, self.now)
        for one in self.ranks:
            if one.beat is not None and one.alive and not one.stopped and not one.deaf:
                fresh.apply(one.beat, self.now)
        return fresh


def said(frame: Frame) -> tuple[object, ...]:
    """Return what `ps` and `status` say of states and steps."""
    line = status.run_json(frame)
    return line["state"], line["step"], line["restarts"], *((rank.state, rank.step) for rank in frame.ranks)


ACTS = st.sampled_from(["up"] * 3 + ["step"] * 4 + ["wait"] * 3 + ["pause", "SIGSTOP", "lock", "unlock", "end"]
                       + ["die", "kill -9", "restart", "over"])  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(ACTS, st.integers(0, WORLD - 1), st.sampled_from([0.3, 2.0, 60.0])), min_size=5, max_size=40))
def test_a_successor_says_the_same_and_nothing_goes_backwards(story: list[tuple[str, int, float]]) -> None:
    """Whatever happens: a fresh observer and the old one agree; no start after a step; no life after an end."""
    world = World()
    over: set[object] = set()
    for act, rank, seconds in story:
        before, generation = said(frame_at(world.old, world.now)), world.generation
        world.do(act, rank)
        # Once a second each rank that can speaks, and everybody looks at the processes.
        world.now += seconds if act == "wait" else 0.01
        world.look()
        world.speak()
        frame = frame_at(world.old, world.now)
        after = said(frame)
        assert said(frame_at(world.successor(), world.now)) == after, (act, rank)
        assert frame.generation == world.generation
        if over:
            assert {after[0]} == over
        elif after[0] in ENDED:
            over.add(after[0])
        for one, rank_frame in zip(world.ranks, frame.ranks, strict=True):
            if one.step and one.beat is not None:
                assert rank_frame.state != "starting"
                assert rank_frame.step is not None
            if one.stopped and one.ended is None:
                assert rank_frame.state == "frozen"
        if generation != world.generation:
            continue
        if before[0] not in GRAY:
            assert after[0] != "starting", (before, after)
        for was, now in zip(before[3:], after[3:], strict=True):
            if was[0] in ENDED:  # type: ignore[index] # pairs
                assert now[0] in ENDED, (before, after)  # type: ignore[index] # pairs
            if was[1] is not None:  # type: ignore[index] # pairs
                assert now[1] >= was[1], (before, after)  # type: ignore[index] # pairs
            if was[0] not in GRAY:  # type: ignore[index] # pairs
                assert now[0] != "starting", (before, after)  # type: ignore[index] # pairs


def test_late_words_of_a_generation_that_is_over() -> None:
    """A heartbeat of before a restart that comes late says nothing of the ranks that are there now."""
    world = World()
    for rank in (0, 1):
        world.do("up", rank)
        world.do("step", rank)
    late = world.ranks[1].beat
    assert late is not None
    world.do("die", 0)
    world.do("restart", 1)
    world.old.apply(late, world.now)
    frame = frame_at(world.old, world.now)
    assert [(rank.state, rank.step) for rank in frame.ranks] == [("starting", None), ("starting", 0)]
    assert status.run_json(frame)["restarts"] == 1


def test_an_absurd_generation_is_not_followed() -> None:
    """A rank that claims to be the billionth start takes nothing away from what is known of the others."""
    world = World()
    world.do("up", 0)
    world.do("step", 0)
    world.old.apply(wire.Steps(1, (), 2**62), world.now)
    frame = frame_at(world.old, world.now)
    assert (frame.ranks[0].state, frame.generation, frame.refused) == ("running", 0, 1)


def test_a_recording_does_not_speak_for_another_process() -> None:
    """A recorded heartbeat counts where it is from the process that is there and has not been heard itself."""
    begun = wire.Hello(wire.PROTOCOL, "toy-1", "id", 0, 0, 2, 1, 50 * 10**9, "h", "p", "v", "v", 1)
    silent = wire.Beat(0, 40 * 10**9, "running", "forward", 60, None, 0)
    for beat, step in ((silent, None), (wire.Beat(0, 60 * 10**9, "running", "forward", 60, None, 0), 60)):
        store = Store(RUN)
        store.recall(begun, 100.0)
        store.recall(beat, 100.0)
        assert frame_at(store, 100.0).ranks[0].step == step
    store.apply(wire.Beat(0, 99 * 10**9, "running", "forward", 90, None, 0), 99.0)
    store.recall(silent, 100.0)
    assert frame_at(store, 100.0).ranks[0].step == 90
