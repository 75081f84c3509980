"""What it costs to look at a large log: `python tests/bench/onlooker/logs.py [--gib 1] [--ranks 1000]`.

A log of one GiB is generated (it takes that room in the folder for temporary files), opened at its end, followed,
scrolled back, and searched from its end to its beginning for a text that stands in its first line; then a level is
looked for that no line has.  Then the ends of the logs of many ranks are shown as one.  Printed are seconds, CPU
seconds and the memory of the process.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from ddptop.agent.client.logs.excerpt import Excerpt, LogSource
from ddptop.agent.client.logs.lines import Level
from ddptop.agent.client.logs.matching import Wanted
from ddptop.agent.client.logs.merging import merged
from ddptop.agent.client.logs.stream import streams
from ddptop.tui.link.reader import LogReader

_MIB = 1 << 20


def write(path: Path, size: int) -> None:
    """Write a log of so many bytes: lines of steps, each with its number, and a text that stands only in the first."""
    block = b"".join(
        b"step %09d loss 0.123456 lr 0.001 throughput 1234.5 samples/s of this rank\n" % n for n in range(14_000)
    )
    with path.open("wb") as log:
        log.write(b"the needle\n")
        while log.tell() < size:
            log.write(block)
        log.write(b"the last line\n")


def timed(what: str, work: Callable[[], object]) -> None:
    """Print the time and CPU of a piece of work, and the memory after it."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    held = psutil.Process().memory_info().rss / _MIB
    print(f"| {what} | {wall:.3f} s, CPU {cpu:.3f} s | {held:.0f} MiB | {result} |", flush=True)


def one(folder: Path, gib: float) -> None:
    """Measure a single large log."""
    path = folder / "rank-0.log"
    write(path, int(gib * (1 << 30)))
    window = Excerpt(LogSource(str(path), 0))
    timed("open at the end", window.open_end)
    timed("back by 100,000 lines", lambda: sum(window.back() for _ in range(80)))
    start = path.stat().st_size
    find = window.find
    timed("search to the first line", lambda: find(Wanted(text="needle"), start, backwards=True, going=lambda _: True))
    timed("search forwards, not found", lambda: find(Wanted(text="nowhere"), 0, backwards=False, going=lambda _: True))
    timed("errors only, none there", lambda: window.open_end(Wanted(Level.ERROR)))
    timed("at the first line", lambda: window.open_at(0))

    def count() -> int:
        log = streams([LogSource(str(path), 0)])[0]
        return sum(1 for _ in log.lines())

    timed("all lines, as `ddptop logs --rank 0`", count)


def many(folder: Path, ranks: int) -> None:
    """Measure the ends of many logs."""
    sources = []
    for rank in range(ranks):
        path = folder / f"rank-{rank}.log"
        path.write_text("".join(f"epoch {each}\nloss {rank}.{each}\n" for each in range(500)))
        sources.append(LogSource(str(path), rank))
    lines: list[int] = []
    reader = LogReader(lambda picture: lines.append(len(picture.lines)))

    def show() -> str:
        reader.open(sources)
        _, work = reader._asked.get()
        work()
        reader._tell()
        return f"{lines[-1]} lines"

    timed(f"the ends of {ranks:,} logs as one", show)
    timed("one look at all of them, nothing new", reader._poll)
    timed("all of them, as `ddptop logs`", lambda: sum(1 for _ in merged([log.history() for log in streams(sources)])))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--ranks", type=int, default=1000)
    options = parser.parse_args()
    print("| what | time | memory | result |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        one(Path(folder), options.gib)
    with tempfile.TemporaryDirectory() as folder:
        many(Path(folder), options.ranks)
    print(f"most memory at any time: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
