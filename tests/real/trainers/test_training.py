"""Training from the command line to the summary: it learns, can be interrupted, and refuses in one line."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import late

from ddptop import agent
from ddptop.trainers.rank.options import Options
from ddptop.trainers.rank.refusal import Refusal

from .conftest import Run

if TYPE_CHECKING:
    import torch
    import torchvision

    from ddptop.trainers.programs.data_parallel import resnet
    from ddptop.trainers.training import checkpoint
    from ddptop.trainers.training.checkpoint import CURRENT, PREVIOUS, Checkpoint
    from ddptop.trainers.training.task import Plan, warm_up_and_cosine

    from . import stopped

_imports = late.imports(globals())


SHORT = ("--samples", "256", "--batch-size", "32")


def stored(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / CURRENT, weights_only=True)
    return state


def same(one: object, other: object) -> bool:
    """Compare nested states bit by bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return one == other


def test_learns_and_says_what_from(train: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """After 120 steps accuracy is far above chance, and every line about the result says synthetic."""
    assert train("--steps", 120, "--samples", 2000) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if re.fullmatch(r"rank 0, epoch \d+, batch \d+, loss \d\.\d{4}", line)] == []
    summary = lines[-1]
    assert summary.startswith("simplenet finished: 120 steps, training loss ")
    assert all("synthetic MNIST" in line for line in lines if "accuracy" in line)
    first, last = map(float, re.search(r"training loss (\S+) -> (\S+),", summary).groups())  # type: ignore[union-attr]
    accuracy = float(re.search(r"accuracy ([\d.]+)%", summary)[1])  # type: ignore[index]
    assert last < 0.6 * first
    assert accuracy > 60


