"""Hostile input into each socket and each file of live runs, for as long as one likes.

    python tests/bench/endurance/fuzz.py --minutes 30 [--seed N] [--only socket|file]

Two runs under real observers: two ranks that train, and eight fake ranks (`load.py`) whose
sockets send damaged records among the good ones and answer with damage.  Dashboards in
pseudo-terminals, `watch` and `attach --plain` look at both all the time, `status --json` and
`ps --json` again and again.  After each piece of input every socket must still answer a good
question, and no process may have ended; memory, descriptors and threads must stay within
bounds.  Exit code 1 otherwise; the newest input is then kept in a file, and its path printed.
What is a valid order to end a run is not sent: whoever owns the run may give it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from actions import SCRIPT
from onlookers import DDPTOP, Onlooker
from samples import Bound, Sampler
from support.harness import carriers

from ddptop.agent import wire
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDir, RunDirError

WORLD: Final = 2
FAKES: Final = 8
STEP_S: Final = 0.1
ANSWER_S: Final = 30.0
VERB_S: Final = 120.0
LOOK_S: Final = 15.0
"""So often the verbs look."""
HELD: Final = 200
"""Connections that are open at a time and say nothing."""
MOST_WRONG: Final = 5
KEPT: Final = 2000
"""Pieces of input that are kept for the file."""
HUGE_BYTES: Final = 64 << 20
LARGEST_BYTES: Final = 4 << 20
"""Of a message that has been damaged: larger than any that is listened to."""
BOUNDS: Final = {
    "rank": (Bound(1500, 32), Bound(600, 8), Bound(100, 4)),
    # Eight ranks in one process, whose histories grow to 32 MiB each.
    "fake leader": (Bound(1500), Bound(600, 8), Bound(100, 4)),
    "observer": (Bound(250, 32), Bound(600, 8), Bound(40, 4)),
    "onlooker": (Bound(500, 64), Bound(400, 8), Bound(40, 4)),
}
EXTREMES: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0.0, -0.0, 1e308, float("nan"), float("inf"),
    float("-inf"), "", "\x1b]0;x\x07\x1b[2J", "x" * 3000, "\ud800", "\x00", "é" * 100, b"", b"\xff" * 100, [], {},
    [[[[[[]]]]]], {"a": 1}, {"loss": "x"},
)  # fmt: skip
"""Values in place of those of a message."""


NUMBERS: Final = (
    b"0", b"1", b"7", b"-1", b"+1", b"00", b" 1", b"1_0", b"1e3", b"8", b"99999", b"9" * 5000, b"\xd9\xa1", b"",
    b"observer", b"\x00\x00\x00\x01", b"all",
)  # fmt: skip
"""What may stand for the number of a rank before a command that goes through the observer."""


class Mutator:
    """Damages valid things, by a random of its own."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, value: Any) -> Any:
        """Return a tree of values with some of them replaced, left out or doubled."""
        pick = self.random
        if pick.random() < 0.15:
            return pick.choice(EXTREMES)
        if isinstance(value, list):
            changed = [self.value(each) if pick.random() < 0.5 else each for each in value]
            if changed and pick.random() < 0.2:
                changed.pop(pick.randrange(len(changed)))
            if pick.random() < 0.2:
                changed.insert(pick.randint(0, len(changed)), pick.choice(EXTREMES))
            # What is inside may be many times itself already.
            most = LARGEST_BYTES // (len(str(changed)) + 1) if pick.random() < 0.03 else 1
            return changed * max(1, min(most, pick.randint(2, 500)))
        if isinstance(value, dict):
            return {
                key: self.value(each) if pick.random() < 0.4 else each
                for key, each in value.items()
                if pick.random() > 0.05
            }
        if isinstance(value, int | float) and not isinstance(value, bool):
            return pick.choice((value, -value, value + 1, value * 1000, *EXTREMES))
        return pick.choice(EXTREMES) if pick.random() < 0.3 else value

    def data(self, content: bytes) -> bytes:
        """Return bytes with some flipped, cut, doubled, or others between."""
        pick, changed = self.random, bytearray(content)
        for _ in range(pick.randint(1, 4)):
            at = pick.randint(0, len(changed))
            match pick.randrange(5):
                case 0 if changed:
                    changed[at % len(changed)] ^= 1 << pick.randrange(8)
                case 1:
                    del changed[at:]
                case 2:
                    changed[at:at] = pick.randbytes(pick.randint(1, 40))
                case 3:
                    changed[at:at] = changed[at : at + pick.randint(1, 200)]
                case _:
                    del changed[at : at + pick.randint(1, 20)]
        return bytes(changed)

    def message(self, valid: bytes) -> bytes:
        """Return a message that is damaged in its values or in its bytes, or no message at all."""
        pick = self.random.random()
        if pick < 0.15:
            return self.random.randbytes(self.random.choice((0, 1, 7, 100, 4096)))
        if pick < 0.5:
            return self.data(valid)
        with contextlib.suppress(Exception):  # what cannot be written as msgpack is damaged in its bytes instead
            return msgspec.msgpack.encode(self.value(msgspec.msgpack.decode(valid)))
        return self.data(valid)

    def document(self, valid: bytes) -> bytes:
        """Return a file of JSON that is damaged in its values or in its bytes."""
        if self.random.random() < 0.5:
            with contextlib.suppress(Exception):  # as above
                changed = self.value(json.loads(valid))
                return json.dumps(changed).encode(errors="surrogatepass")
        return self.data(valid)


