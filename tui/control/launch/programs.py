"""What options the programs of the catalogue take, as they say themselves, asked in a process of its own.

A program imports torch, the dashboard must not; so it is started, told to describe itself, and read.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from typing import Final

import msgspec

from ddptop.agent import decoding
from ddptop.agent.control.refusals import Refused
from ddptop.agent.observer.launcher import launcher
from ddptop.agent.text import clean
from ddptop.agent.wire.incoming import cleaned
from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank.options import DESCRIBE, positive_number, whole_number

PATIENCE_S: Final = 60.0
"""To import torch may take long on a busy machine."""


class Option(msgspec.Struct, frozen=True):
    """One option of a program."""

    flag: str
    """`--batch-size`."""
    help: str
    group: str = ""
    default: str | None = None
    choices: tuple[str, ...] | None = None
    switch: bool = False
    """True where it takes no value."""
    metavar: str = ""
    type: str = ""
    """Name of what reads its value; empty for text."""
    least: int | None = None
    """Of a whole number."""
    most: int | None = None

    def problem(self, text: str) -> str | None:
        """Return what is wrong with a value, None for a good one."""
        if self.choices is not None:
            return None if text in self.choices else f"one of {', '.join(self.choices)}"
        try:
            if self.least is not None:
                whole_number(self.least, self.most)(text)
            elif self.type == positive_number.__name__:
                positive_number(text)
        except argparse.ArgumentTypeError as problem:
            return str(problem)
        return None


def ask(program: str) -> tuple[Option, ...]:
    """Return the options of a program of the catalogue. Takes seconds.

    Raises:
        Refused: it does not tell them, one line.
    """
    command = launcher.isolated(CATALOGUE[program].module)
    environment = {**os.environ, DESCRIBE: "1"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False
        )
        return tuple(map(cleaned, decoding.of(tuple[Option, ...]).decode(done.stdout)))
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Refused(f"{program} does not tell its options: {clean(str(problem), 200)}") from problem
    except msgspec.MsgspecError as problem:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = clean(said[-1], 200) if said else f"exit code {done.returncode}"
        raise Refused(f"{program} does not tell its options: {why}") from problem
