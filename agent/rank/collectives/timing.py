"""Timing of every collective of every process group, DDP's own C++ calls included.

It uses the pre and post hooks of `torch.distributed.ProcessGroup`, which run for calls from C++ as
well as from Python; where torch has none, `wrapper`; where that fails too, nothing is
observed, which the screens show.  Arguments and works refer to the tensors, so no reference to them is stored here.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Final, NamedTuple

from ddptop.agent.rank.collectives import open_calls, wrapper
from ddptop.agent.rank.collectives.backends import (
    AUTOGRAD,
    LONGEST,
    Backends,
    Counted,
    Note,
    bytes_of,
    call_of,
    form_of,
    name_of,
)
from ddptop.agent.rank.collectives.open_calls import Open
from ddptop.agent.rank.collectives.waits import Waits
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.hooks import gradients
from ddptop.agent.rank.records.sampling import next_sampled
from ddptop.agent.rank.records.stamps import BACKWARD, Call, Stamps

HOOKS: Final = "process-group hooks"
"""The mechanism that sees every call of a process group."""
HOOK_ID: Final = 0xDD70
"""Id of our hooks of a process group."""

_NAMES: Final = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "all_reduce_coalesced",
    "ALLGATHER": "all_gather",
    "ALLGATHER_COALESCED": "all_gather_coalesced",
    "ALLGATHER_BASE": "all_gather_into_tensor",
    "ALLGATHER_INTO_TENSOR_COALESCED": "all_gather_into_tensor_coalesced",
    "REDUCE_SCATTER_BASE": "reduce_scatter_tensor",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all_single",
}
"""torch's names of operations that differ from the function's name in capitals."""

MAX_TIMED_PER_S: Final = 100
"""Collectives a second that are timed at most on the backend's threads; each takes the interpreter
lock once, for 10 to 20 us of one core, from the training. At a higher rate only those of one step in 2, 4, 8… are
timed, the same steps on all ranks."""
_FROM_CPP_NS: Final = 5_000
"""Nanoseconds that torch takes to call the two hooks around a collective, which no clock inside of them sees:
4.5 us for two empty ones on a fast machine, 10 us on one whose steps take twice as long."""
_MOST_NOTED: Final = 256
_WENT_ON_NS: Final = 3_000_000_000
"""Nanoseconds after a step for which a rank makes collectives before it is said to go on without a further one."""
_QUIET_NS: Final = 10_000_000_000
"""Nanoseconds without a collective after which it does not."""
_STRIDE_CALLS: Final = 256
"""Calls after which their rate is measured again."""
_POINT_TO_POINT: Final = frozenset({"send", "recv"})
_UNTOLD: Final = frozenset(
    {"send", "recv", "recv_anysource", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"}
)
"""Operations whose works have no future on gloo; see `waits`."""
_DDP: Final = "torch.nn.parallel.distributed"
_IN_PLACE: Final = frozenset({_DDP, "torch.distributed.utils", wrapper.__name__})
"""Modules whose calls of C++ issue collectives as asynchronous, and wait for them before they return."""


class Forming(NamedTuple):
    """A process group that is being made."""

    name: str
    ranks: tuple[int, ...]
    """Its ranks; empty where it is the default group."""
    timeout_s: float | None
    """Timeout of its calls, None where that is the default."""
    began: int
    """By the clock of the stamps."""


class _Since(NamedTuple):
    """The calls at the moment at which a step was first known to be the last."""

    step: int
    at: int
    """By the clock of the stamps."""
    calls: dict[str, int]
    """By group."""
    newest: dict[str, int]
    """The calls at the last moment at which there were more."""
    newest_at: int


class Collectives:
    """Stamps the call and the completion of each collective."""

    def __init__(self, stamps: Stamps, faults: Faults) -> None:
        self._stamps = stamps
        self._faults = faults
        self._flying: dict[int, Call] = {}
        self._enqueued: deque[Call] = deque()
        """Calls on a device, oldest first; the host learns of their completion only later."""
        self._unwatched: list[Call] = []
        """Calls of this step that are not timed: they count as in flight until the step ends."""
        self._step = 0
        self._calls = 0
        self._looked_at = stamps.clock()
        self._looked_of = stamps.every
        """One step in so many was recorded since then."""
        self.timed_every = 1
        """The collectives of one step in so many are timed; see `next_sampled`."""
        self._times = True
        """True where the calls of the present step are timed, if it is recorded."""
        self._waits = Waits(stamps, faults, self._flying, self.begin)
        self._ddp = False
        self._buckets = False
        """DDP has begun a collective in a backward pass."""
        self._noted: deque[Note] = deque(maxlen=_MOST_NOTED)
        """Newest calls of steps that are only counted."""
        self.mechanism: str | None = None
        """How collectives are observed, None where they are not."""
        self.expects_groups = False
        """Each process group of the script will be given to `watch`."""
        self._watches = False
        """There is such a group."""
        self._has_seen = False
        """A collective, a send or a receive was called."""
        self._aside: int | None = None
        """The thread whose calls are not the training's."""
        self._since_step: _Since | None = None
        self.groups: dict[str, Counted] = {}
        """By name, the calls of each process group."""
        self.forming: Forming | None = None
        """The process group that the training thread makes at this moment."""

    @property
    def outstanding(self) -> int:
        """Collectives called and not known to be complete."""
        # Calls that are not timed count until their step ends, and are forgotten only at the first call after it.
        past = self._stamps.steps != self._step
        return sum(
            (call.expected or not past) and (call.device is None or call.duration is None)
            for call in tuple(self._flying.values())
        ) + sum(not call.origin for call in self._noted_calls())

    def _noted_calls(self) -> list[Call]:
        return self.of_counted(self._stamps.steps)

    def of_counted(self, steps: int) -> list[Call]:
        """Return the calls of the step before which so many were complete, where it is only counted."""
        return [call_of(note, _IN_PLACE, buckets=self._buckets) for note in tuple(self._noted) if note[-1] == steps]

    @property
    def communicated(self) -> bool | None:
        """True where this rank has communicated with others; None where it may have done so unseen."""
        if self._has_seen:
            return True
        return False if self._sees_all else None

    @property
    def observed(self) -> bool:
        """True where every collective is seen, so that one that was not seen was not called."""
        # DDP's constructor has a collective of its own in C++, which the wrapper does not see.
        wrapped = self.mechanism == wrapper.WRAPPER and self._stamps.steps > 0 and not self._waits.functional
        return self._sees_all or (wrapped and not may_be_unseen(watches=self._watches))

    @property
    def _sees_all(self) -> bool:
        # The wrapper does not see what C++ calls of itself, such as functional collectives.
        seen = self.mechanism == HOOKS if self._watches else self.expects_groups
        return seen and not may_be_unseen(watches=self._watches)

    def since(self, step: int) -> tuple[int, str]:
        """Return the calls of the group with most of them since that step, the last one, and that group.

        They are counted from the first time that this is asked of the step. There are none where the rank has made
        calls only in the beginning of that time, or none for long: then it does not go on.
        """
        now, calls = self._stamps.clock(), {name: group.calls for name, group in tuple(self.groups.items())}
        since = self._since_step
        if since is None or since.step != step:
            since = _Since(step, now, calls, calls, now)
        elif calls != since.newest:
            since = since._replace(newest=calls, newest_at=now)
        self._since_step = since
        went_on = since.newest_at - since.at
        if went_on < _WENT_ON_NS or now - since.newest_at > min(_QUIET_NS, went_on):
            return 0, ""
        made = {name: number - since.calls.get(name, 0) for name, number in calls.items()}
        most = max(made, key=made.__getitem__, default="")
        return max(0, made.get(most, 0)), most

    def open(self, main: FrameType | None) -> list[Open]:
        """Return the calls that have not completed, oldest first; `main` is the training thread's innermost frame."""
        is_over = self._stamps.steps != self._step
        flying = tuple(self._flying.values())
        found = open_calls.find(flying, self._stamps, self._waits, main, is_over=is_over)
        if noted := self._noted_calls():
            found += open_calls.find(noted, self._stamps, self._waits, main, is_over=False)
        return found

    @property
    def thread(self) -> int | None:
        """The training thread."""
        return self._stamps.thread

    def now(self) -> int:
        """Return the present time of the clock of the stamps."""
        return self._stamps.clock()

    def form(self, name: str, ranks: Sequence[int], timeout_s: float | None) -> None:
        """Note that the training thread begins to make a process group, which waits for its other ranks."""
        self.forming = Forming(name[:LONGEST], tuple(ranks), timeout_s, self._stamps.clock())

    def watch(self, group: Any) -> None:
        """Observe the collectives of a process group of torch from now on."""
        torch = sys.modules["torch"]
        self._watches = True
        name = name_of(group)
        known = self.groups.get(name)
        # After a new start of torch.distributed the names come again, for other groups.
        if known is None or known.group() is not group:
            self.groups[name] = Counted(weakref.ref(group))
            if self.forming is not None and self.forming.name == name:
                self.groups[name].timeout_s = self.forming.timeout_s
        if hasattr(group, "register_pre_hook") and hasattr(group, "register_post_hook"):
            self._hook(torch, group)
            self.mechanism = HOOKS
        elif self.mechanism is None:
            self.mechanism = wrapper.install(torch, self, self._faults)
        # Last, so that its wrappers are the outermost ones.
        self._waits.watch(torch)
        self._stamps.observed = self.mechanism not in (None, wrapper.FUNCTIONS)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Note no calls and waits of this thread in this block: they are not the training's.

        Those of other threads are: a checkpoint that is saved beside the training has collectives of its own.
        """
        self._aside, self._waits.is_aside = threading.get_ident(), True
        try:
            yield
        finally:
            self._aside, self._waits.is_aside = None, False

    @property
    def is_aside(self) -> bool:
        """True where a call on the present thread is not the training's."""
        return self._aside is not None and self._aside == threading.get_ident()

    def missed(self, error: Exception) -> None:
        """Note that a call could not be noted, so that the time for which this step waits is not known."""
        self._faults.note("a call of a collective", error)
        self._stamps.miss()

    def lower(self, mechanism: str) -> None:
        """Note that fewer collectives are observed than assumed; the time spent waiting is then not known."""
        self.mechanism = mechanism
        self._stamps.observed = False

    def _hook(self, torch: Any, group: Any) -> None:
        entered: dict[int, Call] = {}
        """By thread, on which no other call begins between the two hooks."""
        names: dict[int, str] = {}
        """By number of a member of torch's enumeration, whose own look-up of names is linear."""
        backends = Backends(torch, group)
        stamps, clock, ident = self._stamps, self._stamps.clock, threading.get_ident
        noted, groups = self._noted, self.groups

        def named(name: Any) -> str:
            op: str = _NAMES.get(name.name, name.name.lower())
            names[name.value] = op
            return op

        def pre_hook(args: Any) -> None:
            """Note a call: all of it in a step that is recorded, a plain tuple in one that is only counted."""
            if self._aside is not None and self.is_aside:
                return
            began = cost.clock() if cost.sampling else 0
            try:
                now, thread = clock(), ident()
                if entered and (failed := entered.pop(thread, None)) is not None:
                    self.abandon(failed)
                # Each attribute is read once: the binding makes a new object every time.
                name, asynchronous = args.name, args.async_op
                op = names.get(name.value) or named(name)
                tensors = args.input_tensors or args.output_tensors
                if stamps.recording or op in _UNTOLD:
                    origin = _caller(1) if asynchronous else ""
                    entered[thread] = self.begin(
                        op, tensors, backends, now, blocking=not asynchronous, origin=origin, thread=thread
                    )
                else:
                    in_backward = stamps.phases[-1] == BACKWARD
                    origin = _caller(1) if asynchronous and not (in_backward and self._buckets) else ""
                    size = bytes_of(tensors)
                    counted = backends.counted or backends.count(groups)
                    # No other Python code runs within this line: two threads never get the same number.
                    counted.calls = number = counted.calls + 1
                    steps, is_main = stamps.steps, thread == stamps.thread or (in_backward and _is_of_torch())
                    form = form_of(tensors)
                    note = backends, number, op, now, size, asynchronous, in_backward, origin, is_main, form, steps
                    counted.noted.append(note)
                    noted.append(note)
            except Exception as error:
                self.missed(error)
            if began:
                cost.add(cost.clock() - began + _FROM_CPP_NS)

        def after(args: Any) -> None:
            call = entered.pop(ident(), None)
            # The work of a gloo call that is not timed shows nothing, unless a wait for it shows its end.
            if call is not None and (call.expected or not call.workers or call.op in _UNTOLD):
                self.end(call, args.work)

        cost = stamps.cost
        watched_after = cost.watched(after, self._faults)

        def post_hook(args: Any) -> None:
            if entered:
                watched_after(args)

        group.register_pre_hook(HOOK_ID, pre_hook)
        group.register_post_hook(HOOK_ID, post_hook)

    def begin(
        self,
        op: str,
        tensors: list[Any],
        backends: Backends,
        now: int,
        *,
        blocking: bool,
        origin: str,
        thread: int | None = None,
    ) -> Call:
        """Note that a collective was called at `now`, by code of the module `origin`, on this `thread`."""
        self._has_seen = True
        stamps = self._stamps
        self._settle()
        backend, thread = backends.of(tensors), thread or threading.get_ident()
        in_place = origin in _IN_PLACE
        if origin == _DDP:
            self._ddp = True
        host = backend.clock is None and (thread == stamps.thread or (stamps.in_backward and _is_of_torch()))
        size = bytes_of(tensors)
        call = Call(
            op,
            now,
            size,
            len(self._flying) + 1,
            host and (blocking or in_place),
            group=backends.group,
            workers=0 if op in _POINT_TO_POINT else backend.workers,
        )
        call.thread, call.form = thread, form_of(tensors)
        if stamps.in_backward and not call.blocking and (self._ddp or origin == AUTOGRAD):
            call.deferred = host
            self._buckets = True
            if stamps.recording:
                self._sample(tensors)
        if stamps.recording:
            call.expected = backend.has_future and (in_place or self._times)
            stamps.call(call)
        else:
            call.expected = False
            if in_place:
                call.origin = origin
        if not call.expected:
            call.estimated = True
            self._unwatched.append(call)
        elif backend.clock is not None:
            call.device = backend.clock
            call.moments = [backend.clock.record()]
        if op not in _POINT_TO_POINT:
            counted = backends.counted or backends.count(self.groups)
            # No other Python code runs within this line: two threads never get the same number.
            counted.calls = call.number = counted.calls + 1
            counted.noted.append(call)
        self._flying[id(call)] = call
        return call

    def _sample(self, buckets: list[Any]) -> None:
        try:
            for bucket in buckets[:1]:
                if (number := gradients.sampled(sys.modules["torch"], bucket)) is not None:
                    self._stamps.gradient(number)
        except Exception as error:
            # The call is timed all the same.
            self._faults.note("a sample of the gradients", error)

    def end(self, call: Call, work: Any) -> None:
        """Note that the call returned `work`, which completes later."""
        if call.device is not None and (call.moments is None or call.moments[0] is None):
            # Of a graph that is being captured nothing is timed.
            self.abandon(call)
        if work is None:
            self._end_without_work(call)
            return
        if not call.expected:
            if call.op in _UNTOLD:
                self._waits.without_future = call
            return
        try:
            future = work.get_future()
        except RuntimeError:
            self.abandon(call)
            self._waits.without_future = call
            return
        if call.device is not None:
            self._enqueued.append(call)
        future.add_done_callback(functools.partial(self._finish, call))

    def _end_without_work(self, call: Call) -> None:
        if call.expected and call.device is not None and call.op not in _POINT_TO_POINT:
            # Newer NCCL groups return no work of a synchronous call: it is on the stream that is current here.
            self._enqueued.append(call)
            self._finish(call, None)
        elif call.blocking and call.op == "barrier":
            # In a barrier they themselves wait for the device, before they return.
            call.done, call.estimated = self._stamps.clock(), False
            self.abandon(call)
        else:
            self.abandon(call)

    def _settle(self) -> None:
        """Forget completed calls."""
        while self._enqueued and self._enqueued[0].duration is not None:
            self._flying.pop(id(self._enqueued.popleft()), None)
        self._calls += 1
        if self._stamps.steps == self._step:
            return
        self._step = self._stamps.steps
        for call in self._unwatched:
            self._flying.pop(id(call), None)
        self._unwatched.clear()
        self._choose()

    def _choose(self) -> None:
        """Say whether the collectives of a step that begins are timed."""
        # Calls that were seen while another number held show no rate of the present.
        if self._looked_of != self._stamps.every:
            self._calls, self._looked_at, self._looked_of = 0, self._stamps.clock(), self._stamps.every
        if self._calls >= _STRIDE_CALLS:
            now = self._stamps.clock()
            # Those of steps that are only counted are not among them.
            rate = self._stamps.every * self._calls * 1e9 / max(1, now - self._looked_at)
            self._calls, self._looked_at = 0, now
            self.timed_every = 1 << max(0, math.ceil(math.log2(rate / MAX_TIMED_PER_S)))
        # The number of a step is one more than that of the steps before it.
        number = self._step + 1
        self._times = number == next_sampled(number, self.timed_every)

    def abandon(self, call: Call) -> None:
        """Stop expecting the completion of a call."""
        call.expected = False
        self._flying.pop(id(call), None)

    def _finish(self, call: Call, _future: object) -> None:
        # With gloo this runs on a thread of the backend, at completion; a single attribute and
        # a dict deletion need no lock. With NCCL it runs when the work is enqueued, under a stream
        # that waits for the work: an event on that stream marks the completion.
        if call.device is not None and call.moments is not None:
            call.moments.append(call.device.record())
        else:
            call.done = self._stamps.clock()
            self._flying.pop(id(call), None)


