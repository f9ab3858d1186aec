"""Exchanges of blocks with counts of valid rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close, assert_equal
from hypothesis import given, settings
from hypothesis import strategies as st
from models import place_on
from on_hosts import refused
from test_all_to_all import arrays, slices_of

import pathways as pw

ROWS = 4


def exchanged(blocks: Sequence[Any], counts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Exchanges the valid rows of blocks in plain JAX."""
    limits = jnp.clip(jnp.stack(counts), 0, ROWS)
    is_valid = jnp.arange(ROWS) < limits[:, :, None]
    blocks = jnp.where(is_valid[..., None], jnp.stack(blocks), 0)
    return list(blocks.swapaxes(0, 1)), list(limits.swapaxes(0, 1))


def gradients_of(
    exchange: Callable[..., Any], before: Sequence[Any], after: Sequence[Any]
) -> Callable[..., Any]:
    """Returns the gradients of a loss that reads all received rows and counts, and these."""

    def loss(blocks: Any, counts: Any) -> Any:
        sent = [one(block) for one, block in zip(before, blocks, strict=True)]
        rows, received = exchange(sent, counts=counts)
        read = [one(block) for one, block in zip(after, rows, strict=True)]
        return sum((r * (1 + n.sum())).sum() for r, n in zip(read, received, strict=True)), (rows, received)

    return jax.value_and_grad(loss, has_aux=True)


def programs_of(count: int, shapes: Sequence[tuple[int, ...]] = ()) -> tuple[Any, Any]:
    """Returns the same gradients on slices, and in plain JAX."""
    slices = slices_of(count, *shapes)
    before, after = place_on(slices, jnp.sin), place_on(slices, jnp.cos)
    plain = gradients_of(exchanged, [jnp.sin] * count, [jnp.cos] * count)
    return pw.program(gradients_of(pw.all_to_all, before, after)), jax.jit(plain)


def as_counts(*rows: Sequence[int]) -> list[np.ndarray]:
    return [np.array(row, np.int32) for row in rows]


@pytest.mark.feature("experts", "values")
def test_rows_after_the_count_are_zeros() -> None:
    program, plain = programs_of(2)
    blocks = arrays(2, 2, ROWS, 3)
    counts = as_counts([1, ROWS], [0, 3])
    (_, (rows, received)), grads = result = program(blocks, counts)
    assert_close(result, plain(blocks, counts), 1e-6)
    assert_equal(received[1], np.array([ROWS, 3], np.int32))
    assert_close(rows[0][0, 0], np.sin(blocks[0][0, 0]), 1e-6)
    assert not np.any(rows[0][0, 1:])
    # No row that does not arrive has a gradient.
    assert not np.any(grads[0][0, 1:])
    assert not np.any(grads[1][0])


def test_any_counts() -> None:
    """Counts of 0, of all rows, beyond and below them, on three slices."""
    program, plain = programs_of(3)
    count = st.integers(-2, ROWS + 2)

    @settings(deadline=None, max_examples=30)
    @given(st.lists(st.lists(count, min_size=3, max_size=3), min_size=3, max_size=3), st.integers(0, 9))
    def check(rows: list[list[int]], seed: int) -> None:
        blocks, counts = arrays(3, 3, ROWS, 2, seed=seed), as_counts(*rows)
        assert_close(program(blocks, counts), plain(blocks, counts), 1e-6)

    check()


def test_invalid_rows_may_hold_anything() -> None:
    """Rows after the count are not multiplied by zero: infinities do not become nan."""
    program, _ = programs_of(2)
    blocks, counts = arrays(2, 2, ROWS, 3), as_counts([1, 1], [1, 1])
    expected = program(blocks, counts)
    for block in blocks:
        block[:, 1:] = np.inf
    (value, received), grads = program(blocks, counts)
    assert_equal((value, received), expected[0])
    assert_equal([grad[:, 0] for grad in grads], [grad[:, 0] for grad in expected[1]])


