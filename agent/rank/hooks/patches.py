"""The patches of torch that observe a step: data, forward, backward and loss, optimizer, start-up.

Every patch calls the original with the same arguments and passes its exceptions on;
errors of the patch itself are counted and dropped.  Phases are those of the training thread, and a
compiler that traces a patch meets only the original.  `groups` hooks process groups,
`compilers` hides the hooks from compilers, and `injection` adds faults.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from ddptop.agent.rank.hooks import batches, compilers, copies, groups, injection, losses, totals
from ddptop.agent.rank.hooks.around import Hooks, on_leaving, replace
from ddptop.agent.rank.hooks.boundary import Boundary, hooks_of_steps
from ddptop.agent.rank.hooks.imports import after_import
from ddptop.agent.rank.records import device_time
from ddptop.agent.rank.records.stamps import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, Stamps

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session

_FSDP2 = ("torch.distributed.fsdp._fully_shard._fsdp_state", "torch.distributed._composable.fsdp._fsdp_state")
"""The module with FSDP2's state, in newer and in older versions of torch."""


def install_with_torch(session: Session) -> None:
    """Patch torch right after the script's own `import torch`."""
    after_import("torch", session.faults.guard(functools.partial(_install_guarded, session)))


def _install_guarded(session: Session, torch: Any) -> None:
    session.torch_version = str(torch.__version__)
    session.checks.watch(torch)
    scaled = losses.Scaled()
    installations: tuple[Callable[[Session, Any], None], ...] = (
        injection.inject,
        _data,
        _forward,
        _sharded_forward,
        _staged_forward,
        functools.partial(_backward, scaled=scaled),
        functools.partial(_optimizer, scaled=scaled),
        _captures,
        _copies,
        groups.distributed,
        _marks,
        _totals,
        _hide_from_compilers,
    )
    for install in installations:
        with session.faults.noted(f"patching {getattr(install, 'func', install).__name__.strip('_')}"):
            install(session, torch)


def _data(session: Session, torch: Any) -> None:
    from torch.utils.data import dataloader
    from torch.utils.data._utils import fetch

    stamps, datasets = session.stamps, batches.Datasets()

    def enter(iterator: Any) -> None:
        # The dataset identifies the loader, also where each epoch makes a new one.
        dataset = datasets.number(getattr(iterator, "_dataset", iterator))
        stamps.draw(dataset, evaluation=not torch.is_grad_enabled())

    def leave(batch: Any) -> None:
        try:
            sizes = batches.sizes_of(torch, batch)
        except Exception as error:
            # The batch may be any object of the script; the draw is noted all the same.
            session.faults.note("size of a batch", error)
            sizes = None, None
        stamps.drew(*sizes)
        if not session.sees_forward and batch is not None and torch.is_grad_enabled():
            stamps.turn(FORWARD)

    hooks = Hooks(session, torch)
    counted = functools.partial(_drawn_in_counted, session, torch)
    hooks.around(dataloader._BaseDataLoaderIter, "__next__", enter, leave, counted=counted)
    hooks.around(dataloader.DataLoader, "__iter__", lambda _: stamps.open_loader(), lambda _: stamps.leave())
    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        replace(fetcher, "fetch", session.diagnoses.workers.around(fetcher.fetch))


def _drawn_in_counted(session: Session, torch: Any, original: Any) -> Callable[..., Any]:
    stamps, with_gradients = session.stamps, torch.is_grad_enabled
    phases, homes, clock, cost = stamps.phases, stamps.homes, stamps.clock, stamps.cost

    def through(*args: Any, **kwargs: Any) -> Any:
        began = cost.clock() if cost.sampling else 0
        phases.append(DATA)
        homes.append(DATA)
        stamps.trail.append((clock(), DATA))
        if began:
            cost.add(cost.clock() - began)
        try:
            return original(*args, **kwargs)
        finally:
            phases.pop()
            homes.pop()
            if not with_gradients():
                stamps.evaluates()
            elif not session.sees_forward:
                phases[-1] = FORWARD
            stamps.trail.append((clock(), phases[-1]))

    return through


def _run_in_counted(session: Session, torch: Any, original: Any) -> Callable[..., Any]:
    stamps, with_gradients = session.stamps, torch.is_grad_enabled
    phases, clock, cost = stamps.phases, stamps.clock, stamps.cost

    def through(*args: Any, **kwargs: Any) -> Any:
        began = cost.clock() if cost.sampling else 0
        if with_gradients():
            phases[-1] = FORWARD
            stamps.trail.append((clock(), FORWARD))
        else:
            stamps.evaluates()
            stamps.turn(OTHER)
        if began:
            cost.add(cost.clock() - began)
        return original(*args, **kwargs)

    return through


