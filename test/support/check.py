"""Comparisons of trees of arrays, on one or more devices, with those of `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def assert_close(got: Any, want: Any, tolerance: float = 1e-6) -> None:
    """Checks that trees have one structure and types, and each shard of `got` the values of its block in
    `want`.

    Args:
      got: a tree of arrays.
      want: a tree of arrays without infinities and NaNs.
      tolerance: the largest error of a shard, as a fraction of the norm of the whole array.
    """

    def check(one: np.ndarray, other: np.ndarray, whole: np.ndarray) -> None:
        wide = np.complex128 if np.iscomplexobj(other) else np.float64
        one, other, whole = one.astype(wide), other.astype(wide), whole.astype(wide)
        assert np.isfinite(other).all()
        assert np.linalg.norm(one - other) <= tolerance * np.linalg.norm(whole)

    _compare(got, want, check)


def assert_equal(got: Any, want: Any) -> None:
    """Checks that trees have one structure and types, and each shard of `got` the bits of its block in
    `want`."""

    def check(one: np.ndarray, other: np.ndarray, whole: np.ndarray) -> None:
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes(), (one, other)

    _compare(got, want, check)


def assert_copies_equal(tree: Any) -> None:
    """Checks that shards of one block, on other devices or replicas, have the same bits."""
    for leaf in jax.tree.leaves(tree):
        copies: dict[str, set[bytes]] = {}
        for shard in _data(leaf).addressable_shards:
            copies.setdefault(str(shard.index), set()).add(np.asarray(shard.data).tobytes())
        assert all(len(same) == 1 for same in copies.values())


def assert_trains_as_jax(
    program: Callable[..., Any],
    plain: Callable[..., Any],
    state: Sequence[Any],
    batch: Any,
    steps: int = 2,
    tolerance: float = 1e-6,
) -> None:
    """Checks that some steps give the results of `jax.jit`, and the same bits in all copies.

    Args:
      program: a step from `(*state, batch)` to `(loss, *state)`; it may donate the state.
      plain: the function to compile with `jax.jit`.
      state: the state of the first step.
      batch: the batch of each step.
      steps: the number of steps.
      tolerance: that of `assert_close`.
    """
    ours = theirs = (None, *state)
    jitted = jax.jit(plain)
    for _ in range(steps):
        # The reference first, since the program may donate the arguments.
        theirs = jitted(*theirs[1:], batch)
        ours = program(*ours[1:], batch)
        assert_close(ours, theirs, tolerance)
        assert_copies_equal(ours)


def _compare(got: Any, want: Any, check: Callable[[np.ndarray, np.ndarray, np.ndarray], None]) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert _type(one) == _type(other)
        if None not in (weak := (_weak_type(one), _weak_type(other))):
            assert weak[0] == weak[1]
        one, whole = _data(one), np.asarray(_data(other))
        if not isinstance(one, jax.Array):
            check(np.asarray(one), whole, whole)  # An array of hosts, or of NumPy, is whole.
            continue
        for shard in one.addressable_shards:
            check(np.asarray(shard.data), whole[shard.index], whole)


def _type(leaf: Any) -> tuple[tuple[int, ...], Any]:
    return (np.shape(leaf), leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype)


def _weak_type(leaf: Any) -> bool | None:
    return getattr(getattr(leaf, "aval", None), "weak_type", None)


def _data(leaf: Any) -> Any:
    """Returns an array, or the data of an array of random keys."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf
