"""Hooks around functions of torch, and what stood in their places, which an agent that leaves puts back."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session

_ABSENT: Final = object()


class _Replaced(NamedTuple):
    owner: Any
    name: str
    before: Any
    """`_ABSENT` where the owner only inherited an attribute of this name."""
    ours: Any


_replaced: list[_Replaced] = []
_undone: list[Callable[[], object]] = []


def replace(owner: Any, name: str, ours: Any) -> None:
    """Put something of ours in the place of an attribute of a module or class, until `put_back`."""
    _replaced.append(_Replaced(owner, name, vars(owner).get(name, _ABSENT), ours))
    setattr(owner, name, ours)


def on_leaving(undo: Callable[[], object]) -> None:
    """Have `put_back` undo another change of this process."""
    _undone.append(undo)


def put_back(note: Callable[[str, Exception], None]) -> list[str]:
    """Put the very objects back that stood in the places of ours, in this process, and undo all other changes.

    Args:
        note: is given each error, with what has failed.

    Returns:
        The names in whose places others have put something since, which may call ours: these stay.
    """
    ours = {id(each.ours) for each in _replaced}
    stay = []
    while _replaced:
        owner, name, before, own = _replaced.pop()
        present = vars(owner).get(name, _ABSENT)
        if present is not own:
            if present is not before and id(present) not in ours:
                stay.append(f"{getattr(owner, '__name__', owner)}.{name}")
        elif before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
    while _undone:
        undo = _undone.pop()
        try:
            undo()
        except Exception as error:
            note("leaving", error)
    return list(dict.fromkeys(stay))


class StepHooks:
    """Hooks of all optimizers that come and go at any moment.

    torch loops over two ordered dictionaries, which must not change meanwhile.  Others stand in their places, with what
    is in them and ours behind it.
    """

    def __init__(self, optimizer: Any) -> None:
        """Begin with hooks that do nothing; `optimizer` is the module `torch.optim.optimizer`."""
        self.before: Callable[..., None] = _nothing
        self.after: Callable[..., None] = _nothing
        for name, own in (
            ("_global_optimizer_pre_hooks", lambda *args: self.before(*args)),
            ("_global_optimizer_post_hooks", lambda *args: self.after(*args)),
        ):
            replace(optimizer, name, _Beside(getattr(optimizer, name), own))

    def clear(self) -> None:
        """Do nothing in them, until others are set."""
        self.before = self.after = _nothing


def _nothing(*_: Any) -> None:
    """Do nothing."""


class _Beside(OrderedDict[int, Any]):
    """The hooks of others, with one of ours behind them; they add and remove theirs as without it."""

    def __init__(self, others: OrderedDict[int, Any], own: Any) -> None:
        super().__init__()
        self._others = others
        self._own = own

    def values(self) -> Any:
        return [*self._others.values(), self._own]

    def __setitem__(self, key: int, value: Any) -> None:
        # The handle that removes it refers weakly to this dictionary, and is to work behind our time.
        _used.append(self)
        self._others[key] = value

    def __delitem__(self, key: int) -> None:
        del self._others[key]

    def __contains__(self, key: object) -> bool:
        return key in self._others

    def __len__(self) -> int:
        return len(self._others) + 1


_used: list[_Beside] = []


class Hooks:
    """Puts hooks around functions of torch, which run in the training thread only and raise no `Exception`."""

    def __init__(self, session: Session, torch: Any) -> None:
        self._session = session
        self._compiling = torch.compiler.is_compiling

    def around(
        self,
        owner: Any,
        name: str,
        before: Callable[..., None],
        after: Callable[..., None],
        *,
        counted: Callable[[Any], Callable[..., Any]] | None = None,
    ) -> None:
        """Replace `owner.name` by a function with `before(*args, **kwargs)` and `after(result)` around it.

        Where `counted` is given, it makes the function that is called instead, around the original one, in steps that
        are only counted; nothing in it raises but the original.
        """
        original = getattr(owner, name)
        note, ident = self._session.faults.note, threading.get_ident
        compiling, stamps, cost = self._compiling, self._session.stamps, self._session.stamps.cost
        through = None if counted is None else counted(original)

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            if compiling() or ident() != stamps.thread:
                return original(*args, **kwargs)
            if through is not None and not stamps.recording:
                return through(*args, **kwargs)
            began = cost.clock() if cost.sampling else 0
            try:
                before(*args, **kwargs)
            except Exception as error:
                note(name, error)
            if began:
                cost.add(cost.clock() - began)
            result = None
            try:
                result = original(*args, **kwargs)
                return result
            finally:
                began = cost.clock() if cost.sampling else 0
                try:
                    after(result)
                except Exception as error:
                    note(name, error)
                if began:
                    cost.add(cost.clock() - began)

        replace(owner, name, patched)
