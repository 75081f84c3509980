"""What the tests of the trainers share: programs run as the user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.harness import DEADLINE_S

Run = Callable[..., int]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run simplenet as a group of one in this process; the arguments are those of its command line."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "DDPTOP_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    from ddptop.trainers.programs.data_parallel import simplenet

    return lambda *arguments: simplenet.main([str(argument) for argument in arguments])


@dataclass(frozen=True)
class Done:
    """What came of a group of ranks."""

    codes: list[int | None]
    """Exit code of each rank, None for one that hung."""
    ended: list[int]
    """The ranks that did not hang, in the order in which they ended."""
    out: list[str]
    """What each rank printed."""
    err: str
    """What all of them complained of."""


Group = Callable[..., Done]


@pytest.fixture(scope="session")
def forkserver() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported torch and every program."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "DDPTOP_BACKEND"):
        environment.pop(name, None)
    command = [sys.executable, str(Path(__file__).with_name("forkserver.py"))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def group(forkserver: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Group:
    """Run `module.main(arguments)` on a number of ranks, each a process of its own."""

    def run(world: int, module: str, *arguments: object, timeout_s: float = 2 * DEADLINE_S) -> Done:
        folder = tmp_path_factory.mktemp("ranks")
        request = {
            "world": world,
            "module": module,
            "arguments": [str(argument) for argument in arguments],
            "folder": str(folder),
            "timeout_s": timeout_s,
        }
        assert forkserver.stdin is not None
        assert forkserver.stdout is not None
        print(json.dumps(request), file=forkserver.stdin, flush=True)
        ends = dict(json.loads(forkserver.stdout.readline()))
        out, err = ([(folder / f"{rank}.{kind}").read_text() for rank in range(world)] for kind in ("out", "err"))
        return Done([ends.get(rank) for rank in range(world)], list(ends), out, "".join(err))

    return run
