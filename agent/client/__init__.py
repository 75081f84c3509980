"""Whoever looks on at runs, or acts on them.

takeover  the start of another observer, where a run has none
"""
