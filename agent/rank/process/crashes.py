"""The Python line of a crash in native code: `faulthandler`, where the script has not enabled it.

On SIGSEGV, SIGABRT, SIGBUS, SIGILL or SIGFPE it writes the stacks of the process to the rank's log, and then lets the
signal do what it would have done.  To the script it seems not to be enabled: a script that asks first, and then
enables it for a file of its own, gets that.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ddptop.agent.run.files import marks

_STDERR: Final = 2
_originals: dict[str, Callable[..., Any]] = {}
"""The functions of `faulthandler` in whose place the script has ours; empty unless the handler is ours."""

_files: list[int] = []
"""Descriptors that were opened for it."""


def begin(file: Path | None) -> None:
    """Have the stacks written at a crash; nothing where the script, its interpreter or its environment has that done.

    Args:
        file: where to, for a rank whose output is not kept; None: to stderr, which is the rank's log.
    """
    # A crash is then reported without its line, which is no fault of the agent.
    with contextlib.suppress(Exception):
        if _originals or faulthandler.is_enabled():
            return
        if file is None:
            os.fstat(_STDERR)
            descriptor = _STDERR
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(marks.owned(file), flags, 0o600)
            _files.append(descriptor)
        faulthandler.enable(descriptor)
        for name, stand_in in (("enable", _enable), ("disable", _disable), ("is_enabled", _is_enabled)):
            _originals[name] = getattr(faulthandler, name)
            setattr(faulthandler, name, functools.wraps(_originals[name])(stand_in))


def end() -> None:
    """Disable it again, after the script: torch at times aborts while the interpreter ends, of no consequence."""
    with contextlib.suppress(Exception):
        if _originals:
            _give_back()["disable"]()
        while _files:
            os.close(_files.pop())


def _give_back() -> dict[str, Callable[..., Any]]:
    """Restore the functions and return them, by name; the handler stays as it is."""
    originals = dict(_originals)
    _originals.clear()
    for name, original in originals.items():
        setattr(faulthandler, name, original)
    return originals


def _enable(*args: Any, **kwargs: Any) -> Any:
    if _originals:
        _give_back()
    return faulthandler.enable(*args, **kwargs)


def _disable() -> bool:
    if not _originals:
        # It returns whether it was enabled, which typeshed does not know.
        disable: Callable[..., Any] = faulthandler.disable
        return bool(disable())
    end()
    return False


def _is_enabled() -> bool:
    # A script may have taken the function before it enabled the handler itself.
    return False if _originals else faulthandler.is_enabled()
