"""The model of a run: messages in any order in, a true frame out."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest
from support.screens.frames import frame_at

from ddptop.agent import wire
from ddptop.agent.observer.model.situation import Liveness, Supervision
from ddptop.agent.observer.model.store import ADDED_UP, Store
from ddptop.agent.rank.records.digest import Digest
from ddptop.agent.run.identity import Row
from ddptop.agent.run.rundir import Ended, Member, Process, Run
from ddptop.agent.wire.frames import Calls
from ddptop.tui.cli.output.card import card
from ddptop.tui.views.table.columns import columns_of

RUN = Run("toy-1", "id", "toy.py", (), 2, "gloo", "cpu", 10**9, True, max_restarts=2)


def step(seq: int, *, wall_ms: int = 10, wait_ms: int | None = 4, loss: float | None = 1.0) -> wire.Step:
    own = wall_ms - (wait_ms or 0)
    return wire.Step(
        seq, seq, seq * 10**7, wall_ms * 10**6, 0, own * 10**6, 0, 0, None if wait_ms is None else wait_ms * 10**6,
        0, loss, 32, (wire.Collective("all_reduce", 0, 2 * 10**6, 8, 1),),
    )  # fmt: skip


def beat(rank: int, at: int = 1, state: str = "running", **more) -> wire.Beat:
    return wire.Beat(
        rank, at, state, "forward", more.pop("step", 1), more.pop("step_at_ns", None), more.pop("seq", 0), **more
    )


def member(rank: int, ended: Ended | None = None) -> Member:
    return Member(rank, rank, 2, Process(100 + rank, 1.0), "host", 0, "ipc://p", "ipc://c", None, ended)


def test_every_rank_is_there_before_it_is_heard():
    """A rank that has not reported is shown as starting, with unknown numbers, not zeros."""
    frame = frame_at(Store(RUN), 2.0)
    assert [rank.state for rank in frame.ranks] == ["starting", "starting"]
    assert frame.step is None
    assert frame.ranks[0].loss is None
    assert frame.ranks[0].memory_bytes is None


@pytest.mark.parametrize("brief", [False, True])
def test_the_latency_shown_is_that_of_the_collective_that_takes_most_time(brief: bool) -> None:
    """Of FSDP2 with a small all-reduce in each step the all-gathers, by records and by summaries alike."""
    calls = [wire.Collective("all_gather_into_tensor", 0, took * 10**6, 8, 1) for took in (1, 3, 9)]
    calls += [wire.Collective("all_reduce", 0, 10**6, 8, 1), wire.Collective("broadcast", 0, 10**9, 8, 1)]
    store = Store(RUN)
    for rank in (0, 1):
        records = [msgspec.structs.replace(step(seq), collectives=tuple(calls)) for seq in (1, 2)]
        store.apply(beat(rank), 2.0)
        digest = Digest(rank)
        for record in records:
            digest.add(record)
        summary = digest.close()
        assert summary is not None
        store.apply(summary if brief else wire.Steps(rank, tuple(records)), 2.0)
    frame = frame_at(store, 2.0)
    assert frame.collective == "all_gather"
    assert [rank.collective_ms for rank in frame.ranks] == [Calls("all_gather", 3, 9)] * 2
    assert [rank.allreduce_ms.p50 for rank in frame.ranks] == [1, 1]
    assert {"ag p50", "ag p99"} < {column.title for column in columns_of(frame)}
    assert "all-gather p50 ms" in "\n".join(card(frame))


def test_numbers_come_from_the_records():
    """Step time, phases, loss, throughput and latency are those of the records."""
    store = Store(RUN)
    for rank in (0, 1):
        store.apply(beat(rank), 2.0)
        store.apply(wire.Steps(rank, (step(1), step(2, loss=0.5))), 2.0)
    frame = frame_at(store, 2.0)
    first = frame.ranks[0]
    assert (first.step_ms, first.loss, first.allreduce_ms.p50) == (10, 0.5, 2)
    assert first.phases_ms == {"data": 0, "forward": 6, "backward": 0, "optimizer": 0, "wait": 4, "other": 0}
    assert frame.samples_per_s == pytest.approx(2 * 32 / 0.010)


def test_a_phase_that_was_not_observed_is_absent():
    """Where collectives are not seen there is no wait, rather than a wait of zero."""
    store = Store(RUN)
    store.apply(wire.Steps(0, (step(1, wait_ms=None),)), 2.0)
    phases = frame_at(store, 2.0).ranks[0].phases_ms
    assert phases is not None
    assert "wait" not in phases


def test_copies_are_a_phase_where_the_training_is_on_a_device():
    """Copies that a record tells of are on the screen, by host and by device; a run on the CPU has no such phase."""
    store = Store(RUN)
    on_device = msgspec.structs.replace(step(1), copy_ns=3_000_000, device_ns=(0, 6_000_000, 0, 0, 0, 2_000_000))
    store.apply(wire.Steps(0, (on_device,)), 2.0)
    store.apply(wire.Steps(1, (step(1),)), 2.0)
    first, second = frame_at(store, 2.0).ranks
    assert first.phases_ms is not None
    assert first.device_ms is not None
    assert (first.phases_ms["copy"], first.device_ms["copy"]) == (3, 2)
    assert second.phases_ms is not None
    assert "copy" not in second.phases_ms


def test_the_device_times_of_an_older_agent_are_shown():
    """An agent that does not know copies tells of one phase less."""
    store = Store(RUN)
    store.apply(wire.Steps(0, (msgspec.structs.replace(step(1), device_ns=(0, 6_000_000, 0, 0, 0)),)), 2.0)
    device_ms = frame_at(store, 2.0).ranks[0].device_ms
    assert device_ms == {"data": 0, "forward": 6, "backward": 0, "optimizer": 0, "other": 0}


def test_records_that_are_repeated_count_once():
    """Batches that overlap, or come twice, end in the same history, each record once and none of them missed."""
    seed = random.Random(2)
    records = [step(seq, loss=float(seq)) for seq in range(1, 101)]
    for _ in range(30):
        store, known = Store(RUN), 0
        while known < len(records):
            first = seed.randrange(known + 1)
            known = max(known, min(len(records), first + seed.randrange(1, 20)))
            store.apply(wire.Steps(0, tuple(records[first:known])), 2.0)
        frame = frame_at(store, 2.0)
        assert frame.ranks[0].losses == tuple(float(seq) for seq in range(1, 101))
        assert frame.ranks[0].missed == 0


def test_what_cannot_be_had_is_counted():
    """Records that the observer could not get either are counted; what was before the first one is not."""
    store = Store(RUN)
    store.apply(wire.Steps(0, (step(5),)), 2.0)
    assert frame_at(store, 2.0).ranks[0].missed == 0
    store.apply(wire.Steps(0, (step(15, loss=0.5),)), 2.0)
    assert frame_at(store, 2.0).ranks[0].missed == 9
    assert frame_at(store, 2.0).ranks[0].loss == 0.5


def test_a_rank_that_is_held_for_some_work_is_no_stall_of_another():
    """The run is held, with the work and the time; its other rank, which waits for that, is not stalled; no event."""
    store = Store(RUN)
    for rank in range(2):
        store.apply(wire.Steps(rank, (step(1),)), 1.0)
    for now in (20.0, 30.0):
        counting = beat(0, state="held", step_at_ns=10**9, held_at_ns=10**10)
        store.apply(msgspec.structs.replace(counting, activity="counting memory"), now)
        store.apply(beat(1, step_at_ns=10**9), now)
        frame = frame_at(store, now)
        assert (frame.state, frame.stands, frame.held_since) == ("held", False, 10.0)
        held, waits = frame.ranks
        assert (held.state, held.activity) == ("held", f"counting memory, {now - 10:.0f} s")
        assert (waits.state, waits.stands) == ("running", False)
        assert frame.held == f"held: rank 0, counting memory, {now - 10:.0f} s"
    store.apply(beat(0, step=2, step_at_ns=31 * 10**9, released_at_ns=31 * 10**9), 31.0)
    store.apply(beat(1, step=2, step_at_ns=31 * 10**9), 31.0)
    frame = frame_at(store, 31.0)
    assert (frame.state, frame.held) == ("running", "")
    assert not frame.events


def test_a_run_is_paused_only_when_every_live_rank_is():
    """One held rank is `pausing`; all are `paused`, since when, and at which step."""
    store = Store(RUN)
    store.apply(beat(0, state="paused", step=7), 2.0)
    store.apply(beat(1, step=6), 2.0)
    assert frame_at(store, 2.0).state == "pausing"
    store.apply(beat(1, state="paused", step=7), 3.0)
    frame = frame_at(store, 3.0)
    assert (frame.state, frame.held_since, frame.step) == ("paused", 3.0, 7)
    store.apply(beat(1, state="paused", step=7, held_at_ns=2_500_000_000, outstanding=2), 4.0)
    frame = frame_at(store, 4.0)
    assert (frame.held_since, frame.outstanding) == (2.5, 2)


def test_life_and_progress_are_told_apart():
    """No heartbeat is silent; heartbeats without steps are stalled; both recover."""
    store = Store(RUN)
    for rank in (0, 1):
        store.apply(beat(rank, step_at_ns=10**9), 2.0)
        store.apply(wire.Steps(rank, (step(1),)), 2.0)
    store.apply(beat(1, step_at_ns=59 * 10**9), 60.0)
    assert [rank.state for rank in frame_at(store, 60.0).ranks] == ["silent", "running"]
    store.apply(beat(0, step_at_ns=10**9), 60.0)
    assert frame_at(store, 60.0).ranks[0].state == "stalled"
    store.apply(beat(0, step_at_ns=60 * 10**9), 60.5)
    assert frame_at(store, 60.5).ranks[0].state == "running"


def test_a_rank_that_goes_on_without_optimizer_steps_is_said_to():
    """Where collectives are made and no step, the run's frame and the event say so; where there are none, it stalls."""
    told = []
    for calls in (848, 0):
        store = Store(RUN)
        for rank in (0, 1):
            store.apply(beat(rank, step=8, step_at_ns=10**9), 2.0)
            store.apply(wire.Steps(rank, (step(8),)), 2.0)
            frame_at(store, 2.0)
        for rank in (0, 1):
            store.apply(beat(rank, step=8, step_at_ns=10**9, calls=calls, calls_in="0"), 60.0)
        shown = frame_at(store, 60.0)
        told.append((shown.goes_on, shown.standing, [event.text for event in shown.events if event.rank == 0]))
    says = "makes no optimizer step since step 8, and goes on: 848 calls in group 0"
    assert told == [(says, says, [f"rank 0 {says}"]), ("", "no step for 59 s", ["rank 0 is stalled"])]


