"""The start of the ranks of a program: by torchrun, or by the program itself.

torchrun starts one process for each rank and sets its rank in the environment.  With
`--start spawn` the program does so itself: rank = node_rank * per_node + local_rank.
Source: PyTorch tutorials, Multi-GPU Training with DDP (spawn) and Fault Tolerance (torchrun).
"""

from __future__ import annotations

import argparse
import importlib
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Final

import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank import group
from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.options import Options
from ddptop.trainers.rank.refusal import Refusal, refuse

_USUAL_WORLD: Final = 2
_USUAL_PORT: Final = 29500


def run(
    parser: argparse.ArgumentParser,
    work: Callable[[Options, Position], object],
    arguments: Sequence[str] | None = None,
    check: Callable[[Options], None] = lambda asked: None,
) -> int:
    """Run a program by its command line; return the exit code.

    Args:
        work: called on each rank, inside its process group.
        check: raises `Refusal` for options that do not fit each other, before ranks are started.
    """
    try:
        asked = parser.parse_args(arguments, namespace=Options())
        check(asked)
        if _is_to_spawn(asked):
            return _spawn(parser.prog, asked, sys.argv[1:] if arguments is None else list(arguments))
        with group.joined(asked.backend) as position:
            work(asked, position)
    except Refusal as refusal:
        return refuse(parser.prog, refusal)
    return 0


def _is_to_spawn(asked: Options) -> bool:
    if asked.start == "spawn":
        if dist.is_torchelastic_launched():
            raise Refusal("--start spawn is for a program that is started once; here torchrun has started the ranks")
        return "RANK" not in os.environ  # a spawned rank has the same command line
    if asked.world is not None or asked.nodes != 1:
        raise Refusal("--world and --nodes need --start spawn; with torchrun it is --nproc-per-node and --nnodes")
    return False


def _spawn(program: str, asked: Options, arguments: list[str]) -> int:
    world = asked.world or _USUAL_WORLD * asked.nodes
    if world % asked.nodes:
        raise Refusal(f"--world {world} cannot be shared evenly by --nodes {asked.nodes}")
    if asked.node_rank >= asked.nodes:
        raise Refusal(f"--node-rank {asked.node_rank}: with --nodes {asked.nodes} the last is {asked.nodes - 1}")
    per_node = world // asked.nodes
    port = asked.master_port or (_free_port() if asked.nodes == 1 else _USUAL_PORT)
    # As torchrun does: ranks with threads on all cores each would slow each other down.
    os.environ.setdefault("OMP_NUM_THREADS", "1" if per_node > 1 else str(os.cpu_count() or 1))
    given = CATALOGUE[program].module, arguments, asked.node_rank, per_node, world, asked.master_addr, port
    try:
        spawn(_rank, given, nprocs=per_node)  # type: ignore[no-untyped-call]  # torch gives it no types
    except ProcessRaisedException as failure:
        print(failure, file=sys.stderr, flush=True)
        return 1
    except ProcessExitedException as failure:
        # The exit code of a rank that a signal ended is negative; a shell reports 128 plus its number.
        return failure.exit_code if failure.exit_code >= 0 else 128 - failure.exit_code
    return 0


def _rank(
    local_rank: int,
    module: str,
    arguments: list[str],
    node_rank: int,
    per_node: int,
    world: int,
    master_addr: str,
    master_port: int,
) -> None:
    os.environ.update(
        RANK=str(node_rank * per_node + local_rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(per_node),
        MASTER_ADDR=master_addr,
        MASTER_PORT=str(master_port),
    )
    if code := importlib.import_module(module).main(arguments):
        sys.exit(code)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
