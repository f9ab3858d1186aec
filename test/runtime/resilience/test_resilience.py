"""Random histories of training that goes on by itself, with planted faults, and what the core decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from simulated_resilience import problem

from examples import examples
from pathways.runtime.control.effects import Log
from pathways.runtime.resilience import core as cores
from pathways.runtime.resilience import recovery, versions
from pathways.runtime.resilience.core import ResilienceCore
from pathways.runtime.resilience.disk_saves import DiskSaves
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
    SnapshotStarted,
    StateInvalidated,
    WorkersLeaving,
    WorkersLost,
    WorkersReturned,
)
from pathways.runtime.resilience.islands import TrainingIslands
from pathways.runtime.resilience.records import (
    BlockLoad,
    HostPlace,
    RecoveryRules,
    ReplicaTopology,
    StoredVersion,
    VersionKey,
)
from pathways.runtime.resilience.version_manager import VersionManager
from pathways.runtime.resilience.versions import StateVersion, VersionTable

SEEDS = examples(300)
FOUND = 2000
"""Within so many seeds each planted fault is found."""


@pytest.mark.quick
def test_resilience_keeps_its_rules_in_random_histories():
    """To see one: `python test/runtime/resilience/resilience_histories.py --first SEED --count 1 -v`."""
    assert [wrong for seed in range(SEEDS) if (wrong := problem(seed))] == []


# Planted faults.

Plant = Callable[[pytest.MonkeyPatch], None]


def buddies_are_of_the_same_island(patch: pytest.MonkeyPatch) -> None:
    def mate(host: int, present: Any, hosts: Any) -> int | None:
        return next((h for h in present if h != host and hosts[h].island == hosts[host].island), None)

    patch.setattr("pathways.runtime.resilience.placement._buddy", mate)


def there_are_no_buddies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(versions, "place_buddy_copies", lambda copies, present, hosts, leaving: {})


def each_mate_keeps_a_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(versions, "place_own_copies", lambda holdings, hosts: dict(holdings))


def versions_commit_without_their_copies(patch: pytest.MonkeyPatch) -> None:
    commit = VersionManager.commit

    def early(self: VersionManager, now: float) -> list[ResilienceEffect]:
        version = self.table.pending
        if version is not None and len(version.pending) == 1:
            version.pending = {}
        return commit(self, now)

    patch.setattr(VersionManager, "commit", early)


def versions_commit_before_metrics_are_read(patch: pytest.MonkeyPatch) -> None:
    commit = VersionManager.commit

    def early(self: VersionManager, now: float) -> list[ResilienceEffect]:
        self.metrics_read += 1
        return commit(self, now)

    patch.setattr(VersionManager, "commit", early)


def versions_of_lost_attempts_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VersionTable, "drop_pending", lambda self: False)


def the_old_version_goes_when_the_new_one_begins(patch: pytest.MonkeyPatch) -> None:
    start = ResilienceCore._start_copies

    def early(self: ResilienceCore, started: SnapshotStarted, now: float) -> list[ResilienceEffect]:
        if (committed := self.table.committed) is not None:
            del self.table.versions[committed.key]
        return [self.versions.keep(), *start(self, started, now)]

    patch.setattr(ResilienceCore, "_start_copies", early)


def any_number_of_versions_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VersionTable, "drop_old", lambda self: False)
    patch.setattr(VersionTable, "has_room", lambda self: self.pending is None)


def uncommitted_versions_are_restored(patch: pytest.MonkeyPatch) -> None:
    def any_whole(self: VersionTable, hosts: Any) -> StateVersion | None:
        whole = [version for version in self.versions.values() if not version.missing_at(hosts)]
        return max(whole, key=lambda version: version.key, default=None)

    patch.setattr(VersionTable, "newest_whole", any_whole)
    patch.setattr(VersionTable, "drop_pending", lambda self: False)


def lost_memory_is_not_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateVersion, "lose_copies", lambda self, hosts: None)


def memory_without_workers_is_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        StateVersion, "missing_at", lambda self, hosts: self.blocks.difference(*self.copies.values())
    )


def lost_copies_stay_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VersionManager, "protect", lambda self: [])


def hosts_without_workers_protect(patch: pytest.MonkeyPatch) -> None:
    def lie(self: ResilienceCore) -> bool:
        version, places = self.table.committed, self.islands.topology.hosts
        return version is not None and version.is_doubled([*places], places)

    patch.setattr(ResilienceCore, "is_protected", property(lie))


def the_disk_is_preferred(patch: pytest.MonkeyPatch) -> None:
    plan = recovery.plan_recovery

    def from_disk(table: VersionTable, islands: Any, disk: DiskSaves, now: float) -> Any:
        return plan(table if disk.last is None else VersionTable(), islands, disk, now)

    patch.setattr(cores, "plan_recovery", from_disk)


def memory_of_islands_that_return_is_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrainingIslands, "hosts_that_return", lambda self: self.hosts)


def the_first_host_that_has_restored_is_enough(patch: pytest.MonkeyPatch) -> None:
    finish = ResilienceCore._finish_restore

    def one(self: ResilienceCore, restored: HostRestored, now: float) -> list[ResilienceEffect]:
        if isinstance(self.phase, cores.RestoringState):
            self.phase = dataclasses.replace(self.phase, pending=frozenset((restored.host,)))
        return finish(self, restored, now)

    patch.setattr(ResilienceCore, "_finish_restore", one)


def answers_of_earlier_attempts_count(patch: pytest.MonkeyPatch) -> None:
    finish = ResilienceCore._finish_restore

    def late(self: ResilienceCore, restored: HostRestored, now: float) -> list[ResilienceEffect]:
        return finish(self, dataclasses.replace(restored, attempt=self.attempt), now)

    patch.setattr(ResilienceCore, "_finish_restore", late)


def corrupt_copies_are_read_again(patch: pytest.MonkeyPatch) -> None:
    fail = ResilienceCore._fail_restore

    def again(self: ResilienceCore, failed: RestoreFailed, now: float) -> list[ResilienceEffect]:
        return fail(self, dataclasses.replace(failed, is_corrupt=False), now)

    patch.setattr(ResilienceCore, "_fail_restore", again)


def no_island_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrainingIslands, "_is_overdue", lambda self, island, now: True)


def islands_are_waited_for_longer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrainingIslands, "_is_overdue", lambda self, island, now: False)


def any_number_of_replicas_runs(patch: pytest.MonkeyPatch) -> None:
    init = ResilienceCore.__init__

    def free(self: ResilienceCore, topology: ReplicaTopology, rules: RecoveryRules, *rest: Any) -> None:
        counts = tuple(range(1, len(topology.replicas) + 1))
        init(self, topology, dataclasses.replace(rules, counts=counts), *rest)

    patch.setattr(ResilienceCore, "__init__", free)


def fewer_replicas_run_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrainingIslands, "grows", lambda self, running: False)


def leaving_islands_take_an_earlier_version_along(patch: pytest.MonkeyPatch) -> None:
    hold = ResilienceCore._hold

    def early(self: ResilienceCore, key: VersionKey, now: float) -> list[ResilienceEffect]:
        last = self.table.committed
        return hold(self, key if last is None else last.key, now)

    patch.setattr(ResilienceCore, "_hold", early)


def leaving_islands_keep_copies_of_staying_ones(patch: pytest.MonkeyPatch) -> None:
    place = versions.place_buddy_copies
    patch.setattr(
        versions, "place_buddy_copies", lambda copies, present, hosts, leaving: place(copies, present, hosts)
    )


def leaving_islands_are_released_before_they_are_copied(patch: pytest.MonkeyPatch) -> None:
    def early(self: ResilienceCore, now: float) -> list[ResilienceEffect]:
        last = self.table.committed
        if not self.islands.leaving or last is None or not isinstance(self.phase, cores.StepsRunning):
            return []
        return [HoldSteps(), *self.versions.release_leaving(last.key, now), *self._recover(now)]

    patch.setattr(ResilienceCore, "_hold_for_leaving", early)


def leaving_islands_are_kept_until_they_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ResilienceCore, "_hold_for_leaving", lambda self, now: [])


def unused_islands_are_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ReplicaTopology, "islands", lambda self, replicas: frozenset(p.island for p in self.hosts.values())
    )


def answers_of_unused_islands_are_awaited(patch: pytest.MonkeyPatch) -> None:
    remove = ResilienceCore._remove

    def lose_silently(self: ResilienceCore, island: int, now: float) -> list[ResilienceEffect]:
        if isinstance(self.phase, cores.RestoringState) and island not in self.islands.topology.islands((0,)):
            self.islands.present -= {island}
            return []
        return remove(self, island, now)

    patch.setattr(ResilienceCore, "_remove", lose_silently)


def hosts_that_return_keep_what_was_dropped(patch: pytest.MonkeyPatch) -> None:
    def keep_at_first(self: VersionManager) -> KeepVersions:
        return KeepVersions(self._islands.hosts[:1], tuple(sorted(self.table.versions)))

    patch.setattr(VersionManager, "keep", keep_at_first)


def uncommitted_versions_of_earlier_controllers_are_restored(patch: pytest.MonkeyPatch) -> None:
    init = ResilienceCore.__init__

    def trusting(self: ResilienceCore, topology: Any, rules: Any, stored: Any = None, *rest: Any) -> None:
        committed = {key: dataclasses.replace(one, is_committed=True) for key, one in (stored or {}).items()}
        init(self, topology, rules, committed, *rest)

    patch.setattr(ResilienceCore, "__init__", trusting)


def versions_of_earlier_controllers_that_are_broken_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VersionTable, "drop_broken", lambda self, hosts: [])


def controllers_use_the_names_of_earlier_ones(patch: pytest.MonkeyPatch) -> None:
    init = ResilienceCore.__init__

    def forgetful(self: ResilienceCore, *rest: Any) -> None:
        init(self, *rest)
        self.attempt = 0

    patch.setattr(ResilienceCore, "__init__", forgetful)


PLANTS: list[Plant] = [
    buddies_are_of_the_same_island,
    there_are_no_buddies,
    each_mate_keeps_a_copy,
    versions_commit_without_their_copies,
    versions_commit_before_metrics_are_read,
    versions_of_lost_attempts_commit,
    the_old_version_goes_when_the_new_one_begins,
    any_number_of_versions_is_kept,
    uncommitted_versions_are_restored,
    lost_memory_is_not_noted,
    memory_without_workers_is_read,
    lost_copies_stay_lost,
    hosts_without_workers_protect,
    the_disk_is_preferred,
    memory_of_islands_that_return_is_given_up,
    the_first_host_that_has_restored_is_enough,
    answers_of_earlier_attempts_count,
    corrupt_copies_are_read_again,
    no_island_is_waited_for,
    islands_are_waited_for_longer,
    any_number_of_replicas_runs,
    fewer_replicas_run_for_ever,
    leaving_islands_take_an_earlier_version_along,
    leaving_islands_keep_copies_of_staying_ones,
    leaving_islands_are_released_before_they_are_copied,
    leaving_islands_are_kept_until_they_are_lost,
    hosts_that_return_keep_what_was_dropped,
    unused_islands_are_waited_for,
    answers_of_unused_islands_are_awaited,
    uncommitted_versions_of_earlier_controllers_are_restored,
    versions_of_earlier_controllers_that_are_broken_count,
    controllers_use_the_names_of_earlier_ones,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_resilience_histories_find_planted_faults(plant: Plant, monkeypatch: pytest.MonkeyPatch):
    plant(monkeypatch)
    assert any(problem(seed) for seed in range(FOUND))


# Decisions.


class Shell:
    """Shell of a core; its copies and restores are complete at once, unless `is_slow`.

    Args:
      core: the core.
      holdings: the blocks that each host has on its devices.
    """

    def __init__(self, core: ResilienceCore, is_slow: bool = False) -> None:
        self.core = core
        self.is_slow = is_slow
        self.now = 0.0
        self.effects: list[ResilienceEffect] = []
        self.take(core.start(0.0))

    def take(self, effects: list[ResilienceEffect]) -> None:
        for effect in effects:
            self.effects.append(effect)
            match effect:
                case TakeSnapshot(key):
                    self.notify(SnapshotStarted(key, self.core.islands.topology.holdings(self.core.replicas)))
                case MakeCopies(_, copies) if not self.is_slow:
                    for copy in copies:
                        self.notify(CopyCompleted(copy.number))
                case RestoreState() if not self.is_slow:
                    for host in effect.hosts:
                        self.notify(HostRestored(effect.attempt, host))

    def notify(self, event: ResilienceEvent) -> None:
        self.take(self.core.handle(event, self.now))

    def run_to(self, step: int) -> None:
        """Issues steps, whose metrics are read at once."""
        first = self.core._issued
        for number in range(first, step):
            self.notify(BoundaryReached(self.core.attempt, number + 1))
            self.notify(MetricsRead(number + 1))

    def of(self, kind: type[ResilienceEffect]) -> list[Any]:
        """Returns the effects of a kind since the last call, and forgets all effects."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = []
        return found