def test_counts_on_unequal_meshes() -> None:
    program, plain = programs_of(2, ((2,), (1,)))
    blocks, counts = arrays(2, 2, ROWS, 2), as_counts([3, 0], [9, 1])
    assert_close(program(blocks, counts), plain(blocks, counts), 1e-6)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved-1f1b"])
def test_counts_in_pipelines(schedule: str) -> None:
    """Each microbatch has its own counts, which a router computes."""
    microbatches, slices = 4, slices_of(2)

    def sent(x: Any) -> tuple[Any, Any]:
        return jnp.sin(x).reshape(2, ROWS, 3), (jnp.abs(x[:2, 0]) * 3).astype(jnp.int32)

    def gradients(routes: Sequence[Any], works: Sequence[Any], exchange: Callable[..., Any]) -> Any:
        def loss(w: Any, x: Any) -> Any:
            pairs = [one(block * w) for one, block in zip(routes, x, strict=True)]
            rows, counts = exchange([block for block, _ in pairs], counts=[n for _, n in pairs])
            back, _ = exchange([one(r) for one, r in zip(works, rows, strict=True)], counts=counts)
            return sum((block**2).sum() for block in back)

        return pw.accumulate(jax.value_and_grad(loss), microbatches)

    x = arrays(2, microbatches * 2 * ROWS, 3)
    on_slices = gradients(place_on(slices, sent), place_on(slices, jnp.cos), pw.all_to_all)
    plain = gradients([sent] * 2, [jnp.cos] * 2, exchanged)
    got = pw.program(on_slices, schedule=schedule)(np.float32(1.5), x)
    assert_close(got, jax.jit(plain)(np.float32(1.5), x), 1e-5)


def test_counts_that_no_slice_computes() -> None:
    """Constants and plain arguments go where their blocks are."""
    ones = place_on(slices_of(2), jnp.sin)
    blocks, counts = arrays(2, 2, ROWS, 3), as_counts([1, 2], [3, 4])

    def run(blocks: Any, exchange: Callable[..., Any], functions: Sequence[Any], counts: Any) -> Any:
        return exchange([one(b) for one, b in zip(functions, blocks, strict=True)], counts=counts)

    expected = run(blocks, exchanged, [jnp.sin] * 2, counts)
    assert_close(pw.program(lambda blocks: run(blocks, pw.all_to_all, ones, counts))(blocks), expected)
    passed = pw.program(lambda blocks, counts: run(blocks, pw.all_to_all, ones, counts))
    assert_close(passed(blocks, counts), expected)


def test_counts_under_transformations_and_outside_of_programs() -> None:
    blocks, counts = arrays(2, 2, ROWS, 3), as_counts([1, 9], [-1, 4])
    assert_equal(pw.all_to_all(blocks, counts=counts), exchanged(blocks, counts))
    assert_equal(jax.jit(lambda b, c: pw.all_to_all(b, counts=c))(blocks, counts), exchanged(blocks, counts))
    (only,), (two,) = pw.all_to_all([np.ones((1, ROWS), np.float32)], counts=as_counts([2]))
    assert_equal([only, two], [np.array([[1, 1, 0, 0]], np.float32), np.array([2], np.int32)])
    ones = place_on(slices_of(2), jnp.sin)
    many = [np.stack([block, -block]) for block in blocks], [np.stack([n, n + 1]) for n in counts]

    def value(functions: Sequence[Any], exchange: Callable[..., Any], blocks: Any, counts: Any) -> Any:
        sent = [one(block) for one, block in zip(functions, blocks, strict=True)]
        return sum((rows**2).sum() for rows in exchange(sent, counts=counts)[0])

    ours = functools.partial(value, ones, pw.all_to_all)
    plain = functools.partial(value, [jnp.sin] * 2, exchanged)
    for transformed, args in (
        (lambda f: jax.vmap(jax.value_and_grad(f)), many),
        (lambda f: jax.vmap(f, in_axes=(0, None)), (many[0], counts)),
        (lambda f: jax.grad(jax.checkpoint(f)), (blocks, counts)),
    ):
        assert_close(pw.program(transformed(ours))(*args), jax.jit(transformed(plain))(*args), 1e-5)


