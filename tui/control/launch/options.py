"""The options of a launch, each described once, and the request that they make up.

From `OPTIONS` come the arguments of `ddptop launch` and the manual's table of them, the fields of the form, what it
remembers, and the command line that it shows.  `checks` says what a value needs to work, `launch` acts on it.

Every verb of the command line loads this page, so that it needs little: dataclasses alone would take longer to load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

MOST_RESTARTS: Final = 1000
MOST_GRACE_S: Final = 3600.0


class Request(NamedTuple):
    """What the user asked to launch."""

    program: str
    """Catalogue name, path of a script, or module."""
    as_module: bool = False
    arguments: tuple[str, ...] = ()
    who: str = "somebody"
    """Who asks, for the run's event list."""
    world: int | None = None
    backend: str | None = None
    start: str = "torchrun"
    """Who starts the ranks: `torchrun`, or `spawn` for the program itself."""
    name: str | None = None
    grace: float = 5.0
    """Seconds between TERM and KILL."""
    on_term: str = ""
    """What a TERM from outside leads to: `checkpoint`, and then a stop; empty for what it always does."""
    max_restarts: int = 0
    """How often torchrun starts all ranks anew when one has failed."""
    inject: tuple[str, ...] = ()
    """Faults to put into the ranks, as `agent.run.injection` reads them."""
    environment: tuple[str, ...] = ()
    """What the ranks' environment gets on top, each `KEY=VALUE`, or `KEY` to take the value from ours."""


class LaunchOption(NamedTuple):
    """One option, in the words of the command line and in the shorter ones of the form."""

    key: str
    """Its field of `Request`, which has its default; what it is called in the form and in what that remembers."""
    flag: str
    title: str
    """Stands before its field."""
    help: str
    """For the command line and the manual."""
    note: str = ""
    """Stands beside its field; empty where `help` is short enough."""
    unset: str = ""
    """What it means to leave it out, in words; empty where the default says it."""
    unchosen: str = ""
    """The choice in the form that leaves it out, where `unset` is too long for that."""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """Choices that are taken only to say why they cannot be had; the form does not offer them."""
    read: Callable[[str], Any] = str
    """Returns what one text means; a ValueError says what it should be, with the flag or the field beside it."""

    @property
    def default(self) -> Any:
        """Return what its field of a request is where nothing is said."""
        return Request._field_defaults[self.key]

    @property
    def repeats(self) -> bool:
        """Say whether it may be given more than once."""
        return isinstance(self.default, tuple)

    @property
    def offered(self) -> tuple[str, ...]:
        """Return the choices that can be had."""
        return tuple(choice for choice in self.choices if choice not in self.refused)

    @property
    def usual(self) -> str:
        """Return in words what it means to leave it out; empty where that is nothing."""
        number = isinstance(self.default, int | float)
        return self.unset or (f"{self.default:g}" if number else str(self.default or ""))


def _ranks(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError("a whole number of ranks")
    return int(text)


def _grace(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_GRACE_S:
        raise ValueError(f"seconds, from 0 to {MOST_GRACE_S:g}")
    return seconds


def _restarts(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > MOST_RESTARTS:
        raise ValueError(f"a number of restarts is 0 to {MOST_RESTARTS}")
    return int(text)


OPTIONS: Final = (
    LaunchOption(
        "world", "--world", "ranks", "number of ranks", "how many",
        unset="one for each GPU, else 2",
        metavar="N",
        read=_ranks,
    ),
    LaunchOption(
        "backend", "--backend", "backend",
        "backend of torch.distributed",
        "by itself nccl with a GPU for each rank, else gloo",
        unset="nccl with a GPU for each rank, else gloo",
        unchosen="by itself",
        choices=("gloo", "nccl", "mpi"),
        refused=("mpi",),
    ),
    LaunchOption(
        "start", "--start", "started by",
        "who starts the ranks: torchrun, or the program itself by torch.multiprocessing",
        choices=("torchrun", "spawn"),
    ),
    LaunchOption("name", "--name", "name", "name of the run", "of the run", unset="program and 4 digits"),
    LaunchOption("grace", "--grace", "grace", "seconds between TERM and KILL", metavar="S", read=_grace),
    LaunchOption(
        "on_term", "--on-term", "at a TERM",
        "what a TERM from outside (a scheduler that needs the machine) leads to: all ranks save a checkpoint at "
        "the same step, where the script has said how, and end there",
        "from outside, as a scheduler sends it: end at once, or save at the same step and end",
        unchosen="end",
        choices=("checkpoint",),
    ),
    LaunchOption(
        "max_restarts", "--max-restarts", "restarts",
        "start all ranks anew when one has failed, N times at most",
        "how often all start anew when a rank fails",
        metavar="N",
        read=_restarts,
    ),
    LaunchOption(
        "inject", "--inject", "faults",
        "put a fault into a rank, to see what it looks like: rank=2,phase=backward,ms=30[,every=K][,from=STEP] "
        "with phase data, forward, backward, optimizer or comm, or rank=1,crash[,from=STEP], "
        "as well hang, nan, skip-collective",
        "put in on purpose: rank=1,phase=data,ms=30; spaces between",
        metavar="FAULT",
    ),
    LaunchOption(
        "environment", "--env", "environment",
        "put this into the environment of the ranks, the value that KEY has here where none is given (so that a "
        "secret stands on no command line)",
        "KEY=VALUE, or KEY for its value here, spaces between, as in a shell",
        metavar="KEY[=VALUE]",
    ),
)  # fmt: skip
"""In the order in which they are shown everywhere."""