def stages(islands: int, size: int = 1) -> ReplicaTopology:
    """Islands that each have a stage of a program, one block on each host."""
    hosts = {host: HostPlace(host // size, f"machine{host // size}") for host in range(islands * size)}
    blocks = {host: frozenset((f"block {host}",)) for host in hosts}
    return ReplicaTopology(hosts, (frozenset(range(islands)),), lambda replicas, key=None: blocks)


def replicas(count: int) -> ReplicaTopology:
    """Replicas of one island each, with the same state."""
    hosts = {host: HostPlace(host, f"machine{host}") for host in range(count)}
    return ReplicaTopology(
        hosts,
        tuple(frozenset((island,)) for island in range(count)),
        lambda chosen, key=None: dict.fromkeys(chosen, frozenset(("weights",))),
    )


def places(effects: list[MakeCopies]) -> list[tuple[int, int]]:
    return [(copy.source, copy.target) for effect in effects for copy in effect.copies]


def test_resilience_copies_the_first_state_before_the_first_step():
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(10)), is_slow=True)
    assert isinstance(shell.effects[1], HoldSteps)
    (copies,) = shell.of(MakeCopies)
    assert places([copies]) == [(0, 0), (1, 1), (0, 1), (1, 0)]
    for copy in copies.copies:
        assert not shell.of(ResumeSteps)
        shell.notify(CopyCompleted(copy.number))
    assert shell.of(ResumeSteps) == [ResumeSteps(1, 0, (0,))]
    assert shell.core.is_protected


