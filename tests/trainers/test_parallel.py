"""The programs whose ranks are not alike: what each computes is what one process would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import ddptop, status, until

from .conftest import Group
from .test_programs import furthest, parameters, run


@pytest.fixture(scope="module", autouse=True)
def _imports() -> None:
    """Import torch where these tests run: every worker reads all files, and the import takes seconds."""
    global bubble, in_proportion
    from ddptop.trainers.pipeline import bubble
    from ddptop.trainers.rebalance import in_proportion


def trained(group: Group, folder: Path, world: int, name: str, *arguments: object) -> tuple[Path, str]:
    """Train with a checkpoint; return its folder and what rank 0 printed."""
    done = run(group, world, name, *arguments, "--checkpoint-dir", folder)
    return folder, done.out[0]


def difference(one: Path, other: Path) -> float:
    return furthest(parameters(one), parameters(other))


def test_split_weights_train_as_one_process(group: Group, tmp_path: Path) -> None:
    """Two ranks of `tensor`, and a grid of two by two of `hybrid`, end with the parameters of one process."""
    length = ("--samples", 64, "--epochs", 1)
    alone, _ = trained(group, tmp_path / "alone", 1, "tensor", *length, "--batch-size", 16)
    split, _ = trained(group, tmp_path / "split", 2, "tensor", *length, "--batch-size", 16)
    grid, _ = trained(group, tmp_path / "grid", 4, "hybrid", *length, "--batch-size", 8)
    assert difference(split, alone) < 1e-4
    assert difference(grid, alone) < 1e-4


def test_every_schedule_trains_as_one_process(group: Group, tmp_path: Path) -> None:
    """Whatever the schedule, a pipeline ends with the parameters of one process; 1F1B keeps less than GPipe."""
    length = ("--samples", 64, "--epochs", 1, "--batch-size", 16, "--microbatches", 4, "--device-ms", 0)
    alone, _ = trained(group, tmp_path / "alone", 1, "pipeline", *length)
    held = {}
    for schedule in ("gpipe", "1f1b", "interleaved"):
        folder, out = trained(group, tmp_path / schedule, 2, "pipeline", *length, "--schedule", schedule)
        assert difference(folder, alone) < 1e-5
        held[schedule] = re.search(r"microbatches held by rank ([\d ]+)", out)[1]  # type: ignore[index]
    assert (held["gpipe"], held["1f1b"]) == ("4 4", "2 1")


def test_bubble_shrinks_with_microbatches(group: Group) -> None:
    """The bubble that is measured falls from half of the step towards what theory says."""
    measured = {}
    for microbatches in (1, 8):
        arguments = ("--steps", 6, "--batch-size", 16, "--microbatches", microbatches, "--schedule", "gpipe")
        out = run(group, 2, "pipeline", *arguments).out[0]
        found = re.search(r"bubble ([\d.]+)% \(theory ([\d.]+)%\)", out)
        assert found
        assert float(found[2]) == pytest.approx(100 * bubble(2, microbatches, 1), abs=0.05)
        measured[microbatches] = float(found[1])
    assert measured[8] < measured[1]


def test_bubble_is_that_of_the_drawn_schedule() -> None:
    """The formula gives the idle slots of GPipe's picture: 4 ranks, 4 microbatches, 12 of 28 forward slots."""
    assert bubble(4, 4, 1) == pytest.approx(12 / 28)
    assert bubble(4, 4, 2) == pytest.approx(3 / 11)
    assert bubble(1, 4, 1) == 0


def test_rebalanced_average_is_unbiased(group: Group, tmp_path: Path) -> None:
    """With unequal shares the parameters are those of one process on the whole batch; the slow rank has less to do."""
    length = ("--samples", 576, "--epochs", 1)
    alone, _ = trained(group, tmp_path / "alone", 1, "rebalance", *length, "--batch-size", 48)
    arguments = ("--batch-size", 16, "--every", 2, "--slow", "1:20")
    shared, out = trained(group, tmp_path / "shared", 3, "rebalance", *length, *arguments)
    first, slow, last = map(int, re.search(r"shares (\d+) (\d+) (\d+) of 48 images", out).groups())  # type: ignore[union-attr]
    assert first + slow + last == 48
    assert 2 * slow < min(first, last)
    assert difference(shared, alone) < 1e-5


