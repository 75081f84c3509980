"""The line behind a slow rank, from looks at two ranks: values in, a line out."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from support.values.hostile import structs

from ddptop.agent.observer.judge.lines import Line, line_of
from ddptop.agent.wire import Frame, Looks, Stack

STEPS = 60
MAIN = Frame("main", "train.py", 10)
"""The loop, on the stack of everything, at the call of the training."""
FORWARD = Frame("main", "train.py", 12)
BACKWARD = Frame("main", "train.py", 13)
LOAD = Frame("Images.__getitem__", "data.py", 7)
DECODE, RESIZE = Frame("decoded", "data.py", 20), Frame("decoded", "data.py", 21)
CONV = Frame("Conv2d.forward", "torch/nn/modules/conv.py", 554, library=True)
NEXT = Frame("_BaseDataLoaderIter.__next__", "torch/utils/data/dataloader.py", 700, library=True)
WAIT = Frame("_MultiProcessingDataLoaderIter._try_get_data", "torch/utils/data/dataloader.py", 1100, library=True)
TRAIN = Frame("main", "train.py", 30)
LOG = Frame("Trainer.log", "lightning/trainer.py", 99, library=True)

Spent = tuple[str, float, tuple[Frame, ...]]


def looks(*spent: Spent, steps: int = STEPS) -> Looks:
    """Return looks in which each stack has so many ms of a step in a phase."""
    places = list(dict.fromkeys(frame for _, _, frames in spent for frame in frames))
    stacks = [
        Stack(phase, tuple(map(places.index, frames)), int(ms * steps * 1_000_000)) for phase, ms, frames in spent
    ]
    return Looks(steps, tuple(places), tuple(stacks))


def _rounded(found: Line | None) -> Line | None:
    return found and Line(found.text, round(found.share, 1))


USUAL: tuple[Spent, ...] = (
    ("data", 1, (MAIN, NEXT, LOAD)),
    ("forward", 10, (FORWARD, CONV)),
    ("backward", 10, (BACKWARD,)),
    ("wait", 25, (BACKWARD,)),
)
"""An ordinary rank: it waits for the slow one."""
WORKER: Spent = ("worker", 10, (NEXT, LOAD))


@pytest.mark.parametrize(
    ("phase", "spent", "text", "share"),
    [
        # Own code that a library calls, which own code has called: the deepest with most of the difference.
        ("data", (("data", 26, (MAIN, NEXT, LOAD, DECODE)), *USUAL[1:3]), "data.py:20 decoded", 1.0),
        # Two lines of one function share it: the one with more.
        (
            "data",
            (("data", 14, (MAIN, NEXT, LOAD, DECODE)), ("data", 12, (MAIN, NEXT, LOAD, RESIZE)), *USUAL[1:3]),
            "data.py:20 decoded",
            14 / 25,
        ),
        # Own code as far as it goes, and not the library that it calls.
        ("forward", (USUAL[0], ("forward", 35, (FORWARD, CONV)), USUAL[2]), "train.py:12 main", 1.0),
        # The wrong phase was blamed: the whole step shows the line.
        ("data", (USUAL[0], ("forward", 35, (FORWARD, CONV)), USUAL[2]), "train.py:12 main", 1.0),
        # A rank that waits as long as others compute has no line for that.
        (None, (*USUAL[:3], ("other", 25, (MAIN, LOG))), "train.py:10 main", 1.0),
        # All is slower alike, however much that is.
        (None, tuple((phase, 2.2 * ms, frames) for phase, ms, frames in USUAL[:3]), "", 0.0),
    ],
)  # fmt: skip
def test_the_line_that_takes_longer_than_on_an_ordinary_rank_is_named(
    phase: str | None, spent: tuple[Spent, ...], text: str, share: float
) -> None:
    """The deepest own function with most of the difference, and in it the line with most of it."""
    found = line_of([looks(*spent)], [looks(*USUAL)], phase, 25.0)
    assert found is not None
    assert found.text == text
    assert found.share == pytest.approx(share, abs=0.02)


def test_the_number_of_steps_that_were_looked_at_does_not_matter() -> None:
    """A rank that was looked at for more steps than the other is not slower for that."""
    slow = looks(("data", 26, (MAIN, NEXT, LOAD, DECODE)), *USUAL[1:3], steps=700)
    found = line_of([slow], [looks(*USUAL, steps=30)], "data", 25.0)
    assert _rounded(found) == Line("data.py:20 decoded", 1.0)


def test_a_library_has_the_line_where_own_code_is_only_the_loop() -> None:
    """Of `trainer.train()` everything is called: the line of the library with most of the difference says more."""
    usual = [(phase, ms, (TRAIN, *frames[1:])) for phase, ms, frames in USUAL]
    slow = [*usual[:3], ("other", 25.0, (TRAIN, LOG))]
    found = line_of([looks(*slow)], [looks(*usual)], "other", 25.0)
    assert _rounded(found) == Line("lightning/trainer.py:99 log", 1.0)


@pytest.mark.parametrize(
    ("culprit", "peer"),
    [
        # It was over before anybody looked.
        (looks(*USUAL), looks(*USUAL)),
        # The peer is slow as well.
        (looks(*USUAL, ("data", 25, (MAIN, LOAD))), looks(*USUAL, ("data", 25, (MAIN, LOAD)))),
        # No step was completed meanwhile.
        (looks(*USUAL, ("data", 25, (MAIN, LOAD)), steps=0), looks(*USUAL)),
        (looks(*USUAL, ("data", 25, (MAIN, LOAD))), looks(*USUAL, steps=0)),
    ],
)  # fmt: skip
def test_looks_that_do_not_show_the_cost_say_nothing(culprit: Looks, peer: Looks) -> None:
    """What was judged is not in them: no line, and no words about lines either."""
    assert line_of([culprit], [peer], "data", 25.0) is None


def test_a_line_that_is_all_of_its_phase_on_both_ranks_is_named() -> None:
    """A hook that ordinary ranks have too: what they do in other phases shows that this rank is not slow in all."""
    hook = Frame("clipped", "train.py", 65)
    peer = looks(USUAL[1], ("backward", 0.5, (BACKWARD, hook)), ("wait", 25, (BACKWARD,)))
    culprit = looks(USUAL[1], ("backward", 25.5, (BACKWARD, hook)), ("backward", 0.1, (BACKWARD,)))
    assert _rounded(line_of([culprit], [peer], "backward", 25.0)) == Line("train.py:65 clipped", 1.0)


def test_a_phase_that_is_slower_as_all_else_is_has_no_line() -> None:
    """One line may be nearly all of the phase that is blamed, and is slow because the machine is."""
    culprit = looks(*((phase, 2.2 * ms, frames) for phase, ms, frames in USUAL[:3]))
    assert line_of([culprit], [looks(*USUAL)], "forward", 12.0) == Line("")


def test_a_phase_that_alone_is_slower_is_named_where_it_has_no_line() -> None:
    """Python between the operators of a backward pass, as a profile shows it, is not the whole rank being slower."""
    one, other = Frame("clip", "train.py", 30), Frame("scale", "train.py", 40)
    usual = [("forward", 10, (MAIN, FORWARD)), ("backward", 5, (MAIN, one)), ("backward", 5, (MAIN, other))]
    slow = [usual[0], ("backward", 18, (MAIN, one)), ("backward", 17, (MAIN, other))]
    assert line_of([looks(*slow)], [looks(*usual)], "backward", 25.0) == Line("", within="backward")
    even = [(phase, 3.5 * ms, frames) for phase, ms, frames in usual]
    assert line_of([looks(*even)], [looks(*usual)], "backward", 25.0) == Line("")


def test_of_a_wait_for_data_workers_the_line_is_in_the_worker() -> None:
    """Where workers were looked at their line is named, otherwise the loop's, with the reason."""
    waiting = looks(("data", 26, (MAIN, NEXT, WAIT)), *USUAL[1:3])
    usual = looks(*USUAL)
    of_worker = looks(("worker", 55, (NEXT, LOAD, DECODE)), ("worker", 5, (NEXT, LOAD)))
    found = line_of([waiting, of_worker], [usual, looks(WORKER)], "data", 25.0)
    assert _rounded(found) == Line("data.py:20 decoded, in a data worker", 1.0)
    # Nothing else is ever done in this worker, and the one of the ordinary rank was hardly seen at work.
    only = looks(("worker", 60, (NEXT, LOAD, DECODE)))
    for others in ([usual], [usual, looks(("worker", 0.1, (NEXT, LOAD, DECODE)))]):
        assert _rounded(line_of([waiting, only], others, "data", 25.0)) == Line(
            "data.py:20 decoded, in a data worker", 1.0
        )
    found = line_of([waiting], [usual], "data", 25.0)
    assert _rounded(found) == Line("train.py:10 main, which waits for data workers", 1.0)
    assert line_of([waiting, looks(WORKER)], [usual, looks(WORKER)], "data", 25.0) == found


