"""Writer of bundles; see docs/bundle.md."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from pathways.compiler.frontend.arguments import Interface, Signature
from pathways.compiler.lower.python_calls import python_call_of
from pathways.compiler.lower.structures import argument_roots, dtype_of, tree_of
from pathways.dialect import LaunchOp, form_of, ops_named, run_mlir_passes, symbol_table
from pathways.dialect.attributes.names import MAIN
from pathways.dialect.operations.operation import parts_of, symbol_name
from pathways.dialect.verification.forms import PARTS, working_modules
from pathways.dialect.version import __version__
from pathways.runtime.bundle import file as bundle
from pathways.runtime.bundle import trees
from pathways.runtime.bundle.manifest import (
    VERSION,
    VERSION_OF_SUB_PROGRAMS,
    BundleError,
    Code,
    Constant,
    Leaf,
    ListedComputation,
    Manifest,
    Root,
)
from pathways.runtime.bundle.program import custom_calls, read_artifact, stored_name
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.plan import Argument, Computation, Result, SliceSpec
from pathways.runtime.plan.sub_programs import calls_of
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
    requests: Mapping[str, Sequence[Request]],
) -> None:
    """Writes a bundle.

    Args:
      path: the file.
      scheduled: the program in scheduled form, or of sub-programs in that form.
      interface: its arguments, results and slices.
      signature: the structure of its arguments.
      requests: the compile requests of its devices, to store the code as well: of each sub-program by its
        name, or of the whole without one.

    Raises:
      BundleError: the program cannot be stored in a bundle; names the reason.
      CompileError: the platform cannot serialise its executables.
      OSError: the file cannot be written.
    """
    try:
        bundle.write(path, *_contents(scheduled, name, interface, signature, requests))
    except BundleError as error:
        raise BundleError(f"cannot save program '{name}': {error}") from None


def packed(scheduled: ir.Module, name: str, interface: Interface, signature: Signature) -> bytes:
    """Returns the bytes of a bundle without code; for the arguments see `save`.

    Raises:
      BundleError: the program cannot be stored in a bundle; names the reason.
    """
    return b"".join(bundle.pack(*_contents(scheduled, name, interface, signature, {})))


def _contents(
    scheduled: ir.Module,
    name: str,
    interface: Interface,
    signature: Signature,
    requests: Mapping[str, Sequence[Request]],
) -> tuple[Manifest, bytes, Sequence[bytes], Sequence[bytes], Sequence[tuple[Code, bytes]]]:
    """Returns the arguments of `bundle.write`."""
    in_parts = form_of(scheduled) == PARTS.name
    modules = (
        {symbol_name(p.operation.opview) or "": p for p in parts_of(scheduled)}
        if in_parts
        else {"": scheduled}
    )
    plans = {part: plan_of(module, name, proved=True) for part, module in modules.items()}
    computations = {
        stored_name(part, c.name): c for part, plan in plans.items() for c in plan.computations.values()
    }
    for part, plan in plans.items():
        for computation in plan.computations.values():
            _refuse_callbacks(modules[part], computation)
    ports = calls_of(scheduled).plan_of_ports(name, plans) if in_parts else plans[""]
    passed = [argument for argument in ports.arguments if argument.constant is None]
    positional, named = argument_roots(signature.tree, signature.keys, interface.argument_paths)
    result = Root.of(RESULT, tree_of(interface.out_tree, interface.out_keys))
    artifacts = [pjrt.portable_artifact(computation.module) for computation in computations.values()]
    calls = {call for artifact in artifacts for call in custom_calls(read_artifact(artifact))}
    constants = {
        stored_name(part, constant): np.asarray(value, order="C")
        for part, plan in plans.items()
        for constant, value in plan.constants.items()
    }
    manifest = Manifest(
        name=name,
        platform=interface.platform,
        versions={"pathways": __version__, "jax": jax.__version__, "jaxlib": jax.lib.__version__},
        slices=tuple(
            SliceSpec(virtual_name, v.axis_names, v.shape, v.island, v.overlap)
            for virtual_name, v in interface.slices.items()
        ),
        positional=positional,
        named=named,
        arguments=tuple(_leaves((*positional, *named), interface.in_avals, passed)),
        result=result,
        results=tuple(_leaves((result,), interface.out_avals, ports.results)),
        computations=tuple(ListedComputation(n, c.local, c.effects) for n, c in computations.items()),
        custom_calls=tuple(sorted(calls)),
        constants=tuple(Constant(n, value.shape, value.dtype.name) for n, value in constants.items()),
        version=VERSION_OF_SUB_PROGRAMS if in_parts else VERSION,
    )
    return (
        manifest,
        _program_text(scheduled),
        artifacts,
        [value.tobytes() for value in constants.values()],
        [code for part, of in requests.items() for code in _codes(part, of)],
    )


def _refuse_callbacks(module: ir.Module, computation: Computation) -> None:
    if computation.callbacks:
        raise BundleError(
            f"computation '{computation.name}' calls back into Python: "
            f"{python_call_of(module, computation.name)}; a file has no functions of the program, so remove "
            "the call"
        )


def _codes(part: str, requests: Sequence[Request]) -> list[tuple[Code, bytes]]:
    """Returns the code of each computation of a sub-program, once for each number of devices that runs it."""
    unlike = {(r.computation.name, len(r.devices)): r for r in requests}
    codes = []
    for request, raw in zip(unlike.values(), serialize_all(list(unlike.values())), strict=True):
        target = code_target(request.computation, request.devices)
        name = stored_name(part, request.computation.name)
        codes.append((Code(name, len(request.devices), target, bundle.sha256(raw)), raw))
    return codes


def _program_text(scheduled: ir.Module) -> bytes:
    """Returns the scheduled program with computations and constants declared, without source locations."""
    with scheduled.context, ir.Location.unknown(scheduled.context):
        module = scheduled.operation.clone()
        for part in working_modules(module):
            _declare(part)
        run_mlir_passes("strip-debuginfo", module)
    return f"{module}\n".encode()


def _declare(module: ir.Module) -> None:
    """Removes everything but declarations and `@main` from a module."""
    launched = {
        op.callee
        for op in symbol_table(module)[MAIN].regions[0].blocks[0].operations
        if isinstance(op, LaunchOp)
    }
    for op in ops_named(module, ["func.func"]):
        name = op.attributes["sym_name"].value
        if name in launched:
            # Declarations must not be public.
            attributes = {**dict(op.attributes.items()), "sym_visibility": ir.StringAttr.get("private")}
            ir.Operation.create("func.func", attributes=attributes, regions=1, ip=ir.InsertionPoint(op))
        if name != MAIN:
            op.operation.erase()
    for op in ops_named(module, ["pw.constant"]):
        # The text keeps the type alone: a member of the file has the contents.
        op.attributes["value"] = ir.Attribute.parse(f"dense_resource<{op.sym_name}> : {op.value.type}")


def _leaves(
    roots: Iterable[Root], avals: Sequence[Any], values: Sequence[Argument | Result]
) -> Iterator[Leaf]:
    names = [name for root in roots for name, _ in trees.leaf_names(root.name, root.tree)]
    for name, aval, value in zip(names, avals, values, strict=True):
        donated = isinstance(value, Argument) and value.donated
        slices, kind = tuple(value.slots), value.memory_kind
        yield Leaf(name, aval.shape, dtype_of(aval), bool(aval.weak_type), slices, donated, kind)
