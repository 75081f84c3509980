"""Small data sets in the very file formats of MNIST and CIFAR-10, for torchvision's own readers."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.uint8]

MNIST_FILES = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip


def idx(array: Array) -> bytes:
    """Return an array in LeCun's idx format: magic number, big-endian sizes, bytes."""
    magic = bytes((0, 0, 8, array.ndim))
    return magic + np.array(array.shape, ">i4").tobytes() + array.tobytes()


def mnist_bytes(train: int = 40, test: int = 20) -> dict[str, bytes]:
    """Return the four files of a small MNIST by name; image number i has all pixels i, label i % 10."""
    files = {}
    for count, (images, labels) in ((train, MNIST_FILES[:2]), (test, MNIST_FILES[2:])):
        numbers = np.arange(count, dtype=np.uint8)
        files[images] = idx(np.broadcast_to(numbers[:, None, None], (count, 28, 28)).copy())
        files[labels] = idx(numbers % 10)
    return files


def write_mnist(folder: Path, files: dict[str, bytes]) -> None:
    """Lay the files out as torchvision unpacks them."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in files.items():
        (raw / name).write_bytes(content)


def write_cifar10(folder: Path, per_batch: int = 4) -> dict[str, str]:
    """Write the python version of a small CIFAR-10; return the MD5 sums of its files.

    Image number i of a batch has red i, green 100, blue 200, label i % 10.
    """
    # It takes seconds to import, which every worker that reads the tests would wait for.
    from torchvision.datasets import CIFAR10

    base = folder / CIFAR10.base_folder
    base.mkdir(parents=True)
    numbers = np.arange(per_batch, dtype=np.uint8)[:, None]
    planes = [np.broadcast_to(plane, (per_batch, 1024)) for plane in (numbers, np.uint8(100), np.uint8(200))]
    batch = {"data": np.concatenate(planes, axis=1), "labels": [int(n) % 10 for n in numbers[:, 0]]}
    contents = {name: pickle.dumps(batch) for name, _ in CIFAR10.train_list + CIFAR10.test_list}
    contents[CIFAR10.meta["filename"]] = pickle.dumps({"label_names": [str(n) for n in range(10)]})
    for name, content in contents.items():
        (base / name).write_bytes(content)
    return {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}
