"""Shardings given by users: trees of `PartitionSpec`s that match their arrays, whole or as prefixes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from pathways.compiler.frontend.trees import flat_prefix
from pathways.dialect.attributes.meshes import Mesh, Sharding
from pathways.runtime.resources.virtual import VirtualSlice

Spec = PartitionSpec | None
"""Sharding of an array over its slice; None if none is given."""


def abstract_mesh(virtual: VirtualSlice) -> Any:
    """Returns the mesh of a slice without devices, for tracing."""
    kinds = (jax.sharding.AxisType.Auto,) * len(virtual.shape)
    return jax.sharding.AbstractMesh(virtual.shape, virtual.axis_names, axis_types=kinds)


def flat_specs(specs: Any, tree: Any, subject: str) -> list[Spec]:
    """Returns one spec for each leaf of a tree.

    Args:
      specs: a tree of `PartitionSpec`s or None that is a prefix of `tree`.
      tree: the arrays.
      subject: the subject of messages, such as "in_shardings of 'f'".

    Raises:
      TypeError: a leaf is of another type, such as a sharding over physical devices.
      ValueError: the trees do not match, or a dimension is `UNCONSTRAINED`.
    """
    for leaf in jax.tree.leaves(specs, is_leaf=is_spec):
        if isinstance(leaf, NamedSharding):
            raise TypeError(
                f"{subject}: {leaf} names physical devices, but a slice gets its devices only when the "
                "program is loaded; give the PartitionSpec alone"
            )
        if leaf is not None and not isinstance(leaf, PartitionSpec):
            raise TypeError(f"{subject}: expected a PartitionSpec or None, got {type(leaf).__name__}")
        if leaf is not None and PartitionSpec.UNCONSTRAINED in leaf:
            raise ValueError(
                f"{subject}: {leaf} leaves a dimension unconstrained, which needs with_sharding_constraint"
            )
    try:
        return flat_prefix(specs, tree, is_leaf=is_spec)
    except ValueError as error:
        why = _why_no_prefix(specs, tree) or str(error)
        message = why.replace("broadcast_prefix prefix_tree", subject.split()[0])
        raise ValueError(f"{subject} do not match the tree of their arrays: {message}") from None


def _why_no_prefix(specs: Any, tree: Any) -> str | None:
    """Returns JAX's message about a prefix, with the place, for which it builds the tree again."""
    try:
        jax.tree.broadcast(specs, tree, is_leaf=is_spec)
    except ValueError as error:
        return str(error)
    return None


def positional_only(named: Collection[str], subject: str) -> None:
    """Rejects arguments by name if specs are given by position, like `jax.jit`.

    Raises:
      ValueError: there are such arguments; names them.
    """
    if named:
        raise ValueError(f"{subject} describe positional arguments, but {', '.join(named)} is given by name")


def checked(spec: Spec, shape: Sequence[int], virtual: VirtualSlice, subject: str) -> None:
    """Checks a spec against an array and the mesh of its slice.

    Raises:
      ValueError: an axis is unknown or used twice, there are too many dimensions, or one does not divide.
    """
    if spec is not None:
        mesh = Mesh(tuple(zip(virtual.axis_names, virtual.shape, strict=True)))
        problem = dims_of(spec).problem(shape, mesh)
        if problem:
            raise ValueError(f"{subject} is {spec} on slice {virtual.name}: {problem}")


def dims_of(spec: PartitionSpec) -> Sharding:
    """Returns the axes of each dimension of a spec."""
    return Sharding(tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec))


def is_spec(leaf: Any) -> bool:
    """Returns whether a leaf is a sharding, or an object that is rejected with a specific reason."""
    return leaf is None or isinstance(leaf, (PartitionSpec, NamedSharding))
