"""Order of launches over several devices."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager

import jax

LAUNCH_ORDER = threading.RLock()
"""Lock that a thread holds while it issues launches over several devices, of any program or client.

Two launches with collectives deadlock if one device starts the first of them first, and another device the
second. A device starts launches in the order in which they are enqueued on it, so each launch must be
enqueued on all of its devices before the next one is. XLA does not guarantee that: it enqueues a launch on
each device in another thread, and two concurrent launches may reach devices in different orders. XLA then
aborts the process on CPU; on GPUs the collectives hang. The lock is reentrant: a callback may run in the same
thread.
"""


def launch_order(devices: Sequence[jax.Device]) -> AbstractContextManager[object]:
    """Returns the lock to hold while a launch is issued on some devices; a single device needs none."""
    return LAUNCH_ORDER if len(devices) > 1 else contextlib.nullcontext()
