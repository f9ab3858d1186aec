"""Resource manager: binds virtual slices to physical devices."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
import types
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from pathways.dialect.errors import PathwaysError
from pathways.runtime.plan.plan import SliceSpec
from pathways.runtime.resources.cluster import CPU_REMEDY, Cluster, Device, DeviceIsland
from pathways.runtime.resources.tables import ranges


class ResourceError(PathwaysError, RuntimeError):
    """Error of a program that needs more devices, or more memory on them, than are available."""

    # Tracebacks show the public name.
    __module__ = "pathways"


@dataclasses.dataclass(frozen=True, eq=False)
class Binding:
    """The devices of a slice.

    Attributes:
      devices: the devices, in the order of its mesh.
      shape: the sizes of its axes, major to minor.
      program: the program that used the slice first.
    """

    devices: tuple[Device, ...]
    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    program: str

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the devices in the cluster."""
        return tuple(device.position for device in self.devices)

    @property
    def island(self) -> str:
        """The name of the island of the devices."""
        return self.devices[0].island

    @property
    def device_memory(self) -> int | None:
        """The bytes of memory that each of the devices has, None if unknown."""
        return min((device.memory for device in self.devices if device.memory is not None), default=None)


class RequestedSlice(Protocol):
    """Slice that needs devices: a `VirtualSlice`, or the record of a service's client."""

    @property
    def spec(self) -> SliceSpec: ...
    @property
    def pinned(self) -> tuple[tuple[str, int], ...] | None: ...
    @property
    def replica(self) -> int: ...
    @property
    def device_set(self) -> RequestedSet: ...


class RequestedSet(Protocol):
    """Set of slices that are used together; equal only to itself."""

    @property
    def replicas(self) -> int: ...


