"""What a rank compares of its DDP modules and optimizers, when, and what it tells of it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from support import late

from ddptop.agent import wire
from ddptop.agent.rank.ahead import Passed, Unanswered
from ddptop.agent.rank.checksums.checks import (
    _MOST_STREAKS,
    ASKED,
    MOST_FAILURES,
    NAMES_S,
    Checks,
)
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.records.device_time import CAPTURES
from ddptop.agent.run.switches.checking import Checking

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

_imports = late.imports(globals())


@pytest.fixture(scope="module")
def group() -> Any:
    """A process group of this process alone."""
    store: Any = dist.HashStore()  # type: ignore[attr-defined]  # torch does not list it
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Rank:
    """The checks of a rank, and a training that they look at."""

    def __init__(self, every: int = 1, *buffers: str) -> None:
        self.faults = Faults()
        self.checks = Checks(3, 7, self.faults, Checking(every, buffers))
        self.checks.watch(torch)
        self.step = 0

    def wrap(self, module: Any, **options: Any) -> Any:
        wrapped = DistributedDataParallel(module, **options)
        self.checks.wrapped(wrapped)
        return wrapped

    def train(self, *optimizers: Any) -> list[wire.Checksums]:
        """Make a step of these optimizers, one inside of the other; return what is told."""
        self.step += 1
        for each in optimizers:
            self.checks.stepped(each)
        self.checks.boundary(self.step)
        return list(self.checks.take())


def optimizer_of(*modules: Any) -> Any:
    return torch.optim.SGD([parameter for module in modules for parameter in module.parameters()], lr=0.1)


def test_a_wrapped_module_is_told_every_so_many_of_its_own_steps(group: None) -> None:
    """Two networks that step in turn: each after its own third step, with the number of the training's step."""
    rank = Rank(3)
    one, other = rank.wrap(nn.Linear(4, 2)), rank.wrap(nn.Linear(4, 2, bias=False))
    optimizers = optimizer_of(one), optimizer_of(other)
    told = [message for turn in range(14) for message in rank.train(optimizers[turn % 2])]
    assert [(message.step, [each.number for each in message.modules]) for message in told] == [
        (5, [0]), (6, [1]), (11, [0]), (12, [1]),
    ]  # fmt: skip
    (module,) = told[0].modules
    assert (module.group, module.members, module.steps, module.names) == ("0", 1, 3, ("weight", "bias"))
    assert (told[0].rank, told[0].generation, told[0].every, len(module.sums)) == (3, 7, 3, 16)
    assert told[1].modules[0].layout != module.layout
    assert told[2].modules[0].names == ()


@pytest.mark.parametrize("every", [0, 2])
def test_a_step_that_is_only_counted_is_a_step_of_the_parameters(group: None, every: int) -> None:
    """What is told at the tenth of ten steps says ten, and two of a network that stepped inside of two of them."""
    rank = Rank(every)
    one, other = rank.wrap(nn.Linear(4, 2)), rank.wrap(nn.Linear(4, 2, bias=False))
    outer, inner = optimizer_of(one), optimizer_of(other)
    quiet = 0
    for step in range(1, 11):
        if step == 10:
            assert rank.checks.ask(step, step - 1) is None
        if step in (3, 4):
            rank.checks.stepped(inner)
        if step % 4 and rank.checks.quiet:
            rank.checks.quiet_steps[id(outer)].steps += 1
            quiet += 1
        else:
            rank.checks.stepped(outer)
            rank.checks.boundary(step)
    told = list(rank.checks.take())
    assert [message.step for message in told] == ([10] if not every else [2, 4, 6, 8, 10])
    assert [each.steps for each in told[-1].modules] == [10, 2]
    assert quiet == (0 if every else 5)


def test_who_asks_while_a_step_ends_is_not_passed_over() -> None:
    """The agent's thread asks for the next step, just after the training thread saw that nobody has asked."""
    rank = Rank(0)

    class Asking:
        steps = 0

        def __setattr__(self, _: str, steps: int) -> None:
            assert rank.checks.ask(2, 0) is None

    rank.checks._modules.changed = lambda _: [Asking()]  # type: ignore[union-attr, method-assign, list-item]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    rank.checks.stepped(optimizer)
    rank.checks.boundary(1)
    assert not rank.checks.quiet


def test_a_module_that_is_wrapped_later_ends_the_streaks(group: None) -> None:
    """What an optimizer changes is looked up anew: a parameter of its own may be the new module's."""
    rank, late = Rank(0), nn.Linear(4, 2, bias=False)
    early = rank.wrap(nn.Linear(4, 2))
    optimizer = optimizer_of(early, late)
    rank.train(optimizer)
    rank.checks.quiet_steps[id(optimizer)].steps += 1
    later = rank.wrap(late)
    assert not rank.checks.quiet_steps
    rank.checks.ask(3, 2)
    rank.checks.stepped(optimizer)
    rank.checks.boundary(3)
    (message,) = rank.checks.take()
    told = {each.names: each.steps for each in message.modules if each.group}
    assert told == {("weight", "bias"): 3, ("weight",): 1}, later


