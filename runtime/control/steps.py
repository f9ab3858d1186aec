"""The steps that were issued and are not done, and what is lost with an island of theirs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pathways.runtime.control.gang import GangView
from pathways.runtime.control.records.errors import Failure, HostError
from pathways.runtime.control.records.step import Step


class IssuedSteps:
    """The steps of a cluster.

    A step is either refused, or known when it has to be lost. Else no answer would ever come for the island.

    Args:
      is_several: whether any island has several hosts, so that steps may be spoiled.
    """

    def __init__(self, is_several: bool) -> None:
        self._is_several = is_several
        self._steps: dict[int, Step] = {}
        # Those that may still be spoiled, in their order.
        self._unsettled: list[Step] = []

    def issue(self, step: Step, gangs: Sequence[GangView], made: Iterable[Step | None]) -> None:
        """Notes a step that is about to be sent to its hosts; twice changes nothing.

        Args:
          step: the step.
          gangs: the islands that have a part of it.
          made: the steps that made what it takes.

        Raises:
          HostError: an island is gone or leaves, or what the step takes is spoiled.
        """
        if step.number in self._steps or step.is_done():
            return
        try:
            for gang in gangs:
                gang.check_open()
            step.read(made)
            if self._is_several:
                self._follow(step, made)
        except HostError as error:
            # Ctrl-C may have ended the first try after the step was in a window, which would wait for it.
            for host in step.hosts:
                step.lose(host, error.record())
            raise
        for gang in gangs:
            gang.window.add(step)
        # Last: who tries again because of Ctrl-C goes through all of it until then.
        self._steps[step.number] = step

    def get(self, number: int) -> Step | None:
        """A step that is not done."""
        return self._steps.get(number)

    def end(self, step: Step) -> None:
        """Notes that all hosts are done with a step."""
        self._steps.pop(step.number, None)

    def unfinished(self) -> list[Step]:
        """The steps that are not done, in the order in which they were issued."""
        return [step for step in [*self._steps.values()] if not step.is_done()]

    def of(self, gang: GangView) -> list[Step]:
        """The steps that are not done and of which a gang has a part; others may need it for theirs."""
        return gang.window.unfinished()

    def cut(self, hosts: tuple[int, int], failure: Failure) -> None:
        """Notes that two hosts do not reach each other: who waits for what they make of a step of both gets
        an error now, though they are not done with it."""
        for step in self.unfinished():
            # Hosts do not meet in calls.
            if step.hosts.issuperset(hosts) and not step.is_beside:
                step.cut(hosts, failure)

    def lose(self, gang: GangView, failure: Failure) -> list[Step]:
        """Notes that an island is gone; the steps that it had a part of and that were not done."""
        if gang.is_several:
            self._spoil(gang, failure)
        steps = self.of(gang)
        for step in steps:
            for host in step.hosts.intersection(gang.hosts):
                if step.lose(host, failure):
                    self.end(step)
        return steps

    def _follow(self, step: Step, made: Iterable[Step | None]) -> None:
        """Notes what may spoil a step: those that its hosts are at, whose results it may read."""
        for one in made:
            if one is not None:
                one.check_spoiled()
        # Without itself: Ctrl-C may have come between this and what is noted next.
        self._unsettled = [o for o in self._unsettled if o is not step and not o.is_settled()]
        step.follow(other for other in self._unsettled if not step.hosts.isdisjoint(other.hosts))
        # What is beside others has no part in what they make.
        if not step.is_beside:
            self._unsettled.append(step)

    def _spoil(self, gang: GangView, failure: Failure) -> None:
        """Spoils all steps that may have had something of an island of which it is unknown what it did."""
        hosts = set(gang.hosts)
        for step in self._unsettled:
            if not step.is_settled() and not hosts.isdisjoint(step.hosts):
                step.spoil(failure)
                hosts |= step.hosts

    def __len__(self) -> int:
        return len(self._steps)
