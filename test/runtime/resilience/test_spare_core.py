"""Decisions about spare workers, in random histories and one rule at a time; no process runs here."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from pathways.runtime.resilience.spares import spare_core
from pathways.runtime.resilience.spares.spare_core import (
    MAX_FAILURES,
    PAUSES,
    QUIET_SECONDS,
    STEADY_SECONDS,
    WARM_SECONDS,
    KillSpare,
    LogSpares,
    PoolClosed,
    SpareCore,
    SpareEffect,
    SpareEvent,
    SpareFailed,
    SpareReady,
    SpareTick,
    SpareUnfit,
    StartBegan,
    StartEnded,
    StartSpare,
)


class Spares:
    """Pool whose processes are numbers, which checks each decision.

    Args:
      count: number of spares.

    Attributes:
      core: the core that decides.
      alive: the spare processes, and whether each is ready.
      taken: the processes that were taken.
      log: the lines that were logged.
    """

    def __init__(self, count: int) -> None:
        self.core = SpareCore(count)
        self.now = 0.0
        self.alive: dict[int, bool] = {}
        self.taken: set[int] = set()
        self._born: dict[int, float] = {}
        self.log: list[str] = []
        self.starts = 0
        self.failed_at = float("-inf")
        self.failures = 0
        self.quiet_from = float("inf")
        self.is_closed = False

    def handle(self, *events: SpareEvent) -> Sequence[SpareEffect]:
        """Passes events to the core, and carries out the effects."""
        effects = [effect for event in events for effect in self.core.handle(event, self.now)]
        for effect in effects:
            match effect:
                case StartSpare(number):
                    self._check_start(number)
                    self.alive[number] = False
                    self._born[number] = self.now
                case KillSpare(number):
                    assert number in self.alive, "it kills a process that is no spare"
                    del self.alive[number]
                case LogSpares(_, text):
                    self.log.append(text)
        assert self.core.ready == sum(self.alive.values())
        return effects

    def _check_start(self, number: int) -> None:
        assert number not in self.alive | dict.fromkeys(self.taken), "two spares have one number"
        assert not self.is_closed, "it starts one after the end"
        assert not self.starts, "it starts one beside workers of an island"
        assert self.now >= self.quiet_from, "it starts one right after workers of an island"
        assert len(self.alive) < self.core.count, "it starts too many"
        assert all(self.alive.values()), "it starts two at the same time"
        assert self.failures < MAX_FAILURES, "it does not give up"
        pause = PAUSES[self.failures - 1] if self.failures else 0.0
        assert self.now >= self.failed_at + pause, "it starts one too soon after a failure"

    def start_island(self, *, seconds: float = 0.0) -> None:
        """Starts workers of an island."""
        self.begin()
        self.pass_time(seconds)
        self.end()

    def begin(self) -> None:
        self.starts += 1
        self.handle(StartBegan())

    def end(self) -> None:
        self.starts -= 1
        self.quiet_from = self.now + QUIET_SECONDS
        self.handle(StartEnded())

    def pass_time(self, seconds: float) -> None:
        """Advances the time, with ticks."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + max(0.25, seconds / 40))
            before = {number for number, is_ready in self.alive.items() if not is_ready}
            self.handle(SpareTick())
            if before - self.alive.keys():
                self._count_failure(0.0)

    def get_ready(self, number: int) -> None:
        self.alive[number] = True
        self.handle(SpareReady(number))

    def exit(self, number: int) -> None:
        """Ends the process of a spare."""
        del self.alive[number]
        self._count_failure(self.now - self._born[number])
        self.handle(SpareFailed(number, "a spare worker exited (killed by signal 9)"))

    def _count_failure(self, lived: float) -> None:
        self.failures = 1 if lived >= STEADY_SECONDS else self.failures + 1
        self.failed_at = self.now

    def take(self, *, fits: bool = True) -> int | None:
        """Takes a spare for a worker."""
        number = self.core.take()
        if number is None:
            assert not self.alive, "it has one, and returns none"
            return None
        assert number in self.alive, "it returns a process that is no spare"
        assert self.alive[number] or not any(self.alive.values()), "it returns one that is not ready"
        self.failures = 0
        if not fits:
            self.handle(SpareUnfit(number, "XLA_FLAGS changed"))
            return None
        del self.alive[number]
        self.taken.add(number)
        self.handle(SpareReady(number), SpareFailed(number, "a spare worker exited (exit code 0)"))
        return number

    def close(self) -> None:
        self.is_closed = True
        self.handle(PoolClosed())
        assert not self.alive, "it leaves one behind"

    def settle(self) -> None:
        """Makes all starting spares ready, until there are no more starts."""
        for _ in range(4 * self.core.count):
            self.pass_time(max(PAUSES) / 2)
            for number in [number for number, is_ready in self.alive.items() if not is_ready]:
                self.get_ready(number)


