"""The frames of runs as samples of Prometheus. The labels are the run, the rank, its host, and the kind of a verdict.

A sample that is not known is not there. Imports prometheus_client.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire import RankFrame
from ddptop.agent.wire.frames import ENDED

LEAST_S: Final = 1.0
"""Seconds between two looks at least, however many ask."""
FAILED: Final = frozenset({"failed", "killed", "lost"})
_STANDS: Final = frozenset({"pausing", "paused", "held", "frozen", "killing", "ending"})
"""States in which nobody expects a step."""


def _s(value: float | None) -> float | None:
    return None if value is None else value / 1e3


def _last_step(frame: Frame) -> float | None:
    """Return when any rank has made a step last, the start where none has; None while none is expected to."""
    if frame.state in ENDED or frame.state in _STANDS:
        return None
    ages = [age for age in frame.values("step_age_s") if age is not None]
    return frame.at - min(ages) if ages else frame.started_at


OF_RUN: Final[Sequence[tuple[str, str, Callable[[Frame], float | None]]]] = (
    ("run_up", "1 while the run goes on, 0 once it is over", lambda frame: frame.state not in ENDED),
    ("run_failed", "1 where it has failed, was killed or is lost", lambda frame: frame.state in FAILED),
    ("run_observed", "0 where nothing is heard of it: all is of before", lambda frame: frame.unobserved_s is None),
    ("run_paused", "1 while it is paused, held or frozen", lambda frame: frame.state in ("paused", "held", "frozen")),
    ("run_start_timestamp_seconds", "when it began", lambda frame: frame.started_at),
    ("last_step_timestamp_seconds", "when a rank made a step last; not there while paused or over", _last_step),
    ("run_ranks", "number of ranks", lambda frame: frame.world),
    ("run_restarts", "how often the group was restarted", lambda frame: frame.generation),
    ("run_steps", "the step that every rank has completed", lambda frame: frame.step),
    ("run_total_steps", "steps of the whole training", lambda frame: frame.total_steps),
    ("run_step_seconds", "time of a step of the slowest rank", lambda frame: _s(frame.current_step_ms)),
    ("run_samples_per_second", "of the whole group", lambda frame: frame.samples_per_s),
    ("run_tokens_per_second", "of the whole group", lambda frame: frame.tokens_per_s),
    ("run_flops_per_second", "floating-point operations a second of all ranks", lambda frame: frame.flops_per_s),
    ("run_mfu_ratio", "the part of the devices' peak that this is", lambda frame: frame.mfu),
    ("run_loss", "mean of the ranks' last losses", lambda frame: frame.loss),
)  # fmt: skip
OF_RANK: Final[Sequence[tuple[str, str, Callable[[RankFrame], float | None]]]] = (
    ("rank_up", "1 while the rank lives, 0 once it has ended", lambda rank: rank.state not in ENDED),
    ("rank_steps", "its last step", lambda rank: rank.step),
    ("rank_step_seconds", "time of a step", lambda rank: _s(rank.current_step_ms)),
    ("rank_data_seconds", "waiting for data, of a step", lambda rank: _s((rank.phases_ms or {}).get("data"))),
    ("rank_wait_seconds", "waiting for other ranks, of a step", lambda rank: _s((rank.phases_ms or {}).get("wait"))),
    ("rank_memory_bytes", "memory of the device, or of the process", lambda rank: rank.memory_bytes),
    ("rank_loss", "its last loss", lambda rank: rank.loss),
)  # fmt: skip


def families(frames: Iterable[Frame]) -> Iterator[Metric]:
    """Yield what is known of some runs."""
    shown = list(frames)
    yield _family("runs", "runs that go on", (), [((), sum(frame.state not in ENDED for frame in shown))])
    for name, meaning, value in OF_RUN:
        yield _family(name, meaning, ("run",), (((frame.run,), value(frame)) for frame in shown))
    for name, meaning, of_rank in OF_RANK:
        ranks = ((frame, rank) for frame in shown for rank in frame.ranks)
        found = (((frame.run, str(rank.rank), rank.host or ""), of_rank(rank)) for frame, rank in ranks)
        yield _family(name, meaning, ("run", "rank", "host"), found)
    # Two of a kind may have the same labels: the older one stands for both.
    standing: dict[tuple[str, ...], float] = {}
    for frame in shown:
        for verdict in frame.verdicts if frame.state not in ENDED else ():
            labels = frame.run, verdict.kind, "" if verdict.rank is None else str(verdict.rank), verdict.host
            standing[labels] = min(verdict.since_at_ns / 1e9, standing.get(labels, math.inf))
    meaning = "since when something is wrong, in seconds since the epoch, and who is to blame"
    yield _family("verdict", meaning, ("run", "kind", "rank", "host"), standing.items())


def _family(
    name: str, meaning: str, labels: Sequence[str], found: Iterable[tuple[Sequence[str], float | None]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"ddptop_{name}", meaning, labels=labels)
    for values, value in found:
        if value is not None:
            family.add_metric(values, value)
    return family


class Samples(Collector):
    """What is known of some runs at each moment at which somebody asks; those who ask in the same second share a look.

    Between two looks nobody is connected to an observer.
    """

    def __init__(self, look: Callable[[], Sequence[Frame]], clock: Callable[[], float] = time.monotonic) -> None:
        """Look at no run yet."""
        self._look, self._clock = look, clock
        self._lock = threading.Lock()
        self._found: Sequence[Frame] = ()
        self._due = clock()

    def describe(self) -> Iterable[Metric]:
        """Return the names, without a look at any run."""
        return families(())

    def collect(self) -> Iterable[Metric]:
        """Return the samples of now."""
        with self._lock:
            if self._clock() >= self._due:
                self._found = self._look()
                self._due = self._clock() + LEAST_S
            return families(self._found)


def registry(look: Callable[[], Sequence[Frame]]) -> CollectorRegistry:
    """Return what Prometheus is given of the runs that are looked at."""
    found = CollectorRegistry(auto_describe=False)
    found.register(Samples(look))
    return found
