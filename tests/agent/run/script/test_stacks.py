"""Stacks in a message: the innermost and the outermost frames of all threads stay, within the bound."""

from __future__ import annotations

from ddptop.agent import wire
from ddptop.agent.run.script.stacks import ROOM, bounded, function_name


def thread(name: str, frames: int, size: int = 10) -> wire.Thread:
    """Return a thread whose lines are numbered from the innermost frame."""
    return wire.Thread(name, tuple(wire.Frame("f" * size, "file.py", number) for number in range(frames)))


def test_what_fits_stays_as_it_is() -> None:
    """Nothing is copied."""
    threads = (thread("main", 100), thread("other", 3))
    assert bounded(threads) == (threads, 0)


def test_the_middle_of_a_deep_stack_goes() -> None:
    """The first half of those that stay is the innermost, and the number of the others is told."""
    (cut,), _ = bounded([thread("main", 1001)])
    numbers = [frame.line for frame in cut.frames]
    assert numbers == [*range(50), *range(951, 1001)]
    assert cut.left_out == 901


def test_all_that_there_may_be_fits_into_a_message() -> None:
    """The longest texts in the most frames of the most threads: each thread keeps some, the first one the most."""
    made, left_out = bounded([thread(str(number), 100, 100) for number in range(1000)])
    assert (len(made), left_out) == (wire.MOST_THREADS, 1000 - wire.MOST_THREADS)
    assert min(len(each.frames) for each in made) >= 6
    assert len(made[0].frames) == 100
    assert all(each.left_out + len(each.frames) == 100 for each in made)
    reply = wire.encode(wire.Reply(1, True, inspection=wire.Inspection(0, 1, "agent", 1, threads=made)))
    assert len(reply) < ROOM < 256 << 10


def test_a_function_is_told_with_its_class() -> None:
    """The functions around it say nothing that its line does not."""
    assert function_name("Trainer.step") == "Trainer.step"
    assert function_name("main.<locals>.Net.forward") == "Net.forward"
