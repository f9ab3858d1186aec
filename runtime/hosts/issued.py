"""The steps that were issued and are not done, and what is lost with an island of theirs."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable, Sequence

from pathways.runtime.hosts.host import Gang, HostProcess
from pathways.runtime.hosts.step import Step


class IssuedSteps:
    """The steps of a cluster.

    That a step begins and that an island ends are one thing after the other: a step is either refused, or
    known when it has to be lost. Else nobody would ever answer for the island.

    Args:
      is_several: whether any island has several hosts, so that steps may be spoiled.
    """

    def __init__(self, is_several: bool) -> None:
        self._is_several = is_several
        self._steps: dict[int, Step] = {}
        self._running: collections.deque[Step] = collections.deque()
        # Those that may still be spoiled, in their order.
        self._unsettled: list[Step] = []
        self._lock = threading.Lock()

    def forget_threads(self) -> None:
        """Makes locks anew in a forked process, where nobody would release them."""
        self._lock = threading.Lock()
        for step in self._steps.values():
            step.forget_threads()

    def begin(self, step: Step, gangs: Iterable[Gang], made: Iterable[Step | None]) -> None:
        """Notes a step that is about to be sent to its hosts; nothing is wrong when that is done twice.

        Args:
          step: the step.
          gangs: the islands that have a part of it.
          made: the steps that made what it takes.

        Raises:
          HostError: an island is lost or leaves, or what the step takes is spoiled.
        """
        with self._lock:
            if step.number in self._steps or step.is_done():
                return
            for gang in gangs:
                gang.check_open()
            step.read(made)
            if self._is_several:
                self._follow(step, made)
            self._steps[step.number] = step
            self._running.append(step)

    def get(self, number: int) -> Step | None:
        """A step that is not done."""
        return self._steps.get(number)

    def end(self, step: Step) -> None:
        """Notes that all hosts are done with a step."""
        self._steps.pop(step.number, None)

    def unfinished(self) -> list[Step]:
        """The steps that are not done, in the order in which they were issued."""
        return [step for step in [*self._steps.values()] if not step.is_done()]

    def make_room(self, most: int, wait: Callable[[Callable[[], bool]], None]) -> None:
        """Waits until fewer steps are on their way than may be; in one thread at a time."""
        while len(self._running) >= most:
            oldest = self._running[0]
            if not oldest.is_done():
                wait(oldest.is_done)
            self._running.popleft()

    def of(self, gang: Gang) -> list[Step]:
        """The steps that are not done and of which an island has a part; others may need it for theirs."""
        hosts = {host.index for host in gang.hosts}
        return [step for step in self.unfinished() if not hosts.isdisjoint(step.hosts)]

    def leave(self, gang: Gang, why: str) -> bool:
        """Has an island take no more steps; False when it does not already, or is lost."""
        with self._lock:
            if gang.error is not None or gang.leaving is not None:
                return False
            gang.leaving = why
            return True

    def lose(self, host: HostProcess, how: str) -> Sequence[Step] | None:
        """Notes that a host is gone, and with it its island.

        Args:
          host: the host.
          how: what became of it, as in `is lost: ...`.

        Returns:
          The steps that are not done; None when the island was lost before.
        """
        gang = host.gang
        with self._lock:
            if gang.error is not None:
                return None
            gang.lose(host, how)
            if gang.is_several:
                self._spoil(gang, f"{host} {how}")
            return [*self._steps.values()]

    def _follow(self, step: Step, made: Iterable[Step | None]) -> None:
        """Notes what may spoil a step: those that its hosts are at, whose results it may read."""
        for one in made:
            if one is not None:
                one.check_spoiled()
        # Without itself: Ctrl-C may have come between this and what is noted next.
        self._unsettled = [o for o in self._unsettled if o is not step and not o.is_settled()]
        step.follow(other for other in self._unsettled if not step.hosts.isdisjoint(other.hosts))
        self._unsettled.append(step)

    def _spoil(self, gang: Gang, error: str) -> None:
        """Spoils all steps that may have had something of an island of which nobody can say what it did."""
        hosts = {host.index for host in gang.hosts}
        for step in self._unsettled:
            if not step.is_settled() and not hosts.isdisjoint(step.hosts):
                step.spoil(error)
                hosts |= step.hosts
