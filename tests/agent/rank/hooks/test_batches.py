"""Which batches count as training, told from the stamps alone."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support import late

from ddptop.agent.rank.hooks.batches import Batches, Datasets, sizes_of
from ddptop.agent.rank.records.stamps import BACKWARD, COPY, DATA, FORWARD, OTHER, Stamps, StepStamps

if TYPE_CHECKING:
    import torch

_imports = late.imports(globals())

TRAIN, HELD_OUT, SECOND = 1, 2, 3


def new_stamps() -> Stamps:
    now = iter(range(10**6))
    return Stamps(lambda: next(now), lambda: 0)


def draw(stamps: Stamps, dataset: int, *, evaluation: bool = False) -> None:
    """One batch of four, and what is computed from it."""
    stamps.draw(dataset, evaluation=evaluation)
    stamps.drew(4)
    stamps.turn(FORWARD)


def train(stamps: Stamps) -> None:
    stamps.used(evaluation=False)
    stamps.enter(BACKWARD)
    stamps.settle()


def sorted_stamps(stamps: Stamps, batches: Batches) -> StepStamps:
    stamps.cut(1)
    stamped = stamps.finished.popleft()
    batches.sort(stamped)
    return stamped


def count(stamped: StepStamps, phase: int) -> int:
    return sum(mark == phase for _, mark in stamped.marks)


def test_batches_drawn_ahead_of_their_use_are_training():
    """Drawing all micro-batches of a step before the first pass over them makes no evaluation of them."""
    stamps = new_stamps()
    for _ in range(4):
        draw(stamps, TRAIN)
    for _ in range(4):
        train(stamps)
    stamped = sorted_stamps(stamps, Batches())
    assert (count(stamped, DATA), stamped.samples) == (4, 16)


def test_several_loaders_may_feed_one_step():
    """A second loader, drawn from as often as the first, is as much a part of the training."""
    stamps = new_stamps()
    for _ in range(3):
        draw(stamps, SECOND)
        draw(stamps, TRAIN)
        train(stamps)
    assert sorted_stamps(stamps, Batches()).samples == 24


def test_an_evaluation_before_the_first_step_is_seen_by_its_number_of_batches():
    """Many batches that no backward pass followed are none of this step, with what was computed from them."""
    stamps = new_stamps()
    for _ in range(5):
        draw(stamps, HELD_OUT)
    draw(stamps, TRAIN)
    train(stamps)
    stamped = sorted_stamps(stamps, Batches())
    phases = [phase for _, phase in stamped.marks]
    assert set(phases[: phases.index(DATA)]) == {OTHER}
    assert FORWARD in phases[phases.index(DATA) :]
    assert (count(stamped, DATA), stamped.samples) == (1, 4)


def test_copies_of_an_evaluation_are_none_of_the_step():
    """The copies of its batches to the device go to `other` with the batches; those of the training stay."""
    stamps = new_stamps()
    for _ in range(3):
        draw(stamps, HELD_OUT, evaluation=True)
        stamps.enter(COPY)
        stamps.leave()
    draw(stamps, TRAIN)
    stamps.enter(COPY)
    stamps.leave()
    train(stamps)
    assert count(sorted_stamps(stamps, Batches()), COPY) == 1


def test_a_batch_drawn_after_backward_is_training_once_its_loader_is_known():
    """A loop that draws the next batch before the optimizer steps."""
    stamps, batches = new_stamps(), Batches()
    draw(stamps, TRAIN)
    train(stamps)
    sorted_stamps(stamps, batches)
    for _ in range(3):
        draw(stamps, TRAIN)
    assert sorted_stamps(stamps, batches).samples == 12


def test_a_loader_used_for_both_is_told_apart_by_gradients():
    """The training data evaluated without gradients between two steps is no training."""
    stamps, batches = new_stamps(), Batches()
    draw(stamps, TRAIN)
    train(stamps)
    sorted_stamps(stamps, batches)
    for _ in range(3):
        draw(stamps, TRAIN, evaluation=True)
    draw(stamps, TRAIN)
    stamps.used(evaluation=True)
    draw(stamps, TRAIN)
    train(stamps)
    assert sorted_stamps(stamps, batches).samples == 4


def test_a_step_that_never_ends_does_not_fill_the_memory():
    """Without a boundary, what is kept has a bound, and the phases still make up the time."""
    now = iter(range(10**6))
    stamps = Stamps(lambda: next(now), lambda: 0, room=100)
    for _ in range(1000):
        draw(stamps, TRAIN)
        train(stamps)
    stamped = stamps._current
    assert max(len(stamped.marks), len(stamped.draws), len(stamped.losses)) <= 101
    assert stamped.marks[-1][1] == OTHER


def test_a_dataset_at_the_address_of_one_that_is_gone_is_another() -> None:
    """An evaluation whose dataset lies where a training's lay before is an evaluation; none is kept alive for it."""

    class Dataset: ...

    datasets, stamps, batches = Datasets(), new_stamps(), Batches()
    trained = Dataset()
    address, number = id(trained), datasets.number(trained)
    assert datasets.number(trained) == number
    draw(stamps, number)
    train(stamps)
    sorted_stamps(stamps, batches)
    del trained
    others = [Dataset()]
    while id(others[-1]) != address:
        others.append(Dataset())
        assert len(others) < 10_000, "the dataset is kept alive"
    for _ in range(5):
        draw(stamps, datasets.number(others[-1]))
    draw(stamps, datasets.number(stamps))
    train(stamps)
    assert sorted_stamps(stamps, batches).samples == 4


