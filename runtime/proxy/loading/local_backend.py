"""Devices of this process, and the XLA programs on them."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any, override

import jax

from pathways.runtime.local.devices import memory_limit
from pathways.runtime.local.load import host_status
from pathways.runtime.local.server_requests import ServedDevice
from pathways.runtime.proxy.arrays.local_engine import LocalEngine
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.files.local_store import LocalFileStore
from pathways.runtime.proxy.loading.backend import Backend, OfferedDevice
from pathways.runtime.proxy.loading.compile_process import Cancellation, CompileProcesses
from pathways.runtime.proxy.loading.local_mpmd import load_mpmd
from pathways.runtime.proxy.loading.mpmd_program import MpmdProgram
from pathways.runtime.proxy.loading.mpmd_source import MpmdSource
from pathways.runtime.proxy.loading.xla_program import XlaProgram, XlaSource
from pathways.runtime.proxy.wire.statuses import StatusError, status_of
from pathways.runtime.proxy.worker.device_facts import facts_of as facts_of_device
from pathways.runtime.proxy.worker.xla_facts import facts_of
from pathways.runtime.resources.status import Status
from pathways.runtime.xla import compile_cache, ifrt, pjrt
from pathways.runtime.xla.launch_order import launch_order


@dataclasses.dataclass(frozen=True, eq=False)
class LocalXlaProgram(XlaProgram):
    """XLA program on devices of this process."""

    engine: LocalEngine

    @functools.cached_property
    def _makers(self) -> list[Any]:
        return [self.engine.maker(spec) for spec in self.results]

    @functools.cached_property
    def _order(self) -> AbstractContextManager[object]:
        """The lock that orders executions over several devices among all sessions."""
        return launch_order(self.devices)

    @override
    def execute(self, arguments: Sequence[ProxyArray], undonated: Sequence[int] = ()) -> list[ProxyArray]:
        try:
            operands = [value for _, value in self.values_of(arguments)]
            for number in set(undonated) & set(self.donated):
                (operands[number],) = pjrt.copy_arrays(
                    [operands[number]],
                    [pjrt.device_list(self.devices)],
                    [operands[number].sharding],
                    [pjrt.ALWAYS_COPY],
                )
            with self._order:
                values = ifrt.execute(self.executable, operands, self._makers)
        except StatusError as error:
            return self.fail(status_of(error))
        return [ProxyArray(spec, value) for spec, value in zip(self.results, values, strict=True)]

    @override
    def text(self) -> str:
        return self.executable.get_hlo_text()

    @override
    def costs(self) -> dict[str, float]:
        return dict(self.executable.cost_analysis())


class LocalBackend(Backend):
    """Devices of this process.

    Args:
      devices: the devices that clients may use.
      islands: the number of equal islands that they form.

    Raises:
      ValueError: they cannot form that number of islands.
    """

    def __init__(self, devices: Sequence[jax.Device], islands: int = 1) -> None:
        if islands < 1 or len(devices) % islands:
            raise ValueError(f"{len(devices)} devices cannot form {islands} equal islands")
        self.islands = tuple(f"island{number}" for number in range(islands))
        self.client = devices[0].client
        self.devices = tuple(
            OfferedDevice(device, facts_of_device(device), island, slice_index=island)
            for number, device in enumerate(devices)
            for island in (number * islands // len(devices),)
        )
        self.engine: LocalEngine = LocalEngine()
        self.store = LocalFileStore(self.engine)
        self._compilers = CompileProcesses()

    @override
    def load(self, source: XlaSource, cancellation: Cancellation) -> XlaProgram:
        options = ifrt.compile_options(source.options)
        executable = compile_cache.load_one(
            source.data,
            source.module,
            source.devices,
            options,
            lambda: self._compilers.compile(source.module, source.devices, options, cancellation),
        )
        facts = facts_of(executable)
        results = source.specs(facts)
        return LocalXlaProgram(
            executable, source.devices, results, facts.donated, source.name, facts, self.engine
        )

    @override
    def load_mpmd(self, source: MpmdSource) -> MpmdProgram:
        return load_mpmd(self.engine, source)

    @override
    def status(self) -> Status:
        here = host_status(os.getpid(), self.islands, [offered.device for offered in self.devices])
        return Status("server", (here,), ())

    @override
    def served_devices(self, lost: Set[int]) -> list[ServedDevice]:
        return [
            ServedDevice(
                offered.device.id,
                0,
                memory_limit(offered.device),
                "lost" if offered.island in lost else "running",
            )
            for offered in self.devices
        ]

    @override
    def start(self, lose: Callable[[int, str, bool], None], restore: Callable[[int], None]) -> None:
        pass  # Islands of this process are lost by request alone.

    @override
    def close(self) -> None:
        self._compilers.close()
