"""Arrays of clients: values on devices, or errors in their places."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
from typing import Any

from pathways.runtime.proxy.arrays.memory_account import Allocation
from pathways.runtime.proxy.arrays.placements import ArraySpec
from pathways.runtime.proxy.wire.statuses import StatusError, status_of


@dataclasses.dataclass(frozen=True)
class ProxyArray:
    """Array of a client, or the error in its place: the value of a handle.

    Attributes:
      spec: its type and placement; None for an array that failed before these were known.
      value: the array, or the status that is raised when a client reads it.
      memory: the allocation of the buffer of each shard in the memory account; empty without a limit.
    """

    spec: ArraySpec | None
    value: Any | StatusError
    memory: tuple[Allocation, ...] = ()

    @property
    def error(self) -> StatusError | None:
        """The error of the array; None without a known one."""
        return self.value if isinstance(self.value, StatusError) else None

    def read(self) -> tuple[ArraySpec, Any]:
        """Returns the spec and the value.

        Raises:
          StatusError: the array has no value.
        """
        if isinstance(self.value, StatusError):
            raise status_of(self.value)
        assert self.spec is not None
        return self.spec, self.value

    @property
    def shard_memory(self) -> list[tuple[Allocation, ...]]:
        """The allocation of each shard."""
        spec, _ = self.read()
        return [(allocation,) for allocation in self.memory] or [()] * len(spec.placement.devices)

    def with_memory(self, memory: tuple[Allocation, ...]) -> ProxyArray:
        """Returns the array with its allocations."""
        return dataclasses.replace(self, memory=memory)

    def free(self) -> None:
        """Returns the memory of an array to the account, after its buffers were deleted."""
        for allocation in self.memory:
            allocation.free()

    def wait(self) -> None:
        """Waits until the value is computed.

        Raises:
          StatusError, JaxRuntimeError: the array has no value.
        """
        self.read()[1].block_until_ready()

    @property
    def is_ready(self) -> bool:
        """Whether `wait` would not wait. A deleted array is ready: reading it raises."""
        if isinstance(self.value, StatusError):
            return True
        return self.value.is_deleted() or self.value.is_ready()


class PendingArray(ProxyArray):
    """Array that another thread creates; reading it waits."""

    def __init__(self, spec: ArraySpec) -> None:
        self._future: concurrent.futures.Future[Any]
        # The base is a frozen dataclass.
        object.__setattr__(self, "spec", spec)
        object.__setattr__(self, "_future", concurrent.futures.Future())

    @property
    def value(self) -> Any | StatusError:
        """The array, or its error."""
        return self._future.result()

    @property
    def is_ready(self) -> bool:
        return self._future.done() and super().is_ready

    @property
    def error(self) -> StatusError | None:
        return super().error if self._future.done() else None

    def with_memory(self, memory: tuple[Allocation, ...]) -> ProxyArray:
        object.__setattr__(self, "memory", memory)
        return self

    def resolve(self, value: Any | StatusError) -> None:
        """Sets the value or the error; no-op for an array that has one."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self._future.set_result(value)
