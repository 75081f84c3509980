"""One process per launched run, detached from every terminal: it owns torchrun and looks after the run.

It publishes the run's state, watches the ranks die, records, and obeys `wire.Kill`.  The
training does not depend on it: torchrun and the ranks write to files, are in a session of
their own, and go on when this process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import zmq

from ddptop.agent import wire
from ddptop.agent.group import cause, processes
from ddptop.agent.group.deaths import Deaths
from ddptop.agent.group.orders import LINGER_MS, Orders
from ddptop.agent.group.recorder import Recorder
from ddptop.agent.rundir import DIRECTORY_VARIABLE, ENDED_STATES, MARKER, Run, RunDir, RunDirError, identify, is_alive

_log = logging.getLogger("ddptop.supervisor")

_TURN_MS: Final = 250
_TURN_WHILE_ENDING_MS: Final = 50
_TEARDOWN_S: Final = 0.5


def start(directory: RunDir) -> None:
    """Start the supervisor of a run that was just created, detached from the terminal and from the caller."""
    environment = dict(os.environ)
    if given := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, given.split(os.pathsep)))
    with directory.supervisor_log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ddptop.agent.group.supervisor", str(directory.path)],
            # `-m` imports from the current directory first, and the user's may hold a `queue.py`.
            cwd=directory.path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    # Nobody needs to wait for it, but somebody must take its exit status as long as the caller lives.
    threading.Thread(target=process.wait, name="supervisor-status", daemon=True).start()


class Supervisor:
    """Looks after one run until it is over, or until told to leave it alone."""

    def __init__(self, directory: RunDir, run: Run, context: zmq.Context[Any]) -> None:
        """Bind the sockets; raises `zmq.ZMQError` where that is impossible."""
        self._directory = directory
        self._run = run
        self._state = "starting"
        self._cause: str | None = None
        self._torchrun: subprocess.Popen[bytes] | None = None
        self._exit_code: int | None = None
        self._leaving = False
        self._announced: set[int] = set()
        self._deaths = Deaths()
        self._events: queue.SimpleQueue[wire.Event] = queue.SimpleQueue()
        self._pub = context.socket(zmq.PUB)
        self._pub.linger = LINGER_MS
        self._pub.bind(directory.address("supervisor", "pub"))
        self._orders = Orders(context, directory, self._say, self._events.put)
        self._recorder = Recorder(context, directory.database, run.world, self._say)

    def leave(self, *_: object) -> None:
        """Stop looking after the run, without touching it."""
        self._leaving = True

    def pass_on(self, number: int, _frame: object) -> None:
        """Hand a signal on to torchrun, which hands it on to its ranks; they know what to do, and we stay to see it."""
        if self._run.torchrun is not None:
            processes.send(self._run.torchrun, number)

    def run(self) -> None:
        """Start torchrun and stay until the run is over."""
        self._recorder.start()
        problem = self._spawn()
        next_word = 0.0
        while self._torchrun is not None and not self._is_over():
            if self._leaving and not self._orders.ending:
                self._abandon()
                return
            self._meet()
            self._bury()
            self._orders.turn(self._run)
            if self._orders.ending and self._state != "killing":
                self._state = "killing"
                next_word = 0.0
            if time.monotonic() >= next_word:
                next_word = time.monotonic() + 1.0
                self._publish_state()
            self._publish_events()
            self._wait()
        self._conclude(problem)
        self._close()

    def _abandon(self) -> None:
        _log.info("told to leave: the training goes on without a supervisor")
        self._recorder.close()
        for kind in ("pub", "cmd"):
            Path(self._directory.address("supervisor", kind).removeprefix("ipc://")).unlink(missing_ok=True)
        self._directory.lock.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        self._deaths.close()
        self._orders.close(self._run)
        self._pub.close()

    def _spawn(self) -> str | None:
        run = self._run
        environment = {
            **os.environ,
            **run.environment,
            MARKER: run.run_id,
            DIRECTORY_VARIABLE: str(self._directory.path),
            "PYTHONUNBUFFERED": "1",
        }
        try:
            with self._directory.torchrun_log.open("ab") as log:
                self._torchrun = subprocess.Popen(
                    run.command,
                    cwd=run.cwd or None,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            return f"torchrun could not be started: {error}"
        self._write(torchrun=identify(self._torchrun.pid))
        self._say(f"torchrun started (pid {self._torchrun.pid})")
        return None

    def _is_over(self) -> bool:
        assert self._torchrun is not None
        if self._orders.killed_by is not None:
            self._exit_code = self._torchrun.poll()
            return not self._orders.ending
        if self._exit_code is None:
            self._exit_code = self._torchrun.poll()
            if self._exit_code is None:
                return False
            if self._exit_code < 0 and (orphans := self._living()):
                self._say(f"torchrun is gone (signal {-self._exit_code}); ranks {orphans} go on without it", "error")
                self._publish_state()
        # Orphans are still a training; whatever outlives a torchrun that has ended by itself is not.
        return self._exit_code >= 0 or not self._living()

    def _living(self) -> list[int]:
        return [rank for rank, member in self._directory.members().items() if is_alive(member.process)]

    def _meet(self) -> None:
        if len(self._announced) >= self._run.world and self._deaths.alive():
            return
        for rank, member in self._directory.members().items():
            if not 0 <= rank < self._run.world:
                continue
            self._deaths.watch(rank, member.process)
            if rank not in self._announced:
                self._announced.add(rank)
                self._recorder.follow(member.pub)
                self._say(f"rank {rank} is up (pid {member.process.pid})")
        if self._state == "starting" and len(self._announced) == self._run.world:
            self._state = "running"
            self._write(state="running")
            self._publish_state()

    def _bury(self) -> None:
        members = self._directory.members() if (dead := self._deaths.read()) else {}
        for rank in dead:
            if self._orders.killed_by is not None or rank not in members:
                self._say(f"rank {rank} is gone", "info", rank)
            else:
                self._say(*cause.describe_end(members[rank]), rank)

    def _wait(self) -> None:
        poller = zmq.Poller()
        poller.register(self._orders.socket, zmq.POLLIN)
        for handle in self._deaths.handles():
            poller.register(handle, zmq.POLLIN)
        poller.poll(_TURN_WHILE_ENDING_MS if self._orders.ending else _TURN_MS)

    def _conclude(self, problem: str | None) -> None:
        self._meet()
        self._bury()
        if self._orders.killed_by is None:
            self._clear_up()
        else:
            self._say(self._orders.summary, "warning")
        judgement = self._judge(problem)
        if judgement.warning:
            self._say(judgement.warning, "warning")
        # The cause of a kill begins with "killed by", that of a stop with "stopped by".
        told = judgement.state if judgement.cause is None else f"{judgement.state}: {judgement.cause}"
        told = judgement.cause if judgement.state in ("killed", "stopped") and judgement.cause else told
        self._say(f"run {told}", "error" if judgement.state == "failed" else "info")
        self._state, self._exit_code, self._cause = judgement.state, judgement.exit_code, judgement.cause
        self._publish_events()
        self._recorder.add(self._word())
        self._recorder.close()
        # From the moment the record says that the run is over, its name may be taken again: whatever
        # is to be done in the directory comes before, whatever is to be said comes after.
        self._directory.remove_sockets()
        self._write(
            state=judgement.state,
            exit_code=judgement.exit_code,
            ended_at_ns=time.time_ns(),
            cause=judgement.cause,
            cause_rank=judgement.rank,
        )
        self._publish_state()

    def _clear_up(self) -> None:
        """End what the run has left behind, after a moment in which data workers go by themselves."""
        deadline = time.monotonic() + _TEARDOWN_S
        while processes.find(self._run, self._directory.members()):
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            left = processes.end(self._directory, self._run, self._run.grace_s, lambda line: self._say(line, "warning"))
            self._say(f"left behind by the run: {left.text}", "warning")
            return

    def _judge(self, problem: str | None) -> cause.Judgement:
        if problem is not None:
            return cause.Judgement("failed", 1, cause.clean(problem))
        judgement = cause.judge(
            self._run.world,
            self._directory.members(),
            self._exit_code,
            cause.tail(self._directory.torchrun_log),
            self._deaths.at_ns,
        )
        if self._orders.killed_by is not None:
            return cause.Judgement("killed", judgement.exit_code, f"killed by {self._orders.killed_by}")
        if judgement.rank is not None and (who := self._orders.ranks_killed_by.get(judgement.rank)):
            text = f"rank {judgement.rank} was killed by {who}"
            return cause.Judgement("failed", judgement.exit_code, text, judgement.rank)
        return judgement

    def _write(self, **changes: object) -> None:
        try:
            self._run = self._directory.update(**changes)
        except (OSError, RunDirError) as error:
            _log.error("run record: %s", error)

    def _word(self) -> wire.RunState:
        alive = self._torchrun is not None and self._torchrun.returncode is None
        return wire.RunState(
            at_ns=time.time_ns(),
            state=self._state,
            torchrun_pid=self._torchrun.pid if self._torchrun is not None and alive else None,
            exit_code=self._exit_code,
            cause=self._cause,
            refused=self._orders.refused + self._recorder.refused,
        )

    def _publish_state(self) -> None:
        self._pub.send_multipart([wire.TOPIC_RUN, wire.encode(self._word())])

    def _say(self, text: str, level: str = "info", rank: int | None = None) -> None:
        """Make an event; any thread may."""
        self._events.put(wire.Event(time.time_ns(), text, rank, level))

    def _publish_events(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                _log.log(logging.INFO if event.level == "info" else logging.WARNING, "%s", event.text)
                self._pub.send_multipart([wire.TOPIC_EVENT, wire.encode(event)])
                self._recorder.add(event)


def main() -> int:
    """Look after the run whose directory is the only argument."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    directory = RunDir(Path(sys.argv[1]))
    lock = os.open(directory.lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        _log.error("run %s has a supervisor already", directory.name)
        return 1
    run = directory.read()
    if run.state in ENDED_STATES or run.torchrun is not None:
        _log.error("run %s was started before", directory.name)
        return 1
    run = directory.update(supervisor=identify(os.getpid()))
    with zmq.Context() as context:
        supervisor = Supervisor(directory, run, context)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, supervisor.pass_on if run.on_term else supervisor.leave)
        supervisor.run()
    os.close(lock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
