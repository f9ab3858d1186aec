"""Relocation of arrays from one program's slices to another's, by a program of transfers."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Mapping, Sequence

import jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

import pathways.dialect as dialect
from pathways.dialect.attributes.dtypes import element_name
from pathways.dialect.attributes.meshes import Sharding
from pathways.dialect.attributes.names import MAIN, MEMORY_KIND, SHARDING, SLICE
from pathways.dialect.attributes.shardings import make_mesh, make_sharding
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.dialect.verification.forms import PLACED
from pathways.passes.manager.driver import run_passes
from pathways.passes.pipeline import Options, phases_after
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.client.program_loader import ProgramLoader
from pathways.runtime.hosts.cluster.host import Location
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.programs import BoundProgram, SlicePlace
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.resources.manager import Binding

NAME = "relocation"
"""Name of these programs in traces and messages."""

Slice = tuple[bool, int, tuple[int, ...], tuple[int, ...], tuple[str, ...]]
"""Whether arrays arrive there, its island, the ids of its devices there, the shape and the axes of their
mesh.

An array that is sharded differently on its target's devices is moved between two slices, too.
"""

_MAX_LOADED = 256
"""Limit of loaded programs; the oldest are unloaded first."""

_programs: weakref.WeakKeyDictionary[HostSession, dict[tuple[_Move, ...], _KeptProgram]] = (
    weakref.WeakKeyDictionary()
)
"""The loaded programs, by the moves that they do."""

_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class _Move:
    """Move of an array, or of the block that a replica has, to another location.

    Attributes:
      dtype: the name of its dtype.
    """

    shape: tuple[int, ...]
    dtype: str
    source: Location
    target: Location

    @classmethod
    def of(cls, array: Array, target: Location) -> _Move | None:
        """Returns the move of an array to a location; None if no live host has the same block of it."""
        sources = [
            location
            for location in array.locations
            if location.block == target.block and not location.gang.is_lost()
        ]
        sources = [
            location for location in sources if location.placement.memory_kind == target.placement.memory_kind
        ]
        if not sources or target.gang.is_lost():
            return None
        data = array.aval
        if jax.dtypes.issubdtype(data.dtype, jax.dtypes.extended):
            data = jax.eval_shape(jax.random.key_data, data)
        # Within an island, if possible.
        source = min(sources, key=lambda location: location.gang is not target.gang)
        return cls(target.block.shape(data.shape), data.dtype.name, source, target)


class _KeptProgram:
    """Program that is unloaded when it is no longer used."""

    def __init__(self, session: HostSession, program: HostedProgram) -> None:
        self.program = program
        weakref.finalize(self, session.unload, program).atexit = False


def relocate_array(session: HostSession, array: Array, location: Location) -> None:
    """Brings an array to a location, from hosts to hosts, or through this process if replicas share it.

    Raises:
      HostError: a host was lost.
    """
    if relocate(session, [(array, array, location)]):
        array.put(location, array.fetch())


def relocate(
    session: HostSession, requests: Sequence[tuple[Array, Array, Location]]
) -> list[tuple[Array, Array, Location]]:
    """Copies arrays to other locations, shard to shard; does not block.

    One program, which is loaded once and cached, moves all of them.

    Args:
      requests: arrays, each with the array that gets the copy, which may be the same, and a location without
        a copy of the first.

    Returns:
      The entries that cannot be moved so: no replica that shares the array has the required block.

    Raises:
      HostError: a host was lost.
    """
    while True:
        requests = [each for each in requests if not each[1].is_at(each[2])]
        moves = [_Move.of(array, target) for array, _, target in requests]
        going = [
            (array, copy, move)
            for (array, copy, _), move in zip(requests, moves, strict=True)
            if move is not None
        ]
        # Another thread may have moved an array since.
        if not going or _run(session, _loaded(session, tuple(move for *_, move in going)).program, going):
            return [each for each, move in zip(requests, moves, strict=True) if move is None]


def _loaded(session: HostSession, moves: tuple[_Move, ...]) -> _KeptProgram:
    with _lock:
        cached = _programs.get(session, {}).get(moves)
    if cached is not None and cached.program.is_ready():
        return cached
    # Without the lock: hosts compile the program, and other moves need not wait for that.
    loaded = _KeptProgram(session, _load(session, moves))
    with _lock:
        programs = {key: old for key, old in _programs.get(session, {}).items() if old.program.is_ready()}
        for key in list(programs)[: max(0, len(programs) + 1 - _MAX_LOADED)]:
            del programs[key]
        # Another thread may have loaded it in the meantime.
        programs.setdefault(moves, loaded)
        _programs[session] = programs
        return programs[moves]


def _run(session: HostSession, program: HostedProgram, going: Sequence[tuple[Array, Array, _Move]]) -> bool:
    """Runs a program of transfers; returns False if an array is not at its source any more."""
    # Another thread may donate them, too: before this, which is an error, or after it.
    with session.pool.order:
        for array, _, move in going:
            if not array.is_at(move.source):
                array.check_alive()
                return False
        arguments = {
            island: [going[port.number][0].number_at(going[port.number][2].source) for port in ports]
            for island, ports in program.inputs.items()
        }
        producers = [array.step_at(move.source) for array, _, move in going]
        session.wait_for_room(program)
        # Without a handle nothing would free a result.
        with uninterrupted():
            step = session.issue(program, arguments, producers)
            for ports in program.outputs.values():
                for position, port in enumerate(ports):
                    _, copy, move = going[port.number]
                    copy.add_copy(move.target, step.number + 1 + position, step)
    return True


def _load(session: HostSession, moves: Sequence[_Move]) -> HostedProgram:
    """Loads a program of transfers on its hosts."""
    slices: dict[Slice, str] = {}
    for move in moves:
        for slice in _slices(move):
            slices.setdefault(slice, f"place{len(slices)}")
    module = _module(moves, slices)
    for phase in phases_after(Options(), PLACED.name):
        run_passes(module, phase.passes, verify_each=False)
    names = tuple(f"array {n}" for n in range(len(moves)))
    program = BoundProgram(NAME, bytecode_of(module), {}, {}, {}, names, (False,) * len(moves))
    loader = ProgramLoader(session, program, plan_of(module, NAME, proved=True), module.context)
    return loader.load({name: _place(session, slice) for slice, name in slices.items()})


def _slices(move: _Move) -> tuple[Slice, Slice]:
    """Returns the source and target slices of a move."""

    def slice(location: Location, is_target: bool) -> Slice:
        layout = location.placement
        return is_target, location.gang.number, layout.devices, layout.mesh, layout.axis_names

    return slice(move.source, False), slice(move.target, True)


def _place(session: HostSession, slice: Slice) -> SlicePlace:
    _, island, ids, shape, axis_names = slice
    (devices,) = (each.devices for each in session.cluster.islands if each.name == f"island{island}")
    by_id = {device.id: device for device in devices}
    return SlicePlace.of(Binding(tuple(by_id[n] for n in ids), shape, axis_names, NAME))


def _module(moves: Sequence[_Move], slices: Mapping[Slice, str]) -> ir.Module:
    """Returns the module, in the form `placed`."""
    names = [tuple(slices[slice] for slice in _slices(move)) for move in moves]
    with dialect.make_context(), ir.Location.unknown():
        module = ir.Module.create()
        module.operation.attributes["sym_name"] = ir.StringAttr.get(NAME)
        dialect.set_form(module, PLACED)
        types = [ir.RankedTensorType.get(m.shape, ir.Type.parse(element_name(m.dtype))) for m in moves]
        with ir.InsertionPoint(module.body):
            for (*_, shape, axis_names), name in slices.items():
                make_mesh(_mesh_of(name), zip(axis_names, shape, strict=True))
                dialect.SliceOp.build(sym_name=name, mesh=_mesh_of(name))
            main = func.FuncOp(MAIN, (types, types), visibility="public")
        sources = [_attrs(name, move.source) for (name, _), move in zip(names, moves, strict=True)]
        targets = [_attrs(name, move.target) for (_, name), move in zip(names, moves, strict=True)]
        dialect.set_argument_attrs(main, sources)
        dialect.set_result_attrs(main, targets)
        block = main.add_entry_block()
        with ir.InsertionPoint(block):
            moved = [
                dialect.TransferOp.build([value], [value.type], slice=name, sharding=attrs[SHARDING]).results[
                    0
                ]
                for value, (_, name), attrs in zip(block.arguments, names, targets, strict=True)
            ]
            func.ReturnOp(moved)
    return module


def _attrs(slice: str, location: Location) -> dict[str, ir.Attribute]:
    """Returns the attributes of an argument or result on a slice, with its layout."""
    sharding = make_sharding(_mesh_of(slice), Sharding(location.placement.dims))
    attrs = {SLICE: dialect.make_slices([slice]), SHARDING: sharding}
    kind = location.placement.memory_kind
    return attrs if kind is None else {**attrs, MEMORY_KIND: ir.StringAttr.get(kind)}


def _mesh_of(slice: str) -> str:
    return f"mesh_{slice}"
