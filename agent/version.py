"""The version of ddptop, as installed."""

from __future__ import annotations

from importlib import metadata

try:
    VERSION = metadata.version("ddptop")
except metadata.PackageNotFoundError:  # run from a source tree that is not installed
    VERSION = "0+unknown"
