"""Every program of the catalogue on real process groups: what its text claims.

All in one file, which `--dist loadfile` gives to one worker: the process that forks the ranks is started once.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import late
from support.harness import ddptop, status, until

from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank.refusal import Refusal

from .conftest import Done, Group

if TYPE_CHECKING:
    import torch

    from ddptop.trainers.programs.data_parallel.mymodel import OneProcess
    from ddptop.trainers.programs.data_parallel.rebalance import in_proportion
    from ddptop.trainers.programs.model_parallel.pipeline import bubble
    from ddptop.trainers.rank.group import Position

_imports = late.imports(globals())


TINY = {
    "simplenet": ("--samples", 512, "--epochs", 3, "--batch-size", 32),
    "convnet": ("--samples", 128, "--epochs", 3, "--batch-size", 16, "--lr", 0.01),
    "mymodel": ("--samples", 128, "--epochs", 3, "--batch-size", 16),
    "resnet": ("--samples", 32, "--epochs", 2, "--batch-size", 4, "--lr", 0.005),
    "resnet34": ("--samples", 48, "--epochs", 2, "--batch-size", 8, "--width", 4),
    "accumulate": ("--samples", 512, "--epochs", 3, "--batch-size", 32),
    "paramserver": ("--samples", 256, "--epochs", 3, "--batch-size", 16),
    "rebalance": ("--samples", 512, "--epochs", 3, "--batch-size", 16),
    "pipeline": ("--samples", 128, "--epochs", 2, "--batch-size", 16, "--device-ms", 0),
    "tensor": ("--samples", 64, "--epochs", 2, "--batch-size", 16),
    "hybrid": ("--samples", 64, "--epochs", 2, "--batch-size", 16),
}
"""Options with which a program trains in about a second."""
WITHOUT_TRAINING = {"toy", "sendrecv", "collectives"}


def run(group: Group, world: int, name: str, *arguments: object) -> Done:
    """Run a program and see that every rank ends well."""
    done = group(world, CATALOGUE[name].module, *arguments)
    assert done.codes == [0] * world, done.err
    return done


def losses(done: Done) -> tuple[float, float]:
    """Return training loss of the first and the last epoch, as rank 0 sums up."""
    found = re.search(r"finished: \d+ steps, training loss (\S+) -> (\S+),", done.out[0])
    assert found, done.out[0]
    return float(found[1]), float(found[2])


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    """Return the model of a checkpoint."""
    import torch

    state: dict[str, Any] = torch.load(folder / "checkpoint.pt", weights_only=True)
    model: dict[str, torch.Tensor] = state["model"]
    return model


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest difference between two models."""
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in WITHOUT_TRAINING])
def test_trains(group: Group, name: str) -> None:
    """On two ranks the loss falls, the summary comes once, and both ranks end with 0."""
    done = run(group, 2, name, *TINY[name])
    first, last = losses(done)
    assert last < first
    assert "".join(done.out).count(f"{name} finished") == 1
    if name == "convnet":
        assert "Training complete in: 0:00:" in done.out[0]
    if name == "resnet34":
        assert re.search(r"a step: forward [\d.]+ ms, backward [\d.]+ ms, sync [\d.]+ ms", done.out[0])


def test_two_ranks(group: Group) -> None:
    """Two ranks share an epoch, evaluate together, and end cleanly with one summary."""
    done = group(2, CATALOGUE["simplenet"].module, "--steps", 20, "--samples", 640, "--batch-size", 32)
    lines = "".join(done.out).splitlines()
    summaries = [line for line in lines if "finished" in line]
    assert len(summaries) == 1, done.err
    # 640 pictures are ten steps of two ranks with 32 each; a fifth, 128, are evaluated, each once.
    assert "20 steps" in summaries[0]
    assert "of 128 images, data synthetic MNIST" in summaries[0]
    assert any("world 2, batch 32 a rank" in line for line in lines)
    assert done.codes == [0, 0]


def test_two_ranks_refuse_once(group: Group) -> None:
    """What every rank has to say is said once, by rank 0, which is also the first to end."""
    done = group(2, CATALOGUE["simplenet"].module, "--data-dir", "/nowhere/at-all")
    assert "".join(done.out) + done.err == done.err
    assert done.err.count("no folder /nowhere/at-all") == done.err.count("\n") == 1
    assert (done.ended, done.codes) == ([0, 1], [2, 2])


