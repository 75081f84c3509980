"""The sockets of a run as the system counts them, in /proc/net/unix: who listens, and how many are connected.

python tests/bench/observer/sockets.py RUN
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from typing import Final

from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDir

LISTENS: Final = 1 << 16
"""The flag of a socket that accepts connections (`__SO_ACCEPTCON`)."""
CONNECTED: Final = "03"


def _rows(directory: RunDir) -> list[tuple[str, int, str]]:
    """Return name, flags and state of each socket that is bound in the directory, or was accepted by one that is."""
    found = []
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        columns = line.split(maxsplit=7)
        if len(columns) == 8 and columns[7].startswith(f"{directory.path}/"):
            found.append((Path(columns[7]).name, int(columns[3], 16), columns[5]))
    return found


def listening(directory: RunDir) -> int:
    """Return how many sockets listen for commands to the observer: one for each observer."""
    return sum(name == "observer.cmd" and bool(flags & LISTENS) for name, flags, _ in _rows(directory))


def connections(directory: RunDir) -> collections.Counter[str]:
    """Return by name of a socket the number of others that are connected to it."""
    return collections.Counter(name for name, _, state in _rows(directory) if state == CONNECTED)


def main() -> None:
    """Print the connections of a run."""
    for name, count in sorted(connections(rundir.find(sys.argv[1])).items()):
        print(f"{name:<16} {count}")


if __name__ == "__main__":
    main()
