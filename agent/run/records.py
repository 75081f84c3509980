"""The record of a run and the record of each of its ranks, with the bounds of their fields.

Any process that can write into a run directory can write anything: numbers are bounded where they are decoded, so
that no other code has to check them.  This module knows no paths.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

from ddptop.agent.run.files import decoding
from ddptop.agent.run.identity import Process
from ddptop.agent.text import clean_line
from ddptop.agent.wire import MOST_RANKS as MOST_RANKS
from ddptop.agent.wire import GroupCalls, Rank
from ddptop.agent.wire.incoming import Label, Line, Lines, Name, Verbatim, cleaned

RUN_BYTES: Final = 512 << 20
"""Default bound on the bytes of a run on disk, its logs included."""
ALL_BYTES: Final = 4 << 30
"""Default bound on the bytes of all runs of a user together."""

_World = Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
_Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Steps, or nanoseconds since the epoch, in 63 bits."""
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Code = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 32)]
_User = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
_Error = Annotated[str, msgspec.Meta(extra={"limit": 2048})]
"""The bound is that of the agent, which writes the text; see `agent.rank.process.account`."""
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]

Record = TypeVar("Record")


def decode(content: bytes, kind: type[Record]) -> Record:
    """Return the record in the content of a file, with its text cleaned.

    Raises:
        ValueError: there is none; its message is one line.
    """
    try:
        return cleaned(decoding.of(kind).decode(content))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ValueError(clean_line(str(error), 200)) from error


class Ended(msgspec.Struct, frozen=True):
    """The end of one rank, as the rank itself reports it; a rank that was killed reports none."""

    at_ns: _Whole
    exit_code: _Code | None
    """None: the rank does not know it, because another process of the script started it and waits for it."""
    error: _Error | None = None
    """Type and message of the exception that ended the script, one line."""
    traceback: Lines | None = None
    stopped_by: Label | None = None
    """Author of the stop, where the script ended at a step boundary because of one."""
    step: _Whole | None = None
    """Steps that the rank had completed."""
    pid: int | None = None
    """The process that wrote this, which may be a child of the rank. None: an agent of an older version."""
    awaits: Line = ""
    """The thing that its interpreter waits for before the process ends: `thread uploader (train.py:9)`."""
    left_at: Line = ""
    """The user's line of the exception or the `sys.exit` that ended the script: `train.py:9 main`."""
    calls: GroupCalls | None = None
    """The newest collectives of a rank that failed, of the group that it called last. None: it called none."""


class Member(msgspec.Struct, frozen=True):
    """One rank of a run, written by its own agent, or by the observer where it has none."""

    rank: Rank
    local_rank: Rank
    world: _World
    process: Process
    host: Label
    generation: _Count
    pub: Verbatim
    """Address of the PUB socket, `ipc://…`, for readers of older versions; others use `RunDir.address`."""
    cmd: Verbatim
    """Address of the ROUTER socket, likewise."""
    log: Verbatim | None
    """File with the rank's output, or None where it goes to the terminal that started the run."""
    ended: Ended | None = None
    log_begin: _Whole = 0
    """Bytes that its log had before this process: they are of earlier starts of the group."""
    by_agent: bool = True
    """False where the observer has written this of a rank without an agent: `pub` and `cmd` are empty then, and `log`
    is the file that the rank's own output goes to."""
    joined: bool = False
    """True where its agent has come in the middle of its training: `log` is as it was before."""
    steps: _Whole = 0
    """Steps that its agent had counted when it left: it counts on from there, should it join again."""


def without_end_by_others(member: Member) -> Member:
    """Return the member without its end, where another process, such as a child of the rank, wrote that."""
    if member.ended is None or member.ended.pid in (None, member.process.pid):
        return member
    return msgspec.structs.replace(member, ended=None)


TORCHRUN: Final = "torch.distributed.run"
"""The module that torchrun runs."""


_STARTERS: Final = TORCHRUN, "torchrun", "accelerate", "deepspeed"


