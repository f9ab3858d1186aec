"""Bundles that clients send in programs in IFRT IR, whose executions take and return arrays of any devices.

A program of the protocol is StableHLO for one mesh, or IFRT IR. The client in JAX gives the executions of the
latter any arrays, so that a bundle travels as an attribute of an empty module.
"""

from __future__ import annotations

import hashlib
import struct

from jaxlib.mlir import ir

from pathways.dialect.operations.bindings import load_ifrt, make_context

_START = b"pathways bundle "
_LENGTH = struct.Struct("<Q")
_ATTRIBUTE = "bundle"
_EMPTY = "func.func public @main() attributes {ifrt.function} { return }"


def carrier_of(bundle: bytes) -> ir.Module:
    """Returns the module in IFRT IR that carries a bundle."""
    context = make_context()
    load_ifrt(context)
    with context, ir.Location.unknown():
        module = ir.Module.parse(_EMPTY)
        main = module.body.operations[0]
        main.attributes[_ATTRIBUTE] = ir.StringAttr.get(_START + _LENGTH.pack(len(bundle)) + bundle)
    return module


def bundle_in(program: bytes) -> bytes | None:
    """Returns the bundle in the bytes of a serialised program; None if there is none.

    MLIR writes the bytes of an attribute as they are, so that nobody parses the module.
    """
    start = program.find(_START)
    if start < 0:
        return None
    start += len(_START)
    (length,) = _LENGTH.unpack_from(program.ljust(start + _LENGTH.size), start)
    start += _LENGTH.size
    return program[start : start + length]


def digest_of(bundle: bytes) -> str:
    """Returns the digest by which a client and its server name a bundle."""
    return hashlib.sha256(bundle).hexdigest()


def digest_of_part(digest: str, sub_program: str) -> str:
    """Returns the digest of a sub-program of a bundle; of the program itself for an empty name."""
    return f"{digest}/{sub_program}" if sub_program else digest
