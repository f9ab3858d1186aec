"""Hosts that do not reach each other, though both may answer the controller.

A host says when it does not reach another one, and when it does again. One's word alone says nothing of the
other one: it is believed when that one says the same. Then one of the two has to go, because what they have
sent to each other is lost: the one that more others name, as when a machine is cut off from all of them; at a
tie both. Who is named by one that it reaches itself is left alone; when the report holds for as long as a
host may be silent, the one that gives it has to go, because it waits for what may never come.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

from pathways.runtime.control.records.events import GangKey, HostLost

SETTLE_SECONDS = 1.0
"""How long it takes until others have said the same. Each sees a cut within half a second."""


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """A host of a gang."""

    gang: GangKey
    host: int


@dataclasses.dataclass(frozen=True, slots=True)
class _PeerReport:
    since: float
    why: str


class PeerReports:
    """What hosts say of each other.

    Args:
      heartbeat: seconds that a host may say nothing.
      named: what a host is called in messages.
    """

    def __init__(self, heartbeat: float, named: Callable[[Peer], str]) -> None:
        self._patience = heartbeat + SETTLE_SECONDS
        self._named = named
        # By who says it and of whom.
        self._words: dict[tuple[Peer, Peer], _PeerReport] = {}
        # Since when both say it of each other.
        self._cut: dict[frozenset[Peer], float] = {}

    def lose(self, by: Peer, of: Peer, why: str, now: float) -> bool:
        """A host does not reach another one; True when this is the second word, and both say the same."""
        if by == of or (by, of) in self._words:
            return False
        self._words[by, of] = _PeerReport(now, why)
        if (of, by) not in self._words:
            return False
        self._cut[frozenset((by, of))] = now
        return True

    def find(self, by: Peer, of: Peer) -> None:
        """A host reaches another one again."""
        self._words.pop((by, of), None)
        self._cut.pop(frozenset((by, of)), None)

    def forget(self, gang: GangKey) -> None:
        """A gang is gone, and with it all that is said by its hosts and of them."""
        self._words = {pair: w for pair, w in self._words.items() if gang not in (pair[0].gang, pair[1].gang)}
        self._cut = {pair: at for pair, at in self._cut.items() if all(peer.gang != gang for peer in pair)}

    def look(self, now: float) -> list[HostLost]:
        """The hosts that have to go, with what is said of them."""
        going: dict[Peer, str] = {}
        counts = collections.Counter(peer for pair in self._cut for peer in pair)
        for pair, since in self._cut.items():
            if now - since >= SETTLE_SECONDS:
                most = max(counts[peer] for peer in pair)
                for peer in pair:
                    (other,) = pair - {peer}
                    if counts[peer] == most:
                        why = self._words[other, peer].why
                        going.setdefault(peer, f"{self._named(other)} does not reach it: {why}")
        for (by, of), word in self._words.items():
            if frozenset((by, of)) not in self._cut and now - word.since >= self._patience:
                going.setdefault(
                    by, f"it does not reach {self._named(of)}, which does not confirm it: {word.why}"
                )
        return [HostLost(peer.gang, peer.host, why, is_cut=True) for peer, why in going.items()]
