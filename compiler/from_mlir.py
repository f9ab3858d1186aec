"""Programs that start as MLIR, in any form of the IR, instead of as a Python function."""

from __future__ import annotations

import jax
from jaxlib.mlir import ir

from pathways.compiler.frontend.arguments import Interface, Signature
from pathways.compiler.frontend.trees import keys_of
from pathways.compiler.lower.phases import ProgramError, run_phases
from pathways.compiler.stages import Lowered, lowered_of
from pathways.dialect.attributes.names import ARGUMENT_INFO, BLOCK, CONSTANT, REPLICA
from pathways.dialect.attributes.replica_ports import ReplicaPort, ports_of_callers
from pathways.dialect.relations.program_view import Attributes, ProgramView, read_program
from pathways.dialect.verification.forms import foreign_form
from pathways.passes.pipeline import Options
from pathways.runtime.local.devices import cluster
from pathways.runtime.plan.lower import array_type
from pathways.runtime.resources.virtual import VirtualDeviceSet, VirtualSlice, make_virtual_device_set


def lower_module(module: ir.Module, name: str, options: Options) -> Lowered:
    """Takes a module through the phases that follow its form.

    Its arguments are positional; one result is returned as it is, more than one as a tuple.

    Args:
      module: a module that the verifier of the dialect accepts: StableHLO with the metadata of placed calls,
        the output of Shardy's MPMD compiler, or one in any of our forms.
      name: the name of the program if the module has none.

    Raises:
      ProgramError: the module has no function `@main` with a body, or a pass rejects it.
    """
    if "sym_name" in module.operation.attributes:
        name = module.operation.attributes["sym_name"].value
    forms = None
    if foreign_form(module):
        if options.policy or options.schedule_file:
            raise ProgramError(
                f"program '{name}' keeps the order chosen by Shardy, so a schedule cannot be given"
            )
        # Its types hold the placement; types of the placed form are plain.
        forms = run_phases(module, name, options)
        module = ir.Module.parse(forms.bytecode["placed"], module.context)
    program = read_program(module)
    if program is None:
        raise ProgramError(f"program '{name}' has no function @main with a body")
    groups = ports_of_callers(program.arguments)
    passed = [group[0] for group in groups if CONSTANT not in program.arguments[group[0]]]
    types = program.main.type
    symbols = [program.symbols[name] for name in program.meshes]
    replicas = max((op.replicas or 1 for op in symbols), default=1)
    in_avals = tuple(_aval(types.inputs[n], program.arguments[n], replicas) for n in passed)
    results = [group[0] for group in ports_of_callers(program.results)]
    out_avals = tuple(_aval(types.results[n], program.results[n], replicas) for n in results)
    out_tree = jax.tree.structure(0 if len(out_avals) == 1 else (0,) * len(out_avals))
    interface = Interface(
        slices=_slices(program),
        argument_paths=tuple(_path(program.arguments[n], n) for n in passed),
        in_avals=in_avals,
        out_avals=out_avals,
        out_tree=out_tree,
        out_keys=keys_of(out_tree),
        platform=cluster().platform,
    )
    in_tree = jax.tree.structure(((0,) * len(passed), {}))
    signature = Signature(in_tree, keys_of(in_tree), in_avals, (), None)
    return lowered_of(forms or run_phases(module, name, options), interface, signature)


def _path(attributes: Attributes, n: int) -> str:
    return attributes[ARGUMENT_INFO].value if ARGUMENT_INFO in attributes else f"args[{n}]"


def _aval(type_: ir.Type, attributes: Attributes, replicas: int) -> jax.core.ShapedArray:
    plain = array_type(type_)
    shape = plain.shape
    if REPLICA in attributes:
        shape = ReplicaPort.read(attributes[REPLICA]).caller_shape(shape)
    elif BLOCK in attributes:
        shape = ReplicaPort(0, 0, replicas, attributes[BLOCK].value).caller_shape(shape)
    return jax.core.ShapedArray(shape, jax.numpy.dtype(plain.dtype))


def _slices(program: ProgramView) -> dict[str, VirtualSlice]:
    sets: dict[int, VirtualDeviceSet] = {}
    slices = {}
    for name, mesh in program.meshes.items():
        op = program.symbols[name]
        axes = dict(mesh.axes)
        devices = sets.setdefault(op.replicas or 1, make_virtual_device_set(replicas=op.replicas or 1))
        slices[name] = devices.add_slice(
            tuple(axes.values()), tuple(axes), name=name, island=op.island, overlap=bool(op.overlap)
        )
    return slices
