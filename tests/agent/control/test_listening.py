"""Who listens to many holds nobody up."""

from __future__ import annotations

import zmq

from ddptop.agent.control.listening import Listener


def test_what_is_told_of_connections_waits_without_a_bound() -> None:
    """At a bound the thread of ZeroMQ would stand still, and with it all sockets of the context."""
    with zmq.Context() as context:
        listener = Listener(context, [b""])
        try:
            assert listener._monitor.rcvhwm == 0
        finally:
            listener.close()
