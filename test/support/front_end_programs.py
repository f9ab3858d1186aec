"""Programs of the tests of Shardy's own MPMD front end, where it is installed.

As a script, runs them on whatever backend JAX has, beside `jax.jit` there, and fails if they differ:
`python front_end_programs.py`.
"""

from __future__ import annotations

import importlib
import sys
import types
import unittest
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

PACKAGE = "shardy.integrations.python.jax.mpmd"


def lowered_by_its_tests() -> list[tuple[Any, tuple[Any, ...], Any]]:
    """Runs the tests of `jit`; returns each function, its arguments, and their lowered programs."""
    importlib.import_module("pathways.mpmd")
    # The tests call it to get eight CPU devices, which exist already.
    stand_in = types.ModuleType("chex")
    stand_in.set_n_cpu_devices = lambda count: None  # type: ignore[attr-defined]
    sys.modules.setdefault("chex", stand_in)
    wrapped = sys.modules[f"{PACKAGE}.jit"].MpmdWrapped
    seen: list[tuple[Any, tuple[Any, ...], Any]] = []
    lower: Callable[..., Any] = wrapped.lower

    def remember(self: Any, *args: Any) -> Any:
        seen.append((self, args, lower(self, *args)))
        return seen[-1][-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wrapped, "lower", remember)
        tests = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(f"{PACKAGE}.jit_test"))
        result = unittest.TestResult()
        tests.run(result)
    assert result.wasSuccessful(), result.errors or result.failures
    return seen


def array(leaf: Any) -> Any:
    """Returns an array for a type."""
    if not hasattr(leaf, "dtype"):
        return leaf
    values = np.random.default_rng(0).normal(size=leaf.shape)
    return jnp.asarray(values if jnp.issubdtype(leaf.dtype, jnp.floating) else np.abs(values) > 1, leaf.dtype)


def main() -> None:
    # The front end uses deprecated JAX, and donates arguments that no result can reuse.
    warnings.simplefilter("ignore")
    programs = lowered_by_its_tests()
    for wrapped, types_, lowered in programs:
        args = jax.tree.map(array, types_)
        with jax.set_mesh(wrapped._mpmd_config._spmd_mesh):
            expected = jax.device_get(jax.jit(wrapped.func)(*args))
        compiled = lowered.compile()
        leaves, structure = jax.tree.flatten(args)
        placed = map(jax.device_put, leaves, jax.tree.leaves(compiled.input_shardings[0]))
        results = jax.device_get(compiled(*structure.unflatten(placed)))
        jax.tree.map(
            lambda got, want: np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-4), results, expected
        )
    print(f"{len(programs)} programs agree")


if __name__ == "__main__":
    main()