@pytest.mark.parametrize("how", ["resume", "step"])
def test_a_pause_counts_for_no_stall(how: str):
    """After a pause of 30 s, or a step out of it, a rank has the usual time until it is stalled."""
    store = Store(RUN)
    for rank in (0, 1):
        store.apply(beat(rank, step_at_ns=2 * 10**9), 2.0)
        store.apply(wire.Steps(rank, (step(1),)), 2.0)
    for rank in (0, 1):
        store.apply(beat(rank, state="paused", step_at_ns=2 * 10**9, held_at_ns=2 * 10**9), 32.0)
    held = frame_at(store, 32.0)
    assert (held.state, held.ranks[0].step_age_s, held.stands) == ("paused", None, False)
    store.apply(beat(0, step_at_ns=2 * 10**9, released_at_ns=32 * 10**9), 32.0)
    if how == "resume":
        store.apply(beat(1, step_at_ns=2 * 10**9, released_at_ns=32 * 10**9), 32.0)
    going = frame_at(store, 33.0)
    assert (going.ranks[0].state, going.ranks[0].step_age_s, going.ranks[0].stands) == ("running", 1.0, False)
    assert not going.stands
    assert not [event for event in going.events if "stalled" in event.text]
    store.apply(beat(0, step_at_ns=2 * 10**9, released_at_ns=32 * 10**9), 60.0)
    assert frame_at(store, 60.0).ranks[0].state == "stalled"


