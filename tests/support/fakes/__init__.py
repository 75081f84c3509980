"""Ranks and observers that live in the process of a test; see `tests/support`."""
