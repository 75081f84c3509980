"""The cause of memory that grows: what is said of two censuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ddptop.agent.observer.judge.growth import Cause, cause_of, sentence
from ddptop.agent.wire import MemoryUse, ObjectKind, Resident

MIB = 1 << 20
TENSORS = ObjectKind(
    "tensor", "Tensor", "float32", (64, 32, 256), "cpu", 9, 18 * MIB, 3, 6 * MIB, "train.py:52", "list `kept` of main()"
)


def use(*kinds: ObjectKind, heap: int = 0, anonymous: int = 0, **more: Any) -> MemoryUse:
    resident = Resident(500 * MIB, 0, 0, anonymous, heap=400 * MIB, heap_grown=heap)
    tensors = sum(each.grown_bytes for each in kinds if each.kind != "object")
    objects = sum(each.grown_bytes for each in kinds if each.kind == "object")
    return MemoryUse(4, 6, kinds, tensor_grown=tensors, object_grown=objects, resident=resident, **more)


def test_the_line_the_number_and_the_holder_are_said() -> None:
    """The line first, which a verdict has of its own."""
    assert cause_of(use(TENSORS, heap=6 * MIB, anonymous=5 * MIB)) == Cause(
        "train.py:52 made 3 more float32[64, 32, 256] in 3 steps (6 MiB), held by list `kept` of main()", "train.py:52"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"made": "", "holder": ""}, "3 more float32[64, 32, 256] in 3 steps (6 MiB)"),
        ({"shape": (64, None)}, "train.py:52 made 3 more float32[64, *] in 3 steps (6 MiB), held by"),
        ({"kind": "array", "dtype": "float64"}, "train.py:52 made 3 more NumPy float64[64, 32, 256] in 3 steps"),
        ({"device": "cuda:1"}, "made 3 more float32[64, 32, 256] on cuda:1 in 3 steps"),
        ({"kind": "object", "type": "bytes"}, "made 3 more bytes in 3 steps (6 MiB)"),
        ({"kind": "object", "type": "list", "grown": 0}, "made a larger list in 3 steps (6 MiB)"),
        ({"graphs": 3}, "held by list `kept` of main(), each with its graph"),
    ],
)
def test_each_kind_has_its_words(changes: dict[str, Any], said: str) -> None:
    """What is not known is not said."""
    assert said in sentence(use(msgspec.structs.replace(TENSORS, **changes), heap=6 * MIB))


@pytest.mark.parametrize(
    ("heap", "anonymous", "said"),
    [
        (12 * MIB, 4 * MIB, "not Python: the C heap grew by 12 MiB in 3 steps, tensors and Python objects by 0 B"),
        (0, 24 * MIB, "not Python: anonymous memory grew by 24 MiB in 3 steps, tensors and Python objects by 0 B"),
        (MIB // 2, 7 * MIB, "nothing grew in 3 steps"),
    ],
)
def test_what_python_does_not_explain_is_said_to_be_outside(heap: int, anonymous: int, said: str) -> None:
    """But for the noise of an allocator, of which resident memory has more than its own count."""
    assert sentence(use(heap=heap, anonymous=anonymous)) == said


def test_what_was_freed_and_the_allocator_keeps_is_nobody_s() -> None:
    """Resident memory grows by it, in a healthy training by tens of MiB from one step to another."""
    resident = Resident(500 * MIB, 0, 0, 24 * MIB, heap=400 * MIB, heap_kept=40 * MIB, heap_kept_grown=23 * MIB)
    assert cause_of(MemoryUse(4, 6, (), resident=resident)) is None
    mapped = msgspec.structs.replace(resident, anonymous_grown=48 * MIB)
    assert sentence(MemoryUse(4, 6, (), resident=mapped)).startswith("not Python: anonymous memory grew by 25 MiB in 3")


def test_the_larger_of_two_growths_is_named() -> None:
    """Tensors, or all that is outside of Python."""
    assert sentence(use(TENSORS, heap=9 * MIB)).startswith("train.py:52 made")
    assert sentence(use(TENSORS, heap=20 * MIB)).startswith("not Python: the C heap grew by 20 MiB")
    graphs = msgspec.structs.replace(TENSORS, graphs=3)
    assert sentence(use(graphs, heap=20 * MIB)).endswith("each with its graph: the C heap grew by 20 MiB")


def test_a_little_is_nothing() -> None:
    """Less than a KiB a step of tensors, or 16 of Python objects, which come and go."""
    assert cause_of(use(msgspec.structs.replace(TENSORS, grown_bytes=3071))) is None
    objects = ObjectKind("object", "dict", count=9, bytes=900, grown=3, grown_bytes=3 * (16 << 10) - 1)
    assert cause_of(use(objects)) is None
    assert cause_of(use(msgspec.structs.replace(objects, grown_bytes=3 * (16 << 10)))) is not None
    assert cause_of(MemoryUse(4, 6)) is None


def test_a_loss_that_is_kept_with_its_graph_is_said_however_small_it_is() -> None:
    """Where it comes with each step, and nothing else grew: the graph takes more than the loss."""
    loss = msgspec.structs.replace(TENSORS, shape=(), grown_bytes=12, graphs=3)
    assert sentence(use(loss)) == (
        "train.py:52 made 3 more float32[] in 3 steps (12 B), held by list `kept` of main(), each with its graph"
    )
    assert cause_of(use(msgspec.structs.replace(loss, grown=2))) is None
    assert cause_of(use(msgspec.structs.replace(loss, graphs=0))) is None
    larger = ObjectKind("object", "dict", count=9, bytes=MIB, grown=3, grown_bytes=MIB)
    assert sentence(use(loss, larger)) == "3 more dict in 3 steps (1 MiB)"