class Run(msgspec.Struct, frozen=True):
    """A run: its launch options, its observer and torchrun, its state and end."""

    run: Name
    run_id: Label
    program: Verbatim
    """Catalogue name, script path or `-m module`, as the user gave it."""
    arguments: tuple[Verbatim, ...]
    """Arguments of the program. In these, in `command` and in `environment` secrets are masked; see `masking.whole`."""
    world: _World
    backend: Name | None
    device: Name | None
    created_at_ns: _Whole
    launched: bool
    """True for `ddptop launch`, False for a job started by hand under the agent."""
    cwd: Verbatim = ""
    command: tuple[Verbatim, ...] = ()
    """The torchrun command line that the observer starts; empty for a job started by hand."""
    environment: dict[Verbatim, Verbatim] = {}
    """Variables that the launch adds to the environment of the ranks."""
    placement: Line = ""
    """The reason for the choice of device and backend, one line."""
    injected: Line = ""
    """Faults that were put into this run on purpose, one line; empty where there are none."""
    grace_s: _Seconds = 5.0
    on_term: Name = ""
    """Reaction to a SIGTERM from outside: `checkpoint` saves one and stops; empty leaves the reaction to the script."""
    observer: Process | None = None
    torchrun: Process | None = None
    """The process that starts the ranks; of a job started by hand the torchrun of this host, None without one."""
    starter: Process | None = None
    """A script that has started the ranks of a job that nobody prepared, and may start other jobs, too."""
    state: Name = "starting"
    """One of `starting`, `running`, `finished`, `stopped`, `failed`, `killed`, `lost`; out of date where the observer
    has died."""
    exit_code: _Code | None = None
    ended_at_ns: _Whole | None = None
    cause: Line | None = None
    """The first cause of a failure, one line."""
    cause_rank: Rank | None = None
    max_restarts: _Count = 0
    """How often torchrun restarts the group after a failure."""
    owner: _User | None = None
    """User of the run: a process of another user does not belong to it, whatever its environment says."""
    killed_by: Label | None = None
    """Author of a kill, so that an observer that takes over completes it."""
    action: Line = ""
    """The action under way and its author, so that an observer that takes over says what came of it."""
    run_bytes: _Bytes = RUN_BYTES
    """Bound on its bytes on disk: its recording leaves out old steps and its logs are cut to fit."""
    all_bytes: _Bytes = ALL_BYTES
    """Bound on the bytes of all runs of its owner: beyond it, the oldest ended runs are removed."""
    guessed: bool | None = None
    """True where the launch did not name the number of ranks, so that `world` is a default of its machine; None in
    records of older versions."""
    local_world: _World | None = None
    """Its ranks on this host, `world` being that of all hosts; None of a run that was launched on one host, and where
    nobody has told."""
    cause_kind: Name = ""
    """The kind of failure, such as `host_memory`; empty where it is none, and in records of older versions."""
    nodes: _Count | None = None
    """Hosts of the run, where its launcher has given their number."""
    node: _Count | None = None
    """Number of this host among them, from 0, likewise."""
    holder: Process | None = None
    """The process whose end ends the run on this host, such as the task of a scheduler; None for most runs."""
    removed: _Count = 0
    """Ended runs that its launch removed to make room."""
    resumes: bool = False
    """True where its program goes on from a checkpoint with `--resume`, by the catalogue of programs."""
    launched_by: Label = ""
    """The author of its launch, for its first event; empty where ddptop did not launch it."""
    removal: Line = ""
    """The ended runs that its launch removed, in one line for an event; empty where there were none."""
    outside: bool = False
    """True where nobody prepared its ranks: they are seen from outside."""
    marks: dict[Verbatim, Verbatim] = {}
    """Variables, with the values that all processes of such a job, and no others, have in their environment, or with a
    folder that ends in `/` and has all their paths; empty where they are known by descent alone."""
    known: tuple[Process, ...] = ()
    """Processes that were seen as those of such a job, so that one that has lost its parent is still found."""
    commit: Label = ""
    """The git commit of the folder of its script, or of its module's; empty where there is none, or it is not known."""
    dirty: bool | None = None
    """True where files of that folder differed from the commit at the launch; None where that is not known."""

    @property
    def spans_hosts(self) -> bool:
        """True where ddptop launched it to meet other hosts, also while it has only the ranks of this one."""
        return self.launched and self.local_world is not None

    @property
    def leader(self) -> str:
        """Name of the process that starts the ranks: torchrun, or the program where it spawns them itself."""
        if not self.launched and self.torchrun is None:
            return "its launcher"
        if self.outside:
            starter = next((name for name in _STARTERS if any(name in word for word in self.command)), "the program")
            return "torchrun" if starter == TORCHRUN else starter
        return "torchrun" if not self.command or TORCHRUN in self.command else "the program"
