"""A profile of two ranks by the real torch.profiler, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.values import traces


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "0001"
    traces.profile(folder)
    return folder


@pytest.fixture
def profile(recorded: Path, tmp_path: Path) -> Path:
    """The folder as an observer leaves it, to be changed."""
    return Path(shutil.copytree(recorded, tmp_path / "0001"))
