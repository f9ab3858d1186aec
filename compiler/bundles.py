"""Saves programs as bundles; see docs/bundle.md."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

import pathways
from pathways.compiler import jax_internals
from pathways.compiler.stages import Lowered
from pathways.compiler.structures import argument_roots, tree_of
from pathways.dialect import make_context, ops_named
from pathways.runtime.bundle import file as bundle
from pathways.runtime.bundle import trees
from pathways.runtime.bundle.manifest import (
    BundleError,
    Code,
    Constant,
    Leaf,
    ListedComputation,
    Manifest,
    Root,
    Slice,
)
from pathways.runtime.bundle.program import custom_calls, read_artifact
from pathways.runtime.local.load import Executable
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.plan import Argument, Computation, Plan, Result
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.compile_cache import code_target, serialize_all

RESULT = "result"
"""The name of the root of all results."""


def save(path: str | os.PathLike[str], lowered: Lowered, executable: Executable | None = None) -> None:
    """Writes a bundle.

    Args:
      path: the file.
      lowered: the program.
      executable: the program on its devices, to store its code as well.

    Raises:
      BundleError: the program has no place in a bundle; names what of it.
      CompileError: the platform cannot serialise its executables.
      OSError: the file cannot be written.
    """
    try:
        _save(path, lowered, executable)
    except BundleError as error:
        raise BundleError(f"cannot save program '{lowered.name}': {error}") from None


def _save(path: str | os.PathLike[str], lowered: Lowered, executable: Executable | None) -> None:
    traced = lowered._traced
    module = ir.Module.parse(lowered._forms["scheduled"], lowered._module.context)
    plan = plan_of(module, lowered.name, proved=True)
    for computation in plan.computations.values():
        _refuse_callbacks(computation)
    positional, named = argument_roots(lowered._signature.tree, traced.argument_paths)
    result = Root(RESULT, tree_of(traced.out_tree))
    artifacts = [pjrt.portable_artifact(computation.module) for computation in plan.computations.values()]
    calls = {call for artifact in artifacts for call in custom_calls(read_artifact(artifact))}
    passed = [argument for argument in plan.arguments if argument.constant is None]
    constants = {name: np.asarray(value, order="C") for name, value in plan.constants.items()}
    manifest = Manifest(
        name=lowered.name,
        platform=traced.platform,
        versions={
            "pathways": pathways.__version__,
            "jax": jax.__version__,
            "jaxlib": jax.lib.__version__,
        },
        slices=tuple(
            Slice(virtual_name, v.axis_names, v.shape, v.island, v.overlap)
            for virtual_name, v in traced.slices.items()
        ),
        positional=positional,
        named=named,
        arguments=tuple(_leaves((*positional, *named), traced.in_avals, passed)),
        result=result,
        results=tuple(_leaves((result,), traced.out_avals, plan.results)),
        computations=tuple(ListedComputation(c.name, c.local, c.effects) for c in plan.computations.values()),
        custom_calls=tuple(sorted(calls)),
        constants=tuple(Constant(name, value.shape, value.dtype.name) for name, value in constants.items()),
    )
    bundle.write(
        path,
        manifest,
        _program_text(module, plan),
        artifacts,
        [value.tobytes() for value in constants.values()],
        [] if executable is None else _codes(executable),
    )


def _refuse_callbacks(computation: Computation) -> None:
    if computation.callbacks:
        targets = custom_calls(ir.Module.parse(computation.module, make_context()))
        named = ", ".join(sorted(target for target in targets if "callback" in target))
        raise BundleError(
            f"computation '{computation.name}' calls back into Python ({named}), which has no place in a "
            "file; remove jax.debug.print, jax.pure_callback and the like from it"
        )


def _codes(executable: Executable) -> list[tuple[Code, bytes]]:
    """The code of each computation, once for each number of devices that it runs on."""
    wanted = {(r.computation.name, len(r.devices)): r for r in executable.requests}
    found = []
    for (name, devices), raw in zip(wanted, serialize_all(list(wanted.values())), strict=True):
        computation = wanted[name, devices].computation
        target = code_target(computation, wanted[name, devices].devices)
        found.append((Code(name, devices, target, bundle.sha256(raw)), raw))
    return found


def _program_text(module: ir.Module, plan: Plan) -> bytes:
    """The scheduled program with computations and constants declared, without source locations."""
    with module.context, ir.Location.unknown(module.context):
        for op in ops_named(module, ["func.func"]):
            name = op.attributes["sym_name"].value
            if name in plan.computations:
                attributes = dict(op.attributes.items())
                ir.Operation.create("func.func", attributes=attributes, regions=1, ip=ir.InsertionPoint(op))
            if name != "main":
                op.operation.erase()
        for op in ops_named(module, ["pw.constant"]):
            op.attributes["value"] = ir.Attribute.parse(f"dense_resource<{op.sym_name}> : {op.value.type}")
        PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
    return f"{module}\n".encode()


def _leaves(
    roots: Iterable[Root], avals: Sequence[Any], values: Sequence[Argument | Result]
) -> Iterator[Leaf]:
    names = [name for root in roots for name, _ in trees.leaf_names(root.name, root.tree)]
    for name, aval, value in zip(names, avals, values, strict=True):
        donated = isinstance(value, Argument) and value.donated
        yield Leaf(name, aval.shape, _dtype(aval), bool(aval.weak_type), tuple(value.slots), donated)


def _dtype(aval: Any) -> str:
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return f"key<{jax_internals.key_kind(aval.dtype)}>"
    return aval.dtype.name
