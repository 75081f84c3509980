"""A process of our own loads quickly, and is a Python like any other all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ddptop.agent.startup import starter

CYCLES = """
import weakref

class Cycle:
    pass

alive = weakref.WeakSet()
most = 0
for _ in range(200_000):
    cycle = Cycle()
    cycle.itself = cycle
    alive.add(cycle)
    most = max(most, len(alive))
print(most)
"""


def test_cyclic_garbage_is_collected_while_it_runs(tmp_path: Path) -> None:
    """Of 200,000 objects that refer to themselves a small part exists at any moment."""
    (tmp_path / "cycles.py").write_text(CYCLES)
    line = [sys.executable, str(Path(starter.__file__).resolve()), "cycles"]
    done = subprocess.run(line, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}, check=True)
    assert int(done.stdout) < 30_000