class ResourceManager[S: RequestedSlice]:
    """Binds slices to physical devices, once for each slice, for all programs of a process or of all clients.

    A slice keeps its devices until it is released or nothing refers to it, so that programs can share its
    arrays. Slices of one program share no device; different programs may use one device alternately.

    Args:
      cluster: the devices.
      remedy: the remedy for too few devices, for messages; by default the one for devices of this process.

    Attributes:
      cluster: the devices. A service replaces it when an island joins, which has the next devices.
    """

    def __init__(self, cluster: Cluster, remedy: str | None = None) -> None:
        self.cluster = cluster
        self.remedy = remedy
        # Reentrant: the garbage collector may run at any time, and call finalizers that need the lock.
        self._lock = threading.RLock()
        self._bound: weakref.WeakKeyDictionary[S, Binding] = weakref.WeakKeyDictionary()
        # The devices that slices will have instead, when their arrays have moved there.
        self._planned: weakref.WeakKeyDictionary[S, Binding] = weakref.WeakKeyDictionary()
        # The slices that programs use together with a slice, and itself.
        self._partners: weakref.WeakKeyDictionary[S, weakref.WeakSet[S]] = weakref.WeakKeyDictionary()
        # The islands on which no slice is bound.
        self._closed: set[str] = set()

    def bind(self, slices: Iterable[S], program: str) -> dict[S, Binding]:
        """Binds all slices of a program that have no devices yet; returns the devices of all.

        Free devices are chosen first, then devices of other device sets with the fewest slices on them. The
        slices of a replica are on one island, each replica on another, as far as there is room. Either all
        slices are bound or none.

        Raises:
          ResourceError: there are not enough devices, or two slices that were bound before share a device.
        """
        distinct = list(dict.fromkeys(slices))
        with self._lock:
            held = {slice: self._bound[slice] for slice in distinct if slice in self._bound}
            if len(held) == len(distinct):
                self._check_disjoint(distinct, held, program)
            else:
                self._bound.update(self._choose(distinct, held, program))
            if any(not self._partners.get(slice, set()).issuperset(distinct) for slice in distinct):
                self._note_partners(distinct, program)
            return {slice: self._bound[slice] for slice in distinct}

    def _note_partners(self, slices: Sequence[S], program: str) -> None:
        """Notes that a program uses some slices together."""
        for slice in slices:
            self._partners.setdefault(slice, weakref.WeakSet()).update(slices)

    def close_island(self, island: str, *, moves_all: bool) -> dict[S, Binding]:
        """Binds no slice on an island from now on, and plans where the slices that are there can move.

        Slices that programs use together share no device there, either. Slices that are pinned to devices, or
        to an island, do not move.

        Args:
          moves_all: whether it is an error if a slice can move nowhere.

        Returns:
          The planned devices of each slice that can move, for `move`.

        Raises:
          ResourceError: a slice can move nowhere; then nothing is changed.
        """
        with self._lock:
            self._closed.add(island)
            on_island = [slice for slice, binding in self._bound.items() if binding.island == island]
            movable = [slice for slice in on_island if not slice.pinned and slice.spec.island is None]
            planned: dict[S, Binding] = {}
            try:
                for group in self._groups(movable):
                    partners = {other for slice in group for other in self._partners.get(slice, ())}
                    held = {
                        slice: self._planned.get(slice, self._bound[slice])
                        for slice in partners
                        if slice in self._bound
                    }
                    unmoved = {slice: binding for slice, binding in held.items() if slice not in group}
                    program = self._bound[group[0]].program
                    try:
                        moves = self._choose_free([*unmoved, *group], unmoved, program)
                    except ResourceError:
                        if moves_all:
                            raise
                        continue
                    self._planned.update(moves)
                    planned |= moves
            except ResourceError:
                self.open_island(island)
                raise
            return planned

    def open_island(self, island: str) -> None:
        """Binds slices on an island again; slices that have not moved off it stay there."""
        with self._lock:
            self._closed.discard(island)
            for slice in list(self._planned):
                if slice in self._bound and self._bound[slice].island == island:
                    del self._planned[slice]

    def move(self, bindings: Mapping[S, Binding]) -> None:
        """Binds slices to other devices, where their arrays are now."""
        with self._lock:
            for slice, binding in bindings.items():
                self._planned.pop(slice, None)
                if slice in self._bound:
                    self._bound[slice] = binding

    def planned(self) -> Mapping[S, Binding]:
        """Returns the devices that slices will have when they have moved."""
        with self._lock:
            return dict(self._planned.items())

    def _groups(self, slices: Sequence[S]) -> list[list[S]]:
        """Returns groups of slices: slices that a program uses together are in one group."""
        left = dict.fromkeys(slices)
        groups: list[list[S]] = []
        while left:
            group = [next(iter(left))]
            del left[group[0]]
            for slice in group:
                near = [other for other in self._partners.get(slice, ()) if other in left]
                group += near
                for other in near:
                    del left[other]
            groups.append(group)
        return groups

    def _choose(self, slices: Sequence[S], held: Mapping[S, Binding], program: str) -> dict[S, Binding]:
        """Returns the devices for those slices of a program that have none yet.

        Raises:
          ResourceError: see `bind`.
        """
        pinned = {
            slice: self._pinned(slice, program) for slice in slices if slice.pinned and slice not in held
        }
        held = {**held, **pinned}
        self._check_disjoint(slices, held, program)
        moving = {slice: self._planned.get(slice, binding) for slice, binding in held.items()}
        return pinned | self._choose_free(slices, moving, program)

    def _choose_free(self, slices: Sequence[S], held: Mapping[S, Binding], program: str) -> dict[S, Binding]:
        """Returns devices that none of some slices has for the other slices.

        Raises:
          ResourceError: see `bind`.
        """
        new = [slice for slice in slices if slice not in held]
        # Those of a given island first, then the largest: the devices that remain still fit the small ones.
        ordered = sorted(new, key=lambda slice: (slice.spec.island is None, -slice.spec.size))
        free = self._free(held.values())
        homes = _homes_of_replicas(slices, held, {island[0].island: len(island) for island in free if island})
        chosen = self._place(ordered, free, set(), homes) if homes else None
        if chosen is None:
            chosen = self._place(ordered, free, set())
        if chosen is None:
            chosen = self._place_sharing(ordered, held)
        if chosen is None:
            raise ResourceError(self._shortage(slices, held, program))
        return {
            slice: Binding(tuple(chosen[slice]), slice.spec.shape, slice.spec.axis_names, program)
            for slice in new
        }

    def _pinned(self, slice: S, program: str) -> Binding:
        """Returns the devices that a slice must have.

        Raises:
          ResourceError: one of them is not in the cluster, or they are on several islands.
        """
        devices_by_number = {(device.platform, device.id): device for device in self.cluster.devices}
        assert slice.pinned is not None
        for platform, number in slice.pinned:
            if (platform, number) not in devices_by_number:
                raise ResourceError(
                    f"program {program}: {slice.spec.name} needs device {number} of {platform}, which is not "
                    f"in the cluster ({', '.join(self._room(island) for island in self.cluster.islands)})"
                )
        devices = tuple(devices_by_number[device] for device in slice.pinned)
        islands = dict.fromkeys(device.island for device in devices)
        if len(islands) > 1:
            raise ResourceError(
                f"program {program}: {slice.spec.name} needs devices on {' and '.join(islands)}; a slice "
                "must be on one island"
            )
        if (island := next(iter(islands))) in self._closed:
            raise ResourceError(
                f"program {program}: {slice.spec.name} needs devices of {island}, which is drained: "
                "pw-cluster undrain has it return"
            )
        return Binding(devices, slice.spec.shape, slice.spec.axis_names, program)

    def _free(self, bindings: Iterable[Binding]) -> list[list[Device]]:
        """Returns the devices of each island that none of these bindings has."""
        used = {position for binding in bindings for position in binding.positions}
        return [
            [
                device
                for device in island.devices
                if device.position not in used and island.name not in self._closed
            ]
            for island in self.cluster.islands
        ]

    def _place_sharing(self, slices: Sequence[S], held: Mapping[S, Binding]) -> dict[S, list[Device]] | None:
        """Returns devices for each slice, where slices with `overlap` share devices with each other.

        Replicas of a program share no device: callers see the slices of all replicas as one mesh.
        """
        sharing = _largest_of_replicas_first([slice for slice in slices if slice.spec.overlap])
        if not sharing:
            return None
        free = self._free(binding for slice, binding in held.items() if not slice.spec.overlap)
        alone = self._free(held.values())
        # Slices without `overlap` come first: they alone need devices that no other slice has.
        chosen = self._place([slice for slice in slices if not slice.spec.overlap], alone, set())
        if chosen is None:
            return None
        used = {device.position for devices in chosen.values() for device in devices}
        load: collections.Counter[int] = collections.Counter()
        owners: dict[int, set[tuple[RequestedSet, int]]] = collections.defaultdict(set)
        for bound_slice, binding in held.items():
            load.update(binding.positions)
            for position in binding.positions:
                owners[position].add(_replica(bound_slice))
        for slice in sharing:
            replica = _replica(slice)
            rooms = [
                sorted(
                    (
                        device
                        for device in devices
                        if device.position not in used
                        and not any(_are_replicas(owner, replica) for owner in owners[device.position])
                    ),
                    key=lambda device: (load[device.position], device.position),
                )
                for island, devices in zip(self.cluster.islands, free, strict=True)
                if slice.spec.island in (None, island.name)
            ]
            room = next((room for room in rooms if len(room) >= slice.spec.size), None)
            if room is None:
                return None
            chosen[slice] = sorted(room[: slice.spec.size], key=lambda device: device.position)
            for device in chosen[slice]:
                load[device.position] += 1
                owners[device.position].add(replica)
        return chosen

    def release(self, slice: S) -> None:
        """Releases the devices of a slice, if it has any; programs that are loaded there keep running."""
        with self._lock:
            self._bound.pop(slice, None)

    def holders(self) -> Mapping[S, Binding]:
        """Returns every slice that has devices, with these."""
        with self._lock:
            return dict(self._bound.items())

    def _place(
        self,
        slices: Sequence[S],
        islands: list[list[Device]],
        failed: set[tuple[int, ...]],
        homes: Mapping[S, str] = types.MappingProxyType({}),
    ) -> dict[S, list[Device]] | None:
        """Returns devices for each slice, chosen by depth-first search; None if there are none.

        Args:
          islands: the devices of each island that are free.
          failed: states of the search without a solution: the number of slices, and of free devices on each
            island. Without them, the search would be exponential in the number of slices.
          homes: islands that some slices must be on.
        """
        if not slices:
            return {}
        state = (len(slices), *map(len, islands))
        if state in failed:
            return None
        first, *rest = slices
        costs = self._costs(first)
        candidates = []
        for number, (island, free) in enumerate(zip(self.cluster.islands, islands, strict=True)):
            if homes.get(first, first.spec.island) in (None, island.name) and len(free) >= first.spec.size:
                ranked = sorted(free, key=lambda device: (costs[device.position], device.position))
                best = sorted(ranked[: first.spec.size], key=lambda device: device.position)
                # Compared from the most used device down: an island with a crowded device comes after others.
                candidates.append((sorted(costs[device.position] for device in best)[::-1], number, best))
        for _, number, best in sorted(candidates, key=lambda candidate: candidate[:2]):
            left = list(islands)
            left[number] = [device for device in islands[number] if device not in best]
            placed = self._place(rest, left, failed, homes)
            if placed is not None:
                return {first: best, **placed}
        failed.add(state)
        return None

    def _costs(self, slice: S) -> dict[int, tuple[int, int]]:
        """Returns, for each device, the numbers of slices on it: of the same set, and of all sets."""
        same: collections.Counter[int] = collections.Counter()
        all_: collections.Counter[int] = collections.Counter()
        for other, binding in (*self._bound.items(), *self._planned.items()):
            all_.update(binding.positions)
            if other.device_set is slice.device_set:
                same.update(binding.positions)
        return {
            device.position: (same[device.position], all_[device.position]) for device in self.cluster.devices
        }

    def _check_disjoint(self, slices: Sequence[S], held: Mapping[S, Binding], program: str) -> None:
        """Checks that no two slices of a program that were bound before share a device.

        Raises:
          ResourceError: two of them do.
        """
        for (left, a), (right, b) in itertools.combinations(held.items(), 2):
            is_shared = left.spec.overlap and right.spec.overlap
            if is_shared and not _are_replicas(_replica(left), _replica(right)):
                continue
            shared = sorted(set(a.positions) & set(b.positions))
            if not shared:
                continue
            # No release of slices could help then, so that the shortage is the better error.
            if sum(slice.spec.size for slice in slices if not slice.spec.overlap) > len(self.cluster.devices):
                raise ResourceError(self._shortage(slices, {}, program))
            is_same_set = left.device_set is right.device_set
            alternative = "" if is_same_set else ", or create both from one device set before either is used"
            raise ResourceError(
                f"program {program}: its slices {left.spec.name} and {right.spec.name} share devices "
                f"{ranges(shared)}, to which programs {a.program} and {b.program} bound one each; "
                f"release one of them with pathways.release, and this program binds it to others{alternative}"
            )

    def _shortage(self, slices: Sequence[S], held: Mapping[S, Binding], program: str) -> str:
        """Returns the error of a program that needs more devices than it can have.

        If the cluster is large enough, the message lists the slices that keep the devices. These are slices
        of the program itself: it may share devices with slices of other programs.
        """
        islands = [island for island in self.cluster.islands if island.name not in self._closed]
        devices = sum(len(island.devices) for island in islands)
        needed = sum(slice.spec.size for slice in slices)
        lines = [
            f"program {program}: not enough devices: it needs {needed}, no two of its slices on one device "
            f"({', '.join(_need(slice) for slice in slices)}); there are {devices} "
            f"({', '.join(self._room(island) for island in self.cluster.islands)})"
        ]
        if needed <= devices:
            lines += [
                f"  {slice.spec.name} has devices {ranges(binding.positions)} "
                f"since program {binding.program}; pathways.release(slice) releases them"
                for slice, binding in held.items()
            ]
        if any(slice.spec.overlap and slice.device_set.replicas > 1 for slice in slices):
            lines.append("  slices with overlap=True may share some, but none with those of another replica")
        remedy = (
            self.remedy or self.cluster.remedy or (CPU_REMEDY if self.cluster.platform == "cpu" else None)
        )
        if remedy is not None:
            lines.append("  " + remedy.format(count=max(needed, devices + 1)))
        return "\n".join(lines)

    def _room(self, island: DeviceIsland) -> str:
        """Returns the name of an island with the number of devices that slices may have."""
        return f"{island.name}: {'drained' if island.name in self._closed else len(island.devices)}"


