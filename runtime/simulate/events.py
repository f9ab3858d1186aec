"""Simulated time, and links between what is simulated in it.

Whatever happens is a callback that has a time. There is no thread and no waiting: time goes on to the next
callback at once, so that hours take seconds, and what happens is the same each time. All chance comes from
generators that the caller seeds; one for each link lets the others be as they were when one sends less.

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
    """A clock, and what is to happen at which time.

    Attributes:
      now: seconds since the beginning.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        # What has one time happens in the order in which it was said.
        self._numbers = itertools.count()

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Has something happen at a time, or now if that is over."""
        heapq.heappush(self._heap, (max(time, self.now), next(self._numbers), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Has something happen in some seconds."""
        self.at(self.now + seconds, act)

    def step(self) -> bool:
        """Goes on to what happens next, and does it; False when nothing does."""
        if not self._heap:
            return False
        self.now, _, act = heapq.heappop(self._heap)
        act()
        return True

    def run_until(self, time: float) -> None:
        """Does all that happens until a time, which it is then."""
        while self._heap and self._heap[0][0] <= time:
            self.step()
        self.now = max(self.now, time)


@dataclasses.dataclass(frozen=True, slots=True)
class LinkQuality:
    """What a link does to messages.

    Attributes:
      least: the fewest seconds that one takes.
      most: the most seconds.
      loss: how likely one is lost.
      twice: how likely one comes twice.
      is_ordered: whether they come in the order in which they were sent.
    """

    least: float = 0.001
    most: float = 0.01
    loss: float = 0.0
    twice: float = 0.0
    is_ordered: bool = True


class SimulatedLink[T]:
    """Takes messages one way.

    Args:
      time: when they come.
      chance: where its luck is from.
      deliver: takes what comes.
      quality: what it does to messages; may be replaced at any time.
    """

    def __init__(
        self,
        time: SimulatedTime,
        chance: random.Random,
        deliver: Callable[[T], None],
        quality: LinkQuality = LinkQuality(),
    ) -> None:
        self.quality = quality
        self._time = time
        self._chance = chance
        self._deliver = deliver
        self._last = 0.0
        self._kept: list[T] | None = None
        self._is_closed = False

    def send(self, message: T) -> None:
        """Sends a message. While the link is cut, it is kept without an error, and sent again later."""
        if self._is_closed:
            return
        if self._kept is not None:
            self._kept.append(message)
            return
        quality, chance = self.quality, self._chance
        if quality.loss and chance.random() < quality.loss:
            return
        self._take(message)
        if quality.twice and chance.random() < quality.twice:
            self._take(message)

    def cut(self) -> None:
        """Lets nothing through any more; what is under way still comes."""
        if self._kept is None:
            self._kept = []

    def heal(self) -> None:
        """Lets through what was kept, and what is sent from now on."""
        kept, self._kept = self._kept, None
        for message in kept or ():
            self.send(message)

    def is_cut(self) -> bool:
        """Whether nothing gets through."""
        return self._kept is not None

    def close(self) -> None:
        """Takes nothing more, and forgets what was kept; what is under way still comes."""
        self._is_closed = True
        self._kept = None

    def _take(self, message: T) -> None:
        quality = self.quality
        arrival = self._time.now + quality.least + (quality.most - quality.least) * self._chance.random()
        if quality.is_ordered:
            self._last = arrival = max(arrival, self._last)
        self._time.at(arrival, lambda: self._deliver(message))
