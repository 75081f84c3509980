"""What is built is what is here."""

from __future__ import annotations

import re

import readme


def test_every_package_is_in_the_wheel() -> None:
    """A folder with an `__init__.py` that the list of packages lacks would be missing where ddptop is installed."""
    here = {
        "ddptop." + ".".join(path.parent.relative_to(readme.ROOT).parts)
        for top in ("agent", "trainers", "tui")
        for path in (readme.ROOT / top).rglob("__init__.py")
    }
    text = (readme.ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^packages = \[$(.*?)^\]$", text, re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert set(re.findall(r'"(ddptop\.[\w.]+)"', listed.group(1))) == here