def _homes_of_replicas[S: RequestedSlice](
    slices: Sequence[S], held: Mapping[S, Binding], free: Mapping[str, int]
) -> dict[S, str]:
    """Returns an island for each slice, the same one for all slices of a replica.

    Args:
      held: the devices of the slices that have some.
      free: the number of devices of each island that are free for the others.

    Returns:
      The islands; empty if there are no replicas, or no island with room for one.
    """
    groups: dict[int, list[S]] = {}
    for slice in slices:
        if slice.device_set.replicas > 1:
            groups.setdefault(slice.replica, []).append(slice)
    left, used = dict(free), collections.Counter[str]()
    homes: dict[S, str] = {}
    # Replicas that have an island already come first, so that others avoid it.
    for group in sorted(groups.values(), key=lambda group: not any(slice in held for slice in group)):
        islands = {held[slice].island if slice in held else slice.spec.island for slice in group} - {None}
        if len(islands) > 1:
            return {}
        size = sum(slice.spec.size for slice in group if slice not in held)
        fitting = [name for name, room in left.items() if room >= size and islands <= {name}]
        if not fitting:
            return {}
        home = min(fitting, key=lambda name: used[name])
        used[home] += 1
        left[home] -= size
        homes.update(dict.fromkeys(group, home))
    return homes


def _largest_of_replicas_first[S: RequestedSlice](slices: Sequence[S]) -> list[S]:
    """Returns the first slice of each replica, then the second of each, and so on.

    Given slices in descending size, the later ones then fit on the devices of the earlier ones.
    """
    ranks: collections.Counter[tuple[RequestedSet, int]] = collections.Counter()
    ranked = []
    for slice in slices:
        ranks[_replica(slice)] += 1
        ranked.append((ranks[_replica(slice)], slice))
    return [slice for _, slice in sorted(ranked, key=lambda pair: pair[0])]


def _replica(slice: RequestedSlice) -> tuple[RequestedSet, int]:
    """Returns the replica that a slice belongs to."""
    return slice.device_set, slice.replica


def _are_replicas(left: tuple[RequestedSet, int], right: tuple[RequestedSet, int]) -> bool:
    """Returns whether these are different replicas of the same slices."""
    return left[0] is right[0] and left[1] != right[1]


def _need(slice: RequestedSlice) -> str:
    return f"{slice.spec.name}: {slice.spec.size}" + (
        "" if slice.spec.island is None else f" on {slice.spec.island}"
    )
