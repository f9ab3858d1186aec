"""Module of a partitioned program, with all arguments and results of its callers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

import pathways.dialect as dialect
from pathways.compiler.frontend.trees import KeyPath, name_of
from pathways.compiler.mpmd.front_end import Partitioned
from pathways.dialect.attributes.dtypes import element_name
from pathways.dialect.attributes.names import ARGUMENT_INFO, CONSTANT, DONOR, KEYS, MAIN, OVERLAP, SHARDING
from pathways.passes.analysis.functions import body_block, unique_name
from pathways.passes.import_.mpmd.mesh_tensors import read_mesh_tensor


def parse(program: Partitioned, paths: Sequence[str], overlapping: Collection[str]) -> ir.Module:
    """Returns the module in a context of ours: its arguments are hidden constants, then the callers'
    arguments.

    Args:
      paths: the name of each argument.
      overlapping: the meshes that may share devices.
    """
    context = dialect.make_context()
    module = ir.Module.parse(program.bytecode, context)
    with context, ir.Location.unknown():
        module.operation.attributes["sym_name"] = ir.StringAttr.get(program.name)
        main = dialect.symbol_table(module)[MAIN]
        if program.exported is not None:
            # By name: operations do not keep their module alive.
            exported = ir.Module.parse(program.exported, context)
            _state_layouts(main, dialect.symbol_table(exported)[MAIN])
        if overlapping:
            main.attributes[OVERLAP] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in overlapping])
        main = _with_all_arguments(main, program)
        _describe(main, program, paths)
        _hide_constants(module, main, program.constants)
    return module


def argument_paths(keys: Sequence[KeyPath]) -> list[str]:
    """Returns the name of each flat argument, by its path in `(args, kwargs)`."""
    return [f"args[{path[1].idx}]{name_of(tuple(path[2:]))}" for path in keys]


def _state_layouts(main: ir.OpView, exported: ir.OpView) -> None:
    """Writes the shardings of arguments and results, as Shardy's propagation has decided them."""
    for types, attrs, store in (
        (exported.type.inputs, dialect.argument_attrs(main), dialect.set_argument_attrs),
        (exported.type.results, dialect.result_attrs(main), dialect.set_result_attrs),
    ):
        for type_, entry in zip(types, attrs, strict=True):
            value = read_mesh_tensor(type_)
            if value is None:
                continue
            dims = ", ".join(["{}"] * value.type.rank)
            replicated = ir.Attribute.parse(f"#sdy.sharding<mesh<[]>, [{dims}]>")
            entry[SHARDING] = value.sharding or replicated
        store(main, attrs)


def _with_all_arguments(main: ir.OpView, program: Partitioned) -> ir.OpView:
    """Returns the function with the arguments that JAX has dropped, which nothing reads."""
    hidden, count = len(program.constants), len(program.arguments)
    if len(program.argument_numbers) == count:
        return main
    old, attrs = body_block(main), dialect.argument_attrs(main)
    place = {number: hidden + n for n, number in enumerate(program.argument_numbers)}
    types, entries, sources = list(main.type.inputs)[:hidden], attrs[:hidden], list(range(hidden))
    for number, argument in enumerate(program.arguments):
        if number in place:
            types.append(main.type.inputs[place[number]])
            entries.append(attrs[place[number]])
            sources.append(place[number])
            continue
        shape, dtype = _type_for_computations(argument)
        sizes = "x".join([*map(str, shape), element_name(dtype)])
        # Any mesh will do, since nothing reads the argument.
        mesh = next(iter(program.topology))
        types.append(ir.Type.parse(f'!mpmd.mesh_tensor<"{mesh}", tensor<{sizes}>>'))
        entries.append({DONOR: ir.BoolAttr.get(True)} if argument.donated else {})
        sources.append(-1)
    signature = ir.FunctionType.get(types, main.type.results)
    with ir.InsertionPoint(main), main.operation.location:
        new = func.FuncOp(MAIN, signature, visibility="public")
        block = new.add_entry_block()
    for source, argument in zip(sources, block.arguments, strict=True):
        if source >= 0:
            old.arguments[source].replace_all_uses_with(argument)
    for op in list(old.operations):
        op.operation.detach_from_parent()
        block.append(op)
    for name, attribute in main.attributes.items():
        if name not in ("function_type", "arg_attrs"):
            new.attributes[name] = attribute
    dialect.set_argument_attrs(new, entries)
    main.operation.erase()
    return new


def _type_for_computations(argument: Any) -> tuple[tuple[int, ...], str]:
    """Returns the shape and dtype of an argument for computations; of PRNG keys, of their words."""
    type_ = jax.ShapeDtypeStruct(argument.shape, argument.dtype)
    if jax.dtypes.issubdtype(argument.dtype, jax.dtypes.prng_key):
        type_ = jax.eval_shape(jax.random.key_data, type_)
    return type_.shape, type_.dtype.name


def _describe(main: ir.OpView, program: Partitioned, paths: Sequence[str]) -> None:
    """Annotates each argument with its name, and arguments and results that are typed PRNG keys."""
    attrs, results = dialect.argument_attrs(main), dialect.result_attrs(main)
    passed = attrs[len(program.constants) :]
    for entry, path, argument in zip(passed, paths, program.arguments, strict=True):
        entry[ARGUMENT_INFO] = ir.StringAttr.get(path)
        if jax.dtypes.issubdtype(argument.dtype, jax.dtypes.prng_key):
            entry[KEYS] = ir.UnitAttr.get()
    for entry, aval in zip(results, program.out_avals, strict=True):
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
            entry[KEYS] = ir.UnitAttr.get()
    dialect.set_argument_attrs(main, attrs)
    dialect.set_result_attrs(main, results)


def _hide_constants(module: ir.Module, main: ir.OpView, constants: Sequence[Any]) -> None:
    """Declares the arrays that the function closes over; callers do not pass them."""
    if not constants:
        return
    attrs, symbols = dialect.argument_attrs(main), set(dialect.symbol_table(module))
    ip = ir.InsertionPoint.at_block_begin(module.body)
    for entry, constant in zip(attrs, constants, strict=False):
        array = np.ascontiguousarray(constant)
        element = ir.Type.parse(element_name(array.dtype.name))
        name = unique_name("k", symbols)
        symbols.add(name)
        value = ir.DenseElementsAttr.get(array, type=element, shape=np.shape(constant))
        dialect.ConstantOp.build(sym_name=name, value=value, ip=ip)
        entry[CONSTANT] = ir.FlatSymbolRefAttr.get(name)
    dialect.set_argument_attrs(main, attrs)
