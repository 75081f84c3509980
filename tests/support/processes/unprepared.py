"""Two ranks that nobody prepared, which look at themselves for what the agent has left there."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Member, Run
from support.harness import DEADLINE_S, until

SCRIPT: Final = """
import faulthandler, gc, glob, hashlib, json, os, signal, sys, threading, time
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

folder, most, by_hand, rank = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "by hand", int(os.environ["RANK"])
torch.manual_seed(0)
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(rank)))

def scan():
    found = {"env": dict(os.environ), "meta_path": tuple(sys.meta_path), "stdout": sys.stdout}
    found |= {"excepthook": threading.excepthook, "faulthandler": (faulthandler.enable, faulthandler.is_enabled())}
    found |= {f"signal {number}": signal.getsignal(number) for number in range(1, 32)}
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "torch"]
    for module in (*modules, os):
        kinds = [each for each in vars(module).values() if isinstance(each, type)]
        for owner in (module, *kinds):
            names = vars(owner).items()
            found |= {(id(owner), str(owner)[:80], name): value for name, value in list(names) if callable(value)}
    found["hooks"] = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
    return found

def descriptors():
    numbers = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return sorted(os.readlink(each) for each in numbers if os.path.exists(each))

def threads():
    return sorted(open(f"/proc/self/task/{name}/comm").read() for name in os.listdir("/proc/self/task"))

steps, before, done, asked, goes_on = 0, None, 0, "", True
while goes_on:
    for (x,) in DataLoader(data, batch_size=8):
        if steps == 5:
            before = scan(), descriptors(), threads()
            open(f"{folder}/trains-{rank}", "w").close()
        for script in glob.glob(f"{folder}/join/*/script.py") if by_hand and steps > 5 else ():
            try:
                text = open(script).read() if os.path.exists(f"{os.path.dirname(script)}/request.json") else ""
            except FileNotFoundError:
                continue
            if text and script != asked:
                asked = script
                exec(text, {})
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        steps += 1
        ends = torch.tensor(float(steps == most or os.path.exists(f"{folder}/end")))
        torch.distributed.all_reduce(ends, torch.distributed.ReduceOp.MAX)
        if ends.item():
            goes_on = False
            break
        if not most:
            time.sleep(0.01)
        if os.path.exists(f"{folder}/left-{done + 1}"):
            done += 1
            after = scan()
            was = before[0]
            changed = [str(key) for key in was if after.get(key) is not was[key] and after.get(key) != was[key]]
            ours = [str(key) for key in after if str(getattr(after[key], "__module__", "")).startswith("ddptop")]
            gc.collect()
            ours += [repr(each) for each in gc.get_objects() if type(each).__name__ in ("Session", "Collectives")]
            opened = [each for each in descriptors() if each not in before[1] and "memfd" not in each]
            begun = [each for each in threads() if each not in before[2]]
            with open(f"{folder}/found-{rank}-{done}.new", "w") as file:
                json.dump([changed, ours, opened, begun], file)
            os.replace(file.name, f"{folder}/found-{rank}-{done}")
digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()
with open(f"{folder}/digest-{rank}", "w") as file:
    json.dump([steps, digest], file)
torch.distributed.destroy_process_group()
"""


class Unprepared:
    """Two ranks in a run that is seen from outside."""

    def __init__(self, folder: Path, steps: int = 0, *, python: str = sys.executable, by_hand: bool = False) -> None:
        """Start them.

        Args:
            folder: for their script.
            steps: after which they end; 0: when they are told.
            python: that runs them.
            by_hand: their script executes by itself what Python 3.14 would execute in their main threads.
        """
        self.steps = steps
        script = folder / "train.py"
        script.write_text(SCRIPT)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        name = f"late-{secrets.token_hex(3)}"
        run = Run(name, secrets.token_hex(8), str(script), (), 2, None, None, time.time_ns(), False, outside=True)
        self.directory = rundir.create(run)
        told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        self.processes = [
            subprocess.Popen(
                [python, str(script), str(self.directory.path), str(steps), "by hand" if by_hand else ""],
                env={**os.environ, **told, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in (0, 1)
        ]
        for rank, each in enumerate(self.processes):
            process = rundir.identify(each.pid)
            assert process is not None
            self.directory.write_member(Member(rank, rank, 2, process, "host", 0, "", "", None, by_agent=False))

    def await_training(self) -> None:
        """Wait until both make steps."""
        until(lambda: all((self.directory.path / f"trains-{rank}").exists() for rank in (0, 1)), "both to train")

    def look(self, number: int) -> list[Any]:
        """Have both look at themselves, for this time of several; return the differences that they find, of each."""
        (self.directory.path / f"left-{number}").touch()
        files = [self.directory.path / f"found-{rank}-{number}" for rank in (0, 1)]
        until(lambda: all(each.exists() for each in files), "both to look at themselves")
        return [json.loads(each.read_text()) for each in files]

    def end(self) -> list[Any]:
        """Have them end, unless they do so by themselves; return the number of steps and a digest, by rank."""
        if not self.steps:
            (self.directory.path / "end").touch()
        for each in self.processes:
            assert each.wait(DEADLINE_S) == 0
        return [json.loads((self.directory.path / f"digest-{rank}").read_text()) for rank in (0, 1)]

    def close(self) -> None:
        """End them at once."""
        for each in self.processes:
            each.kill()
            each.wait()
