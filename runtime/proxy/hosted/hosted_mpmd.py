"""Programs of Pathways on hosts, with arrays of clients."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, override

import jax

from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.hosts.client.array import results_of
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.client.program_loader import ProgramLoader
from pathways.runtime.hosts.cluster.host import Location
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram, HostPort
from pathways.runtime.hosts.protocol.host_facts import HostFacts
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.messages import DeviceLayout
from pathways.runtime.hosts.protocol.programs import BoundProgram, SlicePlace
from pathways.runtime.local.memory import MemoryAnalysis, analyze
from pathways.runtime.proxy.hosted.hosted_values import HostedValue
from pathways.runtime.proxy.hosted.hosts_engine import HostsEngine
from pathways.runtime.proxy.loading.mpmd_program import MpmdProgram
from pathways.runtime.proxy.loading.mpmd_source import MpmdInterface, MpmdPort, MpmdSource
from pathways.runtime.proxy.wire.statuses import StatusError, status_of
from pathways.runtime.resources.manager import Binding


class _HostedSteps:
    """Program on its workers, which is unloaded after its last use.

    Args:
      session: the session with the hosts.
      program: the program.
      inputs: for each island, the argument of clients that each of its inputs is.
      placements: the placement of each argument of clients that the program reads.
      outputs: the place of each result of clients, and its position among the outputs of its island.

    Attributes:
      program, inputs, placements, outputs: see above.
    """

    def __init__(
        self,
        session: HostSession,
        program: HostedProgram,
        inputs: Mapping[int, Sequence[int]],
        placements: Mapping[int, DeviceLayout],
        outputs: Sequence[tuple[Location, int]],
    ) -> None:
        self.program = program
        self.inputs = inputs
        self.placements = placements
        self.outputs = outputs
        weakref.finalize(self, session.unload, program).atexit = False


class HostedPlan:
    """Program of Pathways that is loaded on hosts, and again after a restart of them.

    Args:
      loader: loads it.
      interface: its arguments and results.
      places: the devices of its slices, as hosts number them.

    Attributes:
      plan: its plan.
    """

    def __init__(
        self, loader: ProgramLoader, interface: MpmdInterface, places: Mapping[str, SlicePlace]
    ) -> None:
        self.plan = loader.plan
        self._loader = loader
        self._interface = interface
        self._places = places
        self._lock = threading.Lock()
        self._loaded = self._load()

    def current(self) -> _HostedSteps:
        """Returns the program on the current workers.

        Raises:
          HostError: a host is lost, or leaves.
        """
        with self._lock:
            if not self._loaded.program.is_ready():
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> _HostedSteps:
        session, interface = self._loader.session, self._interface
        program = self._loader.load(self._places)
        inputs = {
            island: [interface.read[n] for n in self._positions(island, ports, interface.inputs)]
            for island, ports in program.inputs.items()
        }
        placements = {
            n: port.location.placement
            for island, numbers in inputs.items()
            for n, port in zip(numbers, program.inputs[island], strict=True)
        }
        places: dict[int, tuple[Location, int]] = {}
        for island, ports in program.outputs.items():
            for n, position in enumerate(self._positions(island, ports, interface.outputs)):
                places[position] = ports[n].location, n
        return _HostedSteps(
            session, program, inputs, placements, [places[n] for n in range(len(interface.outputs))]
        )

    def _positions(self, island: int, ports: Iterable[HostPort], values: Sequence[MpmdPort]) -> list[int]:
        """Returns the positions of the ports of an island among the arguments or results."""
        # Two slices may have the same devices.
        free = {n: (value.number, self._places[value.slice]) for n, value in enumerate(values)}
        positions = []
        for port in ports:
            key = port.number, island, port.location.placement.devices
            position = next(
                n for n, (number, place) in free.items() if (number, place.island, place.devices) == key
            )
            del free[position]
            positions.append(position)
        return positions


@dataclasses.dataclass(frozen=True, eq=False)
class HostedMpmdProgram(MpmdProgram):
    """Program of Pathways on slices of hosts."""

    executable: HostedPlan
    engine: HostsEngine

    @functools.cached_property
    def slice_memory(self) -> MemoryAnalysis:
        return MemoryAnalysis({**analyze(self.executable.plan, {}), **self._facts.memory})

    @functools.cached_property
    def costs(self) -> Mapping[str, Mapping[str, float]]:
        return {computation: {"flops": flops} for (computation, _), flops in self._facts.flops.items()}

    @functools.cached_property
    def _facts(self) -> HostFacts:
        return self.engine.session.describe(self.executable.current().program)

    @override
    def device_text(self) -> str:
        return self.engine.session.describe(self.executable.current().program, text=True).text

    @override
    def status_of(self, error: Exception) -> StatusError:
        return status_of(error)

    @override
    def run(self, operands: list[Any], donated: set[int], copied: Sequence[int]) -> list[Any]:
        for number in copied:
            operands[number] = self.engine.copy_of(self.parameters[number], operands[number])
        values = [self.engine.operand(operand) for operand in operands]
        loaded, session = self.executable.current(), self.engine.session
        for number, placement in loaded.placements.items():
            values[number] = self.engine.arranged(self.parameters[number], values[number], placement)
        avals = [jax.core.ShapedArray(spec.shape, spec.dtype) for spec in self.results]
        # Another thread may donate them, too: before this, which is an error, or after it.
        with session.pool.order:
            arguments = {
                island: [values[n].number() for n in positions] for island, positions in loaded.inputs.items()
            }
            read = itertools.chain.from_iterable(loaded.inputs.values())
            producers = [values[n].array.step_at(values[n].location) for n in read]
            session.wait_for_room(loaded.program)
            # Without a handle nothing would free a result.
            with uninterrupted():
                step = session.issue(loaded.program, arguments, producers)
                for number in donated:
                    operands[number].delete()
                    values[number].delete()
                arrays = results_of(session, step, avals, [[place] for place in loaded.outputs])
        return [
            HostedValue(array, location, spec.placement.devices)
            for array, (location, _), spec in zip(arrays, loaded.outputs, self.results, strict=True)
        ]


def load_mpmd(engine: HostsEngine, source: MpmdSource) -> HostedMpmdProgram:
    """Compiles and loads a program; see `Backend.load_mpmd`."""
    session, plan, interface, stored = engine.session, source.plan, source.interface, source.stored
    physical = {device.position: device for device in session.cluster.devices}
    places = {}
    for name, devices in interface.slices.items():
        slice, bound = plan.slices[name], tuple(physical[device.id] for device in devices)
        places[name] = SlicePlace.of(Binding(bound, slice.shape, slice.axis_names, name))
    bound_program = BoundProgram(
        plan.name,
        bytecode_of(source.module),
        {},
        dict(stored.computations) if stored else {},
        stored.plain_constants() if stored else {},
        source.argument_names,
        (False,) * len(plan.results),
    )
    loader = ProgramLoader(session, bound_program, plan, source.module.context)
    loaded = HostedPlan(loader, interface, places)
    return HostedMpmdProgram(
        loaded, interface.devices, interface.results, interface.donated, interface, engine
    )
