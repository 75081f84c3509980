"""The work of this rank in a step, counted once: one early step is traced, between two boundaries.

The trace is that of torch's execution trace observer, which hears of each operator with the shapes of its tensors.  A
dispatch mode, by which torch's `FlopCounterMode` counts, would change the way of each operator and what torch's
compiler meets; torch's profiler would load CUPTI into each training, and end the profiler of the script.  The observer
changes nothing that is computed, hears of what compiled code calls and of all threads, and is gone after the step.

All ranks trace the same step, so that they wait for each other once.  It is early, and in no row of ten or of a power
of two the first or last, where scripts evaluate and save.  Where a graph was compiled, or the process has forked, a
later one is taken.  Nothing is said where it fails: the work is not known then.

The observer keeps a stack of operators for each thread, and takes from an empty one without looking: the process ends
there.  It takes once too often for each operator whose tensors have no sizes or strides (nested ones, sparse ones in
CSR).  So there are entries to spare, and it ends as soon as such an operator is in the trace, before a backward pass in
any case: on a device that has a thread of its own, with nothing to spare.  And it looks for the thread that has made a
node of the graph, which it has to have heard.  So only a training by the main thread is counted, and none for which
another thread has made DDP, which keeps a node for each parameter.  On a GPU no step is counted unasked, but one behind
the steps of a profile that somebody asks for.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.hooks.around import replace
from ddptop.agent.rank.inspection.work import arithmetic
from ddptop.agent.rank.inspection.work.peaks import peak_of
from ddptop.agent.rank.records.device_time import CAPTURES
from ddptop.agent.rank.records.stamps import Stamps

_STEPS: Final = (23, 53, 113, 233, 473)
"""One of these steps is traced, the first at which nothing stands against it."""
_BEHIND: Final = 3
"""Steps from the last one that is profiled to the one that is counted: the profiler has ended by then."""
_LARGEST: Final = 64 << 20
"""Bytes of a trace, some 50,000 operators, after which it ends without a result."""
_LOOK_S: Final = 0.05
_SPARE: Final = 2000
"""Entries to spare: an operator that takes one needs some 0.1 ms at least, for its exception."""
_FAILED: Final = b'"ctrl_deps": 0,'
"""Stands at an operator that has taken one."""
_FLUSHES: Final = "ddptop " * 300
"""A name too long for the observer to hold it back, or what came before it."""
_SETTLE_S: Final = 0.5
"""Seconds after the step until the observer is removed: an operator of another thread may be about to write."""
_ERRORS: Final = 2
"""The level of torch's log in C++ at which no warnings are printed, which the observer writes at its begin and end."""
_COMPILED: Final = ("frames", "aot_autograd", "inductor")
"""The counters of torch's compiler that grow while it compiles."""
_KINDS: Final = {
    "c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32",
    "c10::Float8_e4m3fn": "float8", "c10::Float8_e4m3fnuz": "float8",
}  # fmt: skip


class _Unavailable(Exception):
    """The observer is not in this torch, or the script uses it."""


