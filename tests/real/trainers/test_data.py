"""The data sets: real ones through torchvision's own readers, synthetic ones that teach something."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import late

from ddptop.trainers.rank.options import Options
from ddptop.trainers.rank.refusal import Refusal

from .official import MNIST_FILES, idx, mnist_bytes, write_cifar10, write_mnist

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset
    from torchvision import datasets

    from ddptop.trainers.programs.data_parallel import resnet
    from ddptop.trainers.rank.group import Position
    from ddptop.trainers.training import data
    from ddptop.trainers.training.data import CIFAR10, MNIST, Data, Kind, Normalized, evaluation_loader, open_data

_imports = late.imports(globals())


def position(rank: int = 0, world: int = 1) -> Position:
    """Return a group of one that needs no torch.distributed."""

    class Alone(Position):
        def agree(self, work: Callable[[], Any]) -> Any:
            return work()

    return Alone(rank, rank, world, torch.device("cpu"), "gloo")


def opened(kind: Kind, folder: Path | None, *, download: bool = False, samples: int | None = None) -> Data:
    asked = Options(data_dir=folder, download=download, samples=samples, batch_size=8, workers=0, seed=0)
    return open_data(kind, asked, position(), Normalized(kind), Normalized(kind))


def size(pictures: Dataset[tuple[torch.Tensor, int]]) -> int:
    assert isinstance(pictures, Sized)
    return len(pictures)


def pixels(kind: Kind, picture: torch.Tensor) -> torch.Tensor:
    """Undo the normalization, as its definition says."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (kind.mean, kind.std))
    return ((picture * std + mean) * 255).round()


def test_reads_mnist(tmp_path: Path) -> None:
    """Files in the idx format give the pictures and labels that were written, in order."""
    write_mnist(tmp_path, mnist_bytes(train=40, test=20))
    data = opened(MNIST, tmp_path)
    assert (size(data.train), size(data.test), data.synthetic) == (40, 20, False)
    picture, label = data.train[37]
    assert label == 7
    assert torch.equal(pixels(MNIST, picture), torch.full((1, 28, 28), 37.0))


def test_download_unpacks_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --download, whole .gz files that are there already are unpacked and not fetched again."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    resources = []
    for name, content in mnist_bytes().items():
        packed = gzip.compress(content)
        (raw / f"{name}.gz").write_bytes(packed)
        resources.append((f"{name}.gz", hashlib.md5(packed).hexdigest()))
    # torchvision compares with the sums of the official files; all else is its own code.
    monkeypatch.setattr(datasets.MNIST, "resources", resources)
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    assert size(opened(MNIST, tmp_path, download=True).train) == 40


def test_one_rank_of_a_machine_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two machines with two ranks each, local rank 0 fetches while the others agree with it, which is to wait."""
    write_mnist(tmp_path, mnist_bytes())
    fetched: list[int] = []
    agreements: list[int] = []

    class Noted(Position):
        def agree(self, work: Callable[[], Any]) -> Any:
            agreements.append(self.rank)
            return work()

    monkeypatch.setattr(data, "_download", lambda kind, folder: fetched.append(agreements[-1]))
    asked = Options(data_dir=tmp_path, download=True, samples=None)
    for rank in range(4):
        here = Noted(rank, rank % 2, 4, torch.device("cpu"), "gloo")
        open_data(MNIST, asked, here, Normalized(MNIST), Normalized(MNIST))
    assert fetched == [0, 2]
    assert agreements == [0, 0, 1, 1, 2, 2, 3, 3]  # before the files are opened, and after


def test_download_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is one line that names the folder."""
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    with pytest.raises(Refusal, match=f"cannot download MNIST into {tmp_path}: .") as refused:
        opened(MNIST, tmp_path, download=True)
    assert "\n" not in str(refused.value)


def _cut(files: dict[str, bytes]) -> None:
    files[MNIST_FILES[0]] = files[MNIST_FILES[0]][:-1000]


def _empty(files: dict[str, bytes]) -> None:
    files[MNIST_FILES[1]] = b""


def _web_page(files: dict[str, bytes]) -> None:
    files[MNIST_FILES[2]] = b"<!DOCTYPE html><html>404 not found</html>"


def _labels_of_another_set(files: dict[str, bytes]) -> None:
    files[MNIST_FILES[3]] = idx(np.zeros(19, np.uint8))


def _label_eleven(files: dict[str, bytes]) -> None:
    files[MNIST_FILES[3]] = idx(np.full(20, 11, np.uint8))