def test_resilience_streams_nothing_that_another_replica_has():
    shell = Shell(ResilienceCore(replicas(3), RecoveryRules(10, counts=(3,))))
    assert places(shell.of(MakeCopies)) == [(0, 0), (1, 1), (2, 2)]


def test_resilience_prefers_buddies_on_other_machines():
    hosts = {0: HostPlace(0, "a"), 1: HostPlace(1, "a"), 2: HostPlace(2, "b")}
    blocks = {0: frozenset(("weights",))}
    topology = ReplicaTopology(hosts, (frozenset((0,)),), lambda replicas, key=None: blocks)
    shell = Shell(ResilienceCore(topology, RecoveryRules(10)))
    assert places(shell.of(MakeCopies)) == [(0, 0), (0, 2)]


def test_resilience_without_a_second_island_is_not_protected():
    shell = Shell(ResilienceCore(stages(1), RecoveryRules(10, disk_every=1)))
    assert places(shell.of(MakeCopies)) == [(0, 0)]
    assert not shell.core.is_protected


def test_resilience_commits_when_metrics_were_read():
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(2)))
    shell.of(CommitVersion)
    for step in (1, 2, 3):
        shell.notify(BoundaryReached(1, step))
    shell.notify(MetricsRead(1))
    assert shell.of(CommitVersion) == []
    shell.notify(MetricsRead(2))
    key = VersionKey(2, 1)
    assert shell.effects == [CommitVersion(key, (0, 1)), KeepVersions((0, 1), (key,))]