def test_a_freeze_counts_for_no_stall():
    """A rank that was stopped by a signal for 30 s is not stalled when it goes on."""
    store = Store(RUN)
    store.apply(beat(0, step_at_ns=2 * 10**9), 2.0)
    store.apply(wire.Steps(0, (step(1),)), 2.0)
    model = store.ranks[0]
    model.look(Row(Process(100, 1.0), 1, 1, "stopped", 0), 32.0)
    assert model.state(32.0) == "frozen"
    model.look(Row(Process(100, 1.0), 1, 1, "sleeping", 0), 32.5)
    store.apply(beat(0, step_at_ns=2 * 10**9), 33.0)
    assert model.state(33.0) == "running"


def test_the_rates_of_a_run_that_stands_are_not_told():
    """Two seconds without a step of 10 ms: no ETA, no samples/s, no step time of now; each rank is told by itself."""
    store = Store(RUN)
    for rank in (0, 1):
        store.apply(beat(rank, step=300, step_at_ns=3 * 10**9, total_steps=1000), 3.0)
        store.apply(wire.Steps(rank, (step(1), step(2))), 3.0)
    goes = frame_at(store, 4.9)
    assert (goes.stands, goes.current_step_ms) == (False, 10)
    assert goes.eta_s == pytest.approx(7.0)
    assert goes.samples_per_s is not None
    for at in (5.1, 6.4, 60.0):
        stands = frame_at(store, at)
        assert (stands.stands, stands.eta_s, stands.samples_per_s, stands.current_step_ms) == (True, None, None, None)
        for each in stands.ranks:
            assert (each.stands, each.samples_per_s, each.current_step_ms) == (True, None, None)
        assert stands.step_ms == 10, "the scale of the bars stays"
    store.apply(beat(1, step=301, step_at_ns=6 * 10**9, total_steps=1000), 6.0)
    moves = frame_at(store, 6.1)
    assert (moves.stands, [rank.stands for rank in moves.ranks]) == (False, [True, False])
    assert moves.eta_s is not None
    for number in (0, 1):
        store.apply(beat(number, state="paused", step=301), 60.0)
    held = frame_at(store, 60.0)
    assert (held.state, held.stands, held.current_step_ms) == ("paused", False, 10)


