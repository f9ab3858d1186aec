"""Lines about passes that take long."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import pathways as pw
from pathways.compiler.lower import progress


def looping(count: int) -> pw.Program:
    """Returns a program of a loop over two slices."""
    devices = pw.make_virtual_device_set()
    sin, cos = (pw.jit(f, devices=devices.add_slice(1, "x")) for f in (jnp.sin, jnp.cos))

    @pw.program
    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, carried: cos(sin(carried)), x)

    return loop


def test_lowering_says_nothing_while_it_is_fast(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_S", 600.0)
    looping(3).lower(1.0)
    assert capsys.readouterr().err == ""


def test_lowering_says_that_it_unrolls_many_iterations(capsys, monkeypatch):
    monkeypatch.setattr(progress, "MANY_ITERATIONS", 30)
    looping(30).lower(1.0)
    expected = "pathways: lowering program 'loop': unrolling a loop of 30 iterations ...\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("is_terminal", [True, False])
def test_lowering_says_which_pass_runs_when_it_takes_long(capsys, monkeypatch, is_terminal):
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    looping(3).lower(1.0)
    shown = capsys.readouterr().err
    assert "pathways: lowering program 'loop': pw-" in shown
    if is_terminal:
        *_, last, removed = shown.split("\r\033[K")
        assert (last, removed) == ("pathways: lowering program 'loop': pw-verify-schedule ...", "")
    else:
        assert len(shown.splitlines()) == 1
