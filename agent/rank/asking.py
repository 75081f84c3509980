"""The answers of a rank that is asked for something within steps ahead of it, where there is nothing to give."""

from __future__ import annotations


class Passed(Exception):
    """The rank has made the first of these steps before it was asked."""


class Unanswered(Exception):
    """There is no answer, and none will come; the text is the reason."""
