"""Core of a machine, which runs one job after the other."""

from __future__ import annotations

import collections
from collections.abc import Callable

from pathways.runtime.simulate.events import SimulatedTime

Job = Callable[[float], float]
"""Job that begins at a moment, and returns the moment at which it is done."""


class Processor:
    """Core that runs jobs in the order of their arrival.

    Args:
      time: the time of arrivals.
      settle: runs after all jobs that were there at once; None for nothing.

    Attributes:
      busy: the time that it was busy, in seconds.
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
        """Adds a job now."""
        self._jobs.append(job)
        if not self._is_awake:
            self._is_awake = True
            self._time.at(self._free, self._work)

    def add_at(self, moment: float, job: Job) -> None:
        """Adds a job at a moment."""
        self._time.at(moment, lambda: self.add(job))

    def _work(self) -> None:
        """Runs all jobs that are there. Their messages have moments of their own, so it makes no difference
        that they run at once; jobs that arrive meanwhile wait until the last of these is done."""
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
