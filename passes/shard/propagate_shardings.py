"""`pw-propagate-shardings`: Shardy over a whole program, through launches and transfers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy, stablehlo
from jaxlib.mlir.passmanager import PassManager

from pathways.dialect import (
    LaunchOp,
    ReduceOp,
    Slices,
    SplitOp,
    TransferOp,
    argument_attrs,
    argument_slices,
    loop_of,
    nested_ops,
    ops_named,
    result_attrs,
    result_slices,
    set_argument_attrs,
    set_result_attrs,
    slices_of,
    symbol_table,
)
from pathways.dialect.forms import PLACED
from pathways.dialect.layouts import Layouts
from pathways.dialect.meshes import Mesh, Sharding, replicated
from pathways.dialect.names import ARGUMENT_INFO, RESULT_INFO, SHARDING, SPEC
from pathways.dialect.shardings import make_sharding, read_mesh, read_sharding, slice_meshes
from pathways.passes.base import Pass, fail, main_function, option, remark
from pathways.passes.util.computations import Computations
from pathways.passes.util.functions import (
    body_block,
    erase_unused_functions,
    merge_equal_functions,
    unique_name,
)
from pathways.passes.util.operations import byte_size

_LAUNCH = "pw.launch"
_TRANSFER = "pw.transfer"
_NUMBER = "pw.number"
_LOOP_OP = "pw.loop_op"
_KIND = "pw.kind"
_COPY = "pw.copy_of_argument"
"""Stands, while Shardy runs, for the copy of a mirrored argument on another mesh."""

_MAX_ROUNDS = 4


@dataclasses.dataclass(frozen=True)
class PropagateShardings(Pass):
    """Decides how every value lies over the devices of its slice.

    1. What the user says of arguments and results of the program gets the mesh of their slice.
    2. Launches become calls, transfers between equal meshes and sums over microbatches identities, splits
       and concatenations of microbatches those of StableHLO, and Shardy propagates through all of them at
       once: a sharding given on a parameter reaches its optimizer state, activations and
       results. Computations that are called with different shardings become variants.
    3. A transfer between different meshes hands a sharding on by the names of its axes, as far as they
       exist there and divide, until nothing changes.
    4. Where two shardings meet, the user's is kept and the value is resharded on its slice, with a remark.
    5. Every argument and result of `@main` and of computations is closed; what nothing decides is
       replicated. A remark names large values that end up so.

    Requires: placed form.
    Guarantees: on slices of several devices every value has one sharding; operands of a launch have those
    of the computation's arguments. Programs whose slices have one device each are left alone.
    """

    name: ClassVar[str] = "pw-propagate-shardings"
    takes = (PLACED,)
    replicated_bytes: int = option(1 << 20, "remark values of at least this size that are replicated")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        meshes = slice_meshes(symbol_table(module))
        if all(mesh.size == 1 for _, mesh in meshes.values()):
            return
        _apply_specs(main, meshes)
        _separate_meshes(module, main, meshes)
        _separate_mirrored(main, meshes)
        _to_calls(main, meshes)
        hints: dict[int, ir.Attribute] = {}
        before = module.operation.clone()
        for _ in range(_MAX_ROUNDS):
            _hint(module, hints)
            _propagate(module)
            found = dict(_handed_on(module, meshes, hints))
            if found == hints:
                break
            hints = found
            _replace_body(module, before)
        before.erase()
        main = main_function(module)
        for op in ops_named(module, ["sdy.mesh"]):
            # Shardy's note to other compilers; the mesh says it already.
            if "stablehlo.mesh" in op.attributes:
                del op.attributes["stablehlo.mesh"]
        _from_calls(module, main)
        _close(module, main, meshes)
        _settle(module, main)
        erase_unused_functions(module)
        merge_equal_functions(module)
        self.remark_replicated(module, main_function(module), meshes)

    def remark_replicated(self, module: ir.Module, main: ir.OpView, meshes: Meshes) -> None:
        def is_worth_it(value: ir.Value, attrs: dict[str, ir.Attribute], mesh: Mesh) -> bool:
            large = byte_size(value.type) >= self.replicated_bytes
            return large and mesh.size > 1 and read_sharding(attrs[SHARDING]).is_replicated(mesh)

        for number, (argument, attrs, slices) in enumerate(
            zip(main.arguments, argument_attrs(main), argument_slices(main), strict=True)
        ):
            place = (slices or ("",))[0]
            if is_worth_it(argument, attrs, meshes[place][1]):
                name = attrs[ARGUMENT_INFO].value if ARGUMENT_INFO in attrs else f"argument #{number}"
                remark(main, f"{name} of {byte_size(argument.type)} bytes is replicated over @{place}")
        symbols = symbol_table(module)
        for op in body_block(main).operations:
            if isinstance(op, LaunchOp):
                results = zip(op.results, result_attrs(symbols[op.callee]), strict=True)
                for number, (result, attrs) in enumerate(results):
                    if is_worth_it(result, attrs, meshes[op.slice][1]):
                        size = byte_size(result.type)
                        remark(op, f"result #{number} of {size} bytes is replicated over @{op.slice}")


Meshes = dict[str, tuple[str, Mesh]]


def _propagate(module: ir.Module) -> None:
    # Shardy warns of every operation that it has no rule for; ours are barriers to it, as they should be.
    handler = module.context.attach_diagnostic_handler(lambda d: "SDY sharding rule registry" in d.message)
    try:
        PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(module.operation)
    finally:
        handler.detach()


def _apply_specs(main: ir.OpView, meshes: Meshes) -> None:
    """Turns what the user says of the program's arguments and results into shardings over their slices."""
    for what, attrs, slices, values, store in (
        ("argument", argument_attrs(main), argument_slices(main), main.type.inputs, set_argument_attrs),
        ("result", result_attrs(main), result_slices(main), main.type.results, set_result_attrs),
    ):
        for number, (entry, places, value) in enumerate(zip(attrs, slices, values, strict=True)):
            spec = entry.pop(SPEC, None)
            if spec is None or not places:
                continue
            name, mesh = meshes[places[0]]
            info = entry.get(ARGUMENT_INFO if what == "argument" else RESULT_INFO)
            named = info.value if info is not None else f"#{number}"
            label = named if named.startswith(what) else f"{what} {named}"
            shape = ir.RankedTensorType(value).shape
            dims = tuple(tuple(axis.value for axis in dim) for dim in spec)
            sharding = Sharding(dims + ((),) * (len(shape) - len(dims)))
            problem = sharding.problem(shape, mesh)
            if problem:
                fail(main, f"{label} on @{places[0]}: {problem}")
            entry[SHARDING] = make_sharding(name, sharding)
        store(main, attrs)


