"""`pw-propagate-shardings`: Shardy over a whole program, through launches and transfers."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import (
    CarryOp,
    LaunchOp,
    ReduceOp,
    SplitOp,
    TransferOp,
    argument_attrs,
    argument_slices,
    ops_named,
    result_attrs,
    result_slices,
    set_argument_attrs,
    set_result_attrs,
    symbol_table,
)
from pathways.dialect.attributes.meshes import Mesh, Sharding
from pathways.dialect.attributes.names import ARGUMENT_INFO, KEYS, MAIN, RESULT_INFO, SHARDING, SPEC
from pathways.dialect.attributes.shardings import (
    SliceMesh,
    closed_sharding,
    make_sharding,
    mesh_of,
    open_but_last,
    read_mesh,
    read_sharding,
    slice_meshes,
    whole_axes,
)
from pathways.dialect.operations.operation import symbol_name
from pathways.dialect.relations.layouts import Layouts
from pathways.dialect.verification.forms import PLACED
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.functions import body_block, erase_unused_functions, merge_equal_functions
from pathways.passes.analysis.operations import byte_size
from pathways.passes.manager.base import Pass, fail, main_function, option, remark
from pathways.passes.shard import shardy
from pathways.passes.shard.settle import settle

Meshes = Mapping[str, SliceMesh]
"""The mesh of each slice."""

_MAX_ROUNDS = 4


@dataclasses.dataclass(frozen=True)
class PropagateShardings(Pass):
    """Decides the sharding of every value over the devices of its slice.

    1. User-given specs of the program's arguments and results get the mesh of their slice. The words
       of a PRNG key stay together.
    2. Launches become calls, transfers between equal meshes and sums over microbatches identities, splits and
       concatenations of microbatches their counterparts in StableHLO, and Shardy propagates through all of
       them at once: a sharding given on a parameter reaches its optimizer state, activations and results.
       Computations that are called with different shardings become variants.
    3. A transfer between different meshes passes a sharding on by the names of its axes, as far as they
       exist there and divide, until nothing changes.
    4. If two shardings conflict, the user's is kept and the value is resharded on its slice, with a remark.
    5. Shardings of all arguments and results of `@main` and of computations are closed; undecided dimensions
       are replicated, and so are rows of a batch that microbatches do not divide, unless the user wants them
       split. A remark names large values that end up so.

    ```mlir
    // before
    %0 = pw.launch @f(%arg0, %arg2) on @s0
    %1 = pw.transfer %0 to @s1
    // after
    %0 = pw.launch @f(%arg0, %arg2) on @s0
    %1 = pw.transfer %0 to @s1 {sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>}
    ```

    Requires: placed form.
    Guarantees: on slices of several devices every value has one sharding; operands of a launch are
    sharded as the computation's arguments. Programs whose slices have one device each are left alone.
    """

    name: ClassVar[str] = "pw-propagate-shardings"
    input_forms = (PLACED,)
    replicated_bytes: int = option(1 << 20, "emit remarks for replicated values of at least this size")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        _share_meshes(module)
        meshes = slice_meshes(symbol_table(module))
        if all(home.mesh.size == 1 for home in meshes.values()):
            return
        # Before `_apply_specs`, which removes them.
        stated = {number for number, attrs in enumerate(argument_attrs(main)) if SPEC in attrs}
        _apply_specs(main, meshes)
        _separate_meshes(module, main, meshes)
        shardy.encode(main, meshes)
        _propagate(module, meshes)
        shardy.decode(module)
        # Propagation may have put a copy of `@main` in its place.
        main = main_function(module)
        _close(module, main, meshes, stated)
        settle(module, main)
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
            if is_worth_it(argument, attrs, meshes[place].mesh):
                name = attrs[ARGUMENT_INFO].value if ARGUMENT_INFO in attrs else f"argument #{number}"
                remark(main, f"{name} of {byte_size(argument.type)} bytes is replicated over @{place}")
        symbols = symbol_table(module)
        for op in body_block(main).operations:
            if isinstance(op, LaunchOp):
                results = zip(op.results, result_attrs(symbols[op.callee]), strict=True)
                for number, (result, attrs) in enumerate(results):
                    if is_worth_it(result, attrs, meshes[op.slice].mesh):
                        size = byte_size(result.type)
                        remark(op, f"result #{number} of {size} bytes is replicated over @{op.slice}")


def _share_meshes(module: ir.Module) -> None:
    """Gives slices the first of equal meshes: of these Shardy leaves no other."""
    first: dict[ir.Attribute, str] = {}
    symbols = symbol_table(module)
    for op in ops_named(module, ["sdy.mesh"]):
        first.setdefault(op.attributes["mesh"], op.attributes["sym_name"].value)
    for op in ops_named(module, ["pw.slice"]):
        op.mesh = first[symbols[op.mesh].attributes["mesh"]]


def _apply_specs(main: ir.OpView, meshes: Meshes) -> None:
    """Turns the user's shardings of arguments and results into shardings over their slices."""
    for side, attrs, slices, values, store in (
        ("argument", argument_attrs(main), argument_slices(main), main.type.inputs, set_argument_attrs),
        ("result", result_attrs(main), result_slices(main), main.type.results, set_result_attrs),
    ):
        for number, (entry, places, value) in enumerate(zip(attrs, slices, values, strict=True)):
            spec, is_keys = entry.pop(SPEC, None), entry.pop(KEYS, None) is not None
            if not places or (spec is None and not is_keys):
                continue
            home = meshes[places[0]]
            if spec is None:
                # On different meshes it is going to be replicated.
                if len({meshes[place].symbol for place in places}) == 1:
                    entry[SHARDING] = open_but_last(home.symbol, ir.RankedTensorType(value).rank)
                continue
            info = entry.get(ARGUMENT_INFO if side == "argument" else RESULT_INFO)
            named = info.value if info is not None else f"#{number}"
            label = named if named.startswith(side) else f"{side} {named}"
            shape = ir.RankedTensorType(value).shape
            dims = tuple(tuple(axis.value for axis in dim) for dim in spec)
            sharding = Sharding(dims + ((),) * (len(shape) - len(dims)))
            problem = sharding.problem(shape, home.mesh)
            if problem:
                fail(main, f"{label} on @{places[0]}: {problem}")
            entry[SHARDING] = make_sharding(home.symbol, sharding)
        store(main, attrs)


