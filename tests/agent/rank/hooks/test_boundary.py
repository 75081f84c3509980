"""Which optimizer's step is the step: the outermost one, whatever has raised before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support import late

from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.hooks import batches, losses, patches
from ddptop.agent.rank.hooks.boundary import Boundary
from ddptop.agent.rank.hooks.patches import _steps_inside
from ddptop.agent.rank.inspection.looks.workers import Workers
from ddptop.agent.rank.inspection.stacks import own_sources
from ddptop.agent.rank.records.cost import Cost
from ddptop.agent.rank.records.stamps import OTHER, Stamps

if TYPE_CHECKING:
    import torch
    from torch.optim import optimizer as optimizer_module

_imports = late.imports(globals())


class Session:
    """Counts the steps that a rank would count, and has something to do at the end of each of them."""

    def __init__(self) -> None:
        self.faults, self.stamps, self.steps, self.cuts = Faults(), self, 0, 0
        self.step_hooks = None
        self.checks = self.gate = self
        counting = SimpleNamespace(is_under_way=False)
        self.diagnoses = SimpleNamespace(workers=Workers(own_sources), counting=counting)
        self.cost, self.recording, self.clock = Cost(), True, time.perf_counter_ns
        self.completed = self.eventful = 0
        self.phases, self.homes = [OTHER], [OTHER]
        self.quiet_steps: dict[int, object] = {}
        self.depth = 0
        self.thread: int | None = threading.main_thread().ident
        self.in_backward = False

    def enter(self, _: object) -> None:
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1

    def skip(self) -> None:
        raise AssertionError("every step here is an optimizer's")

    def rate(self, _: float) -> None: ...

    def stepped(self, _: object) -> None: ...

    def end_step(self) -> None:
        self.cuts += 1

    def count(self) -> None:
        self.steps += 1


@pytest.fixture
def session() -> Any:
    """A boundary behind torch's own hooks."""
    found = Session()
    boundary = Boundary(found, lambda: _steps_inside(optimizer_module.__file__))  # type: ignore[arg-type]
    patches = [
        optimizer_module.register_optimizer_step_pre_hook(lambda stepping, *_: boundary.begin(stepping)),
        optimizer_module.register_optimizer_step_post_hook(lambda stepping, *_: boundary.end(stepping)),
        optimizer_module.register_optimizer_step_post_hook(lambda *_: boundary.hold()),
    ]
    yield found
    for hook in patches:
        hook.remove()


def made(kind: type[torch.optim.SGD]) -> Any:
    return kind([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def full() -> Any:
    """Return an optimizer whose step raises until it is told not to."""

    class Full(torch.optim.SGD):
        full = True

        def step(self, closure: Any = None) -> Any:
            if self.full:
                raise torch.OutOfMemoryError
            return super().step(closure)

    return made(Full)


def wrapper_of(inner: torch.optim.Optimizer) -> Any:
    """Return one that steps another inside of its own step, as ZeroRedundancyOptimizer does."""

    class Wrapper(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return inner.step(closure)

    return made(Wrapper)


def test_after_a_step_that_raised_another_optimizer_counts(session: Any) -> None:
    """A script that runs out of memory and begins again with a smaller batch and a new optimizer trains on."""
    with pytest.raises(torch.OutOfMemoryError):
        full().step()
    fresh = made(torch.optim.SGD)
    for _ in range(5):
        fresh.step()
    assert (session.steps, session.cuts, session.depth) == (5, 5, 0)


def test_the_same_optimizer_counts_again_after_it_raised(session: Any) -> None:
    """Neither the step that raised nor its phase is left over."""
    optimizer = full()
    with pytest.raises(torch.OutOfMemoryError):
        optimizer.step()
    optimizer.full = False
    for _ in range(3):
        optimizer.step()
    assert (session.steps, session.depth) == (3, 0)


def test_a_wrapper_and_what_it_wraps_are_one_step(session: Any) -> None:
    """Inside of another one's step an optimizer ends nothing."""
    wrapper = wrapper_of(made(torch.optim.SGD))
    for _ in range(3):
        wrapper.step()
    assert (session.steps, session.cuts, session.depth) == (3, 3, 0)


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Session:
    """A rank whose optimizers are hooked as in a training, as long as the test lasts."""
    for owner, names in (
        (torch.nn.utils.clip_grad, ("clip_grad_norm_", "clip_grad_value_")),
        (torch.nn.utils, ("clip_grad_norm_", "clip_grad_value_")),
        (torch.amp.GradScaler, ("scale", "unscale_", "step")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(optimizer_module, name, type(getattr(optimizer_module, name))())
    found = Session()
    patches._optimizer(found, torch, losses.Scaled())  # type: ignore[arg-type]
    return found


def in_a_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_another_threads_optimizer_is_no_step_of_the_training(hooked: Session) -> None:
    """Stepped between the training's steps, and in the middle of one, it changes nothing."""
    trained, other = made(torch.optim.SGD), made(torch.optim.SGD)
    trained.step()
    in_a_thread(other.step)
    trained.register_step_pre_hook(lambda *_: in_a_thread(other.step))
    trained.step()
    assert (hooked.steps, hooked.cuts, hooked.depth) == (2, 2, 0)


def test_a_training_in_a_thread_of_its_own_is_counted(hooked: Session) -> None:
    """As long as the main thread steps nothing; from then on the main thread's steps are the training's."""
    trained, main = made(torch.optim.SGD), made(torch.optim.SGD)
    in_a_thread(lambda: [trained.step() for _ in range(2)])
    first = hooked.steps
    main.step()
    in_a_thread(trained.step)
    assert (first, hooked.steps, hooked.depth) == (2, 3, 0)


def test_one_thread_after_the_other_may_train(hooked: Session) -> None:
    """A pool, or a thread for each trial: whichever thread trains once the one before has ended is counted."""
    trained = made(torch.optim.SGD)
    turns = [threading.Event() for _ in range(3)]
    steps = []

    def first() -> None:
        trained.step()
        turns[0].set()
        turns[1].wait()

    def second() -> None:
        turns[0].wait()
        trained.step()
        steps.append(hooked.steps)
        turns[1].set()
        turns[2].wait()
        trained.step()
        steps.append(hooked.steps)

    # Both at once, so that the second has not got the first one's number.
    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    threads[0].join()
    turns[2].set()
    threads[1].join()
    assert (steps, hooked.depth) == ([1, 2], 0)


def test_a_batch_without_a_size_is_drawn_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of the script's own making that raises when it is measured: a fault, and no phase is left open."""
    from torch.utils.data import DataLoader, dataloader

    def raises(_: object, batch: object) -> tuple[int | None, int | None]:
        if batch is None:  # the end of the loader
            return None, None
        raise TypeError("no length")

    for owner, name in ((dataloader._BaseDataLoaderIter, "__next__"), (DataLoader, "__iter__")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(batches, "sizes_of", raises)
    found: Any = Session()
    found.stamps, found.sees_forward = Stamps(), False
    patches._data(found, torch)
    assert len(list(DataLoader(torch.zeros(3, 1)))) == 3  # type: ignore[arg-type]
    assert (len(found.stamps.phases), found.faults.count) == (1, 3)
    found.stamps.cut(1)
    stamped = found.stamps.finished.popleft()
    assert [draw.samples for draw in stamped.draws[:3]] == [None] * 3
    assert stamped.samples is None
