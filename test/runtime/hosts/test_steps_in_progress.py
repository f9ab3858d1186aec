"""Reports of the steps in progress on a worker."""

import time

from pathways.runtime.hosts.worker.steps_in_progress import PendingReceive, StepsInProgress
from pathways.runtime.plan.plan import Receive


def test_steps_in_progress_have_devices_after_the_step_before():
    steps = StepsInProgress()
    began = time.monotonic()
    steps.begin("f", 1)
    steps.begin("f", 2)
    time.sleep(0.02)
    first = steps.done(1)
    second = steps.done(2)
    assert first >= 0.02
    # The devices have one step at a time, so that both together took no more than the time that has passed.
    assert second >= 0
    assert first + second <= time.monotonic() - began


class Late:
    """Array that has not arrived."""

    def __init__(self) -> None:
        self.has_arrived = False

    def is_ready(self) -> bool:
        return self.has_arrived


def receive_step(index: int) -> Receive:
    return Receive((), "s0", "s1", "c0", 0, index)


def test_steps_in_progress_name_host_and_address_of_awaited_arrays():
    steps, late, freed = StepsInProgress(), Late(), Late()
    receives = steps.begin("f", 1)
    receives.append(PendingReceive(receive_step(3), 2, "10.0.0.5:7001#host2.4", [late]))
    receives.append(PendingReceive(receive_step(4), 0, "10.0.0.6:7002#host0.0", [freed]))
    del freed
    assert steps.awaited() == [
        "waits for host 2 at 10.0.0.5:7001 on channel c0 (s0 -> s1, transfer 3) for 0 s",
        "may wait for host 0 at 10.0.0.6:7002 on channel c0 (s0 -> s1, transfer 4) for 0 s",
    ]
    late.has_arrived = True
    assert len(steps.awaited()) == 1