def test_no_run_begins_to_run_after_the_end_of_its_ranks():
    """It was silent before they failed: nothing is told of its state until the observer says how it has ended."""
    store = Store(RUN)
    for number in (0, 1):
        store.apply(beat(number), 1.0)
    assert frame_at(store, 1.0).state == "running"
    assert frame_at(store, 60.0).state == "silent"
    failed = Ended(5, 1, "ValueError: x")
    store.know_members({0: member(0, failed), 1: member(1, failed)})
    store.know_liveness(Liveness("running", True, False, frozenset()))
    frame = frame_at(store, 61.0)
    assert [rank.state for rank in frame.ranks] == ["failed", "failed"]
    assert "running" not in [event.text for event in frame_at(store, 62.0).events]


def test_how_a_rank_ended():
    """Its own record tells finished from failed; without one it is lost, or killed where a kill was asked for."""
    store = Store(RUN)
    store.know_members({0: member(0, Ended(5, 1, "ValueError: x")), 1: member(1)})
    store.know_liveness(Liveness("running", True, False, frozenset()))
    assert [rank.state for rank in frame_at(store, 2.0).ranks] == ["failed", "lost"]
    assert frame_at(store, 2.0).ranks[0].ended == "exit code 1: ValueError: x"
    store.know_members({0: member(0, Ended(5, 0)), 1: member(1)})
    assert frame_at(store, 2.0).ranks[0].ended == "exit code 0"
    timeout = "RuntimeError: [/__w/pytorch/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 60000ms"
    store.know_members({0: member(0, Ended(5, 1, timeout)), 1: member(1)})
    assert frame_at(store, 2.0).ranks[0].ended == "exit code 1: RuntimeError: Timed out waiting 60000ms"
    store.supervise(Supervision("killing"), 2.0)
    assert frame_at(store, 2.0).ranks[1].state == "killed"


def test_a_stranger_is_refused_and_counted():
    """Ranks outside the world and another run's ranks change nothing."""
    store = Store(RUN)
    store.apply(beat(9), 2.0)
    store.apply(wire.Steps(7, (step(1),)), 2.0)
    store.apply(wire.Hello(1, "other", "other-id", 0, 0, 2, 1, 1, "h", "p", "v", "v"), 2.0)
    assert frame_at(store, 2.0).refused == 3


