"""The module whose backward pass is under way, against what functions in the graph see; and what is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from support import late
from support.fakes.clocks import Clock

if TYPE_CHECKING:
    import torch
    from support.fakes.marked import Marked, Net, Odd, Refuses, Wrapped
    from torch import nn
    from torch.nn.modules import module as of_torch
    from torch.utils.checkpoint import checkpoint

_imports = late.imports(globals())


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Marked]:
    """Modules of a process that has compiled nothing, whatever earlier tests did."""
    monkeypatch.setattr("ddptop.agent.rank.inspection.looks.modules._is_compiled", lambda: False)
    made = Marked()
    yield made
    made.modules.close()
    assert not of_torch._global_forward_hooks
    assert not of_torch._global_forward_pre_hooks


LAYERS = {
    "0 before": ("layers", "layers.0"), "0 behind": ("layers", "layers.0"), "1 before": ("layers", "layers.1"),
    "1 behind": ("layers", "layers.1"), "head before": ("head",), "head behind": ("head",), "net": ("Net",),
    "end": ("Net",),
}  # fmt: skip


def inputs() -> torch.Tensor:
    """Return a batch whose gradient is wanted, so that the graph begins before the first layer."""
    return torch.linspace(0.0, 1.0, 12).reshape(3, 4).requires_grad_()


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_the_module_of_each_place_of_the_graph_is_said(marked: Marked, is_wrapped: bool) -> None:
    """Operators of a module before, behind and between its parts are its own; what wraps the model has no name."""
    net = Wrapped(Net(marked)) if is_wrapped else Net(marked)
    marked.begin()
    for _ in range(2):
        marked.seen.clear()
        marked.backward(net(inputs()).sum())
        assert dict(marked.seen) == LAYERS
    assert not marked.faults.count


def test_at_the_beginning_of_a_backward_pass_no_module_is_said(marked: Marked) -> None:
    """The loss is made by none; what was said last is not true of it."""
    net = Net(marked)
    marked.begin()
    for _ in range(2):
        marked.backward(net.head.spy(net(inputs()).sum(), "loss"))
        assert marked.seen[0] == ("loss", ())
        marked.seen.clear()


@pytest.mark.parametrize("reentrant", [False, True])
def test_with_recomputation_the_module_is_said(marked: Marked, reentrant: bool) -> None:
    """Whichever way torch has of it, and although a forward pass is then within a backward pass."""
    net = Net(marked)
    plain = net.layers[1].forward
    net.layers[1].forward = lambda value: checkpoint(plain, value, use_reentrant=reentrant)
    marked.begin()
    marked.backward(net(inputs()).sum())
    assert {place: said for place, said in marked.seen if place in ("0 behind", "0 before", "end", "head behind")} == {
        place: LAYERS[place] for place in ("0 behind", "0 before", "end", "head behind")
    }
    assert not marked.faults.count


def test_nothing_is_different_and_nothing_is_left(marked: Marked) -> None:
    """Parameters to the bit, generators, and the graph's tensors; afterwards torch has no hook of ours."""

    def train(*, marking: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(5)
        parts = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(), nn.Flatten())
        net = nn.Sequential(parts, nn.Linear(8 * 36, 10))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        if marking:
            marked.begin()
        for _ in range(5):
            optimizer.zero_grad()
            for _ in range(2):
                marked.backward(nn.functional.cross_entropy(net(torch.randn(4, 3, 8, 8)), torch.arange(4)))
            optimizer.step()
            marked.cut()
        if marking:
            assert of_torch._global_forward_hooks
            marked.end()
        return [*net.parameters(), *net.buffers()], torch.get_rng_state()

    (ours, state), (plain, usual) = train(marking=True), train(marking=False)
    assert all(torch.equal(one, other) for one, other in zip(ours, plain, strict=True))
    assert torch.equal(state, usual)
    assert not of_torch._global_forward_hooks
    assert not of_torch._global_forward_pre_hooks
    assert not marked.modules.is_armed
    assert not marked.faults.count


def test_whatever_a_module_takes_and_gives_the_training_does_not_see_it(marked: Marked) -> None:
    """Dictionaries, objects and leaves; of a script's own class of tensors no code is executed."""
    marked.begin()
    value = inputs()
    result = Wrapped(Odd())({"x": value.tanh()})
    marked.backward(result["x"][0].sum())
    own = inputs().detach().as_subclass(Refuses)
    assert nn.Identity()(own) is own
    assert value.grad is not None
    assert not marked.faults.count


def test_an_error_of_ours_ends_the_marking_alone(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's result is there, the error is noted once, and the next boundary removes the hooks."""

    def fail(*_: object) -> None:
        raise RuntimeError("no marks")

    marked.begin()
    monkeypatch.setattr(marked.modules, "_mark", fail)
    assert nn.Linear(2, 2)(torch.ones(2)).shape == (2,)
    marked.cut()
    assert not of_torch._global_forward_hooks
    assert marked.faults.count == 1


@pytest.mark.parametrize(("ms", "every"), [(10, 4), (100, 1)])
def test_of_short_steps_few_are_marked(marked: Marked, ms: int, every: int) -> None:
    """So that what marking costs is a small part of the training's time; of long ones all."""
    clock = Clock(0)
    marked.stamps.clock = clock
    marked.begin()
    for _ in range(39):
        clock.now += ms * 1_000_000
        marked.cut()
    assert sorted(marked.modules.steps) == list(range(2, 42, every))
    # Of a step that is only counted nobody knows its phases.
    marked.stamps.recording = False
    for _ in range(8):
        clock.now += ms * 1_000_000
        marked.cut()
        assert not of_torch._global_forward_hooks
    assert max(marked.modules.steps) <= 41


def test_of_a_training_with_many_modules_fewer_steps_are_marked(marked: Marked) -> None:
    """Each module costs 10 us in a marked step: with 200 of them a step in 200 ms is a percent."""
    clock = Clock(0)
    marked.stamps.clock = clock
    marked.begin()
    net = nn.Sequential(*(nn.Identity() for _ in range(199)))
    for _ in range(99):
        net(torch.ones(1))
        clock.now += 10_000_000
        marked.cut()
    # The first one shows how many there are.
    assert sorted(marked.modules.steps)[1:] == list(range(6, 102, 20))
