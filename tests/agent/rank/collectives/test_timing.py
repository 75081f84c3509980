"""Every collective of real ranks is seen, timed and let go; the rest is tried with clocks moved by hand."""

from __future__ import annotations

import _thread
import functools
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fakes.clocks import Clock
from support.harness import until, write_script
from support.processes.ranks import observed

from ddptop.agent.rank.collectives import timing, wrapper
from ddptop.agent.rank.collectives.backends import Backend, Backends, Counted
from ddptop.agent.rank.collectives.timing import Collectives
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.records import meter
from ddptop.agent.rank.records.cost import FIRST, Cost
from ddptop.agent.rank.records.device_time import Captures, EventClock
from ddptop.agent.rank.records.sampling import next_sampled
from ddptop.agent.rank.records.stamps import BACKWARD, Call, Stamps

LATE_NS = 400_000_000
"""How late rank 1 comes, in the script, where rank 0 must be seen to wait; if it comes late itself, less."""


@pytest.fixture(scope="module", params=["hooks", "wrapper"])
def seen(request, tmp_path_factory) -> dict[str, Any]:
    """What rank 0 saw of each kind of collective, with torch's hooks and without."""
    folder = tmp_path_factory.mktemp("comms")
    script = write_script(folder, Path(__file__).with_name("collectives_script.py").read_text(), "collectives.py")
    env = {"NO_HOOKS": "1"} if request.param == "wrapper" else {}
    with observed(f"collectives-{request.param}", script, str(folder / "meet"), env=env) as (run, ranks):
        code = ranks.wait()
    reports = [line for line in ranks.said.splitlines() if line.startswith("REPORT ")]
    # Of a crash in native code the agent writes the stacks there.
    crashes = [path.read_text() for path in (run.rank_crash(0), run.rank_crash(1)) if path.exists()]
    assert len(reports) == 1, "\n".join([f"exit code {code}: {ranks.said}", *crashes])
    report: dict[str, Any] = json.loads(reports[0].removeprefix("REPORT "))
    return {"by": request.param} | report


def operations(seen: dict[str, Any], name: str) -> list[tuple[str, int]]:
    return [(call["op"], call["bytes"]) for call in seen[name]["calls"]]