def test_a_rank_that_is_seen_in_nothing_else_has_a_line_too() -> None:
    """Of a step that is nearly all of one phase a few looks show no other: its line is not for that the loop."""
    slow, usual = looks(("other", 34, (MAIN, LOAD, DECODE))), looks(("other", 9, (MAIN, LOAD, DECODE)))
    assert _rounded(line_of([slow], [usual], "other", 25.0)) == Line("data.py:20 decoded", 1.0)


@pytest.mark.parametrize("ms", [26, 900])
def test_what_all_ranks_wait_for_has_its_line_without_a_peer(ms: float) -> None:
    """Where the input holds all of them back one rank's looks are enough, also where it takes nearly the whole step."""
    slow = looks(("data", ms, (MAIN, NEXT, LOAD, DECODE)), *USUAL[1:3])
    assert _rounded(line_of([slow], [], "data", ms - 1.0)) == Line("data.py:20 decoded", 1.0)


@pytest.mark.parametrize(
    ("line", "remark"),
    [
        (Line("train.py:88 load_image", 0.86), "train.py:88 load_image (18 of 21 ms)"),
        (Line(""), "no line of its code stands out: all of it is slower"),
        (Line("", within="backward"), "no line of its code stands out: only its backward is slower: P says in what"),
    ],
)
def test_a_line_is_told_with_its_part_of_the_cost(line: Line, remark: str) -> None:
    """The ms are those of the verdict, which go on changing."""
    assert line.remark(21.0) == remark


