"""Steps that run for too long and programs that crash workers, in a simulated time."""

from __future__ import annotations

import pytest

from pathways.runtime.control.core import Limits
from pathways.runtime.control.effects import GangLost, TerminateGang
from pathways.runtime.control.gang import MAX_RESTARTS
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.events import GangKey, GangStarted, GangTerminated, HostLost, Tick
from pathways.runtime.control.records.step import SESSION_BITS
from pathways.runtime.service.sharing.program_charges import ProgramCharges, ProgramIdentity
from pathways.runtime.service.sharing.scheduler_events import (
    ClientJoined,
    ClientLeft,
    IslandStepDone,
    IssueStep,
    OrderedRequest,
    QueuedStep,
    RefuseStep,
    WorkSubmitted,
)
from pathways.runtime.service.sharing.service_core import ServiceCore

ANN, BO = 1, 2
NAMES = {ANN: "ann", BO: "bo"}


class Neighbours:
    """Two clients on two islands of one host each; a step of ann may run for five seconds."""

    def __init__(self) -> None:
        self.core = ServiceCore([[0], [1]], Limits(), 0.0)
        self.core.schedule([ClientJoined(ANN, step_limit=5.0), ClientJoined(BO)], 0.0)
        self._last = 0
        # Programs that have run before may have several steps in flight.
        for client in (ANN, BO):
            self.finish(self.submit(client, 0.0, islands=(0, 1)), 0.0)

    def submit(
        self, client: int, now: float, islands: tuple[int, ...] = (0,), digest: str = "f"
    ) -> QueuedStep:
        """Submits a step, which is issued at once."""
        step = self.step(client, islands, digest)
        assert IssueStep(step) in self.core.schedule([WorkSubmitted(step)], now)
        return step

    def step(self, client: int, islands: tuple[int, ...] = (0,), digest: str = "f") -> QueuedStep:
        self._last += 1
        none = dict.fromkeys(islands, ())
        return QueuedStep(
            client,
            client << SESSION_BITS | self._last,
            1,
            none,
            none,
            starts={island: self.core.gangs[island].key.start for island in islands},
            program="f",
            hosts=islands,
            identity=ProgramIdentity(NAMES[client], digest),
        )

    def finish(self, step: QueuedStep, now: float) -> None:
        """Reports that all hosts are done with a step."""
        for island in step.islands:
            self.core.done(self.core.gangs[island], island, step.number, now)
        self.core.schedule([IslandStepDone(step, island, 1e-3) for island in step.islands], now)

    def tick(self, now: float) -> list[GangKey]:
        """Advances the time; returns the workers that are terminated."""
        # Hosts that compute still respond.
        for gang in self.core.gangs:
            for pulse in gang.pulses.values():
                pulse.heard = now
        return [effect.gang for effect in self.core.handle(Tick(), now) if isinstance(effect, TerminateGang)]

    def crash(self, now: float, *, is_crash: bool = True) -> str:
        """Has the process of island0 exit; returns why it is lost."""
        event = HostLost(self.core.gangs[0].key, 0, "its process has ended", is_crash=is_crash)
        (loss,) = [effect for effect in self.core.handle(event, now) if isinstance(effect, GangLost)]
        return loss.why.text

    def restart(self, now: float) -> bool:
        """Restarts island0; returns whether it is not given up."""
        key = self.core.gangs[0].key
        self.core.handle(GangTerminated(key), now)
        if self.core.gangs[0].is_dead():
            return False
        self.core.handle(GangStarted(key), now)
        return True

    def refusal(self, client: int, digest: str = "f") -> str | None:
        """Submits a step on island0; returns why it is refused."""
        step = self.step(client, digest=digest)
        effects = self.core.schedule([WorkSubmitted(step)], 0.0)
        return next((effect.why for effect in effects if isinstance(effect, RefuseStep)), None)


def test_step_limit_ends_a_step_that_runs_for_longer():
    two = Neighbours()
    step = two.submit(ANN, 1.0)
    assert two.tick(1.0) == []
    assert two.tick(6.0) == []
    assert two.tick(6.1) == [GangKey(0, 0)]
    with pytest.raises(HostError) as caught:
        step.check()
    why = "step 3 of program f of client 'ann' ran for longer than its step_limit of 5 s"
    # In a process with JAX the text begins with a status.
    assert str(caught.value).endswith(f"program f: host 0 (island0) is lost: {why}")
    # Steps on the other island, and of clients without a limit, go on.
    assert two.restart(7.0)
    other = two.submit(BO, 7.0)
    for now in (7.0, 100.0):
        assert two.tick(now) == []
    other.check()


def test_step_limit_does_not_count_the_time_behind_another_step():
    two = Neighbours()
    first = two.submit(BO, 0.0)
    two.submit(ANN, 0.0)
    assert two.tick(0.0) == []
    assert two.tick(20.0) == []
    two.finish(first, 20.0)
    assert two.tick(20.1) == []
    assert two.tick(25.0) == []
    assert two.tick(25.2) == [GangKey(0, 0)]


def test_step_limit_ends_the_islands_where_the_step_still_runs():
    two = Neighbours()
    step = two.submit(ANN, 0.0, (0, 1))
    assert two.tick(0.0) == []
    two.core.done(two.core.gangs[0], 0, step.number, 1.0)
    two.core.schedule([IslandStepDone(step, 0, 1.0)], 1.0)
    two.submit(BO, 1.0)
    assert two.tick(5.1) == [GangKey(1, 0)]
    both = Neighbours()
    both.submit(ANN, 0.0, (0, 1))
    both.tick(0.0)
    assert both.tick(5.1) == [GangKey(0, 0), GangKey(1, 0)]


def test_step_limit_holds_after_the_client_has_left():
    two = Neighbours()
    two.submit(ANN, 0.0)
    two.core.schedule([ClientLeft(ANN)], 1.0)
    assert two.tick(1.0) == []
    assert two.tick(6.1) == [GangKey(0, 0)]


def test_program_that_has_ended_an_island_twice_is_refused_there():
    """Once by its step_limit, once by a crash."""
    two = Neighbours()
    two.submit(ANN, 0.0)
    two.tick(0.0)
    assert two.tick(5.1) == [GangKey(0, 0)]
    two.restart(6.0)
    assert two.refusal(ANN) is None
    two.crash(6.0)
    two.restart(7.0)
    assert two.refusal(ANN) == (
        "program 'f' of client 'ann' has ended island0 twice: "
        "it is not run there again (until pw-cluster down)"
    )
    # Neither its other programs, nor the same one of another client, nor the same one elsewhere.
    assert two.refusal(ANN, "g") is None
    assert two.refusal(BO) is None
    two.submit(ANN, 7.0, (1,))


def test_program_is_not_charged_with_losses_from_outside():
    """SIGKILL is no crash; a step that waits behind another one, or beside a call, may be innocent."""
    two = Neighbours()
    for _ in range(3):
        two.submit(ANN, 0.0)
        two.crash(0.0, is_crash=False)
        two.finish(two.submit(ANN, 0.0, (1,)), 0.0)
        two.restart(200.0)
    for _ in range(2):
        two.submit(BO, 0.0)
        two.submit(ANN, 0.0)
        two.crash(0.0)
        two.restart(0.0)
    for _ in range(2):
        call = OrderedRequest(BO, 0, is_call=True, number=BO << SESSION_BITS | 1000, name="c", hosts=(0,))
        two.submit(ANN, 0.0)
        two.core.schedule([WorkSubmitted(call)], 0.0)
        two.crash(0.0)
        two.restart(200.0)
    assert two.refusal(ANN) is None
    assert two.refusal(BO) is not None


@pytest.mark.parametrize("is_crash", [True, False])
def test_charged_losses_never_give_an_island_up(is_crash):
    """Each program is another one, and none finishes a step; losses without a charge are limited."""
    two, losses = Neighbours(), 0
    two.crash(0.0, is_crash=False)
    two.restart(0.0)
    while losses < 3 * MAX_RESTARTS:
        two.submit(ANN, 0.0, digest=f"program {losses}")
        two.crash(0.0, is_crash=is_crash)
        losses += 1
        if not two.restart(0.0):
            break
    assert losses == (3 * MAX_RESTARTS if is_crash else MAX_RESTARTS)


def test_charges_remember_a_limited_number_of_programs():
    charges = ProgramCharges()
    first, last = ProgramIdentity("ann", "0"), ProgramIdentity("ann", "1001")
    for n in range(1002):
        for _ in range(2):
            charges.add(ProgramIdentity("ann", str(n)), 0)
    assert charges.refusal(first, "f", [0]) is None
    assert charges.refusal(last, "f", [1]) is None
    assert charges.refusal(last, "f", [1, 0]) is not None
