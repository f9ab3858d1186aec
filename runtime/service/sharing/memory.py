"""Memory of devices that clients share: the bytes that each client holds of its quota.

A step is dispatched when its new arrays fit the quota of its client on each device. They count from its
dispatch on. Arrays that a step consumes, or that its client frees while it is in flight, count until it is
done. The pool, which has the temporaries of steps, is in `places.Places`.

No method waits or reads a clock. A client is one object here, and holds nothing on islands without limits.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pathways.runtime.resources.tables import size

DeviceBytes = tuple[tuple[int, int], ...]
"""Bytes on some devices of an island: the id of each device, and the bytes there."""


def bytes_on(of_devices: DeviceBytes) -> int:
    """Returns the bytes on all devices together."""
    return sum(count for _, count in of_devices)


class StepBytes(NamedTuple):
    """Memory that a step needs on an island.

    Attributes:
      allocated: the bytes of new arrays: of its results, without donated arguments whose memory they reuse.
      temporaries: the bytes that it needs beside its arguments and results while it runs.
      results: the bytes of each result.
      is_view: whether its results share the memory of its arguments.
    """

    allocated: DeviceBytes
    temporaries: DeviceBytes
    results: tuple[DeviceBytes, ...]
    is_view: bool = False


class DeviceLimits(NamedTuple):
    """Memory of each device of an island, in bytes.

    Attributes:
      memory: all of it.
      pool: the part for temporaries; clients hold the rest.
    """

    memory: int
    pool: int


class Quota:
    """Limit on each device of the bytes of one client, or of all clients that share the limit.

    Args:
      limits: the limit on each island; None for none.

    Attributes:
      limits: the limit on each island.
      held: on each island, the bytes that are held on each device.
    """

    def __init__(self, limits: Sequence[int | None]) -> None:
        self.limits = [*limits]
        self.held: list[dict[int, int]] = [{} for _ in limits]

    def add_island(self, limit: int | None) -> None:
        """Adds an island; its limit is None for none."""
        self.limits.append(limit)
        self.held.append({})

    def fits(self, island: int, more: DeviceBytes) -> bool:
        """Returns whether bytes fit on all these devices."""
        limit = self.limits[island]
        if limit is None:
            return True
        held = self.held[island]
        # A loop, where a generator for each step would be another call.
        for device, count in more:  # noqa: SIM110
            if held.get(device, 0) + count > limit:
                return False
        return True

    def add(self, island: int, more: DeviceBytes, sign: int = 1) -> None:
        """Adds bytes to the held ones, or subtracts them."""
        held = self.held[island]
        for device, count in more:
            held[device] = held.get(device, 0) + sign * count


class _Buffer:
    """Memory of an array on devices, which views of the array share.

    Attributes:
      bytes: its bytes.
      users: the number of arrays with it.
      is_charged: whether it counts as held; the results of a step do when the step is done.
    """

    __slots__ = ("bytes", "is_charged", "users")

    def __init__(self, of_devices: DeviceBytes) -> None:
        self.bytes = of_devices
        self.users = 1
        self.is_charged = False


@dataclasses.dataclass(eq=False, slots=True)
class _StepInFlight:
    """Step of a client in flight on an island.

    Attributes:
      key: the step.
      allocated: the bytes that it was charged with at its dispatch.
      new: the buffers that it fills.
      consumed: the arrays that it consumes.
      freed: the arrays that are free once it is done.
    """

    key: object
    allocated: DeviceBytes
    new: Sequence[_Buffer]
    consumed: Sequence[int]
    freed: list[int]
    is_done: bool = False


class ClientMemory:
    """Arrays of a client by their memory.

    Args:
      quota: the limit of the bytes that it holds.
    """

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        count = len(quota.limits)
        self._arrays: list[dict[int, Sequence[_Buffer]]] = [{} for _ in range(count)]
        self._in_flight: list[collections.deque[_StepInFlight]] = [collections.deque() for _ in range(count)]

    def add_island(self) -> None:
        """Adds an island without arrays."""
        self._arrays.append({})
        self._in_flight.append(collections.deque())

    def fits(self, needs: Mapping[int, StepBytes]) -> bool:
        """Returns whether the new arrays of a step fit the quota on its islands."""
        fits = self.quota.fits
        # A loop, where a generator for each step would be another call.
        for island, need in needs.items():  # noqa: SIM110
            if not fits(island, need.allocated):
                return False
        return True

    def short_of(self, needs: Mapping[int, StepBytes]) -> list[int]:
        """Returns the islands on which the new arrays of a step do not fit the quota."""
        return [island for island, need in needs.items() if not self.quota.fits(island, need.allocated)]

    def is_idle(self, island: int) -> bool:
        """Returns whether no step of the client is in flight on an island, which could free memory there."""
        return not self._in_flight[island]

    def begin(
        self,
        step: object,
        needs: Mapping[int, StepBytes],
        arguments: Mapping[int, Sequence[int]],
        results: Mapping[int, Sequence[int]],
        donates: Mapping[int, Sequence[int]],
    ) -> None:
        """Charges a dispatched step for its new arrays."""
        for island, need in needs.items():
            self.quota.add(island, need.allocated)
            arrays = self._arrays[island]
            new: list[_Buffer] = []
            if need.is_view:
                shared = {id(b): b for n in arguments[island] for b in arrays.get(n, ())}.values()
                for number in results[island]:
                    for buffer in shared:
                        buffer.users += 1
                    arrays[number] = tuple(shared)
            else:
                new = [_Buffer(of_devices) for of_devices in need.results]
                arrays.update(zip(results[island], ((buffer,) for buffer in new), strict=True))
            consumed = donates.get(island, ())
            self._in_flight[island].append(_StepInFlight(step, need.allocated, new, consumed, []))

    def finish(self, step: object, island: int) -> None:
        """Frees arrays that a step has consumed which is done on an island, and arrays that it has kept."""
        steps = self._in_flight[island]
        launch = next((each for each in steps if each.key is step), None)
        if launch is None:
            # Of an island that was lost meanwhile.
            return
        launch.is_done = True
        quota = self.quota
        quota.add(island, launch.allocated, -1)
        for buffer in launch.new:
            if buffer.users:
                buffer.is_charged = True
                quota.add(island, buffer.bytes)
        for number in launch.consumed:
            # Views of a donated array are deleted with it.
            for buffer in self._arrays[island].pop(number, ()):
                self._discharge(island, buffer)
        while steps and steps[0].is_done:
            for number in steps.popleft().freed:
                self._release(island, number)

    def add(self, island: int, array: int, of_devices: DeviceBytes) -> None:
        """Adds an array that no step has made."""
        self.quota.add(island, of_devices)
        buffer = _Buffer(of_devices)
        buffer.is_charged = True
        self._arrays[island][array] = (buffer,)

    def has(self, island: int, array: int) -> bool:
        """Returns whether an array is there, or on its way."""
        return array in self._arrays[island]

    def free(self, island: int, arrays: Iterable[int]) -> None:
        """Frees arrays, once the steps in flight on the island are done."""
        if steps := self._in_flight[island]:
            steps[-1].freed.extend(arrays)
            return
        for number in arrays:
            self._release(island, number)

    def free_all(self) -> None:
        """Frees all arrays of a client that has left, once its steps in flight are done."""
        for island, arrays in enumerate(self._arrays):
            self.free(island, [*arrays])

    def lose_island(self, island: int) -> None:
        """Forgets an island that is lost: nobody holds anything there."""
        self.quota.held[island].clear()
        self._arrays[island].clear()
        self._in_flight[island].clear()

    def leave_shared(self, quota: Quota) -> None:
        """Moves the client from a shared quota to another one."""
        for island in range(len(self._arrays)):
            held = tuple(self.held(island).items())
            self.quota.add(island, held, -1)
            quota.add(island, held)
        self.quota = quota

    def held(self, island: int) -> dict[int, int]:
        """Returns the bytes of its arrays, and of new arrays of its steps, on each device of an island."""
        total: collections.Counter[int] = collections.Counter()
        allocated = [step.allocated for step in self._in_flight[island] if not step.is_done]
        for of_devices in [*allocated, *self._charged(island)]:
            for device, count in of_devices:
                total[device] += count
        return dict(total)

    def largest(self, island: int, count: int) -> list[int]:
        """Returns the bytes on a device of the largest arrays of an island, in falling order."""
        sizes = [max((n for _, n in each), default=0) for each in self._charged(island)]
        return sorted(sizes, reverse=True)[:count]

    def _charged(self, island: int) -> list[DeviceBytes]:
        """Returns the bytes of each buffer that counts as held, once."""
        buffers = {
            id(buffer): buffer for buffers_of in self._arrays[island].values() for buffer in buffers_of
        }
        return [buffer.bytes for buffer in buffers.values() if buffer.is_charged]

    def _release(self, island: int, array: int) -> None:
        for buffer in self._arrays[island].pop(array, ()):
            buffer.users -= 1
            if not buffer.users:
                self._discharge(island, buffer)

    def _discharge(self, island: int, buffer: _Buffer) -> None:
        if buffer.is_charged:
            buffer.is_charged = False
            self.quota.add(island, buffer.bytes, -1)


class SharedMemory:
    """Quotas of the clients of a cluster.

    Args:
      islands: the memory of each island; None where it is not limited.
      quotas: the quotas of named clients, in bytes of each device.
      default: the quota of each client without one; None if these share the rest.
      clients: the most clients without one that the default is for.

    Raises:
      ValueError: all quotas together exceed the memory of an island without its pool.
    """

    def __init__(
        self,
        islands: Sequence[DeviceLimits | None],
        quotas: Mapping[str, int] | None = None,
        default: int | None = None,
        clients: int = 0,
    ) -> None:
        check_quotas(islands, quotas or {}, default, clients)
        self._clients = clients
        self.islands = tuple(islands)
        self._quotas = dict(quotas or {})
        self._default = default
        self._shared = Quota(self.rest())

    def check_island(self, limits: DeviceLimits | None) -> None:
        """Checks that all quotas fit the memory of one more island.

        Raises:
          ValueError: all quotas together exceed it without its pool.
        """
        check_quotas([*self.islands, limits], self._quotas, self._default, self._clients)

    def add_island(self, limits: DeviceLimits | None, members: Iterable[tuple[str, ClientMemory]]) -> None:
        """Adds an island, whose memory was checked by `check_island`.

        Args:
          members: the name and the memory of each connected client.
        """
        self.islands = (*self.islands, limits)
        self._shared.add_island(self.rest()[-1])
        for name, memory in members:
            memory.add_island()
            quota = self.quota_of(name)
            if not self.is_shared(memory.quota):
                memory.quota.add_island(None if limits is None else quota)

    def join(self, name: str) -> ClientMemory:
        """Returns the memory of a client that has joined."""
        quota = self._quotas.get(name, self._default)
        return ClientMemory(self._shared if quota is None else Quota(self._limits(quota)))

    def is_shared(self, quota: Quota) -> bool:
        """Returns whether a quota is the one that clients without their own share."""
        return quota is self._shared

    def quota_of(self, name: str) -> int | None:
        """Returns the quota of a client; None if it shares one with others."""
        return self._quotas.get(name, self._default)

    def change(self, name: str, quota: int, memory: ClientMemory | None) -> None:
        """Sets the quota of a client.

        Args:
          memory: its memory if it is connected.

        Raises:
          ValueError: all quotas together exceed the memory of an island without its pool.
        """
        quotas = {**self._quotas, name: quota}
        check_quotas(self.islands, quotas, self._default, self._clients)
        self._quotas = quotas
        self._shared.limits = self.rest()
        if memory is None:
            return
        if memory.quota is self._shared:
            memory.leave_shared(Quota(self._limits(quota)))
        else:
            memory.quota.limits = self._limits(quota)

    def _limits(self, quota: int) -> list[int | None]:
        return [None if limits is None else quota for limits in self.islands]

    def rest(self) -> list[int | None]:
        """Returns the bytes that named quotas and the pool leave on each island."""
        named = sum(self._quotas.values())
        return [
            None if limits is None else max(0, limits.memory - limits.pool - named) for limits in self.islands
        ]


def check_quotas(
    islands: Sequence[DeviceLimits | None], quotas: Mapping[str, int], default: int | None, clients: int
) -> None:
    """Checks that quotas fit the memory of each island without its pool.

    Args:
      default: the quota of each other client, if each has its own.
      clients: the number of other clients.

    Raises:
      ValueError: they do not.
    """
    total = sum(quotas.values()) + (default or 0) * clients
    for number, limits in enumerate(islands):
        if limits is not None and total > limits.memory - limits.pool:
            raise ValueError(
                f"the quotas of clients are {size(total)} together, more than the {size(limits.memory)} of a "
                f"device of island{number} without its pool of {size(limits.pool)}"
            )
