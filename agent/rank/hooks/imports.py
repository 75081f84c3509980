"""Runs a function right after the script's own import of a module.

An earlier import by the agent would ignore variables that the script sets in its environment before it imports the
module.
"""

from __future__ import annotations

import functools
import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from ddptop.agent.rank.hooks.around import on_leaving


def after_import(name: str, act: Callable[[ModuleType], None]) -> None:
    """Call `act` with the module after its import, at once where it is already imported."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        finder = _After(name, act)
        sys.meta_path.insert(0, finder)
        on_leaving(functools.partial(_remove, finder))


def _remove(finder: _After) -> None:
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)


class _After(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        later = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next((spec for finder in later if (spec := finder.find_spec(fullname, path, target))), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # Not before: a library may look for the module long before anything imports it, as `datasets` does.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._act(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec
