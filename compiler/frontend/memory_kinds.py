"""Memory kinds of arguments, and of values in a traced program, by JAX's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jaxlib.mlir import ir

from pathways.compiler.frontend import jax_internals
from pathways.compiler.frontend.meshes import is_array
from pathways.dialect import argument_attrs, result_attrs, set_argument_attrs, set_result_attrs, symbol_table
from pathways.dialect.attributes import names
from pathways.runtime.local.devices import cluster, memory_kinds


def kind_of(leaf: Any) -> str | None:
    """Returns the memory kind of an array or of its type; None for the default memory of devices."""
    # Arrays on hosts without a location, and values that are not arrays, have no sharding.
    sharding = getattr(leaf, "sharding", None)
    kind = getattr(sharding, "memory_kind", None)
    if kind is None:
        return jax_internals.kind_of_space(getattr(leaf, "aval", leaf))
    if kind == jax_internals.DEVICE_MEMORY or _is_default(kind, sharding):
        return None
    return kind


def _is_default(kind: str, sharding: Any) -> bool:
    """Returns whether a memory kind is the default one of the devices of a sharding."""
    if isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh):
        return False
    return kind == next(iter(sharding.device_set)).default_memory().kind


def in_memory(kind: str | None) -> str:
    """Returns a memory kind for messages, after the type of an array; empty for the default one."""
    return "" if kind is None else f" in {kind} memory"


def in_their_memory(tree: Any) -> Any:
    """Returns the results of a placed function such that its computation says which are in host memory.

    The types of JAX say so, too, but StableHLO has no such types.
    """

    def put(leaf: Any) -> Any:
        kind = jax_internals.kind_of_space(jax.typeof(leaf)) if is_array(leaf) else None
        return leaf if kind is None else jax.device_put(leaf, jax.memory.Space.Host)

    return jax.tree.map(put, tree)


def describe_memory(module: ir.Module, arguments: Sequence[str | None], results: Sequence[Any]) -> None:
    """Annotates the arguments and results of `@main` with their memory kinds, except the default one.

    Args:
      module: the program.
      results: the abstract value of each result.
    """
    main = symbol_table(module)[names.MAIN]
    inputs, outputs = argument_attrs(main), result_attrs(main)
    kinds = [jax_internals.kind_of_space(aval) for aval in results]
    # Tokens of ordered effects precede both.
    for attrs, kinds_of_entries in ((inputs, arguments), (outputs, kinds)):
        for entry, kind in zip(
            attrs, [*[None] * (len(attrs) - len(kinds_of_entries)), *kinds_of_entries], strict=True
        ):
            entry.pop(names.MEMORY_KIND, None)
            if kind is not None:
                entry[names.MEMORY_KIND] = ir.StringAttr.get(kind)
    set_argument_attrs(main, inputs)
    set_result_attrs(main, outputs)
    _copy_results_to_devices(main, inputs, outputs)


def _copy_results_to_devices(main: ir.OpView, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Copies arguments that are returned as they are to the memory of their results.

    In the types of JAX, and so in its results, an argument in `unpinned_host` memory is in device memory.
    """
    returned = main.regions[0].blocks[0].operations[-1]
    for number, (value, attrs) in enumerate(zip(returned.operands, outputs, strict=True)):
        if not isinstance(value, ir.BlockArgument) or names.MEMORY_KIND in attrs:
            continue
        if names.MEMORY_KIND in inputs[value.arg_number]:
            kind = ir.StringAttr.get(jax_internals.DEVICE_MEMORY)
            attributes = {
                "call_target_name": ir.StringAttr.get(names.PLACE_IN_MEMORY),
                names.FRONTEND_ATTRIBUTES: ir.DictAttr.get({names.BUFFER_PLACEMENT: kind}),
            }
            copied = ir.Operation.create(
                "stablehlo.custom_call",
                [value.type],
                [value],
                attributes,
                loc=returned.location,
                ip=ir.InsertionPoint(returned),
            )
            returned.operands[number] = copied.result


def check_arguments(program: str, paths: Sequence[str], kinds: Sequence[str | None]) -> None:
    """Checks that the devices of this process have the memory that arguments are in.

    Raises:
      ValueError: they do not; names the argument.
    """
    for path, kind in zip(paths, kinds, strict=True):
        if kind is not None and kind not in (available := memory_kinds()):
            raise ValueError(
                f"program '{program}': argument {path} is in {kind} memory, but {_devices()} have only "
                f"{', '.join(available)} memory"
            )


def check_values(program: str, jaxpr: Any) -> None:
    """Checks that values which a traced program puts into other memory can be there.

    Raises:
      ValueError: the types of JAX do not tell the memory, or devices lack it; names the memory and the line.
    """
    for kind, line in jax_internals.values_in_memory(jaxpr):
        subject = f"program '{program}': the value computed at {line} is put into {kind} memory"
        if kind != names.HOST_MEMORY:
            raise ValueError(
                f"{subject}, but inside of programs values are in device or {names.HOST_MEMORY} memory: use "
                "jax.memory.Space.Host"
            )
        if kind not in (available := memory_kinds()):
            raise ValueError(f"{subject}, but {_devices()} have only {', '.join(available)} memory")


def _devices() -> str:
    return f"{cluster().platform} devices"
