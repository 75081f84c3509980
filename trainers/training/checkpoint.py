"""Checkpoints of a run: the newest in one file, whole or not there, and the one before it in another.

Rank 0 writes, or the first worker where some ranks are servers; every rank reads, so that on several
machines the folder has to be a shared one.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ddptop.trainers.rank.options import Options
from ddptop.trainers.rank.refusal import Refusal, one_line
from ddptop.trainers.training.data import Batches
from ddptop.trainers.training.task import Progress
from ddptop.trainers.training.technique import Technique

CURRENT: Final = "checkpoint.pt"
PREVIOUS: Final = "checkpoint.previous.pt"

_DAMAGE: Final = (
    OSError, RuntimeError, ValueError, TypeError, LookupError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError,
)  # fmt: skip
"""What reading raises for a file that is cut short, changed or something else."""


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on where it was; of the options it was started with it has the seed alone."""

    program: str
    """What was trained, in words; a checkpoint goes on only in the same program."""
    seed: int
    """Of all random numbers: with the fields below it says which ones come next."""
    epoch: int
    """Epochs completed."""
    step: int
    """Optimizer steps completed."""
    images: int
    """Images of the next epoch that have been trained on already, over all ranks."""
    model: dict[str, Any]
    optimizer: dict[str, Any]


def begin(asked: Options, program: str, technique: Technique, batches: Batches) -> Progress:
    """Return how far a former run has come, with its state loaded, or the very beginning.

    Args:
        batches: of an epoch.

    Raises:
        Refusal: the options ask for what cannot be done with the folder.
    """
    folder, position = asked.checkpoint_dir, technique.position
    if folder is None:
        return Progress()
    if not asked.resume:
        position.agree(lambda: prepare(folder) if position.first else None)
        return Progress()
    progress, path = position.agree(lambda: restore(folder, program, asked.seed, technique))
    if position.first:
        make_current(path)
    if batches.batches_in(progress.images) == len(batches):
        # Saved right after the last step of an epoch, before that was counted.
        return Progress(progress.epoch + 1, progress.step)
    return progress


def store(
    asked: Options, program: str, progress: Progress, state: tuple[dict[str, Any], dict[str, Any]]
) -> Path | None:
    """Write a checkpoint where one was asked for, and return its path.

    Args:
        state: of model and optimizer, whole.
    """
    if asked.checkpoint_dir is None:
        return None
    now = Checkpoint(program, asked.seed, progress.epoch, progress.step, progress.images, *state)
    return save(asked.checkpoint_dir, now)


def prepare(folder: Path) -> None:
    """Make the folder, which must not hold another run's checkpoint.

    Raises:
        Refusal: nothing can be written there, or a checkpoint would be lost.
    """
    if there := _there(folder):
        raise Refusal(f"{there[0]} is there already; add --resume to go on from it, or choose another --checkpoint-dir")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"cannot make the checkpoint folder {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Refusal(f"cannot write checkpoints to {folder}: Permission denied")


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Replace the checkpoint and return its path; the one before is kept. At every moment one of them is whole.

    Raises:
        Refusal: it could not be written; the former one is still there.
    """
    return write(folder / CURRENT, asdict(checkpoint), former=folder / PREVIOUS)


def write(path: Path, state: dict[str, Any], former: Path | None = None) -> Path:
    """Write a file that is whole or not there, and return its path.

    Args:
        former: where the file that it replaces is kept.

    Raises:
        Refusal: it could not be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        if former is not None and path.exists():
            os.replace(path, former)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        raise Refusal(f"cannot write {path}: {one_line(error)}") from error
    return path


def load(folder: Path, program: str, tell: Callable[[str], None] = print) -> tuple[Checkpoint, Path]:
    """Return the newest whole checkpoint, with its tensors on the CPU, and its file.

    Args:
        tell: takes a line on a checkpoint that is damaged, and passed over for the one before.

    Raises:
        Refusal: there is none, none is whole, or it is another program's.
    """
    there = _there(folder)
    if not there:
        raise Refusal(f"no checkpoint in {folder} to go on from; leave --resume away to begin there")
    damage = []
    for path in there:
        try:
            found = _read(path)
        except _DAMAGE as error:
            damage.append(f"{path} is damaged ({one_line(error)[:120]})")
            continue
        if found.program != program:
            raise Refusal(f"{path} is of {found.program}, not of {program}; give the options that it was made with")
        for line in damage:
            tell(f"{line}; going on from {path.name}, the one before it")
        return found, path
    raise Refusal(f"{'; '.join(damage)}; leave --resume away, and choose another --checkpoint-dir, to begin anew")


def restore(folder: Path, program: str, seed: int, technique: Technique) -> tuple[Progress, Path]:
    """Load the newest whole checkpoint into model and optimizer; return how far it had come, and its file.

    Raises:
        Refusal: as `load`, or it does not fit, or was made with another seed.
    """
    found, path = load(folder, program, technique.position.say)
    if found.seed != seed:
        raise Refusal(f"the checkpoint in {folder} was made with --seed {found.seed}, not {seed}; give that one")
    try:
        technique.load(found.model, found.optimizer)
    except (RuntimeError, ValueError, LookupError, TypeError) as error:
        raise Refusal(f"the checkpoint in {folder} does not fit {program}: {one_line(error)[:120]}") from error
    return Progress(found.epoch, found.step, found.images), path


def make_current(path: Path) -> None:
    """Put a checkpoint that was gone back to in the place of the damaged one, which the next would push onto it."""
    if path.name != CURRENT:
        os.replace(path, path.with_name(CURRENT))


def _read(path: Path) -> Checkpoint:
    # The checksums that torch writes are not compared when it reads.
    with zipfile.ZipFile(path) as archive:
        broken = archive.testzip()
    if broken is not None:
        raise ValueError(f"wrong checksum in {broken}")
    found = Checkpoint(**torch.load(path, map_location="cpu", weights_only=True))
    if not all(isinstance(number, int) for number in (found.seed, found.epoch, found.step, found.images)):
        raise TypeError("seed, epoch, step and images are not whole numbers")
    return found


def _there(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first."""
    return [folder / name for name in (CURRENT, PREVIOUS) if os.path.isfile(folder / name)]
