"""The floating-point operations of a step, read from a trace by torch's execution trace observer. Pure.

A product of matrices m x k and k x n counts 2 m k n, as torch's `FlopCounterMode` counts it; a pass through attention
counts all pairs, also where a mask leaves out half of them.  What counts is the model's own work, so that the share of
the peak is the MFU of the PaLM paper (Chowdhery et al., 2022, appendix B): the forward and the backward pass.  What
activation checkpointing or a backward pass through attention computes a second time does not count, nor do passes
without gradients (evaluation, a teacher), nor the optimizer.  What is not known counts nothing, nor does a product with
a sparse matrix, whose shape does not show its work.  So the sum may be too small and is never too large, but for what a
compiled backward pass computes anew.

torch's own formulas are not used: for grouped convolutions they count as many times too much as there are groups, for
attention on a CPU nothing.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

_NODE: Final = re.compile(rb'\s*"id": (\d+), "name": "((?:[^"\\]|\\.)*)"')
_ATTRIBUTES: Final = re.compile(
    rb'"seq_id", "type": "int64", "value": (-?\d+).*?"scope", "type": "uint64", "value": (\d+)'
    rb'.*?"tid", "type": "uint64", "value": (\d+)'
)
_BACKWARD: Final = 1
"""The scope of a node of the backward pass, `at::RecordScope::BACKWARD_FUNCTION`."""
_TURN: Final = 200
"""Operators that are read in a row: each turn holds the interpreter's lock for less than a millisecond."""
_PAUSE_S: Final = 0.002


class Arithmetic(NamedTuple):
    """The work of one step."""

    flops: int
    """Floating-point operations."""
    type: str
    """Type of the numbers in most of them, in torch's spelling in C++: `float`, `c10::BFloat16`."""
    by_convolution: bool
    """True where most of them are in convolutions, which have a switch of their own for TF32."""


class _Values(msgspec.Struct):
    values: list[Any]
    shapes: list[Any]
    types: list[str]


class _Node(NamedTuple):
    """An operator, or a range that a script or torch has named."""

    number: int
    """In the order of beginnings."""
    place: int
    """In the order of ends."""
    sequence: int
    """Below zero where no gradient is recorded."""
    scope: int
    thread: int


class _Found(NamedTuple):
    node: _Node
    flops: int
    type: str
    by_convolution: bool


class Unreadable(Exception):
    """The trace is not one that is known."""