@pytest.mark.process
def test_counts_in_a_bundle(tmp_path: Any) -> None:
    program, plain = programs_of(2)
    blocks, counts = arrays(2, 2, ROWS, 3), as_counts([1, 2], [9, 0])
    program.lower(blocks, counts).save(tmp_path / "routed.pw")
    assert_close(pw.load(tmp_path / "routed.pw")(blocks, counts), plain(blocks, counts), 1e-6)


@pytest.mark.feature("experts", "error")
def test_bad_counts_are_refused() -> None:
    slices = slices_of(2)
    ones = place_on(slices, jnp.sin)
    blocks = arrays(2, 2, ROWS, 3)

    def call(counts: Any, blocks: Any = blocks) -> None:
        pw.program(
            lambda x, c: pw.all_to_all([one(b) for one, b in zip(ones, x, strict=True)], counts=c)
        ).lower(blocks, counts)

    line = "test_all_to_all_counts.py"
    with refused(TypeError, "pw.all_to_all: counts expects a list of arrays, one for each slice, got int"):
        pw.all_to_all(blocks, counts=3)  # type: ignore[call-overload]
    with refused(TypeError, f"counts[0] on @{slices[0].name} has dtype float32: convert it to int32", line):
        call([np.ones(2, np.float32)] * 2)
    with refused(
        ValueError, "counts[1]", f"@{slices[1].name} has shape (3,), but there is a count for", line
    ):
        call(as_counts([1, 2], [1, 2, 3]))
    with refused(ValueError, "1 counts for 2 slices: pass an array for each slice", line):
        call(as_counts([1, 2]))
    with refused(ValueError, "blocks of shape (2,), which have no rows", "(2, rows, ...)", line):
        call(as_counts([1, 2], [1, 2]), arrays(2, 2))


def test_counts_of_another_slice_are_refused() -> None:
    slices = slices_of(2)
    ones, keep = place_on(slices, jnp.sin), place_on(slices, jnp.abs)

    def swapped(x: Any, c: Any) -> Any:
        return pw.all_to_all([ones[n](x[n]) for n in (0, 1)], counts=[keep[1](c[1]), keep[0](c[0])])

    with refused(ValueError, f"is on @{slices[1].name} and @{slices[0].name}", "and so are its counts"):
        pw.program(swapped).lower(arrays(2, 2, ROWS, 3), as_counts([1, 2], [1, 2]))


@pytest.mark.parametrize("count", [-1, ROWS + 1])
def test_clamped_counts_are_errors_if_checked(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the slice and the microbatch."""
    monkeypatch.setenv("PW_CHECK_COUNTS", "1")
    slices = slices_of(2)
    ones = place_on(slices, jnp.sin)

    def value(_: Any, x: Any, counts: Any) -> Any:
        rows, _ = pw.all_to_all([one(b) for one, b in zip(ones, x, strict=True)], counts=counts)
        return sum(map(jnp.sum, rows))

    step = pw.program(pw.accumulate(value, 3), schedule="1f1b")
    blocks, counts = arrays(2, 6, ROWS, 3), as_counts([0, 1, 2, 3, 4, 4], [4] * 6)
    jax.block_until_ready(step(0.0, blocks, counts))
    counts[1][5] = count
    text = f"counts[1] on @{slices[1].name} is [4, {count}] in microbatch 2, but a block has 0 to {ROWS} rows"
    with refused(jax.errors.JaxRuntimeError, text):
        jax.block_until_ready(step(0.0, blocks, counts))
