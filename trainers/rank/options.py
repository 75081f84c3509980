"""The options that programs share, checked before ranks are started.

This module imports neither torch nor data sets; a program adds its own options to the same parser.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from ddptop.trainers import Program
from ddptop.trainers.rank.refusal import Refusal

DESCRIBE: Final = "DDPTOP_DESCRIBE"
"""Environment variable that makes a program print its options as JSON and end."""


@dataclass(frozen=True)
class Defaults:
    """The defaults of a program's options on one kind of device."""

    device: str
    """`CPU` or `GPU`, for the help text."""
    epochs: int
    batch_size: int
    """Per rank."""
    lr: float
    samples: int | None
    """Training images of an epoch over all ranks; None for the whole data set."""
    workers: int


class Options(argparse.Namespace):
    """The shared options; those of the program itself are attributes too, under their names."""

    start: str
    """The starter of the ranks: `torchrun`, or `spawn` for the program itself."""
    world: int | None
    nodes: int
    node_rank: int
    master_addr: str
    master_port: int | None
    backend: str | None

    epochs: int | None
    """None: as many as `steps` needs, or `usual_epochs` without `steps`."""
    usual_epochs: int
    steps: int | None
    batch_size: int
    lr: float
    samples: int | None
    workers: int
    seed: int
    data_dir: Path | None
    download: bool
    uneven: bool
    checkpoint_dir: Path | None
    resume: bool
    tensorboard: Path | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refusal(f"{message}; see --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments, or print the options and end where `DDPTOP_DESCRIBE` is set."""
        if os.environ.get(DESCRIBE):
            print(json.dumps(described(self)))
            raise SystemExit(0)
        return super().parse_known_args(args, namespace)


def described(parser: argparse.ArgumentParser) -> list[dict[str, object]]:
    """Return flag, help, default, choices and type of every option of a parser, for the launch dialog."""
    groups = {
        id(action): group.title
        for group in parser._action_groups  # argparse has no public name for its groups
        for action in group._group_actions
    }
    return [
        {
            "flag": action.option_strings[-1],
            "group": groups[id(action)] or "",
            "help": (action.help or "") % {**vars(action), "prog": parser.prog},
            "default": None if action.default is None else str(action.default),
            "choices": None if action.choices is None else [str(choice) for choice in action.choices],
            "switch": action.nargs == 0,
            "metavar": action.metavar if isinstance(action.metavar, str) else "",
            "type": getattr(action.type, "__name__", ""),
            "least": getattr(action.type, "least", None),
            "most": getattr(action.type, "most", None),
        }
        for action in parser._actions
        if action.option_strings and action.dest != "help"
    ]


@dataclass(frozen=True)
class whole_number:  # noqa: N801 - it reads as a type of argparse
    """A type of argparse: an integer not below `least` (and not above `most`)."""

    least: int
    most: int | None = None

    def __call__(self, text: str) -> int:
        """Return the number that a text spells."""
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None
        if number < self.least:
            raise argparse.ArgumentTypeError(f"must be at least {self.least}, not {number}")
        if self.most is not None and number > self.most:
            raise argparse.ArgumentTypeError(f"must be at most {self.most}, not {number}")
        return number


def positive_number(text: str) -> float:
    """Return the number above zero that a text spells; a type of argparse."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None
    if not (number > 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"must be a positive number, not {text}")
    return number


def group_parser(program: Program) -> argparse.ArgumentParser:
    """Return a parser with only the options of the process group; its errors are raised as `Refusal`."""
    result = _Parser(
        prog=program.name,
        description=f"{program.technique}. Source: {program.source}.",
        epilog=f"Run it with `ddptop launch {program.name} -- OPTIONS`, with "
        f"`torchrun --nproc-per-node N -m {program.module} OPTIONS`, or alone with `python -m {program.module}`.",
        allow_abbrev=False,
    )
    ranks = result.add_argument_group("ranks")
    ranks.add_argument(
        "--start", choices=("torchrun", "spawn"), default="torchrun",
        help="who starts the ranks: torchrun, or this program by torch.multiprocessing.spawn (default %(default)s)",
    )  # fmt: skip
    ranks.add_argument(
        "--world",
        type=whole_number(1),
        metavar="N",
        help="with --start spawn: ranks on all machines together (default 2)",
    )
    ranks.add_argument(
        "--nodes",
        type=whole_number(1),
        default=1,
        metavar="N",
        help="with --start spawn: machines (default %(default)s)",
    )
    ranks.add_argument(
        "--node-rank", type=whole_number(0), default=0, metavar="N",
        help="with --start spawn: number of this machine, from 0",
    )  # fmt: skip
    ranks.add_argument(
        "--master-addr", default="127.0.0.1", metavar="HOST",
        help="with --start spawn: where machine 0 can be reached (default %(default)s)",
    )  # fmt: skip
    ranks.add_argument(
        "--master-port", type=whole_number(1, 65535), metavar="PORT",
        help="with --start spawn: a port of machine 0 (default: a free one; with several machines 29500)",
    )  # fmt: skip
    ranks.add_argument(
        "--backend", choices=("gloo", "nccl", "mpi"),
        help="of torch.distributed (default: nccl with a GPU for each rank, else gloo)",
    )  # fmt: skip
    return result


def parser(program: Program, defaults: Defaults) -> argparse.ArgumentParser:
    """Return a parser with all the shared options; its errors are raised as `Refusal`."""
    result = group_parser(program)
    result.epilog = f"{result.epilog} The defaults shown are those for a {defaults.device}."
    result.set_defaults(usual_epochs=defaults.epochs)

    length = result.add_argument_group("how long")
    length.add_argument(
        "--epochs", type=whole_number(1), metavar="N",
        help=f"passes over the training set (default {defaults.epochs}, or what --steps needs)",
    )  # fmt: skip
    length.add_argument(
        "--steps", type=whole_number(1), metavar="N",
        help="end after N optimizer steps, those before a --resume counted in",
    )  # fmt: skip

    training = result.add_argument_group("training")
    training.add_argument(
        "--batch-size", type=whole_number(1), default=defaults.batch_size, metavar="N",
        help="images of a step on each rank; N ranks train on N times as many (default %(default)s)",
    )  # fmt: skip
    training.add_argument("--lr", type=positive_number, default=defaults.lr, help="learning rate (default %(default)s)")
    training.add_argument(
        "--seed", type=whole_number(0, 2**63 - 1), default=0, metavar="N",
        help="of the first parameters, the order of the images and their augmentation (default %(default)s)",
    )  # fmt: skip

    data = result.add_argument_group("data")
    data.add_argument(
        "--data-dir", type=Path, metavar="DIR",
        help="folder with the real data set, as torchvision lays it out (default: a synthetic set of the same shape)",
    )  # fmt: skip
    data.add_argument(
        "--download", action="store_true", help="fetch the data set into --data-dir if it is not there yet"
    )
    data.add_argument(
        "--samples", type=whole_number(1), default=defaults.samples, metavar="N",
        help="train on the first N images and evaluate on a fifth as many "
        f"(default {'all' if defaults.samples is None else format(defaults.samples, ',')})",
    )  # fmt: skip
    data.add_argument(
        "--workers", type=whole_number(0, 64), default=defaults.workers, metavar="N",
        help="loader processes of each rank; 0 loads in the training process (default %(default)s)",
    )  # fmt: skip

    data.add_argument(
        "--uneven", action="store_true",
        help="share the images without repeating any: last batches differ, and a rank may run out before the others",
    )  # fmt: skip

    storage = result.add_argument_group("what is kept")
    storage.add_argument(
        "--checkpoint-dir", type=Path, metavar="DIR",
        help="write a checkpoint there after every epoch, at the end and when asked to, and keep the one before",
    )  # fmt: skip
    storage.add_argument("--resume", action="store_true", help="go on from the checkpoint in --checkpoint-dir")
    storage.add_argument(
        "--tensorboard", type=Path, metavar="DIR", help="write loss, accuracy and learning rate there for TensorBoard"
    )
    return result


def check(options: Options) -> None:
    """Raise `Refusal` for options that do not fit each other, before a process group is made for them."""
    if options.resume and options.checkpoint_dir is None:
        raise Refusal("--resume needs --checkpoint-dir, the folder that holds the checkpoint")
    if options.download and options.data_dir is None:
        raise Refusal("--download needs --data-dir, the folder to put the data set in")