@pytest.mark.parametrize("kind", [list, object])
def test_what_cannot_be_referred_to_weakly_has_a_number_too(kind: type) -> None:
    """Such as a list of samples."""
    datasets, one, other = Datasets(), kind(), kind()
    assert datasets.number(one) == datasets.number(one) != datasets.number(other)


def test_of_many_datasets_only_the_newest_are_remembered() -> None:
    """A script that makes a new one for each step does not fill the memory, and all its batches are training."""
    datasets, stamps, batches = Datasets(), new_stamps(), Batches()
    for _ in range(3000):
        draw(stamps, datasets.number(Batches()))
        train(stamps)
        assert sorted_stamps(stamps, batches).samples == 4
    assert max(len(datasets._known), len(batches._training)) <= 1024


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [
        pytest.param(lambda: [whole(8, 33), whole(8, 33)], (8, 264), id="next"),
        pytest.param(lambda: ({"input": whole(2, 5).int()}, whole(2, 5).int()), (2, 10), id="nested"),
        pytest.param(lambda: {"attention_mask": torch.ones(4, 16), "input_ids": whole(4, 16)}, (4, 64), id="name"),
        pytest.param(lambda: UserDict(input_ids=whole(3, 7), labels=torch.ones(3)), (3, 21), id="mapping"),
        pytest.param(lambda: [torch.zeros(8, 3, 4, 4), whole(8)], (8, None), id="pictures"),
        pytest.param(lambda: [whole(8, 28).byte(), whole(8, 28).byte()], (8, None), id="bytes"),
        pytest.param(lambda: [whole(8), whole(8)], (8, None), id="pairs"),
        pytest.param(lambda: [whole(8, 1), whole(8, 1)], (8, None), id="classes"),
        pytest.param(lambda: [whole(8, 26), torch.zeros(8)], (8, None), id="categories"),
        pytest.param(lambda: [torch.zeros(8, 26), whole(8, 26)], (8, None), id="fractions"),
        pytest.param(lambda: torch.tensor(1.0), (1, None), id="number"),
        pytest.param(lambda: ["text", 3, None], (None, None), id="nothing"),
    ],
)
def test_tokens_are_known_from_everything_else(batch: Callable[[], Any], sizes: tuple[int | None, int | None]) -> None:
    """Whole numbers with a next one for each, or by the name of the Transformers library; nothing else is text."""
    assert sizes_of(torch, batch()) == sizes


def whole(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int64)


def test_tokens_of_an_evaluation_are_left_out() -> None:
    """The step has the tokens of the batches that it trains on, of all of them together."""
    stamps = new_stamps()
    for evaluation in (False, True, False):
        stamps.draw(HELD_OUT if evaluation else TRAIN, evaluation=evaluation)
        stamps.drew(4, 100)
        stamps.turn(FORWARD)
        if not evaluation:
            train(stamps)
    stamped = sorted_stamps(stamps, Batches())
    assert (stamped.samples, stamped.tokens) == (8, 200)


class Looked(list[int]):
    """A list that counts how many of its items were looked at."""

    seen = 0

    def __iter__(self) -> Iterator[int]:
        for item in range(len(self)):
            Looked.seen += 1
            yield item


def test_a_long_list_in_a_batch_is_not_looked_through() -> None:
    """The training thread waits meanwhile: of a list of words for each sample only the first items matter."""
    words = [Looked(range(4096)) for _ in range(64)]
    assert sizes_of(torch, [words[0], torch.ones(8, 3)]) == (8, None)
    assert sizes_of(torch, [torch.ones(8, 3), *words, *words]) == (8, None)
    assert Looked.seen <= 1024


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_nested_tensor_in_a_batch_hides_nothing() -> None:
    """It has no shape, and torch raises where it is asked for one."""
    nested = torch.nested.as_nested_tensor([whole(3), whole(5)])
    assert sizes_of(torch, (whole(8, 16), nested, whole(8, 16))) == (8, 128)
    assert sizes_of(torch, (whole(8, 16), nested)) == (8, None)