def test_a_record_of_a_start_with_more_ranks_is_no_stranger():
    """An elastic launcher goes on with fewer; of the others nothing is shown."""
    store = Store(RUN)
    for told in (hello(5, 0), beat(5), wire.Steps(5, (step(1),))):
        store.recall(told, 2.0)
    frame = frame_at(store, 2.0)
    assert (frame.refused, len(frame.ranks)) == (0, 2)


def test_a_rank_of_another_host_may_have_another_id_of_the_run():
    """As where an elastic job started by hand grew to that host; on this host it is another run's."""
    store = Store(msgspec.structs.replace(RUN, nodes=2, local_world=1))
    store.know_members({0: member(0)})
    store.apply(wire.Hello(1, "x-1", "other-id", 1, 0, 2, 77, 10**9, "far", "p", "v", "3.11"), 2.0)
    assert frame_at(store, 2.0).refused == 0
    assert frame_at(store, 2.0).ranks[1].python_version == "3.11"
    store.apply(wire.Hello(1, "x-1", "other-id", 1, 0, 2, 78, 10**9, "host", "p", "v", "3.10"), 2.0)
    assert frame_at(store, 2.0).refused == 1
    assert frame_at(store, 2.0).ranks[1].python_version == "3.11"


def test_the_slowest_rank_is_the_one_with_the_most_time_of_its_own():
    """Equal step times hide who computes and who waits; only a rank that stands out is named."""
    store = Store(RUN)
    store.apply(wire.Steps(0, (step(1, wait_ms=4),)), 2.0)
    store.apply(wire.Steps(1, (step(1, wait_ms=0),)), 2.0)
    assert frame_at(store, 2.0).slowest == 1
    level = Store(RUN)
    level.apply(wire.Steps(0, (step(1, wait_ms=4),)), 2.0)
    level.apply(wire.Steps(1, (step(1, wait_ms=3),)), 2.0)
    assert frame_at(level, 2.0).slowest == 1
    level.apply(wire.Steps(0, (step(2, wait_ms=3),)), 2.0)
    level.apply(wire.Steps(1, (step(2, wait_ms=4),)), 2.0)
    assert frame_at(level, 2.0).slowest is None


def test_extreme_numbers_do_not_break_the_frame():
    """NaN, infinity and huge integers from the wire are shown or left out, never raised."""
    store = Store(RUN)
    huge = wire.Step(1, 2**62, 2**62, 2**62, 0, 2**62, 0, 0, 0, 0, float("nan"), 2**62)
    store.apply(beat(0, seq=2**62, memory_bytes=2**63 - 1), 2.0)
    store.apply(wire.Steps(0, (huge, step(2, loss=float("inf")))), 2.0)
    frame = frame_at(store, 2.0)
    assert frame.ranks[0].loss == float("inf")


def hello(rank: int, generation: int) -> wire.Hello:
    return wire.Hello(wire.PROTOCOL, "toy-1", "id", rank, rank, 2, 7, generation + 5, "h", "p", "0", "3", generation)


def test_a_restart_counts_on_and_is_marked():
    """Every rank counts on from one step, where the mark stands; what comes late of the old is dropped."""
    store = Store(RUN)
    for rank, last in ((0, 3), (1, 2)):
        store.apply(hello(rank, 0), 2.0)
        store.apply(wire.Steps(rank, tuple(step(seq) for seq in range(1, last + 1))), 2.0)
    store.apply(hello(0, 1), 3.0)
    store.apply(wire.Steps(1, (step(3),)), 3.0)
    store.apply(wire.Steps(1, (step(1), step(2)), 1), 3.0)
    store.apply(hello(1, 1), 3.0)
    store.apply(wire.Steps(0, (step(1),), 1), 3.0)
    frame = frame_at(store, 3.0)
    assert [restart.step for restart in frame.restarts] == [3]
    assert [store.ranks[rank].last_step for rank in (0, 1)] == [4, 5]
    assert [len(store.ranks[rank].losses) for rank in (0, 1)] == [1, 2]


