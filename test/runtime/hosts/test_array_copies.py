"""Copies of arrays on hosts that several threads add at once."""

from __future__ import annotations

from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from pathways.runtime.hosts.client.array import Array


@pytest.mark.parametrize("loser", ["computed", "put"])
def test_array_has_the_step_of_the_copy_that_was_first(loser: str) -> None:
    """Of two copies at one location, that of a step and that of a put, the second one is freed."""
    client, location, step = mock.Mock(), mock.Mock(), mock.Mock()
    array = Array(client, jax.core.ShapedArray((2,), np.float32), {}, None)
    numbers: dict[str, tuple[int, Any]] = {"computed": (5, step), "put": (7, None)}
    (first, expected), (second, other) = sorted(numbers.values(), key=lambda own: own == numbers[loser])
    array.add_copy(location, first, expected)
    array.add_copy(location, second, other)
    client.free.assert_called_once_with(location, second)
    assert array.number_at(location) == first
    assert array.step_at(location) is expected
