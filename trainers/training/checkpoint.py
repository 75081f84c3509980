"""Checkpoints of a run: the newest in one file, which is written atomically, and the one before it in another.

Rank 0 writes them, or the first worker where some ranks are servers; every rank reads them, so that several
machines need a shared folder.
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
"""Raised by reading for a file that is truncated, changed or no checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """The state from which a run goes on; of its options it has only the seed."""

    program: str
    """Title of the trained task; only a run with the same title can go on from the checkpoint."""
    seed: int
    """Seed of all random numbers; with the fields below it determines the next ones."""
    epoch: int
    """Epochs completed."""
    step: int
    """Optimizer steps completed."""
    images: int
    """Images of the next epoch on which the model was already trained, over all ranks."""
    model: dict[str, Any]
    optimizer: dict[str, Any]


def begin(asked: Options, program: str, technique: Technique, batches: Batches) -> Progress:
    """Return the progress of a former run, with its state loaded, or that of a new run.

    Args:
        batches: the batches of an epoch.

    Raises:
        Refusal: the options do not fit the content of the folder.
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
        # Saved right after the last step of an epoch, before that epoch was counted.
        return Progress(progress.epoch + 1, progress.step)
    return progress


def store(
    asked: Options, program: str, progress: Progress, state: tuple[dict[str, Any], dict[str, Any]]
) -> Path | None:
    """Write a checkpoint where `--checkpoint-dir` is given, and return its path.

    Args:
        state: the whole state of model and optimizer.
    """
    if asked.checkpoint_dir is None:
        return None
    now = Checkpoint(program, asked.seed, progress.epoch, progress.step, progress.images, *state)
    return save(asked.checkpoint_dir, now)


def prepare(folder: Path) -> None:
    """Make the folder, which must not contain the checkpoint of another run.

    Raises:
        Refusal: the folder cannot be written, or has a checkpoint.
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
    """Replace the checkpoint and return its path; the last one stays in `PREVIOUS`. One of them is always complete.

    Raises:
        Refusal: it could not be written; the last one is still there.
    """
    return write(folder / CURRENT, asdict(checkpoint), former=folder / PREVIOUS)


def write(path: Path, state: dict[str, Any], former: Path | None = None) -> Path:
    """Write a file atomically, and return its path.

    Args:
        former: new path of the file that it replaces; None deletes that.

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


def load(folder: Path, program: str, report: Callable[[str], None] = print) -> tuple[Checkpoint, Path]:
    """Return the newest undamaged checkpoint, with its tensors on the CPU, and its file.

    Args:
        report: receives a line on a damaged checkpoint that was skipped.

    Raises:
        Refusal: there is none, all are damaged, or it belongs to another program.
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
            report(f"{line}; going on from {path.name}, the one before it")
        return found, path
    raise Refusal(f"{'; '.join(damage)}; leave --resume away, and choose another --checkpoint-dir, to begin anew")


def restore(folder: Path, program: str, seed: int, technique: Technique) -> tuple[Progress, Path]:
    """Load the newest undamaged checkpoint into model and optimizer; return its progress and its file.

    Raises:
        Refusal: as for `load`, or it does not fit the model, or has another seed.
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
    """Replace the damaged newest checkpoint by the one before it, which the next `save` would otherwise replace."""
    if path.name != CURRENT:
        os.replace(path, path.with_name(CURRENT))


def _read(path: Path) -> Checkpoint:
    # torch writes checksums, but does not check them.
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
