"""ResNet on CIFAR-10, a common benchmark of data parallel training.

Technique: a deep network of residual blocks, whose gradients fill many buckets, so that their
all-reduce overlaps with the rest of backward.
Source: He et al. 2015, Deep Residual Learning for Image Recognition; the stem for small pictures
is that of its section 4.2, as usual for CIFAR: 3x3, stride 1, no pooling.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.optim import SGD
from torchvision import transforms
from torchvision.models import resnet18, resnet34

from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank.options import Defaults, Options, parser, whole_number
from ddptop.trainers.rank.refusal import Refusal, one_line
from ddptop.trainers.training.data import CIFAR10, Normalized
from ddptop.trainers.training.loop import run
from ddptop.trainers.training.synthetic import View
from ddptop.trainers.training.task import Task, warm_up_and_cosine

GPU: Final = Defaults(device="GPU", epochs=10, batch_size=128, lr=0.1, samples=None, workers=4)
GPU_IMAGE_SIZE: Final = CIFAR10.size
CPU: Final = Defaults(device="CPU", epochs=3, batch_size=6, lr=0.02, samples=1920, workers=0)
CPU_IMAGE_SIZE: Final = 16

SMALL_IMAGE: Final = 64
"""Largest side of a picture, in pixels, for which the stem has no stride and no pooling."""


def model(depth: int, image_size: int, weights: Path | None = None) -> nn.Module:
    """Return torchvision's ResNet-18 or -34 for 10 classes, with a stem for pictures of this size."""
    net: Any = {18: resnet18, 34: resnet34}[depth](num_classes=CIFAR10.classes)
    if image_size <= SMALL_IMAGE:
        net.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
        net.maxpool = nn.Identity()
    if weights is not None:
        load_weights(net, weights)
    return net  # type: ignore[no-any-return]  # torchvision is untyped


def views(size: int) -> tuple[View, View]:
    """Return the views of CIFAR-10's pictures for training, which moves and mirrors them, and for evaluation."""
    resize = [] if size == CIFAR10.size else [transforms.Resize(size)]
    augment = [transforms.RandomCrop(size, padding=size // 8), transforms.RandomHorizontalFlip()]
    normalize = [Normalized(CIFAR10)]
    return transforms.Compose(resize + augment + normalize), transforms.Compose(resize + normalize)


def load_weights(net: nn.Module, file: Path) -> None:
    """Load the weights of a file into the network, but for layers of another shape: the last layer and the stem.

    Raises:
        Refusal: the file cannot be read, or belongs to another network.
    """
    try:
        given = torch.load(file, map_location="cpu", weights_only=True)
        own = net.state_dict()
        fitting = {name: value for name, value in given.items() if name in own and value.shape == own[name].shape}
    except (OSError, RuntimeError, ValueError, EOFError, AttributeError, pickle.UnpicklingError) as error:
        raise Refusal(f"--weights {file}: no state dict of torch ({one_line(error)[:120]})") from error
    missing = own.keys() - fitting.keys()
    if unknown := missing - {"conv1.weight", "fc.weight", "fc.bias"}:
        raise Refusal(f"--weights {file}: of another network, {len(unknown)} tensors such as {min(unknown)} do not fit")
    net.load_state_dict(fitting, strict=False)


def task(asked: Options) -> Task:
    """Return the task that the options describe."""
    size: int = asked.image_size
    train_view, test_view = views(size)
    stem = "CIFAR stem" if size <= SMALL_IMAGE else "ImageNet stem"
    return Task(
        title=f"ResNet-{asked.depth} with {stem}, {size} px",
        kind=CIFAR10,
        train_view=train_view,
        test_view=test_view,
        model=partial(model, asked.depth, size, asked.weights),
        optimizer=lambda parameters, lr: SGD(parameters, lr, momentum=0.9, weight_decay=5e-4),
        schedule=warm_up_and_cosine,
        log_every=20,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    on_gpu = torch.cuda.is_available()
    options = parser(CATALOGUE["resnet"], GPU if on_gpu else CPU)
    network = options.add_argument_group("network")
    network.add_argument("--depth", type=int, choices=(18, 34), default=18, help="layers (default %(default)s)")
    network.add_argument(
        "--image-size", type=whole_number(16, 512), default=GPU_IMAGE_SIZE if on_gpu else CPU_IMAGE_SIZE, metavar="N",
        help=f"side in pixels that pictures are resized to; up to {SMALL_IMAGE} the network gets the CIFAR stem, "
        "above it the stock one (224 is the size of the paper; default %(default)s)",
    )  # fmt: skip
    network.add_argument(
        "--weights", type=Path, metavar="FILE",
        help="begin with the weights of this state dict, as torchvision publishes them for ImageNet",
    )  # fmt: skip
    return run(options, task, arguments)


if __name__ == "__main__":
    sys.exit(main())
