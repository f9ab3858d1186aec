"""Calls with metadata of users: they stay as JAX lowers them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import xla_metadata_call2

import pathways as pw


def test_metadata_of_users_in_the_gradient_of_a_call():
    call = xla_metadata_call2(lambda x: jnp.sin(x) * x, {"mine": "forward"}, ad_metadata={"mine": "backward"})
    assert pw.jit is not None  # our rules are there
    text = jax.jit(jax.grad(lambda x: call(x).sum())).lower(jnp.arange(3.0)).as_text()
    assert text.count('mine = "forward"') == 1
    assert text.count('mine = "backward"') == 1
