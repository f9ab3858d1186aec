"""Modules as MLIR bytecode."""

from __future__ import annotations

import io

from jaxlib.mlir import ir


def bytecode_of(module: ir.Module) -> bytes:
    """Returns a module of any context as bytecode."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def copy_of(module: ir.Module) -> ir.Module:
    """Returns a copy of a module, which may be a sub-program of another one and does not keep that alive."""
    return ir.Module.parse(bytecode_of(module), module.context)
