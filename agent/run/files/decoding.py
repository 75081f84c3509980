"""Decoders of JSON, one for each type, of which no two are made at the same time.

msgspec reads the annotations of a class when the first decoder of it is made. Another thread that decodes into that
class meanwhile finds it half read, and the process dies by SIGSEGV (seen with 0.22): in a rank that would be the
training.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final, TypeVar

import msgspec

_Kind = TypeVar("_Kind")

_made: Final[dict[object, msgspec.json.Decoder[Any]]] = {}
_making = threading.Lock()


def of(kind: type[_Kind]) -> msgspec.json.Decoder[_Kind]:
    """Return the decoder of a type; for use from any thread.

    Call it before anything else of msgspec that is given the type, such as `msgspec.convert`.
    """
    found = _made.get(kind)
    if found is None:
        with _making:
            found = _made.get(kind)
            if found is None:
                found = _made[kind] = msgspec.json.Decoder(kind)
    return found


def _renew() -> None:
    global _making
    # A thread that the fork does not have may have held it.
    _making = threading.Lock()


os.register_at_fork(after_in_child=_renew)
