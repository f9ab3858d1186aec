"""Meshes in the types of values, which each placed function sets and removes for itself.

The type of a JAX value names the mesh it was computed on, and JAX creates derived values, such as a zero
cotangent, on the same mesh. So no type may carry the mesh of one slice to another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

NO_MESH = jax.sharding.AbstractMesh((), ())


def is_of_types(mesh: Any) -> bool:
    """Returns whether the types of values name a mesh, which otherwise is only a hint to the compiler."""
    return any(kind != jax.sharding.AxisType.Auto for kind in mesh.axis_types)


def refuse_mesh(subject: str, leaves: Iterable[Any]) -> None:
    """Rejects a call of a placed function inside a `shard_map`, or under explicit sharding.

    Args:
      subject: the subject of messages: the function.
      leaves: its arguments.

    Raises:
      ValueError: there is such a mesh; names it.
    """
    # Arrays that the program closes over are data, of any sharding.
    tracers = [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]
    for mesh in (jax.sharding.get_abstract_mesh(), *map(_mesh_of, tracers)):
        if is_of_types(mesh):
            raise ValueError(
                f"{subject}, is called on {mesh}, but it brings the mesh of its slice: put jax.shard_map and "
                "explicit sharding inside placed functions"
            )


def is_array(leaf: Any) -> bool:
    """Returns whether a value is an array, and not of a type of the user's own (`jax.experimental.hijax`)."""
    return isinstance(jax.typeof(leaf), jax.core.ShapedArray)


def _mesh_of(leaf: Any) -> Any:
    return jax.typeof(leaf).sharding.mesh if is_array(leaf) else NO_MESH


def off_mesh(tree: Any) -> Any:
    """Returns the same arrays, with types that name no mesh; their cotangents are on the mesh again."""
    return jax.tree.map(lambda leaf: leaf if _mesh_of(leaf).empty else _off_mesh(leaf), tree)


def results_off_mesh(tree: Any) -> Any:
    """Returns the results of a call off their mesh; their cotangents may be on the mesh of another slice.

    A cotangent loses its mesh if the type of the result names none either, as with `jax.lax.cond`.
    """
    return jax.tree.map(lambda leaf: _off_mesh(leaf) if is_array(leaf) else leaf, tree)


def _off_mesh(leaf: Any) -> Any:
    spec = PartitionSpec(*[None] * jax.typeof(leaf).ndim)
    return retype_p.bind(leaf, sharding=NamedSharding(NO_MESH, spec))


retype_p = Primitive("retype")
"""Identity that changes the sharding in the type of its result; it lowers to nothing."""


def _retype_batched(axis: Any, values: Any, dims: Any, *, sharding: NamedSharding) -> tuple[Any, Any]:
    (value,), (dim,) = values, dims
    if dim is None:
        return retype_p.bind(value, sharding=sharding), None
    names = list(sharding.spec)
    names.insert(dim, None if sharding.mesh.empty else axis.explicit_mesh_axis)
    batched = NamedSharding(sharding.mesh, PartitionSpec(*names))
    return retype_p.bind(value, sharding=batched), dim


retype_p.def_impl(lambda value, *, sharding: value)
retype_p.def_abstract_eval(lambda aval, *, sharding: aval.update(sharding=sharding))
ad.deflinear2(retype_p, lambda ct, x, *, sharding: [retype_p.bind(ct, sharding=x.aval.sharding)])
batching.fancy_primitive_batchers[retype_p] = _retype_batched
mlir.register_lowering(retype_p, lambda ctx, value, *, sharding: [value], cacheable=False)
