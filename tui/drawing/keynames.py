"""The names of keys in the texts of the dashboard, by the id of the action, as this user has set them.

A text takes them from here, because the user may have moved a key; `enter` in a list is the widget
library's own, cannot be moved, and is named as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from textual.dom import DOMNode


def keys_of(node: DOMNode) -> Mapping[str, str]:
    """Return, by the id of an action, the first of its keys as the user reads it."""
    names: Mapping[str, str] = node.app.key_names  # type: ignore[attr-defined]  # of the one app there is
    return names
