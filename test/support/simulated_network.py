"""Connections between simulated workers, which a test may cut."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

from simulated_messages import FailedArray, PeerFound, PeerLost
from simulated_worker import SimulatedWorker

from pathways.runtime.simulate.events import LinkQuality, SimulatedLink, SimulatedTime

SendFrom = Callable[[SimulatedWorker, str, object], None]


class SimulatedNetwork:
    """Network between workers. Across a cut, hosts learn neither of the cut nor of the other's exit.

    Args:
      time: the simulated time.
      quality: the quality of all links.
      seed: the seed of all randomness in it.
      send_from: sends a message of a worker to the controller, on a channel.

    Attributes:
      were_cut: the pairs of hosts that were ever cut for long enough to be reported.
    """

    def __init__(self, time: SimulatedTime, quality: LinkQuality, seed: int, send_from: SendFrom) -> None:
        self._time = time
        self._quality = quality
        self._seed = seed
        self._send_from = send_from
        self._chance = random.Random(f"{seed} network")
        self._links: dict[tuple[SimulatedWorker, SimulatedWorker], SimulatedLink[Callable[[], None]]] = {}
        self._cut: set[frozenset[int]] = set()
        self.were_cut: set[frozenset[int]] = set()

    def pull(self, worker: SimulatedWorker, peer: SimulatedWorker, run: int, stage: int) -> None:
        """Requests the value of a stage for a worker from another one."""

        def reply(value: int | FailedArray) -> None:
            self._link(peer, worker).send(functools.partial(worker.receive_pulled, run, stage, value))

        def request() -> None:
            if peer.is_alive:
                peer.serve(run, stage, worker, reply)
            else:
                self.miss(worker, peer)

        self._link(worker, peer).send(request)

    def miss(self, worker: SimulatedWorker, peer: SimulatedWorker) -> None:
        """Notifies a worker that another one has exited, unless the network between them is cut."""
        if worker.is_alive and frozenset((worker.host, peer.host)) not in self._cut:
            worker.lose_peer(peer)
            self._send_from(worker, "watch", PeerLost(peer, "its connection has ended"))

    def cut(self, worker: SimulatedWorker, peer: SimulatedWorker, seconds: float, patience: float) -> None:
        """Cuts the network between two hosts for some time; beyond `patience` seconds, both report it."""
        pair = frozenset((worker.host, peer.host))
        if pair in self._cut:
            return
        self._cut.add(pair)
        for link in self._between(pair):
            link.cut()
        both = ((worker, peer), (peer, worker))
        reported: set[SimulatedWorker] = set()

        def report(one: SimulatedWorker, other: SimulatedWorker) -> None:
            if one.is_alive and not one.is_stopped and pair in self._cut:
                reported.add(one)
                self._send_from(one, "watch", PeerLost(other, "timed out"))

        def report_found(one: SimulatedWorker, other: SimulatedWorker) -> None:
            if one.is_alive and other.is_alive:
                self._send_from(one, "watch", PeerFound(other))

        if seconds > patience:
            self.were_cut.add(pair)
            for one, other in both:
                delay = patience + self._chance.uniform(0.0, 0.5)
                self._time.after(delay, functools.partial(report, one, other))

        def heal() -> None:
            self._cut.discard(pair)
            for link in self._between(pair):
                link.heal()
            for one, other in both:
                if not other.is_alive:
                    self.miss(one, other)
                elif one in reported:
                    self._time.after(
                        self._chance.uniform(0.0, 0.5), functools.partial(report_found, one, other)
                    )

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
