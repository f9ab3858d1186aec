"""Independent model of the accounts of simulated clients, see `simulated_sharing`."""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Iterable, Mapping

from pathways.runtime.resources.accounts import Use
from pathways.runtime.service.sharing.accounts import REST, Accounts, StepUse
from pathways.runtime.service.sharing.scheduler_events import OrderedRequest, QueuedStep


class SimulatedAccounts:
    """Use of islands by clients, as the islands and clients themselves know it.

    Args:
      accounts: the accounts to check.
    """

    def __init__(self, chance: random.Random, accounts: Accounts) -> None:
        self._chance = chance
        self._accounts = accounts
        self._use: dict[str, Use] = collections.defaultdict(Use)
        self._sizes: dict[int, int] = {}
        # The arrays that are computed or have arrived, by islands and numbers, with their clients.
        self._held: dict[tuple[int, int], int] = {}
        self._since: dict[QueuedStep, float] = {}
        self._waited: dict[str, float] = collections.defaultdict(float)

    def uses(
        self, client: int, program: int, results: Mapping[int, tuple[int, ...]], now: float
    ) -> dict[int, StepUse]:
        """Returns the use of islands by a new step."""
        uses = {}
        for n, own in results.items():
            sizes = tuple(self.new_size(array) for array in own)
            account = self._accounts.open(str(client), f"program{program}", n, now)
            uses[n] = StepUse(account, sizes, self._chance.choice([0, 5]))
        return uses

    def new_size(self, array: int) -> int:
        """Returns the bytes of a new array."""
        size = self._sizes[array] = self._chance.randint(1, 100)
        return size

    def follow(self, firsts: Iterable[QueuedStep], now: float) -> None:
        """Notes which steps are first in all their queues now; all others do not wait."""
        current = set(firsts)
        for step in self._since.keys() - current:
            self._waited[str(step.client)] += now - self._since.pop(step)
        for step in current - self._since.keys():
            self._since[step] = now

    def finish(
        self,
        step: QueuedStep,
        island: int,
        took: float,
        existing: set[int],
        *,
        has_failed: bool,
        is_last: bool,
    ) -> None:
        """Notes that a step is done on an island; `existing` are the arrays that its client has not freed."""
        use = self._use[str(step.client)]
        use.device_seconds += took
        use.last += is_last
        use.failures += has_failed
        use.moved_bytes += 0 if has_failed else step.uses[island].moved
        for array in step.donates.get(island, ()):
            self._held.pop((island, array), None)
        self._make(step.client, island, () if has_failed else step.results[island], existing)

    def end_call(self, call: OrderedRequest, existing: set[int]) -> None:
        """Notes that a call has ended."""
        assert call.use is not None
        self._use[str(call.client)].moved_bytes += call.use.moved
        self._use[str(call.client)].last += 1
        self._make(call.client, call.island, call.results, existing)

    def _make(self, client: int, island: int, results: Iterable[int], existing: set[int]) -> None:
        use = self._use[str(client)]
        use.steps += 1
        for array in results:
            use.result_bytes += self._sizes[array]
            if array in existing:
                self._held[island, array] = client

    def fail(self, step: QueuedStep, islands: Iterable[int]) -> None:
        """Notes that a step was refused, or was lost with an island."""
        self._use[str(step.client)].failures += len([*islands])

    def arrive(self, client: int, island: int, array: int, *, is_kept: bool) -> None:
        """Notes that an array has arrived."""
        if is_kept:
            self._use[str(client)].moved_bytes += self._sizes[array]
            self._held[island, array] = client

    def fetch(self, client: int, count: int) -> None:
        """Notes that a client has fetched some bytes."""
        self._use[str(client)].moved_bytes += count

    def free(self, island: int, arrays: Iterable[int]) -> None:
        """Notes that arrays were freed."""
        for array in arrays:
            self._held.pop((island, array), None)

    def lose(self, island: int) -> None:
        """Notes that an island is lost with all its arrays."""
        self._held = {key: client for key, client in self._held.items() if key[0] != island}

    def leave(self, client: int) -> None:
        """Notes that a client has left."""
        self._held = {key: owner for key, owner in self._held.items() if owner != client}

    def check(self) -> None:
        """Checks the accounts of each client; of all together if some were added to others."""
        records = self._accounts.records()
        is_whole = all(REST not in (record.client, record.program) for record in records)
        found: dict[str, Use] = collections.defaultdict(Use)
        held: collections.Counter[str] = collections.Counter()
        for record in records:
            name = record.client if is_whole else ""
            found[name].add(record.use)
            held[name] += record.held_bytes
            assert 0 <= record.held_bytes <= record.peak_bytes, record
        expected: dict[str, Use] = collections.defaultdict(Use)
        expected_held: collections.Counter[str] = collections.Counter()
        waited: dict[str, float] = collections.defaultdict(float)
        for name, use in self._use.items():
            expected[name if is_whole else ""].add(use)
        for (_, array), client in self._held.items():
            expected_held[str(client) if is_whole else ""] += self._sizes[array]
        for name, seconds in self._waited.items():
            waited[name if is_whole else ""] += seconds
        assert +held == +expected_held, f"{held} bytes are held by the accounts, {expected_held} by clients"
        for name in found.keys() | expected.keys():
            has, had = found[name], expected[name]
            total = sum(has.waited.values())
            assert math.isclose(total, waited[name], abs_tol=1e-9), f"client {name} waited {waited[name]}"
            assert math.isclose(has.device_seconds, had.device_seconds, abs_tol=1e-9), (name, has, had)
            has.waited, has.device_seconds = {}, had.device_seconds
            assert has == had, f"client {name} has {has} in its accounts, and had {had}"
