"""State of each thread's trace, and the slices that traces name."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import jax

from pathways.runtime.resources.virtual import VirtualSlice

_slices: weakref.WeakValueDictionary[str, VirtualSlice] = weakref.WeakValueDictionary()


def register_slice(virtual: VirtualSlice) -> None:
    """Registers a slice, so that the metadata of placed calls can name it."""
    _slices[virtual.name] = virtual


def slice_named(name: str) -> VirtualSlice:
    """Returns the slice that the metadata of a placed call names.

    Raises:
      ValueError: it no longer exists: JAX has reused a trace from when the function called others.
    """
    virtual = _slices.get(name)
    if virtual is None:
        raise ValueError(
            f"a function placed on slice {name} is called, but that slice no longer exists: as under "
            "jax.jit, a function that was traced must not call others later (through a global, for example)"
        )
    return virtual


def counts_are_checked() -> bool:
    """Returns whether programs that are traced now check the counts of `pw.all_to_all`."""
    return os.environ.get("PW_CHECK_COUNTS") == "1"


class TraceState(threading.local):
    """Trace of this thread.

    Attributes:
      program: the program, None outside of one.
      calls: the number of placed calls so far.
      placed: whether it is inside a placed function, which is ordinary JAX.
      loop: the function whose microbatch is traced.
      microbatch: its number, as an array of shape `(1,)`, if `counts_are_checked`; else None.
      schedule: the schedule of loops without one, in a program that another one calls; None in that one.
    """

    def __init__(self) -> None:
        self.program: str | None = None
        self.calls = 0
        self.placed = False
        self.loop: str | None = None
        self.microbatch: Any = None
        self.schedule: str | None = None

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

_in_program: Any = jax.make_user_context(False)
"""Context that separates JAX's caches: outside of programs, the marks of `pw.accumulate` compute nothing."""

_schedule = jax.make_user_context(None)
"""Context that separates JAX's caches by the schedule that loops get from a program that is called."""


@contextlib.contextmanager
def inlining(schedule: str | None) -> Iterator[None]:
    """Marks that this thread traces a program that another program calls: its loops keep its schedule."""
    schedule = schedule or active_trace.schedule
    with _schedule(schedule), active_trace.set(schedule=schedule):
        yield


@contextlib.contextmanager
def tracing(program: str) -> Iterator[None]:
    """Marks that this thread traces a program, to which calls of placed functions are added meanwhile."""
    # Under `disable_jit` a new value, for which JAX has no trace of the functions in the program.
    separate = _in_program(object() if jax.config.jax_disable_jit else True)
    fresh = {"calls": 0, "placed": False, "loop": None, "schedule": None}
    with separate, active_trace.set(program=program, **fresh):
        yield
