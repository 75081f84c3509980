"""A script that trains on two ranks without DistributedDataParallel, as a newcomer writes it."""

from __future__ import annotations

from pathlib import Path

from support.harness import ddptop, status, until, write_script
from support.processes.ranks import observed

ALONE = '''
"""Trains a model of its own in each rank, until it is told to end."""
import pathlib, time, light, torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while not pathlib.Path("enough").exists():
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.02)
'''


def test_two_trainings_of_their_own_are_told(tmp_path: Path) -> None:
    """By the observer, in `status` while it goes on, and in the record of the run afterwards."""
    with observed("alone", write_script(tmp_path, ALONE)):
        until(lambda: status("alone")["verdicts"], "the verdict")
        (verdict,) = status("alone")["verdicts"]
        (tmp_path / "enough").touch()
        until(lambda: status("alone")["state"] == "finished", "the end")
    assert (verdict["kind"], verdict["rank"]) == ("no_communication", None)
    assert verdict["text"].startswith("these ranks do not communicate: 2 trainings of their own?")
    assert verdict["text"] in ddptop("events", "alone").stdout
