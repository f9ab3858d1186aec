"""What a worker says of its steps."""

import time

from pathways.runtime.hosts.worker.underway import StepsUnderway


def test_a_step_has_the_devices_from_the_end_of_the_one_before():
    underway = StepsUnderway()
    began = time.monotonic()
    underway.begin("f", 1)
    underway.begin("f", 2)
    time.sleep(0.02)
    first = underway.done(1)
    second = underway.done(2)
    assert first >= 0.02
    # Both together are no longer than what has passed.
    assert second >= 0
    assert first + second <= time.monotonic() - began
