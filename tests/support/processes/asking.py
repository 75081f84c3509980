"""Command lines of ddptop that take a tenth of the time of the processor: forks of a process that is kept for them."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

WARM: Final = Path(__file__).with_name("warm.py")


class Warm:
    """The kept process; it ends with its input, so that it stays with nobody."""

    def __init__(self, start: Callable[[], subprocess.Popen[str]]) -> None:
        """Start nothing yet; `start` starts `WARM`, with pipes for its input and its output."""
        self._start = start
        self.process: subprocess.Popen[str] | None = None
        self.one_asks = threading.Lock()
        """Held while somebody asks."""

    def ask(self, arguments: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a command line to its end; `more` are those of a request.

        Raises:
            subprocess.TimeoutExpired: it took longer, and was killed.
        """
        with self.one_asks:
            return self.answer(arguments, **more)

    def answer(self, arguments: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
        """Do the same for whoever holds `one_asks`."""
        process = self.process
        if process is None or process.poll() is not None:
            process = self.process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"arguments": list(arguments), **more}) + "\n")
        process.stdin.flush()
        code, out, err = json.loads(process.stdout.readline())
        if code is None:
            raise subprocess.TimeoutExpired(list(arguments), more["timeout"], out, err)
        return subprocess.CompletedProcess(list(arguments), code, out, err)