class _Trace:
    """The observer, from the boundary before the step until it is removed."""

    def __init__(self, torch: Any) -> None:
        """Begin to hear of operators.

        Raises:
            _Unavailable: the observer cannot be had.
        """
        try:
            self._observer: Any = importlib.import_module("torch._C._profiler")
            self._level = _log_level(torch)
            # Nothing on the disk: what a killed process has written is gone with it.
            self.file = os.memfd_create("ddptop-operators")
        except (ImportError, OSError, ValueError) as error:
            raise _Unavailable from error
        # A signal handler of the script's may fork while the training thread has it.
        self._lock = threading.RLock()
        self._is_on = self._is_there = False
        self.ended = threading.Event()
        self.is_spoiled = False
        """True where its step is not a usual one."""
        self.compiled = _compiled()
        self._level_before = self._level.value
        self._ranges = torch._C._autograd
        self._spare: list[Any] = []
        self._searched = 0
        """Bytes of the trace in which no operator has failed."""
        try:
            os.write(self.file, b" ")
            self._level.value = max(self._level_before, _ERRORS)
            self._observer._add_execution_trace_observer(f"/proc/self/fd/{self.file}")
            if os.fstat(self.file).st_size:
                # Not emptied by the observer, which is another one.
                raise _Unavailable
            self._is_there = True
            self._observer._enable_execution_trace_observer()
            self._is_on = True
            begin = self._ranges._record_function_with_args_enter
            self._spare += [begin("ddptop counts") for _ in range(_SPARE)]
        except BaseException:
            self.end()
            self.close()
            raise

    def flush(self) -> None:
        """Have all of the trace in the file."""
        self._ranges._record_function_with_args_exit(self._ranges._record_function_with_args_enter(_FLUSHES))

    def has_failed(self) -> bool:
        """Say whether the observer could not read the tensors of an operator; may be called by any thread."""
        at = self._searched
        while piece := os.pread(self.file, 1 << 20, at):
            if _FAILED in piece:
                return True
            if len(piece) < len(_FAILED):
                break
            at += len(piece) - len(_FAILED) + 1
            self._searched = at
        return False

    def end(self) -> None:
        """Hear of no more operators, once."""
        with self._lock:
            if self._is_on:
                self._is_on = False
                self._observer._disable_execution_trace_observer()
                self._spare.clear()
            self._level.value = self._level_before
        self.ended.set()

    def remove(self) -> None:
        """Complete the file, once."""
        with self._lock:
            if self._is_there:
                self._is_there = False
                self._observer._remove_execution_trace_observer()

    def close(self) -> None:
        """Be removed, with the file."""
        self.remove()
        os.close(self.file)

    def abandon(self) -> None:
        """Be removed from a forked child, where a thread that is not there may have the lock."""
        self._lock = threading.RLock()
        self.close()


