"""What the observers of a run on several hosts say to each other, and to onlookers, about the hosts.

The observer on the host of rank 0 is the *head*; every other one is a *branch*, with one connection to it, the *link*.
"""

# Without `annotations` from `__future__`, each of which msgspec would compile: every command and rank waits for that.
import time
from typing import Annotated, Final

import msgspec

from ddptop.agent.wire.incoming import Label, Line, Name
from ddptop.agent.wire.message import Amount, Count, Message, Moment, Rank, Whole

TOPIC_BUNDLE: Final = b"bundle"
MOST_HOSTS: Final = 4_096
"""Hosts of a run at most."""

UNHEARD: Final = frozenset({"silent", "gone"})
"""States of a host of which nothing is heard."""

_Ranks = Annotated[tuple[Rank, ...], msgspec.Meta(max_length=4096)]
_At = Annotated[float, msgspec.Meta(ge=0, le=1e10)]
"""Seconds since the epoch, to the year 2286."""


class HostHello(Message, frozen=True, tag="host_hello"):
    """Identity of one side of a link: its first message, sent again at each change."""

    protocol: Count
    agent_version: Name
    run: Name
    run_id: Label
    host: Label
    world: Count
    generation: Count = 0
    ranks: _Ranks = ()
    """The ranks of this host that were found."""
    at_ns: Moment = 0
    session: Count = 0
    """Number of the connection, by the side that has connected; the answer repeats it."""
    gone: _Ranks = ()
    """Those of them whose process is gone."""


class HostFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One host of a run at one moment."""

    host: Label
    """Its name; of several with one name, those after the first have a number behind it."""
    state: Name = ""
    """`linked`; `silent`: nothing is heard of it; `gone`: its connection has ended and did not come back, or its ranks
    have ended; `alone`: its observer has no link, and shows its own ranks only; empty where that is not known."""
    ranks: _Ranks = ()
    """Its ranks as far as they are known, in order."""
    heard_at: _At | None = None
    """Time of its last sign of life by the clock of the head, in seconds since the epoch."""
    offset_ms: float | None = None
    """Its clock less that of the head. None: not known."""
    offset_error_ms: Amount | None = None
    """The true offset is at most so far from that."""
    rtt_ms: Amount | None = None
    """Time to its observer and back."""
    agent_version: Name = ""
    node: Count | None = None
    """Its number in the run, where the launcher has told it."""
    step_ms: float | None = None
    """Mean step time of its slowest rank."""
    own_ms: float | None = None
    """The same without waiting for others, of the rank with the longest such time."""
    gone: _Ranks = ()
    """Those of its ranks whose process is gone."""

    @property
    def is_over(self) -> bool:
        """True where the processes of all its ranks are known to have ended: its silence is no news."""
        return bool(self.ranks and self.gone) and set(self.ranks) <= set(self.gone)

    @property
    def is_unheard(self) -> bool:
        """True where nothing is heard of it: its ranks are shown as they were."""
        return self.state in UNHEARD and not self.is_over

    @property
    def told(self) -> str:
        """One line on an unheard host: `node2 is not heard since 10:31:07`; empty of any other."""
        if not self.is_unheard:
            return ""
        since = "" if self.heard_at is None else f" since {time.strftime('%H:%M:%S', time.localtime(self.heard_at))}"
        return f"{self.host} is {'not heard' if self.state == 'silent' else 'gone'}{since}"


class Bundle(Message, frozen=True, tag="bundle"):
    """Messages of the ranks of a host since the last bundle, in order, for the observer that judges on another host.

    Of a large group it has no steps: these are judged by their summaries.
    """

    messages: tuple[msgspec.Raw, ...]
    """Each is to be read by `read_telemetry`."""


class Census(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The processes that a kill has ended on one host."""

    ranks: Count = 0
    helpers: Count = 0
    left: Annotated[tuple[Line, ...], msgspec.Meta(max_length=1024)] = ()
    """A text for each process that still lives: the process, and why."""


class HostEnd(Message, frozen=True, tag="host_end"):
    """From the observer of a branch to the head's: the ends of its ranks, again at each further one."""

    id: Whole
    host: Label
    generation: Count = 0
    deaths: Annotated[bytes, msgspec.Meta(max_length=1 << 19)] = b""
    """What was seen of the ends of processes, as in `agent.run.ends`."""
    members: Annotated[bytes, msgspec.Meta(max_length=1 << 19)] = b""
    """The records of the ranks that have ended, as in `agent.run.hosts.FarRanks`."""
    over: bool = False
    """Nothing of the run is left on that host, and nothing is to come."""


class Conclude(Message, frozen=True, tag="conclude"):
    """From the head to a branch: the run is over, and this is its end."""

    id: Whole
    state: Name
    exit_code: Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 32)] | None = None
    cause: Line | None = None
    cause_rank: Rank | None = None
    cause_kind: Name = ""
    ended_at_ns: Moment = 0
