"""Random actions in random order against several runs at once; at the end nothing may be left and nobody else hurt.

Among the actions: launch, pause, step, resume, stop, kill, signals, restart, and kill -9 of a
dashboard, a supervisor, torchrun or a rank, each at whatever moment it falls on.  Bystanders
with the same command line, and with the marker of another run, must live to the end.

    python tests/bench/chaos.py [--seed N] [--actions 100] [--runs 3]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import carriers

from ddptop.agent import rundir
from ddptop.agent.rundir import Process, RunDir, RunDirError, identify, is_alive

VERB_S = 60.0
SCRIPT = """
import sys, time
import torch, torch.distributed as dist
from ddptop import agent
dist.init_process_group("gloo")
agent.on_checkpoint(lambda: "nowhere")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
data = torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=4, num_workers=1)
end = time.time() + float(sys.argv[1])
while True:
    for batch in data:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.02)
    over = torch.tensor(float(time.time() > end))
    dist.all_reduce(over)
    if over:
        break
dist.destroy_process_group()
"""
DASHBOARD = """
import sys
from ddptop.agent import rundir
from ddptop.tui.app import DdptopApp
from ddptop.tui.link import Link
DdptopApp(Link(rundir.find(sys.argv[1]), "chaos")).run(headless=True)
"""


class Chaos:
    """The runs, who watches them, and who must not be touched."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.random = random.Random(options.seed)
        self.folder = folder
        self.most = options.runs
        self.ids: set[str] = set()
        """Every run id that was ever there."""
        self.children: list[subprocess.Popen[str]] = []
        """Verbs and dashboards that go on."""
        self.dashboards: list[subprocess.Popen[str]] = []
        self.done: collections.Counter[str] = collections.Counter()
        self.bystanders = self._bystanders()
        self.number = 0

    def _bystanders(self) -> list[tuple[subprocess.Popen[str], Process]]:
        found = []
        for environment in ({}, {rundir.MARKER: "somebody-else"}, {rundir.DIRECTORY_VARIABLE: str(self.folder / "r1")}):
            # The same command line as a rank's, to whoever judges by that.
            command = [sys.executable, "-c", "import time; time.sleep(3600)", "-m", "ddptop.agent", "train.py"]
            child = subprocess.Popen(command, env=os.environ | environment, cwd=self.folder, text=True)
            process = identify(child.pid)
            assert process is not None
            found.append((child, process))
        return found

    def live(self) -> list[RunDir]:
        """Return the runs whose record does not say that they are over."""
        found = []
        for directory in rundir.runs():
            with contextlib.suppress(RunDirError):
                run = directory.read()
                self.ids.add(run.run_id)
                if run.state not in rundir.ENDED_STATES:
                    found.append(directory)
        return found

    def act(self) -> None:
        """Do one thing at random."""
        live = self.live()
        choices: dict[Callable[[RunDir], None], int] = {
            self.pause: 3, self.step: 2, self.resume: 3, self.status: 2, self.watch: 3, self.kill_run: 2,
            self.kill_rank: 2, self.stop: 2, self.send: 2, self.lose_supervisor: 4, self.lose_torchrun: 2,
            self.lose_rank: 2, self.lose_dashboard: 3, self.two_at_once: 2,
        }  # fmt: skip
        if len(live) < self.most:
            action: Callable[[RunDir], None] | None = self.restart if self.random.random() < 0.2 else self.launch
            target = self.random.choice(rundir.runs() or [RunDir(self.folder)])
        else:
            action = self.random.choices(list(choices), weights=list(choices.values()))[0]
            target = self.random.choice(live)
        self.done[action.__name__] += 1
        action(target)
        time.sleep(self.random.choice((0.0, 0.1, 0.5, 1.5)))

    def verb(self, *arguments: str) -> None:
        """Run a verb to its end; whatever it answers, it must answer, and in one line where it refuses."""
        child = self.begin(*arguments)
        try:
            _, errors = child.communicate(timeout=VERB_S)
        except subprocess.TimeoutExpired:
            child.kill()
            raise AssertionError(f"{arguments}: no answer within {VERB_S:g} s") from None
        assert "Traceback" not in errors, f"{arguments}: {errors}"

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a verb and do not wait."""
        command = [sys.executable, "-m", "ddptop.tui.cli", *arguments]
        child = subprocess.Popen(
            command,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        return child

    def launch(self, _: RunDir) -> None:
        """Start a run; sometimes its end is near, sometimes it may be restarted."""
        self.number += 1
        seconds = self.random.choice(("3", "3600", "3600", "3600"))
        restarts = self.random.choice(("0", "0", "1"))
        self.verb("launch", "--world", "2", "--name", f"r{self.number}", "--grace", "1", "--max-restarts", restarts,
                  "--detach", "train.py", "--", seconds)  # fmt: skip

    def restart(self, run: RunDir) -> None:
        """Start an ended run again, or be refused."""
        self.verb("restart", run.name, "--detach")

    def pause(self, run: RunDir) -> None:
        """Hold."""
        self.verb("pause", run.name)

    def step(self, run: RunDir) -> None:
        """Do some steps."""
        self.verb("step", run.name, str(self.random.randint(1, 20)))

    def resume(self, run: RunDir) -> None:
        """Go on."""
        self.verb("resume", run.name)

    def status(self, run: RunDir) -> None:
        """Look."""
        self.verb(*self.random.choice((("status", run.name), ("ps",), ("events", run.name))))

    def stop(self, run: RunDir) -> None:
        """End in good order."""
        self.verb("stop", run.name)

    def kill_run(self, run: RunDir) -> None:
        """End."""
        self.verb("kill", run.name)

    def kill_rank(self, run: RunDir) -> None:
        """End one rank."""
        self.verb("kill", run.name, "--rank", str(self.random.randint(0, 1)))

    def send(self, run: RunDir) -> None:
        """Stop all, and let them go on; or let nobody go on, which the end must cope with."""
        self.verb("kill", run.name, "--signal", "STOP", "--rank", "1")
        if self.random.random() < 0.7:
            self.verb("kill", run.name, "--signal", "CONT")

    def watch(self, run: RunDir) -> None:
        """Open a dashboard."""
        command = [sys.executable, "-c", DASHBOARD, run.name]
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
        )
        self.dashboards.append(child)
        if len(self.dashboards) > 3:
            self.lose_dashboard(run)

    def lose_dashboard(self, _: RunDir) -> None:
        """Kill -9 a dashboard."""
        if self.dashboards:
            child = self.dashboards.pop(self.random.randrange(len(self.dashboards)))
            child.kill()
            child.wait()

    def lose_supervisor(self, run: RunDir) -> None:
        """Kill -9 a supervisor."""
        self._lose(run.read().supervisor)

    def lose_torchrun(self, run: RunDir) -> None:
        """Kill -9 torchrun."""
        self._lose(run.read().torchrun)

    def lose_rank(self, run: RunDir) -> None:
        """Kill -9 a rank."""
        if members := list(run.members().values()):
            self._lose(self.random.choice(members).process)

    def _lose(self, process: Process | None) -> None:
        if process is not None and is_alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def two_at_once(self, run: RunDir) -> None:
        """Give two commands in the same moment, and kill the supervisor under them."""
        for arguments in self.random.sample((("pause",), ("resume",), ("kill",), ("stop",), ("status",)), 2):
            self.begin(arguments[0], run.name)
        if self.random.random() < 0.5:
            time.sleep(self.random.random())
            self.lose_supervisor(run)

    def end(self) -> list[str]:
        """End everything as a user would, and return what is wrong."""
        for child in self.dashboards:
            child.kill()
            child.wait()
        for child in self.children:
            with contextlib.suppress(ValueError):
                child.communicate(timeout=VERB_S)
        deadline = time.monotonic() + 120
        while (live := self.live()) and time.monotonic() < deadline:
            for run in live:
                self.verb("kill", run.name)
            self.verb("ps")
        wrong = [f"{run.name} is still {run.read().state}" for run in self.live()]
        settled = time.monotonic() + 10
        while (left := self._left()) and time.monotonic() < settled:
            time.sleep(0.1)
        wrong += left
        rows = json.loads(
            subprocess.run(
                [sys.executable, "-m", "ddptop.tui.cli", "ps", "--json"], capture_output=True, text=True, check=True
            ).stdout
        )
        wrong += [f"ps shows {row['run']} as {row['state']}" for row in rows if row["state"] not in rundir.ENDED_STATES]
        for child, process in self.bystanders:
            if not is_alive(process):
                wrong.append(f"a bystander was hurt (pid {process.pid})")
            child.kill()
            child.wait()
        return wrong

    def _left(self) -> list[str]:
        """Return every process, socket and lock that a run has left."""
        left = [f"orphan {pid} of run {run_id}" for run_id in self.ids for pid in carriers(run_id)]
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and f"{self.folder}/".encode() in (entry / "cmdline").read_bytes():
                    left.append(f"process {entry.name}: {(entry / 'cmdline').read_bytes()!r}")
        for run in rundir.runs():
            left += [f"{path}" for path in run.path.iterdir() if path.suffix in (".pub", ".cmd") or path.name == "lock"]
        return left


def main() -> int:
    """Do it and print what came of it; 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--actions", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3, help="live runs at a time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dc-", dir="/tmp", ignore_cleanup_errors=True) as name:
        os.environ[rundir.BASE_VARIABLE] = name
        (Path(name) / "train.py").write_text(SCRIPT)
        chaos = Chaos(Path(name), options)
        began = time.monotonic()
        wrong: list[str] = []
        try:
            for _ in range(options.actions):
                chaos.act()
        except AssertionError as problem:
            wrong.append(str(problem))
        finally:
            wrong += chaos.end()
        done = ", ".join(f"{action} {count}" for action, count in chaos.done.most_common())
        print(f"seed {options.seed}: {sum(chaos.done.values())} actions in {time.monotonic() - began:.0f} s: {done}")
        print("\n".join(wrong) or f"nothing left of {len(chaos.ids)} runs, nobody else hurt")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
