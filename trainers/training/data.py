"""The data sets, real (torchvision, from a folder) or synthetic, opened or refused in one line.

This module knows no models; a program supplies the view, which turns a picture into a tensor.
"""

from __future__ import annotations

import importlib
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, Subset

from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.options import Options
from ddptop.trainers.rank.refusal import Refusal, one_line
from ddptop.trainers.training.randomness import seed
from ddptop.trainers.training.synthetic import SyntheticPictures, View

Pictures = Dataset[tuple[torch.Tensor, int]]

_EVALUATED_SHARE: Final = 5
"""With --samples, one picture is evaluated for so many training pictures."""


@dataclass(frozen=True)
class Kind:
    """A data set as its authors describe it."""

    name: str
    loader: str
    """Name of the class in torchvision.datasets."""
    channels: int
    size: int
    """Side of a picture in pixels."""
    classes: int
    train: int
    test: int
    mean: tuple[float, ...]
    """Mean of each channel over the training pictures, whose values are 0 to 1."""
    std: tuple[float, ...]
    synthetic_shift: int
    synthetic_noise: float


MNIST: Final = Kind(
    name="MNIST", loader="MNIST", channels=1, size=28, classes=10, train=60_000, test=10_000,
    mean=(0.1307,), std=(0.3081,), synthetic_shift=2, synthetic_noise=50.0,
)  # fmt: skip
CIFAR10: Final = Kind(
    name="CIFAR-10", loader="CIFAR10", channels=3, size=32, classes=10, train=50_000, test=10_000,
    mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616), synthetic_shift=6, synthetic_noise=40.0,
)  # fmt: skip


class Normalized:
    """A view: the picture as a tensor (channels, height, width) of zero mean and unit deviation."""

    def __init__(self, kind: Kind) -> None:
        self._scale = 1 / (255 * np.array(kind.std, dtype=np.float32))
        self._offset = np.array(kind.mean, dtype=np.float32) / np.array(kind.std, dtype=np.float32)

    def __call__(self, picture: Image.Image) -> torch.Tensor:
        """Return the tensor of one picture."""
        pixels = np.asarray(picture).reshape(picture.height, picture.width, -1)
        return torch.from_numpy((pixels * self._scale - self._offset).transpose(2, 0, 1).copy())


@dataclass(frozen=True)
class Data:
    """The training and the test pictures of a data set."""

    train: Pictures
    test: Pictures
    title: str
    """Name and folder of the data set, or the word "synthetic" and its name."""
    synthetic: bool


