"""Programs are traced again where functions of `jax.jit` are: static arguments changed, caches cleared."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways as pw

X = np.float32([1, 2])


@pytest.fixture
def slice() -> pw.VirtualSlice:
    return pw.make_virtual_device_set().add_slice(1, "x")


@dataclasses.dataclass(unsafe_hash=True)
class Scale:
    """Static argument that may change; its hash is that of its contents."""

    value: float

    def times(self, x: Any) -> Any:
        return x * self.value


def by_number(jit: Callable[..., Any]) -> Callable[[Scale], Any]:
    return functools.partial(jit(lambda x, scale: scale.times(x), static_argnums=1), X)


def by_name(jit: Callable[..., Any]) -> Callable[[Scale], Any]:
    f = jit(lambda x, *, scale: scale.times(x), static_argnames="scale")
    return lambda scale: f(X, scale=scale)


def in_a_tuple(jit: Callable[..., Any]) -> Callable[[Scale], Any]:
    f = jit(lambda x, scales: scales[0].times(x), static_argnums=1)
    return lambda scale: f(X, (scale, 3))


def as_self(jit: Callable[..., Any]) -> Callable[[Scale], Any]:
    f = jit(Scale.times, static_argnums=0)
    return lambda scale: f(scale, X)


@pytest.mark.parametrize("call", [by_number, by_name, in_a_tuple, as_self])
@pytest.mark.parametrize("make", ["jit", "program"])
def test_static_argument_that_changed_in_place(
    slice: pw.VirtualSlice, make: str, call: Callable[..., Callable[[Scale], Any]]
) -> None:
    def ours(fun: Callable[..., Any], **static: Any) -> Callable[..., Any]:
        placed = pw.jit(fun, devices=slice, **static)
        return (
            placed if make == "jit" else pw.program(lambda *args, **named: placed(*args, **named), **static)
        )

    scale, f, reference = Scale(1.0), call(ours), call(jax.jit)
    for value in (1.0, 2.0, 3.0, 1.0):
        scale.value = value
        np.testing.assert_array_equal(f(scale), reference(scale))
        np.testing.assert_array_equal(f(scale), value * X)


def test_equal_static_arguments_share_an_executable(slice: pw.VirtualSlice) -> None:
    f = pw.jit(lambda x, scale: scale.times(x), devices=slice, static_argnums=1)
    for value in (1.0, 2.0, 1.0):
        f(X, Scale(value))
    assert len(f.alone.executables) == 2


captured = 1.0


def calls(slice: pw.VirtualSlice) -> dict[str, Callable[[], Any]]:
    """Returns calls with a captured variable: of placed functions, programs, a loop, and `jax.jit`."""
    placed, inner = pw.jit(lambda x: x * captured, devices=slice), jax.jit(lambda x: x * captured)
    with_static = pw.jit(lambda x, n: x * captured * n, devices=slice, static_argnums=1)
    loop = pw.accumulate(lambda _, x: placed(x), 2, reduce="concat")
    return {
        "placed": functools.partial(placed, X),
        "static": functools.partial(with_static, X, 1),
        "program": functools.partial(pw.program(lambda x: placed(x)), X),
        "around": functools.partial(pw.program(lambda x: captured * jnp.sign(placed(x)) * x), X),
        "inner": functools.partial(pw.program(pw.jit(lambda x: inner(x), devices=slice)), X),
        "loop": functools.partial(pw.program(loop), None, X),
        "jax": functools.partial(jax.jit(lambda x: x * captured), X),
    }


def check(calls: dict[str, Callable[[], Any]], value: float) -> None:
    for name, call in calls.items():
        np.testing.assert_allclose(call(), X * value, rtol=1e-6, err_msg=name)


def test_cleared_caches_trace_again(slice: pw.VirtualSlice, monkeypatch: pytest.MonkeyPatch) -> None:
    of_slice = calls(slice)
    check(of_slice, 1.0)
    monkeypatch.setitem(globals(), "captured", 2.0)
    check(of_slice, 1.0)
    jax.clear_caches()
    check(of_slice, 2.0)


def test_each_call_traces_under_disable_jit(slice: pw.VirtualSlice, monkeypatch: pytest.MonkeyPatch) -> None:
    of_slice = calls(slice)
    check(of_slice, 1.0)
    with jax.disable_jit():
        for value in (2.0, 3.0):
            monkeypatch.setitem(globals(), "captured", value)
            check(of_slice, value)
    # As under `jax.jit`, the traces from before are used again.
    check(of_slice, 1.0)


def test_compiled_programs_outlive_cleared_caches(slice: pw.VirtualSlice) -> None:
    compiled = pw.jit(lambda x: x * 1, devices=slice).lower(X).compile()
    jax.clear_caches()
    np.testing.assert_array_equal(compiled(X), X)
