"""Puts the faults of `--inject` into this rank: torch is patched before the agent adds its hooks.

So a delay lies inside the phase that the hooks stamp, as a real one would.  A rank without
injections is not patched.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from ddptop.agent.run.switches.injection import Injection, listed, parse_all

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session

MESSAGE: Final = "injected by ddptop --inject"
"""Message of an injected crash, so that nobody searches for its reason in the script."""

HOOK_ID: Final = 0xDD6F
"""Hooks of a process group run in the order of their ids: this one runs before that of `collectives.timing`."""

_MEASURED: Final = 16
"""Steps whose usual time is that of a delay that is a part of a step."""
_LEAST_MEASURED: Final = 4
"""Fewer than these say nothing: there is no such delay yet."""


class Injector:
    """The injections of this rank, and the steps that they have hit."""

    def __init__(
        self,
        step: Callable[[], int],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._step = step
        self._sleep = sleep
        self._clock = clock
        self._at, self._since = 0, 0.0
        """The present step, and when it was first seen here."""
        self._lasted: deque[float] = deque(maxlen=_MEASURED)
        """Seconds of the steps before it."""
        self._usual_s: float | None = None
        """Seconds of a usual step before the first delay that is a part of one; None until that is known."""
        self._orders: tuple[Injection, ...] = ()
        self._done: dict[Injection, int] = {}
        """By injection, the last step that it has hit: it happens once a step, however often its phase begins."""

    def order(self, injections: Iterable[Injection]) -> None:
        """Replace the injections."""
        self._orders = tuple(injections)

    def due(self, kind: str) -> list[Injection]:
        """Return the injections of a kind that this step has not had yet, and count them as done."""
        step = self._step()
        if step != self._at:
            now = self._clock()
            if step == self._at + 1 > 1:
                self._lasted.append(now - self._since)
            self._at, self._since = step, now
        kin = (each for each in self._orders if each.kind == kind)
        found = [each for each in kin if each.hits(step) and self._done.get(each) != step]
        self._done.update(dict.fromkeys(found, step))
        return found

    def delay(self, phase: str) -> None:
        """Sleep where a delay in this phase is due."""
        for each in self.due(phase):
            if each.of_step and self._usual_s is None and len(self._lasted) >= _LEAST_MEASURED:
                self._usual_s = statistics.median(self._lasted)
            self._sleep(each.ms / 1e3 + each.of_step * (self._usual_s or 0.0))

    def has_left(self) -> bool:
        """Say whether this rank skips the group's reductions in this step."""
        step = self._step()
        return any(each.kind == "skip-collective" and step >= each.start for each in self._orders)

    def strike(self) -> None:
        """Crash or hang where that is due."""
        if self.due("crash"):
            raise RuntimeError(MESSAGE)
        if self.due("hang"):
            while True:
                self._sleep(3600)


injector: Injector | None = None
"""The injector of this process, None where nothing is injected; a benchmark changes its injections."""


def inject(session: Session, torch: Any) -> None:
    """Patch torch where the environment has injections for this rank; to be called before other patches."""
    global injector
    wanted = [each for each in parse_all(listed(os.environ), session.hello.world) if each.rank == session.rank]
    if not wanted:
        return
    injector = Injector(lambda: session.gate.completed + 1)
    injector.order(wanted)
    for patch in (_data, _forward, _backward, _optimizer, _groups):
        patch(injector, torch)
    kinds = {each.kind for each in wanted}
    if "forward" in kinds:
        _forward_without_ddp(injector, torch)
    if "skip-collective" in kinds:
        _all_reduce(injector, torch)


def _before(owner: Any, name: str, action: Callable[[], None]) -> None:
    """Replace the function `owner.name` by one that calls `action` first."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        action()
        return original(*args, **kwargs)

    setattr(owner, name, patched)


def _data(injector: Injector, torch: Any) -> None:
    from torch.utils.data import dataloader

    _before(dataloader._BaseDataLoaderIter, "__next__", lambda: injector.delay("data"))


def _forward(injector: Injector, torch: Any) -> None:
    from torch.nn.parallel import DistributedDataParallel

    original: Callable[..., Any] = DistributedDataParallel.forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return original(self, *args, **kwargs)
        injector.delay("forward")
        if not injector.has_left():
            return original(self, *args, **kwargs)
        # DDP decides in forward whether the next backward pass issues its all-reduces.
        with self.no_sync():
            return original(self, *args, **kwargs)

    setattr(DistributedDataParallel, "forward", forward)  # noqa: B010 - mypy forbids to assign a method


def _forward_without_ddp(injector: Injector, torch: Any) -> None:
    """Delay the forward pass of a model without DDP, which begins with the first module called with gradients."""
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.nn.parallel import DistributedDataParallel

    wrapped = False

    def first(module: Any, _: Any) -> None:
        nonlocal wrapped
        wrapped = wrapped or isinstance(module, DistributedDataParallel)
        if not wrapped and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            injector.delay("forward")

    register_module_forward_pre_hook(first)


def _backward(injector: Injector, torch: Any) -> None:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        injector.strike()
        # Before the first gradient, so that all gradients are late, and so are the all-reduces that wait for them.
        injector.delay("backward")
        if injector.due("nan"):
            single = isinstance(tensors, torch.Tensor)
            ruined = [_ruined(torch, tensor) for tensor in ([tensors] if single else tensors)]
            tensors = ruined[0] if single else ruined
        return original(tensors, *args, **kwargs)

    torch.autograd.backward = backward


def _ruined(torch: Any, tensor: Any) -> Any:
    # The first line ruins the loss that the script prints, the second one the gradients.
    tensor.data.mul_(torch.nan)
    return tensor * torch.nan


def _optimizer(injector: Injector, torch: Any) -> None:
    from torch.optim import optimizer

    # A post hook, because hooks run in the order of their registration: it runs before the hook
    # that ends the phase, while a pre hook would run before the one that begins the phase.
    optimizer.register_optimizer_step_post_hook(lambda *_: injector.delay("optimizer"))


def _groups(injector: Injector, torch: Any) -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    make_group = c10d._new_process_group_helper

    @functools.wraps(make_group)
    def made(*args: Any, **kwargs: Any) -> Any:
        result = make_group(*args, **kwargs)
        group: Any = result[0] if isinstance(result, tuple) and result else None
        if hasattr(group, "register_pre_hook"):
            group.register_pre_hook(HOOK_ID, lambda _: injector.delay("comm"))
        return result

    c10d._new_process_group_helper = made


def _all_reduce(injector: Injector, torch: Any) -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    original = c10d.all_reduce

    @functools.wraps(original)
    def all_reduce(tensor: Any, op: Any = c10d.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        # A caller that asks for a handle waits for it, and a skipped call has none.
        if injector.has_left() and not async_op:
            return None
        return original(tensor, op, group, async_op)

    c10d.all_reduce = torch.distributed.all_reduce = all_reduce