def _separate_meshes(module: ir.Module, main: ir.OpView, meshes: Meshes) -> None:
    """Gives launches of one computation on different meshes computations of their own."""
    symbols = symbol_table(module)
    variants: dict[tuple[str, str], str] = {}
    first: dict[str, str] = {}
    for op in body_block(main).operations:
        if not isinstance(op, LaunchOp):
            continue
        mesh = meshes[op.slice][0]
        if first.setdefault(op.callee, mesh) == mesh:
            continue
        key = (op.callee, mesh)
        if key not in variants:
            name = unique_name(op.callee, symbols)
            copy = symbols[op.callee].operation.clone(ir.InsertionPoint(symbols[op.callee])).opview
            copy.attributes["sym_name"] = ir.StringAttr.get(name)
            symbols[name] = copy
            variants[key] = name
        op.callee = variants[key]


def _separate_mirrored(main: ir.OpView, meshes: Meshes) -> None:
    """Keeps the copies of an argument on different meshes apart: all are replicated, each on its own mesh."""
    attrs = argument_attrs(main)
    *operations, _ = body_block(main).operations
    for argument, entry, places in zip(main.arguments, attrs, argument_slices(main), strict=True):
        names = list(dict.fromkeys(meshes[place][0] for place in places or ()))
        if len(names) < 2:
            continue
        rank = ir.RankedTensorType(argument.type).rank
        if SHARDING in entry:
            remark(
                main,
                f"argument #{argument.arg_number} is read on slices with different meshes, so it is "
                "replicated on each of them, whatever the program says of it",
            )
        entry[SHARDING] = make_sharding(names[0], replicated(rank))
        for name in names[1:]:
            sharding = sdy.TensorShardingPerValueAttr.get([make_sharding(name, replicated(rank))])
            copy = ir.Operation.create(
                _COPY,
                [argument.type],
                [argument],
                {SHARDING: sharding},
                loc=main.operation.location,
                ip=ir.InsertionPoint(operations[0]),
            )
            for op in operations:
                if isinstance(op, LaunchOp) and meshes[op.slice][0] == name:
                    op.operation.replace_uses_of_with(argument, copy.results[0])
    set_argument_attrs(main, attrs)


