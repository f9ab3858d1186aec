"""Hosts that say nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from pathways.runtime.control.effects import PingGang
from pathways.runtime.control.gang import Draining, Gang, Running
from pathways.runtime.control.records.events import HostLost

_PAUSE = 0.5
"""The most seconds from one question to the next."""


class Liveness:
    """Asks hosts whether they live, and says which do not.

    Args:
      heartbeat: seconds that a host may say nothing.
      now: the time.
    """

    def __init__(self, heartbeat: float, now: float) -> None:
        self._heartbeat = heartbeat
        self._pause = min(_PAUSE, heartbeat / 4)
        self._due = now
        self._looked = now
        self._numbers = itertools.count()

    def look(self, gangs: Iterable[Gang], now: float) -> tuple[list[HostLost], list[PingGang]]:
        """The hosts that are gone, and the questions for all others, if it is time for them."""
        gone: list[HostLost] = []
        pings: list[PingGang] = []
        # When this process did not run, as after Ctrl-Z, nothing could be heard.
        late = max(0.0, now - self._looked - self._pause)
        self._looked = now
        if late:
            for gang in gangs:
                for pulse in gang.pulses.values():
                    pulse.heard += late
        if now < self._due:
            return gone, pings
        self._due = now + self._pause
        number = next(self._numbers)
        for gang in gangs:
            # One that was told to end answers no more.
            if not isinstance(gang.state, Running | Draining):
                continue
            silent = {host: now - pulse.heard for host, pulse in gang.pulses.items()}
            host, longest = max(silent.items(), key=lambda each: each[1])
            if longest > self._heartbeat:
                why = f"it has not responded for {longest:.0f} seconds"
                gone.append(HostLost(gang.key, host, why, is_cut=True))
            else:
                pings.append(PingGang(gang.key, number))
        return gone, pings
