"""Calls of programs under a trace of JAX: they give types, for `jax.eval_shape`, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from pathways.compiler.frontend.jax_internals import JET, SPARSIFY, Tracer, register_rule, register_rules


def abstract_call(
    name: str, leaves: Sequence[Any], paths: Callable[[], list[str]], avals: Sequence[Any]
) -> list[Any]:
    """Returns the results of a call that has tracers among its arguments.

    Args:
      leaves: its flat arguments.
      paths: the name of each of them.
      avals: the abstract values of its flat results.

    Raises:
      TypeError: more than the types of the results is needed, perhaps only later.
    """
    register_rules()
    traced = next(n for n, leaf in enumerate(leaves) if isinstance(leaf, Tracer))
    return program_p.bind(*leaves, name=name, argument=paths()[traced], avals=tuple(avals))


program_p = Primitive("pw_program")
program_p.multiple_results = True


def _refuse(*_: Any, name: str, argument: str, **__: Any) -> NoReturn:
    raise TypeError(
        f"program '{name}': argument {argument} is a JAX tracer. A program cannot be called under jax.jit, "
        "jax.grad, jax.vmap or another transformation but jax.eval_shape: put the transformation inside the "
        "program."
    )


program_p.def_abstract_eval(lambda *_, avals, **__: list(avals))
program_p.def_impl(_refuse)
ad.primitive_jvps[program_p] = _refuse
batching.primitive_batchers[program_p] = _refuse
mlir.register_lowering(program_p, _refuse)
register_rule(JET, lambda jet: jet.jet_rules.update({program_p: _refuse}))
register_rule(SPARSIFY, lambda sparse: sparse.sparse_rules_bcoo.update({program_p: _refuse}))
register_rule(SPARSIFY, lambda sparse: sparse.sparse_rules_bcsr.update({program_p: _refuse}))
