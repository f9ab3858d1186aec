"""Reader of the objects of Shardy's MPMD front end, as plain values.

Only this module reads them, some by private names: there are no public ones for the constants, the arguments
that JAX dropped, the host callbacks, or the form in which fragments still name their origins.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jaxlib.mlir import ir

from pathways.compiler.frontend.user_code import symbol
from pathways.dialect.syntax.bytecode import bytecode_of

_PACKAGE = "shardy.integrations.python.jax.mpmd"


@dataclasses.dataclass(frozen=True)
class Partitioned:
    """Program that Shardy has partitioned.

    Attributes:
      bytecode: the module to run.
      exported: the module with the shardings of arguments and results; None if it is the same.
      topology: the mesh of each name.
      in_tree: the structure of the positional arguments.
      arguments: `jax.stages.ArgInfo` of each flat argument, including arguments that JAX has dropped.
      argument_numbers: the numbers of the arguments that the module has after its constants, in order.
      constants: the arrays that the function closes over and that are arguments of the module.
      out_tree: the structure of the results.
      out_avals: the abstract value of each result.
      callbacks: host callbacks that the computations refer to by position.
    """

    name: str
    bytecode: bytes
    exported: bytes | None
    topology: Mapping[str, jax.sharding.Mesh]
    in_tree: Any
    arguments: Sequence[Any]
    argument_numbers: Sequence[int]
    constants: Sequence[Any]
    out_tree: Any
    out_avals: Sequence[Any]
    callbacks: Sequence[Any]


def read_front_end(program: Any) -> Partitioned:
    """Reads the result of `mpmd.jit(f, config).lower(*args)` or `.trace(*args)`.

    Raises:
      TypeError: it is of another type.
    """
    if _is(program, "stages", "MpmdLowered"):
        return _of_lowered(program, program.mpmd_module, None, program.host_callbacks)
    if _is(program, "jit", "MpmdGspmdTraced"):
        return _of_traced(program)
    raise TypeError(
        "from_mpmd takes what mpmd.jit(f, config).lower(*args) or .trace(*args) of Shardy returns, "
        f"got {type(program).__module__}.{type(program).__qualname__}"
    )


def _is(program: Any, module: str, name: str) -> bool:
    """Returns whether an object is of a class of the front end, which is imported if so."""
    imported = sys.modules.get(f"{_PACKAGE}.{module}")
    return imported is not None and isinstance(program, getattr(imported, name))


def _of_lowered(
    lowered: Any, module: ir.Module, exported: ir.Module | None, callbacks: Sequence[Any]
) -> Partitioned:
    constants = list(lowered.const_args)
    arguments = jax.tree.leaves(lowered.args_info)
    numbers = sorted(
        number - len(constants) for number in lowered.kept_inputs_indices if number >= len(constants)
    )
    return Partitioned(
        name=symbol(lowered.name),
        bytecode=bytecode_of(module),
        exported=None if exported is None else bytecode_of(exported),
        topology=dict(lowered.topology),
        in_tree=lowered.input_tree,
        arguments=arguments,
        argument_numbers=numbers,
        constants=constants,
        out_tree=lowered.output_tree,
        out_avals=[
            jax.core.ShapedArray(aval.shape, aval.dtype)
            for aval in lowered.global_flat_output_abstract_values
        ],
        callbacks=tuple(callbacks),
    )


def _of_traced(traced: Any) -> Partitioned:
    """Takes a traced function as far as fragments name their origins, which lowering drops."""
    # The name `jit` of the package is a function.
    front_end: Any = sys.modules[f"{_PACKAGE}.jit"]
    phase = front_end.jaxlib_mpmd.PartitioningPhase
    module, arguments, parts = traced._prepare_partitioning_args()
    if traced._mpmd_config.pipeline_schedule is None:
        phases = phase.IMPORT | phase.OPTIMIZE
    else:
        module, arguments = traced._import_and_generate_rules(module, arguments)
        phases = phase.OPTIMIZE
    fragments = front_end._apply_partitioning(module, arguments, phases).mpmd_module
    lowered = traced.lower()
    return _of_lowered(lowered, fragments, lowered.mpmd_module, parts.host_callbacks)
