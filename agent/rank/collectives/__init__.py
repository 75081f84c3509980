"""Timing of collectives.

timing      by the hooks of torch's process groups
wrapper     where torch has no such hooks
backends    how many collectives a backend does at a time, and whose clock tells
waits       how long the main thread waits
"""
