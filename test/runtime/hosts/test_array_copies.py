"""Copies of arrays on hosts that several threads add at once, or that Ctrl-C interrupts."""

from __future__ import annotations

import signal
import sys
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from pathways.runtime.control.records.pending_frees import PendingFrees
from pathways.runtime.hosts.client.array import Array


@pytest.mark.parametrize("loser", ["computed", "put"])
def test_array_has_the_step_of_the_copy_that_was_first(loser: str) -> None:
    """Of two copies at one location, that of a step and that of a put, the second one is freed."""
    client, location, step = mock.Mock(), mock.Mock(), mock.Mock()
    array = Array(client, jax.core.ShapedArray((2,), np.float32))
    numbers: dict[str, tuple[int, Any]] = {"computed": (5, step), "put": (7, None)}
    (first, expected), (second, other) = sorted(numbers.values(), key=lambda own: own == numbers[loser])
    array.add_copy(location, first, expected)
    array.add_copy(location, second, other)
    location.unused.add.assert_called_once_with(second)
    assert array.number_at(location) == first
    assert array.step_at(location) is expected


def test_array_frees_a_copy_whose_put_was_interrupted() -> None:
    """Ctrl-C comes before each line of `put` in turn: the host's copy is freed, once."""
    file = Array.put.__code__.co_filename
    interrupted = True
    line = 0
    while interrupted:
        unused: PendingFrees[int] = PendingFrees()
        client, location = mock.Mock(), mock.Mock()
        location.unused = unused
        client.take_numbers.return_value = 5
        array = Array(client, jax.core.ShapedArray((2,), np.float32))
        left = line

        def trace(frame: Any, event: str, argument: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename != file:
                return None
            if event == "line":
                left -= 1
                if left == -1:
                    signal.raise_signal(signal.SIGINT)
            return trace

        try:
            sys.settrace(trace)
            array.put(location, np.zeros(2, np.float32))
            interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        del array
        # A number that was taken may be freed although nothing was sent.
        expected = ((5,),) if client.put.called else ((), (5,))
        assert unused.take_all() in expected, f"interrupted at line {line} of the put"
        line += 1
    assert line > 5
