"""Hooks around functions of torch."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session


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

        setattr(owner, name, patched)
