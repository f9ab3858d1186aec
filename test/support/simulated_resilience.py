"""Random histories of training that recovers by itself; only the core is real.

Hosts have memory and devices, and carry out the core's effects in random times. Islands are lost with and
without their memory, return, leave and are given up; copies are slow, fail and are corrupt; the controller is
restarted. Every event is followed by a check of the invariants.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable, Collection, Mapping

from pathways.runtime.control.effects import Log
from pathways.runtime.resilience.core import ResilienceCore
from pathways.runtime.resilience.effects import (
    AbandonRun,
    CommitVersion,
    HoldSteps,
    KeepVersions,
    MakeCopies,
    PrepareReplicas,
    ReleaseIsland,
    ResilienceEffect,
    RestoreState,
    ResumeSteps,
    SaveToDisk,
    TakeSnapshot,
)
from pathways.runtime.resilience.events import (
    BoundaryReached,
    CopyCompleted,
    CopyFailed,
    DiskSaveCompleted,
    DiskSaveFailed,
    HostRestored,
    IslandAbandoned,
    IslandsUsed,
    MemoryLost,
    MetricsRead,
    RecoveryTick,
    ReplicasPrepared,
    ResilienceEvent,
    RestoreFailed,
    RunEnded,
    SnapshotStarted,
    StateInvalidated,
    WorkersLeaving,
    WorkersLost,
    WorkersReturned,
)
from pathways.runtime.resilience.phases import RunAbandoned, StepsRunning
from pathways.runtime.resilience.records import (
    BlockCopy,
    HostPlace,
    RecoveryRules,
    ReplicaTopology,
    StoredVersion,
    VersionKey,
)
from pathways.runtime.simulate.events import SimulatedTime

STEP_SECONDS = 0.4
ACT_SECONDS = 6.0
"""Seconds within which all faults occur."""

LONGEST_ABSENCE = 4.0
LONGEST_HOLD = 4.0
"""Seconds within which islands that leave are released, if copies are fast and nothing fails."""

PATIENCE = (0.0, 0.0, 1.0, 3.0)
CALM_SECONDS = 9.0
"""Seconds within which training must run again after the last fault."""

PIECES = 12
"""Blocks of values that replicas share: divisible by each number of replicas."""


class SimulatedHost:
    """Host: its workers' devices and its memory.

    Attributes:
      memory: the blocks of each version, with the step whose state they are.
      committed: the versions that are recorded as committed.
      devices: the blocks of the state with their step; None without workers.
      start: how often its workers were started.
    """

    def __init__(self) -> None:
        self.memory: dict[VersionKey, dict[str, int]] = {}
        self.committed: set[VersionKey] = set()
        self.devices: dict[str, int] | None = {}
        self.start = 0


def random_topology(chance: random.Random) -> ReplicaTopology:
    """Returns one to four islands of one or two hosts, as replicas, or as the stages of one program."""
    islands, size = chance.choice((1, 2, 2, 3, 4)), chance.choice((1, 1, 2))
    shares_machine = chance.random() < 0.3
    hosts = {
        host: HostPlace(host // size, f"m{host // size // 2 if shares_machine else host}")
        for host in range(islands * size)
    }
    if chance.random() < 0.5:
        used = islands if islands < 3 or chance.random() < 0.4 else islands - 1
        shared = {host: frozenset((f"b{host}", "everywhere")) for host in range(used * size)}
        return ReplicaTopology(hosts, (frozenset(range(used)),), lambda replicas, key=None: shared)
    has_pieces = chance.random() < 0.5

    def holdings(replicas: tuple[int, ...], key: VersionKey | None = None) -> Mapping[int, frozenset[str]]:
        held: dict[int, set[str]] = {}
        for index, replica in enumerate(replicas):
            for mate in range(size):
                held[replica * size + mate] = {f"w{mate}"}
            if has_pieces:
                own = range(index * PIECES // len(replicas), (index + 1) * PIECES // len(replicas))
                for piece in own:
                    held[replica * size + piece % size].add(f"z{piece}")
        return {host: frozenset(blocks) for host, blocks in held.items()}

    return ReplicaTopology(hosts, tuple(frozenset((island,)) for island in range(islands)), holdings)


def random_rules(chance: random.Random, replicas: int) -> RecoveryRules:
    least = chance.randint(1, replicas)
    # Some numbers do not divide the microbatches.
    counts = [n for n in range(least, replicas) if chance.random() < 0.7]
    every = chance.choice((1, 2, 4, 60, None))
    return RecoveryRules(
        every,
        None if every else chance.uniform(0.3, 1.5),
        (*counts, replicas),
        chance.choice(PATIENCE),
        chance.choice((None, None, 1, 3)),
    )


class SimulatedTraining:
    """Player of a random history.

    Args:
      seed: the seed of the history.
      make: creates the core; a planted fault is a subclass.

    Attributes:
      history: the times of the events, the events, and their effects.
      metrics: the steps whose metrics were given to the loop's body of the current controller, in order.
      counts: the counts of events, for statistics.
    """

    def __init__(self, seed: int, make: type[ResilienceCore] = ResilienceCore) -> None:
        self.chance = random.Random(seed)
        self.time = SimulatedTime()
        self.topology = random_topology(self.chance)
        self.places = self.topology.hosts
        self.islands = sorted({place.island for place in self.places.values()})
        self.rules = random_rules(self.chance, len(self.topology.replicas))
        self.make = make
        self.hosts = {host: SimulatedHost() for host in self.places}
        self.ahead = self.chance.randint(1, 3)
        self.slowest_copy = self.chance.choice((0.05, 0.5, 2.0))
        self.failing = self.chance.choice((0.0, 0.0, 0.1))
        # A shell learns what the only replica uses when its programs are loaded.
        self.learns = len(self.topology.replicas) == 1 and self.chance.random() < 0.5
        self.core = make(self.known(), self.rules)
        self.replicas = self.core.replicas
        self.disk: set[int] = set()
        self.history: list[tuple[float, object, list[ResilienceEffect]]] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.absent: set[int] = set()
        self.dead: set[int] = set()
        self.lost_at: dict[int, float] = {}
        # Events that the core has not handled yet.
        self.unknown = 0
        self.faults = 0
        self.last_failure = 0.0
        self.ends = False
        # Whether the controller is killed when it commits the next version.
        self.is_dying = False
        # The versions that hosts had when the controller began.
        self.earlier: set[VersionKey] = set()
        self.new_controller(first=0)
        for host, blocks in self.topology.holdings(self.replicas).items():
            self.devices(host).update(dict.fromkeys(blocks, 0))

    def new_controller(self, first: int) -> None:
        self.step = self.first = first
        self.metrics: list[int] = []
        self.is_held = True
        self.is_spoiled = False
        self.attempt = 0
        self.generation = object()
        self.copies: dict[int, tuple[VersionKey, BlockCopy]] = {}
        self.snapshots: dict[VersionKey, dict[int, dict[str, int]]] = {}
        self.committed: VersionKey | None = None
        self.may_restore: set[VersionKey] = set()
        self.dropped: set[VersionKey] = set()
        self.restoring: RestoreState | None = None
        self.has_released = False
        self.has_learnt = not self.learns
        if self.learns:
            self.later(self.chance.uniform(0, ACT_SECONDS / 2), self.learn)

    def known(self) -> ReplicaTopology:
        """Returns the topology as a new controller knows it."""
        if not self.learns:
            return self.topology
        return dataclasses.replace(self.topology, replicas=(frozenset(self.islands),))

    def learn(self) -> None:
        """Notifies the core of the islands that steps use."""
        self.has_learnt = True
        self.notify(IslandsUsed(self.topology.replicas[0]))

    def devices(self, host: int) -> dict[str, int]:
        devices = self.hosts[host].devices
        assert devices is not None, f"host {host} has no workers"
        return devices

    # Play.

    def play(self) -> None:
        """Plays the history; an assertion fails when an invariant does not hold."""
        self.do(self.core.start(0.0), None)
        kinds = self.chance.sample(list(ACTS), self.chance.randint(1, 4))
        for _ in range(self.chance.choice((0, 1, 2, 4, 6))):
            act = ACTS[self.chance.choice(kinds)]
            self.time.at(self.chance.uniform(0, ACT_SECONDS), lambda act=act: act(self))
        self.time.after(STEP_SECONDS, self.issue)
        self.time.after(0.3, self.tick)
        self.time.run_until(ACT_SECONDS + LONGEST_ABSENCE)
        self.failing = 0.0
        self.slowest_copy = min(self.slowest_copy, 0.5)
        self.time.run_until(self.time.now + CALM_SECONDS)
        self.check_end()

    def notify(self, event: ResilienceEvent) -> None:
        self.do(self.core.handle(event, self.time.now), event)

    def do(self, effects: list[ResilienceEffect], event: object) -> None:
        self.history.append((self.time.now, event, effects))
        generation = self.generation
        for effect in effects:
            if self.is_dying and isinstance(effect, CommitVersion) and self.may_restart():
                self.die_in_commit(effect, effects)
            if generation is not self.generation:
                return
            self.apply(effect)
        self.check()

    def tick(self) -> None:
        self.notify(RecoveryTick())
        self.time.after(0.3, self.tick)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Calls a function in some seconds, unless the controller is restarted before."""
        generation = self.generation
        self.time.after(seconds, lambda: act() if generation is self.generation else None)

    def issue(self) -> None:
        """Issues a step, and notifies the core of the boundary after it."""
        self.time.after(STEP_SECONDS * self.chance.uniform(0.8, 1.2), self.issue)
        if self.is_held or self.ends or self.step - self.first - len(self.metrics) >= self.ahead:
            return
        self.step += 1
        for host, blocks in self.topology.holdings(self.replicas).items():
            if self.hosts[host].devices is not None:
                self.devices(host).update(dict.fromkeys(blocks, self.step))
        attempt, number = self.attempt, self.step - 1
        if not self.is_spoiled:
            self.later(self.chance.uniform(0.2, 0.4), lambda: self.read_metrics(attempt, number))
        self.notify(BoundaryReached(self.attempt, self.step))

    def read_metrics(self, attempt: int, number: int) -> None:
        if attempt != self.attempt or self.is_spoiled:
            return
        expected = self.first + len(self.metrics)
        if number < expected:
            # The metrics were given before the step was run again.
            return
        if number > expected:
            self.later(0.1, lambda: self.read_metrics(attempt, number))
            return
        self.metrics.append(number)
        self.notify(MetricsRead(number + 1))

    # Effects.

    def apply(self, effect: ResilienceEffect) -> None:
        match effect:
            case TakeSnapshot(key):
                self.take_snapshot(key)
            case MakeCopies(key, copies):
                self.make_copies(key, copies)
            case CommitVersion(key, hosts):
                self.commit(key, hosts)
            case KeepVersions(hosts, keys):
                self.keep(hosts, keys)
            case HoldSteps():
                self.is_held = True
            case RestoreState():
                self.restore(effect)
            case ResumeSteps(attempt, step, replicas):
                self.resume(attempt, step, replicas)
            case PrepareReplicas(replicas):
                self.later(self.chance.uniform(0, 1), lambda: self.notify(ReplicasPrepared(replicas)))
            case ReleaseIsland(island):
                self.release(island)
            case SaveToDisk(key):
                self.later(self.chance.uniform(0.1, 2), lambda: self.save(key))
            case AbandonRun(why):
                self.check_abandoned(why)
            case Log():
                pass

    def release(self, island: int) -> None:
        """Lets an island end that leaves; its machine may end, too, if others stay."""
        self.counts["islands released"] += 1
        self.lost_at[island] = self.time.now
        self.has_released = True
        staying = self.core.islands.present
        if not self.unknown and staying:
            assert self.committed is not None
            left = {
                block
                for host in self.topology.hosts_of(staying)
                for block in self.hosts[host].memory.get(self.committed, ())
            }
            lost = frozenset().union(*self.topology.holdings(self.replicas).values()) - left
            assert not lost, f"island{island} is released with the last copy of {lost}"
        memory = bool(staying) and self.chance.random() < 0.4
        self.later(self.chance.uniform(0, 0.5), lambda: self.lose(island, memory=memory, is_expected=True))

    def take_snapshot(self, key: VersionKey) -> None:
        assert key.step == self.step, f"{key} is not at this boundary"
        assert key not in self.earlier, f"{key} has the name of one of an earlier controller"
        assert self.committed is None or self.committed != key
        holdings = self.topology.holdings(self.replicas)
        if not self.is_spoiled:
            self.snapshots[key] = {
                h: {b: self.devices(h)[b] for b in blocks} for h, blocks in holdings.items()
            }
        self.counts["snapshots"] += 1
        self.notify(SnapshotStarted(key, holdings))

    def make_copies(self, key: VersionKey, copies: Collection[BlockCopy]) -> None:
        for copy in copies:
            self.copies[copy.number] = key, copy
            starts = self.hosts[copy.source].start, self.hosts[copy.target].start
            self.later(
                self.chance.uniform(0.01, self.slowest_copy),
                lambda copy=copy, starts=starts: self.copy(copy, starts),
            )
        for islands in self.islands_of_blocks(key).values():
            assert len(set(islands)) == len(islands), f"both copies of {key} on one island"

    def islands_of_blocks(self, key: VersionKey) -> Mapping[str, list[int]]:
        """Returns the islands of the copies of each block of a version, including copies in flight."""
        holders: dict[str, set[int]] = collections.defaultdict(set)
        for host, own in self.hosts.items():
            for block in own.memory.get(key, ()):
                holders[block].add(host)
        for other, copy in self.copies.values():
            if other == key:
                for block in copy.blocks:
                    holders[block].add(copy.target)
        return {block: [self.places[host].island for host in hosts] for block, hosts in holders.items()}

    def copy(self, copy: BlockCopy, starts: tuple[int, int]) -> None:
        if copy.number not in self.copies:
            return
        key, _ = self.copies[copy.number]
        source, target = self.hosts[copy.source], self.hosts[copy.target]
        if target.devices is None or starts[1] != target.start:
            del self.copies[copy.number]
            return
        if source.devices is None or starts[0] != source.start:
            del self.copies[copy.number]
            self.later(0.1, lambda: self.notify(CopyFailed(copy.number, "its source is lost")))
            return
        if self.chance.random() < self.failing:
            del self.copies[copy.number]
            self.last_failure = self.time.now
            self.notify(CopyFailed(copy.number, "no space"))
            return
        own = copy.source == copy.target
        values = self.snapshots.get(key, {}).get(copy.source) if own else source.memory.get(key)
        if values is None or not copy.blocks <= values.keys():
            if any(
                k == key and c.source == c.target == copy.source != copy.target
                for k, c in self.copies.values()
            ):
                self.later(0.1, lambda: self.copy(copy, starts))
            else:
                del self.copies[copy.number]
                self.later(0.1, lambda: self.notify(CopyFailed(copy.number, "there is nothing to copy")))
            return
        target.memory.setdefault(key, {}).update({block: values[block] for block in copy.blocks})
        assert len(target.memory) <= 2, f"host {copy.target} has versions {sorted(target.memory)}"
        del self.copies[copy.number]
        self.later(self.chance.choice((0.0, 0.2)), lambda: self.notify(CopyCompleted(copy.number)))

    def commit(self, key: VersionKey, hosts: Collection[int]) -> None:
        assert key not in self.dropped, f"{key} was dropped, and commits"
        assert self.committed is None or key > self.committed, f"{key} commits after {self.committed}"
        assert self.first + len(self.metrics) >= key.step, f"metrics before {key} were not read"
        if not self.unknown:
            held = self.topology.holdings(self.replicas)
            for block in frozenset().union(*held.values()):
                assert any(block in host.memory.get(key, ()) for host in self.hosts.values()), (
                    f"{key} commits without {block}"
                )
        for host in hosts:
            if self.hosts[host].devices is not None and key in self.hosts[host].memory:
                self.hosts[host].committed.add(key)
        self.committed = key
        self.may_restore.add(key)
        self.counts["commits"] += 1

    def keep(self, hosts: Collection[int], keys: Collection[VersionKey]) -> None:
        assert len(keys) <= 2, f"more than two versions: {keys}"
        known = {*self.snapshots, *self.may_restore, *(key for key, _ in self.copies.values())}
        self.dropped |= known - set(keys)
        self.copies = {number: (key, copy) for number, (key, copy) in self.copies.items() if key in keys}
        for host in hosts:
            own = self.hosts[host]
            if own.devices is not None:
                own.memory = {key: values for key, values in own.memory.items() if key in keys}
                own.committed &= set(keys)

    def restore(self, restore: RestoreState) -> None:
        if restore.key is None:
            assert restore.step in self.disk, f"no version {restore.step} on disk"
            assert (
                self.committed is None or self.is_lost(self.committed) or restore.step > self.committed.step
            )
        else:
            assert restore.key in self.may_restore, f"{restore.key} was never committed"
            assert restore.key not in self.dropped, f"{restore.key} was dropped"
            assert restore.key == self.committed or self.is_lost(self.committed), f"not {self.committed}"
        assert not self.has_released or restore.step == self.step, "steps are run again though none was lost"
        self.has_released = False
        self.committed = restore.key
        self.check_replicas(restore.replicas)
        if self.attempt == 0 and not self.metrics:
            self.first = self.step = restore.step
        assert restore.step <= self.first + len(self.metrics), "steps are skipped"
        self.restoring, self.attempt, self.step, self.is_held = restore, restore.attempt, restore.step, True
        self.is_spoiled = any(self.hosts[h].devices is None for h in restore.hosts)
        self.counts["restores from disk" if restore.key is None else "restores"] += 1
        for host in restore.hosts:
            own, start = self.hosts[host], self.hosts[host].start
            own.devices = None if own.devices is None else {}
            self.later(
                self.chance.uniform(0.01, 0.5), lambda h=host, s=start: self.restore_host(restore, h, s)
            )

    def check_replicas(self, replicas: tuple[int, ...]) -> None:
        assert len(replicas) in self.rules.counts, f"{len(replicas)} replicas are not allowed"
        missing = frozenset().union(*self.topology.replicas) - self.topology.islands(replicas)
        if len(replicas) == len(self.topology.replicas):
            return
        absent = [island for island in missing if island in self.lost_at]
        assert absent, f"replicas {replicas} run though no island is lost"
        for island in absent:
            waited = self.time.now - self.lost_at[island]
            assert island in self.dead or waited >= self.rules.patience - 1e-9, f"waited {waited:.1f} s"

    def restore_host(self, restore: RestoreState, host: int, start: int) -> None:
        own = self.hosts[host]
        if restore is not self.restoring or own.devices is None or own.start != start:
            return
        state: dict[str, int] = {}
        needs = self.topology.holdings(restore.replicas).get(host, frozenset())
        if restore.key is None:
            state = dict.fromkeys(needs, restore.step)
        for load in restore.loads:
            if load.host != host:
                continue
            source = self.hosts[load.source]
            values = source.memory.get(restore.key, {}) if restore.key else {}
            if self.chance.random() < self.failing / 2:
                values = {}
                source.memory.pop(restore.key, None)
                self.counts["corrupt copies"] += 1
            if source.devices is None or not load.blocks <= values.keys():
                is_corrupt = source.devices is not None
                self.notify(RestoreFailed(restore.attempt, host, load.source, "it is not there", is_corrupt))
                return
            state |= {block: values[block] for block in load.blocks}
        assert set(state) == needs, f"host {host} restores {sorted(state)}, and needs {sorted(needs)}"
        own.devices = state
        self.later(
            self.chance.choice((0.0, 0.3, 1.0)), lambda: self.notify(HostRestored(restore.attempt, host))
        )

    def resume(self, attempt: int, step: int, replicas: tuple[int, ...]) -> None:
        assert step == self.step, f"steps go on from {step} at {self.step}"
        assert attempt == self.attempt or self.restoring is None
        self.attempt, self.is_held, self.has_released = attempt, False, False
        if self.restoring is not None:
            self.replicas, self.restoring = replicas, None
        assert replicas == self.replicas
        if not self.unknown:
            self.is_spoiled = False
            for host, blocks in self.topology.holdings(replicas).items():
                devices = self.devices(host)
                assert {devices.get(block) for block in blocks} == {step}, (
                    f"host {host} has {devices} at {step}"
                )

    def save(self, key: VersionKey) -> None:
        blocks = frozenset().union(
            *self.topology.holdings(tuple(range(len(self.topology.replicas)))).values()
        )
        there = {
            b for host in self.hosts.values() if host.devices is not None for b in host.memory.get(key, ())
        }
        if self.chance.random() < self.failing or not blocks <= there:
            self.notify(DiskSaveFailed(key, "no space"))
            return
        self.disk.add(key.step)
        self.counts["saves"] += 1
        self.notify(DiskSaveCompleted(key))

    # Acts.

    def lose(self, island: int, *, memory: bool = False, is_expected: bool = False) -> None:
        """Ends the workers of an island; with `memory`, also frees what its hosts keep."""
        if island in self.absent:
            return
        self.absent.add(island)
        self.unknown += 1
        self.faults += not is_expected
        replicas = self.replicas if self.restoring is None else self.restoring.replicas
        if island in self.topology.islands(replicas) and not is_expected:
            self.is_spoiled = True
        hosts = self.topology.hosts_of(frozenset((island,)))
        for host in hosts:
            self.hosts[host].devices = None
            if memory:
                self.has_released = self.has_released and is_expected
                self.hosts[host].memory, self.hosts[host].committed = {}, set()
        self.counts["losses with memory" if memory else "losses"] += 1
        returns = self.chance.random() < 0.9
        generation = self.generation

        def notice() -> None:
            if generation is not self.generation:
                return
            self.unknown -= 1
            self.lost_at.setdefault(island, self.time.now)
            is_running = isinstance(self.core.phase, StepsRunning)
            self.notify(WorkersLost(island, "killed by signal 9"))
            if is_running and self.has_learnt and island not in self.topology.islands(self.replicas):
                assert not self.is_held, f"steps wait for island{island}, which they do not use"
                self.counts["losses of unused islands"] += 1
            for host in hosts if memory else ():
                self.notify(MemoryLost(host))

        wait = self.chance.choice((0.0, 0.05, 0.3))
        self.time.after(wait, notice)
        if returns or self.dead or len(self.islands) == 1:
            self.time.after(
                wait + self.chance.uniform(0.01, LONGEST_ABSENCE - 0.5), lambda: self.give_back(island)
            )
        else:
            self.dead.add(island)
            self.later(wait + 0.5, lambda: self.notify(IslandAbandoned(island)))

    def give_back(self, island: int) -> None:
        self.absent.discard(island)
        self.lost_at.pop(island, None)
        for host in self.topology.hosts_of(frozenset((island,))):
            self.hosts[host].devices = {}
            self.hosts[host].start += 1
        copies = {
            host: {key: frozenset(values) for key, values in self.hosts[host].memory.items()}
            for host in self.topology.hosts_of(frozenset((island,)))
        }
        self.notify(WorkersReturned(island, copies))

    def lose_folder(self) -> None:
        """Frees the memory of a host, but not its workers."""
        self.has_released = False
        self.faults += 1
        host = self.chance.choice(sorted(self.hosts))
        self.hosts[host].memory, self.hosts[host].committed = {}, set()
        self.counts["folders lost"] += 1
        if self.hosts[host].devices is not None:
            self.copies = {n: (key, c) for n, (key, c) in self.copies.items() if host != c.target}
        self.notify(MemoryLost(host))

    def fail_step(self) -> None:
        """Has a step fail that has taken over the state."""
        if self.is_held:
            return
        self.has_released = False
        self.faults += 1
        self.counts["steps failed"] += 1
        self.notify(StateInvalidated("step failed"))

    def leave(self, island: int) -> None:
        """Requests an island to exit, which it does after a while even if it is not released."""
        if island in self.absent:
            return
        generation, faults, is_calm = self.generation, self.faults, self.is_calm()
        starts = self.starts(island)
        grace = self.chance.choice((0.5, LONGEST_HOLD))
        self.notify(WorkersLeaving(island))

        def end() -> None:
            if island in self.absent or starts != self.starts(island):
                return
            undisturbed = is_calm and (generation, faults) == (self.generation, self.faults)
            assert grace < LONGEST_HOLD or not undisturbed, f"island{island} was not released in time"
            self.counts["islands not released in time"] += 1
            self.lose(island)

        self.time.after(grace, end)

    def starts(self, island: int) -> list[int]:
        return [self.hosts[host].start for host in self.topology.hosts_of(frozenset((island,)))]

    def is_calm(self) -> bool:
        """Returns whether an island that leaves now is released soon, if nothing is lost meanwhile."""
        is_running = isinstance(self.core.phase, StepsRunning) and not self.absent and not self.unknown
        return is_running and self.slowest_copy <= 0.5 and not self.failing

    def may_restart(self) -> bool:
        return not (self.absent or self.unknown or self.ends or isinstance(self.core.phase, RunAbandoned))

    def kill_controller(self) -> None:
        """Has the controller killed when it commits the next version."""
        self.is_dying = True

    def die_in_commit(self, commit: CommitVersion, effects: list[ResilienceEffect]) -> None:
        """Ends the controller while hosts carry out a commit, and what follows: each in order, or nothing."""
        self.is_dying = False
        self.counts["kills in commits"] += 1
        keeps = [effect for effect in effects if isinstance(effect, KeepVersions)]
        for number, host in self.hosts.items():
            reached = self.chance.choice((0, 1, 2))
            if reached and commit.key in host.memory:
                host.committed.add(commit.key)
            if reached == 2:
                for effect in keeps:
                    self.keep((number,), effect.keys)
        self.restart_controller()

    def restart_controller(self) -> None:
        """Ends the controller; another one reads the memory of hosts, once all islands are connected."""
        if not self.may_restart():
            return
        for host in self.hosts.values():
            # Machines may restart until then.
            if self.chance.random() < 0.15:
                host.memory, host.committed = {}, set()
        stored = {}
        for key in {key for host in self.hosts.values() for key in host.memory}:
            blocks = {n: frozenset(h.memory[key]) for n, h in self.hosts.items() if key in h.memory}
            is_committed = any(key in host.committed for host in self.hosts.values())
            version = self.core.table.versions.get(key)
            replicas = version.replicas if version is not None else self.replicas
            stored[key] = StoredVersion(blocks, is_committed, replicas)
        self.counts["controllers restarted"] += 1
        # The new controller begins at the right step, which only the memory of hosts determines.
        self.new_controller(first=0)
        self.may_restore = {key for key, one in stored.items() if one.is_committed}
        self.committed = max((key for key in self.may_restore if not self.is_lost(key)), default=None)
        self.replicas = tuple(range(len(self.topology.replicas)))
        held = self.topology.holdings(self.replicas)
        for number, host in self.hosts.items():
            # The state that the new controller begins with, if there is no version.
            host.devices = dict.fromkeys(held.get(number, ()), 0)
        self.core = self.make(self.known(), self.rules, stored, self.disk)
        steps = {*self.disk, *(() if self.committed is None else (self.committed.step,))}
        if steps:
            self.counts["runs that go on"] += 1
        self.earlier = set(stored)
        effects = self.core.start(self.time.now)
        assert not any(isinstance(effect, AbandonRun) for effect in effects), "it does not begin"
        restored = [effect.step for effect in effects if isinstance(effect, RestoreState)]
        assert restored == ([max(steps)] if steps else []), f"{restored} is restored of {sorted(steps)}"
        self.do(effects, None)

    # Invariants.

    def is_lost(self, key: VersionKey | None) -> bool:
        """Returns whether some block of a version is in no memory that a worker will have again."""
        if key is None:
            return True
        needed = frozenset().union(
            *self.topology.holdings(tuple(range(len(self.topology.replicas)))).values()
        )
        there = {
            block
            for number, host in self.hosts.items()
            if self.places[number].island not in self.dead
            for block in host.memory.get(key, ())
        }
        return not needed <= there

    def check(self) -> None:
        core = self.core
        for number, host in self.hosts.items():
            assert len(host.memory) <= 2 or host.devices is None, f"host {number} has {sorted(host.memory)}"
            for key, values in host.memory.items():
                assert set(values.values()) <= {key.step}, f"host {number} has {values} as {key}"
        if self.unknown or core.table.committed is None or not core.is_protected:
            return
        key = core.table.committed.key
        assert key == self.committed
        blocks = frozenset().union(*self.topology.holdings(self.replicas).values())
        for island in self.islands:
            left = {
                block
                for number, host in self.hosts.items()
                if self.places[number].island != island and host.devices is not None
                for block in host.memory.get(key, ())
            }
            assert blocks <= left, f"protected, but the loss of island{island} loses {blocks - left}"

    def check_abandoned(self, why: str) -> None:
        self.counts["abandoned"] += 1
        self.ends = True
        if "allowed" in why:
            topology = self.topology if self.has_learnt else self.known()
            able = [own for own in topology.replicas if not own & self.dead]
            assert len(able) < self.rules.counts[0], why
            return
        assert not self.disk, f"there is a version on disk: {why}"
        if "first copies" not in why and "be protected" not in why:
            assert self.is_lost(self.committed), f"{self.committed} is whole: {why}"
        else:
            assert self.committed is None, why

    def check_end(self) -> None:
        assert self.metrics == [*range(self.first, self.first + len(self.metrics))]
        if isinstance(self.core.phase, RunAbandoned):
            return
        assert isinstance(self.core.phase, StepsRunning), f"it does not go on: {self.core.phase}"
        before = len(self.metrics)
        # Steps that are run again give no metrics.
        again = max(0, self.first + before - self.step) * 2 * STEP_SECONDS
        self.time.run_until(self.time.now + 2.0 + again)
        assert len(self.metrics) > before, "steps do not go on"
        alive = [island for island in self.islands if island not in self.dead]
        whole = [own for own in self.topology.replicas if own <= set(alive)]
        best = max(n for n in self.rules.counts if n <= len(whole))
        assert len(self.replicas) == best, f"{len(self.replicas)} replicas run of {best} that could"
        self.ends = True
        self.time.run_until(self.time.now + 4.0)
        assert self.core.is_protected == (len(alive) > 1), "copies are not made again"
        assert self.step == self.first + len(self.metrics)
        assert (
            len({key for host in self.hosts.values() if host.devices is not None for key in host.memory}) <= 2
        )
        self.notify(RunEnded(keeps=False))
        for number, host in self.hosts.items():
            assert host.devices is None or not host.memory, f"host {number} keeps {sorted(host.memory)}"


