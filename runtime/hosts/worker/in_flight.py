"""Limit on the launches that devices of a worker have at once."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

MOST_LAUNCHES = 16
"""How many launches a device has at most that are not done.

XLA takes 32. On a slice of several devices the next one then blocks the threads that launch on each of
them, and these also send what launches have made: what this host waits for may be computed on another one
from something that is never sent. What is called beside steps counts there, too, hence the distance.
"""


class LaunchesInFlight:
    """The launches that devices have, each by the token that tells when it is done.

    To wait for the oldest one before the next is made cannot block for ever: it needs only what comes earlier
    in the order that all hosts share.
    """

    def __init__(self) -> None:
        self._tokens: dict[jax.Device, collections.deque[Any]] = collections.defaultdict(collections.deque)

    def keeper(self, devices: Sequence[jax.Device]) -> Callable[[Any], None]:
        """Makes a function that takes the token of each launch on some devices, and waits above the limit."""
        of_devices = [self._tokens[device] for device in devices]

        def keep(token: Any) -> None:
            for tokens in of_devices:
                tokens.append(token)
                if len(tokens) > MOST_LAUNCHES:
                    # What is wrong with a launch, its results say.
                    with contextlib.suppress(Exception):
                        tokens.popleft().block_until_ready()

        return keep
