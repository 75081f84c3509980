"""Profiles of whole steps: what a rank answers to `Profile` and to `ReadProfile`."""

# Without `annotations` from `__future__`, each of which msgspec would compile: every command and rank waits for that.
from typing import Annotated, Final

import msgspec

from ddptop.agent.wire.incoming import Name
from ddptop.agent.wire.message import Count, Size, Span

MOST_PROFILED: Final = 50
"""Steps of one profile at most."""
MOST_OF_PROFILE: Final = 256 << 10
"""Bytes of one piece of a trace."""
LARGEST_PROFILE: Final = 256 << 20
"""Bytes of the trace of one rank at most, compressed."""
MOST_SPANS: Final = 512
"""Stretches of one step at most."""


class PhaseSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stretch of a step, from its beginning on."""

    begin_ns: Span
    end_ns: Span
    phase: Name
    """A phase of `PHASES`."""


class ProfiledStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The phases of a profiled step."""

    step: Count
    phases: Annotated[tuple[PhaseSpan, ...], msgspec.Meta(max_length=MOST_SPANS)] = ()


class Profiled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A trace that a rank has written, on its own host."""

    size: Size
    """Bytes."""
    steps: Annotated[tuple[ProfiledStep, ...], msgspec.Meta(max_length=MOST_PROFILED)] = ()
    """Those of which the phases are known."""


class ProfilePiece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of the trace of a rank."""

    offset: Size
    content: Annotated[bytes, msgspec.Meta(max_length=MOST_OF_PROFILE)]
    """Empty behind the end."""
