"""Device, backend and size of a group."""

from __future__ import annotations

import pytest

from ddptop.agent.launcher import machine

CARDS = ["GPU-aaa1", "GPU-aab2", "GPU-ccc3"]


@pytest.mark.parametrize(
    ("mask", "count"),
    [(None, 3), ("", 0), ("-1", 0), ("0", 1), ("2,0", 2), ("0,7,1", 1), ("GPU-aab", 1), ("GPU-zzz", 0), ("0, 1", 2)],
)
def test_mask_is_read_as_cuda_reads_it(mask: str | None, count: int) -> None:
    """The first entry of CUDA_VISIBLE_DEVICES that names no GPU hides the rest (CUDA C++ Programming Guide)."""
    assert machine.visible(CARDS, mask) == count


@pytest.mark.parametrize(
    ("gpus", "world", "asked", "device", "backend"),
    [
        (4, 4, None, "cuda", "nccl"),
        (4, 2, "gloo", "cuda", "gloo"),
        (1, 2, None, "cuda", "gloo"),
        (0, 2, None, "cpu", "gloo"),
    ],
)
def test_placement(
    monkeypatch: pytest.MonkeyPatch, gpus: int, world: int, asked: str | None, device: str, backend: str
) -> None:
    """NCCL with a GPU for each rank, gloo otherwise, and the ranks are told which."""
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    placement = machine.choose(world, asked)
    assert (placement.device, placement.backend) == (device, backend)
    assert placement.environment["DDPTOP_BACKEND"] == backend


def test_threads_are_divided_unless_the_user_has_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks on the CPU share its cores; OMP_NUM_THREADS of the user stays."""
    monkeypatch.setattr(machine, "gpus", lambda: 0)
    monkeypatch.setattr(machine, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS")
    placement = machine.choose(4)
    assert placement.environment["OMP_NUM_THREADS"] == "2"
    assert placement.text == "no GPU: gloo on the CPU, 8 cores for 4 ranks, 2 threads each"
    assert machine.choose(16).environment["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "OMP_NUM_THREADS" not in machine.choose(4).environment


def test_what_cannot_work_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL without a GPU for each rank, unknown backends and senseless sizes name the way out."""
    monkeypatch.setattr(machine, "gpus", lambda: 1)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    with pytest.raises(ValueError, match="2 ranks, 1 GPU here; use --world 1 or --backend gloo"):
        machine.choose(2, "nccl")
    with pytest.raises(ValueError, match="choose gloo or nccl"):
        machine.choose(2, "mpi")
    for world in (0, -1, 33):
        with pytest.raises(ValueError, match=f"world {world}"):
            machine.check_world(world)
    assert machine.check_world(32) == 32
