"""Steps in flight, and the consequences of the loss of an island for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pathways.runtime.control.gang import GangView
from pathways.runtime.control.records.errors import Failure, HostError
from pathways.runtime.control.records.step import Step

_MIN_DROPPED = 16
"""Number of steps, at least, that are checked together whether they are settled."""


class IssuedSteps:
    """Steps of a cluster that were issued and are not done.

    A step is either refused, or registered when its island is lost. Otherwise its waiters would hang for
    ever.

    Args:
      has_multi_host_islands: whether any island has several hosts, so that steps may be spoiled.

    Attributes:
      has_multi_host_islands: see above. It may become true later: no step before can be spoiled.
    """

    def __init__(self, has_multi_host_islands: bool) -> None:
        self.has_multi_host_islands = has_multi_host_islands
        self._steps: dict[int, Step] = {}
        # Steps that may still be spoiled, in their order, among settled ones that are not dropped yet.
        self._unsettled: list[Step] = []
        self._unsettled_count = 0
        # The last step of each host.
        self._last: dict[int, Step] = {}

    def issue(self, step: Step, gangs: Sequence[GangView], producers: Iterable[Step | None]) -> None:
        """Notes a step that is about to be sent to its hosts; twice changes nothing.

        Args:
          producers: the steps that computed its arguments.

        Raises:
          HostError: an island is lost or leaves, or an argument of the step is spoiled.
        """
        if step.number in self._steps or not step.pending_hosts:
            return
        try:
            for gang in gangs:
                if gang.problem is not None:
                    gang.check_open()
            step.read(producers)
            if self.has_multi_host_islands:
                self._follow(step, producers)
        except HostError as error:
            # Ctrl-C may have ended the first try after the step was in a window, which would wait for it.
            for host in step.hosts:
                step.lose(host, error.record())
            raise
        for gang in gangs:
            gang.window.add(step)
        # Last: a retry after Ctrl-C repeats all of the above until the step is registered.
        self._steps[step.number] = step

    def get(self, number: int) -> Step | None:
        """Returns a step that is not done."""
        return self._steps.get(number)

    def end(self, step: Step) -> None:
        """Notes that all hosts are done with a step."""
        self._steps.pop(step.number, None)

    def unfinished(self) -> list[Step]:
        """Returns the steps that are not done, in the order in which they were issued."""
        return [step for step in [*self._steps.values()] if not step.is_done()]

    def of(self, gang: GangView) -> list[Step]:
        """Returns the steps of a gang that are not done; other gangs may need it for theirs."""
        return gang.window.unfinished()

    def cut(self, hosts: tuple[int, int], failure: Failure) -> None:
        """Notes that two hosts do not reach each other: their results of common steps are errors from now on,
        though they are not done."""
        for step in self.unfinished():
            # Hosts do not exchange values in calls.
            if step.hosts.issuperset(hosts) and not step.is_unordered:
                step.cut(hosts, failure)

    def lose(self, gang: GangView, failure: Failure) -> list[Step]:
        """Notes that an island is lost; returns the steps of its hosts that were not done."""
        if gang.is_multi_host:
            self._spoil(gang, failure)
        steps = self.of(gang)
        for step in steps:
            for host in step.hosts.intersection(gang.hosts):
                if step.lose(host, failure):
                    self.end(step)
        return steps

    def _follow(self, step: Step, producers: Iterable[Step | None]) -> None:
        """Notes the steps in flight on a step's hosts: their results, which it may read, may be spoiled."""
        for producer in producers:
            if producer is not None:
                producer.check_spoiled()
        last = {self._last[host] for host in step.hosts if host in self._last}
        # Else Ctrl-C came below, and the step follows them already.
        if step not in last:
            # These follow all others.
            step.follow(earlier for earlier in last if not earlier.is_settled())
        # An unordered call does not affect the results of steps.
        if step.is_unordered:
            return
        self._last.update(dict.fromkeys(step.hosts, step))
        if not self._unsettled or self._unsettled[-1] is not step:
            self._unsettled.append(step)
        # Not at each step: it takes time for each of them.
        if len(self._unsettled) > 2 * self._unsettled_count + _MIN_DROPPED:
            self._unsettled = [earlier for earlier in self._unsettled if not earlier.is_settled()]
            self._unsettled_count = len(self._unsettled)

    def _spoil(self, gang: GangView, failure: Failure) -> None:
        """Spoils all steps that may have read values of an island whose results are unknown."""
        hosts = set(gang.hosts)
        for step in self._unsettled:
            if not step.is_settled() and not hosts.isdisjoint(step.hosts):
                step.spoil(failure)
                hosts |= step.hosts

    def __len__(self) -> int:
        return len(self._steps)
