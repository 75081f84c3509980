"""Takes the agent's hooks away and puts them back within one job, for benchmarks of what they cost."""

from __future__ import annotations

import os
from collections.abc import Collection
from types import FunctionType
from typing import Any, Final

PARTS: Final = ("data", "forward", "backward", "optimizer", "collectives")
"""What can be left out when the hooks are put back."""


class Hooks:
    """All hooks that the agent has set in this process: on classes of torch, on optimizers, on process groups.

    Made before the process groups, so that it sees which hooks these are given; `find` comes after them.
    """

    def __init__(self) -> None:
        import torch
        from torch import distributed
        from torch.optim import optimizer
        from torch.utils.data import dataloader

        self._owners: dict[str, tuple[Any, ...]] = {
            "data": (dataloader.DataLoader, dataloader._BaseDataLoaderIter),
            "forward": (torch.nn.parallel.DistributedDataParallel,),
            "backward": (torch.autograd,),
            "optimizer": (optimizer.Optimizer, torch.nn.utils.clip_grad),
            "collectives": (distributed, distributed.distributed_c10d, distributed.Work, distributed.ProcessGroup),
        }
        assert tuple(self._owners) == PARTS
        self._patches: list[tuple[str, Any, str, Any]] = []
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
            (part, owner, name, value)
            for part, owners in self._owners.items()
            for owner in owners
            for name, value in list(vars(owner).items())
            if _is_ours(value)
        ]

    def on(self, without: Collection[str] = ()) -> None:
        """Put every hook back but those of some `PARTS`, after all were taken away."""
        for part, owner, name, value in self._patches:
            if part not in without:
                setattr(owner, name, value)
        if "optimizer" not in without:
            for hooks, kept in zip(self._of_optimizers, self._kept, strict=True):
                hooks.update(kept)
        if "collectives" not in without:
            for group, kind, number, hook in self._of_groups:
                self._register[kind](group, number, hook)

    def off(self) -> None:
        """Take every hook away."""
        for _, owner, name, value in self._patches:
            setattr(owner, name, value.__wrapped__)
        for hooks in self._of_optimizers:
            hooks.clear()
        for group, kind, number, _ in self._of_groups:
            getattr(group, f"unregister_{kind}_hook")(number)


def _is_ours(value: object) -> bool:
    return type(value) is FunctionType and os.path.join("agent", "rank", "") in value.__code__.co_filename
