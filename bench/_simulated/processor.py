"""A core of a machine, which does one thing after the other."""

from __future__ import annotations

import collections
from collections.abc import Callable

from pathways.runtime.simulate.events import SimulatedTime

Job = Callable[[float], float]
"""Does something that begins at a moment, and returns the moment at which it is done."""


class Processor:
    """Does jobs in the order in which they come.

    Args:
      time: when they come.
      settle: what it does after all jobs that were there at once; None for nothing.

    Attributes:
      busy: for how long it had something to do, in seconds.
    """

    __slots__ = ("_free", "_is_awake", "_jobs", "_settle", "_time", "busy")

    def __init__(self, time: SimulatedTime, settle: Job | None = None) -> None:
        self.busy = 0.0
        self._time = time
        self._settle = settle
        self._jobs: collections.deque[Job] = collections.deque()
        self._free = 0.0
        self._is_awake = False

    def add(self, job: Job) -> None:
        """A job comes now."""
        self._jobs.append(job)
        if not self._is_awake:
            self._is_awake = True
            self._time.at(self._free, self._work)

    def add_at(self, moment: float, job: Job) -> None:
        """A job comes at a moment."""
        self._time.at(moment, lambda: self.add(job))

    def _work(self) -> None:
        """Does all jobs that are there. What they say to others has its own moment, so nobody sees that they
        are done at once; jobs that come meanwhile wait until the last of these is done."""
        began = moment = self._time.now
        jobs = self._jobs
        for _ in range(len(jobs)):
            moment = jobs.popleft()(moment)
        if self._settle is not None:
            moment = self._settle(moment)
        self.busy += moment - began
        self._free = moment
        if jobs:
            self._time.at(moment, self._work)
        else:
            self._is_awake = False