def test_resilience_restores_from_own_memory_and_from_the_buddy():
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(5)))
    shell.run_to(7)
    shell.of(RestoreState)
    shell.notify(WorkersLost(1, "killed"))
    assert shell.of(RestoreState) == []
    shell.notify(MemoryLost(1))
    shell.notify(WorkersReturned(1))
    (restore,) = (effect for effect in shell.effects if isinstance(effect, RestoreState))
    own, other = frozenset(("block 0",)), frozenset(("block 1",))
    assert (restore.step, restore.loads) == (5, (BlockLoad(0, 0, own), BlockLoad(1, 0, other)))
    # Both copies are made again at once.
    assert places(shell.of(MakeCopies)) == [(0, 1)]
    assert shell.core.is_protected


def test_resilience_reads_another_copy_where_one_is_corrupt():
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(5)), is_slow=True)
    for copy in shell.of(MakeCopies)[0].copies:
        shell.notify(CopyCompleted(copy.number))
    shell.notify(WorkersLost(0, "killed"))
    shell.notify(WorkersReturned(0))
    (restore,) = shell.of(RestoreState)
    shell.notify(RestoreFailed(restore.attempt, 0, 0, "wrong checksum", is_corrupt=True))
    (again,) = shell.of(RestoreState)
    assert {load.source for load in again.loads} == {1}
    assert again.attempt == restore.attempt + 1


