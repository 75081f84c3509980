"""A script that closes all descriptors, as daemons do, does not end its rank, and stays seen."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from support.harness import status, until, write_script
from support.processes.ranks import observed

from ddptop.agent.rank.hooks import around
from ddptop.agent.rank.process import descriptors

SCRIPT = """
import contextlib, os, pathlib, sys, time
import torch

def close(how):
    if how == "fork":
        if os.fork() == 0:
            if os.fork() == 0:
                os.closerange(0, 65536)
                # Nothing is kept in a process that has no agent.
                pathlib.Path("left").write_text(" ".join(os.listdir("/proc/self/fd")))
            os._exit(0)
        os.wait()
    elif how == "loop":
        for number in range(3, 4096):
            with contextlib.suppress(OSError):
                os.close(number)
    else:
        os.closerange(3, int(how))

how = sys.argv[1]
close(how)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    model(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    return 1

count = 0
while not os.path.exists("go"):
    count += train()
    time.sleep(0.01)
opened = os.open("own", os.O_WRONLY | os.O_CREAT)
close(how)
if how != "fork":
    with contextlib.suppress(OSError):
        os.fstat(opened)
        print("still open")
for _ in range(20):
    own = os.open("own", os.O_WRONLY | os.O_CREAT)
    assert os.write(own, b"x") == 1
    os.close(own)
    count += train()
print("steps", count, flush=True)
while not os.path.exists("end"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("how", ["65536", "loop", "fork"])
def test_a_script_that_closes_all_descriptors_is_observed_to_its_end(tmp_path: Path, how: str) -> None:
    """Before its first step and while the observer is connected; its own descriptors are closed, and work."""
    name = f"closes-{how}"
    with observed(name, write_script(tmp_path, SCRIPT), how, world=1) as (directory, ranks):
        (tmp_path / "go").touch()
        until(lambda: "steps " in ranks.said, "it is through")
        assert "still open" not in ranks.said
        count = int(ranks.said.split("steps ")[1])
        until(lambda: (now := status(name))["step"] == count and now["ranks"][0]["step"] == count, "all is seen")
        (tmp_path / "end").touch()
        until(lambda: directory.read().state == "finished", "it has finished")
    if how == "fork":
        # The folder that is listed.
        assert (tmp_path / "left").read_text().split() == ["0"]


def test_closing_a_copy_of_a_socket_leaves_the_socket_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that has set a default timeout for sockets, and closes a copy of one, still has a blocking socket."""
    monkeypatch.setattr(os, "close", os.close)
    monkeypatch.setattr(os, "closerange", os.closerange)
    one, other = socket.socketpair()
    default = socket.getdefaulttimeout()
    descriptors.keep((), ["ipc:///nowhere/rank0.pub"])
    socket.setdefaulttimeout(5)
    try:
        os.close(os.dup(one.fileno()))
        assert os.get_blocking(one.fileno())
    finally:
        socket.setdefaulttimeout(default)
        descriptors.give_up()
        one.close()
        other.close()


def test_a_record_that_is_being_read_meanwhile_is_closed(tmp_path: Path) -> None:
    """The agent's thread reads the record of the run while what the agent keeps is looked for; a hold is kept."""
    before = descriptors.present()
    (tmp_path / "run.json").touch()
    reading, hold = os.open(tmp_path / "run.json", os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)
    descriptors.keep(before, ())
    try:
        os.close(reading)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.close(hold)
    finally:
        descriptors.give_up()
        around.put_back(lambda what, error: None)
        os.close(hold)
    assert not Path(f"/proc/self/fd/{reading}").exists()
