"""The module whose backward pass is under way: torch's engine executes it in C++, where no stack of Python shows it.

While a rank looks for the reason of a slow backward pass, hooks around all modules mark, in some of the recorded
steps, the nodes of the graph at which the engine comes from one module to the next: the last one of each module, and
those that make the input of one.  A mark says the name of a module, and changes nothing.  It ends with its node, and
the hooks are removed at the end of the step.  Torch's compiler has these hooks among what it guards, so nothing is
marked where it has compiled anything.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import Any, Final, NamedTuple, TypeAlias

from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.records.stamps import Stamps

_DEEPEST: Final = 6
"""Modules that are named around each other at most, the innermost ones."""
_WRAPPERS: Final = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Names of modules that wrap another one of the script's, and are not the script's."""
_PAUSE_NS: Final = 40_000_000
"""From the beginning of a marked step to that of the next one at least."""
_EACH_NS: Final = 1_000_000
"""The same for each module, of which marking takes some 10 us: a percent of the time."""
_NESTED: Final = 3
"""Levels of tuples and dictionaries in which tensors are looked for."""


Names: TypeAlias = "tuple[str, ...]"
"""Of a module, and of those that it is a part of, from the outside."""


class _Module(NamedTuple):
    reference: weakref.ref[Any]
    names: Names
    around: Names
    """Of the module that it is a part of; its own where there is none."""


class Modules:
    """The modules of one rank; hooks run on its training thread, all else on the agent's."""

    def __init__(self, stamps: Stamps, faults: Faults) -> None:
        """Mark nothing yet."""
        self._stamps = stamps
        self._faults = faults
        self._is_wanted = False
        self.is_armed = False
        """True while the training thread is to call `boundary` at the end of this step."""
        self._hooks: tuple[Any, ...] = ()
        self._due = 0
        """When the next step is marked, by the clock of the stamps."""
        self.steps: set[int] = set()
        """Numbers of the steps that are marked."""
        self._known: dict[int, _Module] = {}
        """By identity."""
        self._marked: set[int] = set()
        """Sequence numbers of the nodes of this step that are marked."""
        self._without_overrides: Any = None
        """Reads what a script's own class of tensors would execute its code for."""
        self.present: Names = ()
        """Of the module whose backward pass is under way, where that is known; may be read from any thread."""

    def begin(self) -> bool:
        """Have some of the next steps marked; False where the compiler would compile the training anew for it."""
        self.steps.clear()
        self._due, self._is_wanted = 0, not _is_compiled()
        if self._is_wanted:
            self._have_boundary()
        return self._is_wanted

    def end(self) -> None:
        """Have the hooks removed behind this step."""
        if self._is_wanted:
            self._is_wanted = False
            self._have_boundary()

    def _have_boundary(self) -> None:
        self.is_armed = True
        self._stamps.eventful = 0

    def boundary(self, step: int) -> None:
        """Place the hooks behind a step, or remove them; called by the training thread, and raises nothing."""
        self.is_armed = self._is_wanted
        try:
            self._remove()
            if not self._is_wanted:
                self._known.clear()
            elif self._stamps.recording and (now := self._stamps.clock()) >= self._due and not _is_compiled():
                self._due = now + max(_PAUSE_NS, _EACH_NS * len(self._known))
                self._place()
                self.steps.add(step + 1)
        except Exception as error:
            self._give_up(error)
        if self.is_armed:
            self._have_boundary()

    def _place(self) -> None:
        torch: Any = sys.modules["torch"]
        hooks = torch.nn.modules.module
        self._without_overrides = torch._C.DisableTorchFunction
        self._hooks = (
            hooks.register_module_forward_pre_hook(self._enters),
            hooks.register_module_forward_hook(self._leaves),
        )

    def _remove(self) -> None:
        hooks, self._hooks = self._hooks, ()
        for hook in hooks:
            hook.remove()
        self._marked.clear()
        self.present = ()

    def close(self) -> None:
        """Remove the hooks at once: at the end of the script, and in a forked child."""
        self._is_wanted = self.is_armed = False
        self._remove()

    def _give_up(self, error: Exception) -> None:
        self._is_wanted = False
        self._faults.note("marking the modules of a backward pass", error)

    def _enters(self, module: Any, args: tuple[Any, ...]) -> None:
        """Before a module's forward pass: behind its backward pass comes that of the module around it."""
        try:
            if self._is_wanted and threading.get_ident() == self._stamps.thread:
                self._mark(args, self._of(module).around)
        except Exception as error:
            self._give_up(error)

    def _leaves(self, module: Any, _: Any, output: Any) -> None:
        """After a module's forward pass, with whose last operator its backward pass begins."""
        try:
            if self._is_wanted and threading.get_ident() == self._stamps.thread:
                if not self._stamps.in_backward:
                    # A backward pass begins with the operators of no module.
                    self.present = ()
                self._mark(output, self._of(module).names)
        except Exception as error:
            self._give_up(error)

    def _of(self, module: Any) -> _Module:
        known = self._known.get(id(module))
        if known is None or known.reference() is not module:
            # It was called from outside of all modules that are known.
            self._known |= _parts(module)
            known = self._known[id(module)]
        return known

    def _mark(self, value: Any, names: Names) -> None:
        """Mark the nodes that made tensors, but those that are marked: what is within a module is marked before it."""
        for node in self._nodes(value, _NESTED):
            sequence = node._sequence_nr()
            if sequence not in self._marked:
                self._marked.add(sequence)
                node.register_prehook(functools.partial(_set, self, names))

    def _nodes(self, value: Any, levels: int) -> list[Any]:
        if hasattr(type(value), "grad_fn"):
            with self._without_overrides():
                node = value.grad_fn
            return [] if node is None else [node]
        if not levels or not isinstance(value, (tuple, list, dict)):
            return []
        values = value.values() if isinstance(value, dict) else value
        return [node for each in values for node in self._nodes(each, levels - 1)]


def _set(modules: Modules, names: Names, _: object) -> None:
    modules.present = names


def _parts(root: Any) -> dict[int, _Module]:
    """Return a module and all its parts by their identities, each named by its path."""
    found: dict[int, _Module] = {}
    by_path: dict[str, tuple[Names, Names]] = {}
    nothing = sys.modules["torch"].nn.Module.forward
    for path, module in root.named_modules():
        above, name = path.rpartition(".")[0], _name(path)
        around, caller = by_path[above] if path else ((), ())
        # The whole is not named around its parts, of which it consists: only its own operators are named for it.
        outer = around if _name(above) else ()
        names = outer if outer[-1:] == (name,) else (*outer, name)[-_DEEPEST:]
        names = names if name else (type(module).__name__,)
        # A list of modules calls none of them.
        by_path[path] = names, caller if path and type(module).forward is nothing else names
        found[id(module)] = _Module(weakref.ref(module), names, caller or names)
    return found


def _name(path: str) -> str:
    """Return the path of a module as the script has it, without what wraps its modules."""
    parts = [part for part in path.split(".") if part not in _WRAPPERS]
    return ".".join(parts[1:] if parts[:1] == ["module"] else parts)


def _is_compiled() -> bool:
    """Say whether torch's compiler has looked at any function of this process."""
    compiler: Any = sys.modules.get("torch._dynamo.convert_frame")
    return bool(getattr(compiler, "FRAME_COUNTER", 0))