def _product(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the operations of a product of matrices, or of as many as there are."""
    return 2 * math.prod(a) * b[-1]


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    batch, heads, queries, size = query
    return 2 * batch * heads * queries * key[2] * (size + value[3])


def _convolution(moved: Sequence[int], weight: Sequence[int]) -> int:
    """Return the operations of a convolution whose weight is applied at each place of `moved`."""
    return 2 * math.prod(weight) * moved[0] * math.prod(moved[2:])


def _flops(name: str, given: _Values, result: _Values) -> tuple[int, int]:
    """Return the operations of an operator of `_OPERATORS`, and the place of the operand whose type counts."""
    shapes, first = given.shapes, _OPERATORS[name]
    if name in _CONVOLUTIONS:
        if name == "aten::convolution_backward":
            moved = shapes[1] if given.values[7] else shapes[0]
            # Of the input, of the weight and of the bias: the last is no product.
            return _convolution(moved, shapes[2]) * sum(map(bool, given.values[10][:2])), first
        return _convolution(shapes[0] if given.values[6] else result.shapes[0], shapes[1]), first
    if "dot_product" in name:
        # Two products forward, and the gradients of both operands of each backward.
        passes = 2 if name.endswith("_backward") else 1
        return passes * _attention(*shapes[first : first + 3]), first
    return _product(shapes[first], shapes[first + 1]), first


_CONVOLUTIONS: Final = frozenset({"aten::convolution", "aten::_convolution", "aten::convolution_backward"})
_ATTENTIONS: Final = tuple(
    f"aten::_scaled_dot_product_{kind}"
    for kind in ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
)
_OPERATORS: Final = {
    "aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_addmm_activation": 1,
    "aten::_scaled_mm": 0, "aten::_grouped_mm": 0, "aten::_scaled_grouped_mm": 0,
    **dict.fromkeys(_CONVOLUTIONS, 0),
    **dict.fromkeys(_ATTENTIONS, 0),
    **{f"{name}_backward": 1 for name in _ATTENTIONS},
}  # fmt: skip
"""By operator, the place of its first operand.

Where one calls another, as `_convolution` or an operator on parts of a DTensor, the innermost counts."""


def read(lines: Iterable[bytes]) -> Arithmetic | None:
    """Return the work of the traced step, None where there was none; takes its time, and rests between.

    Args:
        lines: those of the file that `torch.profiler.ExecutionTraceObserver` writes.

    Raises:
        Unreadable: they are something else.
    """
    try:
        nodes, found = _nodes(lines)
    except (IndexError, ValueError, TypeError, msgspec.MsgspecError) as error:
        raise Unreadable(f"the trace of a step: {error}") from error
    parents = _parents(nodes)
    outer = {parent.number for each in found for parent in _above(parents, each.node)}
    sums: Counter[tuple[str, bool]] = Counter()
    for each in found:
        if each.node.number not in outer and _is_of_the_model(parents, each.node):
            sums[each.type, each.by_convolution] += each.flops
    if not sums:
        return None
    (kind, by_convolution), _ = sums.most_common(1)[0]
    return Arithmetic(sum(sums.values()), kind, by_convolution)


def _nodes(lines: Iterable[bytes]) -> tuple[list[_Node], list[_Found]]:
    """Return all that a trace has, in the order of ends, and those that compute, with the operations of each."""
    nodes: list[_Node] = []
    found: list[_Found] = []
    number, name, inputs, outputs = 0, "", b"", b""
    for line in lines:
        if match := _NODE.match(line):
            number, name = int(match[1]), match[2].decode(errors="replace")
        elif (text := line.lstrip()).startswith(b'"inputs": '):
            inputs = text
        elif text.startswith(b'"outputs": '):
            outputs = text
        elif match := _ATTRIBUTES.search(line):
            node = _Node(number, len(nodes), int(match[1]), int(match[2]), int(match[3]))
            nodes.append(node)
            if name in _OPERATORS:
                given, result = _values(inputs), _values(outputs)
                flops, first = _flops(name, given, result)
                if _is_dense(given.values[first]) and _is_dense(given.values[first + 1]):
                    found.append(_Found(node, flops, _type(given.types[first]), name in _CONVOLUTIONS))
            if len(nodes) % _TURN == 0:
                time.sleep(_PAUSE_S)
    if len({node.number for node in nodes}) < max(1, len(nodes)):
        raise Unreadable("the trace of a step: empty, or a number comes twice")
    return nodes, found


def _values(text: bytes) -> _Values:
    """Return what an operator was given, or has returned, from its line."""
    return msgspec.json.decode(text.partition(b": ")[2].rstrip().rstrip(b","), type=_Values)


def _is_dense(tensor: Sequence[Any]) -> bool:
    """Say whether a tensor has memory of its own: sparse ones, whose zeros are not multiplied, have none."""
    return bool(tensor[1])


def _type(text: str) -> str:
    """Return the type of the numbers of a `Tensor(float)`."""
    return text.removeprefix("Tensor(").removesuffix(")")


def _parents(nodes: Iterable[_Node]) -> dict[int, _Node]:
    """Return, by number, in which other each node was.

    Of two on one thread the one that began earlier and ended later has the other in it.  What the trace itself names
    the parent is wrong after an operator that was interrupted, as activation checkpointing does.
    """
    parents: dict[int, _Node] = {}
    open_in: dict[int, list[_Node]] = {}
    for node in sorted(nodes):
        stack = open_in.setdefault(node.thread, [])
        while stack and stack[-1].place < node.place:
            stack.pop()
        if stack:
            parents[node.number] = stack[-1]
        stack.append(node)
    return parents


def _above(parents: Mapping[int, _Node], node: _Node) -> Iterator[_Node]:
    """Yield all in which a node was, from the inside."""
    above = parents.get(node.number)
    while above is not None:
        yield above
        above = parents.get(above.number)


def _is_of_the_model(parents: Mapping[int, _Node], node: _Node) -> bool:
    """Say whether an operator is of a forward pass with gradients, or of a backward pass by itself."""
    has_gradients = False
    for each in (node, *_above(parents, node)):
        if each.scope == _BACKWARD:
            # A forward pass inside of a backward pass is one that is made again.
            return not has_gradients
        has_gradients = has_gradients or each.sequence >= 0
    return has_gradients
