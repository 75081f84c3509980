"""Why an action was not carried out: exceptions here, words in the reply of an observer."""

from __future__ import annotations

from typing import ClassVar, Final

from ddptop.agent.text import Complaint

REGISTRATION: Final = ("import ddptop.agent", "ddptop.agent.on_checkpoint(save)")
"""The lines of Python that register a checkpoint function."""


class Refused(Complaint):
    """An action was not carried out; the text is the reason, one line for the user."""

    kind: ClassVar[str] = ""
    """Its name in `wire.Reply.refusal`."""


class Unheard(Refused):
    """A rank that has not ended does not answer, or no observer does."""

    kind = "unheard"


class Unholdable(Refused):
    """There is no step at which all ranks can be held; the group can still be frozen."""

    kind = "unholdable"


class Busy(Refused):
    """Another action is under way; a resume cancels it."""

    kind = "busy"


class Awaiting(Busy, Unholdable):
    """That action still waits for ranks to come to the step."""

    kind = "awaiting"


class Cancelled(Refused):
    """Somebody has cancelled the action while it waited for ranks; the group goes on, or to the end of a step."""

    kind = "cancelled"


class Hung(Refused):
    """The run hangs, so that its ranks come to no common step."""

    kind = "hung"


class Unsavable(Refused):
    """The script has registered no checkpoint function; `REGISTRATION` would."""

    kind = "unsavable"


_KINDS: Final = {each.kind: each for each in (Refused, Unheard, Unholdable, Busy, Awaiting, Cancelled, Hung, Unsavable)}


def refusal(kind: str, text: str) -> Refused:
    """Return the exception for the reply of an observer; one of a kind that is not known here is a `Refused`."""
    return _KINDS.get(kind, Refused)(text)
