"""A trace of torch.profiler in Chrome's format: what the host did, what the device did of it, and when. Pure.

Times are microseconds on the one time line to which the profiler brings both clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

MARK: Final = "## "
"""Begins the names of the spans that a program itself marks."""
_OPTIMIZER: Final = "Optimizer.step"
"""Begins the name of the span that torch marks around the step of an optimizer."""
_DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_DRIVER: Final = frozenset({"cuda_runtime", "cuda_driver"})
WAITS: Final = frozenset(
    {
        "cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy",
        "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize",
    }
)  # fmt: skip
"""Calls in which the host waits for the device."""
ORDERS: Final = frozenset({"cudaStreamWaitEvent", "cuStreamWaitEvent"})
"""Calls with which a stream waits for another one."""


@dataclass(frozen=True)
class Span:
    """A stretch of the host's time that the program has marked."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class Work:
    """A kernel or a copy, as the device has done it."""

    name: str
    stream: int
    launched: float
    """The host's call; minus infinity where the trace has none."""
    begin: float
    end: float


@dataclass(frozen=True)
class Trace:
    """One rank's trace."""

    spans: tuple[Span, ...]
    """In the order of their beginnings."""
    works: tuple[Work, ...]
    """In the order in which the device began them."""
    calls: Counter[str]
    """Calls of CUDA's runtime and driver, by name."""

    def named(self, name: str) -> list[Span]:
        """Return the spans of a name, in order."""
        return [span for span in self.spans if span.name == name]

    def moment(self, at: float) -> float:
        """Return when the device passes a point that the host enqueues at a time, on the stream of the training.

        That is when all that was given to it before is done, at the earliest when the host says so.
        """
        return max([at, *(work.end for work in self.works if work.launched < at)])

    def streams(self) -> dict[int, list[str]]:
        """Return the names of the works of each stream, in their order."""
        found: dict[int, list[str]] = {}
        for work in self.works:
            found.setdefault(work.stream, []).append(work.name)
        return found


def read(document: dict[str, Any], begin: str | None = None) -> Trace:
    """Return a trace; only what the host has done within the first and the last span named `begin`, if one is given."""
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    spans = [
        Span(_name(event["name"]), event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith((MARK, _OPTIMIZER))
    ]
    spans.sort(key=lambda span: span.begin)
    driver = [event for event in events if event.get("cat") in _DRIVER]
    launched = {event["args"]["correlation"]: event["ts"] for event in driver if "correlation" in event.get("args", {})}
    works = [
        Work(
            event["name"], int(event["args"].get("stream", -1)),
            launched.get(event["args"].get("correlation"), float("-inf")),
            event["ts"], event["ts"] + event["dur"],
        )
        for event in events
        if event.get("cat") in _DEVICE
    ]  # fmt: skip
    works.sort(key=lambda work: work.begin)
    if begin is not None:
        chosen = [span for span in spans if span.name == begin]
        first, last = chosen[0].begin, chosen[-1].end
        works = [work for work in works if first <= work.launched < last]
        driver = [event for event in driver if first <= event["ts"] < last]
    return Trace(tuple(spans), tuple(works), Counter(event["name"] for event in driver))


def _name(told: str) -> str:
    return told.removeprefix(MARK) if told.startswith(MARK) else "optimizer"


def added(without: Sequence[str], with_agent: Iterable[str]) -> list[str] | None:
    """Return what the second sequence has more than the first; None where the first is not within it in its order."""
    more: list[str] = []
    wanted = iter(without)
    next_wanted = next(wanted, None)
    for name in with_agent:
        if name == next_wanted:
            next_wanted = next(wanted, None)
        else:
            more.append(name)
    return more if next_wanted is None else None


def inside(ours: float, theirs: float) -> bool:
    """Say whether a number is within 5 % or 100 us of the profiler's, both in us."""
    return abs(ours - theirs) <= max(0.05 * theirs, 100)
