"""A program that is stopped at a step as the dashboard does it: saved, then ended, inside of `optimizer.step()`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

import ddptop.agent as agent


def main(arguments: list[str]) -> int:
    """Run `module step arguments…`."""
    module, last, *rest = arguments
    saves: list[Callable[[int], Any]] = []
    step = 0

    def take(save: Any) -> Any:
        saves.append(save)
        return save

    def at_the_end_of_a_step(*_: Any) -> None:
        nonlocal step
        step += 1
        if step == int(last):
            saves[0](step)
            raise SystemExit(0)

    agent.on_checkpoint = take
    hook = register_optimizer_step_post_hook(at_the_end_of_a_step)
    try:
        return int(importlib.import_module(module).main(rest))
    finally:
        hook.remove()
