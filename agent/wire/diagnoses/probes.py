"""Experiments of a probe: what a rank that is held answers to `Probe`."""

# Without `annotations` from `__future__`, each of which msgspec would compile: every command and rank waits for that.
from typing import Annotated, Final

import msgspec

from ddptop.agent.wire.incoming import Label, Line, Name
from ddptop.agent.wire.message import Amount, Count, Rank, Size

MOST_MEASURED: Final = 64
"""Measurements of one experiment at most."""
MOST_PAIRS: Final = 256
"""Pairs of ranks in one part of a probe at most: a command has room for them."""

Pair = tuple[Rank, Rank]
"""The rank that sends, and the one that receives."""
_Values = Annotated[tuple[Amount, ...], msgspec.Meta(max_length=MOST_MEASURED)]


class Measured(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One experiment of a rank, measured several times."""

    name: Name
    """`compute` and `host`, `disk_write`, `disk_read`, `checkpoint_write`, `checkpoint_read`."""
    values: _Values
    """Operations of floating point a second for the first two, bytes a second for all others; the higher, the better.
    In the order of time."""
    ran: _Values = ()
    """By measurement, the part of its time in which the thread did not wait for a core. Empty: not known."""


class Carried(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Messages from one rank to another, measured by the one that receives them."""

    sender: Rank
    receiver: Rank
    size: Size
    """Bytes of a large message."""
    large_s: _Values
    """Seconds of each large message."""
    small_s: _Values = ()
    """Seconds of each small one."""


class Board(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The device of a rank by the management library of its driver. None: the driver does not say it."""

    name: Label = ""
    throttled: Annotated[tuple[Name, ...], msgspec.Meta(max_length=16)] = ()
    """The reasons for which its clock is held back."""
    celsius: Amount | None = None
    mhz: Amount | None = None
    """Present clock of its processors; the highest one is next."""
    highest_mhz: Amount | None = None
    errors: Count | None = None
    """Memory errors since the driver was started that could not be corrected (ECC)."""
    lanes: Count | None = None
    """Lanes of PCIe in use; those that the device has are next."""
    most_lanes: Count | None = None
    pcie: Count | None = None
    """Generation of PCIe in use; the highest is next."""
    highest_pcie: Count | None = None


class Facts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The circumstances of a rank's experiments, read right before and after them. None: could not be read."""

    took_s: Amount
    """Seconds of the experiments."""
    cores: Count | None = None
    """Number of cores on which the rank may run."""
    which: Label = ""
    """Their numbers: `0-3, 8`."""
    threads: Count | None = None
    """Threads of torch for one operation."""
    nice: Annotated[int, msgspec.Meta(ge=-100, le=100)] | None = None
    """Niceness of the process: 0 is usual, and one that is higher gives way to others."""
    group: Label = ""
    """Its control group for the processor."""
    load: Amount | None = None
    """Load of the machine over a minute."""
    steal_percent: Amount | None = None
    """Time of these cores that the hypervisor has given to other machines."""
    others_percent: Amount | None = None
    """Time of these cores in which other processes ran."""
    rivals: Line = ""
    """The processes that have taken these cores, where they were looked for."""
    quota: Amount | None = None
    """Cores that the control group may use. None: there is no limit."""
    throttled_ms: Count | None = None
    """Time for which the control group was kept from running."""
    memory_limit: Size | None = None
    """Bytes that the control group may use. None: there is no limit. Its present use is next."""
    memory_used: Size | None = None
    swapped: Size | None = None
    """Bytes of the process on the swap device."""
    swap_reads: Count | None = None
    """Pages that the machine has read from there."""
    mhz: Amount | None = None
    """Frequency of the rank's core; the highest one is next."""
    highest_mhz: Amount | None = None
    overheated: Count | None = None
    """Times that the processor was slowed down because it was too hot."""
    resent: Count | None = None
    """Segments of TCP that the host has sent again."""
    board: Board | None = None


class Probed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One part of a probe, done by one rank."""

    measured: Annotated[tuple[Measured, ...], msgspec.Meta(max_length=16)] = ()
    carried: Annotated[tuple[Carried, ...], msgspec.Meta(max_length=MOST_PAIRS)] = ()
    """Messages that this rank has received."""
    small_s: _Values = ()
    """Seconds of each small message of the whole group."""
    large_s: _Values = ()
    """Seconds of each large one."""
    facts: Facts | None = None
    order: Count = 0
    """Order of the largest matrices for which the rank has room."""
    problem: Line = ""
    """The reason why something is missing."""
