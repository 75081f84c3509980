"""Which optimizer's step is the step: the outermost one, whatever has raised before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ddptop.agent.rank.boundary import Boundary
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.hooks import _steps_inside

if TYPE_CHECKING:
    import torch


@pytest.fixture(scope="module", autouse=True)
def _imports() -> None:
    """Import torch where these tests run: every worker reads all files, and the import takes seconds."""
    global Full, Wrapper, optimizer_module, torch
    import torch
    from torch.optim import optimizer as optimizer_module

    class Full(torch.optim.SGD):
        """One whose step raises until it is told not to."""

        full = True

        def step(self, closure: Any = None) -> Any:
            if self.full:
                raise torch.OutOfMemoryError
            return super().step(closure)

    class Wrapper(torch.optim.SGD):
        """One that steps another inside of its own step, as ZeroRedundancyOptimizer does."""

        inner: torch.optim.Optimizer

        def step(self, closure: Any = None) -> Any:
            return self.inner.step(closure)


class Session:
    """Counts the steps that a rank would count."""

    def __init__(self) -> None:
        self.faults, self.tape, self.steps, self.cuts = Faults(), self, 0, 0
        self.depth = 0

    def enter(self, _: object) -> None:
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1

    def skip(self) -> None:
        raise AssertionError("every step here is an optimizer's")

    def rate(self, _: float) -> None: ...

    def cut(self) -> None:
        self.cuts += 1

    def hold(self) -> None:
        self.steps += 1


@pytest.fixture
def session() -> Any:
    """A boundary behind torch's own hooks."""
    found = Session()
    boundary = Boundary(found, lambda: _steps_inside(optimizer_module.__file__))  # type: ignore[arg-type]
    hooks = [
        optimizer_module.register_optimizer_step_pre_hook(lambda stepping, *_: boundary.begin(stepping)),
        optimizer_module.register_optimizer_step_post_hook(lambda stepping, *_: boundary.end(stepping)),
        optimizer_module.register_optimizer_step_post_hook(lambda *_: boundary.hold()),
    ]
    yield found
    for hook in hooks:
        hook.remove()


def made(kind: type[torch.optim.SGD]) -> Any:
    return kind([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def test_after_a_step_that_raised_another_optimizer_counts(session: Any) -> None:
    """A script that runs out of memory and begins again with a smaller batch and a new optimizer trains on."""
    with pytest.raises(torch.OutOfMemoryError):
        made(Full).step()
    fresh = made(torch.optim.SGD)
    for _ in range(5):
        fresh.step()
    assert (session.steps, session.cuts, session.depth) == (5, 5, 0)


def test_the_same_optimizer_counts_again_after_it_raised(session: Any) -> None:
    """Neither the step that raised nor its phase is left over."""
    optimizer = made(Full)
    with pytest.raises(torch.OutOfMemoryError):
        optimizer.step()
    optimizer.full = False
    for _ in range(3):
        optimizer.step()
    assert (session.steps, session.depth) == (3, 0)


def test_a_wrapper_and_what_it_wraps_are_one_step(session: Any) -> None:
    """Inside of another one's step an optimizer ends nothing."""
    wrapper = made(Wrapper)
    wrapper.inner = made(torch.optim.SGD)
    for _ in range(3):
        wrapper.step()
    assert (session.steps, session.cuts, session.depth) == (3, 3, 0)
