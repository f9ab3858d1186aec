"""Simulated cluster: a real core, a shell that carries out its effects, and simulated links and workers."""

from __future__ import annotations

import collections
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
    Reply,
    RequestReport,
)
from simulated_network import SimulatedNetwork
from simulated_worker import Collectives, SimulatedWorker

from pathways.runtime.control.core import Limits
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
from pathways.runtime.service.sharing.scheduler_events import SchedulerEvent
from pathways.runtime.service.sharing.service_core import ServiceCore
from pathways.runtime.simulate.events import LinkQuality, SimulatedLink, SimulatedTime

CHANNELS = ("steps", "arrays", "watch")


@dataclasses.dataclass(frozen=True)
class ClusterShape:
    """Shape of a cluster: its islands, limits and links.

    Attributes:
      islands: the number of hosts of each island.
      limits: the limits of the core.
      links: the quality of each channel.
      late: the largest delay in seconds of messages from some hosts, by their numbers.
      seed: the seed of all randomness in it.
      sessions: the number of sessions that share it; 0 if it has one user.
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
    """Controller and its workers.

    Attributes:
      core: the core under test.
      time: the simulated time.
      workers: the workers of the current gangs, by their hosts.
      of_gang: the workers of each gang, current or earlier.
      logged: the log lines, with their times.
      handled: the events and other inputs of the core and their effects, with their times.
      ended_how: the exit status of each process that has exited.
      failing_starts: how many of the next starts of an island fail, by its number.
      gave_up: for each island that is not restarted any more, when it was lost and when it was given up.
      network: the network between workers.
    """

    def __init__(self, shape: ClusterShape) -> None:
        self.shape = shape
        self.time = SimulatedTime()
        self.chance = random.Random(f"{shape.seed} shell")
        self.core = ServiceCore([shape.hosts(n) for n in range(len(shape.islands))], shape.limits, 0.0)
        self.workers: dict[int, SimulatedWorker] = {}
        self.of_gang: dict[GangKey, tuple[SimulatedWorker, ...]] = {}
        self.logged: list[tuple[float, str]] = []
        self.handled: list[tuple[float, object, list[Effect]]] = []
        self.ended_how: dict[SimulatedWorker, str] = {}
        self.failing_starts: dict[int, int] = {}
        self.gave_up: list[tuple[float, float]] = []
        # When the network to a machine heals, by the host that runs there.
        self._cut_until: dict[int, float] = {}
        self._lost_at: dict[GangKey, float] = {}
        self.has_changed = False
        self._gangs: dict[SimulatedWorker, Gang] = {}
        self._to: dict[tuple[SimulatedWorker, str], SimulatedLink[object]] = {}
        self._from: dict[tuple[SimulatedWorker, str], SimulatedLink[object]] = {}
        self.network = SimulatedNetwork(self.time, shape.links["arrays"], shape.seed, self.send_from)
        self._starting: dict[GangKey, tuple[SimulatedWorker, ...]] = {}
        self._starts = 0
        self._asleep_until = 0.0
        self._unread: list[Callable[[], None]] = []
        self.is_closed = False
        self._pending: collections.deque[Effect] = collections.deque()
        self._is_acting = False
        # Set by sessions that share the cluster, if there are any.
        self.carry_out_for_clients: Callable[[Effect], None] = lambda effect: None
        self.note_done: Callable[[Gang, int], None] = lambda gang, run: None
        for gang in self.core.gangs:
            self._attach(gang, self._started(gang.key.island))
        self._tick()

    # The core.

    def handle(self, event: Event) -> None:
        """Passes an event to the core, and carries out its effects."""
        self.carry_out(event, self.core.handle(event, self.time.now))

    def schedule(self, *events: SchedulerEvent) -> None:
        """Passes events to the scheduler of the core, and carries out its effects."""
        self.carry_out(events, self.core.schedule(events, self.time.now))

    def send(self, host: int, channel: str, message: object) -> None:
        """Sends a message to a host."""
        self._to[self.workers[host], channel].send(message)

    def gang_of(self, worker: SimulatedWorker) -> Gang:
        """Returns the gang of a worker."""
        return self._gangs[worker]

    def carry_out(self, cause: object, effects: list[Effect]) -> None:
        """Records an input of the core with its effects, and carries these out."""
        self.handled.append((self.time.now, cause, effects))
        self.has_changed = True
        # In the order in which the core returned them, as `SharedCore` does: an effect may cause others.
        self._pending.extend(effects)
        while self._pending and not self._is_acting:
            self._is_acting = True
            self._carry_out_effect(self._pending.popleft())
            self._is_acting = False

    def _carry_out_effect(self, effect: Effect) -> None:
        match effect:
            case Log():
                self.logged.append((self.time.now, effect.text))
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
                self._terminate(effect)
            case RestartGang():
                self._later(0.05, 1.5, functools.partial(self._restart, effect))
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
        self.handle(Tick())
        for gang in self.core.gangs:
            if gang.failure is None and (unused := gang.unused.take_all()):
                for worker in self.of_gang[gang.key]:
                    self._to[worker, "steps"].send(Free(unused))

    # Losses and restarts of gangs.

    def _disconnect(self, key: GangKey) -> None:
        for worker in self.of_gang[key]:
            for channel in CHANNELS:
                self._to[worker, channel].close()
                # Messages sent before may still arrive.
                self._from[worker, channel].close()

    def _terminate(self, effect: TerminateGang) -> None:
        """Kills processes at once, where the network is not cut, and notifies other hosts later."""
        lost = self.of_gang[effect.gang]
        self._lost_at[effect.gang] = self.time.now
        for worker in lost:
            if not self._is_cut(worker.host):
                worker.exit("killed by signal 9")

        def notify_hosts() -> None:
            for worker in self.workers.values():
                if self._gangs[worker].failure is None:
                    self._to[worker, "watch"].send(Lost(lost))
                    if runs := effect.cancelled.get(worker.host, ()):
                        numbers = tuple(number for _, number in runs)
                        self._to[worker, "steps"].send(Cancel(lost, numbers))
            self._later(0.0, 0.5, functools.partial(self.handle, GangTerminated(effect.gang)))

        self._later(0.0, 0.3, notify_hosts)

    def _restart(self, start: RestartGang, waited: float = 0.0) -> None:
        key = start.gang
        if any(self._is_cut(host) for host in self.shape.hosts(key.island)) and waited < start.seconds:
            # A start that no worker answers continues when the network heals, if its time allows.
            self.time.after(1.0, functools.partial(self._restart, start, waited + 1.0))
            return
        if waited >= start.seconds or self.failing_starts.get(key.island):
            if waited < start.seconds:
                self.failing_starts[key.island] -= 1
            self.handle(GangStartFailed(key, "it cannot be restarted: of a test"))
            gang = self.core.gang(key)
            if gang is not None and gang.is_dead() and not self.is_closed:
                self.gave_up.append((self._lost_at[key], self.time.now))
            return
        for worker in self.of_gang[key]:
            assert not worker.is_alive, f"{worker} still has the devices of its successor"
        self._starting[key] = self._started(key.island)
        self.handle(GangStarted(key))
        # The gang was closed in the meantime.
        for worker in self._starting.pop(key, ()):
            worker.exit("killed by signal 9")

    def join(self, hosts: int) -> None:
        """Adds an island, whose workers are ready."""
        if self.is_closed:
            return
        island = len(self.shape.islands)
        self.shape = dataclasses.replace(self.shape, islands=(*self.shape.islands, hosts))
        self._starting[GangKey(island, -1)] = self._started(island)
        self.carry_out("join", self.core.add_gang(self.shape.hosts(island), self.time.now))

    def _started(self, island: int) -> tuple[SimulatedWorker, ...]:
        hosts = self.shape.hosts(island)
        collectives = Collectives(len(hosts))
        self._starts += 1
        return tuple(
            SimulatedWorker(
                island,
                host,
                rank,
                collectives,
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
                receive = functools.partial(worker.receive, channel)
                self._to[worker, channel] = SimulatedLink(self.time, chance, receive, quality)
                deliver = functools.partial(self._receive, worker)
                if worker.host in self.shape.late:
                    quality = dataclasses.replace(quality, max_delay=self.shape.late[worker.host])
                self._from[worker, channel] = SimulatedLink(self.time, chance, deliver, quality)

    def close(self) -> None:
        """Closes all gangs and ends their workers."""
        self.is_closed = True
        for gang in [*self.core.gangs]:
            self.handle(GangClosed(gang.key, "is closed"))
            for worker in self.of_gang[gang.key]:
                worker.exit("killed by signal 9")

    # Messages of workers.

    def _receive(self, worker: SimulatedWorker, message: object) -> None:
        if self.is_asleep():
            self._unread.append(functools.partial(self._receive, worker, message))
            return
        gang, now = self._gangs[worker], self.time.now
        gang.pulses[worker.host].heard = now
        match message:
            case Done(run, error, wrong):
                if error is None and not wrong:
                    self.core.done(gang, worker.host, run, now)
                    self.carry_out(message, [])
                    self.note_done(gang, run)
                else:
                    self.carry_out(message, self.core.fail(gang, worker.host, run, error, wrong, now))
            case Called(call, value, error):
                failure = None if error is None else Failure(CallFailedError, error)
                self.core.end_call(worker.host, call, value, failure)
                self.carry_out(message, [])
            case Missed(run, why):
                self.handle(InputMissed(gang.key, worker.host, run, why))
            case Reply(request, value, is_last):
                self.handle(ReplyReceived(worker.host, request, value, is_last))
            case Leaving():
                self.handle(LeaveRequested(gang.key, worker.host))
            case PeerLost(peer, why):
                assert peer.key is not None
                self.handle(PeerUnreachable(gang.key, worker.host, peer.key, peer.host, why))
            case PeerFound(peer):
                assert peer.key is not None
                self.handle(PeerReached(gang.key, worker.host, peer.key, peer.host))
            case HostLost():
                self.handle(message)
            case Pong():
                pass

    def send_from(self, worker: SimulatedWorker, channel: str, message: object) -> None:
        """Sends a message of a worker to the controller."""
        self._from[worker, channel].send(message)

    def report_exit(self, worker: SimulatedWorker, how: str) -> None:
        """Reports the exit of a process to the controller and to its peers, each at its own time."""
        self.ended_how[worker] = how
        if worker.key is None:
            return
        event = HostLost(worker.key, worker.host, f"its process has ended ({how})")
        for channel in CHANNELS:
            self.time.after(
                self._random_seconds(0.0, 0.3), functools.partial(self.send_from, worker, channel, event)
            )
        for peer in self.workers.values():
            if peer is not worker:
                miss = functools.partial(self.network.miss, peer, worker)
                self.time.after(self._random_seconds(0.0, 0.3), miss)

    def pull(self, worker: SimulatedWorker, peer: SimulatedWorker, run: int, stage: int) -> None:
        """Requests the value of a stage for a worker from another one."""
        self.network.pull(worker, peer, run, stage)

    # Faults.

    def request_exit(self, host: int) -> None:
        """Sends the process of a host a SIGTERM: it sends `Leaving`, and exits after some time."""
        worker = self.workers[host]
        if worker.is_alive and not worker.is_stopped:
            self.send_from(worker, "watch", Leaving())
            self.time.after(self.shape.limits.grace + 5.0, lambda: worker.exit("exit code 0"))

    def cut_off(self, host: int, seconds: float, *, hears: bool = False) -> None:
        """Cuts a host off from the controller for some time; with `hears` only delays its messages."""
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
            # The closed connections end a worker of a lost gang.
            if self.gang_of(worker).failure is not None and not self._is_cut(host):
                worker.exit("exit code 0")

        self.time.after(seconds, heal)

    def _is_cut(self, host: int) -> bool:
        return self.time.now < self._cut_until.get(host, 0.0)

    def _end_cut_off(self, worker: SimulatedWorker) -> None:
        """Ends a worker whose controller has not answered within its heartbeat."""
        if self._is_cut(worker.host):
            worker.exit("exit code 0")

    def cut_peers(self, first: int, second: int, seconds: float) -> None:
        """Cuts the network between two hosts for some time; beyond the heartbeat, both report it."""
        if first != second:
            worker, peer = self.workers[first], self.workers[second]
            self.network.cut(worker, peer, seconds, self.shape.limits.heartbeat)

    def isolate(self, host: int, seconds: float) -> None:
        """Cuts a host off from all other hosts for some time, but not from the controller."""
        for other in self.workers:
            self.cut_peers(host, other, seconds)

    def report_falsely(self, host: int, other: int) -> None:
        """Has a host report falsely that it does not reach a later one."""
        if host < other and self.workers[host].is_alive:
            self.send_from(self.workers[host], "watch", PeerLost(self.workers[other], "of a test"))

    def sleep(self, seconds: float) -> None:
        """Stops the controller for some time, as by Ctrl-Z."""
        self._asleep_until = max(self._asleep_until, self.time.now + seconds)
        self.time.at(self._asleep_until, self._wake_up)

    def _wake_up(self) -> None:
        while self._unread and not self.is_asleep():
            self._unread.pop(0)()

    def is_asleep(self) -> bool:
        """Returns whether the controller is stopped."""
        return self.time.now < self._asleep_until

    def _later(self, min_seconds: float, max_seconds: float, act: Callable[[], None]) -> None:
        """Has the controller do something after some time, when it is not stopped."""

        def begin() -> None:
            if self.is_asleep():
                self.time.at(self._asleep_until, begin)
            else:
                act()

        self.time.after(self._random_seconds(min_seconds, max_seconds), begin)

    def _random_seconds(self, min_seconds: float, max_seconds: float) -> float:
        return self.chance.uniform(min_seconds, max_seconds)