def _separate_meshes(module: ir.Module, main: ir.OpView, meshes: Meshes) -> None:
    """Gives launches of one computation on different meshes computations of their own."""
    symbols = symbol_table(module)
    computations = Computations(module, symbols)
    names: dict[tuple[str, str], str] = {}
    first: dict[str, str] = {}
    for op in body_block(main).operations:
        if not isinstance(op, LaunchOp):
            continue
        if not symbols[op.callee].body.blocks:
            fail(
                op,
                f"launches @{op.callee}, which is only declared: shardings are propagated through its body",
            )
        mesh = meshes[op.slice].symbol
        if first.setdefault(op.callee, mesh) == mesh:
            continue
        key = (op.callee, mesh)
        if key not in names:
            names[key] = computations.variant(op.callee, op.callee).attributes["sym_name"].value
        op.callee = names[key]


def _propagate(module: ir.Module, meshes: Meshes) -> None:
    """Runs Shardy until transfers between different meshes pass on the same shardings as before."""
    hints: dict[int, ir.Attribute] = {}
    before = module.operation.clone()
    # A round passes a hint on by one transfer at least, unless shardings swing back and forth.
    count = len(list(shardy.between_meshes(module)))
    for left in reversed(range(count + _MAX_ROUNDS)):
        shardy.hint(module, hints)
        shardy.propagate(module)
        handed_on = dict(_handed_on(module, meshes, hints))
        if handed_on == hints or not left:
            break
        hints = handed_on
        # Shardy only refines: decisions of this round without the new hints would stay.
        _replace_body(module, before)
    before.erase()


def _handed_on(
    module: ir.Module, meshes: Meshes, hints: dict[int, ir.Attribute]
) -> Iterator[tuple[int, ir.Attribute]]:
    """Returns for each transfer between different meshes the sharding of its operand on its own mesh."""
    main, symbols = main_function(module), symbol_table(module)
    for number, op in shardy.between_meshes(module):
        source = shardy.decided(op.operands[0], main)
        if source is None:
            # Taken back, it might come again in the next round, and no round would be the last.
            if number in hints:
                yield number, hints[number]
            continue
        target = meshes[op.slice]
        shape = ir.RankedTensorType(op.results[0].type).shape
        held = whole_axes(source, shape, read_mesh(symbols[mesh_of(source)]))
        renamed = _renamed(held, shape, target.mesh)
        # Open, so that propagation on the target may refine it.
        yield number, make_sharding(target.symbol, renamed, closed=False)


def _renamed(sharding: Sharding, shape: list[int], mesh: Mesh) -> Sharding:
    """Returns a sharding on another mesh by equal axis names, without axes that it cannot have."""
    sizes = dict(mesh.axes)
    dims = []
    for size, axes in zip(shape, sharding.dims, strict=True):
        usable: list[str] = []
        shards = 1
        for axis in axes:
            if axis in sizes and size % (shards * sizes[axis]) == 0:
                usable.append(axis)
                shards *= sizes[axis]
        dims.append(tuple(usable))
    return Sharding(tuple(dims))


def _replace_body(module: ir.Module, before: ir.Operation) -> None:
    """Restores a module."""
    for op in reversed(list(module.body.operations)):
        op.operation.erase()
    ip = ir.InsertionPoint(module.body)
    for op in before.regions[0].blocks[0].operations:
        op.operation.clone(ip)


