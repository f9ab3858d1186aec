"""A cluster of which only the cores are real, with a shell that does what effects say, links and workers."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Mapping

from simulated_messages import (
    Called,
    Cancel,
    Done,
    Free,
    Leave,
    Leaving,
    Lost,
    Missed,
    PeerFound,
    PeerLost,
    Ping,
    Pong,
    RequestReport,
    Said,
)
from simulated_network import SimulatedNetwork
from simulated_worker import SimulatedWorker, Together

from pathways.runtime.control.core import ClusterCore, Limits
from pathways.runtime.control.effects import (
    AttachGang,
    Disconnect,
    Effect,
    Log,
    PingGang,
    RequestExit,
    RequestReports,
    RestartGang,
    StepFailed,
    TerminateGang,
    WakeWaiters,
)
from pathways.runtime.control.gang import Gang
from pathways.runtime.control.records.errors import CallFailedError, Failure
from pathways.runtime.control.records.events import (
    Event,
    GangClosed,
    GangKey,
    GangStarted,
    GangStartFailed,
    GangTerminated,
    HostLost,
    InputMissed,
    LeaveRequested,
    PeerReached,
    PeerUnreachable,
    ReplyReceived,
    Tick,
)
from pathways.runtime.control.sharing.scheduler_events import SchedulerEvent
from pathways.runtime.simulate.events import LinkQuality, SimulatedLink, SimulatedTime

CHANNELS = ("steps", "arrays", "watch")


@dataclasses.dataclass(frozen=True)
class ClusterShape:
    """Shape of a cluster: its islands, limits and links.

    Attributes:
      islands: how many hosts each island has.
      limits: those of the core.
      links: the quality of each channel.
      late: what some hosts say takes up to so many seconds, by their numbers.
      seed: of all chance in it.
      sessions: how many share it; 0 where one user has it.
    """

    islands: tuple[int, ...]
    limits: Limits
    links: Mapping[str, LinkQuality]
    late: Mapping[int, float] = dataclasses.field(default_factory=dict)
    seed: int = 0
    sessions: int = 0

    def hosts(self, island: int) -> range:
        """Returns the numbers of the hosts of an island."""
        first = sum(self.islands[:island])
        return range(first, first + self.islands[island])


class SimulatedCluster:
    """A controller and its workers.

    Attributes:
      core: what decides.
      time: the time.
      workers: those of the gangs that stand for islands, by their numbers.
      of_gang: the workers of each gang that ever stood for an island.
      said: what was logged, and of which time.
      told: all that was told to the core, and what came of it, of which time.
      ended: how processes ended.
      failing_starts: how many of the next starts of an island fail, by its number.
      gave_up: when starts of islands failed that were not tried again, and when they were lost.
      network: that between workers.
    """

    def __init__(self, shape: ClusterShape) -> None:
        self.shape = shape
        self.time = SimulatedTime()
        self.chance = random.Random(f"{shape.seed} shell")
        self.core = ClusterCore([shape.hosts(n) for n in range(len(shape.islands))], shape.limits, 0.0)
        self.workers: dict[int, SimulatedWorker] = {}
        self.of_gang: dict[GangKey, tuple[SimulatedWorker, ...]] = {}
        self.said: list[tuple[float, str]] = []
        self.told: list[tuple[float, object, list[Effect]]] = []
        self.ended_how: dict[SimulatedWorker, str] = {}
        self.failing_starts: dict[int, int] = {}
        self.gave_up: list[tuple[float, float]] = []
        # When the network to a machine heals, by the host that is there.
        self._cut_until: dict[int, float] = {}
        self._lost_at: dict[GangKey, float] = {}
        self.has_changed = False
        self._gangs: dict[SimulatedWorker, Gang] = {}
        self._to: dict[tuple[SimulatedWorker, str], SimulatedLink[object]] = {}
        self._from: dict[tuple[SimulatedWorker, str], SimulatedLink[object]] = {}
        self.network = SimulatedNetwork(self.time, shape.links["arrays"], shape.seed, self.say)
        self._starting: dict[GangKey, tuple[SimulatedWorker, ...]] = {}
        self._starts = 0
        self._asleep_until = 0.0
        self._unheard: list[Callable[[], None]] = []
        self.is_closed = False
        # Of sessions that share it, if there are any.
        self.carry_out_for_clients: Callable[[Effect], None] = lambda effect: None
        self.note_done: Callable[[Gang, int], None] = lambda gang, run: None
        for gang in self.core.gangs:
            self._attach(gang, self._started(gang.key.island))
        self._tick()

    # The core.

    def tell(self, event: Event) -> None:
        """Tells the core something, and does what it says."""
        self._did(event, self.core.handle(event, self.time.now))

    def schedule(self, *events: SchedulerEvent) -> None:
        """Tells the scheduler of the core something, and does what it says."""
        self._did(events, self.core.schedule(events, self.time.now))

    def do(self, what: object, effects: list[Effect]) -> None:
        """Does what the core said when it was asked something."""
        self._did(what, effects)

    def send(self, host: int, channel: str, message: object) -> None:
        """Sends a host something."""
        self._to[self.workers[host], channel].send(message)

    def gang_of(self, worker: SimulatedWorker) -> Gang:
        """Returns the gang of a worker."""
        return self._gangs[worker]

    def _did(self, event: object, effects: list[Effect]) -> None:
        self.told.append((self.time.now, event, effects))
        self.has_changed = True
        for effect in effects:
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Log():
                self.said.append((self.time.now, effect.text))
            case PingGang():
                for worker in self.of_gang[effect.gang]:
                    self._to[worker, "watch"].send(Ping(effect.number))
            case RequestReports():
                for host in effect.hosts:
                    self.send(host, "watch", RequestReport(effect.request))
            case RequestExit():
                for worker in self.of_gang[effect.gang]:
                    self._to[worker, "watch"].send(Leave())
            case WakeWaiters():
                pass
            case StepFailed(failure):
                if (gang := self.core.gang(failure.gang)) is not None:
                    self.note_done(gang, failure.step.number)
            case Disconnect():
                self._disconnect(effect.gang)
            case TerminateGang():
                self._bury(effect)
            case RestartGang():
                self._later(0.05, 1.5, functools.partial(self._start_anew, effect))
            case AttachGang():
                gang = self.core.gang(effect.gang)
                assert gang is not None
                self._attach(gang, self._starting.pop(GangKey(gang.key.island, gang.key.start - 1)))
            case _:
                self.carry_out_for_clients(effect)

    def _tick(self) -> None:
        self.time.after(self.chance.uniform(0.05, 0.1), self._tick)
        if self.is_asleep():
            return
        self.tell(Tick())
        for gang in self.core.gangs:
            if gang.failure is None and (unused := gang.unused.take()):
                for worker in self.of_gang[gang.key]:
                    self._to[worker, "steps"].send(Free(unused))

    # What becomes of gangs.

    def _disconnect(self, key: GangKey) -> None:
        for worker in self.of_gang[key]:
            for channel in CHANNELS:
                self._to[worker, channel].close()
                # What it said before may be heard later.
                self._from[worker, channel].close()

    def _bury(self, bury: TerminateGang) -> None:
        """Ends processes at once, where the network is not cut, and tells others later."""
        gone = self.of_gang[bury.gang]
        self._lost_at[bury.gang] = self.time.now
        for worker in gone:
            if not self._is_cut(worker.host):
                worker.end("killed by signal 9")

        def tell_others() -> None:
            for worker in self.workers.values():
                if self._gangs[worker].failure is None:
                    self._to[worker, "watch"].send(Lost(gone))
                    if runs := bury.cancelled.get(worker.host, ()):
                        numbers = tuple(number for _, number in runs)
                        self._to[worker, "steps"].send(Cancel(gone, numbers))
            self._later(0.0, 0.5, functools.partial(self.tell, GangTerminated(bury.gang)))

        self._later(0.0, 0.3, tell_others)

    def _start_anew(self, start: RestartGang, waited: float = 0.0) -> None:
        key = start.gang
        if any(self._is_cut(host) for host in self.shape.hosts(key.island)) and waited < start.seconds:
            # A start that nobody answers goes on when the network heals, if it has so much time.
            self.time.after(1.0, functools.partial(self._start_anew, start, waited + 1.0))
            return
        if waited >= start.seconds or self.failing_starts.get(key.island):
            if waited < start.seconds:
                self.failing_starts[key.island] -= 1
            self.tell(GangStartFailed(key, "it cannot be restarted: of a test"))
            gang = self.core.gang(key)
            if gang is not None and gang.is_dead() and not self.is_closed:
                self.gave_up.append((self._lost_at[key], self.time.now))
            return
        for worker in self.of_gang[key]:
            assert not worker.is_alive, f"{worker} still has the devices of its successor"
        self._starting[key] = self._started(key.island)
        self.tell(GangStarted(key))
        # It was closed in the meantime.
        for worker in self._starting.pop(key, ()):
            worker.end("killed by signal 9")

    def _started(self, island: int) -> tuple[SimulatedWorker, ...]:
        hosts = self.shape.hosts(island)
        together = Together(len(hosts))
        self._starts += 1
        return tuple(
            SimulatedWorker(
                island,
                host,
                rank,
                together,
                self.time,
                random.Random(f"{self.shape.seed} {self._starts} {host}"),
                self,
            )
            for rank, host in enumerate(hosts)
        )

    def _attach(self, gang: Gang, workers: tuple[SimulatedWorker, ...]) -> None:
        self.of_gang[gang.key] = workers
        for worker in workers:
            worker.key = gang.key
            self.workers[worker.host] = worker
            self._gangs[worker] = gang
            for channel in CHANNELS:
                quality = self.shape.links[channel]
                chance = random.Random(f"{self.shape.seed} {gang.key} {worker.host} {channel}")
                hear = functools.partial(worker.hear, channel)
                self._to[worker, channel] = SimulatedLink(self.time, chance, hear, quality)
                say = functools.partial(self._hear, worker)
                if worker.host in self.shape.late:
                    quality = dataclasses.replace(quality, max_delay=self.shape.late[worker.host])
                self._from[worker, channel] = SimulatedLink(self.time, chance, say, quality)

    def close(self) -> None:
        """Lets go of all workers."""
        self.is_closed = True
        for gang in [*self.core.gangs]:
            self.tell(GangClosed(gang.key, "is closed"))
            for worker in self.of_gang[gang.key]:
                worker.end("killed by signal 9")

    # What workers say.

    def _hear(self, worker: SimulatedWorker, message: object) -> None:
        if self.is_asleep():
            self._unheard.append(functools.partial(self._hear, worker, message))
            return
        gang, now = self._gangs[worker], self.time.now
        gang.pulses[worker.host].heard = now
        match message:
            case Done(run, error, wrong):
                if error is None and not wrong:
                    self.core.done(gang, worker.host, run, now)
                    self._did(message, [])
                    self.note_done(gang, run)
                else:
                    self._did(message, self.core.fail(gang, worker.host, run, error, wrong, now))
            case Called(call, value, error):
                failure = None if error is None else Failure(CallFailedError, error)
                self.core.called(worker.host, call, value, failure)
                self._did(message, [])
            case Missed(run, why):
                self.tell(InputMissed(gang.key, worker.host, run, why))
            case Said(request, value, is_last):
                self.tell(ReplyReceived(worker.host, request, value, is_last))
            case Leaving():
                self.tell(LeaveRequested(gang.key, worker.host))
            case PeerLost(peer, why):
                assert peer.key is not None
                self.tell(PeerUnreachable(gang.key, worker.host, peer.key, peer.host, why))
            case PeerFound(peer):
                assert peer.key is not None
                self.tell(PeerReached(gang.key, worker.host, peer.key, peer.host))
            case HostLost():
                self.tell(message)
            case Pong():
                pass

    def say(self, worker: SimulatedWorker, channel: str, message: object) -> None:
        """A worker says something."""
        self._from[worker, channel].send(message)

    def ended(self, worker: SimulatedWorker, how: str) -> None:
        """A process has ended: whoever is connected to it sees that, each at its own time."""
        self.ended_how[worker] = how
        if worker.key is None:
            return
        event = HostLost(worker.key, worker.host, f"its process has ended ({how})")
        for channel in CHANNELS:
            self.time.after(self._some(0.0, 0.3), functools.partial(self.say, worker, channel, event))
        for peer in self.workers.values():
            if peer is not worker:
                miss = functools.partial(self.network.miss, peer, worker)
                self.time.after(self._some(0.0, 0.3), miss)

    def pull(self, worker: SimulatedWorker, peer: SimulatedWorker, run: int, turn: int) -> None:
        """A worker asks another one for what a turn has made."""
        self.network.pull(worker, peer, run, turn)

    # What goes wrong.

    def ask_to_leave(self, host: int) -> None:
        """The process of a host is asked to end, as by SIGTERM: it says so, and waits for some time."""
        worker = self.workers[host]
        if worker.is_alive and not worker.is_stopped:
            self.say(worker, "watch", Leaving())
            self.time.after(self.shape.limits.grace + 5.0, lambda: worker.end("exit code 0"))

    def cut_off(self, host: int, seconds: float, *, hears: bool = False) -> None:
        """Cuts a host off from the controller for some time; or only has what it says come later."""
        worker = self.workers[host]
        if not hears:
            self._cut_until[host] = max(self._cut_until.get(host, 0.0), self.time.now + seconds)
            self.time.after(self.shape.limits.heartbeat, functools.partial(self._end_cut_off, worker))
        ways = (self._from,) if hears else (self._to, self._from)
        links = [of[worker, channel] for of in ways for channel in CHANNELS]
        for link in links:
            link.cut()

        def heal() -> None:
            for link in links:
                link.heal()
            # What waits for it is told that its connections have ended.
            if self.gang_of(worker).failure is not None and not self._is_cut(host):
                worker.end("exit code 0")

        self.time.after(seconds, heal)

    def _is_cut(self, host: int) -> bool:
        return self.time.now < self._cut_until.get(host, 0.0)

    def _end_cut_off(self, worker: SimulatedWorker) -> None:
        """A worker whose controller does not answer for so long ends itself."""
        if self._is_cut(worker.host):
            worker.end("exit code 0")

    def cut_peers(self, first: int, second: int, seconds: float) -> None:
        """Cuts the network between two hosts for some time; if that is long, both say so."""
        if first != second:
            worker, peer = self.workers[first], self.workers[second]
            self.network.cut(worker, peer, seconds, self.shape.limits.heartbeat)

    def isolate(self, host: int, seconds: float) -> None:
        """Cuts a host off from all others for some time, but not from the controller."""
        for other in self.workers:
            self.cut_peers(host, other, seconds)

    def lie(self, host: int, other: int) -> None:
        """Has a host say of a later one that it does not reach it, which is not so."""
        if host < other and self.workers[host].is_alive:
            self.say(self.workers[host], "watch", PeerLost(self.workers[other], "of a lie"))

    def sleep(self, seconds: float) -> None:
        """Stops the controller for some time, as by Ctrl-Z."""
        self._asleep_until = max(self._asleep_until, self.time.now + seconds)
        self.time.at(self._asleep_until, self._wake_up)

    def _wake_up(self) -> None:
        while self._unheard and not self.is_asleep():
            self._unheard.pop(0)()

    def is_asleep(self) -> bool:
        """Returns whether the controller is stopped."""
        return self.time.now < self._asleep_until

    def _later(self, least: float, most: float, act: Callable[[], None]) -> None:
        """Has the controller do something in some time, when it is not stopped."""

        def begin() -> None:
            if self.is_asleep():
                self.time.at(self._asleep_until, begin)
            else:
                act()

        self.time.after(self._some(least, most), begin)

    def _some(self, least: float, most: float) -> float:
        return self.chance.uniform(least, most)