@settings(deadline=None, max_examples=60)
@given(structs(Looks), structs(Looks))
def test_whatever_a_rank_sends_is_taken(culprit: Looks, peer: Looks) -> None:
    """Numbers of frames that there are not, no steps, times without end: a line with a share from 0 to 1, or none."""
    for looked in ([culprit], [culprit, peer]):
        for others in ([], [peer], [peer, culprit]):
            found = line_of(looked, others, None, 25.0)
            assert found is None or 0 <= found.share <= 1
    beyond = msgspec.structs.replace(looks(*USUAL), places=(MAIN,))
    line_of([beyond], [], None, 25.0)


ENGINE = Frame("_engine_run_backward", "torch/autograd/graph.py", 800, library=True)
LAYER, CONV, NORM = Frame("layer3", "", 0), Frame("layer3.conv2", "", 0), Frame("layer3.bn2", "", 0)
HOOK = Frame("clipped", "train.py", 50)


def in_backward(*spent: tuple[float, tuple[Frame, ...]]) -> Looks:
    """Return looks at a rank with so many ms below the engine of the backward pass, and little else."""
    stacks: list[Spent] = [("backward", ms, (BACKWARD, ENGINE, *frames)) for ms, frames in spent]
    return looks(USUAL[0], USUAL[1], *stacks)


@pytest.mark.parametrize(
    ("slow", "text"),
    [
        # Nobody has looked for modules, or there are none.
        ([(35, ())], "train.py:13 main"),
        ([(8, (LAYER, NORM)), (27, (LAYER, CONV))], "backward of layer3.conv2"),
        # Of a module whose parts are slower alike.
        ([(17, (LAYER, NORM)), (17, (LAYER, CONV))], "backward of layer3"),
        # A hook is a line.
        ([(5, (LAYER, NORM)), (30, (LAYER, CONV, HOOK))], "train.py:50 clipped"),
        ([(5, ()), (30, (HOOK,))], "train.py:50 clipped"),
    ],
)
def test_below_the_engine_a_module_or_a_hook_is_named(slow: list[tuple[float, tuple[Frame, ...]]], text: str) -> None:
    """The engine's own time alone is no more than the line of the backward pass."""
    usual = in_backward((5, (LAYER, NORM)), (5, (LAYER, CONV)))
    found = line_of([in_backward(*slow)], [usual], "backward", 25.0)
    assert found is not None
    assert found.text == text
