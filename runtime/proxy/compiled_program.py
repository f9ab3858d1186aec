"""Compiled programs of clients: what those of XLA and those on several meshes have in common."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from pathways.runtime.proxy.arrays import ProxyArray
from pathways.runtime.proxy.devices import ArraySpec
from pathways.runtime.proxy.wire.statuses import StatusError
from pathways.runtime.resources.memory_account import Allocation


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledProgram(abc.ABC):
    """A compiled program on its devices.

    Attributes:
      executable: the program as it is executed.
      devices: its devices; of a program on one mesh in the order of shards.
      results: what each result is and where.
      donated: the arguments whose buffers an execution consumes.
      memory: what the account has of its code; empty without a limit.
    """

    executable: Any
    devices: tuple[jax.Device, ...]
    results: tuple[ArraySpec, ...]
    donated: tuple[int, ...]
    memory: tuple[Allocation, ...] = dataclasses.field(default=(), kw_only=True)

    @property
    @abc.abstractmethod
    def needed_bytes(self) -> int:
        """Bytes that an execution needs besides its arguments, on all devices, if it consumes none."""

    @abc.abstractmethod
    def execute(self, arguments: Sequence[ProxyArray], kept: Sequence[int] = ()) -> list[ProxyArray]:
        """Starts an execution; what fails is in the results, of each of which there is one in any case.

        Args:
          arguments: the arguments.
          kept: the arguments that must not be consumed although the program could.
        """

    @abc.abstractmethod
    def describe(self, response: Any) -> None:
        """Fills a `LoadedExecutableMetadataResponse`."""

    def fail(self, error: StatusError) -> list[ProxyArray]:
        """Returns results that all raise an error."""
        return [ProxyArray(spec, error) for spec in self.results]