def test_resilience_names_what_is_left_nowhere():
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(5)))
    for island in (0, 1):
        shell.notify(WorkersLost(island, "killed"))
        shell.notify(MemoryLost(island))
    (abandon,) = shell.of(AbandonRun)
    assert abandon.why == (
        "of version 0, no host has block 0, block 1 any more; pass directory= to resume from a folder when "
        "so many islands are lost at once"
    )


def test_resilience_goes_on_from_disk_when_memory_is_lost():
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(5, disk_every=1)))
    shell.run_to(6)
    key = VersionKey(5, 1)
    assert shell.of(SaveToDisk) == [SaveToDisk(VersionKey(0, 1))]
    shell.notify(DiskSaveCompleted(VersionKey(0, 1)))
    shell.run_to(11)
    shell.notify(DiskSaveCompleted(key))
    for island in (0, 1):
        shell.notify(WorkersLost(island, "killed"))
        shell.notify(MemoryLost(island))
    for island in (0, 1):
        shell.notify(WorkersReturned(island))
    assert [(restore.step, restore.key) for restore in shell.of(RestoreState)] == [(5, None)]


def test_resilience_holds_steps_for_an_island_that_leaves_and_runs_none_again():
    shell = Shell(ResilienceCore(replicas(2), RecoveryRules(100, counts=(1, 2))))
    shell.run_to(7)
    shell.notify(WorkersLeaving(1))
    shell.of(HoldSteps)
    shell.notify(BoundaryReached(1, 8))
    assert isinstance(shell.effects[1], HoldSteps)
    shell.notify(MetricsRead(8))
    assert ReleaseIsland(1) in shell.effects
    assert [(r.step, r.replicas) for r in shell.of(RestoreState)] == [(8, (0,))]


