"""Every program of the catalogue on real process groups: what its text claims."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ddptop.trainers import CATALOGUE
from ddptop.trainers.refusal import Refusal

from .conftest import Done, Group

if TYPE_CHECKING:
    import torch


@pytest.fixture(scope="module", autouse=True)
def _imports() -> None:
    """Import torch where these tests run: every worker reads all files, and the import takes seconds."""
    global OneProcess, Place, torch
    import torch

    from ddptop.trainers.group import Place
    from ddptop.trainers.mymodel import OneProcess


TINY = {
    "simplenet": ("--samples", 512, "--epochs", 3, "--batch-size", 32),
    "convnet": ("--samples", 128, "--epochs", 3, "--batch-size", 16, "--lr", 0.01),
    "mymodel": ("--samples", 256, "--epochs", 3, "--batch-size", 16),
    "resnet": ("--samples", 64, "--epochs", 3, "--batch-size", 8, "--lr", 0.005),
    "resnet34": ("--samples", 64, "--epochs", 3, "--batch-size", 8, "--width", 4),
    "accumulate": ("--samples", 512, "--epochs", 3, "--batch-size", 32),
    "paramserver": ("--samples", 256, "--epochs", 3, "--batch-size", 16),
    "rebalance": ("--samples", 512, "--epochs", 3, "--batch-size", 16),
    "pipeline": ("--samples", 256, "--epochs", 3, "--batch-size", 16, "--device-ms", 0),
    "tensor": ("--samples", 128, "--epochs", 3, "--batch-size", 16),
    "hybrid": ("--samples", 128, "--epochs", 3, "--batch-size", 16),
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


@pytest.mark.parametrize("world", [1, 2, 3, 5])
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
    from ddptop.trainers.resnet34 import ResNet34

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
    """Stopped at step 3 of 6 and resumed, resnet ends in the same bits as if it had never been stopped.

    Augmentation, momentum, the learning rate's schedule and the statistics of batch norm are all in it.
    """
    options = ("--samples", 16, "--epochs", 3, "--batch-size", 4)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(group, 2, "resnet", *options, "--checkpoint-dir", whole)
    stopped = group(2, "stopped", CATALOGUE["resnet"].module, 3, *options, "--checkpoint-dir", parts)
    assert stopped.codes == [0, 0], stopped.err
    resumed = run(group, 2, "resnet", *options, "--checkpoint-dir", parts, "--resume")
    assert "goes on from epoch 1, step 3" in resumed.out[0]
    one, other = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (whole, parts))
    assert (one["epoch"], one["step"], one["images"]) == (other["epoch"], other["step"], other["images"]) == (3, 6, 0)
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
        OneProcess(torch.nn.Linear(1, 1), None, Place(0, 0, 2, torch.device("cpu"), "gloo"))  # type: ignore[arg-type]