def _is_of_torch() -> bool:
    """Say whether this is a thread that Python did not start.

    In such threads torch runs the backward pass of what is on a device, while the training thread waits for its end.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_globals.get("__name__") != "threading"


def _caller(depth: int) -> str:
    """Return the module of the Python code that called into C++; empty on a thread of C++."""
    try:
        return str(sys._getframe(depth + 1).f_globals.get("__name__", ""))
    except ValueError:
        return ""


_LIBRARIES: Final = (
    "bagua",
    "byteps",
    "cupyx.distributed",
    "distributed",
    "hivemind",
    "horovod",
    "mpi4py",
    "nccl",
    "nvshmem",
    "ray",
    "torch_xla",
    "torchft",
    "ucp",
    "ucxx",
)
"""Modules by which ranks communicate without a process group of torch; `distributed` is Dask's."""
_RPC: Final = "torch.distributed.rpc"


def may_be_unseen(*, watches: bool) -> bool:
    """Say whether this process has what it needs to communicate past our hooks.

    Args:
        watches: True where the process group that the script has made, if any, is hooked.
    """
    if any(name in sys.modules for name in _LIBRARIES) or _has_rpc(sys.modules.get(_RPC)):
        return True
    # A group that another thread than the main one has made is not hooked.
    return not watches and _has_group(getattr(sys.modules.get("torch"), "distributed", None))


def _has_group(distributed: Any) -> bool:
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _has_rpc(rpc: Any) -> bool:
    """Say whether an agent of torch's RPC runs, True where the module does not show it."""
    if rpc is None:
        return False
    # Where torch is built without RPC the module has none of it.
    is_set = getattr(rpc, "_is_current_rpc_agent_set", None)
    return bool(is_set()) if is_set is not None else hasattr(rpc, "rpc_sync")
