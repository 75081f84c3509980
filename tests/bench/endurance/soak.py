"""Runs, onlookers, pauses, kills and full disks for as long as one likes, with bounds on all that may leak.

    python tests/bench/endurance/soak.py --minutes 60 [--seed N] [--runs 3] [--ranks 64]

Two runs go on from the first minute to the last: two ranks that train, and fake ranks with their observer (`load.py`);
a dashboard in a pseudo-terminal and one that writes lines look at each of them.  Beside them
`actions.py` launches, pauses, steps, restarts and ends others, opens and ends onlookers, fills
a small disk, and kills ranks, observers and torchruns.  Memory, descriptors, threads, files
and processes are sampled every few seconds.  Exit code 1 where a bound is broken, where a verb
or an onlooker ends as it should not, where somebody else is hurt, or where anything is left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import samples
from actions import Actions
from onlookers import Onlooker
from samples import Bound, Sampler

from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDirError

LOAD: Final = Path(__file__).resolve().parents[1] / "load.py"
PERIOD_S: Final = 5.0
STEADY: Final = "steady"
SMALL_OBSERVER: Final = (Bound(150, 24), Bound(128, 4), Bound(40, 4))
RANK: Final = (Bound(1500, 24), Bound(200, 4), Bound(100, 4))
DASHBOARD: Final = (Bound(400, 48), Bound(400, 4), Bound(40, 4))
LINES: Final = (Bound(320, 24), Bound(400, 4), Bound(40, 4))
"""Of each of 64 ranks it keeps 512 records, 2 MiB."""
OBSERVER: Final = (Bound(400, 48), Bound(600, 8), Bound(40, 4))
"""Of 64 ranks: of each, it has two sockets and the handle of its process."""
ANY_OBSERVER: Final = (Bound(150), Bound(128), Bound(40))
ANY_RANK: Final = (Bound(1500), Bound(200), Bound(100))
ANY_ONLOOKER: Final = (Bound(400), Bound(400), Bound(40))
FILES: Final = Bound(3000)
"""Twenty ended runs of a base are kept, with a few dozen files each."""
FOLDER_MIB: Final = Bound(2000)
TEMPORARY: Final = Bound(200)
"""While ranks live; at the end there is none."""
SHARED: Final = Bound(100)
LEAST_STEPS_A_MINUTE: Final = 10
"""Of the run that nobody ends, pauses included: that it goes on, not how fast."""


class Soak:
    """What goes on all the time, and what is sampled of it."""

    def __init__(self, actions: Actions, ranks: int) -> None:
        """Start the steady runs and their onlookers."""
        self.actions = actions
        self.steady = actions.launch_spared(STEADY)
        actions.verb(self.steady, "status", STEADY)
        self._shared = set(os.listdir("/dev/shm"))
        self.load = self._load(ranks)
        self.lookers = {
            "dashboard of two ranks": self._look(("attach", STEADY), terminal=True),
            "lines of two ranks": self._look(("watch", STEADY, "--interval", "1"), terminal=False),
        }
        if (many := self._many()) is not None:
            actions.spared.add(many)
            self.lookers[f"dashboard of {ranks} ranks"] = self._look(("attach", many), terminal=True)
            self.lookers[f"lines of {ranks} ranks"] = self._look(("watch", many, "--json"), terminal=False)

    def _look(self, arguments: tuple[str, ...], *, terminal: bool) -> Onlooker:
        return Onlooker(arguments, self.actions.environment(self.steady), self.actions.folder, terminal=terminal)

    def _load(self, ranks: int) -> subprocess.Popen[bytes] | None:
        if not ranks:
            return None
        command = [sys.executable, str(LOAD), "--world", str(ranks), "--rate", "2"]
        environment = os.environ | self.actions.environment(self.steady)
        # In a session of its own: Ctrl-C is not for it.
        return subprocess.Popen(
            [*command, "--seconds", "1e9", "--keep"],
            env=environment,
            stdout=subprocess.DEVNULL,
            cwd=self.actions.folder,
            start_new_session=True,
        )

    def _many(self) -> str | None:
        deadline = time.monotonic() + 120
        while self.load is not None and self.load.poll() is None and time.monotonic() < deadline:
            found = [run.name for run in self.actions.runs() if run.name.startswith("load-")]
            if found and (self.actions.base / found[0] / "go").exists():
                return found[0]
            time.sleep(0.1)
        if self.load is not None:
            self.actions.say_wrong("the fake ranks did not start")
        return None

    def step(self) -> int:
        """Return how often the first rank of the steady run says that it has trained, by its own log."""
        with contextlib.suppress(OSError), self.steady.rank_log(0).open("rb") as log:
            return sum(line.startswith(b"loss ") for line in log)
        return 0

    def sample(self, sampler: Sampler) -> None:
        """Take one sample of everything."""
        observers, ranks = set(), set()
        for directory in self.actions.live():
            with contextlib.suppress(RunDirError):
                run, members = directory.read(), directory.members()
                pids = {member.process.pid for member in members.values() if member.ended is None}
                if directory.name == STEADY:
                    if run.observer is not None:
                        sampler.add_process("steady observer", run.observer.pid, SMALL_OBSERVER)
                    for rank, member in members.items():
                        sampler.add_process(f"steady rank {rank}", member.process.pid, RANK)
                elif directory.name in self.actions.spared:
                    if run.observer is not None:
                        sampler.add_process(f"observer of {run.world} ranks", run.observer.pid, OBSERVER)
                else:
                    ranks |= pids
                    observers |= {run.observer.pid} if run.observer is not None else set()
        for name, onlooker in self.lookers.items():
            if not sampler.add_process(name, onlooker.pid, DASHBOARD if onlooker.terminal else LINES):
                self.actions.say_wrong(f"{name}: {onlooker} is gone: {onlooker.output[-800:]!r}")
        sampler.add_worst("any observer", observers, ANY_OBSERVER)
        sampler.add_worst("any rank", ranks, ANY_RANK)
        sampler.add_worst("any onlooker", [each.pid for each in list(self.actions.onlookers)], ANY_ONLOOKER)
        bases = (self.actions.base, self.actions.disk.path)
        sampler.add("files of all runs", samples.count_files(bases), FILES)
        sampler.add("files of all runs, MiB", samples.size(bases), FOLDER_MIB)
        sampler.add("temporary files", samples.count_files([self.actions.temporary]), TEMPORARY)
        sampler.add("new in /dev/shm", len(set(os.listdir("/dev/shm")) - self._shared), SHARED)
        sampler.add("processes", len(self.actions.left_processes()), Bound())

    def line(self, minute: int, sampler: Sampler) -> str:
        """Return what one minute has brought."""
        newest = sampler.newest
        return (
            f"minute {minute}: {self.actions.done.total()} actions, {len(self.actions.live())} runs live, "
            f"step {self.step()}; MiB: observer {newest('steady observer, MiB'):.0f}, "
            f"rank {newest('steady rank 0, MiB'):.0f}, dashboard {newest('dashboard of two ranks, MiB'):.0f}, "
            f"lines {newest('lines of two ranks, MiB'):.0f}; {newest('files of all runs'):.0f} files, "
            f"{newest('processes'):.0f} processes; {len(self.actions.wrong)} wrong"
        )

    def leave(self) -> None:
        """End the onlookers, and then the fake ranks, whose processes are a session of their own."""
        for onlooker in self.lookers.values():
            self.actions.say_wrong(onlooker.leave("q" if onlooker.terminal else "SIGTERM"))
        if self.load is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.load.pid, signal.SIGKILL)
            self.load.wait()


def soak(actions: Actions, options: argparse.Namespace) -> None:
    """Do it, print what came of it, and leave in `actions.wrong` what must not be."""
    began = time.monotonic()
    going_on = Soak(actions, options.ranks)
    sampler = Sampler(going_on.sample, PERIOD_S)
    minute = 0
    trained = going_on.step()
    try:
        while (passed := time.monotonic() - began) < options.minutes * 60:
            if passed > 60 * (minute + 1):
                minute += 1
                print(going_on.line(minute, sampler), flush=True)
            actions.act()
        actions.verb(going_on.steady, "resume", STEADY)
        trained = going_on.step() - trained
        if trained < LEAST_STEPS_A_MINUTE * options.minutes:
            actions.say_wrong(f"the steady run did {trained} steps only")
    finally:
        sampler.close()
        print(sampler.table(), flush=True)
        for line in sampler.broken():
            actions.say_wrong(line)
        going_on.leave()


def main() -> int:
    """Do it; 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(100_000))
    parser.add_argument("--runs", type=int, default=2, help="live runs at a time, beside the two that go on")
    parser.add_argument("--ranks", type=int, default=64, help="fake ranks; 0 for none")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    print(f"seed {options.seed}", flush=True)
    for name in (rundir.MARKER, rundir.DIRECTORY_VARIABLE):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="ds-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ[rundir.BASE_VARIABLE] = f"{folder}/r"
        actions = Actions(Path(folder), options.seed, options.runs)
        interrupted = False
        try:
            soak(actions, options)
        except KeyboardInterrupt:
            interrupted = True
            print("interrupted: ending all runs", flush=True)
        finally:
            # From here on nothing may come between.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            try:
                wrong = actions.end()
            finally:
                actions.close()
        done = ", ".join(f"{action} {count}" for action, count in actions.done.most_common())
        disk = "a small disk" if actions.disk.mounted else "limited files"
        print(f"{actions.done.total()} actions in {time.monotonic() - began:.0f} s, {disk}: {done}")
    print("\n".join(wrong) or f"nothing left of {len(actions.ids)} runs, all bounds kept, nobody else hurt")
    return 1 if wrong or interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
