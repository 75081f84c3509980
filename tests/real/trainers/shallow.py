"""The program `resnet` with a block of each size, so that a rank has half as much to train and to save."""

from __future__ import annotations

from torchvision.models.resnet import BasicBlock, ResNet

from ddptop.trainers.programs.data_parallel import resnet


def _shallow(num_classes: int) -> ResNet:
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=num_classes)


def main(arguments: list[str]) -> int:
    """Run `resnet arguments…`."""
    resnet.resnet18 = _shallow  # type: ignore[attr-defined]  # where `model` looks it up
    return resnet.main(arguments)