def test_a_restart_of_which_no_record_can_be_written_is_followed() -> None:
    """On a full disk the records of the first start stay: what more than half of the ranks say is believed."""
    store = Store(RUN)
    store.know_members({rank: member(rank) for rank in (0, 1)})
    store.apply(hello(1, 1), 3.0)
    assert frame_at(store, 3.0).generation == 0
    store.apply(hello(0, 1), 3.1)
    store.apply(wire.Steps(1, (step(1, loss=7.0),), 1), 3.2)
    frame = frame_at(store, 3.3)
    assert (frame.generation, [restart.generation for restart in frame.restarts]) == (1, [1])
    assert frame.ranks[1].loss == 7.0
    assert {rank.python_version for rank in frame.ranks} == {"3"}


@pytest.mark.parametrize("launched", [True, False], ids=["launched", "by hand"])
def test_a_rank_that_claims_another_generation_harms_its_own_row_alone(launched: bool) -> None:
    """Neither a huge number nor one that the run could have begins a generation of which no record tells."""
    store = Store(msgspec.structs.replace(RUN, launched=launched))
    for claim in (2**31 - 1, 2**60):
        store.apply(beat(1, generation=claim), 2.0)
    store.know_members({0: member(0), 1: member(1)})
    for claim in (1, 2, 3, 2**31 - 1):
        store.apply(beat(1, generation=claim), 2.0)
        store.apply(hello(1, claim), 2.0)
        store.apply(wire.Steps(1, (step(1),), claim), 2.0)
        store.apply(beat(0, generation=0, state="running", seq=1), 2.0)
        store.apply(wire.Steps(0, (step(1),)), 2.0)
    frame = frame_at(store, 2.1)
    assert (frame.restarts, frame.generation) == ((), 0)
    assert (frame.ranks[0].state, frame.ranks[0].loss) == ("running", 1.0)
    # Its records know of a restart: what it has said before they were read counts.
    store.apply(hello(0, 1), 3.0)
    store.know_members({rank: msgspec.structs.replace(member(rank), generation=1) for rank in (0, 1)})
    frame = frame_at(store, 3.0)
    assert [restart.generation for restart in frame.restarts] == [1]
    assert frame.ranks[0].python_version == "3"
    # The first to be there had claimed too much, and the others say otherwise.
    store.know_members({rank: member(rank) for rank in (0, 1)})
    store.apply(wire.Steps(0, (step(1),)), 3.0)
    assert frame_at(store, 3.0).restarts == ()
    assert frame_at(store, 3.0).ranks[0].loss == 1.0


def test_a_record_that_changes_its_number_of_ranks_changes_no_size() -> None:
    """What is kept was made for so many ranks; a record that is written over later does not get it out of step."""
    run = Run("r", "id", "x.py", (), 2, None, None, 10**9, True, state="running")
    store = Store(run)
    for world in (1, 65_536):
        store.know_run(msgspec.structs.replace(run, world=world, cause="new"))
        shown_frame = frame_at(store, 2.0)
        assert (shown_frame.world, len(shown_frame.ranks)) == (2, 2)


def test_a_thinned_recording_has_no_missed_records() -> None:
    """Two generations of which only every fourth old step is left: nothing is missed, and one follows another."""
    store = Store(RUN)
    kept = [*range(1, 200, 4), *range(200, 230)]
    for generation in (0, 1):
        for number in kept:
            store.recall(wire.Steps(0, (step(number, loss=float(number)),), generation), 1.0)
    assert frame_at(store, 1.0).ranks[0].missed == 0
    assert store.ranks[0].last_step == 2 * kept[-1]
    assert list(store.ranks[0].losses) == kept


def test_the_next_observer_has_time_to_hear_the_ranks() -> None:
    """It greets before it has heard anybody: nobody is called silent for what the one before did not tell."""
    store = Store(RUN)
    for rank in (0, 1):
        store.know_members({0: member(0), 1: member(1)})
        store.listen(rank, 1.0)
        store.apply(beat(rank, step=5), 2.0)
    store.supervise(Supervision("running"), 2.0)
    assert frame_at(store, 9.0).unobserved_s == 7.0
    store.supervise(Supervision("running"), 9.0)
    frame = frame_at(store, 9.1)
    assert frame.unobserved_s is None
    assert [rank.state for rank in frame.ranks] == ["running", "running"]
    assert not any("silent" in event.text for event in frame.events)
    for at in range(10, 15):
        store.supervise(Supervision("running"), at)
    assert {rank.state for rank in frame_at(store, 14.0).ranks} == {"silent"}


