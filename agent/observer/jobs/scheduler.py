"""A scheduler that has given this machine to a run: when it takes it back, and the task of its that the run belongs to.

The scheduler is never waited for, and asked rarely: on a cluster it answers thousands.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ddptop.agent import wire
from ddptop.agent.launcher.slurm import JOB
from ddptop.agent.observer.hosts.elsewhere import EACH_HOST
from ddptop.agent.observer.service.requests import Requests
from ddptop.agent.run import identity
from ddptop.agent.run.identity import Process, is_alive
from ddptop.agent.run.records import Member, Run

_END: Final = "SLURM_JOB_END_TIME"
"""Seconds since the epoch, from Slurm 23.02 on."""
_ANSWER_BYTES: Final = 64
_PATIENCE_S: Final = 20.0
_AGAIN_S: Final = 1800.0
"""Seconds between two questions: an operator may have changed the limit of the job."""
_RETRY_S: Final = 60.0
_MOST_FAILURES: Final = 3
_LEFT: Final = re.compile(r"(?:(\d{1,5})-)?(?:(\d{1,5}):)?(\d{1,2}):(\d{2})")
"""`days-hours:minutes:seconds`, as squeue prints the time that is left."""
_ENDLESS: Final = frozenset({"UNLIMITED", "NOT_SET"})
"""The words of squeue for no limit."""


def environment_of(process: Process | None) -> dict[str, str]:
    """Return what its scheduler has told a process; nothing where that cannot be read."""
    if process is None:
        return {}
    return {name: value for name in (JOB, _END) if (value := identity.variable(process.pid, name))}


def seconds_left(text: str) -> float | None:
    """Return the seconds in an answer of squeue; None where there is no limit.

    Raises:
        ValueError: it is no sound answer.
    """
    if text.strip() in _ENDLESS:
        return None
    found = _LEFT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"squeue's answer is {text!r:.80}")
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return float(86400 * days + 3600 * hours + 60 * minutes + seconds)


class Allocation:
    """Finds when the allocation of a run ends, without ever waiting for the scheduler."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.ends_at_ns: int | None = None
        """None: no scheduler, no limit, or not known yet."""
        self._clock = clock
        self._job: str | None = None
        self._question: subprocess.Popen[bytes] | None = None
        self._due = 0.0
        self._failures = 0

    def turn(self, environment: Callable[[], Mapping[str, str]]) -> None:
        """Take a step; `environment` returns that of the run's processes, which is asked for until it names a job."""
        now = self._clock()
        if self._question is not None:
            self._hear(now)
        elif now >= self._due:
            self._ask(environment(), now)

    def close(self) -> None:
        """End a question that is still open."""
        if self._question is not None:
            self._question.kill()
            self._question.wait()
            self._forget_question()

    def _ask(self, environment: Mapping[str, str], now: float) -> None:
        self._due = now + _RETRY_S if self._job else now + 1.0
        if self._job is None:
            self._job = environment.get(JOB)
            end = environment.get(_END, "")
            if end.isascii() and end.isdecimal() and len(end) < 12:
                self.ends_at_ns, self._due = int(end) * 10**9, float("inf")
                return
        if self._job is None:
            return
        if not re.fullmatch(r"\d{1,10}", self._job):
            self._due = float("inf")
            return
        try:
            # A pipe holds more than the answer, so that it is read when squeue has ended, without a wait.
            self._question = subprocess.Popen(
                ["squeue", "--noheader", f"--jobs={self._job}", "--format=%L"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert self._question.stdout is not None
            os.set_blocking(self._question.stdout.fileno(), False)
        except (FileNotFoundError, PermissionError):
            # No Slurm beside this Python, as in a container.
            self._due = float("inf")
        except OSError:
            # No descriptors or processes left.
            self._fail(now)
        else:
            self._due = now + _PATIENCE_S

    def _hear(self, now: float) -> None:
        assert self._question is not None
        assert self._question.stdout is not None
        # Not the exit status: the main thread may have read that in the place of this object, as of any child.
        if self._question.poll() is None:
            if now > self._due:
                self.close()
                self._fail(now)
            return
        text = (self._question.stdout.read(_ANSWER_BYTES) or b"").decode("ascii", "replace")
        self._forget_question()
        try:
            left = seconds_left(text)
        except ValueError:
            self._fail(now)
            return
        self.ends_at_ns = None if left is None else int((now + left) * 1e9)
        self._failures, self._due = 0, now + _AGAIN_S

    def _forget_question(self) -> None:
        if self._question is not None and self._question.stdout is not None:
            self._question.stdout.close()
        self._question = None

    def _fail(self, now: float) -> None:
        """Ask again soon; what is known of the end stays."""
        self._failures += 1
        later = float("inf") if self.ends_at_ns is None else now + _AGAIN_S
        self._due = now + _RETRY_S if self._failures < _MOST_FAILURES else later


class Scheduler:
    """The scheduler of a run on this host: the end of its allocation, and its wish to end the run."""

    def __init__(self, run: Run, requests: Requests) -> None:
        """Prepare; `requests` take the command that ends the run on this host."""
        self._run = run
        self._requests = requests
        self._allocation = Allocation()
        self._told_to_end = False
        self._asked = False

    @property
    def ends_at_ns(self) -> int | None:
        """When the allocation ends; None where there is none, or its end is not known."""
        return self._allocation.ends_at_ns

    def end(self) -> bool:
        """Take note of a SIGTERM to this process; say whether the run has to end because of it."""
        self._told_to_end = self._run.holder is not None
        return self._told_to_end

    def turn(self, members: Iterable[Member]) -> None:
        """Take a step; ask for the end of the run, once, where it has to end."""
        self._allocation.turn(lambda: _environment(members))
        if not self._asked and (who := self._who()):
            self._asked = True
            self._requests.put(EACH_HOST, wire.Kill(0, self._run.grace_s, who=who))

    def _who(self) -> str:
        if self._told_to_end:
            return "a SIGTERM from outside"
        holder = self._run.holder
        if holder is None or is_alive(holder):
            return ""
        return f"the end of process {holder.pid}, to which it belongs"

    def close(self) -> None:
        """End what is still being asked."""
        self._allocation.close()


def _environment(members: Iterable[Member]) -> Mapping[str, str]:
    """Return the scheduler's variables: an observer that an agent has started has none of its own."""
    if JOB in os.environ:
        return os.environ
    return environment_of(next((member.process for member in members), None))
