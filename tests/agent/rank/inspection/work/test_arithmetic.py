"""The operations of a step are those that one counts by hand, whatever way the model is run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import late

from ddptop.agent.rank.inspection.work import arithmetic

if TYPE_CHECKING:
    import torch

_imports = late.imports(globals())

Traced = Callable[[Callable[[], object]], "arithmetic.Arithmetic | None"]


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    """Trace by torch's own class, into a file."""

    def trace(step: Callable[[], object]) -> arithmetic.Arithmetic | None:
        observer = torch.profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "trace.json"))
        observer.start()
        step()
        observer.unregister_callback()
        return arithmetic.read((tmp_path / "trace.json").read_bytes().splitlines(keepends=True))

    return trace


def flops(found: arithmetic.Arithmetic | None) -> int:
    assert found is not None
    return found.flops


def backward(module: Callable[..., Any], *given: Any) -> Callable[[], object]:
    return lambda: module(*given).square().mean().backward()


def test_a_linear_layer(traced: Traced) -> None:
    """2 m n k forward, and as much for the weight; for its input as well, where that has a gradient."""
    layer, rows = torch.nn.Linear(24, 40), torch.randn(7, 24)
    once = 2 * 7 * 24 * 40
    assert flops(traced(backward(layer, rows))) == 2 * once
    assert flops(traced(backward(layer, rows.clone().requires_grad_()))) == 3 * once


def test_a_sparse_matrix_is_not_multiplied_as_a_dense_one(traced: Traced) -> None:
    """Its shape does not show how many numbers it has: only the layer counts, and where there is none, nothing is."""
    graph, layer, rows = torch.eye(50).to_sparse(), torch.nn.Linear(24, 40), torch.randn(50, 24)
    assert flops(traced(backward(lambda: torch.sparse.mm(graph, layer(rows))))) == 2 * 2 * 50 * 24 * 40
    assert traced(backward(lambda: torch.sparse.mm(graph, rows.clone().requires_grad_()))) is None


def test_convolutions_and_batch_norm(traced: Traced) -> None:
    """Each place of the output takes a product with the weight; with groups each channel only that with its own."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, stride=2, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, padding=1, groups=8),
        torch.nn.ConvTranspose2d(8, 2, 2, stride=2),
    )
    first = 2 * (8 * 4 * 9) * (5 * 8 * 8)
    grouped = 2 * (8 * 1 * 9) * (5 * 8 * 8)
    transposed = 2 * (8 * 2 * 4) * (5 * 8 * 8)
    found = traced(backward(model, torch.randn(5, 4, 16, 16)))
    # The first has no gradient of its input.
    assert flops(found) == 2 * first + 3 * grouped + 3 * transposed
    assert found is not None
    assert (found.type, found.by_convolution) == ("float", True)


def block(width: int = 32, heads: int = 4) -> Any:
    """Return a layer of a transformer by PyTorch's own attention."""
    return torch.nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)


def of_block(batch: int, length: int, width: int = 32) -> int:
    """Return the operations of one forward pass through such a layer: the four products, and two of the attention."""
    return 2 * batch * length * 12 * width * width + 4 * batch * length * length * width


def test_a_transformer(traced: Traced) -> None:
    """Six operations for each weight and token, and twelve for each pair of tokens and channel."""
    rows = torch.randn(3, 10, 32, requires_grad=True)
    assert flops(traced(backward(block(), rows))) == 3 * of_block(3, 10)


@pytest.mark.parametrize("again", [True, False], ids=["reentrant", "by hooks"])
def test_what_activation_checkpointing_computes_again_does_not_count(traced: Traced, again: bool) -> None:
    """The model's own work is the same."""
    from torch.utils.checkpoint import checkpoint

    model, rows = block(), torch.randn(3, 10, 32, requires_grad=True)
    step = backward(functools.partial(checkpoint, model, use_reentrant=again), rows)
    # Twice: after the first, the operators of the second stand in the trace below one that was interrupted.
    assert flops(traced(lambda: (step(), step()))) == 2 * 3 * of_block(3, 10)


def test_accumulated_passes_count_all(traced: Traced) -> None:
    """A step with three backward passes is three times the work, and an optimizer adds none."""
    layer = torch.nn.Linear(24, 40)
    sgd = torch.optim.AdamW(layer.parameters())

    def step() -> None:
        for _ in range(3):
            backward(layer, torch.randn(7, 24))()
        sgd.step()

    assert flops(traced(step)) == 3 * 2 * 2 * 7 * 24 * 40


def test_passes_without_gradients_do_not_count(traced: Traced) -> None:
    """An evaluation beside the training is no work of the training; alone it is none at all."""
    layer, rows = torch.nn.Linear(24, 40), torch.randn(7, 24)

    def evaluate() -> None:
        with torch.no_grad():
            layer(torch.randn(500, 24))

    def both() -> None:
        evaluate()
        backward(layer, rows)()

    assert flops(traced(both)) == 2 * 2 * 7 * 24 * 40
    assert traced(evaluate) is None


def test_the_type_is_that_of_the_products(traced: Traced) -> None:
    """Under autocast weights stay float32, and are multiplied as bfloat16."""
    layer, rows = torch.nn.Linear(24, 40), torch.randn(7, 24)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = layer(rows).float().square().mean()
        loss.backward()

    found = traced(step)
    assert flops(found) == 2 * 2 * 7 * 24 * 40
    assert found is not None
    assert (found.type, found.by_convolution) == ("c10::BFloat16", False)


def test_compiled_code_counts_alike(traced: Traced) -> None:
    """The forward pass of compiled code runs without gradients inside of a function that has them."""
    model, rows = torch.compile(block(), backend="aot_eager"), torch.randn(3, 10, 32, requires_grad=True)
    step = backward(model, rows)
    step()
    assert flops(traced(step)) == 3 * of_block(3, 10)


def test_torch_counts_the_same(traced: Traced) -> None:
    """By its own counter, of another mechanism, where that has formulas."""
    from torch.utils.flop_counter import FlopCounterMode

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), torch.nn.Flatten(), torch.nn.Linear(6 * 36, 5))
    step = backward(model, torch.randn(2, 3, 8, 8))
    with FlopCounterMode(display=False) as counter:
        step()
    assert flops(traced(step)) == counter.get_total_flops()


@pytest.mark.parametrize("cut", ["", "{}", "half", "twice"])
def test_another_file_is_unreadable(traced: Traced, tmp_path: Path, cut: str) -> None:
    """It is said to be, whatever is in it."""
    traced(backward(torch.nn.Linear(3, 4), torch.randn(2, 3)))
    whole = (tmp_path / "trace.json").read_bytes()
    given = {"": b"", "{}": b"{}", "half": whole.replace(b'"shapes"', b'"sizes"'), "twice": whole + whole}[cut]
    with pytest.raises(arithmetic.Unreadable):
        arithmetic.read(given.splitlines(keepends=True))
