"""Looks at data workers: real processes that a loader forks, and the pages that they share with the rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from support import late
from support.harness import until

from ddptop.agent.rank.inspection.looks import workers as workers_module
from ddptop.agent.rank.inspection.looks.workers import Workers
from ddptop.agent.run.script.sources import Sources
from ddptop.agent.wire import MOST_PLACES, Frame, Looks, Stack

if TYPE_CHECKING:
    from torch.utils import data
    from torch.utils.data._utils import fetch

_imports = late.imports(globals())

HOME = Path(__file__).parent
SLOW = "time.sleep(0.01)  # the slow line"


def sources() -> Sources:
    """Return those of a program in the folder of this file."""
    return Sources(f"{HOME}/", f"{HOME}/")


def decoded(index: int) -> int:
    """Take long."""
    time.sleep(0.01)  # the slow line
    return index


class Images:
    """A dataset that says with each item how many threads of ours its process has."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[int, int]:
        return decoded(index), sum(each.name.startswith("ddptop") for each in threading.enumerate())


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    """The pages of a rank whose loaders are hooked."""
    made = Workers(sources)
    monkeypatch.setattr(fetch._MapDatasetFetcher, "fetch", made.around(fetch._MapDatasetFetcher.fetch))
    return made


@pytest.fixture
def batches(workers: Workers) -> Iterator[Any]:
    """Batches of two forked workers."""
    loader: Any = data.DataLoader(Images(), batch_size=2, num_workers=2, multiprocessing_context="fork")  # type: ignore[arg-type]
    drawn = iter(loader)
    next(drawn)
    yield drawn
    drawn._shutdown_workers()


def draw_until(batches: Any, looks: int) -> None:
    """Draw until so many threads of ours are in the workers of two batches, one after the other."""
    until(lambda: all(int(next(batches)[1][-1]) == looks for _ in range(2)), f"{looks} threads that look in a worker")


def test_the_line_in_the_dataset_is_found(workers: Workers, batches: Any) -> None:
    """With nearly all of the time of the batches, as code of the program; nothing runs there before and afterwards."""
    draw_until(batches, 0)
    assert workers.take() is None
    workers.begin()
    draw_until(batches, 1)
    for _ in range(40):
        next(batches)
    workers.end()
    draw_until(batches, 0)
    until(lambda: not workers.is_writing, "what the workers have seen")
    looks = workers.take()
    assert looks is not None
    assert looks.steps >= 30
    text = Path(__file__).read_text().splitlines()
    slow = next(number for number, each in enumerate(text, 1) if each.strip() == SLOW)
    (place,) = (each for each in looks.places if each.function == "decoded")
    assert (place.file, place.line, place.library) == ("test_workers.py", slow, False)
    inside = sum(each.ns for each in looks.stacks if looks.places.index(place) in each.frames)
    assert {each.phase for each in looks.stacks} == {"worker"}
    assert inside >= 0.8 * sum(each.ns for each in looks.stacks)
    # An item takes 10 ms at least, a batch has two of them.
    assert inside >= 0.01e9 * looks.steps
    workers.begin()
    assert workers.take() is None


def test_a_worker_does_not_look_without_end(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Whatever the pages say, and what it has seen by then stays."""
    monkeypatch.setattr(workers_module, "_LONGEST_S", 0.3)
    batches = request.getfixturevalue("batches")
    workers.begin()
    draw_until(batches, 1)
    draw_until(batches, 0)
    assert not any(int(next(batches)[1][-1]) for _ in range(20))
    until(lambda: not workers.is_writing, "what the workers have seen")
    looks = workers.take()
    assert looks is not None
    assert looks.steps > 0


def test_a_loader_without_workers_is_not_looked_at(workers: Workers) -> None:
    """The training thread itself makes the batches, and is looked at by others."""
    workers.begin()
    drawn = iter(data.DataLoader(Images(), batch_size=2))  # type: ignore[arg-type]
    assert int(next(drawn)[1][-1]) == 0


def test_as_much_is_written_as_there_is_room_for() -> None:
    """The stacks with the most time, and of the places only theirs."""
    places = tuple(Frame(f"function_{number}" * 8, f"file_{number}" * 20, number) for number in range(MOST_PLACES))
    stacks = tuple(Stack("worker", (number, MOST_PLACES - 1), 1000 - number) for number in range(250))
    payload = workers_module._fitting(Looks(7, places, stacks))
    assert len(payload) <= workers_module._PART - workers_module._HEAD.size
    looks = msgspec.msgpack.decode(payload, type=Looks)
    assert looks.steps == 7
    assert len(looks.stacks) > 30
    for number, stack in enumerate(looks.stacks):
        assert stack.ns == 1000 - number
        assert [looks.places[each] for each in stack.frames] == [places[number], places[-1]]


def test_a_worker_that_cannot_be_read_is_left_out(workers: Workers) -> None:
    """Two loaders may write to one part at a time: what is no looks then is none, and the others count."""
    workers.begin()
    good = msgspec.msgpack.encode(Looks(3, (Frame("a", "a.py", 1),), (Stack("worker", (0,), 9),)))
    for part, payload in zip(workers_module._PARTS, (good, b"\xc1 torn", good), strict=False):
        workers._pages[part + 12 : part + 12 + len(payload)] = payload
        workers_module._HEAD.pack_into(workers._pages, part, workers._number, len(payload))
    assert workers.take() == Looks(6, (Frame("a", "a.py", 1),), (Stack("worker", (0,), 18),))