def _to_calls(main: ir.OpView, meshes: Meshes) -> None:
    """Turns launches into calls, and transfers between equal meshes into identities that Shardy knows."""
    arguments = argument_slices(main)
    operations = list(body_block(main).operations)
    # Asked before anything changes: a call does not say where it runs.
    between_meshes = {
        op.results[0]: number
        for number, op in enumerate(operations)
        if isinstance(op, TransferOp)
        and meshes[(slices_of(op.operands[0], arguments) or (op.slice,))[0]][0] != meshes[op.slice][0]
    }
    for op in operations:
        ip, loc = ir.InsertionPoint(op), op.operation.location
        match op:
            case LaunchOp():
                new = func.CallOp(
                    [r.type for r in op.results],
                    ir.FlatSymbolRefAttr.get(op.callee),
                    list(op.operands),
                    loc=loc,
                    ip=ip,
                )
                new.operation.attributes[_LAUNCH] = ir.DictAttr.get(
                    {name: op.attributes[name] for name in op.attributes}
                )
            case TransferOp():
                if op.results[0] in between_meshes:
                    number = between_meshes[op.results[0]]
                    op.attributes[_NUMBER] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
                    continue
                new = stablehlo.OptimizationBarrierOp([op.operands[0]], loc=loc, ip=ip)
                new.operation.attributes[_TRANSFER] = ir.DictAttr.get(
                    {name: op.attributes[name] for name in op.attributes}
                )
            case SplitOp() | ReduceOp():
                new = _as_stablehlo(op, loc, ip)
                new.operation.attributes[_LOOP_OP] = ir.DictAttr.get(
                    {name: op.attributes[name] for name in op.attributes}
                    | {_KIND: ir.StringAttr.get(op.operation.name)}
                )
            case _:
                continue
        for old, value in zip(op.results, new.results, strict=True):
            old.replace_all_uses_with(value)
        op.operation.erase()


def _as_stablehlo(op: SplitOp | ReduceOp, loc: ir.Location, ip: ir.InsertionPoint) -> ir.OpView:
    """An operation through which Shardy propagates as microbatches are split and reduced."""
    value, result = op.operands[0], ir.RankedTensorType(op.results[0].type)
    if isinstance(op, SplitOp):
        zeros, ones = [0] * result.rank, [1] * result.rank
        return stablehlo.SliceOp(value, zeros, list(result.shape), ones, loc=loc, ip=ip)
    if op.kind == "sum":
        return stablehlo.OptimizationBarrierOp([value], loc=loc, ip=ip)
    blocks = result.shape[0] // ir.RankedTensorType(value.type).shape[0]
    return stablehlo.ConcatenateOp([value] * blocks, 0, loc=loc, ip=ip)


def _per_value(attribute: ir.Attribute | None, number: int) -> ir.Attribute | None:
    if attribute is None:
        return None
    return sdy.TensorShardingPerValueAttr(attribute).shardings[number]


def _sharding_of(value: ir.Value, main: ir.OpView) -> ir.Attribute | None:
    """What propagation found for a value of `@main`."""
    if isinstance(value, ir.BlockArgument):
        return argument_attrs(main)[value.arg_number].get(SHARDING)
    op = value.owner
    if op.operation.name == "sdy.reshard":
        return op.attributes["sharding"]
    attribute = op.attributes.get(SHARDING)
    return _per_value(attribute, ir.OpResult(value).result_number)


def _numbered(module: ir.Module) -> Iterator[TransferOp]:
    """The transfers between different meshes."""
    for op in body_block(main_function(module)).operations:
        if isinstance(op, TransferOp):
            yield op


def _hint(module: ir.Module, hints: dict[int, ir.Attribute]) -> None:
    """Writes the shardings that transfers between different meshes hand on."""
    for op in _numbered(module):
        hint = hints.get(op.attributes[_NUMBER].value)
        if hint is not None:
            op.attributes[SHARDING] = sdy.TensorShardingPerValueAttr.get([hint])


def _handed_on(
    module: ir.Module, meshes: Meshes, hints: dict[int, ir.Attribute]
) -> Iterator[tuple[int, ir.Attribute]]:
    """For each transfer between different meshes the sharding of its operand in terms of its own mesh."""
    main = main_function(module)
    for op in _numbered(module):
        number = op.attributes[_NUMBER].value
        source = _sharding_of(op.operands[0], main)
        if source is None:
            if number in hints:
                yield number, hints[number]
            continue
        name, mesh = meshes[op.slice]
        shape = ir.RankedTensorType(op.results[0].type).shape
        yield number, make_sharding(name, _renamed(read_sharding(source), shape, mesh), closed=False)


