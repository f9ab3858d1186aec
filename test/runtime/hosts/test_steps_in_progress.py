"""What a worker says of its steps."""

import time

from pathways.runtime.hosts.worker.steps_in_progress import PendingReceive, StepsInProgress
from pathways.runtime.plan.plan import Receive


def test_steps_underway_have_devices_after_the_step_before():
    underway = StepsInProgress()
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


class Late:
    """An array that has not come."""

    def __init__(self) -> None:
        self.is_there = False

    def is_ready(self) -> bool:
        return self.is_there


def receive_step(index: int) -> Receive:
    return Receive((), "s0", "s1", "c0", 0, index)


def test_steps_underway_name_host_and_address_of_awaited_arrays():
    underway, late, gone = StepsInProgress(), Late(), Late()
    asked = underway.begin("f", 1)
    asked.append(PendingReceive(receive_step(3), 2, "10.0.0.5:7001#host2.4", [late]))
    asked.append(PendingReceive(receive_step(4), 0, "10.0.0.6:7002#host0.0", [gone]))
    del gone
    assert underway.awaited() == [
        "waits for host 2 at 10.0.0.5:7001 on channel c0 (s0 -> s1, transfer 3) for 0 s",
        "may wait for host 0 at 10.0.0.6:7002 on channel c0 (s0 -> s1, transfer 4) for 0 s",
    ]
    late.is_there = True
    assert len(underway.awaited()) == 1