def _forward(session: Session, torch: Any) -> None:
    from torch.nn.parallel import DistributedDataParallel

    made: list[Any] = []

    def enter_init(module: Any, *_: Any, **__: Any) -> None:
        made[:] = [module]
        session.starting("wrapping the model in DDP")

    def leave_init(_: Any) -> None:
        session.starting("preparing the first step")
        module = made.pop()
        # Not where its constructor has raised.
        if hasattr(module, "reducer"):
            session.checks.wrapped(module)

    init: Any = DistributedDataParallel.__init__

    @functools.wraps(init)
    def made_by(module: Any, *args: Any, **kwargs: Any) -> None:
        # Of any thread, unlike hooks.
        session.diagnoses.counting.note_module()
        init(module, *args, **kwargs)

    replace(DistributedDataParallel, "__init__", made_by)
    hooks = Hooks(session, torch)
    hooks.around(DistributedDataParallel, "__init__", enter_init, leave_init)
    hooks.around(
        DistributedDataParallel,
        "forward",
        lambda *_, **__: _begin_forward(session, torch),
        lambda _: None,
        counted=functools.partial(_run_in_counted, session, torch),
    )


def _begin_forward(session: Session, torch: Any) -> None:
    # Computing the loss is part of the forward pass, which ends where backward begins.
    if torch.is_grad_enabled():
        session.sees_forward = True
        session.stamps.turn(FORWARD)
    else:
        session.stamps.used(evaluation=True)
        session.stamps.turn(OTHER)


def _sharded_forward(session: Session, torch: Any) -> None:
    """Stamp the forward pass of FSDP2's root module, inside of which those of its parts are."""

    def act(module: ModuleType) -> None:
        state = vars(module).get("FSDPState")
        if hasattr(state, "_root_pre_forward"):
            Hooks(session, torch).around(state, "_root_pre_forward", begin, lambda _: None)

    def begin(state: Any, *_: Any, **__: Any) -> None:
        if state._state_ctx.iter_forward_root is None:
            _begin_forward(session, torch)

    for name in _FSDP2:
        after_import(name, session.faults.guard(act))


def _staged_forward(session: Session, torch: Any) -> None:
    """Stamp the forward pass of each microbatch through a stage of torch's pipelines."""

    def act(module: ModuleType) -> None:
        stage = vars(module).get("_PipelineStageBase")
        if hasattr(stage, "forward_one_chunk"):
            stamps = session.stamps
            Hooks(session, torch).around(
                stage, "forward_one_chunk", lambda *_, **__: stamps.enter(FORWARD), lambda _: stamps.leave()
            )

    after_import("torch.distributed.pipelining.stage", session.faults.guard(act))


