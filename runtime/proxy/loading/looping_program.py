"""Programs with loops that end depending on values: sub-programs, and chunks of iterations of these loops."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, override

from pathways.runtime.bundle.carrier import digest_of_part
from pathways.runtime.control.records.errors import failed
from pathways.runtime.local.memory import MemoryAnalysis, analyze_sub_programs
from pathways.runtime.plan.plan import Plan
from pathways.runtime.plan.sub_programs import SubProgramCall, SubProgramCalls
from pathways.runtime.proxy.arrays.placements import ArraySpec, same_place
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.loading.mpmd_program import MpmdProgram
from pathways.runtime.proxy.loading.mpmd_source import MpmdInterface, MpmdPort
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError

Values = dict[int, dict[str, Any]]
"""The value of each argument and result of sub-programs on each slice, by its number and the slice's name."""

Specs = dict[int, dict[str, ArraySpec]]
"""The types and placements of `Values`."""


class _ReadValue(NamedTuple):
    """Operand of a sub-program on one slice.

    Attributes:
      number: the number of the value that it is.
      slice: the slice whose copy it is.
      spec: the type and placement of that copy.
      target: the type and placement that the sub-program expects; None if the copy has them.
    """

    number: int
    slice: str
    spec: ArraySpec
    target: ArraySpec | None


class _BoundCall(NamedTuple):
    """Call of a sub-program.

    Attributes:
      program: the sub-program.
      operands: its operands, in its first iteration if it is repeated.
      repeated: its operands in further iterations.
      until: the value that ends the loop; None for a sub-program that runs once.
    """

    call: SubProgramCall
    program: MpmdProgram
    operands: Sequence[_ReadValue]
    repeated: Sequence[_ReadValue]
    until: _ReadValue | None


@dataclasses.dataclass(frozen=True, eq=False)
class LoopingProgram(MpmdProgram):
    """Program of sub-programs: runs some once, and chunks of a loop's iterations until a boolean is true.

    An execution waits for that boolean after each chunk, and returns when the last sub-program is issued. No
    lock is held while it waits.

    Attributes:
      executable: the calls of the sub-programs.
      sub_programs: the sub-programs by name.
      plans: their plans.
      check: raises an error if no further chunk may run, as after the end of the session.
      step_deadline: seconds after which a loop is ended; None for never.
    """

    executable: SubProgramCalls
    sub_programs: Mapping[str, MpmdProgram]
    plans: Mapping[str, Plan]
    check: Callable[[], None]
    step_deadline: float | None

    @classmethod
    def of(cls, calls: SubProgramCalls, interface: MpmdInterface, **fields: Any) -> Self:
        """Returns the program with an interface.

        Args:
          fields: the other attributes.

        Raises:
          StatusError: a sub-program reads a value of another type than it expects.
        """
        program = cls(calls, interface.devices, interface.results, interface.donated, interface, **fields)
        _ = program._calls
        return program

    @property
    @override
    def traced(self) -> Mapping[str, Plan]:
        return {
            digest_of_part(self.digest, name): program.executable.plan
            for name, program in self.sub_programs.items()
        }

    @functools.cached_property
    def _calls(self) -> tuple[_BoundCall, ...]:
        return tuple(_calls_of(self.executable, self.interface, self.sub_programs))

    @functools.cached_property
    def slice_memory(self) -> MemoryAnalysis:
        analyses = {name: program.slice_memory for name, program in self.sub_programs.items()}
        return analyze_sub_programs(self.executable, self.plans, analyses)

    @functools.cached_property
    def costs(self) -> Mapping[str, Mapping[str, float]]:
        """XLA's estimates for each computation of a chunk."""
        return self.sub_programs[self.executable.repeated].costs

    @override
    def device_text(self) -> str:
        return "\n".join(program.device_text() for program in self.sub_programs.values())

    @override
    def status_of(self, error: Exception) -> StatusError:
        return self.sub_programs[self.executable.repeated].status_of(error)

    @override
    def run(self, operands: list[Any], donated: set[int], copied: Sequence[int]) -> list[Any]:
        for number in copied:
            argument = ProxyArray(self.parameters[number], operands[number])
            operands[number] = self.engine.copy([argument], (), None)[0].value
        values: Values = {number: {} for number in range(len(self.executable.arguments))}
        _store(values, range(len(values)), self.interface.inputs, operands)
        for call in self._calls:
            self.check()
            self._start(call, call.operands, values)
            if call.until is not None:
                self._repeat(call, call.until, values)
            for number in call.call.last:
                del values[number]
        last = self.executable.calls[-1].results
        results = [values[last[port.number]][port.slice] for port in self.interface.outputs]
        # An argument that was moved to its sub-program is not consumed there.
        held = set(map(id, results))
        for number in donated:
            if id(operands[number]) not in held and not operands[number].is_deleted():
                operands[number].delete()
        return results

    def _repeat(self, call: _BoundCall, until: _ReadValue, values: Values) -> None:
        """Runs further chunks of a loop up to its end."""
        start = time.monotonic()
        while not self.engine.fetch(ProxyArray(until.spec, values[until.number][until.slice])):
            self.check()
            seconds = time.monotonic() - start
            if self.step_deadline is not None and seconds >= self.step_deadline:
                raise failed(
                    f"loop @{call.call.sub_program} has run for {seconds:.0f} seconds, and step_deadline is "
                    f"{self.step_deadline:g}: it was ended after a chunk"
                ).error(f"program '{self.name}'")
            self._start(call, call.repeated, values)

    def _start(self, call: _BoundCall, operands: Sequence[_ReadValue], values: Values) -> None:
        """Starts a sub-program, and stores the values of its results."""
        program = call.program
        results = program.run(
            [self._value(operand, values) for operand in operands], set(program.donated), ()
        )
        # Of a sub-program in which a step has failed: no other sub-program could continue.
        for result in results:
            if isinstance(result, StatusError):
                raise result
        _store(values, call.call.results, program.interface.outputs, results)

    def _value(self, operand: _ReadValue, values: Values) -> Any:
        value = values[operand.number][operand.slice]
        if operand.target is None:
            return value
        return self.engine.reshard(operand.target, ProxyArray(operand.spec, value)).value


