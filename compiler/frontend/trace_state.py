"""What each thread is tracing, and the slices that a trace names."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import jax

from pathways.runtime.resources.virtual import VirtualSlice

_slices: weakref.WeakValueDictionary[str, VirtualSlice] = weakref.WeakValueDictionary()


def register_slice(virtual: VirtualSlice) -> None:
    """Lets the metadata of placed calls name a slice."""
    _slices[virtual.name] = virtual


def slice_named(name: str) -> VirtualSlice:
    """The slice that the metadata of a placed call names.

    Raises:
      ValueError: when it is no more: JAX has reused a trace from when the function called others.
    """
    virtual = _slices.get(name)
    if virtual is None:
        raise ValueError(
            f"a function placed on slice {name} is called, but that slice no longer exists: as under "
            "jax.jit, a function that was traced must not call others later (through a global, for example)"
        )
    return virtual


class TraceState(threading.local):
    """What this thread is tracing.

    Attributes:
      program: the program, None outside of one.
      calls: how many placed calls it has seen.
      placed: whether it is inside a placed function, which is ordinary JAX.
      loop: the function whose microbatches it is about.
    """

    def __init__(self) -> None:
        self.program: str | None = None
        self.calls = 0
        self.placed = False
        self.loop: str | None = None

    @contextlib.contextmanager
    def set(self, **values: Any) -> Iterator[None]:
        """Sets attributes until the end of a `with`."""
        outer = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(outer)


active_trace = TraceState()

_in_program = jax.make_user_context(False)
"""Keeps what JAX caches of programs apart: outside of them, the marks of `pw.accumulate` compute nothing."""


@contextlib.contextmanager
def tracing(program: str) -> Iterator[None]:
    """Marks that this thread traces a program: placed functions called meanwhile become part of it."""
    with _in_program(True), active_trace.set(program=program, calls=0, placed=False, loop=None):
        yield
