"""Connections between simulated workers, which may be cut."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

from simulated_messages import FailedArray, PeerFound, PeerLost
from simulated_worker import SimulatedWorker

from pathways.runtime.simulate.events import LinkQuality, SimulatedLink, SimulatedTime

Say = Callable[[SimulatedWorker, str, object], None]


class SimulatedNetwork:
    """The network between workers. Where it is cut, nobody hears that, or that the other one has ended.

    Args:
      time: the time.
      quality: that of all links.
      seed: of all chance in it.
      say: has a worker tell the controller something, on a channel.

    Attributes:
      were_cut: the pairs of hosts that were ever cut for so long that they said so.
    """

    def __init__(self, time: SimulatedTime, quality: LinkQuality, seed: int, say: Say) -> None:
        self._time = time
        self._quality = quality
        self._seed = seed
        self._say = say
        self._chance = random.Random(f"{seed} network")
        self._links: dict[tuple[SimulatedWorker, SimulatedWorker], SimulatedLink[Callable[[], None]]] = {}
        self._cut: set[frozenset[int]] = set()
        self.were_cut: set[frozenset[int]] = set()

    def pull(self, worker: SimulatedWorker, peer: SimulatedWorker, run: int, turn: int) -> None:
        """A worker asks another one for what a turn has made."""

        def answer(value: int | FailedArray) -> None:
            self._link(peer, worker).send(functools.partial(worker.take_pulled, run, turn, value))

        def ask() -> None:
            if peer.is_alive:
                peer.give(run, turn, worker, answer)
            else:
                self.miss(worker, peer)

        self._link(worker, peer).send(ask)

    def miss(self, worker: SimulatedWorker, peer: SimulatedWorker) -> None:
        """A worker sees that another one has ended, unless the network between them is cut."""
        if worker.is_alive and frozenset((worker.host, peer.host)) not in self._cut:
            worker.lose_peer(peer)
            self._say(worker, "watch", PeerLost(peer, "its connection has ended"))

    def cut(self, worker: SimulatedWorker, peer: SimulatedWorker, seconds: float, patience: float) -> None:
        """Cuts the network between two hosts for some time; both say so if they have no patience for it."""
        pair = frozenset((worker.host, peer.host))
        if pair in self._cut:
            return
        self._cut.add(pair)
        for link in self._between(pair):
            link.cut()
        both = ((worker, peer), (peer, worker))
        complained: set[SimulatedWorker] = set()

        def complain(one: SimulatedWorker, other: SimulatedWorker) -> None:
            if one.is_alive and not one.is_stopped and pair in self._cut:
                complained.add(one)
                self._say(one, "watch", PeerLost(other, "timed out"))

        def find(one: SimulatedWorker, other: SimulatedWorker) -> None:
            if one.is_alive and other.is_alive:
                self._say(one, "watch", PeerFound(other))

        if seconds > patience:
            self.were_cut.add(pair)
            for one, other in both:
                delay = patience + self._chance.uniform(0.0, 0.5)
                self._time.after(delay, functools.partial(complain, one, other))

        def heal() -> None:
            self._cut.discard(pair)
            for link in self._between(pair):
                link.heal()
            for one, other in both:
                if not other.is_alive:
                    self.miss(one, other)
                elif one in complained:
                    self._time.after(self._chance.uniform(0.0, 0.5), functools.partial(find, one, other))

        self._time.after(seconds, heal)

    def _between(self, pair: frozenset[int]) -> list[SimulatedLink[Callable[[], None]]]:
        return [link for (one, other), link in self._links.items() if {one.host, other.host} == pair]

    def _link(self, worker: SimulatedWorker, peer: SimulatedWorker) -> SimulatedLink[Callable[[], None]]:
        link = self._links.get((worker, peer))
        if link is None:
            chance = random.Random(f"{self._seed} {worker} {peer}")
            link = SimulatedLink(self._time, chance, lambda act: act(), self._quality)
            self._links[worker, peer] = link
            if frozenset((worker.host, peer.host)) in self._cut:
                link.cut()
        return link
