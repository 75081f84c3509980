"""Synthetic pictures that a model can learn, in the shape of a real data set, without a download.

Each class has a few smooth prototypes; a picture is one of them, moved, dimmed, mixed with a
prototype of another class and covered with noise. In one of fifteen pictures the other class is the
stronger, so that no model classifies all of them. Picture number i is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import Dataset

View = Callable[[Image.Image], torch.Tensor]
"""Turns a picture into the model's input."""

_SEED: Final = 20150412
_PROTOTYPES_PER_CLASS: Final = 2
_COARSE: Final = 5
_NOISES: Final = 64


class SyntheticPictures(Dataset[tuple[torch.Tensor, int]]):
    """`count` labelled pictures of `size` by `size` pixels, each made at its access.

    Args:
        channels: 1 for gray, 3 for color.
        first: number of the first picture, so that training and evaluation see different ones.
        level: mean brightness, of 255.
        shift: pixels by which a picture may be moved.
        noise: standard deviation of the noise, of 255.
    """

    def __init__(
        self,
        *,
        channels: int,
        size: int,
        classes: int,
        count: int,
        first: int,
        level: float,
        shift: int,
        noise: float,
        view: View,
    ) -> None:
        self._classes = classes
        self._count = count
        self._first = first
        self._level = level
        self._shift = shift
        self._view = view
        rng = np.random.default_rng(_SEED)
        self._prototypes = np.stack(
            [
                np.stack([_smooth(rng, channels, size) for _ in range(_PROTOTYPES_PER_CLASS)])
                for _ in range(classes)
            ]
        )  # fmt: skip
        # Noise is the expensive part of a picture, so pictures share a bank of it.
        self._noise = rng.normal(0, noise, (_NOISES, size, size, channels)).astype(np.float32)

    def __len__(self) -> int:
        """Return the number of pictures."""
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return picture and label."""
        if not 0 <= index < self._count:
            raise IndexError(index)
        label = index % self._classes
        return self._view(Image.fromarray(self.picture(index))), label

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the raw picture: (size, size) for gray, (size, size, 3) for color, 0 to 255."""
        rng = np.random.default_rng((_SEED, self._first + index))
        label = index % self._classes
        other = (label + int(rng.integers(1, self._classes))) % self._classes
        variant, distractor, bank = (int(n) for n in rng.integers((_PROTOTYPES_PER_CLASS,) * 2 + (_NOISES,)))
        moves = [(int(y), int(x)) for y, x in rng.integers(-self._shift, self._shift + 1, (3, 2))]
        strength, mixture = rng.uniform(0.4, 0.9), rng.uniform(0.0, 0.6)
        content: npt.NDArray[np.float32] = (
            self._level
            + strength * np.roll(self._prototypes[label, variant], moves[0], (0, 1))
            + mixture * np.roll(self._prototypes[other, distractor], moves[1], (0, 1))
            + np.roll(self._noise[bank], moves[2], (0, 1))
        )
        return content.clip(0, 255).astype(np.uint8).squeeze()


def _smooth(rng: np.random.Generator, channels: int, size: int) -> npt.NDArray[np.float32]:
    """Return a smooth random picture of (size, size, channels), about zero."""
    coarse = rng.normal(0, 70, (channels, _COARSE, _COARSE)).astype(np.float32)
    planes = [Image.fromarray(plane).resize((size, size), Image.Resampling.BICUBIC) for plane in coarse]
    return np.stack([np.asarray(plane, dtype=np.float32) for plane in planes], axis=-1)
