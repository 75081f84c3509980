"""Collectives by hand beside the backend's own: a comparison of their results and of their speed.

Technique: the same all-reduce at a root, over a tree and around a ring (`handmade`), on tensors
from 1 KB to 64 MB. The time of small tensors depends on the number of rounds, that of large ones on the bytes: the
tree is best for the former, the ring for the latter, and the root is worst for both with more ranks.
Source: Thakur, Rabenseifner, Gropp 2005, Optimization of Collective Communication Operations in MPICH.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

import torch
import torch.distributed as dist

import ddptop.agent as agent
from ddptop.trainers import CATALOGUE
from ddptop.trainers.handmade import naive, ring, tree
from ddptop.trainers.handmade.table import COLLECTIVES
from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.options import Options, group_parser, whole_number
from ddptop.trainers.rank.refusal import Refusal
from ddptop.trainers.rank.start import run

ALL_REDUCES: Final[dict[str, Callable[[torch.Tensor], object]]] = {
    "naive": naive.all_reduce,
    "tree": tree.all_reduce,
    "ring": ring.all_reduce,
    "backend": dist.all_reduce,
}
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20}


def compare(position: Position) -> None:
    """Do every collective by every algorithm, and compare the results with the backend's.

    Raises:
        Refusal: a result differs.
    """
    tensor = torch.arange(1001.0, device=position.device) + 1000 * position.rank
    for name, ways in COLLECTIVES.items():
        wanted = ways["backend"](tensor)
        same = {way: torch.equal(collective(tensor), wanted) for way, collective in ways.items()}
        if wrong := position.agree(lambda same=same: [way for way, is_same in same.items() if not is_same]):  # type: ignore[misc]  # mypy infers no type for a default in a lambda
            raise Refusal(f"{name} gives something else than {position.backend} when done by {', '.join(wrong)}")
        position.say(f"{name:<16} {' = '.join(ways)}")


def seconds(all_reduce: Callable[[torch.Tensor], object], size: int, repeat: int, position: Position) -> float:
    """Return the seconds of an all-reduce of `size` bytes on the slowest rank, the median of several."""
    tensor = torch.ones(size // 4, device=position.device)
    durations = []
    for _ in range(repeat + 1):
        tensor.fill_(1)
        dist.barrier()
        started = time.perf_counter()
        all_reduce(tensor)
        _settle(position)
        slowest = torch.tensor(time.perf_counter() - started, device=position.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        durations.append(slowest.item())
    return median(durations[1:])  # the first also makes connections and buffers


def measure(asked: Options, position: Position) -> None:
    """Print time and bandwidth of each algorithm over the sizes.

    Bandwidth is 2(N - 1)/N of the bytes, the least that a rank has to send, over the time:
    comparable between algorithms and numbers of ranks.
    """
    position.say(f"\n{'bytes':>10}" + "".join(f"{way:>23}" for way in ALL_REDUCES))
    for size in asked.sizes:
        line = f"{size:>10,}"
        for all_reduce in ALL_REDUCES.values():
            duration = seconds(all_reduce, size, asked.repeat, position)
            least = 2 * (position.world - 1) / position.world * size
            line += f"{duration * 1e3:>9.2f} ms {least / duration / 1e9:>6.3f} GB/s"
        position.say(line)


def work(asked: Options, position: Position) -> None:
    """Compare and measure."""
    agent.start(note="no training: collectives by hand beside the backend's own")
    position.say(f"collectives: world {position.world}, {position.backend} on {position.device.type}")
    compare(position)
    if position.world > 1:
        measure(asked, position)


def _settle(position: Position) -> None:
    if position.device.type == "cuda":
        torch.cuda.synchronize(position.device)


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d{1,4})([KM]?)", text.upper())
    size = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 4 <= size <= 1 << 30:
        raise argparse.ArgumentTypeError(f"must be bytes such as 64K or 16M, from 4 to 1024M, not {text!r}")
    return size


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and measure; return the exit code."""
    parser = group_parser(CATALOGUE["collectives"])
    measuring = parser.add_argument_group("measuring")
    measuring.add_argument(
        "--sizes", type=_size, nargs="+", metavar="BYTES",
        default=[_size(size) for size in ("1K", "16K", "256K", "1M", "4M", "16M", "64M")],
        help="of the tensors that are reduced (default 1K 16K 256K 1M 4M 16M 64M)",
    )  # fmt: skip
    measuring.add_argument(
        "--repeat", type=whole_number(1, 1000), default=5, metavar="N",
        help="all-reduces of each size and way; the median counts (default %(default)s)",
    )  # fmt: skip
    return run(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
