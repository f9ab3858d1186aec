"""The launches in flight on a device are limited."""

import pytest

from pathways.runtime.hosts.worker.in_flight import MAX_LAUNCHES, LaunchesInFlight


class Token:
    """Token of a launch, which is done as soon as it is waited for."""

    def __init__(self, launched: list["Token"], error: str | None = None) -> None:
        self.is_done = False
        self._error = error
        launched.append(self)

    def block_until_ready(self) -> None:
        self.is_done = True
        if self._error is not None:
            raise RuntimeError(self._error)


@pytest.mark.parametrize("error", [None, "out of memory"])
def test_launches_in_flight_wait_for_the_oldest(error):
    launched: list[Token] = []
    add = LaunchesInFlight().limiter(["cpu0", "cpu1"])
    for _ in range(MAX_LAUNCHES + 3):
        add(Token(launched, error))
    assert [token.is_done for token in launched] == [True] * 3 + [False] * MAX_LAUNCHES


def test_launches_in_flight_count_by_device():
    """Slices of several programs may share devices."""
    launched: list[Token] = []
    in_flight = LaunchesInFlight()
    both, one, apart = (in_flight.limiter(devices) for devices in (["cpu0", "cpu1"], ["cpu1"], ["cpu2"]))
    for _ in range(MAX_LAUNCHES):
        both(Token(launched))
        apart(Token([]))
    assert not any(token.is_done for token in launched)
    one(Token(launched))
    assert [token.is_done for token in launched[:2]] == [True, False]
