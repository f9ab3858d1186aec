"""Common code of tests of programs on hosts: arrays and functions, and processes that are controllers
alone."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import preloaded

import pathways as pw

X = np.linspace(-1, 1, 8 * 4, dtype=np.float32).reshape(8, 4)
W = np.linspace(-1, 1, 4 * 4, dtype=np.float32).reshape(4, 4)

PREPARE = f"""
import os
import signal
import sys

sys.path.insert(0, {str(Path(__file__).parent)!r})

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from check import assert_close, assert_equal
from jax.sharding import PartitionSpec as P
from on_hosts import W, X, back, front, refused, training

import pathways as pw
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.clusters.connect import controller

devices = pw.make_virtual_device_set()
"""


def over_tcp(count: int, ports: tuple[int, int]) -> pw.Ssh:
    """Returns a launcher of workers on this machine that use TCP as between machines, on a range of ports."""
    names = [f"machine{k}" for k in range(count)]
    return pw.Ssh(names, start="env PW_MACHINE={host} {command}", bind="127.0.0.1", ports=ports)


def front(w: Any, h: Any) -> Any:
    return jnp.tanh(h @ w)


def back(w: Any, h: Any) -> Any:
    return h + jnp.sin(h @ w)


def training(a: Callable[..., Any], b: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step that goes through b, a, and b again: weights that are read twice."""

    def loss(w: Any, x: Any) -> Any:
        return (b(w[1], a(w[0], b(w[1], x))) ** 2).mean()

    def step(w: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(w, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value

    return step


@contextlib.contextmanager
def refused(kind: type[BaseException], *words: str) -> Iterator[None]:
    """Checks that the block raises an error whose message has all of the words."""
    message = None
    try:
        yield
    except kind as error:
        message = str(error)
    assert message is not None, f"no {kind.__name__} that says {words}"
    assert all(word in message for word in words), message


def run(script: str, timeout: float = 100) -> str:
    """Runs a script after `PREPARE`; it and its workers exit within the time. Returns its output."""
    done = _python(PREPARE + script, timeout)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def run_alone(function: Callable[[], None], timeout: float = 100) -> subprocess.CompletedProcess[str]:
    """Calls a function of a module of tests in a process of its own, which exits within the time."""
    folder = str(Path(function.__code__.co_filename).parent)
    module, name = function.__module__, function.__name__
    return _python(
        f"import sys; sys.path.insert(0, {folder!r}); import {module} as m; "
        f"getattr(m.{name}, '__wrapped__', m.{name})()",
        timeout,
    )


def alone(test: Callable[[], None]) -> Callable[[], None]:
    """Returns a test that runs in a process of its own."""

    @functools.wraps(test)
    def run_test() -> None:
        done = run_alone(test)
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]

    return run_test


def _python(code: str, timeout: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return preloaded.run("-c", code, timeout=timeout, env=environment)
