"""Types and attributes of Shardy's `mpmd` dialect, which the bindings return as text alone."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from pathways.dialect.attributes.meshes import Mesh

_PREFIX = "!mpmd.mesh_tensor<"
_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"')


class NotMpmdError(ValueError):
    """Text that is not of this dialect."""


@dataclasses.dataclass(frozen=True)
class MeshTensor:
    """Contents of a `!mpmd.mesh_tensor`.

    Attributes:
      mesh: the name of the mesh of the topology that the array is on.
      type: the type of the whole array.
      sharding: its sharding over the mesh; None where there is none.
      memory_kind: the memory that it is in; None where there is none.
    """

    mesh: str
    type: ir.Type
    sharding: ir.Attribute | None = None
    memory_kind: str | None = None


def read_mesh_tensor(type_: ir.Type) -> MeshTensor | None:
    """Reads a type; returns None if it is not an `!mpmd.mesh_tensor`."""
    text = str(type_)
    if not text.startswith(_PREFIX):
        return None
    mesh, tensor, *rest = split_at_commas(text[len(_PREFIX) : -1])
    fields = dict(field.split("=", 1) for field in rest)
    sharding = fields.get("sharding")
    memory_kind = fields.get("memory_kind")
    return MeshTensor(
        mesh[1:-1],
        ir.Type.parse(tensor, type_.context),
        None if sharding is None else ir.Attribute.parse(f"#sdy.sharding{sharding}", type_.context),
        None if memory_kind is None else memory_kind[1:-1],
    )


def read_topology(attribute: ir.Attribute) -> dict[str, Mesh]:
    """Returns the meshes of an `#mpmd.topology` by their names, in their order.

    Raises:
      NotMpmdError: it is none, or two of its meshes have one name.
    """
    text = str(attribute)
    prefix = "#mpmd.topology<"
    if not text.startswith(prefix):
        raise NotMpmdError(f"is {text}, not an #mpmd.topology")
    meshes: dict[str, Mesh] = {}
    for field in split_at_commas(text[len(prefix) : -1]):
        # `<"mesh1" : <["x"=2]>>`
        quoted = _NAME.match(field, 1)
        if quoted is None:
            raise NotMpmdError(f"has a mesh without a name: {field}")
        name = quoted[1]
        if name in meshes:
            raise NotMpmdError(f'has two meshes "{name}"')
        axes = field[quoted.end() : -1].partition(":")[2].strip()
        mesh = sdy.MeshAttr(ir.Attribute.parse(f"#sdy.mesh{axes}", attribute.context))
        named = (sdy.MeshAxisAttr(axis) for axis in mesh.axes)
        meshes[name] = Mesh(tuple((axis.name, axis.size) for axis in named))
    return meshes


def split_at_commas(text: str) -> list[str]:
    """Splits a text at commas outside of brackets and strings.

    Raises:
      NotMpmdError: a string has no end, as where the name of a mesh holds a quote, which is printed as it is.
    """
    return [field.strip() for field in _split(text)]


def _split(text: str) -> Iterator[str]:
    depth, first, at = 0, 0, 0
    while at < len(text):
        sign = text[at]
        if sign == '"':
            quoted = _NAME.match(text, at)
            if quoted is None:
                raise NotMpmdError(f"has an unterminated string: {text}")
            at = quoted.end()
            continue
        if sign in "<([{":
            depth += 1
        elif sign in ">)]}":
            depth -= 1
        elif sign == "," and depth == 0:
            yield text[first:at]
            first = at + 1
        at += 1
    yield text[first:]
