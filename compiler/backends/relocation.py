"""Relocation of arrays from one program's slices to another's, by a program of transfers."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence

import jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

import pathways.dialect as dialect
from pathways.compiler.backends.executable import Scheduled
from pathways.compiler.frontend.arguments import Interface, Signature
from pathways.compiler.frontend.trees import keys_of
from pathways.compiler.lower.phases import run_phases
from pathways.dialect.attributes.dtypes import element_name
from pathways.dialect.attributes.meshes import Sharding
from pathways.dialect.attributes.names import MAIN, MEMORY_KIND, SHARDING, SLICE
from pathways.dialect.attributes.shardings import make_mesh, make_sharding
from pathways.dialect.verification.forms import PLACED
from pathways.passes.pipeline import Options
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import Location
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.local.devices import cluster
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.resources.manager import Binding

NAME = "relocation"
"""Name of these programs in traces and messages."""

Load = Callable[[Scheduled, Mapping[str, Binding]], HostedProgram]
"""Function that loads a program on its hosts."""

Slice = tuple[bool, int, tuple[int, ...], tuple[int, ...], tuple[str, ...]]
"""Whether arrays arrive there, its island, the ids of its devices there, the shape and the axes of their
mesh.

An array that is sharded differently on its target's devices is moved between two slices, too.
"""

_MAX_LOADED = 64
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
            where for where in array.locations if where.block == target.block and not where.gang.is_lost()
        ]
        sources = [where for where in sources if where.placement.memory_kind == target.placement.memory_kind]
        if not sources or target.gang.is_lost():
            return None
        data = array.aval
        if jax.dtypes.issubdtype(data.dtype, jax.dtypes.extended):
            data = jax.eval_shape(jax.random.key_data, data)
        # Within an island, if possible.
        source = min(sources, key=lambda where: where.gang is not target.gang)
        return cls(target.block.shape(data.shape), data.dtype.name, source, target)


class _KeptProgram:
    """Program that is unloaded when it is no longer used."""

    def __init__(self, controller: HostSession, program: HostedProgram) -> None:
        self.program = program
        weakref.finalize(self, controller.unload, program).atexit = False


def relocate(
    controller: HostSession, load: Load, wanted: Sequence[tuple[Array, Array, Location]]
) -> list[tuple[Array, Array, Location]]:
    """Copies arrays to other locations, shard to shard; does not block.

    One program, which is loaded once and cached, moves all of them.

    Args:
      load: loads the program on them.
      wanted: arrays, each with the one that gets the copy, which may be the same, and a location that the
        first one does not have.

    Returns:
      The entries that cannot be moved so: no replica that shares the array has the required block.

    Raises:
      HostError: a host was lost.
    """
    moves = [_Move.of(array, target) for array, _, target in wanted]
    going = [
        (array, copy, move) for (array, copy, _), move in zip(wanted, moves, strict=True) if move is not None
    ]
    if going:
        loaded = _loaded(controller, load, tuple(move for *_, move in going))
        _run(controller, loaded.program, going)
    return [each for each, move in zip(wanted, moves, strict=True) if move is None]


def _loaded(controller: HostSession, load: Load, moves: tuple[_Move, ...]) -> _KeptProgram:
    with _lock:
        found = _programs.get(controller, {}).get(moves)
    if found is not None and found.program.is_ready():
        return found
    # Without the lock: hosts compile the program, and other moves need not wait for that.
    loaded = _KeptProgram(controller, load(*_program(moves)))
    with _lock:
        known = {key: old for key, old in _programs.get(controller, {}).items() if old.program.is_ready()}
        for key in list(known)[: max(0, len(known) + 1 - _MAX_LOADED)]:
            del known[key]
        # Another thread may have loaded it in the meantime.
        known.setdefault(moves, loaded)
        _programs[controller] = known
        return known[moves]


def _run(
    controller: HostSession, program: HostedProgram, going: Sequence[tuple[Array, Array, _Move]]
) -> None:
    # Another thread may donate them, too: before this, which is an error, or after it.
    with controller.pool.order:
        arguments = {
            island: [going[port.number][0].number_at(going[port.number][2].source) for port in ports]
            for island, ports in program.inputs.items()
        }
        producers = [array.step_at(move.source) for array, _, move in going]
        controller.wait_for_room(program)
        # Without a handle nothing would free a result.
        with uninterrupted():
            step = controller.issue(program, arguments, producers)
            for ports in program.outputs.values():
                for position, port in enumerate(ports):
                    _, copy, move = going[port.number]
                    copy.add_copy(move.target, step.number + 1 + position, step)


def _program(moves: Sequence[_Move]) -> tuple[Scheduled, dict[str, Binding]]:
    """Returns a program of transfers, and the devices of its slices."""
    slices: dict[Slice, str] = {}
    for move in moves:
        for slice in _slices(move):
            slices.setdefault(slice, f"place{len(slices)}")
    forms = run_phases(_module(moves, slices), NAME, Options())
    avals = tuple(jax.core.ShapedArray(move.shape, jax.numpy.dtype(move.dtype)) for move in moves)
    out_tree = jax.tree.structure((0,) * len(moves))
    interface = Interface(
        slices={},
        argument_paths=tuple(f"array {n}" for n in range(len(moves))),
        in_avals=avals,
        out_avals=avals,
        out_tree=out_tree,
        out_keys=keys_of(out_tree),
        platform=cluster().platform,
    )
    in_tree = jax.tree.structure(((0,) * len(moves), {}))
    signature = Signature(in_tree, keys_of(in_tree), avals, (), None)
    plan = plan_of(forms.scheduled, NAME, proved=True)
    program = Scheduled(forms.scheduled, plan, interface, signature)
    return program, {name: _binding(slice) for slice, name in slices.items()}


def _slices(move: _Move) -> tuple[Slice, Slice]:
    """Returns the source and target slices of a move."""

    def slice(where: Location, is_target: bool) -> Slice:
        layout = where.placement
        return is_target, where.gang.number, layout.devices, layout.mesh, layout.axis_names

    return slice(move.source, False), slice(move.target, True)


def _binding(slice: Slice) -> Binding:
    _, island, ids, shape, axis_names = slice
    (devices,) = (each.devices for each in cluster().islands if each.name == f"island{island}")
    by_id = {device.id: device for device in devices}
    return Binding(tuple(by_id[n] for n in ids), shape, axis_names, NAME)


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


def _attrs(slice: str, where: Location) -> dict[str, ir.Attribute]:
    """Returns the attributes of an argument or result on a slice, with its layout."""
    sharding = make_sharding(_mesh_of(slice), Sharding(where.placement.dims))
    attrs = {SLICE: dialect.make_slices([slice]), SHARDING: sharding}
    kind = where.placement.memory_kind
    return attrs if kind is None else {**attrs, MEMORY_KIND: ir.StringAttr.get(kind)}


def _mesh_of(slice: str) -> str:
    return f"mesh_{slice}"
