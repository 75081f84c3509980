# mypy: ignore-errors
# The framework is no dependency of the tests: where it is missing, the program is left out.
"""Lightning's `ddp`, which starts the other ranks itself: the first process is rank 0."""

import os
import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class Model(lightning.LightningModule):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def on_train_start(self) -> None:
        """Say which rank this is."""
        os.write(1, f"rank {self.global_rank} is {os.getpid()}\n".encode())

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss."""
        time.sleep(0.05)
        return self.layer(batch[0]).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), 0.01)


lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=-1, logger=False, enable_checkpointing=False
).fit(Model(), DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4))
