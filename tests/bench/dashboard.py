"""What the dashboard costs at scale: `python tests/bench/dashboard.py [CASE…] [--seconds 20]`.

Fake ranks (`load.py`) speak the wire protocol; the dashboard is the real one, attached in a
pseudo-terminal of 200 x 50.  CPU is that of its process, user and system, over the seconds
after it has settled, as a share of one core.  Without a case, all of them; `hour` takes the
longest and needs no terminal: an hour of 1,024 ranks goes into a store as fast as it takes it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import queue
import random
import resource
import select
import signal
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import load
import psutil
import pyte

WIDTH, HEIGHT = 200, 50
SETTLE_S = 6.0


class Terminal:
    """The dashboard in a pseudo-terminal."""

    def __init__(self, run: str) -> None:
        self.begun = time.monotonic()
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        self._master = master
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ddptop.tui.cli.main", "attach", run],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        )  # fmt: skip
        os.close(slave)
        self.process = psutil.Process(self._process.pid)
        self.output = b""

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read(self, seconds: float) -> bytes:
        """Return what it paints within the time, as soon as there is anything."""
        if not select.select([self._master], [], [], seconds)[0]:
            return b""
        try:
            piece = os.read(self._master, 1 << 20)
        except OSError:  # Linux: nobody has the other end open any more
            return b""
        self.output += piece
        return piece

    def drain(self, seconds: float) -> None:
        """Let it paint."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.read(left)
        self.output = b""

    def wait(self, shown: Callable[[str], bool], seconds: float) -> float | None:
        """Return the time at which the screen shows something, None if it does not within `seconds`."""
        screen = pyte.Screen(WIDTH, HEIGHT)
        stream = pyte.ByteStream(screen)
        pieces: queue.Queue[tuple[float, bytes]] = queue.Queue()
        over = threading.Event()

        def listen() -> None:
            while not over.is_set():
                if piece := self.read(0.02):
                    pieces.put((time.monotonic(), piece))

        # A terminal does not keep its program waiting, but pyte takes longer for a screen than the dashboard.
        reader = threading.Thread(target=listen)
        reader.start()
        try:
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                try:
                    at, piece = pieces.get(timeout=left)
                except queue.Empty:
                    return None
                stream.feed(piece)
                if shown("\n".join(screen.display)):
                    return at
            return None
        finally:
            over.set()
            reader.join()

    def cpu(self, seconds: float) -> float:
        """Return its CPU time over the next seconds, in percent of one core."""
        before, began = self.process.cpu_times(), time.monotonic()
        self.drain(seconds)
        after, took = self.process.cpu_times(), time.monotonic() - began
        return 100 * (after.user + after.system - before.user - before.system) / took

    def memory(self) -> float:
        """Return its resident memory in MiB."""
        return self.process.memory_info().rss / 2**20

    def leave(self) -> None:
        """Quit it."""
        self.press(b"q")
        until = time.monotonic() + 5
        while self._process.poll() is None and time.monotonic() < until:
            self.read(0.1)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._master)


@dataclass(frozen=True)
class Case:
    """A group to look at."""

    world: int
    rate: float
    keys: bytes
    target: str
    step_ms: float = 100.0


CASES = {
    "4-panels": Case(4, 10, b"1", "4 %"),
    "64-panels": Case(64, 10, b"1", "6 %"),
    "1024-table": Case(1024, 10, b"2", "12 %"),
    "1024-table-sorted": Case(1024, 10, b"2ooooo", "12 %"),
    "1024-heatmap": Case(1024, 10, b"3", "12 %"),
    "4096-table": Case(4096, 2, b"2", "25 %", 500.0),
    "4-dialog": Case(4, 10, b"1k", "that of 4-panels"),
    "64-dialog": Case(64, 10, b"1k", "that of 64-panels"),
}


def begin(
    world: int, rate: float, step_ms: float, seconds: float, past: int = 0
) -> tuple[str, list[subprocess.Popen[bytes]]]:
    """Start fake ranks and return the run's name."""
    flags = ["--world", world, "--rate", rate, "--step-ms", step_ms, "--seconds", seconds, "--past", past, "--keep"]
    directory, processes = load.begin(load.parser().parse_args([str(flag) for flag in flags]))
    return directory.name, processes


def cost(name: str, case: Case, seconds: float) -> None:
    """Print the CPU and memory of one case, and for large groups how soon a key is seen."""
    run, processes = begin(case.world, case.rate, case.step_ms, seconds + 60)
    terminal = Terminal(run)
    try:
        terminal.drain(SETTLE_S)
        terminal.press(case.keys)
        terminal.drain(SETTLE_S)
        share = terminal.cpu(seconds)
        text = f"{name:<18} {share:5.1f} % of one core (target {case.target}), {terminal.memory():.0f} MiB"
        print(text, flush=True)
        if case.world >= 1024 and case.keys.startswith(b"2"):
            print(f"{'':<18} {heard(terminal)}", flush=True)
        if name == "1024-table":
            print(f"{'':<18} {latency(terminal, 40)}", flush=True)
    finally:
        terminal.leave()
        load.end(processes)


