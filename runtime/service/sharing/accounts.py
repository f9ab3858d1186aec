"""Accounts of clients: use of each island by the steps of each of their programs.

They are kept when clients have left, up to a number: then accounts that were not used for long are added to
one of other programs of their client, and later to one of other clients, so that no use is lost.

No method waits or reads a clock.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import NamedTuple

from pathways.runtime.resources.accounts import MAX_BYTES, REST, AccountRecord, Use, Wait

MAX_ACCOUNTS = 4096
"""Number of accounts above which some are added to others."""


class Account:
    """Use of an island by a program of a client.

    Attributes:
      new: the use since the last `Accounts.take_changes`.
      total: the use before it.
      held: the bytes of its arrays.
      peak: the most bytes of them at a time.
      used: the time of its last use.
    """

    __slots__ = ("_heir", "client", "held", "island", "new", "peak", "program", "total", "used")

    def __init__(self, client: str, program: str, island: int) -> None:
        self.client = client
        self.program = program
        self.island = island
        self.new = Use()
        self.total = Use()
        self.held = 0
        self.peak = 0
        self.used = 0.0
        self._heir: Account | None = None

    def current(self) -> Account:
        """Returns the account that counts: itself, or the one that it was added to."""
        account = self
        while account._heir is not None:
            account = account._heir
        return account

    def add_to(self, heir: Account) -> None:
        """Adds this account to another one, which counts from now on."""
        heir.new.add(self.new)
        heir.total.add(self.total)
        heir.peak = max(heir.peak, heir.held + self.held)
        heir.held += self.held
        heir.used = max(heir.used, self.used)
        self._heir = heir

    def hold(self, count: int) -> None:
        """Adds bytes to the held ones, or subtracts them."""
        self.held += count
        self.peak = max(self.peak, self.held)

    def record(self, *uses: Use) -> AccountRecord:
        """Returns a record of the sum of some uses."""
        use = Use()
        for each in uses:
            use.add(each)
        island = f"island{self.island}"
        held, peak = min(self.held, MAX_BYTES), min(self.peak, MAX_BYTES)
        return AccountRecord(self.client, self.program, island, use, held, peak)


class StepUse(NamedTuple):
    """Use of an island by each step of a program.

    Attributes:
      account: the account of the program.
      results: the bytes of each result, all shards together.
      moved: the bytes that come from other islands.
    """

    account: Account
    results: tuple[int, ...] = ()
    moved: int = 0

    def count_end(self, took: float, now: float, *, has_failed: bool = False, is_last: bool = True) -> None:
        """Counts a step that has ended, after it had the devices for `took` seconds.

        Args:
          is_last: whether it has ended on all its islands now.
        """
        account = self.account.current()
        account.used = now
        use = account.new
        use.steps += 1
        use.last += is_last
        use.device_seconds += took
        if has_failed:
            use.failures += 1
        else:
            use.result_bytes += sum(self.results)
            use.moved_bytes += self.moved

    def count_failure(self) -> None:
        """Counts a step that was refused, or that has ended with its island."""
        self.account.current().new.failures += 1

    def count_wait(self, why: Wait, seconds: float) -> None:
        """Counts the seconds that a step has waited."""
        waited = self.account.current().new.waited
        waited[why] = waited.get(why, 0.0) + seconds


class HeldArrays:
    """Arrays of a client on an island, by the accounts that hold them."""

    def __init__(self) -> None:
        self._arrays: dict[int, tuple[Account, int]] = {}

    def add(self, array: int, account: Account, count: int) -> None:
        """Adds an array of some bytes."""
        self._arrays[array] = account, count
        account.current().hold(count)

    def free(self, arrays: Iterable[int]) -> None:
        """Frees arrays; no-op for unknown ones."""
        for number in arrays:
            account, count = self._arrays.pop(number, (None, 0))
            if account is not None:
                account.current().hold(-count)

    def free_all(self) -> None:
        """Frees all arrays."""
        self.free([*self._arrays])


class Accounts:
    """Accounts of all clients.

    Args:
      most: the number of accounts above which some are added to others.
    """

    def __init__(self, most: int = MAX_ACCOUNTS) -> None:
        self._most = most
        self._accounts: dict[tuple[str, str, int], Account] = {}
        # The number of accounts of each client.
        self._counts: collections.Counter[str] = collections.Counter()

    def open(self, client: str, program: str, island: int, now: float) -> Account:
        """Returns the account of a program of a client on an island."""
        account = self._accounts.get((client, program, island))
        if account is None:
            account = self._open(client, program, island)
            account.used = now
            if self._counts[client] > max(self._most // 4, 1):
                # A client with very many programs takes no room from others.
                self._add_oldest([other for other in self._accounts.values() if other.client == client])
            while len(self._accounts) > self._most and self._add_oldest(self._accounts.values()):
                pass
        return account

    def records(self) -> tuple[AccountRecord, ...]:
        """Returns all accounts."""
        return tuple(account.record(account.total, account.new) for account in self._accounts.values())

    def take_changes(self) -> tuple[AccountRecord, ...]:
        """Returns the accounts that were used since the last call, with their use since then."""
        records = []
        for account in self._accounts.values():
            if account.new != Use():
                records.append(account.record(account.new))
                account.total.add(account.new)
                account.new = Use()
        return tuple(records)

    def _open(self, client: str, program: str, island: int) -> Account:
        key = client, program, island
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(*key)
            self._counts[client] += 1
        return account

    def _add_oldest(self, accounts: Iterable[Account]) -> bool:
        """Adds the quarter of some accounts that was not used for longest to others; returns whether it can.

        An account of a program is added to the rest of its client, and this one to the rest of all.
        """
        accounts = [account for account in accounts if account.client != REST]
        with_programs = {account.client for account in accounts if account.program != REST}
        # The rest of a client comes last.
        named = [each for each in accounts if each.program != REST or each.client not in with_programs]
        named.sort(key=lambda account: account.used)
        oldest = named[: len(named) // 4 + 1]
        for account in oldest:
            client = account.client if account.program != REST else REST
            del self._accounts[account.client, account.program, account.island]
            self._counts[account.client] -= 1
            account.add_to(self._open(client, REST, account.island))
        return bool(oldest)
