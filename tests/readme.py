"""Makes what README shows from the real program: the pictures, the plain output, the key table.

    python tests/readme.py

launches `resnet` on four ranks, one of them made slow, waits until it has something to show, and
rewrites the pictures and the marked parts of README.md.  Needs the extra `test`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from ddptop.tui.app.app import DdptopApp
from ddptop.tui.app.keymap import key_table

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PICTURES = ROOT / ".github"
VIEWS = {"panels": "120x40", "heatmap": "120x40", "timeline": "120x40"}
"""Views that README shows, each with the size of its picture."""
DDPTOP = (sys.executable, "-m", "ddptop.tui.cli.main")
SLOW = "rank=2,phase=backward,ms=250,from=50"
"""What the pictures are to show; every screen says that it was put in."""
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


def reach(run: str, step: int) -> None:
    """Wait until every rank of the run has completed that step."""
    watch = subprocess.Popen([*DDPTOP, "watch", run, "--json", "--interval", "0.5"], stdout=subprocess.PIPE, text=True)
    with watch:
        assert watch.stdout is not None
        for line in watch.stdout:
            if (json.loads(line)["step"] or 0) >= step:
                break
        watch.terminate()


def pictures(run: str) -> None:
    """Write a picture of each view, of the same run one after the other."""
    PICTURES.mkdir(exist_ok=True)
    for view, size in VIEWS.items():
        file = str(PICTURES / f"{view}.svg")
        subprocess.run([*DDPTOP, "attach", run, "--view", view, "--screenshot", file, "--size", size], check=True)


def main() -> None:
    """Rewrite the pictures and README."""
    name = subprocess.run(
        [*DDPTOP, "launch", "--world", "4", "--inject", SLOW, "--detach", "resnet"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    try:
        reach(name, PICTURE_STEP)
        pictures(name)
    finally:
        subprocess.run([*DDPTOP, "kill", name], check=False)
    text = fill(README.read_text(), "keys", keys())
    README.write_text(fill(text, "plain", plain()))


if __name__ == "__main__":
    main()
