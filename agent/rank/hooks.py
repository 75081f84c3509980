"""The one file that patches torch: data, forward, backward and loss, optimizer, start-up.

Every patch calls the original exactly as it was called and lets its exceptions through;
what ours fails at is counted and dropped.  Only the main thread's steps are stamped.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ddptop.agent.rank import losses
from ddptop.agent.rank.tape import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session


def install_with_torch(session: Session) -> None:
    """Patch torch right after the script's own `import torch`.

    Not before: what a script sets in its environment ahead of that import must still count.
    """
    if "torch" in sys.modules:
        _install_guarded(session, sys.modules["torch"])
    else:
        sys.meta_path.insert(0, _AfterTorch(session))


class _AfterTorch(importlib.abc.MetaPathFinder):
    def __init__(self, session: Session) -> None:
        self._session = session

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _install_guarded(self._session, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _install_guarded(session: Session, torch: Any) -> None:
    session.torch_version = str(torch.__version__)
    for install in (_data, _forward, _backward, _optimizer, _groups):
        try:
            install(session, torch)
        except Exception as error:
            session.faults.note(f"patching {install.__name__.strip('_')}", error)


class _Stamps:
    """Writes to the tape, from the main thread only, and never raises."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._main = threading.main_thread().ident

    def around(self, owner: Any, name: str, before: Callable[..., None], after: Callable[..., None]) -> None:
        """Replace `owner.name` by one with `before(*args, **kwargs)` and `after(result)` around it."""
        original = getattr(owner, name)
        note, main, ident = self._session.faults.note, self._main, threading.get_ident

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            if ident() != main:
                return original(*args, **kwargs)
            try:
                before(*args, **kwargs)
            except Exception as error:
                note(name, error)
            result = None
            try:
                result = original(*args, **kwargs)
                return result
            finally:
                try:
                    after(result)
                except Exception as error:
                    note(name, error)

        setattr(owner, name, patched)


def _data(session: Session, torch: Any) -> None:
    from torch.utils.data import dataloader

    tape = session.tape

    def enter(*_: Any, **__: Any) -> None:
        tape.enter(DATA)

    def leave(batch: Any) -> None:
        tape.leave()
        samples = _batch_size(torch, batch)
        if samples is not None:
            tape.drew(samples)
        if not session.sees_forward:
            tape.turn(FORWARD)

    stamps = _Stamps(session)
    stamps.around(dataloader._BaseDataLoaderIter, "__next__", enter, leave)
    stamps.around(dataloader.DataLoader, "__iter__", enter, lambda _: tape.leave())


def _batch_size(torch: Any, batch: Any) -> int | None:
    """Return the first dimension of the first tensor in a batch."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.ndim else 1
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((size for size in (_batch_size(torch, item) for item in batch) if size is not None), None)
    return None


def _forward(session: Session, torch: Any) -> None:
    from torch.nn.parallel import DistributedDataParallel

    tape = session.tape
    stamps = _Stamps(session)

    def enter_init(*_: Any, **__: Any) -> None:
        session.starting("wrapping the model in DDP")

    stamps.around(
        DistributedDataParallel, "__init__", enter_init, lambda _: session.starting("preparing the first step")
    )
    original: Callable[..., Any] = DistributedDataParallel.forward
    main, ident = threading.main_thread().ident, threading.get_ident

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A compiler that traces this must see the original alone.
        if torch.compiler.is_compiling() or ident() != main:
            return original(self, *args, **kwargs)
        training = torch.is_grad_enabled()
        session.sees_forward = session.sees_forward or training
        tape.turn(FORWARD)
        try:
            return original(self, *args, **kwargs)
        finally:
            # With gradients on, the loss that follows is still part of the forward pass.
            if not training:
                tape.turn(OTHER)

    setattr(DistributedDataParallel, "forward", forward)  # noqa: B010 (mypy forbids to assign a method)


def _backward(session: Session, torch: Any) -> None:
    tape = session.tape

    def enter(tensors: Any = None, *_: Any, **__: Any) -> None:
        tape.enter(BACKWARD)
        session.backward_on = tensors

    def leave(_: Any) -> None:
        tape.leave()
        tape.turn(OTHER)
        tensors, session.backward_on = session.backward_on, None
        first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if first is not None:
            session.device = str(first.device)
            loss = losses.pending(torch, first)
            if loss is not None:
                tape.loss(loss)

    _Stamps(session).around(torch.autograd, "backward", enter, leave)


def _optimizer(session: Session, torch: Any) -> None:
    from torch.optim import optimizer

    tape = session.tape
    depth = 0

    def before(*_: Any) -> None:
        nonlocal depth
        depth += 1
        if depth == 1:
            tape.enter(OPTIMIZER)

    def after(*_: Any) -> None:
        # An optimizer that wraps others (ZeroRedundancyOptimizer) is one step.
        nonlocal depth
        depth = max(0, depth - 1)
        if depth == 0:
            tape.leave()
            session.cut()

    def hold(*_: Any) -> None:
        # Not guarded: what a signal handler of the script raises while held here is the script's.
        if depth == 0:
            session.hold()

    guard = session.faults.guard
    optimizer.register_optimizer_step_pre_hook(guard(before))
    optimizer.register_optimizer_step_post_hook(guard(after))
    optimizer.register_optimizer_step_post_hook(hold)


def _groups(session: Session, torch: Any) -> None:
    """Follow the start of torch.distributed, and hook each process group as it is made."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    def made(result: Any) -> None:
        if isinstance(result, tuple) and result and isinstance(result[0], torch.distributed.ProcessGroup):
            session.collectives.watch(result[0])

    def enter_init(*_: Any, **__: Any) -> None:
        session.starting("rendezvous")

    def leave_init(_: Any) -> None:
        session.backend = str(torch.distributed.get_backend())
        session.starting("building the model")

    stamps = _Stamps(session)
    stamps.around(c10d, "_new_process_group_helper", lambda *_, **__: None, made)
    stamps.around(c10d, "init_process_group", enter_init, leave_init)
    torch.distributed.init_process_group = c10d.init_process_group
