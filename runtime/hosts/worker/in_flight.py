"""Limit on the launches in flight on each device of a worker."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

MAX_LAUNCHES = 16
"""Limit on the launches in flight on a device.

XLA accepts 32. On a slice of several devices the next launch then blocks the launching threads of all of
them, which also send the results of launches. Another host may need such a result before it can compute the
value that this host waits for: a deadlock. The limit is lower because calls beside the steps launch
computations, too.
"""


class LaunchesInFlight:
    """Launches in flight on the devices of this process, as the tokens that become ready when they are done.

    Waiting for the oldest launch before the next is issued cannot deadlock: it depends only on launches that
    are earlier in the order that all hosts share.
    """

    def __init__(self) -> None:
        self._tokens: dict[jax.Device, collections.deque[Any]] = collections.defaultdict(collections.deque)

    def limiter(self, devices: Sequence[jax.Device]) -> Callable[[Any], None]:
        """Returns a function that adds the token of a launch on some devices, and waits above the limit."""
        of_devices = [self._tokens[device] for device in devices]

        def add(token: Any) -> None:
            for tokens in of_devices:
                tokens.append(token)
                if len(tokens) > MAX_LAUNCHES:
                    # The results of a failed launch report its error.
                    with contextlib.suppress(Exception):
                        tokens.popleft().block_until_ready()

        return add
