"""Makes what README shows from the real program: the picture, the plain output, the key table.

    python tests/readme.py

launches `resnet` on four ranks, waits until it has something to show, and rewrites the
picture and the marked parts of README.md.  Needs the extra `test`.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path

from ddptop.agent.rundir import RunDir, find
from ddptop.tui.app import DdptopApp
from ddptop.tui.link import Link
from ddptop.tui.screens.help import key_table

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PICTURE = ROOT / ".github" / "panels.svg"
DDPTOP = (sys.executable, "-m", "ddptop.tui.cli")
PICTURE_STEP = 120
"""A step late enough for curves and early enough for the run to be still going."""


def fill(text: str, mark: str, content: str) -> str:
    """Replace what stands between the comments `mark: begin` and `mark: end`."""
    pattern = rf"(<!-- {mark}: begin -->\n).*?(<!-- {mark}: end -->)"
    return re.sub(pattern, lambda found: f"{found[1]}{content}\n{found[2]}", text, flags=re.DOTALL)


def keys() -> str:
    """Return the key table, from the bindings."""
    rows = (f"| {place} | `{key}` | {what} |" for place, key, what in key_table(DdptopApp))
    return "\n".join(["| where | key | |", "|---|---|---|", *rows])


def plain() -> str:
    """Return the output of a short run without a terminal."""
    command = [*DDPTOP, "launch", "--world", "2", "--name", "simplenet", "simplenet", "--", "--steps", "600"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True)
    return f"```\n$ ddptop launch --world 2 simplenet -- --steps 600 | cat\n{done.stdout.strip()}\n```"


async def picture(directory: RunDir) -> str:
    """Return a picture of the dashboard as it is at `PICTURE_STEP`."""
    link = Link(directory, "readme")
    app = DdptopApp(link)
    async with app.run_test(size=(120, 40)) as pilot:
        while (link.frame(time.time()).step or 0) < PICTURE_STEP:
            await pilot.pause(0.5)
        await pilot.pause(1.5)
        return app.export_screenshot(title="ddptop")


def main() -> None:
    """Rewrite the picture and README."""
    name = subprocess.run(
        [*DDPTOP, "launch", "--world", "4", "--detach", "resnet"], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(asyncio.run(picture(find(name))))
    finally:
        subprocess.run([*DDPTOP, "kill", name], check=False)
    text = fill(README.read_text(), "keys", keys())
    README.write_text(fill(text, "plain", plain()))


if __name__ == "__main__":
    main()
