"""Samples of gradients of every kind that there is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from support import late

from ddptop.agent.rank.hooks import gradients

if TYPE_CHECKING:
    import torch

_imports = late.imports(globals())

SAMPLED = ("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128")
SIZE = 1000


def read(bucket: torch.Tensor) -> float | None:
    value = gradients.sampled(torch, bucket)
    return None if value is None else value.read()


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_a_bucket_that_is_not_finite_is_found_in_any_precision(name: str, bad: float) -> None:
    """And only that: the largest numbers of the type are finite."""
    dtype = getattr(torch, name)
    assert math.isfinite(read(torch.ones(SIZE, dtype=dtype)) or math.nan)
    spoiled = torch.full((SIZE,), bad, dtype=dtype)
    assert not math.isfinite(read(spoiled) or 0.0)
    assert not math.isfinite(read(spoiled.reshape(10, -1).t()) or 0.0)
    if dtype.is_complex:
        assert not math.isfinite(read(spoiled.conj()) or 0.0)


# torch warns of types that are new, and of types that are old.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_be_sampled_is_left_alone() -> None:
    """Every other type of numbers, sparse tensors, and tensors without memory."""
    types = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    others = [each for each in types if str(each).removeprefix("torch.") not in SAMPLED and not each.is_complex]
    assert {torch.int64, torch.bool, torch.float8_e4m3fn} <= set(others)
    for dtype in others:
        try:
            made = torch.empty(8, dtype=dtype)
        except RuntimeError:
            continue
        assert read(made) is None, dtype
    assert read(torch.eye(3).to_sparse()) is None
    assert read(torch.eye(3).to_sparse_csr()) is None
    assert read(torch.ones(8, device="meta")) is None


def test_half_precision_does_not_overflow_in_the_sum() -> None:
    """The sample of a bucket full of large halves is finite, as they are."""
    assert math.isfinite(read(torch.full((SIZE,), 6e4, dtype=torch.float16)) or math.nan)
