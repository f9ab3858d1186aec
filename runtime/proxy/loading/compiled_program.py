"""Base class of compiled programs of clients, on one mesh or on multiple meshes."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from pathways.runtime.proxy.arrays.memory_account import Allocation
from pathways.runtime.proxy.arrays.placements import ArraySpec
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.wire.statuses import StatusError


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledProgram(abc.ABC):
    """Compiled program on its devices.

    Attributes:
      devices: its devices; for a program on one mesh, in the order of shards.
      results: the type and placement of each result.
      donated: the arguments whose buffers an execution consumes.
      memory: the allocation of its code in the memory account; empty without a limit.
    """

    executable: Any
    devices: tuple[jax.Device, ...]
    results: tuple[ArraySpec, ...]
    donated: tuple[int, ...]
    memory: tuple[Allocation, ...] = dataclasses.field(default=(), kw_only=True)

    @property
    @abc.abstractmethod
    def needed_bytes(self) -> int:
        """The bytes that an execution without donation needs in addition to its arguments, on all devices."""

    @abc.abstractmethod
    def execute(self, arguments: Sequence[ProxyArray], undonated: Sequence[int] = ()) -> list[ProxyArray]:
        """Starts an execution, and returns its results. If it fails, each result holds the error.

        Args:
          undonated: the arguments that must not be consumed although the program donates them.
        """

    @abc.abstractmethod
    def describe(self, response: Any) -> None:
        """Fills a `LoadedExecutableMetadataResponse`."""

    def fail(self, error: StatusError) -> list[ProxyArray]:
        """Returns results that all raise an error."""
        return [ProxyArray(spec, error) for spec in self.results]
