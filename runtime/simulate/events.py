"""Simulated time, and simulated links between processes.

Every event is a callback with a time. There are no threads and no waiting: time advances to the next event at
once, so that hours take seconds, and each run is the same. All randomness comes from generators that the
caller seeds; with one generator for each link, a change on one link does not change the others.

    time = SimulatedTime()
    link = SimulatedLink(time, random.Random(7), print, LinkQuality(0.1, 0.3))
    link.send("hello")
    time.run_until(1.0)
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random
from collections.abc import Callable


class SimulatedTime:
    """Simulated clock, with a queue of callbacks.

    Attributes:
      now: the seconds since the start.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        # Callbacks of one time run in the order in which they were scheduled.
        self._numbers = itertools.count()

    def at(self, time: float, callback: Callable[[], None]) -> None:
        """Schedules a callback at a time, or now if that has passed."""
        heapq.heappush(self._heap, (max(time, self.now), next(self._numbers), callback))

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Schedules a callback after some seconds."""
        self.at(self.now + seconds, callback)

    def step(self) -> bool:
        """Advances to the next callback and calls it; returns False if there is none."""
        if not self._heap:
            return False
        self.now, _, callback = heapq.heappop(self._heap)
        callback()
        return True

    def run_until(self, time: float) -> None:
        """Calls all callbacks up to a time, and advances to it."""
        while self._heap and self._heap[0][0] <= time:
            self.step()
        self.now = max(self.now, time)


@dataclasses.dataclass(frozen=True, slots=True)
class LinkQuality:
    """Delays and faults of a link.

    Attributes:
      min_delay: the minimum of seconds that a message takes.
      max_delay: the maximum of seconds.
      loss: the probability that a message is lost.
      duplication: the probability that a message arrives twice.
      is_ordered: whether messages arrive in the order in which they were sent.
    """

    min_delay: float = 0.001
    max_delay: float = 0.01
    loss: float = 0.0
    duplication: float = 0.0
    is_ordered: bool = True


class SimulatedLink[T]:
    """Link that carries messages one way.

    Args:
      time: the clock of arrivals.
      generator: the generator of its delays and faults.
      deliver: called with each message that arrives.
      quality: its delays and faults; may be replaced at any time.
    """

    def __init__(
        self,
        time: SimulatedTime,
        generator: random.Random,
        deliver: Callable[[T], None],
        quality: LinkQuality = LinkQuality(),
    ) -> None:
        self.quality = quality
        self._time = time
        self._random = generator
        self._deliver = deliver
        self._last = 0.0
        # Messages that are sent while the link is cut; None while it is not.
        self._buffered: list[T] | None = None
        self._is_closed = False

    def send(self, message: T) -> None:
        """Sends a message. While the link is cut, it is buffered without an error, as TCP does."""
        if self._is_closed:
            return
        if self._buffered is not None:
            self._buffered.append(message)
            return
        quality, generator = self.quality, self._random
        if quality.loss and generator.random() < quality.loss:
            return
        self._schedule(message)
        if quality.duplication and generator.random() < quality.duplication:
            self._schedule(message)

    def cut(self) -> None:
        """Cuts the link; messages in flight still arrive."""
        if self._buffered is None:
            self._buffered = []

    def heal(self) -> None:
        """Repairs a link that was cut, and sends the buffered messages."""
        buffered, self._buffered = self._buffered, None
        for message in buffered or ():
            self.send(message)

    def is_cut(self) -> bool:
        """Returns whether the link is cut."""
        return self._buffered is not None

    def close(self) -> None:
        """Drops buffered and all further messages; messages in flight still arrive."""
        self._is_closed = True
        self._buffered = None

    def _schedule(self, message: T) -> None:
        quality = self.quality
        spread = quality.max_delay - quality.min_delay
        arrival = self._time.now + quality.min_delay + spread * self._random.random()
        if quality.is_ordered:
            self._last = arrival = max(arrival, self._last)
        self._time.at(arrival, lambda: self._deliver(message))