def heard(terminal: Terminal) -> str:
    """Return how many ranks the table says are running."""
    terminal.press(b"/running")
    found = ""

    def shown(text: str) -> bool:
        nonlocal found
        line = next((line for line in text.splitlines() if "/running" in line), "")
        found = line.partition("/running")[2].strip(" ▏─") or found
        return False

    terminal.wait(shown, 2.5)
    terminal.press(b"\x1b")
    terminal.drain(1.5)
    return f"heard: {found}"


def latency(terminal: Terminal, times: int) -> str:
    """Return how long a key takes until the change it asks for is painted: another rank is chosen, its log named."""
    took = []
    rng = random.Random(1)
    terminal.press(b"\x1b[H")
    terminal.drain(1.0)
    for rank in range(1, times + 1):
        terminal.drain(0.2 + rng.random() * 0.3)
        wanted = f"log of rank {rank}".encode()
        began = time.monotonic()
        terminal.press(b"\x1b[B")
        while wanted not in terminal.output and time.monotonic() - began < 2:
            terminal.read(0.05)
        took.append(1e3 * (time.monotonic() - began))
    took.sort()
    return (
        f"key to painted change: {statistics.median(took):.0f} ms median, {took[int(0.95 * len(took))]:.0f} ms p95, "
        f"{took[-1]:.0f} ms worst of {times} (target 50, 100)"
    )


def attach() -> None:
    """Print how soon 64 ranks with an hour behind them are on the screen, and all of their past with them."""
    run, processes = begin(64, 10, 100.0, 120, past=36_000)
    took = []
    try:
        for _ in range(5):
            terminal = Terminal(run)
            seen = terminal.wait(_whole, 20)
            took.append(20.0 if seen is None else seen - terminal.begun)
            terminal.leave()
    finally:
        load.end(processes)
    text = (
        f"{statistics.median(took):.2f} s median, {max(took):.2f} s at worst of {len(took)}, "
        "from the command to numbers in every panel in sight and the whole run in the plot"
    )
    print(f"{'attach':<18} {text} (64 ranks, 36,000 steps each; target 1 s)", flush=True)


def _whole(text: str) -> bool:
    """Say whether all panels in sight have numbers, and the curve of every rank has come as far as it goes back."""
    panels = text.count("all-reduce p50") >= 20 and "–" not in _panels(text)
    axis = all(f"{step:,}" in text for step in (10_000, 20_000, 30_000))
    return panels and axis and "reading the past" not in text


def _panels(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "all-reduce" in line or "│ step" in line)


def hour(minutes: int) -> None:
    """Print the memory of a store after an hour of 1,024 ranks, time sped up."""
    from ddptop.agent import wire
    from ddptop.agent.run.rundir import Run
    from ddptop.tui.model.framer import Framer
    from ddptop.tui.model.history.history import History
    from ddptop.tui.model.store import Store

    world = 1024
    began = time.time()
    run = Run("hour", "id", "load", (), world, "gloo", "cpu", int(began * 1e9), False)
    process = psutil.Process()
    start = process.memory_info().rss
    store = Store(run, history=History(world), brief=True)
    framer = Framer(store)
    store.watch(frozenset(range(40)))
    spent = -time.process_time()
    for second in range(60 * minutes):
        now = began + second
        for rank in range(world):
            at = int(now * 1e9)
            step = 10 * (second + 1)
            for message in (
                wire.Summary(rank, second + 1, at, step, step, 10, 10**8, 10**7, 2 * 10**7, 3 * 10**7, 10**6, 10**7,
                             2 * 10**7, 1.0 / (second + 1), 32, 0, 10**6, 10**7, {"accuracy": 0.5}),
                wire.Beat(rank, at, "running", "backward", step, at, step, memory_bytes=900 << 20),
            ):  # fmt: skip
                # Through the wire's own form: every message is an object of its own.
                store.apply(wire.read_telemetry(wire.encode(message)), now)
        store.advance(now)
        tuple(framer.frame().ranks[:48])
        if (second + 1) % 600 == 0:
            grown = (process.memory_info().rss - start) / 2**20
            print(f"{'hour':<18} after {(second + 1) // 60} min: {grown:.0f} MiB for {world} ranks", flush=True)
    spent += time.process_time()
    print(f"{'hour':<18} {spent / (60 * minutes) * 100:.1f} % of one core, encoding included, without a screen")


def main() -> None:
    """Run the cases asked for."""
    options = argparse.ArgumentParser(description="what the dashboard costs at scale")
    options.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}, attach, hour; all without any"
    )
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--minutes", type=int, default=60, help="of the hour")
    chosen = options.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for name in chosen.cases or [*CASES, "attach", "hour"]:
        if name == "attach":
            attach()
        elif name == "hour":
            hour(chosen.minutes)
        else:
            cost(name, CASES[name], chosen.seconds)


if __name__ == "__main__":
    main()