def test_every_collective_is_seen_with_its_size_and_its_group(seen):
    """However a function was imported and whoever calls it, Python or DDP's C++, exactly one call is noted."""
    assert seen["mechanism"] == {"hooks": "process-group hooks", "wrapper": "process-group wrapper"}[seen["by"]]
    is_new = seen["torch"] >= [2, 15]
    split = ["split group"] if is_new else []
    for name in ("all_reduce", "by name", "asynchronous", "mesh", "group", *split):
        assert operations(seen, name) == [("all_reduce", 4000)]
    assert operations(seen, "send and recv") == [("send", 4000)]
    assert operations(seen, "isend and irecv") == [("send", 4000), ("recv", 4000)]
    assert operations(seen, "monitored barrier") == [("monitored_barrier", 0)]
    assert operations(seen, "all_gather") == [("all_gather", 4000)]
    # Older hooks have one name for lists of tensors and for a single one.
    in_full = is_new or seen["by"] == "wrapper"
    all_gather = "all_gather_into_tensor" if in_full else "all_gather"
    reduce_scatter = "reduce_scatter_tensor" if in_full else "reduce_scatter"
    assert operations(seen, "reduce_scatter") == [(reduce_scatter, 4000)]
    assert {op for op, _ in operations(seen, "forward")} == {"broadcast"}
    parameters = (10 * 10 + 10) + 2 * 10 + (10 + 1)
    assert operations(seen, "backward") == [("all_reduce", 4 * parameters)]
    assert operations(seen, "fsdp forward") == [(all_gather, 8 * 9 * 4 // 2)] * 2
    backward = [op for op, _ in operations(seen, "fsdp backward")]
    assert backward == [all_gather] * 2 + [reduce_scatter] * 2
    default, sub = seen["all_reduce"]["calls"][0]["group"], seen["group"]["calls"][0]["group"]
    assert default != sub


def test_a_rank_knows_whether_it_has_communicated(seen):
    """Without a group it has not; with one, torch's hooks tell, and they alone; a message to one rank is enough."""
    assert seen["communicated"] == [False, {"hooks": False, "wrapper": None}[seen["by"]], True]


def test_every_collective_is_timed(seen):
    """Each call has a duration within the time that the script measured around it, and none is left over."""
    assert (seen["outstanding"], seen["faults"]) == (0, None)
    for name, report in seen.items():
        if isinstance(report, dict):
            assert all(call["duration"] is not None for call in report["calls"]), name
            if name != "asynchronous":
                assert all(call["duration"] < report["took"] for call in report["calls"]), name


def test_waiting_is_told_from_going_on(seen):
    """Rank 1 comes late: rank 0 is blocked in what it waits for, not in what it only starts."""
    for name in (
        "all_reduce",
        "send and recv",
        "functional",
        "monitored barrier",
        "forward",
        "backward",
        "backward in torch.float64",
        "backward in torch.bfloat16",
        "backward in torch.float16",
        "backward in torch.complex64",
        "backward of sparse gradients",
        "fsdp forward",
    ):
        assert seen[name]["blocked"] > 0.1 * LATE_NS, name
    assert seen["asynchronous"]["blocked"] == 0
    assert seen["asynchronous"]["calls"][0]["duration"] > 0.1 * LATE_NS
    (bucket,) = seen["backward"]["calls"]
    assert (bucket["blocking"], bucket["deferred"]) == (False, True)
    assert all(call["blocking"] for call in seen["forward"]["calls"])
    assert not any(call["deferred"] for call in seen["fsdp backward"]["calls"])


def test_functional_collectives_block_where_their_result_is_used(seen):
    """Rank 1 comes late: rank 0 stands where it needs the sum. A wrapper in Python is not asked for their call."""
    assert seen["functional"]["blocked"] > 0.1 * LATE_NS
    assert operations(seen, "functional") == ([("all_reduce", 4000)] if seen["by"] == "hooks" else [])


def test_a_comm_hook_of_the_script_keeps_working_and_is_timed(seen):
    """Its own reduction is what the gradients go through: the mean over the ranks, in half precision."""
    assert seen["comm hook used"]
    assert seen["comm hook gradient"] == 4 * (1 + 2) / 2
    (call,) = seen["comm hook"]["calls"]
    assert call["op"] == "all_reduce"
    assert call["bytes"] == 11 * 2
    assert call["deferred"]


def test_no_tensor_is_kept_alive(seen):
    """A tensor that went through collectives is gone as soon as the script lets go of it."""
    assert seen["kept alive"] is False


def test_whether_stand_ins_are_heard_is_tried_on_the_host():
    """Also where the script's tensors are on a device by default: it gets no context there that it did not ask for."""
    import torch

    names = [name for name in wrapper._METHODS if hasattr(torch.distributed.ProcessGroup, name)]
    before = torch.cuda.is_initialized()
    torch.set_default_device("cuda")
    try:
        assert wrapper._StandIns(torch, names).are_heard()
    finally:
        torch.set_default_device(None)
    assert torch.cuda.is_initialized() == before


class FakeEvent:
    """A CUDA event that the device passes when it is told to."""

    def __init__(self) -> None:
        self.at_ms: float | None = None

    def record(self, stream: object) -> None:
        pass

    def query(self) -> bool:
        return self.at_ms is not None

    def elapsed_time(self, later: FakeEvent) -> float:
        assert later.at_ms is not None
        assert self.at_ms is not None
        return later.at_ms - self.at_ms


class FakeBackends(Backends):
    """A process group with one backend for all tensors."""

    def __init__(self, backend: Backend) -> None:
        self.group, self._only, self._reference = "0", backend, lambda: None

    def of(self, tensors: list[Any]) -> Backend:
        return self._only


Start = Callable[[Callable[[], object], tuple[()]], object]
"""Starts a thread that calls a function."""


def start_of_python(function: Callable[[], object], _: tuple[()]) -> None:
    threading.Thread(target=function).start()


class FakeWork:
    """Work whose future calls back at once, as NCCL's does when the work is enqueued."""

    def get_future(self) -> FakeWork:
        return self

    def add_done_callback(self, callback) -> None:
        callback(self)


def test_on_a_device_the_duration_is_unknown_until_the_device_has_passed_both_events():
    """The callback, which comes when work is enqueued, is never taken for completion."""
    clock, events = Clock(0), []

    def event() -> FakeEvent:
        events.append(FakeEvent())
        return events[-1]

    stamps = Stamps(clock, clock)
    collectives = Collectives(stamps, Faults())
    backends = FakeBackends(Backend(0, EventClock(event, lambda: None, Captures()), True))
    call = collectives.begin("all_reduce", [], backends, clock.now, blocking=True, origin="")
    collectives.end(call, FakeWork())
    stamps.cut(1)
    assert (call.duration, call.blocking, collectives.outstanding) == (None, False, 1)
    assert not meter.is_ready(stamps.finished[0])
    events[0].at_ms = 3.0
    unknown = call.duration
    assert unknown is None
    events[1].at_ms = 3.25
    assert (call.duration, collectives.outstanding) == (250_000, 0)
    (collective,) = meter.record(stamps.finished[0]).collectives
    assert (collective.duration_ns, collective.on_device) == (250_000, True)


def test_calls_after_the_last_step_are_counted_while_they_go_on() -> None:
    """A rank that enters a collective of its next step and stays there does not go on; one that makes many does."""
    clock = Clock(0)
    collectives = Collectives(Stamps(clock, clock), Faults())
    groups = collectives.groups = {name: Counted(lambda: None) for name in ("0", "1")}
    groups["0"].calls = 17

    def heard(step: int, calls: int) -> tuple[int, str]:
        clock.now += 10**9
        groups["0"].calls += calls
        return collectives.since(step)

    assert [heard(8, calls) for calls in (2, 1, 0, 0, 0, 0)] == [(0, "")] * 6, "it hangs in the next step"
    assert [heard(9, 10) for _ in range(5)] == [(0, "")] * 3 + [(30, "0"), (40, "0")]
    assert [heard(9, 0)[0] for _ in range(6)] == [40] * 4 + [0] * 2, "it has ceased to"
    assert heard(10, 10) == (0, ""), "a step begins anew"


def on_device(captures: Captures) -> tuple[Collectives, FakeBackends, list[FakeEvent]]:
    """Return collectives of one group on a device, and the events that are recorded there."""
    events: list[FakeEvent] = []

    def event() -> FakeEvent:
        events.append(FakeEvent())
        return events[-1]

    clock = Clock(0)
    backend = Backend(0, EventClock(event, lambda: None, captures), True)
    return Collectives(Stamps(clock, clock), Faults()), FakeBackends(backend), events


@pytest.mark.parametrize(("start", "waits"), [(_thread.start_new_thread, True), (start_of_python, False)])
def test_the_backward_pass_waits_for_what_torchs_own_threads_have_begun(start: Start, waits: bool):
    """Gradients on a device are shared from such a thread, with gloo as well; those of the script do as they like."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.observed = True
    collectives, backends = Collectives(stamps, Faults()), FakeBackends(Backend(2, None, True))
    collectives.begin("broadcast", [], backends, 0, blocking=False, origin="torch.nn.parallel.distributed")
    clock.now = 5
    stamps.enter(BACKWARD)
    calls: list[Call] = []
    clock.now = 10
    start(lambda: calls.append(collectives.begin("all_reduce", [], backends, 10, blocking=False, origin="")), ())
    until(lambda: calls, "the call")
    calls[0].done = 30
    clock.now = 40
    stamps.leave()
    stamps.cut(1)
    step = meter.record(stamps.finished[0])
    assert (calls[0].deferred, step.wait_ns, step.backward_ns) == (waits, 20 if waits else 0, 15 if waits else 35)


@pytest.mark.parametrize("work", [FakeWork(), None])
def test_on_a_device_a_call_is_open_until_the_device_has_passed_it(work: FakeWork | None):
    """Also one of which no work is returned, because it is on the training's own stream."""
    collectives, backends, events = on_device(Captures())
    call = collectives.begin("all_reduce", [], backends, 0, blocking=True, origin="")
    collectives.end(call, work)
    assert [(each.call, each.sure) for each in collectives.open(None)] == [(call, True)]
    for at_ms, event in enumerate(events):
        event.at_ms = float(at_ms)
    assert len(events) == 2
    assert collectives.open(None) == []
    assert call.duration == 1_000_000


def test_a_barrier_that_returns_no_work_has_waited():
    """Newer NCCL groups wait in C++ for the end of a barrier that is not asynchronous."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.observed = True
    stamps.cut(1)
    collectives = Collectives(stamps, Faults())
    call = collectives.begin("barrier", [], FakeBackends(Backend(0, None, False)), 0, blocking=True, origin="")
    clock.now = 25
    collectives.end(call, None)
    clock.now = 40
    stamps.cut(2)
    step = meter.record(stamps.finished[1])
    assert (step.wait_ns, step.collectives[0].duration_ns, step.collectives[0].estimated) == (25, 25, False)
    assert collectives.outstanding == 0


def test_a_call_of_a_graph_that_is_captured_is_not_taken_for_open():
    """Nothing of it can be asked for, and calls after the capture are known as ever."""
    captures = Captures()
    collectives, backends, events = on_device(captures)
    captures.begin()
    collectives.end(collectives.begin("all_reduce", [], backends, 0, blocking=False, origin=""), FakeWork())
    assert collectives.open(None) == []
    captures.end()
    later = collectives.begin("all_reduce", [], backends, 0, blocking=False, origin="")
    collectives.end(later, FakeWork())
    assert [each.call for each in collectives.open(None)] == [later]
    assert len(events) == 2


def test_calls_are_numbered_by_group_without_messages():
    """Two groups have counts of their own; the newest calls are remembered, in order."""
    collectives = Collectives(Stamps(Clock(0), Clock(0)), Faults())
    pair, other = FakeBackends(Backend(2, None, True)), FakeBackends(Backend(2, None, True))
    other.group = "1"
    for backends, op in [(pair, "all_reduce"), (other, "broadcast"), (pair, "send"), *[(pair, "all_gather")] * 20]:
        collectives.end(collectives.begin(op, [], backends, 0, blocking=False, origin=""), FakeWork())
    assert {name: counted.calls for name, counted in collectives.groups.items()} == {"0": 21, "1": 1}
    recent = collectives.groups["0"].recent
    assert [call.number for call in recent] == list(range(6, 22))


def test_what_torch_takes_to_call_the_hooks_is_a_part_of_their_cost(monkeypatch):
    """A step with a collective costs some microseconds more than one without, although their clock stands still."""
    hooks: list[Callable[[Any], None]] = []

    class Group:
        group_name = "0"

        def register_pre_hook(self, _: int, hook: Callable[[Any], None]) -> None:
            hooks.append(hook)

        def register_post_hook(self, _: int, hook: Callable[[Any], None]) -> None: ...

    group = Group()
    args = SimpleNamespace(
        name=SimpleNamespace(name="ALLREDUCE", value=3), async_op=False, input_tensors=[SimpleNamespace(nbytes=8)]
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    found = []
    for calls in (0, 1):
        stamps = Stamps(Clock(0), Clock(0))
        cost = stamps.cost = Cost(Clock(5))
        stamps.recording = False
        collectives = Collectives(stamps, Faults())
        monkeypatch.setattr(collectives._waits, "watch", lambda _: None)
        collectives.watch(group)
        for step in range(1, FIRST + 2):
            cost.turn(step, recording=False)
        assert cost.sampling
        for _ in range(calls):
            hooks[-1](args)
        cost.end(0)
        assert collectives.groups["0"].calls == calls
        assert cost.counted_ns is not None
        found.append(cost.counted_ns)
    assert 4_000 < found[1] - found[0] < 10_000


def test_calls_aside_of_the_training_are_those_of_one_thread(monkeypatch):
    """What another thread of the script calls meanwhile counts as always: its ranks do so at different times."""
    hooks: list[Callable[[Any], None]] = []

    class Group:
        group_name = "0"

        def register_pre_hook(self, _: int, hook: Callable[[Any], None]) -> None:
            hooks.append(hook)

        def register_post_hook(self, _: int, hook: Callable[[Any], None]) -> None: ...

    args = SimpleNamespace(
        name=SimpleNamespace(name="ALLREDUCE", value=3), async_op=False, input_tensors=[SimpleNamespace(nbytes=8)]
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    stamps = Stamps(Clock(0), Clock(0))
    stamps.recording = False
    collectives = Collectives(stamps, Faults())
    monkeypatch.setattr(collectives._waits, "watch", lambda _: None)
    group = Group()
    collectives.watch(group)
    with collectives.aside():
        hooks[0](args)
        thread = threading.Thread(target=hooks[0], args=(args,))
        thread.start()
        thread.join()
    assert collectives.groups["0"].calls == 1
    hooks[0](args)
    assert collectives.groups["0"].calls == 2
    assert collectives.groups["0"].group() is group


def test_a_group_that_is_made_anew_is_counted_anew(monkeypatch):
    """After a new start of torch.distributed its names come again, on all ranks alike."""

    class Group:
        group_name = "0"

    collectives = Collectives(Stamps(Clock(0), Clock(0)), Faults())
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setattr(wrapper, "install", lambda *_: None)
    monkeypatch.setattr(collectives._waits, "watch", lambda _: None)
    first, second = Group(), Group()
    collectives.watch(first)
    collectives.groups["0"].calls = 5
    collectives.watch(first)
    assert collectives.groups["0"].calls == 5
    collectives.watch(second)
    assert collectives.groups["0"].calls == 0


def test_dense_collectives_are_timed_in_some_steps_only_and_it_is_said():
    """At 4,000 a second one step of 64 is timed, the same on all ranks; calls are counted in every step."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    collectives = Collectives(stamps, Faults())
    backends = FakeBackends(Backend(2, None, True))
    for number in range(1, 601):
        collectives.end(collectives.begin("all_reduce", [], backends, clock.now, blocking=False, origin=""), FakeWork())
        clock.now += 250_000
        stamps.cut(number)
    # The next power of two, so that ranks that look at different moments still have steps in common.
    assert 4000 / timing.MAX_TIMED_PER_S <= collectives.timed_every == 64
    late = list(stamps.finished)[-256:]
    timed = [stamped.step for stamped in late if stamped.calls[0].duration is not None]
    assert timed == [stamped.step for stamped in late if next_sampled(stamped.step, 64) == stamped.step]
    assert len(timed) == 256 // 64
    assert all(len(stamped.calls) == 1 and meter.is_ready(stamped) for stamped in late)
    assert collectives.outstanding <= 1


def test_the_rate_of_collectives_is_not_mistaken_where_fewer_steps_come_to_be_recorded():
    """At 300 a second one step of 4 is timed, and never fewer: what was counted before is no rate of the present."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    collectives = Collectives(stamps, Faults())
    backends = FakeBackends(Backend(2, None, True))
    found = set()
    for number in range(1, 3001):
        if stamps.recording:
            call = collectives.begin("all_reduce", [], backends, clock.now, blocking=False, origin="")
            collectives.end(call, FakeWork())
        clock.now += 3_333_333
        stamps.cut(number)
        stamps.every = 1 if number < 250 else 8
        found.add(collectives.timed_every)
    assert found == {1, 4}


def test_a_call_that_is_not_timed_is_over_with_its_step():
    """A rank that hangs before the first call of the next step is in no collective."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    collectives = Collectives(stamps, Faults())
    backends = FakeBackends(Backend(2, None, False))
    collectives.end(collectives.begin("all_reduce", [], backends, 0, blocking=False, origin=""), FakeWork())
    assert collectives.outstanding == 1
    stamps.cut(1)
    assert collectives.outstanding == 0


def test_what_queues_for_a_worker_is_told_and_marked():
    """Five at once on two workers: the third begins when the first is done, and so on; others are exact."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    for index, done in enumerate((100, 130, 210, 260, 330)):
        call = Call("all_reduce", index, 8, index + 1, False, group="0", workers=2)
        call.done = done
        stamps.call(call)
    other = Call("all_reduce", 5, 8, 6, False, group="1", workers=2)
    other.done = 50
    stamps.call(other)
    clock.now = 400
    stamps.cut(1)
    calls = meter.record(stamps.finished[0]).collectives
    begun = [call.entered_ns + call.queued_ns for call in calls]
    start = begun[0]
    assert [each - start for each in begun] == [0, 1, 100, 130, 210, 5]
    assert [call.estimated for call in calls] == [False, False, True, True, True, False]


@pytest.mark.parametrize("blocking", [False, True])
def test_what_follows_in_a_communication_hook_is_waited_for_as_a_whole(blocking: bool):
    """PowerSGD calls, on a thread of the backend, one collective after the other: all of that is time spent waiting."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.observed = True
    collectives, backends = Collectives(stamps, Faults()), FakeBackends(Backend(2, None, True))
    stamps.enter(BACKWARD)
    calls: list[Call] = []

    def call(blocks: bool = False) -> None:
        origin = "torch.autograd.graph"
        calls.append(collectives.begin("all_reduce", [], backends, clock.now, blocking=blocks, origin=origin))

    def called(count: int) -> bool:
        return len(calls) == count

    clock.now = 10
    call()
    for begun, done in ((30, 35), (35, 40)):
        calls[-1].done = clock.now = begun
        count = len(calls) + 1
        _thread.start_new_thread(call, (blocking,))
        until(functools.partial(called, count), "the call")
        calls[-1].done = done
    clock.now = 42
    stamps.leave()
    stamps.cut(1)
    step = meter.record(stamps.finished[0])
    # While the first one was on its way the training thread has computed nothing more, nor has it later.
    assert (step.wait_ns, step.backward_ns) == (30, 12)


def test_a_stamp_that_came_late_is_corrected_by_who_waited():
    """DDP goes on when its buckets are done: they were done by the end of the backward pass."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.observed = True
    stamps.enter(BACKWARD)
    call = Call("all_reduce", 10, 8, 1, False)
    call.deferred, call.done = True, 90
    stamps.call(call)
    clock.now = 40
    stamps.leave()
    clock.now = 100
    stamps.cut(1)
    step = meter.record(stamps.finished[0])
    assert (step.collectives[0].duration_ns, step.wait_ns, step.backward_ns) == (30, 30, 10)
