"""What users say of shardings: trees of `PartitionSpec`s that match their arrays, whole or as prefixes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from pathways.compiler.frontend.trees import flat_prefix
from pathways.dialect.attributes.meshes import Mesh, Sharding
from pathways.runtime.resources.virtual import VirtualSlice

Spec = PartitionSpec | None
"""How an array lies over its slice; None where nothing is said."""


def abstract_mesh(virtual: VirtualSlice) -> Any:
    """The mesh of a slice without devices, for tracing."""
    kinds = (jax.sharding.AxisType.Auto,) * len(virtual.shape)
    return jax.sharding.AbstractMesh(virtual.shape, virtual.axis_names, axis_types=kinds)


def flat_specs(specs: Any, tree: Any, what: str) -> list[Spec]:
    """One spec for each leaf of a tree.

    Args:
      specs: a tree of `PartitionSpec`s or None that is a prefix of `tree`.
      tree: the arrays.
      what: what to call the specs in messages, such as "in_shardings of 'f'".

    Raises:
      TypeError: when a leaf is something else; a sharding over physical devices has no place here.
      ValueError: when the trees do not match, or a dimension is `UNCONSTRAINED`.
    """
    for leaf in jax.tree.leaves(specs, is_leaf=is_spec):
        if isinstance(leaf, NamedSharding):
            raise TypeError(
                f"{what}: {leaf} names physical devices, but a slice gets its devices only when the program "
                "is loaded; give the PartitionSpec alone"
            )
        if leaf is not None and not isinstance(leaf, PartitionSpec):
            raise TypeError(f"{what}: expected a PartitionSpec or None, got {type(leaf).__name__}")
        if leaf is not None and PartitionSpec.UNCONSTRAINED in leaf:
            raise ValueError(
                f"{what}: {leaf} leaves a dimension unconstrained, which needs with_sharding_constraint"
            )
    try:
        return flat_prefix(specs, tree, is_leaf=is_spec)
    except ValueError as error:
        why = _why_no_prefix(specs, tree) or str(error)
        message = why.replace("broadcast_prefix prefix_tree", what.split()[0])
        raise ValueError(f"{what} do not match what they describe: {message}") from None


def _why_no_prefix(specs: Any, tree: Any) -> str | None:
    """What JAX says of it, with the place, which it makes a tree for."""
    try:
        jax.tree.broadcast(specs, tree, is_leaf=is_spec)
    except ValueError as error:
        return str(error)
    return None


def positional_only(named: Collection[str], what: str) -> None:
    """Refuses arguments by name where specs are given by position, as `jax.jit` does.

    Raises:
      ValueError: names the arguments.
    """
    if named:
        raise ValueError(f"{what} describe positional arguments, but {', '.join(named)} is given by name")


def checked(spec: Spec, shape: Sequence[int], virtual: VirtualSlice, what: str) -> None:
    """Checks a spec against an array and the mesh of its slice.

    Raises:
      ValueError: an axis that is unknown or used twice, too many dimensions, or one that does not divide.
    """
    if spec is not None:
        mesh = Mesh(tuple(zip(virtual.axis_names, virtual.shape, strict=True)))
        problem = dims_of(spec).problem(shape, mesh)
        if problem:
            raise ValueError(f"{what} is {spec} on slice {virtual.name}: {problem}")


def dims_of(spec: PartitionSpec) -> Sharding:
    """The axes of each dimension that a spec mentions."""
    return Sharding(tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec))


def is_spec(leaf: Any) -> bool:
    """Whether something says how an array lies, or is to be refused with a reason of its own."""
    return leaf is None or isinstance(leaf, (PartitionSpec, NamedSharding))
