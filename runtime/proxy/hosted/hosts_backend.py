"""Devices of hosts, and the XLA programs on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import override

import jax
import msgspec

from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.local.server_requests import ServedDevice
from pathways.runtime.proxy.hosted.foreign_programs import ForeignProgram, ReloadedProgram, ResultPlace
from pathways.runtime.proxy.hosted.hosted_device import HostedDevice
from pathways.runtime.proxy.hosted.hosted_mpmd import load_mpmd
from pathways.runtime.proxy.hosted.hosted_programs import HostedXlaProgram
from pathways.runtime.proxy.hosted.hosted_store import HostedFileStore
from pathways.runtime.proxy.hosted.hosts_engine import HostsEngine
from pathways.runtime.proxy.hosted.island_watch import IslandWatch
from pathways.runtime.proxy.loading.backend import Backend, OfferedDevice
from pathways.runtime.proxy.loading.compile_process import Cancellation
from pathways.runtime.proxy.loading.mpmd_program import MpmdProgram
from pathways.runtime.proxy.loading.mpmd_source import MpmdSource
from pathways.runtime.proxy.loading.xla_program import XlaProgram, XlaSource
from pathways.runtime.proxy.worker.device_facts import decode_all
from pathways.runtime.proxy.worker.kinds import DEVICES, XLA
from pathways.runtime.proxy.worker.xla_facts import XlaFacts
from pathways.runtime.proxy.worker.xla_programs import XlaModule
from pathways.runtime.resources.status import Status


class HostsBackend(Backend):
    """Devices of the hosts of a session; an island is a slice in JAX's sense, or several that are joined.

    Args:
      session: the session, which the backend closes.
      islands: the numbers of the islands to use; None for all.

    Raises:
      HostError: a host is lost.
    """

    def __init__(self, session: HostSession, islands: Sequence[int] | None = None) -> None:
        self._session = session
        self._watch: IslandWatch | None = None
        self.engine: HostsEngine = HostsEngine(session)
        self.step_deadline = session.step_deadline
        self.store = HostedFileStore(self.engine)
        used = range(len(session.pool.gangs)) if islands is None else islands
        # The numbers of its islands in the session.
        self._numbers = tuple(used)
        # Of this process: the workers that it starts have the same settings.
        self.client = jax.devices()[0].client
        offered = []
        slices = 0
        for position, number in enumerate(self._numbers):
            (gang,) = session.pool.current([number])
            _, replies = session.load_foreign("devices", gang.hosts, DEVICES, b"")
            facts = {each.id: each for reply in replies for each in decode_all(reply.facts)}
            island = session.cluster.islands[number]
            for n, device in enumerate(island.devices):
                hosted = HostedDevice(device.position, device.id, number, device.host.index)
                renumbered = facts[device.id].renumbered(hosted.id)
                slice = slices + n * island.slices // len(island.devices)
                offered.append(OfferedDevice(hosted, renumbered, position, slice, hosted.host))
            slices += island.slices
        self.islands = tuple(session.cluster.islands[number].name for number in self._numbers)
        self.devices = tuple(offered)
        self.engine.default_memory = offered[0].facts.default_memory

    @override
    def load(self, source: XlaSource, cancellation: Cancellation) -> XlaProgram:
        module = XlaModule(
            bytecode_of(source.module),
            source.options,
            tuple(device.worker_id for device in source.devices),
            tuple((shape, dtype.name) for shape, dtype in source.operands),
            tuple((shape, dtype.name) for shape, dtype in source.results),
        )
        facts: list[XlaFacts] = []

        def results(data: bytes) -> list[ResultPlace]:
            facts.append(msgspec.msgpack.decode(data, type=XlaFacts))
            return [ResultPlace(spec, self.engine.location_of(spec)) for spec in source.specs(facts[0])]

        def load() -> ForeignProgram:
            hosts = self.engine.hosts_of(source.devices)
            return ForeignProgram.load(self._session, source.name, hosts, XLA, module, results)

        program = ReloadedProgram(load)
        specs = tuple(place.spec for place in program.current().results)
        return HostedXlaProgram(
            program, source.devices, specs, facts[0].donated, source.name, facts[0], self.engine
        )

    @override
    def load_mpmd(self, source: MpmdSource) -> MpmdProgram:
        return load_mpmd(self.engine, source)

    @override
    def status(self) -> Status:
        hosts, steps = self._session.status()
        waits = self._session.waits_for_network()
        return Status("server", hosts, (), steps, waits, self._session.spares())

    @override
    def served_devices(self, lost: Set[int]) -> list[ServedDevice]:
        # The session knows more about its islands than which of them are lost.
        del lost
        current = self._session.current_cluster()
        devices, served = current.devices, []
        for offered in self.devices:
            device, island = offered.device, current.islands[offered.device.island]
            memory = devices[device.id].memory
            served.append(ServedDevice(device.id, device.host, memory, island.state, island.round_trip))
        return served

    @override
    def start(self, lose: Callable[[int, str, bool], None], restore: Callable[[int], None]) -> None:
        self._watch = IslandWatch(self._session, self._numbers, lose, restore)

    @override
    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._session.close()