ACTS: Mapping[str, Callable[[SimulatedTraining], None]] = {
    "kill": lambda run: run.lose(run.chance.choice(run.islands)),
    "kill machine": lambda run: run.lose(run.chance.choice(run.islands), memory=True),
    "kill all": lambda run: [run.lose(island) for island in run.islands] and None,
    "kill two": lambda run: (
        [
            run.lose(island, memory=run.chance.random() < 0.5)
            for island in run.chance.sample(run.islands, min(2, len(run.islands)))
        ]
        and None
    ),
    "lose folder": SimulatedTraining.lose_folder,
    "leave": lambda run: run.leave(run.chance.choice(run.islands)),
    "leave two": lambda run: (
        [
            run.later(run.chance.uniform(0, 1), lambda island=island: run.leave(island))
            for island in run.chance.sample(run.islands, min(2, len(run.islands)))
        ]
        and None
    ),
    "restart controller": SimulatedTraining.restart_controller,
    "kill controller": SimulatedTraining.kill_controller,
    "fail step": SimulatedTraining.fail_step,
}


def problem(seed: int, make: type[ResilienceCore] = ResilienceCore) -> str | None:
    """Returns the problem of a history; None if there is none."""
    what = problem_of(SimulatedTraining(seed, make))
    return None if what is None else f"seed {seed}: {what}"


def problem_of(training: SimulatedTraining) -> str | None:
    """Plays a history; returns its problem, and None if there is none."""
    try:
        training.play()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def described(training: SimulatedTraining) -> str:
    """Returns the events of a history that was played, and the effects of each."""
    lines = [f"hosts {dict(training.places)}, replicas {training.topology.replicas}", str(training.rules)]
    for at, event, effects in training.history:
        if effects or not isinstance(event, RecoveryTick):
            lines += [f"{at:6.2f} {event}", *(f"         -> {effect}" for effect in effects)]
    return "\n".join(lines)
