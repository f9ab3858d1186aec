"""Order of launches over several devices."""

from __future__ import annotations

import threading

LAUNCH_ORDER = threading.RLock()
"""Held by a thread while it issues launches over several devices, of whatever program or client.

Two programs with collectives wait for each other for ever if one device starts the first of them first, and
another device the second. Devices start launches in the order in which they are given them; so each launch is
to be given to all of its devices before another one is. On CPU, XLA sees to that itself. On GPUs a launch is
given to each of its devices by another thread, and two launches that are issued at once may reach devices in
different orders. The lock is reentrant: a callback may run in the same thread.
"""
