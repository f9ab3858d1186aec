"""Order of launches over several devices."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager

import jax

LAUNCH_ORDER = threading.RLock()
"""Held by a thread while it issues launches over several devices, of whatever program or client.

Two programs with collectives wait for each other for ever if one device starts the first of them first, and
another device the second. Devices start launches in the order in which they are given them; so each launch is
to be given to all of its devices before another one is. XLA does not see to that: it gives a launch to each
device by another thread, and two that are issued at once may reach devices in different orders. On CPU, XLA
ends the process then, on GPUs collectives hang. The lock is reentrant: a callback may run in the same thread.
"""


def launch_order(devices: Sequence[jax.Device]) -> AbstractContextManager[object]:
    """Returns what is held while one launch is issued on some devices: nothing for a single one."""
    return LAUNCH_ORDER if len(devices) > 1 else contextlib.nullcontext()
