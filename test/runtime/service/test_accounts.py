"""Accounts of clients: what counts, why steps wait, and the log of a cluster."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pathways.runtime.resources.accounts import (
    MAX_BYTES,
    AccountRecord,
    Use,
    account_table,
    summed,
    waited_text,
)
from pathways.runtime.service.protocol import account_log
from pathways.runtime.service.protocol.account_log import AccountLine, AccountLog
from pathways.runtime.service.sharing.accounts import REST, Accounts, HeldArrays, StepUse
from pathways.runtime.service.sharing.memory import DeviceLimits, SharedMemory, StepBytes
from pathways.runtime.service.sharing.scheduler import Scheduler
from pathways.runtime.service.sharing.scheduler_events import (
    ArrayArrived,
    CallFinished,
    ClientChanged,
    ClientJoined,
    ClientLeft,
    IslandLost,
    IslandStepDone,
    OrderedRequest,
    QueuedStep,
    WorkSubmitted,
)


class Sharing:
    """Scheduler whose clients have accounts; `ann` is client 0, `bob` client 1."""

    def __init__(self, islands: int = 1, ahead: int = 1, memory: SharedMemory | None = None) -> None:
        self.scheduler = Scheduler(islands, ahead, memory=memory)
        self.now = 0.0
        self._numbers = itertools.count(100)
        for number, name in enumerate(("ann", "bob")):
            self.handle(ClientJoined(number, name=name))

    def handle(self, *events: object) -> None:
        self.scheduler.handle_all(events, self.now)

    def submit(self, client: int, *islands: int, reads: int | None = None, **fields: object) -> QueuedStep:
        """Submits a step that has a result of 10 bytes on each of its islands."""
        name = ("ann", "bob")[client]
        results = {n: (next(self._numbers),) for n in islands}
        arguments = dict.fromkeys(islands, () if reads is None else (reads,))
        uses = {
            n: StepUse(self.scheduler.accounts.open(name, "train", n, self.now), (10,), 4) for n in islands
        }
        number = next(self._numbers)
        sent = frozenset() if reads is None else frozenset([reads])
        step = QueuedStep(client, number, client, arguments, results, sent, uses=uses, **fields)
        self.handle(WorkSubmitted(step))
        return step

    def finish(self, step: QueuedStep, *, took: float = 1.0, has_failed: bool = False) -> None:
        for n in step.islands:
            self.handle(IslandStepDone(step, n, took, has_failed))

    def account(self, client: str, program: str = "train", island: str = "island0") -> AccountRecord:
        records = self.scheduler.accounts.records()
        (record,) = [r for r in records if (r.client, r.program, r.island) == (client, program, island)]
        return record


def test_finished_steps_count_for_their_program() -> None:
    sharing = Sharing()
    for _ in range(2):
        sharing.finish(sharing.submit(0, 0), took=1.5)
    account = sharing.account("ann")
    assert account.use == Use(device_seconds=3.0, steps=2, last=2, result_bytes=20, moved_bytes=8)
    assert account.held_bytes == 20


def test_failed_refused_and_lost_steps_are_failures_and_hold_nothing() -> None:
    sharing = Sharing()
    sharing.finish(sharing.submit(0, 0), has_failed=True)
    sharing.submit(0, 0, reads=7)  # It waits for an array that never comes.
    sharing.handle(IslandLost(0, "killed"))
    sharing.submit(0, 0)
    account = sharing.account("ann")
    assert (account.use.steps, account.use.failures, account.use.result_bytes) == (1, 3, 0)
    assert account.held_bytes == 0


def test_held_bytes_end_with_a_free_a_loss_and_the_client() -> None:
    sharing = Sharing(islands=2)
    step = sharing.submit(0, 0, 1)
    sharing.finish(step)
    sharing.handle(WorkSubmitted(OrderedRequest(0, 0, step.results[0])))
    assert [sharing.account("ann", island=f"island{n}").held_bytes for n in range(2)] == [0, 10]
    sharing.handle(IslandLost(1, "killed"))
    assert sharing.account("ann", island="island1").held_bytes == 0
    sharing.finish(sharing.submit(1, 0))
    sharing.handle(ClientLeft(1))
    account = sharing.account("bob")
    assert (account.held_bytes, account.peak_bytes, account.use.result_bytes) == (0, 10, 10)


def test_an_array_that_is_freed_in_flight_is_made_and_never_held() -> None:
    sharing = Sharing()
    step = sharing.submit(0, 0)
    sharing.handle(WorkSubmitted(OrderedRequest(0, 0, step.results[0])))
    sharing.finish(step)
    account = sharing.account("ann")
    assert (account.use.result_bytes, account.peak_bytes) == (10, 0)


def test_arrays_that_are_sent_and_fetched_are_moved() -> None:
    sharing = Sharing()
    sharing.handle(ArrayArrived(0, 0, 0, 7, 32))
    sharing.handle(WorkSubmitted(OrderedRequest(0, 0, arguments=(7,), moved=32, context=object())))
    account = sharing.account("ann", program="")
    assert (account.use.moved_bytes, account.held_bytes) == (64, 32)


def test_results_of_calls_count_for_their_function() -> None:
    sharing = Sharing()
    use = StepUse(sharing.scheduler.accounts.open("ann", "load_batch", 0, 0.0), (6,))
    call = OrderedRequest(0, 0, results=(9,), is_call=True, name="load_batch", use=use, context=object())
    sharing.handle(WorkSubmitted(call))
    sharing.handle(CallFinished(call))
    account = sharing.account("ann", "load_batch")
    assert (account.use.steps, account.use.result_bytes, account.held_bytes) == (1, 6, 6)


# Waits.


def _own(sharing: Sharing) -> None:
    sharing.submit(0, 0)


def _share(sharing: Sharing) -> None:
    sharing.submit(1, 0)


@pytest.mark.parametrize(("why", "begin"), [("own", _own), ("share", _share)])
def test_steps_wait_for_places(why: str, begin: Callable[[Sharing], None]) -> None:
    sharing = Sharing()
    begin(sharing)
    (first,) = sharing.scheduler._places.islands[0].in_flight
    sharing.submit(0, 0)
    sharing.now = 2.0
    sharing.finish(first)
    assert sharing.account("ann").use.waited == {why: 2.0}


def test_only_the_first_step_of_a_queue_waits() -> None:
    sharing = Sharing()
    steps = [sharing.submit(0, 0) for _ in range(3)]
    for sharing.now, step in zip((1.0, 2.0), steps[:2], strict=True):
        sharing.finish(step)
    assert sharing.account("ann").use.waited == {"own": 2.0}


def test_a_step_waits_for_an_island_that_another_one_has_claimed() -> None:
    sharing = Sharing(islands=2, ahead=2)
    # Steps of ann take longer than the claim lasts.
    sharing.finish(sharing.submit(0, 0), took=6.0)
    sharing.finish(sharing.submit(1, 1), took=5.0)
    busy = sharing.submit(1, 1)
    both = sharing.submit(1, 0, 1)
    later = sharing.submit(0, 0)
    assert not both.is_issued
    assert not later.is_issued
    sharing.now = 3.0
    sharing.finish(busy, took=3.0)
    assert both.is_issued
    assert later.is_issued
    # Half of it on each island.
    assert sharing.account("bob").use.waited == {"claim": 1.5}
    assert sharing.account("bob", island="island1").use.waited == {"claim": 1.5}
    assert sharing.account("ann").use.waited == {"claim": 3.0}


def test_a_step_waits_for_data() -> None:
    sharing = Sharing()
    sharing.submit(0, 0, reads=7)
    sharing.now = 1.5
    sharing.handle(ArrayArrived(0, 0, 0, 7))
    assert sharing.account("ann").use.waited == {"data": 1.5}


def test_a_step_waits_while_its_client_is_suspended() -> None:
    sharing = Sharing()
    sharing.handle(ClientChanged(0, 1.0, 0, True))
    sharing.submit(0, 0)
    sharing.now = 1.0
    sharing.handle(ClientChanged(0, 1.0, 0, False))
    assert sharing.account("ann").use.waited == {"suspended": 1.0}


def test_a_step_waits_for_memory_of_the_pool() -> None:
    memory = SharedMemory([DeviceLimits(120, 20)])
    sharing = Sharing(ahead=4, memory=memory)
    need = {0: StepBytes((), ((0, 15),), ((),))}
    # Then the time of its steps is known.
    sharing.finish(sharing.submit(0, 0, memory=need))
    first, second = (sharing.submit(0, 0, memory=need) for _ in range(2))
    sharing.now = 1.0
    sharing.finish(first)
    assert second.is_issued
    assert sharing.account("ann").use.waited == {"pool": 1.0}


def test_a_step_waits_for_memory_of_the_quota() -> None:
    memory = SharedMemory([DeviceLimits(120, 20)], {"ann": 100})
    sharing = Sharing(ahead=4, memory=memory)
    need = {0: StepBytes(((0, 60),), (), (((0, 60),),))}
    first, second = (sharing.submit(0, 0, memory=need) for _ in range(2))
    # Freed behind the step that waits: the scheduler frees it early.
    sharing.handle(WorkSubmitted(OrderedRequest(0, 0, first.results[0], context=object())))
    sharing.now = 1.0
    sharing.finish(first)
    assert second.is_issued
    assert sharing.account("ann").use.waited == {"quota": 1.0}


# Accounts above the limit.


def test_old_accounts_are_added_to_others_and_nothing_is_lost() -> None:
    accounts = Accounts(most=8)
    uses = []
    for n in range(40):
        use = StepUse(accounts.open(f"client{n % 5}", f"program{n}", 0, float(n)), (3,))
        use.count_end(1.0, float(n))
        uses.append(use)
    held = HeldArrays()
    # An account that was added to another one still counts there.
    held.add(1, uses[0].account, 5)
    uses[0].count_end(1.0, 50.0)
    records = accounts.records()
    assert len(records) <= 8
    assert sum(record.use.steps for record in records) == 41
    assert sum(record.held_bytes for record in records) == 5
    assert {record.program for record in records if record.client == REST} <= {REST}
    assert "program39" in {record.program for record in records}
    held.free_all()
    assert sum(record.held_bytes for record in accounts.records()) == 0


def test_a_client_with_very_many_programs_takes_no_room_from_others() -> None:
    accounts = Accounts(most=16)
    for n in range(8):
        accounts.open(f"client{n}", "train", 0, float(n))
    for n in range(100):
        StepUse(accounts.open("ann", f"program{n}", 0, 10.0 + n)).count_end(1.0, 10.0 + n)
    records = accounts.records()
    assert sum(record.program == "train" for record in records) == 8
    assert sum(record.use.steps for record in records if record.client == "ann") == 100
    assert len(records) <= 13


def test_changes_add_up_to_the_accounts_although_some_were_added_to_others() -> None:
    accounts = Accounts(most=3)
    total = Use()
    for n in range(12):
        StepUse(accounts.open("ann", f"program{n}", 0, float(n)), (3,)).count_end(0.5, float(n))
        if n % 2:
            for record in accounts.take_changes():
                total.add(record.use)
    assert accounts.take_changes() == ()
    (whole,) = summed(accounts.records(), ())
    assert whole.use == total == Use(device_seconds=6.0, steps=12, last=12, result_bytes=36)


def test_sizes_that_clients_invent_can_be_encoded() -> None:
    accounts = Accounts()
    for n in range(4):
        use = StepUse(accounts.open("ann", f"program{n}", 0, 0.0), (1 << 62,) * 3, 1 << 63)
        use.count_end(1.0, 0.0)
        HeldArrays().add(n, use.account, 1 << 64)
    assert len(msgspec.json.encode(summed(accounts.records(), ()))) > 0
    assert len(msgspec.msgpack.encode(accounts.take_changes())) > 0
    (whole,) = summed(accounts.records(), ())
    assert whole.use.moved_bytes == whole.held_bytes == MAX_BYTES


# Tables.


def test_the_table_sums_over_other_keys() -> None:
    records = [
        AccountRecord("ann", "train", "island0", Use(1.5, 3, 0, waited={"share": 1.0}), 1024, 1024),
        AccountRecord("ann", "train", "island1", Use(0.0, 3, 3)),
        AccountRecord("ann", "", "island0", Use(moved_bytes=2048), 512, 512),
        AccountRecord("bob", "eval", "island1", Use(4.0, 1, 1, failures=1)),
    ]
    assert account_table(records, ("client",)).splitlines() == [
        "  client  device time  steps  failures  made  held     moved  waited",
        "  bob     4 s          1      1         0 B   0 B      0 B    -",
        "  ann     1.5 s        3      0         0 B   1.5 KiB  2 KiB  1 s (share 1 s)",
    ]
    assert account_table([]) == "no client has used an island"


def test_waits_are_shown_with_the_longest_first() -> None:
    assert waited_text({"data": 0.5, "share": 1.0, "pool": 0.0}) == "1.5 s (share 1 s, data 500 ms)"


# The log.


@pytest.fixture
def changes() -> list[list[AccountRecord]]:
    return [[AccountRecord("ann", "train", "island0", Use(float(n), n))] for n in range(3, 0, -1)]


def _take(changes: list[list[AccountRecord]]) -> Callable[[], list[AccountRecord]]:
    return lambda: changes.pop() if changes else []


def _lines(file: Path) -> list[AccountLine]:
    return [msgspec.json.decode(line, type=AccountLine) for line in file.read_bytes().splitlines()]


def test_the_log_has_a_line_for_each_account_that_has_changed(
    tmp_path: Path, changes: list[list[AccountRecord]]
) -> None:
    file = tmp_path / "accounts.jsonl"
    with AccountLog(file, _take(changes), seconds=0.01):
        deadline = time.monotonic() + 30
        while changes:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    lines = _lines(file)
    assert [line.account.use.steps for line in lines] == [1, 2, 3]
    assert all(before.until <= after.since for before, after in itertools.pairwise(lines))


def test_the_log_has_the_last_changes_when_it_ends(
    tmp_path: Path, changes: list[list[AccountRecord]]
) -> None:
    file = tmp_path / "accounts.jsonl"
    with AccountLog(file, _take(changes), seconds=3600):
        pass
    assert [line.account.use.steps for line in _lines(file)] == [1]


def test_full_files_are_renamed_and_the_oldest_ones_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_log, "MAX_BYTES", 1000)
    file = tmp_path / "accounts.jsonl"
    records = [AccountRecord("ann", f"program{n}", "island0", Use(1.0, n)) for n in range(100)]
    with AccountLog(file, _take([records]), seconds=3600):
        pass
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["accounts.jsonl", *(f"accounts.jsonl.{n}" for n in range(1, 5))]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert _lines(file)[-1].account.use.steps == 99


def test_lines_that_cannot_be_written_are_written_later(
    tmp_path: Path, changes: list[list[AccountRecord]], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cluster"
    with (
        caplog.at_level(logging.WARNING, "pathways"),
        AccountLog(folder / "accounts.jsonl", _take(changes), seconds=0.01),
    ):
        deadline = time.monotonic() + 30
        while not caplog.records or changes:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        folder.mkdir()
    assert [line.account.use.steps for line in _lines(folder / "accounts.jsonl")] == [1, 2, 3]
    assert "the accounts are written later" in caplog.text