def test_resilience_copies_an_island_that_leaves_to_islands_that_stay():
    """At a boundary without another step, too."""
    shell = Shell(ResilienceCore(stages(3), RecoveryRules(100)))
    shell.run_to(7)
    shell.of(MakeCopies)
    shell.notify(WorkersLeaving(1))
    shell.notify(RecoveryTick())
    assert places(shell.of(MakeCopies)) == [(0, 0), (1, 1), (2, 2), (0, 2), (1, 2), (2, 0)]
    # Copies to it would be made if there was no other island.
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(100)))
    shell.run_to(7)
    shell.of(MakeCopies)
    shell.notify(WorkersLeaving(1))
    shell.notify(RecoveryTick())
    assert places(shell.of(MakeCopies)) == [(0, 0), (1, 1), (0, 1), (1, 0)]


def test_resilience_says_what_an_island_that_leaves_costs():
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(100)))
    shell.run_to(7)
    shell.of(TakeSnapshot)
    shell.notify(WorkersLeaving(1))
    shell.notify(RecoveryTick())
    assert [effect.text for effect in shell.of(Log)] == [
        "island1 leaves; version 7 was saved at its boundary, 0 steps are run again"
    ]
    shell.notify(WorkersReturned(1))
    assert [restore.step for restore in shell.of(RestoreState)] == [7]
    # The next one needs no other version of this boundary.
    shell.notify(WorkersLeaving(0))
    shell.notify(RecoveryTick())
    assert shell.core.losses == 0
    shell.notify(WorkersReturned(0))
    assert shell.of(TakeSnapshot) == []


def test_resilience_copies_what_only_islands_that_leave_have_before_they_are_released():
    """Islands leave one after the other: copies were placed when only the first one had said so."""
    shell = Shell(ResilienceCore(stages(3), RecoveryRules(100)), is_slow=True)
    for copy in shell.of(MakeCopies)[0].copies:
        shell.notify(CopyCompleted(copy.number))
    shell.run_to(7)
    shell.notify(WorkersLeaving(1))
    shell.notify(RecoveryTick())
    (copies,) = shell.of(MakeCopies)
    shell.notify(WorkersLeaving(2))
    for copy in copies.copies:
        assert shell.of(ReleaseIsland) == []
        shell.notify(CopyCompleted(copy.number))
    # Block 1 is on both of them alone.
    (more,) = (effect for effect in shell.effects if isinstance(effect, MakeCopies))
    assert [(copy.target, copy.blocks) for copy in more.copies] == [(0, frozenset(("block 1",)))]
    assert shell.of(ReleaseIsland) == []
    shell.notify(CopyCompleted(more.copies[0].number))
    assert shell.of(ReleaseIsland) == [ReleaseIsland(1), ReleaseIsland(2)]


def test_resilience_loses_an_island_that_leaves_before_it_is_copied():
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(5)), is_slow=True)
    for copy in shell.of(MakeCopies)[0].copies:
        shell.notify(CopyCompleted(copy.number))
    shell.run_to(4)
    shell.notify(WorkersLeaving(1))
    shell.notify(RecoveryTick())
    shell.notify(WorkersLost(1, "killed"))
    shell.notify(WorkersReturned(1))
    assert [restore.step for restore in shell.of(RestoreState)] == [0]
    assert shell.core.losses == 1


def test_resilience_holds_no_steps_for_an_island_that_they_do_not_use():
    everywhere = stages(3)
    blocks = {host: frozenset((f"block {host}",)) for host in (0, 1)}
    topology = dataclasses.replace(everywhere, holdings=lambda replicas, key=None: blocks)
    shell = Shell(ResilienceCore(topology, RecoveryRules(5)))
    shell.run_to(6)
    shell.notify(IslandsUsed(frozenset((0, 1))))
    shell.effects.clear()
    # Island 2 keeps the copies of island 1: they are made again, on island 0.
    shell.is_slow = True
    shell.notify(WorkersLost(2, "killed"))
    assert not any(isinstance(effect, HoldSteps | RestoreState) for effect in shell.effects)
    assert not shell.core.is_protected
    (copies,) = shell.of(MakeCopies)
    assert places([copies]) == [(1, 0)]
    for copy in copies.copies:
        shell.notify(CopyCompleted(copy.number))
    assert shell.core.is_protected
    # Steps that need it later wait for it themselves, and have lost nothing.
    shell.notify(IslandsUsed(frozenset((0, 1, 2))))
    assert shell.of(HoldSteps) == []