def test_log_line(train: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Simplenet logs rank, epoch, batch and loss every 100 batches."""
    assert train("--steps", 250, "--samples", 250, "--batch-size", 1, "--epochs", 1) == 0
    batches = re.findall(r"^rank 0, epoch 0, batch (\d+), loss [\d.]+$", capsys.readouterr().out, re.MULTILINE)
    assert batches == ["100", "200"]


def test_resume_equals_never_stopped(train: Run, tmp_path: Path) -> None:
    """An epoch and another after a resume end in the same bits as two; another seed does not."""
    whole, parts, other = (tmp_path / name for name in ("whole", "parts", "other"))
    assert train(*SHORT, "--epochs", 2, "--checkpoint-dir", whole) == 0
    assert train(*SHORT, "--epochs", 1, "--checkpoint-dir", parts) == 0
    assert train(*SHORT, "--epochs", 2, "--checkpoint-dir", parts, "--resume") == 0
    assert train(*SHORT, "--epochs", 2, "--checkpoint-dir", other, "--seed", 1) == 0
    assert (stored(parts)["epoch"], stored(parts)["step"]) == (2, 16)
    assert same(stored(parts), stored(whole))
    assert not same(stored(parts)["model"], stored(other)["model"])


def test_stopped_at_the_end_of_an_epoch(train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped right after the last step of an epoch, a run goes on with the next one, to the same bits."""
    monkeypatch.setattr(agent, "on_checkpoint", agent.on_checkpoint)  # put back what `stopped` sets
    whole, parts = ((*SHORT, "--epochs", "2", "--checkpoint-dir", str(tmp_path / name)) for name in ("whole", "parts"))
    assert train(*whole) == 0
    with pytest.raises(SystemExit):
        stopped.main(["ddptop.trainers.programs.data_parallel.simplenet", "8", *parts])
    assert train(*parts, "--resume") == 0
    assert same(stored(tmp_path / "parts"), stored(tmp_path / "whole"))


def test_resume_of_a_finished_run(train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run with nothing left to do says so, evaluates and ends well."""
    assert train(*SHORT, "--epochs", 1, "--checkpoint-dir", tmp_path) == 0
    assert train(*SHORT, "--epochs", 1, "--checkpoint-dir", tmp_path, "--resume") == 0
    assert "finished: 8 steps, training loss none, no step was left" in capsys.readouterr().out.splitlines()[-1]


def some(epoch: int) -> Checkpoint:
    return Checkpoint("net", 0, epoch, epoch * 10, 0, {"weight": torch.arange(5000.0)}, {})


def test_checkpoint_is_whole_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever call of the writing is the last before a crash, a whole checkpoint can be loaded."""

    class Crash(BaseException):
        pass

    checkpoint.save(tmp_path, some(1))
    checkpoint.save(tmp_path, some(2))
    for calls_left in (0, 1):
        left = [calls_left]

        def replace(source: Path, target: Path, left: list[int] = left, real: Any = os.replace) -> None:
            if not left[0]:
                raise Crash
            left[0] -= 1
            real(source, target)

        with monkeypatch.context() as patch, pytest.raises(Crash):  # noqa: PT012
            patch.setattr(os, "replace", replace)
            checkpoint.save(tmp_path, some(3))
        assert checkpoint.load(tmp_path, "net")[0].epoch == 2
    checkpoint.save(tmp_path, some(3))
    checkpoint.save(tmp_path, some(4))
    (tmp_path / CURRENT).unlink()
    assert checkpoint.load(tmp_path, "net")[0].epoch == 3


def test_full_disk_leaves_the_former_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that cannot be written is one line, and nothing half written stays behind."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    checkpoint.save(tmp_path, some(1))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Refusal, match="No space left"):
        checkpoint.save(tmp_path, some(2))
    assert checkpoint.load(tmp_path, "net")[0].epoch == 1
    assert [file.name for file in tmp_path.iterdir()] == [CURRENT]


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flipped_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def _other_file(content: bytes) -> bytes:
    return b"\x80\x02cos\nsystem\n" * 10


@pytest.mark.parametrize("damage", [_cut, _flipped_bit, _other_file, lambda content: b""])
def test_damaged_checkpoint(train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Any) -> None:
    """A damaged checkpoint is told in one line and the one before it used, which the next one does not replace."""
    assert train(*SHORT, "--epochs", 2, "--checkpoint-dir", tmp_path) == 0
    current, before = tmp_path / CURRENT, (tmp_path / PREVIOUS).read_bytes()
    current.write_bytes(damage(current.read_bytes()))
    capsys.readouterr()
    assert train(*SHORT, "--epochs", 2, "--checkpoint-dir", tmp_path, "--resume") == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(f"{current} is damaged (")
    assert told[0].endswith(f"going on from {PREVIOUS}, the one before it")
    assert "goes on from epoch 1, step 8" in told[1]
    assert (tmp_path / PREVIOUS).read_bytes() == before
    assert stored(tmp_path)["epoch"] == 2


def test_nothing_but_damaged_checkpoints(train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no checkpoint is whole the program ends with code 2 and one line that names both."""
    for file in (CURRENT, PREVIOUS):
        (tmp_path / file).write_bytes(b"not a checkpoint")
    assert train("--checkpoint-dir", tmp_path, "--resume", *SHORT) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.count("is damaged (") == 2
    assert "leave --resume away" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--resume",), "--resume needs --checkpoint-dir"),
        (("--world", "2"), "--world and --nodes need --start spawn"),
        (("--start", "spawn", "--world", "3", "--nodes", "2"), "--world 3 cannot be shared evenly by --nodes 2"),
        (("--start", "spawn", "--nodes", "2", "--node-rank", "2"), "--node-rank 2: with --nodes 2 the last is 1"),
        (("--backend", "mpi"), "built from source beside an MPI library (USE_MPI=1)"),
        (("--backend", "nccl"), "needs a GPU for each rank"),
        (("--tensorboard", "/proc/no"), "cannot write to the TensorBoard folder /proc/no"),
        (("--data-dir", "/nowhere/at-all"), "no folder /nowhere/at-all"),
        (("--checkpoint-dir", "/proc/no"), "cannot make the checkpoint folder /proc/no"),
        (("--checkpoint-dir", "/nowhere", "--resume"), "no checkpoint in /nowhere"),
        (("--speed", "9"), "unrecognized arguments: --speed 9"),
    ],
)
def test_refuses_in_one_line(
    train: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    """What cannot be done is one line on stderr, nothing on stdout, and exit code 2."""
    assert train(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("simplenet: ")
    assert said in err
    assert err.count("\n") == 1


def test_another_seed_is_no_continuation(train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A resume with another seed, which would be another run, is refused with the seed to give."""
    assert train(*SHORT, "--epochs", 1, "--checkpoint-dir", tmp_path, "--seed", 4) == 0
    assert train(*SHORT, "--epochs", 2, "--checkpoint-dir", tmp_path, "--resume") == 2
    assert "was made with --seed 4, not 0" in capsys.readouterr().err


def test_tensorboard(train: Run, tmp_path: Path) -> None:
    """Loss, accuracy and learning rate are in the events that TensorBoard reads, by step."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert train("--samples", 200, "--batch-size", 1, "--epochs", 2, "--tensorboard", tmp_path) == 0
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    steps = {name: [event.step for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert steps == {"lr": list(range(1, 401)), "loss": [100, 200, 300, 400], "accuracy": [200, 400]}


def test_tensorboard_is_missing(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the package one line says how to get it."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert train(*SHORT, "--tensorboard", tmp_path) == 2
    assert capsys.readouterr().err == (
        "simplenet: --tensorboard needs the package tensorboard: pip install 'ddptop[tensorboard]'\n"
    )


def test_keeps_another_runs_checkpoint(train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint is neither overwritten without --resume nor resumed by another program."""
    checkpoint.save(tmp_path, some(1))
    assert train("--checkpoint-dir", tmp_path) == 2
    assert "add --resume" in capsys.readouterr().err
    assert train("--checkpoint-dir", tmp_path, "--resume") == 2
    assert "is of net, not of SimpleNet" in capsys.readouterr().err
    assert checkpoint.load(tmp_path, "net")[0].epoch == 1


def plan(epochs: int | None, steps: int | None, epoch: int = 0, step: int = 0) -> tuple[int, int]:
    result = Plan.of(Options(epochs=epochs, steps=steps, usual_epochs=5), 10, epoch, step)
    return result.epochs, result.steps


def test_plan() -> None:
    """The first of --epochs and --steps ends the run, counted from the beginning also after a resume."""
    assert plan(None, None) == (5, 50)
    assert plan(2, None) == (2, 20)
    assert plan(None, 15) == (2, 15)
    assert plan(None, 200) == (20, 200)
    assert plan(3, 200) == (3, 30)
    assert plan(3, 15) == (3, 15)
    assert plan(3, None, epoch=2, step=20) == (3, 30)
    assert plan(3, None, epoch=2, step=40) == (3, 50)  # two epochs were done by half as many ranks
    assert plan(None, 45, epoch=2, step=40) == (3, 45)
    assert plan(2, None, epoch=2, step=20) == (2, 20)


def test_resnet_is_torchvisions() -> None:
    """224 px get the stock network; small pictures keep their size through the stem; the rest is the same."""
    parameters = {
        size: {name: tuple(value.shape) for name, value in resnet.model(34, size).state_dict().items()}
        for size in (16, 224)
    }
    stock = {
        name: tuple(value.shape) for name, value in torchvision.models.resnet34(num_classes=10).state_dict().items()
    }
    assert parameters[224] == stock
    assert {name for name in stock if parameters[16][name] != stock[name]} == {"conv1.weight"}
    small: Any = resnet.model(18, 16)
    assert small.maxpool(small.conv1(torch.zeros(1, 3, 16, 16))).shape == (1, 64, 16, 16)


def test_schedule_rises_and_falls() -> None:
    """The learning rate of resnet warms up, reaches what was asked for, and ends at zero."""
    factors = [warm_up_and_cosine(step / 100) for step in range(101)]
    assert max(factors) == pytest.approx(1.0)
    assert factors.index(max(factors)) == 10
    assert factors[-1] == pytest.approx(0.0)
    assert factors[10:] == sorted(factors[10:], reverse=True)
