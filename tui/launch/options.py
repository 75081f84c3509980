"""The options of a launch, each described once.

From `OPTIONS` come the arguments of `ddptop launch` and the manual's table of them, the fields of the form, what it
remembers, and the command line that it shows.  `checks` says what a value needs to work, `launch` acts on it.

Every verb of the command line loads this page, so that it needs little: dataclasses alone would take longer to load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ddptop.agent.client.start.request import Request, how_often

AS_MODULE: Final = "-m"
"""Stands before the name of a module, as for `python`."""
_MOST_SECONDS: Final = 3600.0


class LaunchOption(NamedTuple):
    """One option, in the words of the command line and in the shorter ones of the form."""

    key: str
    """Its field of `Request`, with its default; its name in the form and in what that remembers."""
    flag: str
    title: str
    """Stands before its field."""
    help: str
    """For the command line and the manual."""
    note: str = ""
    """Stands beside its field; empty where `help` is short enough."""
    unset: str = ""
    """Meaning of leaving it out, in words; empty where the default says it."""
    unchosen: str = ""
    """The choice in the form that leaves it out, where `unset` is none or too long."""
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


def whole(meaning: str, most: float = float("inf")) -> Callable[[str], int]:
    """Return a function that reads a number of at most `most`; for other texts its ValueError says the meaning."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) > most:
            raise ValueError(meaning)
        return int(text)

    return read


def seconds(text: str) -> float:
    """Return the number of seconds that a text says; a ValueError tells the bounds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _MOST_SECONDS:
        raise ValueError(f"seconds, from 0 to {_MOST_SECONDS:g}")
    return value


def _hosts(text: str) -> str:
    numbers = text.split(":")
    if len(numbers) > 2 or not all(each.isascii() and each.isdecimal() and len(each) < 6 for each in numbers):
        raise ValueError("a number of hosts, or the least and the most of them, like 1:4")
    if not 0 < int(numbers[0]) <= int(numbers[-1]):
        raise ValueError("at least 1 host, and the least before the most")
    return ":".join(str(int(each)) for each in numbers)


def _ident(text: str) -> str:
    if not text.isprintable() or text != text.strip() or len(text) > 200:
        raise ValueError("a text of at most 200 letters")
    return text


OPTIONS: Final = (
    LaunchOption(
        "world", "--world", "ranks", "number of ranks", "how many",
        unset="one for each GPU, else 2", metavar="N", read=whole("a whole number of ranks"),
    ),
    LaunchOption(
        "backend", "--backend", "backend", "backend of torch.distributed",
        "auto: nccl with a GPU for each rank, else gloo",
        unset="nccl with a GPU for each rank, else gloo", unchosen="auto",
        choices=("gloo", "nccl", "mpi"), refused=("mpi",),
    ),
    LaunchOption(
        "start", "--start", "started by",
        "who starts the ranks: torchrun, or the program itself by torch.multiprocessing",
        choices=("torchrun", "spawn"),
    ),
    LaunchOption("name", "--name", "name", "name of the run", "of the run", unset="program and 4 digits"),
    LaunchOption("grace", "--grace", "grace", "seconds from SIGTERM to SIGKILL", metavar="S", read=seconds),
    LaunchOption(
        "on_term", "--on-term", "on SIGTERM",
        "what happens on SIGTERM from outside (a scheduler that needs the machine): all ranks save a checkpoint at "
        "the same step with the checkpoint function of the script, and end there",
        "from outside, as a scheduler sends it: end at once, or save at the same step and end",
        unchosen="end", choices=("checkpoint",),
    ),
    LaunchOption(
        "max_restarts", "--max-restarts", "restarts",
        "restart all ranks when one has failed, at most N times", "how many times all ranks may restart",
        metavar="N", read=whole("a number of restarts, from 0 to 1000", most=1000),
    ),
    LaunchOption(
        "inject", "--inject", "faults",
        "put a fault into a rank, to see what it looks like: rank=2,phase=backward,ms=30[,every=K][,from=STEP] "
        "with phase data, forward, backward, optimizer or comm, and ms=100% for as long as a step; or "
        "rank=1,crash[,from=STEP], "
        "as well hang, nan, skip-collective",
        "to inject: rank=1,phase=data,ms=30; spaces between", metavar="FAULT",
    ),
    LaunchOption(
        "check_parameters", "--check-parameters", "parameters",
        "compare the parameters of the ranks every K steps, by checksums, and tell which rank's have diverged; with "
        ",buffers=NAMES also the buffers of these names: 100,buffers=*.running_*",
        "compared every so many steps; buffers too: 100,buffers=*.running_*",
        unset="only on request", metavar="K[,buffers=NAMES]", read=how_often,
    ),
    LaunchOption(
        "environment", "--env", "environment",
        "put this into the environment of the ranks, the value that KEY has here where none is given (so that a "
        "secret stands on no command line)",
        "KEY=VALUE, or KEY for its value here, spaces between, as in a shell", metavar="KEY[=VALUE]",
    ),
    LaunchOption(
        "nproc_per_node", "--nproc-per-node", "ranks a host", "number of ranks on this host, and on each other one",
        unset="--world divided by the hosts", metavar="M",
        read=whole("a whole number of ranks", most=65536),
    ),
    LaunchOption(
        "nnodes", "--nnodes", "hosts",
        "number of hosts, each of which gives the same command; or the least and the most of them: 1:4",
        unset="this one", metavar="N", read=_hosts,
    ),
    LaunchOption(
        "rdzv_endpoint", "--rdzv-endpoint", "rendezvous address",
        "with --nnodes: the host at which all meet, one of them, and a port that is free there",
        metavar="HOST:PORT",
    ),
    LaunchOption(
        "rdzv_id", "--rdzv-id", "rendezvous ID",
        "with --nnodes: a text that these hosts have in common and others at the same endpoint have not, such as the "
        "number of a job; the run has its name from it",
        "text that they have in common, such as a job's number", metavar="ID", read=_ident,
    ),
    LaunchOption(
        "node_rank", "--node-rank", "host number",
        "with --nnodes: number of this host, from 0, where the first ranks are to be on the host of the endpoint, "
        "which is number 0",
        "from 0, the endpoint's host; else they number themselves",
        unset="the hosts number themselves", metavar="K", read=whole("a number of a host, from 0", most=65535),
    ),
)  # fmt: skip
"""In the order in which they are shown everywhere."""


def line(request: Request) -> tuple[str, ...]:
    """Return the words of `ddptop` that ask for a request, as lines of text."""
    words = ["launch", "--plain"]
    for option in OPTIONS:
        value = getattr(request, option.key)
        if value != option.default:
            given = value if option.repeats else (value,)
            # In one word each: a value may begin with a dash.
            words += [f"{option.flag}={each}" for each in given]
    words += [AS_MODULE, request.program] if request.as_module else [request.program]
    return (*words, *(("--", *request.arguments) if request.arguments else ()))
