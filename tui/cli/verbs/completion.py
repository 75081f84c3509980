"""`completion`: the script that lets a shell complete the command line."""

from __future__ import annotations

import argparse
from typing import Final

from ddptop.tui.cli.verbs.options import Verbs, add_verb

LINES: Final = {
    "bash": ("~/.bashrc", 'eval "$(ddptop completion bash)"'),
    "zsh": ("~/.zshrc", 'eval "$(ddptop completion zsh)"'),
    "fish": ("config.fish", "ddptop completion fish | source"),
}
"""By shell, its startup file and the line that belongs there."""

_EXAMPLES: Final = "\n".join(
    f"{f'ddptop completion {shell}':<22}  # in {file}: {line}" for shell, (file, line) in LINES.items()
)


def add(verbs: Verbs) -> None:
    completion = add_verb(
        verbs, "completion", "print the script that completes ddptop in a shell",
        "Prints the script with which tab completes verbs, options, runs, programs, scripts and modules. "
        "A line in the startup file of the shell reads it; in zsh after compinit.",
        _EXAMPLES,
        {0: "printed", 2: "no such shell"},
    )  # fmt: skip
    completion.add_argument("shell", metavar="SHELL", choices=tuple(LINES), help=f"one of {', '.join(LINES)}")
    completion.set_defaults(carry=_print)


def _print(options: argparse.Namespace) -> int:
    from ddptop.tui.cli import completion

    print(completion.script(options.shell))
    return 0
