"""Checkpoints of a run: one file an epoch, whole or not there, and the one before it.

Rank 0 writes, every rank reads: on several machines the folder has to be a shared one.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ddptop.trainers.refusal import Refusal, one_line

CURRENT: Final = "checkpoint.pt"
PREVIOUS: Final = "checkpoint.previous.pt"


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on as if it had not been interrupted."""

    program: str
    """What was trained, in words; a checkpoint goes on only in the same program."""
    epoch: int
    """Epochs completed."""
    step: int
    """Optimizer steps completed."""
    model: dict[str, Any]
    optimizer: dict[str, Any]


def prepare(folder: Path) -> None:
    """Make the folder, which must not hold another run's checkpoint.

    Raises:
        Refusal: nothing can be written there, or a checkpoint would be lost.
    """
    if found := _newest(folder):
        raise Refusal(f"{found} is there already; add --resume to go on from it, or choose another --checkpoint-dir")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"cannot make the checkpoint folder {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Refusal(f"cannot write checkpoints to {folder}: Permission denied")


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint; the one before is kept. At every moment one of them is whole.

    Raises:
        Refusal: it could not be written; the former one is still there.
    """
    temporary = folder / f".{CURRENT}.{os.getpid()}"
    current = folder / CURRENT
    try:
        with temporary.open("wb") as file:
            torch.save(asdict(checkpoint), file)
            file.flush()
            os.fsync(file.fileno())
        if current.exists():
            os.replace(current, folder / PREVIOUS)
        os.replace(temporary, current)
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        raise Refusal(f"cannot write the checkpoint {current}: {one_line(error)}") from error


def load(folder: Path, program: str) -> Checkpoint:
    """Return the newest checkpoint, with its tensors on the CPU.

    Raises:
        Refusal: there is none, it is damaged, or it is another program's.
    """
    path = _newest(folder)
    if path is None:
        raise Refusal(f"no checkpoint in {folder} to go on from; leave --resume away to begin there")
    try:
        # The checksums that torch writes are not compared when it reads.
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        if broken is not None:
            raise ValueError(f"wrong checksum in {broken}")
        found = Checkpoint(**torch.load(path, map_location="cpu", weights_only=True))
        if not (isinstance(found.epoch, int) and isinstance(found.step, int)):
            raise TypeError("epoch and step are not whole numbers")
    except (OSError, RuntimeError, ValueError, TypeError, LookupError, EOFError, zipfile.BadZipFile,
            pickle.UnpicklingError) as error:  # fmt: skip
        advice = f"; remove it to go on from {PREVIOUS}" if _has_previous(path) else ""
        raise Refusal(f"{path} is damaged ({one_line(error)[:120]}){advice}") from error
    if found.program != program:
        raise Refusal(f"{path} is of {found.program}, not of {program}; give the options that it was made with")
    return found


def _newest(folder: Path) -> Path | None:
    return next((folder / name for name in (CURRENT, PREVIOUS) if os.path.isfile(folder / name)), None)


def _has_previous(path: Path) -> bool:
    return path.name == CURRENT and path.with_name(PREVIOUS).is_file()