def play(seed: int) -> None:
    """Plays a random history."""
    chance = random.Random(seed)
    spares = Spares(chance.randint(1, 3))
    spares.start_island(seconds=chance.uniform(0, 5))
    is_deadly = chance.random() < 0.3
    for _ in range(60):
        waiting = [number for number, is_ready in spares.alive.items() if not is_ready]
        act = chance.random()
        if act < 0.35:
            spares.pass_time(chance.choice((0.25, 1.0, 3.0, 30.0, 200.0)))
        elif act < 0.55 and waiting:
            spares.get_ready(chance.choice(waiting))
        elif act < (0.85 if is_deadly else 0.6) and spares.alive:
            spares.exit(chance.choice([*spares.alive]))
        elif act < 0.9:
            if chance.random() < 0.5 or spares.starts:
                (spares.end if spares.starts else spares.begin)()
            spares.take(fits=chance.random() < 0.8)
        elif not spares.starts:
            spares.begin()
    while spares.starts:
        spares.end()
    spares.settle()
    assert spares.core.ready == spares.core.count or spares.core.problem is not None, "it does not refill"
    assert (spares.core.problem is None) == (spares.failures < MAX_FAILURES), "it gives up too soon"
    spares.close()
    spares.start_island()
    spares.pass_time(300)


def play_many(count: int) -> None:
    for seed in range(count):
        play(seed)


def test_spare_core_random_histories():
    play_many(150)


def starts_beside_islands(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SpareCore, "_starts", property(lambda self: 0, lambda self, value: None), raising=False)


def starts_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spare_core, "QUIET_SECONDS", 0.0)


def never_pauses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spare_core, "PAUSES", (0.0,) * len(PAUSES))


def never_gives_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spare_core, "MAX_FAILURES", MAX_FAILURES + 1)
    patch.setattr(spare_core, "PAUSES", (*PAUSES, PAUSES[-1]))


def gives_up_after_a_steady_life(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spare_core, "STEADY_SECONDS", 1e9)


def takes_the_first(patch: pytest.MonkeyPatch) -> None:
    def take(self: SpareCore) -> int | None:
        self._failures = 0
        number = min(self._warming | self._ready, default=None)
        if number is not None:
            self._remove(number)
        return number

    patch.setattr(SpareCore, "take", take)


def never_kills_late_ones(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SpareCore, "_check_warming", lambda self, now: self._warming.clear() or [])


def refills_when_closed(patch: pytest.MonkeyPatch) -> None:
    handle = SpareCore.handle

    def reopened(self: SpareCore, event: SpareEvent, now: float) -> Sequence[SpareEffect]:
        effects = handle(self, event, now)
        self._is_closed = False
        return effects

    patch.setattr(SpareCore, "handle", reopened)


@pytest.mark.parametrize(
    "plant",
    [
        starts_beside_islands,
        starts_at_once,
        never_pauses,
        never_gives_up,
        gives_up_after_a_steady_life,
        takes_the_first,
        never_kills_late_ones,
        refills_when_closed,
    ],
)
def test_spare_core_histories_find_a_fault(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch):
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        play_many(300)


def test_spare_core_waits_for_the_first_start():
    spares = Spares(2)
    spares.pass_time(60)
    assert not spares.alive
    spares.start_island(seconds=3)
    spares.settle()
    assert spares.core.ready == 2


def test_spare_core_uses_one_that_is_warming():
    spares = Spares(1)
    spares.start_island()
    spares.pass_time(QUIET_SECONDS)
    assert spares.core.ready == 0
    assert spares.take() == 1
    assert spares.take() is None


def test_spare_core_kills_one_that_does_not_get_ready():
    spares = Spares(1)
    spares.start_island()
    for seconds in (QUIET_SECONDS, WARM_SECONDS, 1.0):
        spares.pass_time(seconds)
    assert spares.log == ["a spare worker was not ready within 120 seconds; another one starts after 1 s"]


def test_spare_core_gives_up():
    spares = Spares(1)
    spares.start_island()
    while spares.core.problem is None:
        spares.pass_time(max(PAUSES))
        (number,) = spares.alive
        spares.exit(number)
    assert spares.core.problem == (
        "a spare worker exited (killed by signal 9), the last of 5 that failed in a row; no more are started"
    )
    spares.settle()
    assert not spares.alive


def test_spare_core_replaces_one_that_does_not_fit():
    spares = Spares(1)
    spares.start_island()
    spares.settle()
    assert spares.take(fits=False) is None
    assert spares.log == ["a spare worker is not used: XLA_FLAGS changed; a new worker starts"]
    spares.settle()
    assert spares.take() == 2
