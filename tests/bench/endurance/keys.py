"""Keys in bursts against a dashboard of several runs, by as many seeds as one likes.

    python tests/bench/endurance/keys.py [--seeds 200] [--first 0] [--runs 2]

Exit code 1 where a seed ends the dashboard; each is printed with its error.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.screens.bursts import press_bursts

from ddptop.tui.screens.dialogs import dialog


def main() -> None:
    """Press the bursts of each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--runs", type=int, default=2)
    arguments = parser.parse_args()
    failed = 0
    # Dialogs take an Enter at once.
    dialog.SETTLE_S = 0.0  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            try:
                failure = asyncio.run(press_bursts(seed, arguments.runs)).failure
            except Exception as error:  # What ends the dashboard is raised again by its pilot.
                failure = error
            if failure is not None:
                failed += 1
                print(f"seed {seed}:", *traceback.format_exception(failure), flush=True)
    print(f"{failed} of {arguments.seeds} seeds ended the dashboard")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
