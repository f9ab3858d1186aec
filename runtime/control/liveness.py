"""Detection of hosts that no longer respond."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from pathways.runtime.control.effects import PingGang
from pathways.runtime.control.gang import Draining, Gang, Running
from pathways.runtime.control.records.events import HostLost

_PAUSE = 0.5
"""Maximum of seconds between two pings."""


class Liveness:
    """Watch over hosts, which pings them and finds hosts that do not respond.

    Args:
      heartbeat: seconds without a message after which a host is lost.
      now: the time.
    """

    def __init__(self, heartbeat: float, now: float) -> None:
        self._heartbeat = heartbeat
        self._pause = min(_PAUSE, heartbeat / 4)
        self._due = now
        self._checked = now
        self._numbers = itertools.count()

    def check(self, gangs: Iterable[Gang], now: float) -> tuple[list[HostLost], list[PingGang]]:
        """Returns the hosts that are lost, and the pings for all others, when these are due."""
        silent: list[HostLost] = []
        pings: list[PingGang] = []
        # While this process did not run, as after Ctrl-Z, it could receive no message.
        late = max(0.0, now - self._checked - self._pause)
        self._checked = now
        if late:
            for gang in gangs:
                for pulse in gang.pulses.values():
                    pulse.heard += late
        if now < self._due:
            return silent, pings
        self._due = now + self._pause
        number = next(self._numbers)
        for gang in gangs:
            # A terminating host replies no more.
            if not isinstance(gang.state, Running | Draining):
                continue
            seconds = {host: now - pulse.heard for host, pulse in gang.pulses.items()}
            host, longest = max(seconds.items(), key=lambda each: each[1])
            if longest > self._heartbeat:
                why = f"it has not responded for {longest:.0f} seconds"
                silent.append(HostLost(gang.key, host, why, is_cut=True))
            else:
                pings.append(PingGang(gang.key, number))
        return silent, pings
