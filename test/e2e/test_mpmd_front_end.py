"""Every program that the tests of Shardy's own front end lower, where it is installed, equals `jax.jit`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from front_end_programs import array, lowered_by_its_tests

import pathways as pw

pytestmark = [
    pytest.mark.needs("shardy"),
    # The front end uses deprecated JAX, and donates arguments that no result can reuse.
    pytest.mark.filterwarnings("ignore"),
]


def test_from_mpmd_agrees_with_jit_on_tests_of_front_end():
    programs = lowered_by_its_tests()
    assert len(programs) >= 52
    for wrapped, types_, lowered in programs:
        args = jax.tree.map(array, types_)
        with jax.set_mesh(wrapped._mpmd_config._spmd_mesh):
            runs = (lowered, wrapped.trace(*types_))
            expected = jax.device_get(jax.jit(wrapped.func)(*args))
        for program in runs:
            run = pw.from_mpmd(program).compile()
            results = run(*jax.tree.map(jnp.array, args))
            jax.tree.map(
                lambda got, want: np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-4),
                jax.device_get(results),
                expected,
            )
            declared = jax.tree.leaves(lowered.function_named_shardings.output_specs)
            for got, sharding in zip(jax.tree.leaves(results), declared, strict=True):
                assert got.sharding.is_equivalent_to(sharding, got.ndim)