def open_data(kind: Kind, options: Options, position: Position, train_view: View, test_view: View) -> Data:
    """Open the data set of the options, on all ranks or on none.

    Raises:
        Refusal: it is missing or incomplete, or cannot be downloaded.
    """
    folder = options.data_dir
    if folder is not None and options.download:
        # One rank of each machine downloads; in `agree` the others wait for it.
        position.agree(lambda: _download(kind, folder) if position.local_rank == 0 else None)
    if folder is None:
        train, test, title = (*_synthetic(kind, train_view, test_view), f"synthetic {kind.name}")
    else:
        train, test = position.agree(lambda: _real(kind, folder, train_view, test_view))
        title = f"{kind.name} from {folder}"
    if options.samples is not None and options.samples < length(train):
        title += f" (first {options.samples:,} of {length(train):,} images)"
        train = Subset(train, range(options.samples))
        test = Subset(test, range(min(length(test), -(-options.samples // _EVALUATED_SHARE))))
    return Data(train, test, title, synthetic=folder is None)


def length(pictures: Pictures) -> int:
    """Return the number of pictures."""
    return len(cast(Any, pictures))  # torch's Dataset has no len() in its type


def _synthetic(kind: Kind, train_view: View, test_view: View) -> tuple[Pictures, Pictures]:
    def make(count: int, first: int, view: View) -> Pictures:
        return SyntheticPictures(
            channels=kind.channels, size=kind.size, classes=kind.classes, count=count, first=first,
            level=255 * sum(kind.mean) / kind.channels, shift=kind.synthetic_shift,
            noise=kind.synthetic_noise, view=view,
        )  # fmt: skip

    return make(kind.train, 0, train_view), make(kind.test, kind.train, test_view)


def _datasets() -> Any:
    # Importing torchvision takes every rank more than a second; synthetic MNIST does not need it.
    return importlib.import_module("torchvision.datasets")


def _download(kind: Kind, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for train in (True, False):
            getattr(_datasets(), kind.loader)(folder, train=train, download=True)
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise Refusal(f"cannot download {kind.name} into {folder}: {one_line(error)}") from error


def _real(kind: Kind, folder: Path, train_view: View, test_view: View) -> tuple[Pictures, Pictures]:
    if not os.path.isdir(folder):  # False, too, where looking is not permitted
        raise Refusal(
            f"no folder {folder}; add --download to fetch {kind.name} into it, "
            "or leave --data-dir away for the synthetic set"
        )
    loader = getattr(_datasets(), kind.loader)
    try:
        train = loader(folder, train=True, transform=train_view)
        test = loader(folder, train=False, transform=test_view)
    except RuntimeError as error:
        if "not found" in str(error):
            raise Refusal(
                f"no complete {kind.name} in {folder}; add --download to fetch it, "
                "or leave --data-dir away for the synthetic set"
            ) from error
        raise _damaged(kind, folder, error) from error
    except (OSError, ValueError, EOFError, AssertionError, LookupError, TypeError, pickle.UnpicklingError) as error:
        # Raised by torchvision's readers for files that are truncated or have other content.
        raise _damaged(kind, folder, error) from error
    for half in (train, test):
        pictures, labels = np.asarray(half.data), np.asarray(half.targets)
        if len(pictures) != len(labels) or not len(pictures):
            raise _damaged(kind, folder, ValueError(f"{len(pictures)} images but {len(labels)} labels"))
        if pictures.shape[1:3] != (kind.size, kind.size) or not 0 <= labels.min() <= labels.max() < kind.classes:
            raise _damaged(kind, folder, ValueError(f"not {kind.size} px images of {kind.classes} classes"))
    return train, test


def _damaged(kind: Kind, folder: Path, error: Exception) -> Refusal:
    return Refusal(f"{kind.name} in {folder} is damaged ({one_line(error)}); remove it there and add --download")


class Batches(Protocol):
    """The source of a rank's batches for the training loop."""

    def __len__(self) -> int:
        """Return the number of batches of an epoch, on the rank that has the most."""
        ...

    def batches_in(self, images: int) -> int:
        """Return the number of batches after which all ranks together have trained on this many images."""
        ...

    def begin(self, epoch: int, batch: int) -> None:
        """Continue with batch number `batch` of this epoch."""
        ...

    def draw(self, batches: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Return the next batches, fewer where this rank has no more."""
        ...


class TrainingLoader:
    """The rank's share of each epoch, in batches that follow from seed, epoch and position for a given world size.

    Every epoch has another order, the same on all ranks (`DistributedSampler.set_epoch`), so that shares
    overlap only in the pictures that are repeated to make them equal; training can begin at any batch.
    """

    def __init__(self, data: Data, options: Options, position: Position) -> None:
        self._share = _Share(data.train, options, position)
        self._loader = _loader(_Seeded(data.train, options.seed), options, position, self._share)
        self._batch_size = options.batch_size
        self._world = position.world

    def __len__(self) -> int:
        """Return the number of batches of an epoch, on the rank that has the most."""
        return -(-self._share.most // self._batch_size)

    def batches_in(self, images: int) -> int:
        """Return the number of batches after which all ranks together have trained on this many images."""
        return min(images // (self._batch_size * self._world), len(self))

    def begin(self, epoch: int, batch: int) -> None:
        """Continue with batch number `batch` of this epoch."""
        self._share.begin(epoch, batch * self._batch_size)

    def draw(self, batches: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Return the next batches, fewer where this rank has no more."""
        return islice(self._loader, batches)


class _Share(Sampler[tuple[int, int]]):
    """Yields (epoch, number of the picture), from any position of an epoch on."""

    def __init__(self, pictures: Pictures, options: Options, position: Position) -> None:
        self._order: Any = DistributedSampler(pictures, position.world, position.rank, shuffle=True, seed=options.seed)
        self.most = len(self._order)
        """Pictures of the largest share."""
        # DistributedSampler repeats pictures at the end so that all shares are equal.
        own = len(range(position.rank, length(pictures), position.world))
        self._own = own if options.uneven else self.most
        self._first = 0

    def begin(self, epoch: int, position: int) -> None:
        self._order.set_epoch(epoch)
        self._first = position

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((self._order.epoch, number) for number in islice(self._order, self._first, self._own))

    def __len__(self) -> int:
        return max(self._own - self._first, 0)


class _Seeded(Dataset[tuple[torch.Tensor, int]]):
    """Makes the augmentation of a batch depend on its position in the training, and not on earlier batches."""

    def __init__(self, pictures: Pictures, seed: int) -> None:
        self._pictures = pictures
        self._seed = seed

    def __getitems__(self, drawn: list[tuple[int, int]]) -> list[tuple[torch.Tensor, int]]:
        seed(self._seed, *drawn[0])
        return [self._pictures[number] for _, number in drawn]


def evaluation_loader(data: Data, options: Options, position: Position) -> DataLoader[Any]:
    """Return the loader of this rank's share of the evaluation; no picture is in two shares."""
    # DistributedSampler would repeat pictures to make the shares equal, and so count them twice.
    share = Subset(data.test, range(position.rank, length(data.test), position.world))
    return _loader(share, options, position, None)


def _loader(pictures: Pictures, options: Options, position: Position, sampler: Sampler[Any] | None) -> DataLoader[Any]:
    return DataLoader(
        pictures,
        batch_size=options.batch_size,
        sampler=sampler,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        pin_memory=position.device.type == "cuda",
    )
