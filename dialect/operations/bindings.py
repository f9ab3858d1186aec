"""The one module of the dialect that imports private parts of jaxlib's MLIR bindings.

`append_dialect_search_prefix` tells them where our dialect's module is; `register_dialect` and
`register_operation` make them return our typed `OpView` classes for operations that C++ does not know;
`inlined_func_call` clones a function's body in C++; `_jax_mlir_ext` fills a registry with
the dialects that JAX lowers to; `_sdy_mpmd` has the pass that loads the dialect `ifrt`. None of them has a
public name.
"""

import functools
import importlib
import sys
import threading
import types
from typing import Any

import jaxlib.mlir
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext, _mlir
from jaxlib.mlir.dialects import chlo, mpmd, sdy, stablehlo
from jaxlib.mlir.passmanager import PassManager

register_dialect = _mlir.register_dialect
register_operation = _mlir.register_operation
inlined_func_call = _jax_mlir_ext.inlined_func_call

# Where the bindings find the module of our dialect: `pathways.dialect.pw`.
_mlir.globals.append_dialect_search_prefix("pathways.dialect")

_ONE_RUN = threading.RLock()
"""Held while passes of MLIR run; reentrant, since a diagnostic handler may run passes."""


def make_context() -> ir.Context:
    """Returns a new context that knows every dialect that JAX lowers to, and accepts `pw` operations.

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


def load_ifrt(context: ir.Context) -> None:
    """Loads the dialect `ifrt` into a context: the IR that Shardy's MPMD compiler sends to runtimes.

    The bindings have no function for it; a pass of theirs that produces the dialect loads it.
    """
    text = 'func.func public @main() attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} { return }'
    mpmd_bindings().lower_to_ifrt(ir.Module.parse(text, context))


_NAMES_WHERE_BUILT = {"mlir": jaxlib.mlir, "mlir.ir": ir}
"""The modules that `_sdy_mpmd` imports, by their names where Shardy was built."""


@functools.cache
def mpmd_bindings() -> Any:
    """Imports the bindings of Shardy's MPMD compiler, without the jax that these would import."""
    stand_ins = {name: types.ModuleType(name) for name in ("jax", "jax.jaxlib")} | _NAMES_WHERE_BUILT
    # Not above: it imports the core of NumPy, which few tools need.
    stand_ins["jax.jaxlib._jax"] = importlib.import_module("jaxlib._jax")
    added = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    sys.modules.update(added)
    try:
        return importlib.import_module("jaxlib._sdy_mpmd")
    finally:
        # Code that imports `jax` later must find the real one; `_sdy_mpmd` keeps its bindings.
        for name in added:
            del sys.modules[name]


def run_mlir_passes(pipeline: str, root: ir.Module | ir.OpView, *, verify_each: bool = True) -> None:
    """Runs passes of MLIR over a module or a function, in one thread of the process at a time.

    A pass may hold a lock of the process while it emits a diagnostic: Shardy does, around warnings that it
    gives once. A handler in Python can lose the GIL there to a thread that waits for that lock and keeps the
    GIL, as passes do while they run. Serial passes lose nothing, for they hold the GIL anyway.

    Args:
      pipeline: the passes, in the textual form of MLIR's pass pipelines.
      root: the module or function; it is changed.
      verify_each: whether MLIR verifies it after each pass.

    Raises:
      ValueError: `pipeline` is not in that form.
      MLIRError: a pass failed.
    """
    operation = root.operation
    manager = PassManager.parse(f"{operation.name}({pipeline})", operation.context)
    manager.enable_verifier(verify_each)
    with _ONE_RUN:
        manager.run(operation)
