"""What is built is what is here."""

from __future__ import annotations

import msgspec
import readme


def test_every_file_is_in_the_wheel() -> None:
    """Modules are found in the folders of the packages; any other file is installed only where package data name it."""
    settings = msgspec.toml.decode((readme.ROOT / "pyproject.toml").read_bytes())["tool"]["setuptools"]
    # A list would be taken in place of what is there.
    assert "packages" not in settings
    folders = settings["package-dir"]
    assert folders == {f"ddptop.{top}": top for top in ("agent", "trainers", "tui")}
    named = {
        path
        for package, patterns in settings["package-data"].items()
        for pattern in patterns
        for path in (readme.ROOT / package.removeprefix("ddptop.").replace(".", "/")).glob(pattern)
    }
    there = {path for top in folders.values() for path in (readme.ROOT / top).rglob("*") if path.is_file()}
    assert {path for path in there if path.suffix not in (".py", ".pyc")} == named