def test_no_step_of_a_streak_is_lost_where_there_are_too_many(group: None) -> None:
    """Of more optimizers than are remembered, the quiet steps of the oldest are counted before it goes."""
    rank = Rank(0)
    modules = [rank.wrap(nn.Linear(4, 2)) for _ in range(2 * _MOST_STREAKS)]
    known = [optimizer_of(module) for module in modules]
    for optimizer in known:
        rank.train(optimizer)
        rank.checks.quiet_steps[id(optimizer)].steps += 4
    assert len(rank.checks.quiet_steps) == _MOST_STREAKS
    rank.checks.ask(rank.step + 1, rank.step)
    (message,) = rank.train()
    assert [each.steps for each in message.modules] == [5] * len(modules)


def test_a_wrapper_and_the_optimizer_in_it_are_one_step(group: None) -> None:
    """As ZeroRedundancyOptimizer and the one that it wraps, which has a part of the parameters."""
    rank = Rank()
    model = rank.wrap(nn.Linear(4, 2))
    inner = torch.optim.SGD([model.module.weight], lr=0.1)
    (message,) = rank.train(inner, optimizer_of(model))
    assert [(each.steps, each.names) for each in message.modules] == [(1, ("weight", "bias"))]


def test_what_ddp_does_not_keep_the_same_is_not_compared(group: None) -> None:
    """Frozen and ignored parameters, and buffers that nobody has chosen."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[0].bias.requires_grad_(False)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["2.bias"])
    rank = Rank(1, "*.running_*")
    (message,) = rank.train(optimizer_of(rank.wrap(model)))
    wrapped, own = message.modules
    assert wrapped.names == ("0.weight", "1.weight", "1.bias", "2.weight", "1.running_mean", "1.running_var")
    # What the optimizer has besides is told as not wrapped.
    assert (own.group, own.names) == ("", ("parameter 2 of SGD (2)", "parameter 6 of SGD (2)"))


def test_sharded_parameters_are_counted_and_not_read(group: None) -> None:
    """FSDP2 turns parameters into DTensors, of which each rank has a part."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
    assert type(next(model.parameters())).__name__ == "DTensor" or hasattr(next(model.parameters()), "device_mesh")
    rank = Rank()
    (message,) = rank.train(optimizer_of(model))
    (module,) = message.modules
    assert (module.sums, module.sharded, module.left_out) == (b"", 4, 0)
    assert rank.faults.count == 0


def test_parameters_of_an_optimizer_have_the_names_that_it_knows() -> None:
    """Where it was given named parameters, as newer versions of torch take them; else number and shape."""
    model = nn.Linear(4, 2)
    named = optimizer_of(model)
    named.param_groups[0]["param_names"] = [name for name, _ in model.named_parameters()]
    for optimizer, names in ((optimizer_of(model), ("parameter 1 of SGD (2×4)", "parameter 2 of SGD (2)")),
                             (named, ("weight", "bias"))):  # fmt: skip
        (message,) = Rank().train(optimizer)
        assert [(each.group, each.members, each.names) for each in message.modules] == [("", 0, names)]


def test_checksums_are_those_at_the_end_of_the_step() -> None:
    """What the script does with the parameters before they are sent changes nothing."""
    rank, model = Rank(), nn.Linear(4, 2)
    optimizer = optimizer_of(model)
    (first,) = rank.train(optimizer)
    rank.checks.stepped(optimizer)
    rank.checks.boundary(2)
    with torch.no_grad():
        model.weight.add_(1)
    (second,) = rank.checks.take()
    (third,) = rank.train(optimizer)
    assert first.modules[0].sums == second.modules[0].sums
    assert third.modules[0].sums[:8] != second.modules[0].sums[:8]
    assert third.modules[0].sums[8:] == second.modules[0].sums[8:]


def test_nothing_is_computed_but_on_request() -> None:
    """Without a number of steps: at the step that was asked for, and at no other; later questions get the same."""
    rank = Rank(0)
    optimizer = optimizer_of(nn.Linear(4, 2))
    assert rank.train(optimizer) == []
    assert rank.checks.ask(3, 1) is rank.checks.ask(3, 1) is None
    assert rank.train(optimizer) == []
    (told,) = rank.train(optimizer)
    assert rank.checks.ask(3, 3) == rank.checks.ask(3, 5) == told
    assert (told.step, told.modules[0].steps, len(told.modules[0].names)) == (3, 3, 2)
    assert rank.train(optimizer) == []
    with pytest.raises(Passed):
        rank.checks.ask(4, 4)


def test_of_many_questions_only_some_are_stored() -> None:
    """Whoever asks for any number of steps does not fill the memory, nor make every step a check."""
    rank = Rank(0)
    for step in range(2, 500):
        rank.checks.ask(step, 1)
    optimizer = optimizer_of(nn.Linear(1, 1))
    assert sum(len(rank.train(optimizer)) for _ in range(600)) == ASKED


