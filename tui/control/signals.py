"""The signals of this platform: names as users write them, what they do, and what to be warned of."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Final

FIRST: Final = ("SIGTERM", "SIGKILL", "SIGINT", "SIGSTOP", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT")
"""What a menu shows first; the others follow by number."""

_STOPPING: Final = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_OWN: Final = {
    "SIGUSR1": "whatever the script does on it; ends a program that does nothing",
    "SIGUSR2": "whatever the script does on it; ends a program that does nothing",
    "SIGTERM": "asks to end in order",
    "SIGKILL": "ends at once; cannot be handled",
    "SIGINT": "what ctrl+c sends",
    "SIGSTOP": "stops where it stands; cannot be handled",
    "SIGCONT": "resumes what is stopped",
}


def name(number: int) -> str:
    """Return the name of a signal, `SIGRTMIN+3` for one without a name of its own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        first = getattr(signal, "SIGRTMIN", None)
        return f"SIGRTMIN+{number - first}" if first is not None and number > first else f"signal {number}"


def every() -> list[int]:
    """Return the numbers of all signals of this platform, the usual ones first."""
    numbers: Iterable[int] = (int(number) for number in signal.valid_signals())
    rank = {name: place for place, name in enumerate(FIRST)}
    return sorted(numbers, key=lambda number: (rank.get(name(number), len(FIRST)), number))


def describe(number: int) -> str:
    """Return what a signal means, in a few words."""
    return _OWN.get(name(number)) or signal.strsignal(number) or "real-time signal"


def parse(text: str) -> int:
    """Return the number of a signal given as `TERM`, `SIGTERM`, `sigrtmin+3` or `15`.

    Raises:
        ValueError: this platform has none of that name.
    """
    wanted = text.strip().upper()
    for number in every():
        if wanted in (str(number), name(number), name(number).removeprefix("SIG")):
            return number
    raise ValueError(f"no signal {text!r} on this platform; such as TERM, KILL, INT, STOP, CONT, USR1, or a number")


def warning(number: int, world: int, timeout_s: float | None = None, pause: str = "`ddptop pause`") -> str | None:
    """Return what to know before a signal is sent to a rank of a group, None where there is nothing.

    `pause` is how the user pauses a run: by a key, or by the shell.
    """
    if number not in _STOPPING or world < 2:
        return None
    limit = "30 min with gloo, 10 min with NCCL, where the script set none" if timeout_s is None else f"{timeout_s:g} s"
    return (
        f"A stopped rank comes to no collective: the others wait for it, and fail after the collective timeout "
        f"({limit}). SIGCONT resumes it; a pause ({pause}) holds the group without that risk."
    )
