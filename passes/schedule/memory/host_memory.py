"""Peak memory of the slices of a program that is split over hosts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from jaxlib.mlir import ir

from pathways.dialect import Trait, donated_arguments, op_has
from pathways.dialect.attributes.names import DONATED, SLICE
from pathways.dialect.operations.placement import read_slices
from pathways.dialect.relations.host_relations import parts_of
from pathways.dialect.relations.layouts import Layouts
from pathways.dialect.relations.program_view import ProgramView
from pathways.passes.analysis.operations import byte_size
from pathways.passes.schedule.memory.live_bytes import LiveBytes


def peak_bytes(programs: Sequence[ProgramView], ahead: int) -> dict[str, int]:
    """Returns the most bytes alive at once on each slice, over all its devices.

    Memory for received values is taken at the beginning of the step: hosts do not wait when they issue
    steps, so all receives may be issued before the first launch runs. Sent values are alive to the end.

    Args:
      programs: the program of each host.
      ahead: how many steps are issued at once.
    """
    return {name: peak + (ahead - 1) * further for name, (peak, further) in step_bytes(programs).items()}


def step_bytes(programs: Sequence[ProgramView]) -> dict[str, tuple[int, int]]:
    """Returns the peak bytes of each slice in one step, and the bytes that each further step adds."""
    bytes_by_slice: dict[str, tuple[int, int]] = {}
    for program in programs:
        memory = _HostMemory(program)
        memory.run()
        for name, peak in memory.live.peak.items():
            bytes_by_slice[name] = peak, memory.posted.get(name, 0)
    return bytes_by_slice


class _HostMemory:
    """Follower of live bytes through the function of a host.

    Attributes:
      live: the bytes alive on each slice.
      posted: the bytes that each further step takes before it runs, for values to receive and to send.
    """

    def __init__(self, program: ProgramView) -> None:
        self.program = program
        self.layouts = Layouts(program.module)
        self.live: LiveBytes[str] = LiveBytes()
        self.posted: dict[str, int] = {}

    def run(self) -> None:
        arguments = self.program.main.regions[0].blocks[0].arguments
        self.begin(arguments)
        for op in self.program.ops:
            if op_has(op, Trait.RECEIVES):
                self.begin(op.results)
                self.post(op.slice, op.results)
        sent: set[ir.Value] = set()
        for op in self.program.ops:
            if op_has(op, Trait.EXECUTES):
                self.end([op.operands[n] for n in donated_arguments(self.program.symbols[op.callee])])
                self.begin(op.results)
            elif op_has(op, Trait.TRANSFERS):
                self.begin(op.results)
            elif op_has(op, Trait.RELEASES):
                self.end(op.operands)
            elif op_has(op, Trait.SENDS) and op.copy:
                self.live.add(op.slice, self.size(op.slice, op.operands))
                self.post(op.slice, op.operands)
            elif op_has(op, Trait.SENDS):
                # To however many hosts a value is sent, it is one buffer; a copy is one more for each.
                self.post(op.slice, [value for value in op.operands if value not in sent])
                sent.update(op.operands)
        self.copied_results(arguments)

    def size(self, slice: str, values: Iterable[ir.Value]) -> int:
        """Returns the bytes of values in the default memory of a slice; replicated ones count per device."""
        mesh = self.layouts.mesh(slice)
        on_devices = (value for value in values if self.layouts.memory_kind(value) is None)
        splits = ((value, math.prod(self.layouts.of(value, slice).splits(mesh))) for value in on_devices)
        return sum(byte_size(value.type) * mesh.size // shards for value, shards in splits)

    def post(self, slice: str, values: Iterable[ir.Value]) -> None:
        self.posted[slice] = self.posted.get(slice, 0) + self.size(slice, values)

    def begin(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            for name in self.program.slices[value]:
                self.live.add(name, self.size(name, [value]))

    def end(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            for name in self.program.slices[value]:
                self.live.remove(name, self.size(name, [value]))

    def copied_results(self, arguments: Sequence[ir.Value]) -> None:
        """Counts copies of results that are also other results, or values that the caller kept."""
        owned = {
            (argument, name)
            for argument, attrs in zip(arguments, self.program.arguments, strict=True)
            if DONATED not in attrs
            for name in read_slices(attrs[SLICE])
        }
        for result in self.program.terminator.operands:
            copies = [(part, name) for part in parts_of(result) for name in self.program.slices[part]]
            for value, name in copies:
                if (value, name) in owned:
                    self.live.add(name, self.size(name, [value]))
            owned.update(copies)
