"""A process that is kept for a whole session of tests, and forks what they ask for."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path


class Kept:
    """Runs a script that answers each line of its input, a request as JSON, with a line that holds a pid.

    It is started with the first request, and ends with its input, so that it stays with nobody.
    """

    def __init__(self, script: Path) -> None:
        """Start nothing yet."""
        self._script = script
        self._process: subprocess.Popen[str] | None = None
        self._one_asks = threading.Lock()

    def start(self, request: Mapping[str, object]) -> int:
        """Return the pid of the process that has been forked."""
        with self._one_asks:
            if self._process is None:
                # Runs are told by what stands in the environment of their processes.
                environment = {name: value for name, value in os.environ.items() if not name.startswith("DDPTOP")}
                self._process = subprocess.Popen(
                    [sys.executable, str(self._script)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
                )  # fmt: skip
                atexit.register(self._process.communicate)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())