def valid_commands() -> list[bytes]:
    """Return one of each command, in several shapes."""
    commands: list[wire.Command] = [
        wire.Hold(1, "token", 100), wire.Commit(2, "token", 5, 100), wire.Keep(2, "token"), wire.Resume(3),
        wire.Fill(4, 0, 1000),
        wire.Act(6, "pause", "fuzz"), wire.Advance(7, 9), wire.Cancel(8, "fuzz"), wire.Save(9, "token"),
        wire.Kill(11, 0.0, 77, "fuzz"), wire.Kill(12, 0.0, None, "fuzz", 1, 1.0, 15),
    ]  # fmt: skip
    return [wire.encode(command) for command in commands]


def is_an_order(payload: bytes) -> bool:
    """Say whether this could rightly end or stop something."""
    try:
        command = wire.read_command(payload)
    except wire.Unreadable:
        return False
    match command:
        case wire.Kill(rank=rank):
            return rank is None or 0 <= rank < max(WORLD, FAKES)
        case wire.Act(action=action):
            return action == "stop"
    return isinstance(command, wire.End)


class Fuzz:
    """The runs, who looks at them, and what is done to them."""

    def __init__(self, folder: Path, seed: int, only: str | None) -> None:
        """Prepare a folder; `start` starts all."""
        self.only = only
        self.random = random.Random(seed)
        self.mutate = Mutator(seed)
        self.seed = seed
        self.folder = folder
        self.wrong: list[str] = []
        self.inputs: collections.deque[str] = collections.deque(maxlen=KEPT)
        self.done: collections.Counter[str] = collections.Counter()
        self.looks = 0
        self._due: list[Callable[[str], None]] = []
        self._files_due: list[tuple[Path, Path]] = []
        self.context = zmq.Context()
        self.onlookers: dict[str, tuple[Onlooker, Callable[[], Onlooker]]] = {}
        self.run_ids: set[str] = set()
        self.pids: dict[str, int] = {}
        """By name, the processes that must not end."""
        (folder / "train.py").write_text(SCRIPT)
        (folder / "state" / "ddptop").mkdir(parents=True)
        self.settings = folder / "config.toml"
        self.settings.write_text("")
        self.environment = {
            rundir.BASE_VARIABLE: str(folder / "r"), "TMPDIR": str(folder), "OMP_NUM_THREADS": "1",
            "DDPTOP_CONFIG": str(self.settings), "XDG_STATE_HOME": str(folder / "state"),
        }  # fmt: skip
        os.environ.update(self.environment)
        self.real, self.fake = RunDir(folder / "r" / "real"), RunDir(folder / "r" / "fake")

    def start(self) -> None:
        """Start the runs and those who look at them."""
        self._launch("real", "--world", str(WORLD), "train.py", "--", "1e9")
        hostile = "0" if self.only == "file" else "1"
        self._launch(
            "fake", "--start", "spawn", "--world", str(FAKES), __file__, "--", "--as-ranks", str(self.seed), hostile
        )
        for directory in (self.real, self.fake):
            self._know(directory)
        for name in ("real", "fake"):
            for arguments, terminal in (
                (("attach", name), True), (("attach", name, "--plain", "--interval", "0.5"), False),
                (("watch", name, "--json"), False),
            ):  # fmt: skip
                self._look(arguments, terminal)
        self._look((), True)

    def _launch(self, name: str, *arguments: str) -> None:
        answer = self.verb("launch", "--name", name, "--grace", "1", "--detach", *arguments)
        directory = RunDir(self.folder / "r" / name)
        try:
            self.run_ids.add(directory.read().run_id)
        except RunDirError:
            raise SystemExit(f"{name} did not start: {answer}") from None

    def _know(self, directory: RunDir) -> None:
        deadline = time.monotonic() + VERB_S
        while True:
            run, members = directory.read(), directory.members()
            if run.observer is not None and run.torchrun is not None and len(members) == run.world:
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"{directory.name}: its ranks did not come up")
            time.sleep(0.1)
        self.pids[f"{directory.name} observer"] = run.observer.pid
        self.pids[f"{directory.name} leader"] = run.torchrun.pid
        for rank, member in members.items():
            if member.process.pid not in self.pids.values():
                self.pids[f"{directory.name} rank {rank}"] = member.process.pid

    def _look(self, arguments: tuple[str, ...], terminal: bool) -> None:
        def begin() -> Onlooker:
            return Onlooker(arguments, self.environment, self.folder, terminal=terminal)

        self.onlookers[" ".join(("ddptop", *arguments))] = (begin(), begin)

    def verb(self, *arguments: str) -> str:
        """Run a verb to its end and return what it says; it must answer without a traceback of its own."""
        child = subprocess.Popen(
            [*DDPTOP, *arguments], cwd=self.folder, env=os.environ | self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
        try:
            output, errors = child.communicate(timeout=VERB_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            self.say_wrong(f"{' '.join(arguments)}: no answer within {VERB_S:g} s")
            return ""
        except BaseException:
            child.kill()
            child.communicate()
            raise
        if "Traceback" in errors or child.returncode < 0:
            self.say_wrong(f"{' '.join(arguments)} ended with {child.returncode}: {errors[-3000:]}")
        return output + errors

    def say_wrong(self, text: str) -> None:
        """Note what must not be."""
        print(f"WRONG: {text}", flush=True)
        self.wrong.append(text)

    def note(self, what: str, content: bytes = b"") -> None:
        """Remember a piece of input."""
        self.inputs.append(f"{time.time():.3f} {what} {content[:5000].hex()}")

    def sample(self, sampler: Sampler) -> None:
        """Take one sample of everything."""
        for name, pid in self.pids.items():
            kind = "observer" if "observer" in name else name if name in BOUNDS else "rank"
            sampler.add_process(name, pid, BOUNDS[kind])
        for name, (onlooker, _) in list(self.onlookers.items()):
            sampler.add_process(name, onlooker.pid, BOUNDS["onlooker"])

    # Checks.

    def check(self, *, files: bool) -> None:
        """See that nobody has ended and that every socket answers; onlookers of damaged files may leave in order."""
        for name, pid in self.pids.items():
            if not _lives(pid):
                self.say_wrong(f"{name} (pid {pid}) has ended")
        for name, (onlooker, begin) in self.onlookers.items():
            if (code := onlooker.process.poll()) is None:
                continue
            complaint = onlooker.leave("SIGKILL")
            if complaint is not None or not files:
                self.say_wrong(complaint or f"{onlooker} ended by itself with {code}: {onlooker.output[-800:]!r}")
            self.onlookers[name] = (begin(), begin)
        self._question()

    def _question(self) -> None:
        """Ask a good question at each command socket, and listen at each that publishes."""
        waiting: dict[zmq.Socket[bytes], str] = {}
        poller = zmq.Poller()
        for directory, world in ((self.real, WORLD), (self.fake, FAKES)):
            for who in ("observer", *range(world)):
                for kind, method in (("cmd", zmq.DEALER), ("pub", zmq.SUB)):
                    peer = self.context.socket(method)
                    peer.linger = 0
                    waiting[peer] = directory.address(who, kind)
                    peer.connect(waiting[peer])
                    poller.register(peer, zmq.POLLIN)
                    if method == zmq.SUB:
                        peer.subscribe(b"")
                        continue
                    # What was promised or held by damaged messages is let go.
                    for command in () if who == "observer" else (wire.Resume(90),):
                        peer.send(wire.encode(command))
                    peer.send(wire.encode(wire.Resume(91)))
        deadline = time.monotonic() + ANSWER_S
        while waiting and (left := deadline - time.monotonic()) > 0:
            for peer, _ in poller.poll(int(left * 1000) + 1):
                frames = peer.recv_multipart()
                if waiting[peer].endswith(".pub") or _answers(frames[-1]):
                    del waiting[peer]
                    poller.unregister(peer)
                    peer.close()
        for peer, address in waiting.items():
            peer.close()
            self.say_wrong(f"{address}: {'nothing to be heard' if address.endswith('.pub') else 'no answer'}")

    def look(self) -> None:
        """Have the verbs look."""
        self.looks += 1
        name = self.random.choice(("real", "fake"))
        for arguments in (("status", name, "--json"), ("ps", "--json"), ("events", name)):
            self.verb(*arguments)

    # Sockets.

    def attack_socket(self) -> None:
        """Damage at one socket."""
        directory, world = self.random.choice(((self.real, WORLD), (self.real, WORLD), (self.fake, FAKES)))
        who = self.random.choice(("observer", *range(world)))
        attacks: tuple[Callable[[str], None], ...] = (
            self.commands, self.commands, self.frames, self.oversized, self.subscriptions, self.unread_fills,
            self.relayed, self.unread_relayed, self.handshakes, self.connects,
        )  # fmt: skip
        if not self._due:
            # Each of them comes as often as the others, in an order by chance.
            self._due = self.random.sample(attacks, len(attacks))
        attack = self._due.pop()
        kind = "pub" if attack == self.subscriptions else "cmd" if attack in attacks[:8] else None
        if attack in (self.relayed, self.unread_relayed):
            who = "observer"
        address = directory.address(who, kind or self.random.choice(("pub", "cmd")))
        self.done[attack.__name__] += 1
        self.note(f"{attack.__name__} {address}")
        attack(address)

    @contextlib.contextmanager
    def _peer(self, kind: int, address: str) -> Iterator[zmq.Socket[bytes]]:
        with self.context.socket(kind) as peer:
            peer.linger = 500
            peer.sndtimeo = 5000
            peer.connect(address)
            yield peer

    def _send(self, peer: zmq.Socket[bytes], *frames: bytes) -> None:
        if any(is_an_order(frame) for frame in frames):
            return
        self.note(f"{len(frames)} frames", b"|".join(frames))
        with contextlib.suppress(zmq.Again):
            peer.send_multipart(frames)

    def commands(self, address: str) -> None:
        """Damaged commands."""
        valid = valid_commands()
        with self._peer(zmq.DEALER, address) as peer:
            for _ in range(300):
                self._send(peer, self.mutate.message(self.random.choice(valid)))

    def frames(self, address: str) -> None:
        """Valid commands in the wrong number of frames."""
        valid = valid_commands()
        with self._peer(zmq.DEALER, address) as peer:
            for _ in range(100):
                parts = [self.random.choice((b"", *valid)) for _ in range(self.random.choice((1, 2, 3, 50)))]
                self._send(peer, *parts)

    def oversized(self, address: str) -> None:
        """Messages that are far too large."""
        for _ in range(5):
            with self._peer(zmq.DEALER, address) as peer:
                self._send(peer, bytes(self.random.choice((wire.MAX_COMMAND_BYTES + 1, 1 << 20, 16 << 20))))

    def subscriptions(self, address: str) -> None:
        """Subscriptions to nothing and to everything, and what is none."""
        with self._peer(zmq.XSUB, address) as peer:
            for _ in range(1000):
                head = self.random.choice((b"\x01", b"\x00", b"\x02", b""))
                topic = self.random.choice((b"", b"newest", b"verdicts", b"steps/", b"steps/00001", b"beat/99999"))
                self._send(peer, head + topic + self.random.randbytes(self.random.choice((0, 1, 4, 100, 3000))))

    def relayed(self, address: str) -> None:
        """Commands to ranks by way of the observer, to those that there are and to others, damaged and valid."""
        valid = valid_commands()
        with self._peer(zmq.DEALER, address) as peer:
            for _ in range(300):
                payload = self.random.choice(valid)
                damaged = self.random.random() < 0.5
                self._send(peer, self.random.choice(NUMBERS), self.mutate.message(payload) if damaged else payload)

    def unread_fills(self, address: str) -> None:
        """Questions whose answers are not read."""
        self._ask_and_leave(address, ())

    def unread_relayed(self, address: str) -> None:
        """The same of all ranks by way of the observer."""
        self._ask_and_leave(address, (b"0", b"1", b"2", b"7"))

    def _ask_and_leave(self, address: str, ranks: tuple[bytes, ...]) -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(10):
                peer = stack.enter_context(self._peer(zmq.DEALER, address))
                peer.linger = 0
                peer.rcvhwm = 1
                for number in range(20):
                    to = (self.random.choice(ranks),) if ranks else ()
                    self._send(peer, *to, wire.encode(wire.Fill(number)))
            time.sleep(2)

    def handshakes(self, address: str) -> None:
        """The first bytes of a conversation, and no more; or others."""
        greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
        ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
        with contextlib.ExitStack() as stack:
            for _ in range(HELD):
                if (raw := self._connect(address)) is None:
                    break
                stack.callback(raw.close)
                data = self.random.choice(
                    (b"", greeting[:10], greeting, greeting + ready, greeting + ready + b"\x02" + b"\xff" * 8 + b"x",
                     greeting + ready + b"\x00\xff" + bytes(200), self.random.randbytes(300),
                     self.mutate.data(greeting + ready), b"GET / HTTP/1.1\r\n\r\n")
                )  # fmt: skip
                self.note("raw", data)
                with contextlib.suppress(OSError):
                    raw.sendall(data)
            time.sleep(1)

    def connects(self, address: str) -> None:
        """Thousands who come and go."""
        for _ in range(3000):
            if (raw := self._connect(address)) is not None:
                raw.close()

    def _connect(self, address: str) -> socket.socket | None:
        raw = socket.socket(socket.AF_UNIX)
        raw.settimeout(5)
        try:
            raw.connect(address.removeprefix("ipc://"))
        except OSError:
            raw.close()
            return None
        return raw

    # Files.

    def _files(self) -> list[tuple[Path, Path]]:
        """Return what is read of both runs, each with the folder of the run; settings and draft among the first's."""
        names = (
            "run.json", "frozen.json", "run.db", "run.db-wal", "logs/torchrun.log", "logs/observer.log",
            "logs/rank-0.log", "ranks/0.json", "ranks/1.json", "ranks/77.json", "ranks/x.json", "ranks/-1.json",
        )  # fmt: skip
        found = [(run.path, run.path / name) for run in (self.real, self.fake) for name in names]
        own = (self.settings, self.folder / "state" / "ddptop" / "launch.json")
        return [*found, *((self.real.path, path) for path in own)]

    def attack_file(self) -> None:
        """Put something else in the place of one file for a while."""
        if not self._files_due:
            # Each file comes as often as the others, in an order by chance.
            self._files_due = self._files()
            self.random.shuffle(self._files_due)
        directory, target = self._files_due.pop()
        pristine = {path: path.read_bytes() for path in (directory / "run.json",)}
        whole = target.read_bytes()[: 1 << 20] if target.is_file() else b'{"at_ns":1,"who":"x"}'
        with self._replaced(target) as hostile:
            kind = self._damage(hostile, whole, target)
            self.done[target.name if target.parent == directory else f"{target.parent.name}/{target.name}"] += 1
            self.note(f"{kind} in place of {target}", hostile.read_bytes() if kind in ("damaged", "cut") else b"")
            with contextlib.suppress(OSError):
                hostile.rename(target)
            if self.random.random() < 0.5:
                self.look()
            else:
                time.sleep(self.random.uniform(0.5, 2))
        for path, content in pristine.items():
            staging = path.with_name(".run.json.fuzz")
            staging.write_bytes(content)
            staging.replace(path)

    @contextlib.contextmanager
    def _replaced(self, target: Path) -> Iterator[Path]:
        """Give a path for what is to stand in the target's place; afterwards the target itself is back."""
        made = not target.parent.exists()
        target.parent.mkdir(mode=0o700, exist_ok=True)
        aside, hostile = self.folder / "aside", self.folder / "hostile"
        there = target.exists()
        if there:
            target.rename(aside)
        try:
            yield hostile
        finally:
            for path in (hostile, target):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            if there:
                aside.rename(target)
            if made:
                shutil.rmtree(target.parent)

    def _damage(self, hostile: Path, whole: bytes, target: Path) -> str:
        kind = self.random.choice(("damaged", "damaged", "damaged", "cut", "huge", "pipe", "link", "endless", "folder"))
        match kind:
            case "damaged":
                content = self.mutate.document(whole) if target.suffix == ".json" else self.mutate.data(whole)
                hostile.write_bytes(content)
            case "cut":
                hostile.write_bytes(whole[: self.random.randint(0, len(whole))])
            case "huge":
                with hostile.open("wb") as file:
                    file.write(whole[:-1] + b" " * 100)
                    file.truncate(HUGE_BYTES)
            case "pipe":
                os.mkfifo(hostile, 0o600)
            case "link":
                hostile.symlink_to(self.random.choice(("/etc/passwd", "/nowhere", str(target), "/proc/self/mem")))
            case "endless":
                hostile.symlink_to(self.random.choice(("/dev/zero", "/dev/tty", "/dev/stdin")))
            case _:
                hostile.mkdir()
                (hostile / "x").touch()
        return kind

    def end(self) -> None:
        """End all, and see that it has ended."""
        for onlooker, _ in self.onlookers.values():
            if (complaint := onlooker.leave("SIGKILL")) is not None:
                self.say_wrong(complaint)
        for name in ("real", "fake"):
            self.verb("kill", name)
        deadline = time.monotonic() + 20
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            self.say_wrong(f"process {pid} is left")

    def left(self) -> list[int]:
        """Return the processes that carry the marker of one of the runs."""
        for directory in (self.real, self.fake):
            with contextlib.suppress(RunDirError):
                self.run_ids.add(directory.read().run_id)
        return [pid for run_id in self.run_ids for pid in carriers(run_id)]

    def close(self) -> None:
        """End whatever is left, by its number."""
        for onlooker, _ in self.onlookers.values():
            onlooker.process.kill()
            onlooker.process.wait()
        observers = [pid for name, pid in self.pids.items() if "observer" in name]
        for pid in observers:
            with contextlib.suppress(OSError):
                if str(self.folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        for _ in range(50):
            for pid in self.left():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        self.context.destroy(linger=0)

    def keep(self) -> Path:
        """Write down the newest input and what was wrong, and return where."""
        path = Path("/tmp") / f"ddptop-fuzz-{self.seed}-{secrets.token_hex(2)}.txt"
        sent = self.folder / "sent.txt"
        told = sent.read_text() if sent.exists() else ""
        path.write_text(
            "\n".join((*self.wrong, "", "input, the newest last:", *self.inputs, "", "sent by ranks:", told))
        )
        return path


def _answers(payload: bytes) -> bool:
    with contextlib.suppress(wire.Unreadable):
        answer = wire.read_answer(payload)
        return isinstance(answer, wire.Reply) and answer.id == 91
    return False


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def be_ranks(seed: int, hostile: bool) -> None:
    """Be the fake ranks of a run: train, and between good records send damaged ones."""
    from load import FakeRank

    class Damaged(FakeRank):
        """A rank whose words are sometimes damaged."""

        def _send(self, topic: bytes, payload: bytes) -> None:
            super()._send(topic, payload)
            for _ in range(3 if hostile else 0):
                content = mutator.message(payload)
                sent.append(f"{time.time():.3f} rank {self.rank} {topic.decode()} {content[:3000].hex()}")
                topics = (topic, b"", b"steps", b"beat", b"x" * 300)
                frames = [mutator.random.choice(topics), content]
                self.pub.send_multipart(
                    frames[: mutator.random.choice((1, 2, 2, 2))] + frames[: mutator.random.choice((0, 0, 0, 1))]
                )

    mutator = Mutator(seed)
    sent: collections.deque[str] = collections.deque(maxlen=500)
    directory = RunDir(Path(os.environ[rundir.DIRECTORY_VARIABLE]))
    run = directory.read()
    context = zmq.Context()
    ranks = [Damaged(context, directory, run, rank, int(STEP_S * 1e9)) for rank in range(run.world)]
    event = wire.encode(wire.Event(time.time_ns(), "all well", 0, "info"))
    told = written = 0.0
    last = time.monotonic()
    while True:
        now = time.monotonic()
        steps = int((now - last) / STEP_S)
        last += steps * STEP_S
        for rank in ranks:
            if steps:
                trained = rank.train(min(steps, 20), time.time_ns())
                for step in trained:
                    rank.history.add(step)
                rank.publish(trained)
            if now - told > 1:
                rank.beat()
            rank.serve()
        if now - told > 1:
            told = now
            ranks[0]._send(wire.TOPIC_EVENT, event)
        if now - written > 2:
            written = now
            (directory.path.parent.parent / "sent.txt").write_text("\n".join(sent))
        time.sleep(0.02)


def fuzz(work: Fuzz, options: argparse.Namespace) -> None:
    """Do it, and leave in `work.wrong` what must not be."""
    began = time.monotonic()
    sampler = Sampler(work.sample, 3.0)
    minute, looked = 0, 0.0
    attacks = {"socket": [work.attack_socket], "file": [work.attack_file]}
    chosen = attacks[options.only] if options.only else [work.attack_socket, work.attack_file]
    try:
        while time.monotonic() - began < options.minutes * 60 and len(work.wrong) < MOST_WRONG:
            attack = work.random.choice(chosen)
            attack()
            work.check(files=options.only != "socket")
            if time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                work.look()
            if time.monotonic() - began > 60 * (minute + 1):
                minute += 1
                memory = ", ".join(f"{name} {sampler.newest(f'{name}, MiB'):.0f}" for name in work.pids)
                print(
                    f"minute {minute}: {work.done.total()} attacks, {work.looks} looks; MiB: {memory}; "
                    f"{len(work.wrong)} wrong",
                    flush=True,
                )
    finally:
        sampler.close()
        print(sampler.table(), flush=True)
        for line in sampler.broken():
            work.say_wrong(line)
    work.end()


def main() -> int:
    """Do it; 1 where anything is wrong."""
    if sys.argv[1:2] == ["--as-ranks"]:
        be_ranks(int(sys.argv[2]), sys.argv[3] == "1")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.randrange(100_000))
    parser.add_argument("--only", choices=("socket", "file"))
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    for name in (rundir.MARKER, rundir.DIRECTORY_VARIABLE):
        os.environ.pop(name, None)
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="df-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        work = Fuzz(Path(folder), options.seed, options.only)
        interrupted = False
        try:
            work.start()
            fuzz(work, options)
        except KeyboardInterrupt:
            interrupted = True
            print("interrupted: ending all", flush=True)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            work.close()
        done = ", ".join(f"{attack} {count}" for attack, count in work.done.most_common())
        print(f"{work.done.total()} attacks in {time.monotonic() - began:.0f} s, {work.looks} looks: {done}")
        if work.wrong:
            print(f"{len(work.wrong)} wrong; the newest input: {work.keep()}")
    if not work.wrong:
        print("nobody ended, every socket answers, all bounds kept")
    return 1 if work.wrong or interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
