"""`completion`: the script that lets a shell complete the command line."""

from __future__ import annotations

import argparse
from typing import Final

from ddptop.tui.cli.verbs.options import Verbs

LINES: Final = {
    "bash": ("~/.bashrc", 'eval "$(ddptop completion bash)"'),
    "zsh": ("~/.zshrc", 'autoload -U compinit && compinit && eval "$(ddptop completion zsh)"'),
    "fish": ("~/.config/fish/config.fish", "ddptop completion fish | source"),
}
"""By shell, its startup file and the line that belongs there."""

_WIDTH: Final = max(len(file) for file, _ in LINES.values())
_EPILOG: Final = "\n".join(
    [
        "Put this line into the startup file of your shell:",
        *(f"  {file:<{_WIDTH}}  {line}" for file, line in LINES.values()),
        "",
        "Then tab completes verbs, options, runs, programs, scripts and modules.",
    ]
)


def add(verbs: Verbs) -> None:
    completion = verbs.add_parser(
        "completion",
        help="print the script that completes ddptop in a shell",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    completion.add_argument("shell", metavar="SHELL", choices=tuple(LINES), help=f"one of {', '.join(LINES)}")
    completion.set_defaults(carry=_print)


def _print(options: argparse.Namespace) -> int:
    from ddptop.tui.cli import completion

    print(completion.script(options.shell))
    return 0
