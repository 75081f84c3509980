"""Keeps torch's compiler away from the agent's code, which it would meet wherever a hook runs.

It compiles each Python frame that runs below a compiled function.  Marked code it leaves to
Python, so that stamps are written when a step runs and not when it is compiled; where it
traces through a patch instead, `torch.compiler.is_compiling` lets it see the original alone.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final

_RANK: Final = "ddptop.agent.rank."
"""How the names of the modules begin whose code runs beside the script's."""


def hide(torch: Any) -> None:
    """Mark the agent's code in this process, as far as it is imported; nothing where this torch has no such mark."""
    skip = _mark(torch)
    if skip is None:
        return
    modules = [module for name, module in sys.modules.items() if name.startswith(_RANK)]
    for module in modules:
        for code in _codes(vars(module).values(), module.__name__):
            skip(code)
    # What calls the hooks of an optimizer; the arithmetic in it is compiled as before.
    for code in _nested(torch.optim.Optimizer.profile_hook_step.__code__):
        skip(code)


def _mark(torch: Any) -> Callable[[CodeType], None] | None:
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    older: Callable[[CodeType], None] | None = getattr(frames, "skip_code", None)
    if older is not None or not hasattr(frames, "set_code_exec_strategy"):
        return older
    action = frames._FrameAction
    # This frame alone: what it calls is compiled as it would be without us.
    strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
    return functools.partial(_set, frames.set_code_exec_strategy, strategy)


def _set(mark: Callable[[CodeType, Any], None], strategy: Any, code: CodeType) -> None:
    mark(code, strategy)


def _codes(values: Iterable[object], module: str) -> Iterator[CodeType]:
    for value in tuple(values):
        if getattr(value, "__module__", None) != module and not isinstance(value, (property, staticmethod)):
            continue
        if isinstance(value, FunctionType):
            yield from _nested(value.__code__)
        elif isinstance(value, type):
            yield from _codes(vars(value).values(), module)
        elif isinstance(value, property) and isinstance(value.fget, FunctionType):
            yield from _nested(value.fget.__code__)
        elif isinstance(value, staticmethod):
            yield from _nested(value.__func__.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    """Return a function's code and that of the functions inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
