"""Hides the agent's code from torch's compiler, which would compile it wherever a hook runs.

The compiler compiles each Python frame that runs below a compiled function.  It leaves marked code to
Python, so that stamps are written when a step runs and not when it is compiled; where it
traces through a patch, the patch calls only the original, by `torch.compiler.is_compiling`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final

from ddptop.agent.rank.hooks.around import on_leaving

_RANK: Final = "ddptop.agent.rank."
"""The beginning of the names of modules whose code runs inside the training."""


def hide(torch: Any) -> None:
    """Mark the agent's imported code in this process; does nothing where this torch has no such mark."""
    skip = _mark(torch)
    if skip is None:
        return
    modules = [module for name, module in sys.modules.items() if name.startswith(_RANK)]
    for module in modules:
        for code in _codes(vars(module).values(), module.__name__):
            skip(code)
    # The function that calls the hooks of an optimizer; the optimizer's arithmetic is still compiled.
    for code in _nested(torch.optim.Optimizer.profile_hook_step.__code__):
        skip(code)
        if (unmark := _mark(torch, skips=False)) is not None:
            on_leaving(functools.partial(unmark, code))


def _mark(torch: Any, *, skips: bool = True) -> Callable[[CodeType], None] | None:
    """Return the function that marks code, or takes its mark away; None where this torch has no such function."""
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    older: Callable[[CodeType], None] | None = getattr(frames, "skip_code", None)
    if older is not None or not hasattr(frames, "set_code_exec_strategy"):
        return older if skips else None
    action = frames._FrameAction
    # Only this frame: functions that it calls are compiled as they would be without the agent.
    strategy = frames._FrameExecStrategy(action.SKIP if skips else action.DEFAULT, action.DEFAULT)
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
    """Yield the code of a function and of the functions nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
