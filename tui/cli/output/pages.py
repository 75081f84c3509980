"""Finds the pages of the manual by their topics, and shows one: on a terminal through the user's pager.

Rich is imported when a page is shown, not before: the command line imports this module for a wrong topic too.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import signal
import subprocess
import sys
from importlib.resources import files
from typing import TYPE_CHECKING, ClassVar, Final

from ddptop.tui import cli

if TYPE_CHECKING:
    from importlib.abc import Traversable

_ENDING: Final = ".md"
_WIDEST: Final = 100
"""Cells of the longest line: text that is wider is hard to read."""
_LINK: Final = re.compile(r"\[([^\]]+)\]\((?:([a-z-]+)\.md)?(?:#[^)]*)?\)|<(https:[^>]+)>")
_HEADING: Final = re.compile(r"^#+ (.*)$", re.MULTILINE)
_NO_SUCH_COMMAND: Final = 127
"""Exit code of a shell that has not found the pager."""


def topics() -> dict[str, str]:
    """Return what each page is about, in one line, by its topic in alphabetical order.

    That line is the title of the page without the topic, which it begins with.
    """
    names = sorted(each.name for each in _manual().iterdir() if each.name.endswith(_ENDING))
    found = [name.removesuffix(_ENDING) for name in names]
    return {topic: read(topic).partition("\n")[0].partition(": ")[2] for topic in found}


def read(topic: str) -> str:
    """Return the Markdown text of a page that there is."""
    return _manual().joinpath(topic + _ENDING).read_text(encoding="utf-8")


def _manual() -> Traversable:
    return files(cli).joinpath("manual")


def nearest(word: str) -> str | None:
    """Return the topic that is probably meant: one that is spelt alike, else the page that has the word in a heading.

    Of several such pages it is the one that says the word most often.
    """
    pages = {topic: read(topic) for topic in topics()}
    alike = difflib.get_close_matches(word.lower(), pages, n=1)
    if alike:
        return alike[0]
    whole = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)
    about = {topic: text for topic, text in pages.items() if any(map(whole.search, _HEADING.findall(text)))}
    return max(about, key=lambda topic: len(whole.findall(about[topic])), default=None)


def show(topic: str) -> None:
    """Print a page: paged on a terminal, as plain text anywhere else."""
    text = rendered(read(topic))
    if not sys.stdout.isatty() or not _paged(text):
        sys.stdout.write(text)


def rendered(text: str) -> str:
    """Return a page as lines, with the escape sequences of this terminal where there is one."""
    from rich.console import Console, JustifyMethod
    from rich.markdown import Markdown, TableDataElement
    from rich.theme import Theme

    class Cell(TableDataElement):
        """A cell of a table in which a word that is wider goes on below; Rich's own cuts it."""

        def __init__(self, justify: JustifyMethod) -> None:
            super().__init__(justify)
            self.content.overflow = "fold"

    class Page(Markdown):
        elements: ClassVar = {**Markdown.elements, "td_open": Cell}

    # Rich's own style for code is a black ground, which a light terminal has not.
    console = Console(theme=Theme({"markdown.code": "bold cyan"}))
    page = Page(_LINK.sub(_named, text), code_theme="ansi_dark", hyperlinks=False)
    with console.capture() as captured:
        console.print(page, width=min(console.width, _WIDEST))
    return "\n".join(each.rstrip() for each in captured.get().split("\n"))


def _named(link: re.Match[str]) -> str:
    """Return what a terminal shows of a link: the command for another page, the text of one in this page, an URL."""
    text, page, url = link.groups()
    if page is None:
        return url or text
    command = f"`ddptop help {page}`"
    return command if text == page else f"{text} ({command})"


def _paged(text: str) -> bool:
    """Show text in the pager, as git does; say whether there is one."""
    command = os.environ.get("PAGER", "less -R")
    if not command or os.environ.get("TERM", "dumb") == "dumb":
        return False
    # Without a choice of the user's: end where all is in sight, keep colors, leave the text on the screen.
    environment = {"LESS": "FRX", **os.environ}
    pager = subprocess.Popen(
        command,
        shell=True,
        env=environment,
        stdin=subprocess.PIPE,
        text=True,
        encoding=sys.stdout.encoding,
        errors=sys.stdout.errors,
    )
    # Ctrl-C is the pager's key, which cancels a search there; set here, so that the pager does not inherit it.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # Who has read enough closes the pager.
        with contextlib.suppress(BrokenPipeError):
            pager.communicate(text)
    finally:
        signal.signal(signal.SIGINT, before)
    return pager.returncode != _NO_SUCH_COMMAND