def test_an_observer_that_never_answers_leaves_the_ranks_as_they_were_recorded() -> None:
    """Whoever comes after it has stopped says the same as who was there before: as of then, not silent."""
    store = Store(RUN)
    store.know_members({0: member(0), 1: member(1)})
    for rank in (0, 1):
        store.recall(beat(rank, 2 * 10**9, step=5, generation=0), 60.0)
    store.last_heard.expect(60.0)
    for rank in (0, 1):
        store.listen(rank, 60.0)
    frame = frame_at(store, 63.0)
    assert frame.unobserved_s == 3.0
    assert [rank.state for rank in frame.ranks] == ["running", "running"]
    for rank in (0, 1):
        store.apply(beat(rank, 64 * 10**9, step=9), 64.0)
    store.supervise(Supervision("running"), 64.0)
    assert frame_at(store, 64.0).unobserved_s is None


def test_who_was_not_looked_at_is_as_before():
    """A process that had no turn in the process table keeps its row; one that was looked at and has none loses it."""
    store = Store(RUN)
    store.know_members({rank: member(rank) for rank in range(2)})
    for rank in range(2):
        store.listen(rank, 5.0)
    rows = {rank: Row(Process(100 + rank, 1.0), 1, 1, "stopped", 0) for rank in range(2)}
    told = Liveness("running", True, False, frozenset({0, 1}), seen=rows, at=5.0)
    store.know_liveness(told)
    assert [store.ranks[rank].state(6.0) for rank in range(2)] == ["frozen", "frozen"]
    store.know_liveness(replace(told, seen={}, at=6.0, spared=frozenset({1})))
    assert [store.ranks[rank].state(7.0) for rank in range(2)] == ["starting", "frozen"]


def test_the_step_of_a_large_group_is_that_of_now_and_its_means_are_of_this_second():
    """In between two summaries nothing is added up over all ranks but the steps that they have completed."""
    world = ADDED_UP + 1
    store = Store(msgspec.structs.replace(RUN, world=world))
    known = []
    for number, at in ((1, 10.0), (2, 10.5), (3, 11.1)):
        for rank in range(world):
            store.apply(beat(rank, at=int(at * 1e9), step=number, seq=number), at)
            store.apply(wire.Steps(rank, (step(number, wall_ms=10 * number),)), at)
        frame = frame_at(store, at)
        known.append((frame.step, frame.step_ms, frame.ranks[0].step_ms))
    assert known == [(1, 10.0, 10.0), (2, 10.0, 15.0), (3, 20.0, 20.0)]


def test_the_last_numbers_of_a_large_group_are_those_of_its_end() -> None:
    """What comes in the last second counts, though it was added up a moment before."""
    world = ADDED_UP + 1
    store = Store(msgspec.structs.replace(RUN, world=world))

    def train(numbers: range, at: float) -> tuple[int | None, bool]:
        for rank in range(world):
            store.apply(wire.Steps(rank, tuple(step(number, loss=float(number)) for number in numbers)), at)
            store.apply(beat(rank, at=int(at * 1e9), step=numbers[-1], seq=numbers[-1]), at)
        frame = frame_at(store, at)
        return frame.step, frame.loss == frame.ranks[0].loss

    assert train(range(1, 4), 10.0) == (3, True)
    assert train(range(4, 6), 10.1) == (5, False)
    store.know_run(msgspec.structs.replace(store.run, state="finished", exit_code=0))
    assert train(range(6, 8), 10.2) == (7, True)


def test_a_loss_is_known_before_the_records() -> None:
    """Records of a rank that is met late are asked for; its summary tells the loss meanwhile."""
    ms = 10**6
    store = Store(Run("toy-1", "id", "toy.py", (), 1, "gloo", "cpu", 10**9, True))
    store.apply(wire.Summary(0, 40, 10**9, 400, 400, 10, ms, 0, 0, ms, 0, None, 0, loss=0.5), 1.0)
    assert frame_at(store, 1.0).loss == 0.5
    store.apply(wire.Steps(0, (wire.Step(1, 1, 10**9, ms, 0, ms, 0, 0, 0, 0, 0.25, 32, ()),)), 1.1)
    assert frame_at(store, 1.1).loss == 0.25
