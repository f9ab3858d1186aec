"""Parser of StableHLO in the formats of clients and bundles: text, bytecode, or a portable artifact."""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect.operations.bindings import run_mlir_passes

_OF_SHARDY = (b"xla.sdy.meshes", b"xla.sdy.sharding")
"""Names of attributes with which portable artifacts of earlier releases have the shardings of Shardy."""


def parse_module(data: bytes, context: ir.Context, *, is_artifact: bool = False) -> ir.Module:
    """Parses a module of any dialect that a context knows.

    Args:
      data: its text or its bytecode.
      context: the context, used by no other thread.
      is_artifact: whether the data is a portable artifact of StableHLO.

    Raises:
      ValueError: the data is invalid; the message is MLIR's first diagnostic.
    """
    problems: list[str] = []

    def collect(diagnostic: ir.Diagnostic) -> bool:
        problems.append(_message_of(diagnostic))
        return True

    # Collected, because the text of MLIR's exceptions is built with an abort if the quoted name is not UTF-8.
    context.emit_error_diagnostics = True
    handler = context.attach_diagnostic_handler(collect)
    try:
        with context, ir.Location.unknown(context):
            if not is_artifact:
                return ir.Module.parse(data)
            module = stablehlo.deserialize_portable_artifact(context, data)
            # XLA reads the attributes of shardings, too, but as attributes of a stale export. The pass
            # removes shardings of GSPMD, the only ones of a function that was exported without Shardy.
            if any(name in data for name in _OF_SHARDY):
                run_mlir_passes("xla-sdy-round-trip-import-shardy-attrs", module)
            return module
    except (ir.MLIRError, ValueError) as error:
        raise ValueError(problems[0] if problems else str(error)) from None
    finally:
        handler.detach()


def _message_of(diagnostic: ir.Diagnostic) -> str:
    try:
        return diagnostic.message
    except (RuntimeError, UnicodeDecodeError):
        return "a name is not UTF-8 text"