def test_resilience_runs_fewer_replicas_and_all_again():
    shell = Shell(ResilienceCore(replicas(4), RecoveryRules(10, counts=(2, 4), patience=5.0)))
    shell.run_to(4)
    shell.now = 1.0
    shell.notify(WorkersLost(2, "killed"))
    shell.now = 5.9
    shell.notify(RecoveryTick())
    assert shell.of(RestoreState) == []
    shell.now = 6.0
    shell.notify(RecoveryTick())
    # Three would not divide the microbatches.
    assert [restore.replicas for restore in shell.of(RestoreState)] == [(0, 1)]
    shell.run_to(9)
    shell.notify(WorkersReturned(2))
    assert shell.of(PrepareReplicas) == [PrepareReplicas((0, 1, 2, 3))]
    shell.notify(ReplicasPrepared((0, 1, 2, 3)))
    shell.run_to(10)
    assert [(r.step, r.replicas) for r in shell.of(RestoreState)] == [(10, (0, 1, 2, 3))]


def test_resilience_gives_up_when_too_few_islands_will_return():
    shell = Shell(ResilienceCore(replicas(4), RecoveryRules(10, counts=(3, 4))))
    for island in (0, 1):
        shell.notify(IslandAbandoned(island))
    assert [abandon.why for abandon in shell.of(AbandonRun)] == [
        "island0, island1 will not return, and no smaller number of replicas is allowed"
    ]


def test_resilience_goes_on_from_what_an_earlier_controller_left():
    def found(*hosts: int, is_committed: bool = True) -> StoredVersion:
        everything = frozenset(("block 0", "block 1"))
        return StoredVersion(dict.fromkeys(hosts, everything), is_committed, (0,))

    stored = {VersionKey(20, 3): found(0), VersionKey(30, 3): found(0, 1, is_committed=False)}
    core = ResilienceCore(stages(2), RecoveryRules(10, disk_every=1), stored, disk_steps=(10,))
    shell = Shell(core)
    assert [(r.step, r.key, r.attempt) for r in shell.of(RestoreState)] == [(20, VersionKey(20, 3), 4)]


def test_resilience_takes_versions_by_time():
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(None, 10.0)))
    shell.run_to(5)
    shell.of(TakeSnapshot)
    shell.now = 10.0
    shell.run_to(6)
    assert [snapshot.key.step for snapshot in shell.of(TakeSnapshot)] == [6]


def test_resilience_tries_a_copy_again_that_failed():
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(10)), is_slow=True)
    for copy in shell.of(MakeCopies)[0].copies:
        shell.notify(CopyCompleted(copy.number))
    shell.notify(MemoryLost(1))
    (again,) = shell.of(MakeCopies)
    shell.notify(CopyFailed(again.copies[0].number, "the link is cut"))
    shell.now = 0.5
    shell.notify(RecoveryTick())
    assert shell.effects == []
    shell.now = 1.0
    shell.notify(RecoveryTick())
    assert [log.text for log in shell.effects if isinstance(log, Log)] == [
        "host 0 cannot copy version 0 to host 1: the link is cut"
    ]
    assert places(shell.of(MakeCopies)) == [(0, 1)]


