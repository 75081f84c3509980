"""Where ranks stand, for people: who is told together, in which order, and what of a stack is left out."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from support.values.inspections import CALL, GROUP, MODEL, SLEEPS, WAITS, S, absent, hung, inspection, stopped, thread

from ddptop.agent import wire
from ddptop.agent.client.diagnosis.stacks import Stacks
from ddptop.tui.model.diagnosis import stacks
from ddptop.tui.model.diagnosis.stacks import lines_of, named, places

change = msgspec.structs.replace


def told(*inspections: wire.Inspection, **options: object) -> list[list[str]]:
    """Return the lines of each place, their sources behind them."""
    found = places(Stacks(0.0, inspections), **options)  # type: ignore[arg-type]
    return [[f"{line.text} | {line.source}".removesuffix(" | ") for line in lines] for lines in lines_of(found)]


def ranks(*inspections: wire.Inspection, **options: object) -> list[tuple[int, ...]]:
    """Return the ranks of each place."""
    return [place.ranks for place in places(Stacks(0.0, inspections), **options)]  # type: ignore[arg-type]


def test_a_rank_that_never_came_is_told_first_and_the_others_once() -> None:
    """With its line and the text of that, how many calls it has made, and in which call the others stand."""
    odd, others = told(*hung())
    assert odd == [
        "rank 1 | pid 4712 · step 1,203 · backward · process sleeping · 0% CPU",
        "not in a collective; 1,203 calls in group 0, the last all_reduce 4 MiB",
        "train.py:31 main | time.sleep(3600)",
        "train.py:52 <module> | main()",
    ]
    assert others[:2] == [
        "ranks 0, 2-3 (3) | step 1,203 · backward · process sleeping · 0% CPU",
        "in all_reduce 4 MiB, call 1,204 of group 0, for 12 s",
    ]


def test_frames_of_libraries_are_folded() -> None:
    """The innermost one stays, because it says what the rank does; one alone takes no more room than its fold."""
    (lines,) = lines_of(places(Stacks(0.0, (inspection(0, threads=(thread(MODEL),)),))))
    assert [(line.kind, line.text) for line in lines[2:]] == [
        (stacks.LIBRARY, "torch/nn/functional.py:2000 linear"),
        (stacks.FOLDED, "… 3 frames of torch.nn"),
        (stacks.HERE, "model.py:7 forward"),
        (stacks.FOLDED, "… 2 frames of torch.nn"),
        (stacks.USER, "train.py:28 main"),
    ]
    ours = wire.Frame("wait", "/opt/lib/python3.11/site-packages/ddptop/agent/rank/waits.py", 93, library=True)
    (wrapped,) = told(inspection(0, threads=(thread((ours, *WAITS)),)))
    assert wrapped[2:4] == [
        "torch/distributed/distributed_c10d.py:2809 all_reduce",
        "… 2 frames of ddptop.agent, torch.distributed",
    ]
    (waits,) = told(inspection(0))
    assert waits[2:] == [
        "torch/distributed/distributed_c10d.py:2809 all_reduce",
        "… 1 frame of torch.distributed",
        "train.py:40 average | dist.all_reduce(parameter.grad)",
        "train.py:33 main | average(model)",
        "train.py:52 <module> | main()",
        "runpy.py:88 run",
    ]


@pytest.mark.parametrize(
    ("file", "package"),
    [
        ("torch/nn/modules/module.py", "torch.nn"),
        ("/opt/env/lib/python3.11/site-packages/torch/_tensor.py", "torch"),
        ("/usr/lib/python3/dist-packages/numpy/linalg/linalg.py", "numpy.linalg"),
        ("/usr/lib/python3.12/threading.py", "threading"),
        ("threading.py", "threading"),
        ("<frozen runpy>", "<frozen runpy>"),
        ("/opt/versions/3.11.7/lib/libpython3.11.so.1.0", "libpython3.11"),
        ("…/modules/layers/attention.py", "modules.layers"),
        ("/lib/x86_64-linux-gnu/libc.so.6", "libc"),
        ("/env/site-packages/torch/lib/libtorch_cpu.so", "libtorch_cpu"),
        ("", "?"),
        ("/", "?"),
    ],
)
def test_a_fold_names_the_package(file: str, package: str) -> None:
    """However the path of the file was shortened before."""
    assert stacks.package(file) == package


def test_recursion_and_frames_left_out_take_a_line_each() -> None:
    """With how many there are; the cut stands in the middle, where it was made."""
    dive = wire.Frame("dive", "deep.py", 3, "return dive(n - 1)")
    first = (wire.Frame("bottom", "deep.py", 2, "sleep(9)"), *[dive] * 49)
    (lines,) = told(inspection(0, threads=(thread((*first, *[dive] * 50), left_out=880),)))
    assert lines[2:] == [
        "deep.py:2 bottom | sleep(9)",
        "deep.py:3 dive  ×49 | return dive(n - 1)",
        "… 880 frames left out",
        "deep.py:3 dive  ×50 | return dive(n - 1)",
    ]


def test_what_differs_without_meaning_does_not_part_ranks() -> None:
    """Ages of a call, shares of CPU, steps, lines of a library that polls, and process groups of the same call."""
    polls = (change(WAITS[0], line=2811), *WAITS[1:])
    same = [
        inspection(0),
        inspection(1, open=(change(CALL, open_ns=9 * S),), cpu_percent=98.0, step=1202),
        inspection(2, threads=(thread(polls),)),
        inspection(3, open=(change(CALL, group="tp-1"),)),
    ]
    assert ranks(*same) == [(0, 1, 2, 3)]
    ((head, call, *_),) = told(*same)
    assert head == "ranks 0-3 (4) | steps 1,202 to 1,203 · backward · process sleeping · 0 to 98% CPU"
    assert call == "in all_reduce 4 MiB, call 1,204 of groups 0, tp-1 (2), for 9.0 s to 12 s"


@pytest.mark.parametrize(
    "other",
    [
        inspection(0, threads=(thread((change(WAITS[2], line=41), *WAITS[3:])),)),
        inspection(0, open=(change(CALL, number=1205),)),
        inspection(0, open=(change(CALL, bytes=8),)),
        inspection(0, open=(change(CALL, op="all_gather"),)),
        inspection(0, open=()),
        inspection(0, status="stopped"),
        inspection(0, by="py-spy"),
        inspection(0, threads=(thread(WAITS), thread(SLEEPS, "loader"))),
        inspection(0, threads=(thread(WAITS, holds_gil=True),)),
    ],
)
def test_what_matters_parts_ranks(other: wire.Inspection) -> None:
    """Another line of the user's, another call, another state of the process, a thread of the user's own."""
    assert ranks(other, inspection(1), inspection(2)) == [(0,), (1, 2)]


def test_the_rank_that_is_looked_at_and_the_cause_come_first() -> None:
    """Then places of few ranks; of two ranks the one that is in no collective."""
    group = (*hung(6, culprit=4), stopped(6))
    assert ranks(*group) == [(4,), (6,), (0, 1, 2, 3, 5)]
    assert ranks(*group, culprits={6}) == [(6,), (4,), (0, 1, 2, 3, 5)]
    assert ranks(*group, culprits={6}, first=2) == [(0, 1, 2, 3, 5), (6,), (4,)]
    assert ranks(*hung(2)) == [(1,), (0,)]


def test_what_could_not_be_had_is_one_line() -> None:
    """For all ranks with the same reason together, among the odd ones."""
    missing = {2: "no answer", 3: "ended, exit code 1", 5: "no answer"}
    found = places(Stacks(0.0, (inspection(0), inspection(1), inspection(4), stopped(6)), missing))
    assert [place.ranks for place in found] == [(3,), (6,), (2, 5), (0, 1, 4)]
    assert [[line.text for line in lines] for lines in lines_of(found)[:3]] == [
        ["rank 3", "ended, exit code 1"],
        ["rank 6", "no stack: py-spy is not installed; pip install 'ddptop[stacks]'"],
        ["ranks 2, 5 (2)", "no answer"],
    ]


def test_threads_of_the_user_are_told_and_those_of_libraries_counted() -> None:
    """A lock that another thread holds may be the cause; a hundred idle workers are not."""
    loader = thread((wire.Frame("get", "queue.py", 171, library=True), *SLEEPS[:1]), "loader", holds_gil=True)
    idle = thread((wire.Frame("wait", "threading.py", 320, library=True),), "pool")
    (lines,) = told(inspection(0, threads=(idle, thread(SLEEPS), loader, idle), threads_left_out=7))
    assert lines[2:] == [
        "train.py:31 main | time.sleep(3600)",
        "train.py:52 <module> | main()",
        "thread loader",
        "it holds the interpreter lock",
        "queue.py:171 get",
        "train.py:31 main | time.sleep(3600)",
        "and 9 more threads, in libraries alone",
    ]


def test_a_call_is_said_to_be_stood_in_only_where_the_rank_is_blocked_in_it() -> None:
    """One that was begun may complete behind a rank that does something else."""
    begun = change(CALL, blocking=False)
    assert told(inspection(0, open=(begun,)))[0][1] == "open: all_reduce 4 MiB, call 1,204 of group 0, for 12 s"
    both = told(inspection(0, open=(begun, change(CALL, op="barrier", number=1206, bytes=0))))[0][1]
    assert both == "in barrier, call 1,206 of group 0, for 12 s, and 1 more call open"
    perhaps = change(begun, sure=False)
    (unsure,) = told(inspection(0, open=(perhaps,)))
    assert unsure[1] == "perhaps open, its end is not reported: all_reduce 4 MiB, call 1,204 of group 0, for 12 s"
    assert told(inspection(0, open=(perhaps, begun)))[0][1].startswith("open: all_reduce")
    sent = told(inspection(0, open=(change(CALL, op="recv", number=0),)))[0][1]
    assert sent == "in recv 4 MiB, in group 0, for 12 s"


def test_what_is_not_known_of_collectives_is_not_said() -> None:
    """Nothing of a rank that was seen from outside; where calls may be unseen, that; never that there is none."""
    assert not any("collective" in line for line in told(absent(0, by="py-spy"))[0])
    unseen = told(absent(0, observed=False))[0][1]
    assert unseen == "not every collective is seen here: another one may be open"
    assert told(absent(0, groups=()))[0][1] == "not in a collective; no calls yet"
    mixed = told(absent(0, groups=(change(GROUP, group="tp", calls=9000), GROUP)), inspection(1))[0][1]
    assert mixed == "not in a collective; 1,204 calls in group 0, the last all_reduce 4 MiB"


def test_many_ranks_are_named_shortly() -> None:
    """As stretches; of very scattered ones the first, and how many there are."""
    assert named((7,)) == "rank 7"
    assert named((0, 1, 2, 5)) == "ranks 0-2, 5 (4)"
    assert named(tuple(range(0, 2048, 2))) == "ranks 0, 2, 4, 6, 8, 10, … (1,024)"


def test_some_ranks_alone() -> None:
    """Those asked for, whether something is known of them or not."""
    whole = Stacks(0.0, hung(), {4: "no answer", 5: "no answer"})
    some = whole.of({1, 5})
    assert ([each.rank for each in some.inspections], dict(some.unknown)) == ([1], {5: "no answer"})
    assert replace(some, inspections=(), missing=None).unknown == {}