@pytest.mark.parametrize(("reduce", "total", "parameter"), [("sum", "6", "1.4"), ("mean", "3", "1.7")])
def test_toy(group: Group, reduce: str, total: str, parameter: str) -> None:
    """Gradients 4 and 2; their sum moves 2.0 to 1.4, their mean to 1.7, the same on both ranks."""
    done = run(group, 2, "toy", "--reduce", reduce, "--steps", 30)
    for rank, gradient in enumerate(("4", "2")):
        first, *_, last = done.out[rank].splitlines()
        assert f"gradient {gradient}, {reduce} over all ranks {total}, parameter {parameter}" in first
        assert last.endswith("parameter 0.5") or "parameter 0.50" in last


def test_sendrecv(group: Group) -> None:
    """Along the chain each rank gets what the ones before have added; around the ring the neighbour's number."""
    done = run(group, 3, "sendrecv")
    assert "received 2 from rank 1, blocking" in done.out[2]
    assert ["received 2 from rank 2, not blocking" in out for out in done.out] == [True, False, False]
    assert "nobody to send to" in run(group, 1, "sendrecv").out[0]


def test_collectives_program(group: Group) -> None:
    """The table has a line for each size with time and bandwidth of the four ways."""
    lines = run(group, 2, "collectives", "--sizes", "1K", "1M", "--repeat", 2).out[0].splitlines()
    assert "reduce_scatter   backend = naive = ring" in lines
    assert lines[-3].split() == ["bytes", "naive", "tree", "ring", "backend"]
    assert [line.split()[0] for line in lines[-2:]] == ["1,024", "1,048,576"]
    assert all(line.count(" ms ") == line.count(" GB/s") == 4 for line in lines[-2:])


@pytest.mark.parametrize("world", [1, 2, 5])
def test_collectives_by_hand(group: Group, world: int) -> None:
    """Each by hand is what torch.distributed gives, for eight types and odd sizes; the ring sends 2(N-1)/N."""
    done = group(world, "collective_cases")
    assert done.codes == [0] * world, "".join(done.out) + done.err
    elements = world * 1000
    assert {out.splitlines()[-1] for out in done.out} == {f"sent {2 * (world - 1) * elements * 4 // world}"}


def test_four_ways_to_sync(group: Group) -> None:
    """However resnet34 syncs its gradients, the losses of the run and its last gradient are the same."""
    program = (CATALOGUE["resnet34"].module, "--samples", 32, "--epochs", 2, "--batch-size", 4, "--width", 2)
    found = []
    for sync in ("naive", "ring", "native", "ddp"):
        done = group(2, "digests", *program, "--sync", sync)
        assert done.codes == [0, 0], done.err
        gradients = [float(re.findall(r"^gradient (\S+)$", out, re.MULTILINE)[0]) for out in done.out]
        found.append((*losses(done), *gradients))
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=5e-3)


def test_state_dict_is_saved(group: Group, tmp_path: Path) -> None:
    """With --save the trained weights of resnet34 are a file that its network loads."""
    from ddptop.trainers.programs.data_parallel.resnet34 import ResNet34

    file = tmp_path / "weights.pt"
    run(group, 1, "resnet34", "--steps", 1, "--samples", 8, "--batch-size", 4, "--width", 2, "--save", file)
    ResNet34(2).load_state_dict(torch.load(file, weights_only=True))


ACCUMULATE = ("--samples", 192, "--epochs", 2, "--seed", 3)


def test_accumulated_is_the_large_batch(group: Group, tmp_path: Path) -> None:
    """Two ranks with four pieces of 8 each end with the parameters of one rank with 64 in one piece, to 1e-5."""
    for folder, world, batch, pieces in (("pieces", 2, 32, 4), ("whole", 1, 64, 1)):
        options = ("--batch-size", batch, "--accumulate", pieces, "--checkpoint-dir", tmp_path / folder)
        run(group, world, "accumulate", *ACCUMULATE, *options)
    assert furthest(parameters(tmp_path / "pieces"), parameters(tmp_path / "whole")) < 1e-5


def test_sync_batchnorm_is_the_large_batch(group: Group, tmp_path: Path) -> None:
    """Statistics of all ranks make two ranks with 16 images one rank with 32, and mixed precision stays near."""
    for folder, world, batch, more in (("two", 2, 16, ()), ("one", 1, 32, ()), ("amp", 2, 16, ("--amp",))):
        options = ("--batch-size", batch, "--accumulate", 1, "--checkpoint-dir", tmp_path / folder, *more)
        run(group, world, "accumulate", *ACCUMULATE, "--sync-batchnorm", *options)
    assert furthest(parameters(tmp_path / "two"), parameters(tmp_path / "one")) < 1e-4
    assert 0 < furthest(parameters(tmp_path / "two"), parameters(tmp_path / "amp")) < 0.1


