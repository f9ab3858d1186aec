"""The one module of the dialect that imports private parts of jaxlib's MLIR bindings.

`append_dialect_search_prefix` tells them where our dialect's module is; `register_dialect` and
`register_operation` make them return our typed `OpView` classes for operations that C++ does not know;
`inlined_func_call` clones a function's body in C++; `_jax_mlir_ext` fills a registry with
the dialects that JAX lowers to. None of them has a public name.
"""

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext, _mlir
from jaxlib.mlir.dialects import chlo, mpmd, sdy, stablehlo

register_dialect = _mlir.register_dialect
register_operation = _mlir.register_operation
inlined_func_call = _jax_mlir_ext.inlined_func_call

# Where the bindings find the module of our dialect: `pathways.dialect.pw`.
_mlir.globals.append_dialect_search_prefix("pathways.dialect")

__all__ = ["inlined_func_call", "make_context", "register_dialect", "register_operation"]


def make_context() -> ir.Context:
    """Returns a new context that knows every dialect JAX lowers to, and lets `pw` ops pass.

    `pw` is declared in Python, so C++ sees its operations as unregistered; `dialect/verification/verifier.py`
    checks them instead. Multithreading is off: Python passes could not run with it.
    """
    context = ir.Context()
    context.enable_multithreading(False)
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    for dialect in (sdy, stablehlo, chlo, mpmd):
        dialect.register_dialect(context)
    context.load_all_available_dialects()
    context.allow_unregistered_dialects = True
    return context
