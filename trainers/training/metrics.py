"""The metrics of a run: for the dashboard always, for TensorBoard with `--tensorboard`.

This module knows no program; values are Python numbers.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import ddptop.agent as agent
from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.refusal import Refusal, one_line


class Metrics:
    """Reports values, each with its optimizer step.

    Args:
        folder: where rank 0 writes events for TensorBoard; None for nowhere.

    Raises:
        Refusal: TensorBoard is not installed, or the folder cannot be written.
    """

    def __init__(self, folder: Path | None, position: Position) -> None:
        self._writer = _writer(folder) if folder is not None and position.first else None

    def log(self, step: int, **values: float) -> None:
        """Report values of a step."""
        agent.log(**values)
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write the last events."""
        if self._writer is not None:
            self._writer.close()


def _writer(folder: Path) -> Any:
    try:
        summary_writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError as error:
        raise Refusal("--tensorboard needs the package tensorboard: pip install 'ddptop[tensorboard]'") from error
    try:
        return summary_writer(str(folder))
    except OSError as error:
        raise Refusal(f"cannot write to the TensorBoard folder {folder}: {one_line(error)}") from error