def _close(module: ir.Module, main: ir.OpView, meshes: Meshes, stated: Collection[int]) -> None:
    """Closes every sharding at a boundary, and writes the ones that nothing decided.

    Args:
      meshes: of its slices.
      stated: the arguments of the program whose sharding the user states.
    """
    symbols = symbol_table(module)
    launched = {op.callee: meshes[op.slice] for op in body_block(main).operations if isinstance(op, LaunchOp)}
    for name, home in launched.items():
        function = symbols[name]
        inputs, results = argument_attrs(function), result_attrs(function)
        _check_axes(function, [*inputs, *results], home)
        set_argument_attrs(function, _closed(inputs, function.type.inputs, [home] * len(inputs)))
        set_result_attrs(function, _closed(results, function.type.results, [home] * len(results)))
    for function in ops_named(module, ["func.func"]):
        if symbol_name(function) not in (MAIN, *launched):
            _use_whole_axes(function, symbols)
    homes = [meshes[(slices or ("",))[0]] for slices in argument_slices(main)]
    arguments = _closed(argument_attrs(main), main.type.inputs, homes)
    _keep_rows_together(main, arguments, meshes, stated)
    set_argument_attrs(main, arguments)
    homes = [meshes[(slices or ("",))[0]] for slices in result_slices(main)]
    set_result_attrs(main, _closed(result_attrs(main), main.type.results, homes))
    # Only now: it remembers the attributes of arguments. Operations are closed in block order, since a sum is
    # closed as its operand is.
    layouts = Layouts(module)
    for op in body_block(main).operations:
        if isinstance(op, (TransferOp, SplitOp, ReduceOp, CarryOp)):
            home = meshes[op.slice]
            if isinstance(op, ReduceOp) and op.kind == "sum":
                # The sum is taken in place; who wants it in another way reshards it once.
                sharding = layouts.of(op.operands[0], op.slice)
            else:
                sharding = closed_sharding(op.sharding, op.results[0].type, home)
            if isinstance(op, SplitOp):
                _check_rows(op, layouts.of(op.operands[0], op.slice), home.mesh)
            op.sharding = make_sharding(home.symbol, sharding) if home.mesh.size > 1 else None


def _check_axes(function: ir.OpView, entries: Sequence[dict[str, ir.Attribute]], home: SliceMesh) -> None:
    """Checks that constraints in a computation split none of its arguments and results along other axes."""
    dims = [dim for attrs in entries if SHARDING in attrs for dim in read_sharding(attrs[SHARDING]).dims]
    strange = {axis for dim in dims for axis in dim} - dict(home.mesh.axes).keys()
    if strange:
        fail(
            function,
            f"splits an operand or result along '{min(strange)}', which is not an axis of @{home.symbol}",
        )


def _use_whole_axes(function: ir.OpView, symbols: Mapping[str, ir.OpView]) -> None:
    """Leaves no sub-axes at the boundary of a function that computations call."""
    for all_attrs, types, store in (
        (argument_attrs(function), function.type.inputs, set_argument_attrs),
        (result_attrs(function), function.type.results, set_result_attrs),
    ):
        for attrs, value_type in zip(all_attrs, types, strict=True):
            if SHARDING in attrs:
                mesh = mesh_of(attrs[SHARDING])
                home = SliceMesh(mesh, read_mesh(symbols[mesh]))
                attrs[SHARDING] = make_sharding(mesh, closed_sharding(attrs[SHARDING], value_type, home))
        store(function, all_attrs)


def _closed(
    entries: Sequence[dict[str, ir.Attribute]], types: Sequence[ir.Type], homes: Sequence[SliceMesh]
) -> list[dict[str, ir.Attribute]]:
    """Returns attributes of arguments or results, with closed shardings over meshes of several devices."""
    closed = []
    for attrs, value_type, home in zip(entries, types, homes, strict=True):
        rest = {name: attribute for name, attribute in attrs.items() if name != SHARDING}
        if home.mesh.size > 1:
            rest[SHARDING] = make_sharding(
                home.symbol, closed_sharding(attrs.get(SHARDING), value_type, home)
            )
        closed.append(rest)
    return closed


def _keep_rows_together(
    main: ir.OpView, arguments: list[dict[str, ir.Attribute]], meshes: Meshes, stated: Collection[int]
) -> None:
    """Reverts decisions of propagation on rows of a batch that microbatches cannot follow."""
    for op in body_block(main).operations:
        if not isinstance(op, SplitOp) or not isinstance(op.operands[0], ir.BlockArgument):
            continue
        attrs, home = arguments[op.operands[0].arg_number], meshes[op.slice]
        if op.operands[0].arg_number in stated or SHARDING not in attrs:
            continue
        if mesh_of(attrs[SHARDING]) != home.symbol:
            continue
        first, *rest = read_sharding(attrs[SHARDING]).dims
        while op.results[0].type.shape[0] % Sharding((first,)).splits(home.mesh)[0]:
            # Minor axes first; without any, all numbers of rows divide.
            first = first[:-1]
        attrs[SHARDING] = make_sharding(home.symbol, Sharding((first, *rest)))


def _check_rows(split: SplitOp, sharding: Sharding, mesh: Mesh) -> None:
    """Checks that a microbatch divides as the batch does."""
    rows, shards = split.results[0].type.shape[0], sharding.splits(mesh)[0]
    if rows % shards:
        fail(
            split,
            f"cuts microbatches of {rows} rows, which do not divide by {shards} "
            f"(axes {', '.join(sharding.dims[0])} of @{split.slice})",
        )