def test_resumed_in_the_midst_of_an_epoch(group: Group, tmp_path: Path) -> None:
    """Stopped at step 3 of 4 and resumed, resnet ends in the same bits as if it had never been stopped.

    Augmentation, momentum, the learning rate's schedule and the statistics of batch norm are all in it.
    """
    options = ("--samples", 16, "--epochs", 2, "--batch-size", 4)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    stopped = ("stopped", "shallow", 3, *options, "--checkpoint-dir", parts)
    for program in (("shallow", *options, "--checkpoint-dir", whole), stopped):
        done = group(2, *program)
        assert done.codes == [0, 0], done.err
    resumed = group(2, "shallow", *options, "--checkpoint-dir", parts, "--resume")
    assert resumed.codes == [0, 0], resumed.err
    assert "goes on from epoch 1, step 3" in resumed.out[0]
    one, other = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (whole, parts))
    assert (one["epoch"], one["step"], one["images"]) == (other["epoch"], other["step"], other["images"]) == (2, 4, 0)
    assert furthest(one["model"], other["model"]) == 0
    momenta = [state["optimizer"]["state"] for state in (one, other)]
    assert all(
        torch.equal(a["momentum_buffer"], b["momentum_buffer"]) for a, b in zip(*map(dict.values, momenta), strict=True)
    )


@pytest.mark.parametrize(
    ("world", "samples", "more"),
    [(3, 1, ()), (3, 2, ("--uneven",)), (3, 13, ("--uneven",)), (1, 3, ("--uneven",))],
    ids=["fewer pictures than ranks", "a rank without data", "uneven last batches", "alone"],
)
def test_uneven_shares(group: Group, world: int, samples: int, more: tuple[str, ...]) -> None:
    """Ranks with fewer batches than others, or none, neither hang nor drift apart, Adam's memory included."""
    options = ("--samples", samples, "--epochs", 3, "--batch-size", 4)
    done = group(world, "digests", CATALOGUE["mymodel"].module, *options, *more)
    assert done.codes == [0] * world, done.err
    assert len({re.findall("^digest .*", out, re.MULTILINE)[0] for out in done.out}) == 1


def test_data_parallel_is_one_process(group: Group) -> None:
    """Mymodel under nn.DataParallel trains in one process, and says so to two."""
    first, last = losses(run(group, 1, "mymodel", *TINY["mymodel"], "--parallel", "data-parallel"))
    assert last < first
    with pytest.raises(Refusal, match="is one process, not 2: give --world 1"):
        OneProcess(torch.nn.Linear(1, 1), None, Position(0, 0, 2, torch.device("cpu"), "gloo"))  # type: ignore[arg-type]


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
        # Device time enough that what else the machine does is little beside it.
        length = ("--steps", 3, "--batch-size", 16, "--device-ms", 20)
        arguments = (*length, "--microbatches", microbatches, "--schedule", "gpipe")
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
    arguments = ("--batch-size", 16, "--every", 2, "--slow", "1:40")
    shared, out = trained(group, tmp_path / "shared", 3, "rebalance", *length, *arguments)
    first, slow, last = map(int, re.search(r"shares (\d+) (\d+) (\d+) of 48 images", out).groups())  # type: ignore[union-attr]
    assert first + slow + last == 48
    assert slow < min(first, last)
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
    done = group(1, CATALOGUE[name].module, *arguments)
    assert done.codes == [2]
    assert done.err.startswith(f"{name}: ")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_servers_and_workers_are_held_together() -> None:
    """A server and its workers stop at the same step, whoever is ahead, go on, and end well; each says what it is."""
    # Bounded: of workers that are far from each other's step none is common, and a stop is refused.
    # One is slow and the other waits for it, so that the cores are left to the commands.
    options = ("--epochs", "1000", "--staleness", "3", "--slow", "1:50")
    launched = ddptop("launch", "--world", "3", "--no-wait", "--name", "served", "paramserver", "--", *options)
    assert launched.returncode == 0, launched.stderr
    until(lambda: (status("served")["step"] or 0) > 10, "the first steps")
    paused = ddptop("pause", "served")
    assert paused.returncode == 0, paused.stderr
    ranks = status("served")["ranks"]
    assert {rank["state"] for rank in ranks} == {"paused"}
    (held,) = {rank["step"] for rank in ranks}
    assert [rank["coordinates"] for rank in ranks] == [{"server": 0}, {"worker": 0}, {"worker": 1}]
    assert ddptop("resume", "served").returncode == 0
    until(lambda: min(rank["step"] for rank in status("served")["ranks"]) > held, "steps of each")
    stopped = ddptop("stop", "served")
    assert stopped.returncode == 0, stopped.stderr
    until(lambda: status("served")["exit_code"] is not None, "the end")
    assert status("served")["exit_code"] == 0
