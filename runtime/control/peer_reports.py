"""Reports of hosts that do not reach each other, though both may reply to the controller.

A host reports when it does not reach another one, and when it does again. The report of one host alone does
not prove anything about the other: it counts when the other reports the same. Then one of the two is lost,
because their messages to each other are lost: the one that more others report, as when a machine is cut off
from all of them; at a tie both. A host whose reporter it reaches itself is left alone; when the report holds
for as long as a host may be silent, the reporter is lost, because it waits for values that may never come.
"""

from __future__ import annotations

import collections
import dataclasses

from pathways.runtime.control.records.events import GangKey, HostLost

SETTLE_SECONDS = 1.0
"""Seconds until other hosts have reported the same. Each notices a cut within half a second."""


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """Host of a gang."""

    gang: GangKey
    host: int

    def __str__(self) -> str:
        return self.gang.host_name(self.host)


@dataclasses.dataclass(frozen=True, slots=True)
class _PeerReport:
    since: float
    why: str


class PeerReports:
    """Reports of hosts about each other.

    Args:
      heartbeat: seconds without a message after which a host is lost.
    """

    def __init__(self, heartbeat: float) -> None:
        self._patience = heartbeat + SETTLE_SECONDS
        # By the reporter and the host that it does not reach.
        self._reports: dict[tuple[Peer, Peer], _PeerReport] = {}
        # When both hosts of a pair had reported each other.
        self._cut: dict[frozenset[Peer], float] = {}

    def add(self, by: Peer, of: Peer, why: str, now: float) -> bool:
        """Adds a report that a host does not reach another; returns whether both have reported each other."""
        if by == of or (by, of) in self._reports:
            return False
        self._reports[by, of] = _PeerReport(now, why)
        if (of, by) not in self._reports:
            return False
        self._cut[frozenset((by, of))] = now
        return True

    def remove(self, by: Peer, of: Peer) -> None:
        """Removes a report: the host reaches the other one again."""
        self._reports.pop((by, of), None)
        self._cut.pop(frozenset((by, of)), None)

    def remove_gang(self, gang: GangKey) -> None:
        """Removes all reports by and about the hosts of a lost gang."""
        self._reports = {
            (by, of): report for (by, of), report in self._reports.items() if gang not in (by.gang, of.gang)
        }
        self._cut = {pair: at for pair, at in self._cut.items() if all(peer.gang != gang for peer in pair)}

    def check(self, now: float) -> list[HostLost]:
        """Returns the hosts that are lost, with the reasons."""
        losses: dict[Peer, str] = {}
        counts = collections.Counter(peer for pair in self._cut for peer in pair)
        for pair, since in self._cut.items():
            if now - since >= SETTLE_SECONDS:
                # At a tie both are lost: it is unknown which one is cut off.
                highest = max(counts[peer] for peer in pair)
                for peer in pair:
                    (other,) = pair - {peer}
                    if counts[peer] == highest:
                        why = self._reports[other, peer].why
                        losses.setdefault(peer, f"{other} does not reach it: {why}")
        for (by, of), report in self._reports.items():
            if frozenset((by, of)) not in self._cut and now - report.since >= self._patience:
                losses.setdefault(by, f"it does not reach {of}, which does not confirm it: {report.why}")
        return [HostLost(peer.gang, peer.host, why, is_cut=True) for peer, why in losses.items()]
