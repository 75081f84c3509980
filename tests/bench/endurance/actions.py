"""Random actions in random order against several runs at once: what `soak.py` does for as long as it goes on.

Among the actions: launch, pause, step, resume, stop, kill, signals, restart, a disk that is full
for a while, onlookers that come and go, and kill -9 of a dashboard, an observer, torchrun or a
rank, each at whatever moment it falls on.  Bystanders with the same command line, and with the
marker of another run, must live to the end.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from onlookers import DDPTOP, Onlooker, ways
from support.harness import carriers

from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Process, RunDir, RunDirError, identify, is_alive
from ddptop.agent.wire.frames import ENDED

VERB_S: Final = 120.0
"""A verb that has not ended by then hangs: two cores may be busy with several launches."""
OF_OTHERS: Final = ("pymp-", "torchinductor_")
"""Temporary folders that Python's multiprocessing and torch leave where they are killed."""
KILLS_S: Final = 180.0
"""How long the end of all runs may take."""
MOST_WRONG: Final = 20
LIMIT_BLOCKS: Final = 4096
"""Of 512 or 1,024 bytes: the largest file that a run may write where no small disk can be mounted."""
SCRIPT: Final = """
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
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        print("loss", loss.item(), flush=True)
        time.sleep(0.02)
    over = torch.tensor(float(time.time() > end))
    dist.all_reduce(over)
    if over:
        break
dist.destroy_process_group()
"""
KEYS: Final = (
    b"\t", b"\r", b"\x1b", b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D", b"v", b"1", b"2", b"h", b"?", b"/", b"m", b"l",
    b"t", b"+", b"-", b" ", b"e", b"x", b"y", b"n",
)  # fmt: skip


class Disk:
    """A small disk of its own for some of the runs: a tmpfs, or where none may be mounted, a limit on each file."""

    def __init__(self, path: Path) -> None:
        """Mount it."""
        self.path = path
        path.mkdir(mode=0o700)
        options = f"size=8m,mode=700,uid={os.getuid()},gid={os.getgid()}"
        command = ["mount", "-t", "tmpfs", "-o", options, "ddptop-soak", str(path)]
        try:
            self.mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            self.mounted = False
        self._ballast = path.parent / "ballast" if not self.mounted else path / ".ballast"
        self._full_until = 0.0

    @property
    def full(self) -> bool:
        """Say whether nothing can be written to it now."""
        return bool(self._full_until)

    def fill(self, seconds: float) -> None:
        """Leave no room for so long."""
        if not self.mounted:
            return
        self._full_until = time.monotonic() + seconds
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            for piece in (1 << 16, 1 << 10, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(piece)) == piece:
                        pass

    def tend(self, *, at_once: bool = False) -> None:
        """Give the room back when it is time."""
        if self._full_until and (at_once or time.monotonic() > self._full_until):
            self._ballast.unlink(missing_ok=True)
            self._full_until = 0.0

    def close(self) -> None:
        """Unmount it."""
        self.tend(at_once=True)
        if self.mounted:
            # What is left of it goes once nobody has anything open in it.
            subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, check=False)