def test_names_are_told_again_after_a_while_and_to_a_new_subscriber(monkeypatch: pytest.MonkeyPatch) -> None:
    """An observer that comes later, or has missed them, can name the parameter."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    rank = Rank()
    optimizer = optimizer_of(nn.Linear(4, 2))
    told = []
    for later in (0.0, 1.0, NAMES_S, 0.0):
        now[0] += later
        told += rank.train(optimizer)
    assert [bool(message.modules[0].names) for message in told] == [True, False, True, False]
    again = rank.checks.recall()
    assert [message.step for message in again] == [1, 2, 3, 4]
    assert all(message.modules[0].names == told[0].modules[0].names for message in again)


def test_no_reference_keeps_the_scripts_objects_alive(group: None) -> None:
    """A model and an optimizer that the script has let go are freed, and no longer told."""
    rank = Rank()
    model: Any = rank.wrap(nn.Linear(4, 2))
    optimizer: Any = optimizer_of(model, nn.Linear(2, 2))
    assert len(rank.train(optimizer)[0].modules) == 1 + 1
    alive = weakref.ref(model), weakref.ref(optimizer), weakref.ref(model.module.weight)
    del model, optimizer
    gc.collect()
    assert [each() for each in alive] == [None, None, None]
    (message,) = rank.train(optimizer_of(nn.Linear(1, 1)))
    assert len(message.modules) == 1


def test_a_script_may_swap_the_tensors_that_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that has weak references is not swapped by torch, but refused; the new one is compared in its place."""
    rank, model = Rank(), nn.Linear(4, 2)
    optimizer = optimizer_of(model)
    (before,) = rank.train(optimizer)
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    model.load_state_dict({name: torch.ones_like(tensor) for name, tensor in model.state_dict().items()})
    (after,) = rank.train(optimizer)
    assert [len(each.modules) for each in (before, after)] == [1, 1]
    assert before.modules[0].sums != after.modules[0].sums


def test_a_parameter_that_was_replaced_or_frozen_is_compared_as_it_is(group: None) -> None:
    """The tensor that has the name now is the one that trains."""
    rank, model = Rank(), nn.Linear(4, 2)
    wrapped, optimizer = rank.wrap(model), optimizer_of(model)
    (before,) = rank.train(optimizer)
    model.weight.requires_grad_(False)
    model.bias = nn.Parameter(torch.full((2,), 7.0))
    (after,) = rank.train(optimizer)
    assert before.modules[0].sums[:8] == after.modules[0].sums[:8]
    assert before.modules[0].sums[8:] != after.modules[0].sums[8:]
    assert wrapped


def test_of_very_many_tensors_the_first_are_compared_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message stays within its bounds."""
    monkeypatch.setattr("ddptop.agent.rank.checksums.modules.MOST_SUMS", 5)
    rank = Rank()
    (first,) = rank.train(optimizer_of(*(nn.Linear(1, 1) for _ in range(2))), both := optimizer_of(nn.Linear(1, 1)))
    assert [(len(each.names), each.left_out) for each in first.modules] == [(4, 0), (1, 1)]
    assert both


def test_a_check_that_fails_costs_no_step_and_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory on the device: raised to the caller, who counts it, and not tried for ever. Who asks is told."""

    def fails(*_: object) -> None:
        tried.append(1)
        raise RuntimeError("CUDA out of memory")

    tried: list[int] = []
    monkeypatch.setattr("ddptop.agent.rank.checksums.checks.checksums", fails)
    rank = Rank()
    optimizer = optimizer_of(nn.Linear(1, 1))
    for _ in range(MOST_FAILURES):
        with pytest.raises(RuntimeError):
            rank.train(optimizer)
    assert rank.train(optimizer) == []
    assert len(tried) == MOST_FAILURES
    with pytest.raises(Unanswered, match="RuntimeError: CUDA out of memory"):
        rank.checks.ask(rank.step, completed=rank.step)


def test_during_a_capture_nothing_is_asked_of_the_device() -> None:
    """A CUDA graph that is captured would contain it."""
    rank = Rank()
    optimizer = optimizer_of(nn.Linear(1, 1))
    CAPTURES.begin()
    try:
        assert rank.train(optimizer) == []
    finally:
        CAPTURES.end()
    assert len(rank.train(optimizer)) == 1


def test_what_a_failed_device_does_not_give_is_left_out() -> None:
    """The next check is told."""

    def failed() -> bytes:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    rank = Rank()
    optimizer = optimizer_of(nn.Linear(1, 1))
    rank.checks.stepped(optimizer)
    rank.checks.boundary(1)
    broken: Callable[[], bytes] = failed
    object.__setattr__(rank.checks._finished[0].parts[0], "sums", type("Failed", (), {"read": staticmethod(broken)}))
    rank.step = 1
    assert [message.step for message in rank.train(optimizer)] == [2]
    assert rank.faults.count == 1
