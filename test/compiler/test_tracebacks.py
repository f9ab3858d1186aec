"""Frames in tracebacks of errors, for each value of `jax_traceback_filtering`."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways as pw

HIDES = ["auto", "quiet_remove_frames", "remove_frames"]


@contextmanager
def filtering(mode: str) -> Iterator[None]:
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", mode)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


@pytest.fixture
def increment() -> Callable[[Any], Any]:
    s0 = pw.make_virtual_device_set().add_slice(1, "x")
    return pw.jit(lambda x: x + 1, devices=s0)


def files(error: BaseException) -> set[str]:
    return {Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)}


def wrong_argument(increment: Any) -> None:
    pw.program(lambda x: increment(x))("text")


def wrong_shapes(increment: Any) -> None:
    pw.program(lambda x: increment(x) + jnp.ones(5))(jnp.ones(3))


def wrong_argument_of_compiled(increment: Any) -> None:
    pw.program(lambda x: increment(x)).lower(1.0).compile()("text")


def no_bundle(increment: Any) -> None:
    pw.load(__file__)


def deleted_argument(increment: Any) -> None:
    x = jnp.ones(3)
    increment(x)
    x.delete()
    # A second call with equal arguments takes the fast path.
    increment(x)


def unknown_schedule(increment: Any) -> None:
    pw.program(schedule="1f1B")(increment)


def no_slice(increment: Any) -> None:
    pw.jit(lambda x: x, devices=[None])


def no_positions(increment: Any) -> None:
    pw.jit(lambda x: x, devices=pw.make_virtual_device_set().add_slice(1, "x"), static_argnums="a")


def wrong_axes(increment: Any) -> None:
    pw.make_virtual_device_set().add_slice((2, 2), "x")


def no_replicas(increment: Any) -> None:
    pw.make_virtual_device_set(replicas=0)


def no_microbatches(increment: Any) -> None:
    pw.accumulate(increment, 0)


MISTAKES = [
    unknown_schedule,
    no_slice,
    no_positions,
    wrong_axes,
    no_replicas,
    no_microbatches,
    wrong_argument,
    wrong_shapes,
    wrong_argument_of_compiled,
    no_bundle,
    deleted_argument,
]
ERRORS = (TypeError, ValueError, RuntimeError)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_traceback_has_frames_of_the_user_alone(increment, mistake):
    for mode in HIDES:
        with filtering(mode), pytest.raises(ERRORS) as raised:
            mistake(increment)
        assert files(raised.value) == {Path(__file__).name}, mode
    with filtering("off"), pytest.raises(ERRORS) as raised:
        mistake(increment)
    assert len(files(raised.value)) > 1
    assert "JAX_TRACEBACK_FILTERING" not in "".join(getattr(raised.value, "__notes__", ()))


def test_traceback_marks_frames_for_ipython(increment):
    with filtering("tracebackhide"), pytest.raises(TypeError) as raised:
        wrong_argument(increment)
    hidden = {
        Path(frame.f_code.co_filename).name
        for frame, _ in traceback.walk_tb(raised.value.__traceback__)
        if "__tracebackhide__" in frame.f_locals
    }
    assert hidden == files(raised.value) - {Path(__file__).name}


def test_traceback_has_a_note_on_hidden_frames(increment):
    with filtering("auto"), pytest.raises(TypeError) as raised:
        wrong_argument(increment)
    (note,) = raised.value.__notes__
    assert "JAX_TRACEBACK_FILTERING=off" in note


def test_traceback_of_a_program_in_a_trace_of_jax_has_one_note(increment):
    program = pw.program(lambda x: increment(x) @ jnp.ones((3, 3)))
    with filtering("auto"), pytest.raises(TypeError) as raised:
        jax.jit(lambda x: program(x))(jnp.ones((2, 2)))
    assert len(raised.value.__notes__) == 1


@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
def test_traceback_of_a_cause_is_filtered_too():
    s0 = pw.make_virtual_device_set().add_slice(1, "x")
    strange = pw.jit(
        lambda x: jax.ffi.ffi_call("not_there", jax.ShapeDtypeStruct(x.shape, x.dtype))(x), devices=s0
    )
    with filtering("auto"), pytest.raises(pw.CompileError) as raised:
        strange(np.float32(1))
    assert raised.value.__cause__ is not None
    assert not files(raised.value.__cause__)


def test_traceback_of_the_cause_has_all_frames_with_remove_frames(increment):
    with filtering("remove_frames"), pytest.raises(TypeError) as raised:
        wrong_argument(increment)
    assert raised.value.__cause__ is not None
    assert "program.py" in files(raised.value.__cause__)
