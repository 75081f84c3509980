"""Where the user's settings are: the dashboard reads them, and the observer those that it judges by."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ddptop.agent.text import Complaint

VARIABLE: Final = "DDPTOP_CONFIG"
"""Environment variable that names another file."""


class SettingsError(Complaint):
    """Settings that cannot be used; the text is one line with the file, the place in it and what to do."""


def path() -> Path:
    """Return where the settings are, whether there is such a file or not.

    Raises:
        SettingsError: nobody knows the home of this user, which the variable names.
    """
    named = os.environ.get(VARIABLE)
    if named:
        try:
            return Path(named).expanduser()
        except RuntimeError:
            raise SettingsError(f"{VARIABLE} names {named!r}, and there is no such home; give its whole path") from None
    home = os.environ.get("XDG_CONFIG_HOME")
    # The specification of the XDG base directories has relative ones ignored.
    if home and Path(home).is_absolute():
        return Path(home) / "ddptop" / "config.toml"
    try:
        base = Path.home()
    except RuntimeError:
        # An account without a name, in a container without HOME; most containers set it to this for such a user.
        base = Path("/")
    return base / ".config" / "ddptop" / "config.toml"