def test_resilience_logs_the_loss_of_an_island_before_what_could_not_be_copied():
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(2, disk_every=1)))
    shell.is_slow = True
    shell.run_to(2)
    copies = shell.of(MakeCopies)[-1].copies
    shell.notify(CopyFailed(copies[0].number, "connection reset"))
    shell.notify(DiskSaveFailed(VersionKey(0, 1), "connection reset"))
    assert shell.of(Log) == []
    shell.notify(WorkersLost(1, "killed by signal 9"))
    assert [log.text for log in shell.of(Log)] == [
        "island1 is lost (killed by signal 9); steps wait",
        "host 0 cannot copy version 2 to host 0: connection reset; it is tried again at a later step",
        "version 0 was not saved to disk: connection reset; the next one is tried",
    ]


def test_resilience_has_the_first_version_on_disk_and_waits_for_it():
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(5, disk_every=10)))
    key = VersionKey(0, 1)
    assert shell.of(SaveToDisk) == [SaveToDisk(key)]
    for island in (0, 1):
        shell.notify(WorkersLost(island, "killed"))
        shell.notify(MemoryLost(island))
    for island in (0, 1):
        shell.notify(WorkersReturned(island))
    assert shell.of(RestoreState) == []
    assert shell.of(AbandonRun) == []
    shell.notify(DiskSaveCompleted(key))
    assert [(restore.step, restore.key) for restore in shell.of(RestoreState)] == [(0, None)]


def test_resilience_says_why_no_version_is_on_disk():
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(5, disk_every=10)))
    for island in (0, 1):
        shell.notify(WorkersLost(island, "killed"))
        shell.notify(MemoryLost(island))
    shell.notify(DiskSaveFailed(VersionKey(0, 1), "OSError: disk is full"))
    (abandon,) = shell.of(AbandonRun)
    assert abandon.why == (
        "of version 0, no host has block 0, block 1 any more, and none of its versions is on disk "
        "(OSError: disk is full); run again"
    )


def test_resilience_goes_on_from_the_version_before_one_on_disk_that_cannot_be_read():
    shell = Shell(ResilienceCore(stages(1), RecoveryRules(5, disk_every=1), disk_steps=(5, 10)), is_slow=True)
    for step in (10, 5):
        (restore,) = shell.of(RestoreState)
        assert restore.step == step
        shell.notify(RestoreFailed(restore.attempt, 0, None, "run/10: truncated"))
    (abandon,) = shell.of(AbandonRun)
    assert abandon.why == "version 5 on disk cannot be read: run/10: truncated"


def test_resilience_restores_a_state_that_a_step_has_consumed():
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(5)))
    shell.run_to(7)
    shell.of(Log)
    shell.notify(StateInvalidated("step 7 failed after it had taken over the state"))
    (text,) = (effect.text for effect in shell.effects if isinstance(effect, Log))
    assert text == (
        "step 7 failed after it had taken over the state; resuming from version 5 in memory, 2 steps are run "
        "again"
    )
    assert [restore.step for restore in shell.of(RestoreState)] == [5]
    assert shell.core.losses == 0


def test_resilience_believes_what_hosts_have_when_they_return():
    """A target of a copy that is lost before it has answered reports what it has."""
    shell = Shell(ResilienceCore(stages(2), RecoveryRules(5)))
    key = VersionKey(0, 1)
    shell.notify(MemoryLost(1))
    shell.is_slow = True
    shell.of(MakeCopies)
    shell.notify(WorkersLost(1, "killed"))
    both = frozenset(("block 0", "block 1"))
    shell.notify(WorkersReturned(1, {1: {key: frozenset(("block 0",))}}))
    (restore,) = shell.of(RestoreState)
    assert BlockLoad(1, 0, frozenset(("block 1",))) in restore.loads
    shell.notify(WorkersLost(0, "killed"))
    shell.notify(WorkersReturned(0, {0: {key: both}}))
    shell.notify(WorkersLost(1, "killed"))
    shell.notify(WorkersReturned(1, {}))
    assert {load.source for load in shell.of(RestoreState)[-1].loads} == {0}