@pytest.mark.parametrize(
    ("speeds", "total", "shares"),
    [([1, 1, 1], 9, [3, 3, 3]), ([3, 1], 10, [7, 3]), ([1000, 1], 8, [7, 1]), ([1, 1, 1], 5, [2, 2, 1])],
)
def test_shares_follow_speed(speeds: list[float], total: int, shares: list[int]) -> None:
    """Shares are whole, add up, are nearly in proportion, and nobody gets nothing."""
    assert in_proportion(speeds, total) == shares


def test_one_worker_is_plain_sgd(group: Group, tmp_path: Path) -> None:
    """A worker alone with two servers, a shard each, ends with the parameters of one process that has neither."""
    length = ("--samples", 128, "--epochs", 2, "--batch-size", 16)
    alone, _ = trained(group, tmp_path / "alone", 1, "paramserver", *length, "--sync")
    served, _ = trained(group, tmp_path / "served", 3, "paramserver", *length, "--servers", 2)
    assert difference(served, alone) < 1e-6


@pytest.mark.parametrize(("bound", "slow_ms", "apart"), [((), 200, (10, 60)), (("--staleness", 1), 40, (-2, 2))])
def test_who_waits_for_a_slow_worker(
    group: Group, bound: tuple[object, ...], slow_ms: int, apart: tuple[int, int]
) -> None:
    """Without a bound the fast worker takes most of the steps; with one neither is far ahead."""
    arguments = ("--samples", 960, "--epochs", 1, "--batch-size", 16, "--slow", f"1:{slow_ms}")
    out = run(group, 3, "paramserver", *arguments, *bound).out[0]
    slow, fast = map(int, re.search(r"steps by worker (\d+) (\d+)", out).groups())  # type: ignore[union-attr]
    assert slow + fast in (60, 61)
    assert apart[0] <= fast - slow <= apart[1]


@pytest.mark.parametrize("name", ["pipeline", "hybrid"])
def test_parts_are_put_together_in_a_checkpoint(group: Group, tmp_path: Path, name: str) -> None:
    """A run interrupted after an epoch, and gone on with another number of ranks, ends as one that was not."""
    options = ("--samples", 64, "--batch-size", 16, *(("--device-ms", 0) if name == "pipeline" else ("--tensor", 2)))
    whole, _ = trained(group, tmp_path / "whole", 2, name, *options, "--epochs", 2)
    parts, _ = trained(group, tmp_path / "parts", 2, name, *options, "--epochs", 1)
    trained(group, parts, 1 if name == "pipeline" else 2, name, *options, "--epochs", 2, "--resume")
    assert difference(parts, whole) < 1e-4


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("paramserver", (), "1 servers and a worker are 2 ranks at least, not 1"),
        ("paramserver", ("--sync", "--slow", "3:5"), "--slow 3:5: training are the ranks 0 to 0"),
        ("rebalance", ("--slow", "1"), "--slow: must be a rank and an amount, like 1:50, not '1'"),
        ("pipeline", ("--microbatches", 5), "a batch of 32 cannot be cut into 5 equal microbatches"),
        ("pipeline", ("--samples", 3), "fewer images than one step takes"),
        ("hybrid", ("--tensor", 3), "1 ranks do not make rows of 3"),
    ],
)
def test_what_does_not_fit_is_one_line(group: Group, name: str, arguments: tuple[object, ...], said: str) -> None:
    """What cannot be shared out so is one line, and exit code 2."""
    done = group(1, f"ddptop.trainers.{name}", *arguments)
    assert done.codes == [2]
    assert done.err.startswith(f"{name}: ")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_servers_and_workers_are_held_together() -> None:
    """A server and its workers stop at the same step, whoever is ahead, go on, and end well; each says what it is."""
    launched = ddptop("launch", "--world", "3", "--detach", "--name", "served", "paramserver", "--", "--steps", "150")
    assert launched.returncode == 0, launched.stderr
    until(lambda: (status("served")["step"] or 0) > 10, "the first steps")
    paused = ddptop("pause", "served")
    assert paused.returncode == 0, paused.stderr
    ranks = status("served")["ranks"]
    assert {rank["state"] for rank in ranks} == {"paused"}
    assert len({rank["step"] for rank in ranks}) == 1
    assert [rank["coordinates"] for rank in ranks] == [{"server": 0}, {"worker": 0}, {"worker": 1}]
    assert ddptop("resume", "served").returncode == 0
    until(lambda: status("served")["exit_code"] is not None, "the end")
    assert status("served")["exit_code"] == 0