def _calls_of(
    calls: SubProgramCalls, interface: MpmdInterface, sub_programs: Mapping[str, MpmdProgram]
) -> Iterator[_BoundCall]:
    """Yields the calls of a program with the operands that they read."""
    specs: Specs = {number: {} for number in range(len(calls.arguments))}
    _store(specs, range(len(specs)), interface.inputs, interface.parameters)
    for call in calls.calls:
        program = sub_programs[call.sub_program]
        operands = _operands(program, call.operands, specs)
        _store(specs, call.results, program.interface.outputs, program.results)
        if call.until is None:
            yield _BoundCall(call, program, operands, (), None)
            continue
        # Results replace the first operands; the others are the same in every iteration.
        numbers = (*call.results, *call.operands[len(call.results) :])
        ends = call.results[call.until]
        slice, spec = next(iter(specs[ends].items()))
        until = _ReadValue(ends, slice, spec, None)
        yield _BoundCall(call, program, operands, _operands(program, numbers, specs), until)


def _operands(program: MpmdProgram, numbers: Sequence[int], specs: Specs) -> list[_ReadValue]:
    """Returns the operands of a sub-program.

    Raises:
      StatusError: one has another type than the sub-program expects.
    """
    operands = []
    for port in program.interface.inputs:
        copies = specs[numbers[port.number]]
        slice = port.slice if port.slice in copies else next(iter(copies))
        spec = copies[slice]
        if spec.shape != port.spec.shape or spec.dtype != port.spec.dtype:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"operand #{port.number} of @{program.name} is {spec.dtype.name}{list(spec.shape)}, "
                f"expected {port.spec.dtype.name}{list(port.spec.shape)}",
            )
        is_there = same_place(spec.placement, port.spec.placement)
        operands.append(_ReadValue(numbers[port.number], slice, spec, None if is_there else port.spec))
    return operands


def _store(
    table: dict[int, dict[str, Any]],
    numbers: Sequence[int],
    ports: Sequence[MpmdPort],
    values: Sequence[Any],
) -> None:
    """Replaces the entries of arguments or results by the values of their ports.

    Args:
      numbers: the number in the table of each argument or result.
    """
    for number in numbers:
        table[number] = {}
    for port, value in zip(ports, values, strict=True):
        table[numbers[port.number]][port.slice] = value