def _renamed(sharding: Sharding, shape: list[int], mesh: Mesh) -> Sharding:
    """A sharding on another mesh by equal axis names: axes that it lacks, or that do not divide, go."""
    sizes = dict(mesh.axes)
    dims = []
    for size, axes in zip(shape, sharding.dims, strict=True):
        kept: list[str] = []
        parts = 1
        for axis in axes:
            if axis in sizes and size % (parts * sizes[axis]) == 0:
                kept.append(axis)
                parts *= sizes[axis]
        dims.append(tuple(kept))
    return Sharding(tuple(dims))


def _replace_body(module: ir.Module, before: ir.Operation) -> None:
    """Puts a module back to what it was."""
    for op in reversed(list(module.body.operations)):
        op.operation.erase()
    ip = ir.InsertionPoint(module.body)
    for op in before.regions[0].blocks[0].operations:
        op.operation.clone(ip)


def _from_calls(module: ir.Module, main: ir.OpView) -> None:
    """Turns calls back into launches, and identities into transfers."""
    for op in list(body_block(main).operations):
        ip, loc = ir.InsertionPoint(op), op.operation.location
        kind = op.operation.name
        if kind == "func.call":
            attributes = {e.name: e.attr for e in op.attributes[_LAUNCH]} | {
                "callee": op.attributes["callee"]
            }
            new = ir.Operation.create(
                "pw.launch", [r.type for r in op.results], list(op.operands), attributes, loc=loc, ip=ip
            )
        elif kind == "stablehlo.optimization_barrier" and _TRANSFER in op.attributes:
            attributes = {e.name: e.attr for e in op.attributes[_TRANSFER]}
            new = ir.Operation.create(
                "pw.transfer", [op.results[0].type], [op.operands[0]], attributes, loc=loc, ip=ip
            )
            new.opview.sharding = _per_value(op.attributes.get(SHARDING), 0)
        elif _LOOP_OP in op.attributes:
            attributes = {e.name: e.attr for e in op.attributes[_LOOP_OP]}
            sharding = _per_value(op.attributes.get(SHARDING), 0)
            if sharding is not None:
                attributes["sharding"] = sharding
            name = attributes.pop(_KIND).value
            result_type = op.results[0].type
            new = ir.Operation.create(name, [result_type], [op.operands[0]], attributes, loc=loc, ip=ip)
        elif kind in (_COPY, "sdy.reshard"):
            # Where shardings differ after all, `_settle` says so, slice by slice.
            op.results[0].replace_all_uses_with(op.operands[0])
            op.operation.erase()
            continue
        elif isinstance(op, TransferOp):
            op.sharding = _per_value(op.attributes.get(SHARDING), 0)
            for name in (SHARDING, _NUMBER):
                if name in op.attributes:
                    del op.attributes[name]
            continue
        else:
            continue
        for old, value in zip(op.results, new.results, strict=True):
            old.replace_all_uses_with(value)
        op.operation.erase()
    for function in ops_named(module, ["func.func"]):
        if function is not main:
            _plain_stablehlo(function)


def _settle(module: ir.Module, main: ir.OpView) -> None:
    """Reshards values on their slice where what reads them wants them to lie in another way."""
    layouts = Layouts(module)
    computations = Computations(module, layouts.symbols)
    resharded: dict[tuple[ir.Value, str, Sharding], ir.Value] = {}
    slices = argument_slices(main)
    wanted_results = list(zip(result_attrs(main), result_slices(main), strict=True))
    for op in list(body_block(main).operations):
        wanted: list[tuple[dict[str, ir.Attribute], Slices | None]]
        if isinstance(op, LaunchOp):
            wanted = [(attrs, (op.slice,)) for attrs in argument_attrs(layouts.symbols[op.callee])]
        elif op.operation.name == "func.return":
            wanted = wanted_results
        else:
            continue
        for number, (value, (attrs, places)) in enumerate(zip(list(op.operands), wanted, strict=True)):
            home = slices_of(value, slices) or ()
            place = next(p for p in places or home if p in home)
            if SHARDING not in attrs or layouts.of(value, place) == read_sharding(attrs[SHARDING]):
                continue
            key = (value, place, read_sharding(attrs[SHARDING]))
            if key not in resharded:
                resharded[key] = _reshard(op, value, place, attrs[SHARDING], layouts, computations)
            op.operands[number] = resharded[key]


