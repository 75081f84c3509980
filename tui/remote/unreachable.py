"""A run on another machine that cannot be reached, or not any more."""

from __future__ import annotations

from ddptop.agent.text import Complaint


class Unreachable(Complaint):
    """Why a run on another machine cannot be looked at; one line with the machine and what to do."""
