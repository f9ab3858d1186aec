"""Programs of Shardy's MPMD compiler as programs of this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from pathways.compiler.frontend.arguments import Interface, Signature
from pathways.compiler.frontend.trees import keys_of
from pathways.compiler.lower.phases import run_phases
from pathways.compiler.mpmd.front_end import Partitioned, read_front_end
from pathways.compiler.mpmd.modules import argument_paths, parse
from pathways.compiler.mpmd.topologies import slices_of
from pathways.compiler.stages import Lowered
from pathways.dialect import ops_named
from pathways.passes.pipeline import Options
from pathways.runtime.local.devices import cluster
from pathways.runtime.resources.virtual import VirtualSlice
from pathways.runtime.xla.tracebacks import boundary


@boundary
def from_mpmd(
    program: Any, *, slices: Mapping[str, VirtualSlice] | None = None, fuse: bool = False
) -> Lowered:
    """Converts a program that Shardy's MPMD compiler has partitioned: `.compile()` loads it.

    Each mesh of its topology is a slice on exactly the devices of the mesh, in their order; programs of
    one topology share them, and arrays with them. Fragments run in the order of Shardy's schedule. Calls take
    positional arguments as the function does; results are sharded as `lowered.function_named_shardings` says.

    Args:
      program: the result of `mpmd.jit(f, config).lower(*args)`, or of `.trace(*args)`, which also has the
        stage, the call number and the half of each fragment for timelines and pictures.
      slices: slices for some meshes, by their names, as on hosts; of the same axes.
      fuse: lets fragments that follow each other on a slice become one computation.

    Returns:
      The program, like `pw.program(f).lower(*args)`.

    Raises:
      TypeError: `program` is of another type.
      ValueError: a slice is for no mesh, or differs from it.
      ProgramError: the program has an operation that slices do not support; names the place.

    Example:
      ```python
      lowered = mpmd.jit(step, config).lower(params, batch)
      params = pw.from_mpmd(lowered).compile()(params, batch)
      ```
    """
    return lower_partitioned(read_front_end(program), slices=slices, fuse=fuse, keepalive=(program,))


def lower_partitioned(
    program: Partitioned,
    *,
    slices: Mapping[str, VirtualSlice] | None = None,
    fuse: bool = False,
    keepalive: Sequence[Any] = (),
) -> Lowered:
    """Lowers a program that was read; see `from_mpmd`.

    Args:
      slices: see `from_mpmd`.
      fuse: likewise.
      keepalive: objects that must live as long as its executables.
    """
    virtual = slices_of(program.topology, slices, program.name)
    in_tree = jax.tree_util.treedef_tuple([program.in_tree, jax.tree.structure({})])
    keys = keys_of(in_tree)
    paths = argument_paths(keys)
    overlapping = [name for name, slice_ in virtual.items() if slice_.overlap]
    forms = run_phases(parse(program, paths, overlapping), program.name, Options(fuse=fuse))
    symbols = [op.sym_name for op in ops_named(forms.scheduled, ["pw.slice"])]
    in_avals = tuple(jax.core.ShapedArray(info.shape, info.dtype) for info in program.arguments)
    interface = Interface(
        slices=dict(zip(symbols, virtual.values(), strict=True)),
        argument_paths=tuple(paths),
        in_avals=in_avals,
        out_avals=tuple(program.out_avals),
        out_tree=program.out_tree,
        out_keys=keys_of(program.out_tree),
        platform=cluster().platform,
    )
    signature = Signature(in_tree, keys, in_avals, (), None)
    return Lowered(forms, interface, signature, program.callbacks, keepalive)