class Counting:
    """The work of one rank in a step."""

    def __init__(self, stamps: Stamps, faults: Faults) -> None:
        """Know nothing, and load nothing."""
        self._stamps = stamps
        self._faults = faults
        self._steps = list(_STEPS)
        """Those at which it is tried yet."""
        self._trace: _Trace | None = None
        self._device: str | None = None
        self._gives_way = False
        self._is_asked = self._is_unsafe = False
        self.is_armed = True
        """True while the training thread is to call `boundary` at the end of each step at which something is to do."""
        self.flops: float | None = None
        """Floating-point operations of a step."""
        self.peak: float | None = None
        """Such operations a second that the device can do, with numbers of the type that most of them have."""

    def boundary(self, step: int, device: str | None) -> None:
        """Begin or end at the boundary behind a step; called by the training thread, and raises nothing."""
        self.is_armed = False
        try:
            if self._trace is not None:
                self._trace.end()
                return
            while self._steps and self._steps[0] <= step:
                del self._steps[0]
            if self._steps and self._steps[0] == step + 1:
                if self._is_asked or not (device or "").startswith("cuda"):
                    self._device = device
                    self._begin()
                else:
                    self._steps.clear()
            if self._steps:
                self.is_armed = True
                # Until the boundary before it nothing is to do.
                self._stamps.eventful = min(self._stamps.eventful, self._steps[0] - 1)
        except Exception as error:
            self._note(error)

    def ask(self, profiled: int) -> None:
        """Count a step behind the last one that is to be profiled, unless one is counted; by the agent's thread."""
        if self.flops is None and self._trace is None:
            self._is_asked, self._steps = True, [profiled + _BEHIND]
            self.is_armed = True
            self._stamps.eventful = 0

    def _note(self, error: Exception) -> None:
        """Count an error; that this torch has another observer, or writes another trace, is none."""
        if not isinstance(error, (_Unavailable, AttributeError, arithmetic.Unreadable)):
            self._faults.note("counting the work of a step", error)

    def _begin(self) -> None:
        torch: Any = sys.modules["torch"]
        is_safe = not self._is_unsafe and threading.current_thread() is threading.main_thread()
        if not is_safe or CAPTURES.were or torch.autograd._profiler_enabled():
            return
        self._watch(torch)
        self._trace = trace = _Trace(torch)
        thread = threading.Thread(target=self._follow, args=(trace,), name="ddptop-counting", daemon=True)
        try:
            thread.start()
        except BaseException:
            self.spoil()
            if thread.ident is None:
                time.sleep(_SETTLE_S)
                trace.close()
                self._trace = None
            raise

    def _watch(self, torch: Any) -> None:
        """End before the script begins an observer of its own: a process has one, and torch does not say so."""
        if self._gives_way:
            return
        own = torch.profiler.ExecutionTraceObserver
        register = own.register_callback

        @functools.wraps(register)
        def registered(*args: Any, **kwargs: Any) -> Any:
            trace = self._trace
            self._steps.clear()
            if trace is not None:
                self.spoil()
                time.sleep(_SETTLE_S)
                trace.remove()
            return register(*args, **kwargs)

        replace(own, "register_callback", registered)
        self._gives_way = True

    def note_module(self) -> None:
        """Count nothing where this thread, which makes a DDP module, is not the main one."""
        if threading.current_thread() is not threading.main_thread():
            self._is_unsafe = True
            self.spoil()

    def spoil(self) -> None:
        """End without a result: before a fork, since what is forked must not go on writing, or before a pause."""
        trace = self._trace
        if trace is not None:
            trace.is_spoiled = True
            trace.end()

    @property
    def is_under_way(self) -> bool:
        """True while the training thread is to call `look` before each backward pass."""
        return self._trace is not None

    def look(self) -> None:
        """End where the observer has failed; for the training thread, before a backward pass, and raises nothing."""
        trace = self._trace
        if trace is None or trace.ended.is_set():
            return
        try:
            trace.flush()
            self._end_where_failed(trace)
        except Exception as error:
            self.spoil()
            self._note(error)

    def _end_where_failed(self, trace: _Trace) -> None:
        if os.fstat(trace.file).st_size > _LARGEST or trace.has_failed():
            self._steps.clear()
            self.spoil()

    def _follow(self, trace: _Trace) -> None:
        """Wait for the end of the step, and read the trace."""
        again = False
        try:
            while not trace.ended.wait(_LOOK_S):
                self._end_where_failed(trace)
            time.sleep(_SETTLE_S)
            trace.remove()
            again = trace.is_spoiled or CAPTURES.were or _compiled() != trace.compiled
            if not again:
                self._count(trace)
        except Exception as error:
            self.spoil()
            self._note(error)
            time.sleep(_SETTLE_S)
        trace.close()
        self._trace = None
        if again:
            self.is_armed = True
            self._stamps.eventful = 0

    def _count(self, trace: _Trace) -> None:
        with open(f"/proc/self/fd/{trace.file}", "rb") as lines:
            work = arithmetic.read(lines)
        if work is not None:
            self.peak = self._peak(work)
            self.flops = float(work.flops)

    def _peak(self, work: arithmetic.Arithmetic) -> float | None:
        torch: Any = sys.modules["torch"]
        kind = _KINDS.get(work.type)
        if kind is None or self._device is None or not self._device.startswith("cuda"):
            return None
        if kind == "float32" and _has_tf32(torch, by_convolution=work.by_convolution):
            kind = "tf32"
        name = torch.cuda.get_device_name(self._device)
        # Where the device has no TF32, it computes in float32.
        return peak_of(name, kind) or (peak_of(name, "float32") if kind == "tf32" else None)

    def abandon(self) -> None:
        """Count nothing in a forked child."""
        self.is_armed = False
        self._steps.clear()
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.abandon()

    def close(self) -> None:
        """End with the script."""
        self.is_armed = False
        self.spoil()


def _has_tf32(torch: Any, *, by_convolution: bool) -> bool:
    switches = torch.backends.cudnn if by_convolution else torch.backends.cuda.matmul
    # Newer ones have both; the older one raises where the script has set the newer.
    newer = getattr(switches.conv if hasattr(switches, "conv") else switches, "fp32_precision", None)
    return bool(switches.allow_tf32) if newer is None else bool(newer == "tf32")


def _log_level(torch: Any) -> ctypes.c_int:
    """Return the level of torch's log in C++, which no function of Python sets."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")


def _compiled() -> int:
    """Return how much torch's compiler has compiled; it is not loaded for that."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return sum(sum(counters[name].values()) for name in _COMPILED if name in counters)
