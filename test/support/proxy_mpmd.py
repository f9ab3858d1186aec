"""Programs of `mpmd_programs` as JAX sends them to a server: in IFRT IR, in one execution.

As a script, runs them on whatever backend JAX has and pickles their results or errors:
`python proxy_mpmd.py RESULTS [NAME ...]`.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib._jax
import jaxlib.mlir
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from mpmd_programs import PROGRAMS
from stored_mpmd import STORED

from pathways.dialect import make_context, symbol_table
from pathways.dialect.attributes.shardings import read_sharding
from pathways.passes.import_.mpmd.mesh_tensors import read_mesh_tensor


def bindings() -> Any:
    """Returns the bindings of Shardy's MPMD compiler, which import modules by the names of its build."""
    sys.modules.setdefault("jax.jaxlib._jax", jaxlib._jax)
    sys.modules.setdefault("mlir", jaxlib.mlir)
    from jaxlib import _sdy_mpmd

    return _sdy_mpmd


class ProxiedProgram:
    """Stored program, compiled by the backend of JAX.

    Attributes:
      in_shardings: the sharding of each argument.
      out_shardings: the sharding of each result.
    """

    def __init__(self, name: str) -> None:
        self.program = PROGRAMS[name]
        module = ir.Module.parse((STORED / f"{name}.call.mlir").read_text(), make_context())
        main = symbol_table(module)["main"]
        self.in_shardings = [self._sharding(type_) for type_ in main.type.inputs]
        self.out_shardings = [self._sharding(type_) for type_ in main.type.results]
        bindings().lower_to_ifrt(module)
        function, donate, args = self.program.plain(), self.program.donate, self.program.args
        lowered = jax.jit(function, donate_argnums=donate).trace(*args).lower(lowering_platforms=("cpu",))
        self.kept = sorted(lowered._lowering.compile_args["kept_var_idx"])
        self.out_tree = lowered.out_tree
        avals = [jax.core.ShapedArray(out.shape, out.dtype) for out in jax.tree.leaves(lowered.out_info)]
        devices = [device for mesh in self.program.topology().values() for device in mesh.devices.flat]
        client = jax.devices()[0].client
        self.compiled = bindings().compile_mpmd(client, module, devices, words(avals), self.out_shardings)

    def _sharding(self, type_: ir.Type) -> NamedSharding:
        value = read_mesh_tensor(type_)
        assert value is not None
        dims = () if value.sharding is None else read_sharding(value.sharding).dims
        return NamedSharding(self.program.topology()[value.mesh], P(*[axes or None for axes in dims]))

    def arguments(self) -> list[jax.Array]:
        """Returns arguments where the program reads them."""
        leaves = jax.tree.leaves(tuple(self.program.args))
        kept = [data(leaves[number]) for number in self.kept]
        return [jax.device_put(*pair) for pair in zip(kept, self.in_shardings, strict=True)]

    def __call__(self, arguments: Sequence[jax.Array]) -> list[jax.Array]:
        results: list[jax.Array] = self.compiled.execute(list(arguments))
        return results


def data(leaf: Any) -> Any:
    """Returns the words of a typed key; other values as they are."""
    return jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def words(avals: Sequence[Any]) -> list[Any]:
    """Returns types of results, as the program returns them."""
    return [
        jax.core.ShapedArray((*aval.shape, 2), np.uint32)
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)
        else aval
        for aval in avals
    ]


def results_of(name: str) -> Any:
    """Returns the results of a program in two executions, and the arguments it deletes; or its error."""
    try:
        program = ProxiedProgram(name)
        calls = []
        for _ in range(2):
            arguments = program.arguments()
            results = [np.asarray(result) for result in program(arguments)]
            calls.append((results, [argument.is_deleted() for argument in arguments]))
        return calls
    except Exception as error:
        return error


if __name__ == "__main__":
    names = sys.argv[2:] or list(PROGRAMS)
    Path(sys.argv[1]).write_bytes(pickle.dumps({name: results_of(name) for name in names}))