class Actions:
    """The runs, who watches them, and who must not be touched."""

    def __init__(self, folder: Path, seed: int, most: int) -> None:
        """Act in this folder, on at most so many live runs at a time."""
        self.random = random.Random(seed)
        self.folder = folder
        self.most = most
        self.base = folder / "r"
        self.temporary = folder / "t"
        """Where everything of these runs has its temporary files."""
        for path in (self.base, self.temporary):
            path.mkdir(mode=0o700)
        self.disk = Disk(folder / "s")
        (folder / "train.py").write_text(SCRIPT)
        self.wrong: list[str] = []
        self.ids: set[str] = set()
        """Every run id that was ever there."""
        self.spared: set[str] = set()
        """Names of runs that only live through what does not end them."""
        self.children: list[subprocess.Popen[str]] = []
        """Verbs that go on."""
        self.onlookers: list[Onlooker] = []
        self.done: collections.Counter[str] = collections.Counter()
        self.bystanders = self._bystanders()
        self.number = 0

    def _bystanders(self) -> list[tuple[subprocess.Popen[str], Process]]:
        found = []
        for environment in ({}, {rundir.MARKER: "somebody-else"}, {rundir.DIRECTORY_VARIABLE: str(self.folder / "r1")}):
            # The same command line as a rank's, to whoever judges by that.
            command = [sys.executable, "-c", "import signal; signal.pause()", "-m", "ddptop.agent", "train.py"]
            child = subprocess.Popen(command, env=os.environ | environment, cwd=self.folder, text=True)
            process = identify(child.pid)
            assert process is not None
            found.append((child, process))
        return found

    def runs(self) -> list[RunDir]:
        """Return all run directories."""
        found = []
        for base in (self.base, self.disk.path):
            with contextlib.suppress(OSError):
                found += [RunDir(path) for path in sorted(base.iterdir()) if (path / "run.json").exists()]
        return found

    def live(self) -> list[RunDir]:
        """Return the runs whose record does not say that they are over."""
        found = []
        for directory in self.runs():
            with contextlib.suppress(RunDirError):
                run = directory.read()
                self.ids.add(run.run_id)
                if run.state not in ENDED:
                    found.append(directory)
        return found

    def act(self) -> None:
        """Do one thing at random."""
        self.disk.tend()
        live = self.live()
        gentle: dict[Callable[[RunDir], None], int] = {
            self.pause: 3, self.step: 2, self.resume: 3, self.checkpoint: 1, self.status: 3, self.come: 5,
        }  # fmt: skip
        rough: dict[Callable[[RunDir], None], int] = {
            self.kill_run: 2, self.kill_rank: 2, self.stop: 2, self.send: 2, self.lose_observer: 4,
            self.lose_torchrun: 2, self.lose_rank: 2, self.go: 5, self.two_at_once: 2, self.fill_disk: 2, self.press: 4,
        }  # fmt: skip
        if len([run for run in live if run.name not in self.spared]) < self.most:
            action: Callable[[RunDir], None] = self.restart if self.random.random() < 0.2 else self.launch
            target = self.random.choice(self.runs() or [RunDir(self.folder)])
        else:
            target = self.random.choice(live)
            choices = gentle if target.name in self.spared else gentle | rough
            action = self.random.choices(list(choices), weights=list(choices.values()))[0]
        self.done[action.__name__] += 1
        try:
            action(target)
        except RunDirError:
            # Its name was taken by another run, or its record pruned, since it was chosen.
            self.done["too late"] += 1
        self._reap()
        time.sleep(self.random.choice((0.0, 0.1, 0.5, 1.5)))

    def _reap(self) -> None:
        for child in [child for child in self.children if child.poll() is not None]:
            self.children.remove(child)
            self._heard(tuple(child.args[3:]), child.communicate()[1])  # type: ignore[index,arg-type]

    def _heard(self, arguments: Sequence[str], errors: str) -> None:
        if "Traceback" in errors:
            self.say_wrong(f"{' '.join(arguments)}: {errors}")

    def say_wrong(self, text: str | None) -> None:
        """Note what must not be."""
        if text is not None and len(self.wrong) < MOST_WRONG:
            print(f"WRONG: {text}", flush=True)
            self.wrong.append(text)

    def environment(self, run: RunDir) -> dict[str, str]:
        """Return what leads to the folder that a run is in."""
        base = self.disk.path if run.path.parent == self.disk.path else self.base
        return {rundir.BASE_VARIABLE: str(base), "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}

    def verb(self, run: RunDir, *arguments: str) -> None:
        """Run a verb to its end; whatever it answers, it must answer, and in a line where it refuses."""
        child = self.begin(run, *arguments)
        self.children.remove(child)
        try:
            _, errors = child.communicate(timeout=VERB_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            self.say_wrong(f"{' '.join(arguments)}: no answer within {VERB_S:g} s")
        else:
            self._heard(arguments, errors)

    def begin(self, run: RunDir, *arguments: str) -> subprocess.Popen[str]:
        """Start a verb and do not wait."""
        limited: tuple[str, ...] = ()
        if arguments[0] == "launch" and run.path.parent == self.disk.path and not self.disk.mounted:
            limited = ("sh", "-c", f'ulimit -f {LIMIT_BLOCKS}; exec "$@"', "-")
        child = subprocess.Popen(
            [*limited, *DDPTOP, *arguments],
            cwd=self.folder,
            env=os.environ | self.environment(run),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        return child

    def launch(self, _: RunDir) -> None:
        """Start a run; sometimes its end is near, sometimes it may be restarted, sometimes its disk is small."""
        self.number += 1
        seconds = self.random.choice(("3", "3600", "3600", "3600"))
        restarts = self.random.choice(("0", "0", "1"))
        base = self.disk.path if self.random.random() < 0.35 else self.base
        self.verb(RunDir(base / "new"), "launch", "--world", "2", "--name", f"r{self.number}", "--grace", "1",
                  "--max-restarts", restarts, "--detach", "train.py", "--", seconds)  # fmt: skip

    def launch_spared(self, name: str) -> RunDir:
        """Start a run that no action ends, and return it."""
        self.spared.add(name)
        run = RunDir(self.base / name)
        self.verb(run, "launch", "--world", "2", "--name", name, "--grace", "1", "--detach", "train.py", "--", "1e9")
        return run

    def restart(self, run: RunDir) -> None:
        """Start an ended run again, or be refused."""
        if run.name not in self.spared:
            self.verb(run, "restart", run.name, "--detach")

    def fill_disk(self, _: RunDir) -> None:
        """Take all room for a while."""
        self.disk.fill(self.random.uniform(2, 20))

    def pause(self, run: RunDir) -> None:
        """Hold."""
        self.verb(run, "pause", run.name)

    def step(self, run: RunDir) -> None:
        """Do some steps."""
        self.verb(run, "step", run.name, str(self.random.randint(1, 20)))

    def resume(self, run: RunDir) -> None:
        """Go on."""
        self.verb(run, "resume", run.name)

    def checkpoint(self, run: RunDir) -> None:
        """Save."""
        self.verb(run, "checkpoint", run.name)

    def status(self, run: RunDir) -> None:
        """Look once."""
        self.verb(run, *self.random.choice((("status", run.name), ("ps",), ("ps", "--json"), ("events", run.name))))

    def stop(self, run: RunDir) -> None:
        """End in good order."""
        self.verb(run, "stop", run.name)

    def kill_run(self, run: RunDir) -> None:
        """End."""
        self.verb(run, "kill", run.name)

    def kill_rank(self, run: RunDir) -> None:
        """End one rank."""
        self.verb(run, "kill", run.name, "--rank", str(self.random.randint(0, 1)))

    def send(self, run: RunDir) -> None:
        """Stop all, and let them go on; or let nobody go on, which the end must cope with."""
        self.verb(run, "kill", run.name, "--signal", "STOP", "--rank", "1")
        if self.random.random() < 0.7:
            self.verb(run, "kill", run.name, "--signal", "CONT")

    def come(self, run: RunDir) -> None:
        """Have one more onlooker."""
        dashboard = ("attach", run.name, "--view", self.random.choice(("panels", "table", "heatmap", "timeline")))
        arguments, terminal = self.random.choice(
            ((dashboard, True), (dashboard, True), ((), True), (("attach", run.name, "--plain"), False),
             (("watch", run.name, "--json"), False), (("logs", run.name, "-f"), False))
        )  # fmt: skip
        self.onlookers.append(Onlooker(arguments, self.environment(run), self.folder, terminal=terminal))
        if len(self.onlookers) > 4:
            self.go(run)

    def go(self, _: RunDir) -> None:
        """Have an onlooker leave, in one of its ways."""
        if self.onlookers:
            onlooker = self.onlookers.pop(self.random.randrange(len(self.onlookers)))
            self.say_wrong(onlooker.leave(self.random.choice(ways(onlooker))))

    def press(self, run: RunDir) -> None:
        """Press keys in a dashboard."""
        dashboards = [onlooker for onlooker in self.onlookers if onlooker.terminal]
        for onlooker in dashboards[-1:]:
            if not self.spared & set(onlooker.arguments) and onlooker.arguments:
                for _ in range(10):
                    onlooker.type(self.random.choice(KEYS))
                    time.sleep(0.05)

    def lose_observer(self, run: RunDir) -> None:
        """Kill -9 an observer."""
        self._lose(run.read().observer)

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
        """Give two commands in the same moment, and kill the observer under them."""
        for arguments in self.random.sample((("pause",), ("resume",), ("kill",), ("stop",), ("status",)), 2):
            self.begin(run, arguments[0], run.name)
        if self.random.random() < 0.5:
            time.sleep(self.random.random())
            self.lose_observer(run)

    def end(self) -> list[str]:
        """End everything as a user would, then whatever is left, and return what is wrong."""
        self.disk.tend(at_once=True)
        for onlooker in self.onlookers:
            self.say_wrong(onlooker.leave("SIGKILL"))
        for child in self.children:
            try:
                self._heard(child.args[3:], child.communicate(timeout=VERB_S)[1])  # type: ignore[index,arg-type]
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
                self.say_wrong(f"{child.args!r}: no answer within {VERB_S:g} s")
        self.children.clear()
        deadline = time.monotonic() + KILLS_S
        while (live := self.live()) and time.monotonic() < deadline:
            for run in live:
                self.verb(run, "kill", run.name)
        for run in self.live():
            self.say_wrong(f"{run.name} is still {run.read().state}")
        settled = time.monotonic() + 20
        while (left := list(self._left())) and time.monotonic() < settled:
            time.sleep(0.2)
        for line in left:
            self.say_wrong(line)
        for base in {self.base, self.disk.path}:
            command = [*DDPTOP, "ps", "--json"]
            environment = os.environ | self.environment(RunDir(base / "any"))
            listed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            try:
                rows = json.loads(listed.stdout)
            except ValueError:
                self.say_wrong(f"ps --json: {listed.stdout[:500]}{listed.stderr[-2000:]}")
                continue
            for row in rows:
                if row["state"] not in ENDED:
                    self.say_wrong(f"ps shows {row['run']} as {row['state']}")
        for _, process in self.bystanders:
            if not is_alive(process):
                self.say_wrong(f"a bystander was hurt (pid {process.pid})")
        return self.wrong

    def close(self) -> None:
        """End whatever is left, by its number; for good, however all this came to its end."""
        for onlooker in self.onlookers:
            onlooker.process.kill()
            onlooker.process.wait()
        for child in (*self.children, *(child for child, _ in self.bystanders)):
            child.kill()
            child.wait()
        deadline = time.monotonic() + 20
        while (left := self.left_processes()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        self.disk.close()

    def left_processes(self) -> set[int]:
        """Return every process that carries the marker of a run, or this folder in its command line."""
        self.live()
        spared = {process.pid for _, process in self.bystanders}
        found = {pid for run_id in self.ids for pid in carriers(run_id)}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and f"{self.folder}/".encode() in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
        return found - spared - {os.getpid()}

    def _left(self) -> Iterator[str]:
        for pid in self.left_processes():
            with contextlib.suppress(OSError):
                yield f"process {pid} is left: {Path(f'/proc/{pid}/cmdline').read_bytes()!r}"
        for run in self.runs():
            yield from (f"socket {path} is left" for path in run.path.iterdir() if path.suffix in (".pub", ".cmd"))
        yield from (f"{path} is left" for path in self.temporary.iterdir() if not path.name.startswith(OF_OTHERS))