@pytest.mark.parametrize("damage", [_cut, _empty, _web_page, _labels_of_another_set, _label_eleven])
def test_damaged_mnist(tmp_path: Path, damage: Callable[[dict[str, bytes]], None]) -> None:
    """Files that are cut, empty, something else or do not belong together are one line that says so."""
    files = mnist_bytes()
    damage(files)
    write_mnist(tmp_path, files)
    with pytest.raises(Refusal, match=r"MNIST in .* is damaged \(.+\); remove it there and add --download") as refused:
        opened(MNIST, tmp_path)
    assert "\n" not in str(refused.value)


def test_half_downloaded(tmp_path: Path) -> None:
    """A set of which one file is missing is not complete; the line says what to do."""
    files = mnist_bytes()
    del files[MNIST_FILES[3]]
    write_mnist(tmp_path, files)
    with pytest.raises(Refusal, match=r"no complete MNIST in .*; add --download"):
        opened(MNIST, tmp_path)


def test_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The python batches give the pictures that were written; a changed byte makes the set not complete."""
    sums = write_cifar10(tmp_path, per_batch=4)
    # torchvision compares with the sums of the official files; put in ours and its own check and
    # reader do the rest.
    for half in ("train_list", "test_list"):
        monkeypatch.setattr(datasets.CIFAR10, half, [[name, sums[name]] for name, _ in getattr(datasets.CIFAR10, half)])
    monkeypatch.setattr(
        datasets.CIFAR10, "meta", {**datasets.CIFAR10.meta, "md5": sums[datasets.CIFAR10.meta["filename"]]}
    )
    data = opened(CIFAR10, tmp_path)
    assert (size(data.train), size(data.test)) == (20, 4)
    picture, label = data.train[6]  # number 2 of the second batch
    assert label == 2
    assert pixels(CIFAR10, picture)[:, 5, 7].tolist() == [2.0, 100.0, 200.0]

    batch = tmp_path / datasets.CIFAR10.base_folder / "data_batch_3"
    batch.write_bytes(batch.read_bytes()[:-1])
    with pytest.raises(Refusal, match=r"no complete CIFAR-10 in .*; add --download"):
        opened(CIFAR10, tmp_path)


def test_missing_folder(tmp_path: Path) -> None:
    """A folder that is not there is one line with both ways out."""
    with pytest.raises(Refusal, match=r"no folder .*; add --download .* or leave --data-dir away"):
        opened(CIFAR10, tmp_path / "none")


@pytest.mark.parametrize("name", ["MNIST", "CIFAR10"])
def test_synthetic(name: str) -> None:
    """A synthetic set has the shape of the real one, says what it is, and is the same every time."""
    kind: Kind = getattr(data, name)
    first, again = opened(kind, None), opened(kind, None)
    assert (size(first.train), size(first.test)) == (kind.train, kind.test)
    assert first.title == f"synthetic {kind.name}"
    picture, label = first.train[4711]
    assert picture.shape == (kind.channels, kind.size, kind.size)
    assert torch.equal(picture, again.train[4711][0])
    assert label == again.train[4711][1]
    assert not torch.equal(picture, first.test[4711][0])
    sample = torch.stack([first.train[i][0] for i in range(500)])
    # The real set's statistics normalize it well enough to train with the same learning rate.
    assert abs(float(sample.mean())) < 1.2
    assert 0.5 < float(sample.std()) < 2.0


def test_synthetic_can_be_learnt() -> None:
    """Nearest mean picture, no gradient in sight, names far more than a tenth and not all of them."""
    data = opened(MNIST, None)
    train, test = ([half[i] for i in range(count)] for half, count in ((data.train, 1000), (data.test, 500)))
    means = torch.stack([torch.stack([x for x, y in train if y == label]).mean(0) for label in range(10)])
    right = sum(int((means - x).square().sum((1, 2, 3)).argmin()) == y for x, y in test)
    assert 0.4 < right / len(test) < 0.97


def test_augmented_view_of_resnet() -> None:
    """The view of resnet brings a picture to the size that was asked for."""
    asked = Options(image_size=48, depth=18, weights=None, data_dir=None, download=False, samples=None)
    task = resnet.task(asked)
    data = open_data(CIFAR10, asked, position(), task.train_view, task.test_view)
    assert data.train[0][0].shape == data.test[0][0].shape == (3, 48, 48)


@pytest.mark.parametrize("world", [1, 3, 4])
def test_evaluation_shares(world: int) -> None:
    """Every picture of the evaluation is in exactly one rank's share, also when they do not divide evenly."""
    data = opened(MNIST, None, samples=50)
    asked = Options(batch_size=8, workers=0)
    seen = [labels for rank in range(world) for _, labels in evaluation_loader(data, asked, position(rank, world))]
    assert sorted(torch.cat(seen).tolist()) == sorted(index % 10 for index in range(10))
