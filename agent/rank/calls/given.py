"""Conversion of the arguments that a script gives to our calls into plain values.

Types are not trusted: a subclass may override any method, and an object may lie about its
class.  Each function returns an exact `float`, `int` or `str`, or raises an exception that describes the
problem, which the caller counts as a fault.  A tensor is refused unread: to read one on a device means to
wait for the device.
"""

from __future__ import annotations

import numbers
import operator
import os
from decimal import Decimal
from typing import Final

from ddptop.agent import text

LARGEST: Final = 2**63 - 1
"""The largest whole number that every reader of the wire accepts."""


def number(value: object) -> float:
    """Return a number of Python or NumPy as a float.

    Raises:
        TypeError: it is no such number.
        Exception: whatever its conversion raises; `OverflowError` where no float can hold it.
    """
    if type(value) is float:
        return value
    if isinstance(value, (int, float, numbers.Real, Decimal)) or _is_scalar_of_numpy(value):
        return float(value)  # type: ignore[arg-type]  # NumPy's scalars are known by name only, so not to mypy
    raise TypeError(f"{_kind(value)} is not a number")


def count(value: object) -> int:
    """Return a whole number from 0 on that fits 64 bits; 1250.0 is one.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative, too large, or not whole.
        Exception: whatever its conversion raises.
    """
    if isinstance(value, bool):
        raise TypeError("bool is not a count")
    if isinstance(value, numbers.Integral):
        whole = int(operator.index(value))
    else:
        amount = number(value)
        if not amount.is_integer():
            raise ValueError("not a whole number")
        whole = int(amount)
    if not 0 <= whole <= LARGEST:
        raise ValueError("negative, or more than 64 bits hold")
    return whole


def line(value: object, limit: int) -> str:
    """Return text, or a number spelled out, as one clean line.

    Raises:
        TypeError: it is neither.
        ValueError: it has no character that can be shown.
        Exception: whatever its conversion raises.
    """
    if isinstance(value, str):
        found = text.clean_line(str.__getitem__(value, slice(0, 16 * limit)), limit)
    elif isinstance(value, numbers.Integral):
        found = text.clean_line(repr(int(operator.index(value))), limit)
    else:
        found = repr(number(value))
    if not found:
        raise ValueError("empty, or nothing of it can be shown")
    return found


def path(value: object, limit: int = 1000) -> str:
    """Return a path as clean text.

    Raises:
        TypeError: it is no path.
        Exception: whatever its `__fspath__` raises.
    """
    where = os.fsdecode(os.fspath(value))  # type: ignore[call-overload]  # raises for what is no path
    return text.clean(str.__getitem__(where, slice(0, 4 * limit)), limit)


def _is_scalar_of_numpy(value: object) -> bool:
    kind = type(value)
    return kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0


def _kind(value: object) -> str:
    return str(type(value).__name__)[:60]
