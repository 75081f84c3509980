# mypy: ignore-errors
# The framework is no dependency of the tests: where it is missing, the program is left out.
"""The Trainer of Hugging Face, under torchrun."""

import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

torch.set_num_threads(1)


class Model(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, values: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the loss."""
        time.sleep(0.05)
        return {"loss": self.layer(values).sum()}


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows of noise."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"values": torch.randn(8), "labels": torch.zeros(1)}


arguments = TrainingArguments(
    sys.argv[1], use_cpu=True, max_steps=1_000_000, save_strategy="no", report_to=[], remove_unused_columns=False
)
os.write(1, f"rank {arguments.process_index} is {os.getpid()}\n".encode())
Trainer(Model(), arguments, train_dataset=Rows()).train()