def _reshard(
    reader: ir.OpView,
    value: ir.Value,
    place: str,
    target: ir.Attribute,
    layouts: Layouts,
    computations: Computations,
) -> ir.Value:
    """A launch, in front of the first reader, of a computation that changes the sharding of a value."""
    location = reader.operation.location if isinstance(value, ir.BlockArgument) else value.owner.location
    source = make_sharding(layouts.meshes[place][0], layouts.of(value, place))
    launch = LaunchOp.build(
        [value],
        [value.type],
        callee=computations.make(
            "reshard", [value.type], list, location, arguments=[source], results=[target]
        ),
        slice=place,
        loop=loop_of(value),
        loc=location,
        ip=ir.InsertionPoint(reader),
    )
    remark(launch, f"two shardings meet: {_show(source)} is resharded to {_show(target)} on @{place}")
    return launch.results[0]


def _show(attribute: ir.Attribute) -> str:
    return str(attribute).removeprefix("#sdy.sharding")


def _plain_stablehlo(function: ir.OpView) -> None:
    """Undoes what the pipeline changed in computations and XLA does not take back."""
    for op in list(nested_ops(function)):
        if op.operation.name == "sdy.constant":
            with ir.InsertionPoint(op), op.operation.location:
                new = ir.Operation.create(
                    "stablehlo.constant",
                    [op.results[0].type],
                    attributes={"value": op.attributes["value"]},
                )
        elif op.operation.name == "sdy.reshard":
            with ir.InsertionPoint(op), op.operation.location:
                new = ir.Operation.create(
                    "sdy.sharding_constraint",
                    [op.results[0].type],
                    [op.operands[0]],
                    {"sharding": op.attributes["sharding"]},
                )
        else:
            continue
        op.results[0].replace_all_uses_with(new.results[0])
        op.operation.erase()


def _close(module: ir.Module, main: ir.OpView, meshes: Meshes) -> None:
    """Closes every sharding at a boundary, and writes the ones that nothing decided."""
    symbols = symbol_table(module)
    home: dict[str, str] = {}
    for op in body_block(main).operations:
        if isinstance(op, LaunchOp):
            home[op.callee] = meshes[op.slice][0]
    sizes = {op.attributes["sym_name"].value: read_mesh(op).size for op in ops_named(module, ["sdy.mesh"])}

    def closed(attrs: dict[str, ir.Attribute], value_type: ir.Type, mesh: str) -> dict[str, ir.Attribute]:
        if sizes[mesh] == 1:
            attrs.pop(SHARDING, None)
            return attrs
        rank = ir.RankedTensorType(value_type).rank
        found = read_sharding(attrs[SHARDING]) if SHARDING in attrs else replicated(rank)
        return attrs | {SHARDING: make_sharding(mesh, found)}

    for name, mesh in home.items():
        function = symbols[name]
        inputs, results = function.type.inputs, function.type.results
        set_argument_attrs(
            function, [closed(a, t, mesh) for a, t in zip(argument_attrs(function), inputs, strict=True)]
        )
        set_result_attrs(
            function, [closed(a, t, mesh) for a, t in zip(result_attrs(function), results, strict=True)]
        )
    places = [meshes[(s or ("",))[0]][0] for s in argument_slices(main)]
    attrs = zip(argument_attrs(main), main.type.inputs, places, strict=True)
    set_argument_attrs(main, [closed(a, t, m) for a, t, m in attrs])
    places = [meshes[(s or ("",))[0]][0] for s in result_slices(main)]
    attrs = zip(result_attrs(main), main.type.results, places, strict=True)
    set_result_attrs(main, [closed(a, t, m) for a, t, m in attrs])
    layouts = Layouts(module)
    for op in body_block(main).operations:
        if isinstance(op, (TransferOp, SplitOp, ReduceOp)):
            mesh = meshes[op.slice][0]
            if isinstance(op, ReduceOp) and op.kind == "sum":
                # The sum is taken in place; who wants it in another way reshards it once.
                found = layouts.of(op.operands[0], op.slice)
            else:
                rank = ir.RankedTensorType(op.results[0].type).rank
                found = read_sharding(op.sharding) if op.sharding is not None else replicated(rank)
            if isinstance(op, SplitOp):
                _check_rows(op, found, meshes[op.slice][1])
            op.sharding = make_sharding(mesh, found) if sizes[mesh] > 1 else None


def _check_rows(split: SplitOp, sharding: Sharding, mesh: Mesh) -> None:
    """Checks that a microbatch divides as the batch does."""
    rows, parts = split.results[0].type.shape[0], sharding.splits(mesh)[0]
    if rows % parts:
        fail(
            split,
            f"cuts microbatches of {rows} rows, which do not divide by {parts} "
            f"(axes {', '.join(sharding.dims[0])} of @{split.slice})",
        )
