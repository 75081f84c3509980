"""What is written down of a run and of each of its ranks, and the bounds of what is believed when it is read.

Whoever may write into a run directory may write anything: numbers are bounded where they are decoded, so
that nothing further in has to fear them.  Knows no paths.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

from ddptop.agent.run.identity import Process
from ddptop.agent.text import clean_line
from ddptop.agent.wire import MOST_RANKS as MOST_RANKS
from ddptop.agent.wire import Rank
from ddptop.agent.wire.incoming import Label, Line, Lines, Name, Verbatim, cleaned

RUN_BYTES: Final = 512 << 20
"""Room of a run on the disk, its logs included, where nobody says otherwise."""
ALL_BYTES: Final = 4 << 30
"""Room of all runs of a user together, where nobody says otherwise."""

_World = Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
_Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Steps, or nanoseconds since the epoch: what 63 bits hold."""
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Code = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 32)]
_User = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
_Error = Annotated[str, msgspec.Meta(extra={"limit": 2048})]
"""As long as the agent writes it; see `agent.rank.account`."""
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]

Record = TypeVar("Record")


def decode(content: bytes, kind: type[Record]) -> Record:
    """Return the record that a file holds, its text clean.

    Raises:
        ValueError: it holds none, one line.
    """
    try:
        return cleaned(msgspec.json.decode(content, type=kind))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ValueError(clean_line(str(error), 200)) from error


class Ended(msgspec.Struct, frozen=True):
    """How one rank ended, by its own account; a rank that was killed leaves none."""

    at_ns: _Whole
    exit_code: _Code | None
    """None: not known to the rank, which was started by another process of the script; that one is told."""
    error: _Error | None = None
    """Type and message of the exception that ended the script, one line."""
    traceback: Lines | None = None
    stopped_by: Label | None = None
    """Who asked for its end at a step boundary, where it ended because of that."""
    step: _Whole | None = None
    """Steps it had completed."""
    pid: int | None = None
    """Which process has written this: a child of the rank must not speak for it. None: an agent that does not say."""


class Member(msgspec.Struct, frozen=True):
    """One rank of a run, written by its own agent."""

    rank: Rank
    local_rank: Rank
    world: _World
    process: Process
    host: Label
    generation: _Count
    pub: Verbatim
    """Address of the PUB socket, `ipc://…`. Kept for older readers: whoever connects computes it."""
    cmd: Verbatim
    """Address of the ROUTER socket; the same holds."""
    log: Verbatim | None
    """File with the rank's output, or None where it goes to the terminal that started the run."""
    ended: Ended | None = None


def own_word(member: Member) -> Member:
    """Return the member without an end that another process wrote: a child of the rank does not speak for it."""
    if member.ended is None or member.ended.pid in (None, member.process.pid):
        return member
    return msgspec.structs.replace(member, ended=None)


ENGINE: Final = "torch.distributed.run"
"""The module that torchrun is."""


class Run(msgspec.Struct, frozen=True):
    """A run: what was asked for, who looks after it, how it ended."""

    run: Name
    run_id: Label
    program: Verbatim
    """Catalogue name, script path or `-m module`, as the user gave it."""
    arguments: tuple[Verbatim, ...]
    """The program's own arguments; like command and environment with a mask for each secret (`masking.whole`)."""
    world: _World
    backend: Name | None
    device: Name | None
    created_at_ns: _Whole
    launched: bool
    """True for `ddptop launch`, False for a job started by hand under the agent."""
    cwd: Verbatim = ""
    command: tuple[Verbatim, ...] = ()
    """The torchrun command line that the supervisor starts."""
    environment: dict[Verbatim, Verbatim] = {}
    """What the launch adds to the environment of the ranks."""
    placement: Line = ""
    """One line on why this device and backend were chosen."""
    injected: Line = ""
    """Faults put into this run on purpose, one line; empty for an honest run."""
    grace_s: _Seconds = 5.0
    on_term: Name = ""
    """What a TERM from outside leads to: `checkpoint`, and then a stop; empty for what it always does."""
    supervisor: Process | None = None
    torchrun: Process | None = None
    state: Name = "starting"
    """Of `starting`, `running`, `finished`, `stopped`, `failed`, `killed`, `lost`; an observer may know better."""
    exit_code: _Code | None = None
    ended_at_ns: _Whole | None = None
    cause: Line | None = None
    """The first cause of a failure, one line."""
    cause_rank: Rank | None = None
    max_restarts: _Count = 0
    """How often torchrun starts the group anew when it fails."""
    owner: _User | None = None
    """User whose run it is: a process of anybody else is none of it, whatever its environment says."""
    killed_by: Label | None = None
    """Who asked for its end, so that another supervisor goes on with that."""
    run_bytes: _Bytes = RUN_BYTES
    """Room that it may take on the disk: its recording is thinned, and its logs are cut, to fit in."""
    all_bytes: _Bytes = ALL_BYTES
    """Room of all runs of its owner together: where they take more, the oldest ended ones are removed."""
    guessed: bool | None = None
    """True where nobody has said how many ranks it has, and `world` is what is usual on its machine; None where an
    older version did not note it."""

    @property
    def leader(self) -> str:
        """What the process that starts the ranks is called: torchrun, or the program where it spawns them itself."""
        return "torchrun" if not self.command or ENGINE in self.command else "the program"
