"""The version stands in two places, which agree."""

from __future__ import annotations

from importlib import metadata

from ddptop.agent.startup.version import VERSION


def test_the_version_is_the_one_that_is_installed() -> None:
    """What a rank and `ddptop --version` tell is the version that pip knows."""
    assert metadata.version("ddptop") == VERSION
