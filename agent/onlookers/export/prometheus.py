"""What Prometheus gets of runs: frames as samples, over HTTP whenever it asks, or in a file for the node exporter.

The labels are the run, the rank, its host, and the kind of a verdict. A sample that is not known is not there.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from http.server import ThreadingHTTPServer
from typing import Final

from prometheus_client import CollectorRegistry, MetricsHandler, write_to_textfile
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ddptop.agent.client import look, runs
from ddptop.agent.client.frame import Frame
from ddptop.agent.client.runs import Run, RunDirError
from ddptop.agent.wire import RankFrame
from ddptop.agent.wire.frames import ENDED

LEAST_S: Final = 1.0
"""Seconds between two looks at least, however many ask."""
ENDED_S: Final = 600.0
"""Seconds for which a run is shown after its end, so that a rule can see how it ended."""
_HEADERS_S: Final = 10.0
"""Seconds that somebody who asks may take to do so."""
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


def _families(shown: Sequence[Frame]) -> Iterator[Metric]:
    """Yield what is known of some runs."""
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
        return _families(())

    def collect(self) -> Iterable[Metric]:
        """Return the samples of now."""
        with self._lock:
            if self._clock() >= self._due:
                self._found = self._look()
                self._due = self._clock() + LEAST_S
            return _families(self._found)


def frames(named: Sequence[Run], who: str) -> list[Frame]:
    """Return the frames of some runs, of all that go on or have ended just now where none is named."""
    return look.frames([run for run in named or runs.listed() if _is_shown(run)], who, measured=False)


def _is_shown(run: Run) -> bool:
    with contextlib.suppress(RunDirError):
        ended = run.ended()
        return ended is None or time.time() - (ended.ended_at_ns or 0) / 1e9 < ENDED_S
    return False


def _registry(look_at: Callable[[], Sequence[Frame]]) -> CollectorRegistry:
    found = CollectorRegistry(auto_describe=False)
    found.register(Samples(look_at))
    return found


class Server(ThreadingHTTPServer):
    """Answers `GET /metrics`."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], look_at: Callable[[], Sequence[Frame]], token: str = "") -> None:
        """Listen.

        Args:
            address: where.
            look_at: returns the frames of now.
            token: what who asks has to know; empty: nothing.

        Raises:
            OSError: nobody can listen there.
        """
        try:
            self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        except UnicodeError:
            # A name that cannot be asked for, such as one with an empty part.
            raise OSError(errno.EINVAL, "no name of a host") from None
        super().__init__(address, _Answer)
        self.token = token
        self.registry = _registry(look_at)

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing of somebody who is gone before the answer is: that is no fault here."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Answer(MetricsHandler):
    server: Server
    server_version = "ddptop"
    sys_version = ""
    timeout = _HEADERS_S

    def do_GET(self) -> None:  # noqa: N802 - its name in the base
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if self.server.token and not hmac.compare_digest(given.encode(), self.server.token.encode()):
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "only /metrics is here")
        else:
            self.registry = self.server.registry
            super().do_GET()


def write(file: str, look_at: Callable[[], Sequence[Frame]]) -> None:
    """Write the samples of now into a file, which a reader finds as it was or whole.

    Raises:
        OSError: it cannot be written.
    """
    write_to_textfile(file, _registry(look_at))
