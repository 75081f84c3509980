"""Timing of collectives.

timing      by the hooks of torch's process groups
wrapper     where torch has no such hooks
backends    the number of workers of a backend, and the clock of its collectives
waits       the time for which the main thread waits
"""
