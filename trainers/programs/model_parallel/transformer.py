"""A small vision transformer, the network that is split over ranks.

Source: Vaswani et al. 2017, Attention Is All You Need; Dosovitskiy et al. 2020, An Image Is Worth 16x16 Words.
This module knows no ranks: a rank with some of the heads runs the same code as one with all.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

WIDTH: Final = 96
HEADS: Final = 12
BLOCKS: Final = 2
PATCH: Final = 7
"""Side in pixels of the patch of a picture that is one word."""


class Attention(nn.Module):
    """Self-attention: every word attends to all words, with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._head_width = width // heads
        self.heads = nn.Linear(width, 3 * width, bias=False)
        """The queries, keys and values of a head are beside each other, so that a rank with some columns has
        whole heads. No bias: that of the keys would shift the scores of all words alike, which softmax cancels."""
        self.mix = nn.Linear(width, width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return (batch, words, width) for (batch, words, width)."""
        by_head = self.heads(words).unflatten(-1, (-1, 3, self._head_width))
        query, key, value = by_head.permute(3, 0, 2, 1, 4)
        seen = scaled_dot_product_attention(query, key, value)
        mixed: torch.Tensor = self.mix(seen.transpose(1, 2).flatten(2))
        return mixed


class Perceptron(nn.Module):
    """Two layers on each word separately, with four times the width between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return (batch, words, width) for (batch, words, width)."""
        out: torch.Tensor = self.down(gelu(self.up(words)))
        return out


class Block(nn.Module):
    """One layer of the transformer; normalization comes first in each branch."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.perceptron_norm = nn.LayerNorm(width)
        self.perceptron = Perceptron(width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return (batch, words, width) for (batch, words, width)."""
        words = words + self.attention(self.attention_norm(words))
        out: torch.Tensor = words + self.perceptron(self.perceptron_norm(words))
        return out


class Transformer(nn.Module):
    """Classifies pictures of one channel, `size` by `size` pixels."""

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(1, WIDTH, PATCH, stride=PATCH)
        self.positions = nn.Parameter(0.02 * torch.randn((size // PATCH) ** 2, WIDTH))
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.classes = nn.Linear(WIDTH, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores (batch, classes) of images (batch, 1, size, size)."""
        words = self.embedding(images).flatten(2).transpose(1, 2) + self.positions
        scores: torch.Tensor = self.classes(self.norm(self.blocks(words)).mean(1))
        return scores
