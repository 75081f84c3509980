"""What onlookers are told when they come: the newest of each rank, the state of the run, its verdicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ddptop.agent import wire
from ddptop.agent.observer.relay.door.door import Door
from ddptop.agent.observer.relay.door.newest import Newest
from ddptop.agent.observer.relay.frames import Frames


class Greeting:
    """Greets new subscriptions; for use from one thread."""

    def __init__(
        self,
        door: Door,
        newest: Newest,
        period_s: float,
        *,
        take_in: Callable[[], None],
        send_state: Callable[[], None],
        send_verdicts: Callable[[], bool],
        send_hosts: Callable[[], None] = lambda: None,
        pass_up: Callable[[set[bytes]], bool] = lambda topics: False,
        frames: Frames,
    ) -> None:
        """Greet nobody yet.

        Args:
            door: through which they come, and through which they are told.
            newest: the newest of each rank.
            period_s: seconds between two greetings.
            take_in: takes in what the ranks have published.
            send_state: publishes the state of the run, where it is known.
            send_verdicts: publishes the verdicts; returns False where they are not known yet.
            send_hosts: publishes what is known of the hosts, where the run is on several.
            pass_up: tells the head, on another host, of the new ones of onlookers here, and of those that are no more;
                returns False where they are to be greeted here.
            frames: publishes the frames of the run.
        """
        self._door = door
        self._newest = newest
        self._period_s = period_s
        self._take_in = take_in
        self._send_state = send_state
        self._send_verdicts = send_verdicts
        self._send_hosts = send_hosts
        self._pass_up = pass_up
        self._frames = frames
        self._waiting: set[bytes] = set()
        """New subscriptions that were not greeted yet."""
        self._due = 0.0

    def greet(self, topics: Iterable[bytes]) -> None:
        """Greet those soon who subscribe to these topics: onlookers here anew, or the observer of another host."""
        self._waiting |= set(topics)

    @property
    def pause_s(self) -> float | None:
        """Seconds until somebody has to be greeted; None where nobody waits."""
        return self._due - time.monotonic() if self._waiting else None

    def turn(self) -> None:
        """Greet those who have come since the last greeting, where that is due."""
        new = self._door.read_subscriptions()
        if not self._pass_up(new):
            self._waiting |= new
        now = time.monotonic()
        # Of many newcomers at the same moment each needs the same.
        if not self._waiting or now < self._due:
            return
        self._due = now + self._period_s
        new, self._waiting = self._waiting, set()
        self._take_in()
        self._frames.greet(new)
        # The verdicts come last: who has them after the ranks knows that it has been told of all ranks.
        if any(wire.TOPIC_RANKS.startswith(topic) for topic in new):
            for payload in self._newest.all(time.time_ns()):
                self._door.publish(wire.TOPIC_RANKS, payload)
        if any(wire.TOPIC_RUN.startswith(topic) for topic in new):
            self._send_state()
        if any(wire.TOPIC_HOSTS.startswith(topic) for topic in new):
            self._send_hosts()
        if any(wire.TOPIC_VERDICTS.startswith(topic) for topic in new) and not self._send_verdicts():
            self._waiting.add(wire.TOPIC_VERDICTS)
