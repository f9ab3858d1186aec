"""Lowering of scheduled programs to plans. Reads IR, knows no devices, never imports jax."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import ml_dtypes  # noqa: F401 (teaches numpy the names of small floats)
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy

import pathways.dialect as dialect
from pathways.dialect.attributes.call_times import CallTimes
from pathways.dialect.attributes.dtypes import dtype_of
from pathways.dialect.attributes.fields import CALL_TIMES
from pathways.dialect.attributes.meshes import replicated
from pathways.dialect.attributes.names import (
    CONSTANT,
    DONATED,
    HOST,
    MAIN,
    MEMORY_KIND,
    NUMBER,
    PLACE_IN_MEMORY,
    REPLACED_BY,
    REPLICA,
    SHARDING,
    SLICE,
    TIMES,
)
from pathways.dialect.attributes.replica_ports import ReplicaPort, ports_of_callers
from pathways.dialect.attributes.shardings import make_sharding, mesh_of, read_mesh, read_sharding
from pathways.dialect.operations.operation import attribute_of
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.host_relations import parts_of
from pathways.dialect.relations.layouts import Layouts
from pathways.dialect.relations.program_view import read_hosts
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.dialect.verification.forms import SCHEDULED, SPLIT, Form
from pathways.runtime.plan.plan import (
    Argument,
    ArrayType,
    Computation,
    Launch,
    Plan,
    Receive,
    Release,
    Replicas,
    Result,
    Send,
    SliceSpec,
    Slot,
    Step,
    Transfer,
)
from pathways.runtime.plan.stored import Stored, StoredComputation

_LOCAL_OPS = frozenset({"stablehlo.concatenate", "stablehlo.slice"})
"""The operations that only move data within a device."""

_MESH = re.compile(r"<@(\w+)")
_SHARDINGS = ("sdy.sharding", "sharding", "in_shardings", "out_shardings", "arg_attrs", "res_attrs")


def plan_of(
    module: ir.Module, name: str, stored: Stored | None = None, *, proved: bool = False, located: bool = False
) -> Plan:
    """Flattens a program in scheduled form to a plan.

    Args:
      name: the name of the program, for messages and traces.
      stored: computations and constants that the module only declares.
      proved: whether `pw-verify-schedule` has just accepted it, so that it need not be checked again.
      located: whether computations keep their source locations, with which equal computations differ.

    Raises:
      ValueError: the module is in another form, or breaks the rules of its form.
    """
    with module.context, ir.Location.unknown(module.context):
        _check_form(module, name, SCHEDULED, proved)
        flattener = _Flattener(module, name, stored, dialect.symbol_table(module)[MAIN], located)
        return flattener.plan({n: flattener.computation(n) for n in flattener.callees})


def host_plans_of(
    module: ir.Module, name: str, stored: Stored | None = None, *, proved: bool = False, located: bool = False
) -> dict[int, Plan]:
    """Flattens the program of each host to a plan; returns the plans by the number of the host.

    Computations that several hosts run are one object in all their plans.

    Args:
      module: a module in the form `host`.
      name: the name of the program and of all its plans, for messages and traces.
      stored: computations and constants that the module only declares.
      proved: whether `pw-split-hosts` has just produced it, so that it need not be checked again.
      located: whether computations keep their source locations, with which equal computations differ.

    Raises:
      ValueError: the module is in another form, or breaks the rules of its form.
    """
    with module.context, ir.Location.unknown(module.context):
        _check_form(module, name, SPLIT, proved)
        hosts = {
            view.host or 0: _Flattener(module, name, stored, view.main, located)
            for view in read_hosts(module)
        }
        computations: dict[str, Computation] = {}
        for flattener in hosts.values():
            for callee in flattener.callees:
                if callee not in computations:
                    computations[callee] = flattener.computation(callee)
        return {host: flattener.plan(computations) for host, flattener in hosts.items()}


def _check_form(module: ir.Module, name: str, form: Form, proved: bool) -> None:
    if dialect.form_of(module) != form.name:
        raise ValueError(f"program '{name}' is in form '{dialect.form_of(module)}', not '{form.name}'")
    for problem in [] if proved else dialect.problems(module, form):
        raise ValueError(f"program '{name}' is not in form '{form.name}': {problem}")


class _Flattener:
    """Flattener of one function: `@main`, or the function of a host."""

    def __init__(
        self, module: ir.Module, name: str, stored: Stored | None, main: ir.OpView, located: bool
    ) -> None:
        self.module = module
        self.name = name
        self.stored = stored
        self.located = located
        self.layouts = Layouts(module)
        self.symbols = self.layouts.symbols
        self.main = main
        host = attribute_of(main, HOST)
        self.host = None if host is None else host.value
        block = self.main.regions[0].blocks[0]
        *self.ops, self.terminator = block.operations
        self.arguments = list(block.arguments)
        self.slices = dialect.argument_slices(self.main)
        self.slot_types: list[ArrayType] = []
        self.slot_shardings: list[tuple[tuple[str, ...], ...]] = []
        self.slot_kinds: list[str | None] = []
        self.slots: dict[ir.Value, dict[str, Slot]] = {}
        self.callees = list(dict.fromkeys(op.callee for op in self.ops if isinstance(op, dialect.LaunchOp)))
        self.sent = {
            source
            for op in self.ops
            if isinstance(op, dialect.SendOp) and not op.copy
            for value in op.operands
            for source in parts_of(value)
        }

    def new_slot(self, value: ir.Value, slice_name: str) -> Slot:
        # A slot is written once, and its number is its position in all three lists. Generated functions
        # reuse registers, not slots.
        self.slot_types.append(array_type(value.type))
        self.slot_shardings.append(self.layouts.of(value, slice_name).dims)
        self.slot_kinds.append(self.layouts.memory_kind(value))
        slot = len(self.slot_types) - 1
        self.slots.setdefault(value, {})[slice_name] = slot
        return slot

    def plan(self, computations: Mapping[str, Computation]) -> Plan:
        """Returns the plan, with the members of `computations` that it launches."""
        # In this order: a step looks up the slots of its operands, and results come last.
        arguments = self.flatten_arguments()
        steps: list[Step] = []
        times = attribute_of(self.module.operation, TIMES)
        for op in self.ops:
            steps += self.steps(op)
        slices = [
            op
            for op in dialect.ops_named(self.module, ["pw.slice"])
            if self.host is None or op.host == self.host
        ]
        return Plan(
            name=self.name,
            slices={op.sym_name: self.slice_spec(op) for op in slices},
            computations={callee: computations[callee] for callee in self.callees},
            arguments=tuple(arguments),
            results=self.flatten_results(),
            steps=tuple(steps),
            slot_types=tuple(self.slot_types),
            slot_shardings=tuple(self.slot_shardings),
            slot_kinds=tuple(self.slot_kinds) if any(self.slot_kinds) else (),
            constants={
                op.sym_name: self.stored.constants[op.sym_name] if self.stored else _array(op.value)
                for op in dialect.ops_named(self.module, ["pw.constant"])
                if self.host is None or any(argument.constant == op.sym_name for argument in arguments)
            },
            peak_bytes={op.sym_name: op.peak_bytes or 0 for op in slices},
            channels={
                op.sym_name: op.capacity
                for op in dialect.ops_named(self.module, ["pw.channel"])
                if self.host is None or self.host in (self.host_of(op.src), self.host_of(op.dst))
            },
            times=CallTimes() if times is None else CALL_TIMES.read(times),
            host=self.host,
            argument_numbers=self.caller_numbers(dialect.argument_attrs(self.main)),
            result_numbers=self.caller_numbers(dialect.result_attrs(self.main)),
        )

    def host_of(self, slice_name: str) -> int | None:
        return self.symbols[slice_name].host

    def caller_numbers(self, ports: list[dict[str, ir.Attribute]]) -> tuple[int, ...]:
        """Returns the whole program's numbers of the arguments or results of a host; none for `@main`."""
        if self.host is None:
            return ()
        first = [ports[group[0]] for group in ports_of_callers(ports)]
        return tuple(
            ReplicaPort.read(attrs[REPLICA]).of if REPLICA in attrs else attrs[NUMBER].value
            for attrs in first
        )

    def steps(self, op: ir.OpView) -> Iterator[Step]:
        """Yields the steps that an operation represents, chosen by its traits."""
        if dialect.op_has(op, Trait.EXECUTES):
            yield self.launch(op)
        elif dialect.op_has(op, Trait.TRANSFERS):
            yield self.transfer(op)
        elif dialect.op_has(op, Trait.SENDS):
            yield self.send(op)
        elif dialect.op_has(op, Trait.RECEIVES):
            yield self.receive(op)
        elif dialect.op_has(op, Trait.RELEASES):
            yield self.release(op)
        elif dialect.op_has(op, Trait.ALIASES):
            # No step: each reader of a mirrored value finds the copy on its own slice.
            joined: dict[str, Slot] = {}
            for value in op.operands:
                joined |= self.slots[value]
            self.slots[op.results[0]] = joined
        else:
            raise ValueError(f"program '{self.name}': the runtime does not support {op.operation.name}")

    def flatten_arguments(self) -> list[Argument]:
        self.donated: set[ir.Value] = set()
        attrs = dialect.argument_attrs(self.main)
        arguments = []
        for group in ports_of_callers(attrs):
            donated = DONATED in attrs[group[0]]
            values = [self.arguments[n] for n in group]
            if donated:
                self.donated.update(values)
            # An argument without readers gets no slots, so that no step copies it to its slices.
            if donated or any(True for value in values for _ in value.uses):
                for value, slices in zip(values, (self.slices[n] for n in group), strict=True):
                    for slice_name in slices or ():
                        self.new_slot(value, slice_name)
            constant = attrs[group[0]][CONSTANT].value if CONSTANT in attrs[group[0]] else None
            type_, slots, replicas, kind = self.port(values, [attrs[n] for n in group])
            replaced_by = self.replaced_by(attrs[group[0]])
            arguments.append(Argument(type_, slots, donated, constant, replicas, kind, replaced_by))
        return arguments

    def replaced_by(self, attrs: Mapping[str, ir.Attribute]) -> int | None:
        """Returns the number of the result that callers pass for an argument in the next call."""
        if REPLACED_BY not in attrs:
            return None
        number, count = attrs[REPLACED_BY].value, len(ports_of_callers(dialect.result_attrs(self.main)))
        if number >= count:
            raise ValueError(
                f"program '{self.name}': an argument is replaced by result #{number}, but there are {count}"
            )
        return number

    def flatten_results(self) -> tuple[Result, ...]:
        attrs = dialect.result_attrs(self.main)
        return tuple(
            Result(*self.port([self.terminator.operands[n] for n in group], [attrs[n] for n in group]))
            for group in ports_of_callers(attrs)
        )

    def port(
        self, values: Sequence[ir.Value], attrs: Sequence[Mapping[str, ir.Attribute]]
    ) -> tuple[ArrayType, dict[str, Slot], Replicas | None, str | None]:
        """Joins the values of all replicas to the one argument or result that callers pass or get."""
        # A constant is one value on the slices of all replicas; each replica has only the slices of its port.
        by_replica = [
            {
                name: slot
                for name, slot in self.slots.get(value, {}).items()
                if name in dialect.read_slices(attr[SLICE])
            }
            for value, attr in zip(values, attrs, strict=True)
        ]
        slots = {name: slot for of_replica in by_replica for name, slot in of_replica.items()}
        type_, kind = array_type(values[0].type), self.layouts.memory_kind(values[0])
        if REPLICA not in attrs[0]:
            return type_, slots, None, kind
        ports = [ReplicaPort.read(attr[REPLICA]) for attr in attrs]
        count, split = ports[0].count, ports[0].split
        type_ = dataclasses.replace(type_, shape=ports[0].caller_shape(type_.shape))
        slices = tuple(map(tuple, by_replica))
        return type_, slots, Replicas(slices, tuple(port.number for port in ports), count, split), kind

    def slice_spec(self, op: dialect.SliceOp) -> SliceSpec:
        names, sizes = _mesh_axes(self.symbols[op.mesh])
        return SliceSpec(op.sym_name, names, sizes, op.island, bool(op.overlap))

    def launch(self, op: dialect.LaunchOp) -> Launch:
        operands = tuple(self.slots[v][op.slice] for v in op.operands)
        results = tuple(self.new_slot(r, op.slice) for r in op.results)
        label = op.callee if op.microbatch is None else f"{op.callee}[{op.microbatch}]"
        origins = tuple(op.origins)
        return Launch(op.callee, op.slice, operands, results, label, origins, op.microbatch, op.loop)

    def transfer(self, op: dialect.TransferOp) -> Transfer:
        slices = dialect.slices_of(op.operands[0], self.slices) or ()
        # A mirrored value leaves from one of its slices: the channel says which.
        src = self.symbols[op.channel].src if op.channel is not None else slices[0]
        operands = tuple(self.slots[v][src] for v in op.operands)
        results = tuple(self.new_slot(r, op.slice) for r in op.results)
        return Transfer(operands, results, src, op.slice, self.routes(op, op.slice), op.channel)

    def routes(
        self, op: dialect.TransferOp | dialect.SendOp | dialect.RecvOp, dst: str
    ) -> tuple[tuple[tuple[int, int], ...], ...] | None:
        """Returns the routes of a transfer for each result, device by device of its destination."""
        if op.routes is None:
            return None
        pairs, devices = list(op.routes), self.layouts.mesh(dst).size
        return tuple(tuple(pairs[n : n + devices]) for n in range(0, len(pairs), devices))

    def send(self, op: dialect.SendOp) -> Send:
        dst = self.symbols[op.channel].dst
        return Send(
            operands=tuple(self.slots[v][op.slice] for v in op.operands),
            src=op.slice,
            dst=dst,
            channel=op.channel,
            peer=self.symbols[dst].host,
            index=op.index,
            routes=self.routes(op, dst),
            copy=bool(op.copy),
        )

    def receive(self, op: dialect.RecvOp) -> Receive:
        src = self.symbols[op.channel].src
        return Receive(
            results=tuple(self.new_slot(r, op.slice) for r in op.results),
            src=src,
            dst=op.slice,
            channel=op.channel,
            peer=self.symbols[src].host,
            index=op.index,
            routes=self.routes(op, op.slice),
        )

    def release(self, op: dialect.ReleaseOp) -> Release:
        slots = tuple(slot for v in op.operands for slot in self.slots[v].values())
        # An array that was sent loses its slot, but is not deleted: the other host may still be reading it.
        deleted = [v for v in op.operands if v in self.donated and v not in self.sent]
        return Release(slots, tuple(slot for v in deleted for slot in self.slots[v].values()))

    def computation(self, name: str) -> Computation:
        function = self.symbols[name]
        if self.stored is not None:
            return self.stored_computation(name, function, self.stored.computations[name])
        if self.is_local(function):
            return _local_computation(name, function)
        text, callbacks, effects = self.extract(name)
        return Computation(
            name=name,
            module=text,
            operands=tuple(array_type(t) for t in function.type.inputs),
            results=tuple(array_type(t) for t in function.type.results),
            donated=tuple(sorted(dialect.donated_arguments(function))),
            callbacks=callbacks,
            effects=effects,
        )

    def stored_computation(self, name: str, function: ir.OpView, stored: StoredComputation) -> Computation:
        """Returns a computation whose types, shardings and donation the module declares."""
        types = []
        for attrs, tensors in (
            (dialect.argument_attrs(function), function.type.inputs),
            (dialect.result_attrs(function), function.type.results),
        ):
            array_types = [array_type(type_) for type_ in tensors]
            types.append(
                [self.shard_type(t, a.get(SHARDING)) for t, a in zip(array_types, attrs, strict=True)]
                if stored.local
                else array_types
            )
        return Computation(
            name=name,
            module=stored.module,
            operands=tuple(types[0]),
            results=tuple(types[1]),
            donated=tuple(sorted(dialect.donated_arguments(function))),
            effects=stored.effects,
            local=stored.local,
        )

    def shard_type(self, type_: ArrayType, sharding: ir.Attribute | None) -> ArrayType:
        """Returns the type of the shard that each device holds of an array."""
        if sharding is None:
            return type_
        sizes = dict(read_mesh(self.symbols[mesh_of(sharding)]).axes)
        counts = [math.prod(sizes[axis] for axis in axes) for axes in read_sharding(sharding).dims]
        return ArrayType(tuple(n // k for n, k in zip(type_.shape, counts, strict=True)), type_.dtype)

    def is_local(self, function: ir.OpView) -> bool:
        """Returns whether a function is one `sdy.manual_computation` that only moves data within each device.

        Its operands must be the arguments in their own sharding, and its results must be returned in theirs.
        A function that donates is never local: its operands would be shards, and XLA frees whole arrays only.
        """
        if not function.regions[0].blocks:
            return False
        block = function.regions[0].blocks[0]
        computation, *rest = block.operations
        if not isinstance(computation, sdy.ManualComputationOp) or len(rest) != 1:
            return False
        (returned,) = rest
        inputs = [attrs[SHARDING] for attrs in dialect.argument_attrs(function) if SHARDING in attrs]
        outputs = [attrs[SHARDING] for attrs in dialect.result_attrs(function) if SHARDING in attrs]
        if not inputs:
            return False
        axes = {name for name, _ in read_mesh(self.symbols[mesh_of(inputs[0])]).axes}
        return (
            list(computation.operands) == list(block.arguments)
            and list(returned.operands) == list(computation.results)
            and inputs == list(sdy.TensorShardingPerValueAttr(computation.in_shardings).shardings)
            and outputs == list(sdy.TensorShardingPerValueAttr(computation.out_shardings).shardings)
            and axes == set(sdy.ManualAxesAttr(computation.manual_axes))
            and all(
                op.operation.name in _LOCAL_OPS for op in list(computation.body.blocks[0].operations)[:-1]
            )
            and not dialect.donated_arguments(function)
        )

    def extract(self, name: str) -> tuple[bytes, bool, bool]:
        """Returns the bytecode of a computation, whether it calls Python, and whether it has side effects."""
        extracted = ir.Module.create()
        extracted.operation.attributes["sym_name"] = _module_name(name)
        pending, visited, meshes = [name], {name}, set[str]()
        callbacks = effects = False
        while pending:
            current = pending.pop()
            function = self.symbols.get(current)
            if function is None:
                raise ValueError(f"program '{self.name}': @{name} refers to @{current}, which does not exist")
            if function.operation.name == "sdy.mesh":
                meshes.add(current)
            if function.operation.name != "func.func":
                continue
            if not function.regions[0].blocks:
                raise ValueError(f"program '{self.name}': @{current} is only declared and has no body to run")
            with ir.InsertionPoint(extracted.body):
                copy = function.operation.clone().opview
            if current == name:
                _write_missing_shardings(copy)
                copy.attributes["sym_name"] = ir.StringAttr.get("main")
                copy.attributes["sym_visibility"] = ir.StringAttr.get("public")
            # A list, since the constraints are inserted into the code that is searched.
            for op in list(dialect.nested_ops(copy)):
                if op.operation.name == "stablehlo.while" and SHARDING in op.attributes:
                    _constrain_results(op.operation)
            for op in (copy, *dialect.nested_ops(copy)):
                if SHARDING in op.attributes and _rejects_sharding(op.operation):
                    del op.attributes[SHARDING]
                for symbol in dialect.referenced_symbols(op):
                    if symbol in self.symbols and symbol not in visited:
                        pending.append(symbol)
                        visited.add(symbol)
                if op.operation.name == "stablehlo.custom_call":
                    if op.attributes["call_target_name"].value == PLACE_IN_MEMORY:
                        # Only XLA has to keep it, which removes operations without effects.
                        op.attributes["has_side_effect"] = ir.BoolAttr.get(True)
                        continue
                    callbacks = callbacks or "callback" in op.attributes["call_target_name"].value
                    effects = effects or (
                        "has_side_effect" in op.attributes and op.attributes["has_side_effect"].value
                    )
                for key in _SHARDINGS:
                    if key in op.attributes:
                        meshes.update(_MESH.findall(str(op.attributes[key])))
        with ir.InsertionPoint.at_block_begin(extracted.body):
            # Sorted, so that equal computations have equal bytes, which are the key of compiled code.
            for mesh in sorted(meshes):
                self.symbols[mesh].operation.clone()
        return _bytecode(extracted, self.located), callbacks, effects


def _rejects_sharding(op: ir.Operation) -> bool:
    """Returns whether XLA fails if the operation has a sharding.

    Without one, XLA infers it from the operands and the readers of the operation.
    """
    return op.name == "stablehlo.custom_call" and op.attributes["call_target_name"].value == "ApproxTopK"


def _constrain_results(loop: ir.Operation) -> None:
    """Replaces the shardings of a loop by constraints on its results.

    XLA removes operands that the body returns unchanged, but leaves the list of shardings too long. Without
    any sharding, it applies the sharding of an operation that folds into one result to all of them.
    """
    shardings = sdy.TensorShardingPerValueAttr(loop.attributes[SHARDING]).shardings
    del loop.attributes[SHARDING]
    for result, sharding in zip(loop.results, list(shardings), strict=True):
        readers = [use.owner for use in result.uses]
        if not readers:
            continue
        constraint = ir.Operation.create(
            "sdy.sharding_constraint",
            [result.type],
            [result],
            {"sharding": sharding},
            loc=loop.location,
            ip=ir.InsertionPoint.after(loop),
        )
        for reader in readers:
            reader.operation.replace_uses_of_with(result, constraint.results[0])


def _module_name(computation: str) -> ir.StringAttr:
    """Returns the name of the module of a computation: JAX names the files of its cache after it."""
    return ir.StringAttr.get(computation.replace("/", "."))


def _local_computation(name: str, function: ir.OpView) -> Computation:
    """Returns the work of a local function on one device: the body of its manual computation, on shards."""
    extracted = ir.Module.create()
    extracted.operation.attributes["sym_name"] = _module_name(name)
    with ir.InsertionPoint(extracted.body):
        copy = function.operation.clone()
        body = copy.regions[0].blocks[0].operations[0].regions[0].blocks[0]
        returned = body.operations[len(body.operations) - 1]
        operands, results = ([v.type for v in values] for values in (body.arguments, returned.operands))
        main = func.FuncOp("main", ir.FunctionType.get(operands, results))
    with ir.InsertionPoint(returned):
        func.ReturnOp(list(returned.operands))
    returned.operation.erase()
    body.append_to(main.body)
    copy.erase()
    for read, write in (
        (dialect.argument_attrs, dialect.set_argument_attrs),
        (dialect.result_attrs, dialect.set_result_attrs),
    ):
        ports = [{n: a for n, a in attrs.items() if n == MEMORY_KIND} for attrs in read(function)]
        if any(ports):
            write(main, ports)
    return Computation(
        name=name,
        module=_bytecode(extracted),
        operands=tuple(map(array_type, operands)),
        results=tuple(map(array_type, results)),
        local=True,
    )


def _bytecode(module: ir.Module, located: bool = False) -> bytes:
    """Returns a module as bytecode, without source locations unless `located`.

    Locations hold file paths: without them equal computations have equal bytes on every machine.
    """
    if not located:
        dialect.run_mlir_passes("strip-debuginfo", module)
    return bytecode_of(module)


def _write_missing_shardings(function: ir.OpView) -> None:
    """Writes that arguments and results without a sharding are replicated; XLA would choose one itself."""
    arguments, results = dialect.argument_attrs(function), dialect.result_attrs(function)
    meshes = {mesh_of(attrs[SHARDING]) for attrs in (*arguments, *results) if SHARDING in attrs}
    if not meshes:
        return
    for all_attrs, types in ((arguments, function.type.inputs), (results, function.type.results)):
        for attrs, type_ in zip(all_attrs, types, strict=True):
            rank = ir.RankedTensorType(type_).rank
            # Replicated is the same on any mesh; the order of a set would differ from process to process.
            attrs.setdefault(SHARDING, make_sharding(min(meshes), replicated(rank)))
    dialect.set_argument_attrs(function, arguments)
    dialect.set_result_attrs(function, results)


def array_type(tensor_type: ir.Type) -> ArrayType:
    """Returns the plan's type of a ranked tensor."""
    tensor = ir.RankedTensorType(tensor_type)
    return ArrayType(tuple(tensor.shape), _dtype(tensor.element_type))


def _mesh_axes(mesh: ir.OpView) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns the axis names and sizes of an `sdy.mesh`."""
    axes = [sdy.MeshAxisAttr(a) for a in sdy.MeshAttr(mesh.attributes["mesh"]).axes]
    return tuple(a.name for a in axes), tuple(a.size for a in axes)


def _dtype(element: ir.Type) -> str:
    dtype = dtype_of(element)
    if dtype is None:
        raise ValueError(f"no dtype for elements of type {element}")
    return dtype


def _array(value: ir.Attribute) -> np.ndarray:
    """Returns the array of an elements attribute, with its shape."""
    tensor = ir.RankedTensorType(value.type)
    try:
        flat = np.array(value)
    except TypeError:
        # The bindings do not convert bfloat16 and smaller floats, but print them as hexadecimal bytes.
        _, _, digits = str(value).partition('"0x')
        flat = np.frombuffer(bytes.fromhex(digits.partition('"')[0]), np.dtype(_dtype(tensor.element_type)))
    return flat.reshape(tuple(tensor.shape))