def _backward(session: Session, torch: Any, scaled: losses.Scaled) -> None:
    stamps = session.stamps
    depth = 0

    def enter(tensors: Any = None, *_: Any, **__: Any) -> None:
        # Activation checkpointing runs a backward pass inside of one.
        nonlocal depth
        depth += 1
        if depth == 1:
            stamps.used(evaluation=False)
            stamps.enter(BACKWARD)
            session.backward_on = tensors
            stamps.divided(losses.parts(tensors))

    def leave(_: Any) -> None:
        nonlocal depth
        depth -= 1
        if depth:
            return
        stamps.settle()
        tensors, session.backward_on = session.backward_on, None
        if session.device is None:
            note_device(tensors)
        loss = losses.total(torch, tensors, scaled)
        if loss is not None:
            stamps.loss(loss)

    phases, homes, clock, cost = stamps.phases, stamps.homes, stamps.clock, stamps.cost

    def counted(original: Any) -> Callable[..., Any]:
        def through(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            began = cost.clock() if cost.sampling else 0
            depth += 1
            phases.append(BACKWARD)
            homes.append(BACKWARD)
            stamps.trail.append((clock(), BACKWARD))
            if began:
                cost.add(cost.clock() - began)
            try:
                return original(*args, **kwargs)
            finally:
                began = cost.clock() if cost.sampling else 0
                depth -= 1
                phases.pop()
                homes.pop()
                if not depth:
                    # The end of the forward pass as well.
                    phases[-1] = homes[-1]
                    loss = look(args[0] if args else kwargs.get("tensors"))
                    stamps.trail.append((clock(), phases[-1], loss))
                if began:
                    cost.add(cost.clock() - began)

        return through

    def look(tensors: Any) -> Any:
        """Look at a loss that is on the host, which costs next to nothing; return what is to be remembered of it."""
        try:
            if scaled.pairs:
                plain = scaled.plain(tensors)
                scaled.spend(tensors)
                return losses.noted(torch, plain)
            loss = losses.noted(torch, tensors)
            # True of NaN and of the infinite.
            if type(loss) is float and loss - loss != 0.0:
                stamps.spoiled(loss)
            return loss
        except Exception as error:
            session.faults.note("backward", error)

    def note_device(tensors: Any) -> None:
        first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if first is None:
            return
        session.device = str(first.device)
        if first.is_cuda:
            stamps.device = device_time.clock_of(torch, first.device)

    Hooks(session, torch).around(torch.autograd, "backward", enter, leave, counted=counted)


def _steps_inside(file: str) -> bool:
    """Say whether the stack of this thread has two nested steps of torch's optimizers; `file` defines their wrapper."""
    found = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        found += code.co_name == "wrapper" and code.co_filename == file
        frame = frame.f_back
    return found > 1


def _optimizer(session: Session, torch: Any, scaled: losses.Scaled) -> None:
    """Stamp the steps of optimizers, with gradient clipping, and those of a GradScaler."""
    from torch.optim import optimizer

    stamps = session.stamps
    boundary = Boundary(session, functools.partial(_steps_inside, optimizer.__file__))
    compiling = torch.compiler.is_compiling
    before, after = hooks_of_steps(session, boundary, compiling)
    _leave_out_initialization(session, optimizer, before, after)

    def enter(*_: Any, **__: Any) -> None:
        stamps.enter(OPTIMIZER)

    def clipped(norm: Any) -> None:
        stamps.leave()
        # Of a counted step it would be taken for the next recorded one's, whether or not a GradScaler skips either.
        if stamps.recording and (value := losses.pending(torch, norm)) is not None:
            stamps.gradient(value)

    hooks = Hooks(session, torch)
    for name, leave in (("clip_grad_norm_", clipped), ("clip_grad_value_", lambda _: stamps.leave())):
        hooks.around(torch.nn.utils.clip_grad, name, enter, leave)
        replace(torch.nn.utils, name, getattr(torch.nn.utils.clip_grad, name))
    scaler = torch.amp.GradScaler
    given: list[Any] = []
    hooks.around(
        scaler, "scale", lambda _, outputs: given.append(outputs), lambda result: scaled.note(given.pop(), result)
    )
    hooks.around(scaler, "unscale_", enter, lambda _: stamps.leave())
    _scaled_step(scaler, boundary, session, compiling)
    _around_backward(torch, boundary, session.stamps, compiling)


def _around_backward(torch: Any, boundary: Boundary, stamps: Stamps, compiling: Callable[[], bool]) -> None:
    """Let a step end at a backward pass as well, that of `torch.autograd.grad` too.

    Not by `Hooks`, whose functions cannot raise what a hold raises.
    """
    ident = threading.get_ident

    def patch(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            if compiling() or ident() != stamps.thread:
                return original(*args, **kwargs)
            return boundary.backward(original, *args, **kwargs)

        return patched

    for name in ("backward", "grad"):
        replace(torch.autograd, name, patch(getattr(torch.autograd, name)))


def _leave_out_initialization(session: Session, optimizer: Any, before: Any, after: Any) -> None:
    """Register the hooks of all optimizers, but for the step by which torch makes the state that a checkpoint fills."""
    handles: list[Any] = []

    def register() -> None:
        if session.step_hooks is not None:
            session.step_hooks.before, session.step_hooks.after = before, after
            return
        handles.append(optimizer.register_optimizer_step_pre_hook(before))
        handles.append(optimizer.register_optimizer_step_post_hook(after))

    def act(module: Any) -> None:
        original = module._init_optim_state

        @functools.wraps(original)
        def initialize(*args: Any, **kwargs: Any) -> Any:
            if session.step_hooks is not None:
                session.step_hooks.clear()
            while handles:
                handles.pop().remove()
            try:
                return original(*args, **kwargs)
            finally:
                register()

        replace(module, "_init_optim_state", initialize)

    register()
    after_import("torch.distributed.checkpoint.state_dict", session.faults.guard(act))


def _scaled_step(scaler: Any, boundary: Boundary, session: Session, compiling: Callable[[], bool]) -> None:
    """Make `GradScaler.step` a step even where it skips the optimizer, so that all ranks have the same count."""
    original = scaler.step
    stamps, ident, guard = session.stamps, threading.get_ident, session.faults.guard
    begin, end, abandon = guard(boundary.begin), guard(boundary.end), guard(boundary.abandon)

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or ident() != stamps.thread:
            return original(self, *args, **kwargs)
        begin(self, args[0] if args else kwargs.get("optimizer"))
        if boundary.reached:
            boundary.hold()
        try:
            result = original(self, *args, **kwargs)
        except BaseException:  # raised again: the scaler has no hook for it
            abandon(self)
            raise
        end(self)
        boundary.hold()
        return result

    replace(scaler, "step", step)


def _marks(session: Session, torch: Any) -> None:
    if not session.marks.has_optimizer:
        session.marks.install(torch)
    session.marks.watch_processes(torch)


def _totals(session: Session, _torch: Any) -> None:
    totals.watch(session.totals, session.faults)


def _hide_from_compilers(_session: Session, torch: Any) -> None:
    compilers.hide(torch)


def _captures(_session: Session, torch: Any) -> None:
    device_time.CAPTURES.watch(torch.cuda.CUDAGraph)


def _copies(session: Session, torch: Any) -> None:
    # Builds of torch for the CPU alone have no such function, and nothing to copy to.
    if hasattr(torch._C, "_cuda_getDeviceCount"):
        # Only where the script uses a device; nothing is hooked in a training on the CPU.
        watch = functools.partial(copies.watch, torch, session.stamps, session.faults.note)
        guarded = session.faults.guard(watch)
        torch.cuda._lazy_call(guarded)
        on_leaving(functools.partial(_forget_call, torch.cuda, guarded))


def _forget_call(cuda: Any, call: Any) -> None:
    waiting = getattr(cuda, "_queued_calls", [])
    waiting[:] = [each for each in waiting if each[0] is not call]
