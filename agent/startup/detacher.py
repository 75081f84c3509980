"""Runs a module as a program of its own that is no child of the process which asked for it.

    python -S …/agent/startup/detacher.py MODULE ARGS…

A rank asks for it, waits for this process alone, and must not wait for long: the fork comes before any import, and
`-S` spares this process the packages of the user.  The program is in a session of its own, has a low priority and
may run on every core: the rank may be bound to some, which are the training's.
"""

import os
import sys

NICENESS = 10

if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    import contextlib
    import resource
    import signal

    # Signals that the rank ignores or blocks, and the bound on memory of a tab of the dashboard, are theirs alone.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    os.setsid()
    starter = os.path.join(os.path.dirname(os.path.abspath(__file__)), "starter.py")
    os.execv(sys.executable, [sys.executable, starter, *sys.argv[1:]])
