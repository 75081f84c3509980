"""The agent's own descriptors, which stay open where a script closes all those that it does not know, as daemons do.

ZeroMQ aborts the process whose descriptors were closed.  Scripts close by `os.close` and `os.closerange`: these pass
over the agent's, as if they were not there.  What native code closes is not seen.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
from collections.abc import Collection, Iterable
from typing import Final

from ddptop.agent.rank.hooks.around import replace

_LONGEST: Final = 128
"""Bytes of any address: a `sockaddr_storage`."""
_FAMILY: Final = 2
"""Bytes before the path in a `sockaddr_un`."""

_ours: dict[int, str] = {}
"""The files of the agent, as `/proc` names them: a number alone may be another file's by now."""
_addresses: set[str] = set()
"""Paths of the agent's sockets, which those of their peers have too: ZeroMQ accepts them at any time."""


def present() -> dict[int, str]:
    """Return the descriptors of this process as `/proc` names them; none where it does not list them."""
    try:
        numbers = map(int, os.listdir("/proc/self/fd"))
    except OSError:
        return {}
    return {number: name for number in numbers if (name := _name(number))}


def keep(before: Collection[int], addresses: Iterable[str]) -> None:
    """Keep what was opened since `before` was present, and sockets that are bound to these addresses of ZeroMQ."""
    opened = {number: name for number, name in present().items() if number not in before}
    # A record that another thread of ours reads at this moment would stay open: its own `os.close` passed over it.
    _ours.update({number: name for number, name in opened.items() if ".json" not in os.path.basename(name)})
    _addresses.update(address.removeprefix("ipc://") for address in addresses)
    replace(os, "close", _close)
    replace(os, "closerange", _closerange)


def give_up() -> None:
    """Keep nothing from now on: the agent ends, or this is a fork of its process, which may close all."""
    _ours.clear()
    _addresses.clear()


_original_close = os.close
_original_closerange = os.closerange


@functools.wraps(os.close)
def _close(fd: int) -> None:
    if _is_ours(fd):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    _original_close(fd)


@functools.wraps(os.closerange)
def _closerange(fd_low: int, fd_high: int, /) -> None:
    kept = sorted(each for each in present() if fd_low <= each < fd_high and _is_ours(each)) if _ours else []
    for each in kept:
        _original_closerange(fd_low, each)
        fd_low = each + 1
    _original_closerange(fd_low, fd_high)


def _is_ours(number: int) -> bool:
    if not _ours:
        return False
    try:
        if number in _ours and _name(number) == _ours[number]:
            return True
        return stat.S_ISSOCK(os.fstat(number).st_mode) and _address(number) in _addresses
    except (OSError, TypeError, ValueError, OverflowError):
        # The original says so.
        return False


def _address(number: int) -> str:
    """Return the path that a socket is bound to, empty where there is none.

    An object of Python's `socket` would make the socket non-blocking where the script has set a default timeout.
    """
    address, length = ctypes.create_string_buffer(_LONGEST), ctypes.c_uint32(_LONGEST)
    if ctypes.CDLL(None).getsockname(number, address, ctypes.byref(length)):
        return ""
    return os.fsdecode(address.raw[_FAMILY : length.value].partition(b"\0")[0])


def _name(number: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""
