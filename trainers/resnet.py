"""ResNet on CIFAR-10, the classic of data parallel training.

Technique: a deep network of residual blocks, whose gradients fill many buckets, so that their
all-reduce overlaps with the rest of backward.
Source: He et al. 2015, Deep Residual Learning for Image Recognition; the stem for small pictures
is that of its section 4.2, as usual for CIFAR: 3x3, stride 1, no pooling.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.optim import SGD

# torchvision ships no type information.
from torchvision import transforms  # type: ignore[import-untyped]
from torchvision.models import resnet18, resnet34  # type: ignore[import-untyped]

from ddptop.trainers import CATALOGUE
from ddptop.trainers.data import CIFAR10, Normalized
from ddptop.trainers.loop import run
from ddptop.trainers.options import Defaults, Options, parser, whole_number
from ddptop.trainers.task import Task

GPU: Final = Defaults(device="GPU", epochs=10, batch_size=128, lr=0.1, samples=None, workers=4)
GPU_IMAGE_SIZE: Final = CIFAR10.size
CPU: Final = Defaults(device="CPU", epochs=3, batch_size=6, lr=0.02, samples=1920, workers=0)
CPU_IMAGE_SIZE: Final = 16

SMALL_IMAGE: Final = 64
"""Up to this side, in pixels, the stem must not shrink the picture."""


def model(depth: int, image_size: int) -> nn.Module:
    """Return torchvision's ResNet-18 or -34 for 10 classes, with the stem that fits the pictures."""
    net: Any = {18: resnet18, 34: resnet34}[depth](num_classes=CIFAR10.classes)
    if image_size <= SMALL_IMAGE:
        net.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
        net.maxpool = nn.Identity()
    return net  # type: ignore[no-any-return]  # torchvision is untyped


def schedule(progress: float) -> float:
    """Warm up over the first tenth of the training, then fall as a half cosine to zero."""
    warm_up = 0.1
    if progress < warm_up:
        return 0.1 + 0.9 * progress / warm_up
    return 0.5 * (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up)))


def task(asked: Options) -> Task:
    """Return the task that the options describe."""
    size: int = asked.image_size
    resize = [] if size == CIFAR10.size else [transforms.Resize(size)]
    augment = [transforms.RandomCrop(size, padding=size // 8), transforms.RandomHorizontalFlip()]
    normalize = [Normalized(CIFAR10)]
    stem = "CIFAR stem" if size <= SMALL_IMAGE else "ImageNet stem"
    return Task(
        title=f"ResNet-{asked.depth} with {stem}, {size} px",
        kind=CIFAR10,
        train_view=transforms.Compose(resize + augment + normalize),
        test_view=transforms.Compose(resize + normalize),
        model=partial(model, asked.depth, size),
        optimizer=lambda parameters, lr: SGD(parameters, lr, momentum=0.9, weight_decay=5e-4),
        schedule=schedule,
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
    return run(options, task, arguments)


if __name__ == "__main__":
    sys.exit(main())
