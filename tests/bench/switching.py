"""Takes the agent's hooks away and puts them back within one job, for benchmarks of what they cost."""

from __future__ import annotations

import os
from types import FunctionType
from typing import Any


class Hooks:
    """All hooks that the agent has set in this process: on classes of torch, on optimizers, on process groups.

    Made before the process groups, so that it sees which hooks these are given; `find` comes after them.
    """

    def __init__(self) -> None:
        import torch
        from torch import distributed
        from torch.optim import optimizer
        from torch.utils.data import dataloader

        self._owners: list[Any] = [
            torch.autograd,
            torch.nn.parallel.DistributedDataParallel,
            torch.nn.utils.clip_grad,
            dataloader.DataLoader,
            dataloader._BaseDataLoaderIter,
            optimizer.Optimizer,
            distributed,
            distributed.distributed_c10d,
            distributed.Work,
            distributed.ProcessGroup,
        ]
        self._patches: list[tuple[Any, str, Any]] = []
        self._of_optimizers: list[Any] = [
            optimizer._global_optimizer_pre_hooks,
            optimizer._global_optimizer_post_hooks,
        ]
        self._kept: list[dict[int, Any]] = []
        self._of_groups: list[tuple[Any, str, int, Any]] = []
        self._register: dict[str, Any] = {}
        for kind in ("pre", "post"):
            self._follow(kind, distributed.ProcessGroup)

    def _follow(self, kind: str, group_type: Any) -> None:
        register = getattr(group_type, f"register_{kind}_hook", None)
        if register is None:
            return

        def following(group: Any, number: int, hook: Any) -> Any:
            self._of_groups.append((group, kind, number, hook))
            return register(group, number, hook)

        setattr(group_type, f"register_{kind}_hook", following)
        self._register[kind] = register

    def find(self) -> None:
        """Find the functions that the agent has replaced, and its hooks on optimizers."""
        self._kept = [dict(hooks) for hooks in self._of_optimizers]
        self._patches = [
            (owner, name, value)
            for owner in self._owners
            for name, value in list(vars(owner).items())
            if _is_ours(value)
        ]

    def on(self) -> None:
        """Put every hook back."""
        for owner, name, value in self._patches:
            setattr(owner, name, value)
        for hooks, kept in zip(self._of_optimizers, self._kept, strict=True):
            hooks.update(kept)
        for group, kind, number, hook in self._of_groups:
            self._register[kind](group, number, hook)

    def off(self) -> None:
        """Take every hook away."""
        for owner, name, value in self._patches:
            setattr(owner, name, value.__wrapped__)
        for hooks in self._of_optimizers:
            hooks.clear()
        for group, kind, number, _ in self._of_groups:
            getattr(group, f"unregister_{kind}_hook")(number)


def _is_ours(value: object) -> bool:
    return isinstance(value, FunctionType) and os.path.join("agent", "rank", "") in value.__code__.co_filename
