"""The observer: one process per run, detached from every terminal, which owns torchrun where ddptop launched the run.

It publishes the run's state, notices the ends of ranks, records, and carries out `wire.Kill`.  The training does not
depend on it: torchrun and the ranks write to files, are in a session of their own, and go on when this process ends,
however it ends.  Another observer then takes over (`takeover`), and finds all but torchrun's exit status in the run
directory; a lock excludes a second one.  A job that something else launched is only watched, unless it is to be ended.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

import zmq

from ddptop.agent.observer.one_run import Observer
from ddptop.agent.run.files import marks
from ddptop.agent.run.files.private import Claim
from ddptop.agent.run.rundir import RunDir, RunDirError, identify
from ddptop.agent.text import clean
from ddptop.agent.wire.frames import ENDED

_log = logging.getLogger("ddptop.observer")


def main() -> int:
    """Look after the run whose directory is the only argument."""
    _begin_log()
    directory = RunDir(Path(sys.argv[1]))
    try:
        claim = Claim.acquire(marks.owned_folder(directory.path))
        if claim is None:
            _log.info("run %s has an observer already", directory.name)
            return 0
        before = directory.read()
        if before.state in ENDED:
            _log.info("run %s is over", directory.name)
            claim.release()
            return 0
        run = directory.update(observer=identify(os.getpid()))
    except (OSError, RunDirError) as problem:
        # Where not even this can be written, nothing can be recorded.
        _log.error("run %s: %s", directory.name, problem)
        return 1
    with zmq.Context() as context:
        observer = Observer(directory, run, context, claim)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, observer.pass_on if run.on_term else observer.leave)
        observer.run(before if before.observer is not None else None)
        if observer.is_stuck:
            # To close the sockets of a thread that still uses them may abort the process.
            logging.shutdown()
            os._exit(0)
    return 0


class CleanFormatter(logging.Formatter):
    """Removes escape sequences and control characters from the log."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the clean lines of a record."""
        return "\n".join(map(clean, super().format(record).splitlines()))


def _begin_log() -> None:
    """Send what is logged to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(CleanFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
