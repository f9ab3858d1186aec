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
from pathways.compiler.frontend.arguments import Signature
from pathways.compiler.frontend.interface import Interface
from pathways.compiler.lower.structures import argument_roots, dtype_of, tree_of
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
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.plan import Argument, Computation, Plan, Result
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.compile_cache import Request, code_target, serialize_all

RESULT = "result"
"""The name of the root of all results."""


def save(
    path: str | os.PathLike[str],
    scheduled: ir.Module,
    name: str,
    interface: Interface,
    signature: Signature,
    requests: Sequence[Request] = (),
) -> None:
    """Writes a bundle.

    Args:
      path: the file.
      scheduled: the program in scheduled form.
      name: its name.
      interface: what it takes, returns and runs on.
      signature: the structure of its arguments.
      requests: what was compiled for its devices, to store the code as well.

    Raises:
      BundleError: the program has no place in a bundle; names what of it.
      CompileError: the platform cannot serialise its executables.
      OSError: the file cannot be written.
    """
    try:
        _save(path, plan_of(scheduled, name, proved=True), scheduled, interface, signature, requests)
    except BundleError as error:
        raise BundleError(f"cannot save program '{name}': {error}") from None


def _save(
    path: str | os.PathLike[str],
    plan: Plan,
    scheduled: ir.Module,
    interface: Interface,
    signature: Signature,
    requests: Sequence[Request],
) -> None:
    for computation in plan.computations.values():
        _refuse_callbacks(computation)
    positional, named = argument_roots(signature.tree, signature.keys, interface.argument_paths)
    result = Root(RESULT, tree_of(interface.out_tree, interface.out_keys))
    artifacts = [pjrt.portable_artifact(computation.module) for computation in plan.computations.values()]
    calls = {call for artifact in artifacts for call in custom_calls(read_artifact(artifact))}
    passed = [argument for argument in plan.arguments if argument.constant is None]
    constants = {name: np.asarray(value, order="C") for name, value in plan.constants.items()}
    manifest = Manifest(
        name=plan.name,
        platform=interface.platform,
        versions={
            "pathways": pathways.__version__,
            "jax": jax.__version__,
            "jaxlib": jax.lib.__version__,
        },
        slices=tuple(
            Slice(virtual_name, v.axis_names, v.shape, v.island, v.overlap)
            for virtual_name, v in interface.slices.items()
        ),
        positional=positional,
        named=named,
        arguments=tuple(_leaves((*positional, *named), interface.in_avals, passed)),
        result=result,
        results=tuple(_leaves((result,), interface.out_avals, plan.results)),
        computations=tuple(ListedComputation(c.name, c.local, c.effects) for c in plan.computations.values()),
        custom_calls=tuple(sorted(calls)),
        constants=tuple(Constant(name, value.shape, value.dtype.name) for name, value in constants.items()),
    )
    bundle.write(
        path,
        manifest,
        _program_text(scheduled, plan),
        artifacts,
        [value.tobytes() for value in constants.values()],
        _codes(requests),
    )


def _refuse_callbacks(computation: Computation) -> None:
    if computation.callbacks:
        targets = custom_calls(ir.Module.parse(computation.module, make_context()))
        named = ", ".join(sorted(target for target in targets if "callback" in target))
        raise BundleError(
            f"computation '{computation.name}' calls back into Python ({named}), which cannot be in a "
            "file; remove jax.debug.print, jax.pure_callback and the like from it"
        )


def _codes(requests: Sequence[Request]) -> list[tuple[Code, bytes]]:
    """The code of each computation, once for each number of devices that it runs on."""
    unlike = {(r.computation.name, len(r.devices)): r for r in requests}
    codes = []
    for request, raw in zip(unlike.values(), serialize_all(list(unlike.values())), strict=True):
        target = code_target(request.computation, request.devices)
        codes.append((Code(request.computation.name, len(request.devices), target, bundle.sha256(raw)), raw))
    return codes


def _program_text(scheduled: ir.Module, plan: Plan) -> bytes:
    """The scheduled program with computations and constants declared, without source locations."""
    with scheduled.context, ir.Location.unknown(scheduled.context):
        module = scheduled.operation.clone()
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
        yield Leaf(name, aval.shape, dtype_of(aval), bool(aval.weak_type), tuple(value.slots), donated)
