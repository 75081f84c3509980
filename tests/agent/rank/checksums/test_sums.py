"""The checksum of a tensor says of any two whether they have the same bits, whatever their type, size and place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support import late

from ddptop.agent.rank.checksums.sums import WIDTH, Sums, Weights, _Arriving, checksums, is_readable

if TYPE_CHECKING:
    import torch
    from torch import nn

_imports = late.imports(globals())

SIZES = (0, 1, 2, 3, 7, 8, WIDTH, 2 * WIDTH - 1, 2 * WIDTH + 1, 5 * WIDTH + 3)
TYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int8", "bool", "complex64", "float8_e4m3fn")


def sum_of(*tensors: Any) -> bytes | None:
    return checksums(torch, tensors, Weights(torch)).read()


@pytest.mark.parametrize("kind", TYPES)
def test_a_single_bit_changes_it_anywhere(kind: str) -> None:
    """Of tensors of each size: in the first and the last byte, and in each byte of the words where the weights end."""
    dtype = getattr(torch, kind)
    for size in SIZES:
        values = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
        before = sum_of(values)
        assert before == sum_of(values.clone())
        raw = values.view(torch.uint8)
        for place in {0, raw.numel() // 2, 8 * WIDTH - 1, 8 * WIDTH, raw.numel() - 1}:
            if 0 <= place < raw.numel():
                raw[place] ^= 1
                assert sum_of(values) != before
                raw[place] ^= 1


@pytest.mark.parametrize("shape", [(64, 96), (4, 6)])
def test_an_exchange_of_values_changes_it(shape: tuple[int, int]) -> None:
    """Of neighbours, of rows, of a row and a column: a matrix with its values in another order is another one."""
    rows, columns = shape
    matrix = torch.arange(float(rows * columns)).view(rows, columns)
    turned = matrix.view(columns, rows).T.reshape(rows, columns)
    others = matrix.flip(0), matrix.flip(1), matrix.roll(1, 0), matrix.roll(1, 1), turned
    found = {sum_of(each) for each in (matrix, *others)}
    assert len(found) == 6


def test_it_is_the_same_for_the_same_values_in_another_place() -> None:
    """A view that begins inside of a word, every third value, the channels last: the bits count, not where they are."""
    values = torch.randn(3000, generator=torch.Generator().manual_seed(1))
    assert sum_of(values[1:2000]) == sum_of(values[1:2000].clone())
    assert sum_of(values[::3]) == sum_of(values[::3].clone())
    images = values[:288].view(8, 4, 3, 3)
    assert sum_of(images) == sum_of(images.to(memory_format=torch.channels_last))


def test_reading_leaves_no_trace() -> None:
    """No version counter, gradient function, random state or default mode is touched; values of NaN are bits too."""
    parameter = nn.Parameter(torch.tensor([1.0, float("nan"), -0.0]))
    state, version = torch.get_rng_state(), parameter._version
    with torch.inference_mode():
        first = sum_of(parameter)
    assert first == sum_of(parameter) != sum_of(parameter.detach().abs())
    assert torch.equal(torch.get_rng_state(), state)
    assert (parameter._version, parameter.grad, parameter.requires_grad) == (version, None, True)


def test_several_tensors_have_one_each_in_order() -> None:
    """Eight bytes for each, as they have alone."""
    tensors = [torch.full((size,), 0.5) for size in (3, 0, 2000)]
    assert sum_of(*tensors) == b"".join(sum_of(each) or b"" for each in tensors)
    assert sum_of() == b""


def test_what_is_still_on_its_way_from_a_device_is_not_there_yet() -> None:
    """The event of the copy is asked, and not waited for."""
    passed = [False, True]

    class Event:
        def query(self) -> bool:
            return passed.pop(0)

    found = Sums([_Arriving(torch.tensor([1, -1]), Event())])
    assert found.read() is None
    assert found.read() == found.read() == (1).to_bytes(8, "little") + b"\xff" * 8


def test_only_plain_dense_tensors_are_read() -> None:
    """A subclass may do anything when its bits are read; a tensor without data has none; a lazy one other values."""

    class Own(torch.Tensor): ...

    assert is_readable(torch, nn.Parameter(torch.zeros(2)))
    for other in (torch.zeros(2).as_subclass(Own), torch.zeros(2, device="meta"), torch.zeros(2).to_sparse()):
        assert not is_readable(torch, other)
    turned = torch.ones(2, dtype=torch.complex64).conj()
    for other in (turned, turned.imag):
        assert not is_readable(torch, other)
