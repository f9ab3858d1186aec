"""Programs on several meshes of this process: programs of Shardy's MPMD compiler, and of Pathways."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, override

import jax

from pathways.dialect.errors import PathwaysError
from pathways.runtime.local.devices import binding_of
from pathways.runtime.local.load import Executable, device_text, load, stats_of
from pathways.runtime.local.memory import MemoryAnalysis, analyze
from pathways.runtime.local.partial_calls import PartialFailure, PartialTarget
from pathways.runtime.proxy.arrays.local_engine import LocalEngine
from pathways.runtime.proxy.loading.mpmd_program import MpmdProgram
from pathways.runtime.proxy.loading.mpmd_source import MpmdSource
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, status_of
from pathways.runtime.resources.manager import ResourceError
from pathways.runtime.xla import pjrt


@dataclasses.dataclass(frozen=True, eq=False)
class LocalMpmdProgram(MpmdProgram):
    """Program on slices of devices of this process."""

    executable: Executable

    @functools.cached_property
    def slice_memory(self) -> MemoryAnalysis:
        return analyze(self.executable.plan, stats_of(self.executable.executables))

    @functools.cached_property
    def costs(self) -> Mapping[str, Mapping[str, float]]:
        executables = self.executable.executables
        return {name: dict(executable.cost_analysis()) for (name, _), executable in executables.items()}

    @override
    def device_text(self) -> str:
        return device_text(self.executable.executables)

    @override
    def status_of(self, error: Exception) -> StatusError:
        return status_of_program(error)

    @override
    def run(self, operands: list[Any], donated: set[int], copied: Sequence[int]) -> list[Any]:
        for number in copied:
            operands[number] = _copy(operands[number])
        values: list[Any]
        try:
            values = self.executable.run([operands[number] for number in self.interface.read])
        except PartialFailure as failure:
            values = [
                status_of_program(output) if isinstance(output, Exception) else output
                for output in failure.outputs
            ]
        return self._unshared(values, operands, donated)

    def _unshared(self, values: list[Any], operands: Sequence[jax.Array], donated: set[int]) -> list[Any]:
        """Returns the results: a copy of each whose buffer a kept argument or another result has.

        A client may delete or donate each array that it has, without a change of any other. Donated arguments
        are deleted.
        """
        held = {id(operand) for number, operand in enumerate(operands) if number not in donated}
        for number, value in enumerate(values):
            if id(value) in held:
                values[number] = _copy(value)
            held.add(id(value))
        for number in donated:
            # A donated argument ends even if no computation reads it, or could reuse its buffer.
            if id(operands[number]) not in held and not operands[number].is_deleted():
                operands[number].delete()
        return values


def load_mpmd(engine: LocalEngine, source: MpmdSource) -> LocalMpmdProgram:
    """Compiles and loads a program; see `Backend.load_mpmd`."""
    plan, interface = source.plan, source.interface
    bindings = {name: binding_of(devices, plan.slices[name]) for name, devices in interface.slices.items()}
    executable = load(plan, bindings, argument_names=source.argument_names, make_target=PartialTarget)
    return LocalMpmdProgram(
        executable, interface.devices, interface.results, interface.donated, interface, engine
    )


def _copy(array: jax.Array) -> jax.Array:
    devices = [pjrt.device_list(list(array.sharding._device_assignment))]
    (copied,) = pjrt.copy_arrays([array], devices, [array.sharding], [pjrt.ALWAYS_COPY])
    return copied


def status_of_program(error: Exception) -> StatusError:
    """Returns the status of an error, with the note that names the failed step if there is one."""
    if isinstance(error, ResourceError):
        return StatusError(StatusCode.RESOURCE_EXHAUSTED, str(error))
    if isinstance(error, PathwaysError) and not isinstance(error, StatusError | ValueError):
        return StatusError(StatusCode.INVALID_ARGUMENT, str(error))
    status = status_of(error)
    notes = getattr(error, "__notes__", ())
    return StatusError(status.code, "; ".join([status.message, *notes[:1]])) if notes else status
