"""Base class of the places whose devices clients use: this process, or hosts."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Set
from typing import Any

from pathways.runtime.local.server_requests import ServedDevice
from pathways.runtime.proxy.arrays.array_engine import ArrayEngine
from pathways.runtime.proxy.files.file_store import FileStore
from pathways.runtime.proxy.loading.compile_process import Cancellation
from pathways.runtime.proxy.loading.mpmd_program import MpmdProgram
from pathways.runtime.proxy.loading.mpmd_source import MpmdSource
from pathways.runtime.proxy.loading.xla_program import XlaProgram, XlaSource
from pathways.runtime.proxy.worker.device_facts import DeviceFacts
from pathways.runtime.resources.status import Status


@dataclasses.dataclass(frozen=True)
class OfferedDevice:
    """Device that clients may use.

    Attributes:
      device: the device in placements of arrays; clients know its `id`.
      facts: the facts that clients get.
      island: the number of its island.
      slice_index: the number of its slice, in JAX's sense: hosts of an island may form several.
      task: the number of its host; None for this process.
    """

    device: Any
    facts: DeviceFacts
    island: int = 0
    slice_index: int = 0
    task: int | None = None


class Backend(abc.ABC):
    """Devices, the arrays on them, and the programs that they run.

    Attributes:
      devices: the devices, by the ids that clients know.
      engine: the engine of arrays.
      store: writes arrays to files, and reads them.
      islands: the names of the islands.
      client: the client of XLA whose defaults compiler options have.
      step_deadline: seconds after which a loop whose end depends on values is ended; None for never.
    """

    devices: tuple[OfferedDevice, ...]
    engine: ArrayEngine
    store: FileStore
    islands: tuple[str, ...]
    client: Any
    step_deadline: float | None = None

    @abc.abstractmethod
    def load(self, source: XlaSource, cancellation: Cancellation) -> XlaProgram:
        """Compiles and loads a program.

        Args:
          cancellation: ends a long compilation.

        Raises:
          JaxRuntimeError: XLA rejected it.
          HostError: a host is lost, or XLA rejected it there.
        """

    @abc.abstractmethod
    def load_mpmd(self, source: MpmdSource) -> MpmdProgram:
        """Compiles and loads a program on several meshes, which was checked.

        Raises:
          ResourceError, CompileError: see `runtime.local.load`.
          HostError: a host is lost, or XLA rejected it there.
        """

    @abc.abstractmethod
    def status(self) -> Status:
        """Returns the status of its hosts, and of the steps that are not done."""

    @abc.abstractmethod
    def served_devices(self, lost: Set[int]) -> list[ServedDevice]:
        """Returns the present facts about its devices.

        Args:
          lost: the numbers of the islands that are lost for clients.
        """

    @abc.abstractmethod
    def start(self, lose: Callable[[int, str, bool], None], restore: Callable[[int], None]) -> None:
        """Starts to report islands.

        Args:
          lose: called with the number of an island that is lost, the reason, and whether it returns by
            itself.
          restore: called with the number of one that has returned, without the arrays that it had.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Releases the resources of the backend."""
