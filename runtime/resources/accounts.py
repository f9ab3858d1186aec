"""Accounts of the clients of a service: what each program of a client had of each island. Plain data."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import msgspec

from pathways.runtime.resources.tables import duration, size, table

Wait = Literal["data", "quota", "suspended", "own", "share", "claim", "pool"]
"""Reason why the first step in the queue of a client waits: for its arguments, or the end of a call that has
them (`data`); for memory of its quota; until its client is resumed; for places that earlier steps of its
client have (`own`), or steps of others (`share`); for other islands of the step, or for a step that has
claimed its island (`claim`); for memory of the pool."""

WAITS: tuple[Wait, ...] = get_args(Wait)

REST = "(rest)"
"""The client, or the program, of accounts that were added to others. It is the name of none."""

MAX_BYTES = (1 << 63) - 1
"""Largest number of bytes of a record, which encoders accept. Clients declare sizes, and may declare any."""

KEYS = ("client", "program", "island")
"""Keys of accounts."""


class Use(msgspec.Struct):
    """Use of an island.

    Attributes:
      device_seconds: the seconds for which steps had the devices of the island.
      steps: the number of steps and calls of functions that ended there.
      last: the number of these that ended last there, of all their islands; the sum over islands is the
        number of steps.
      failures: the number of steps that were refused, or ended with an error or with the island.
      result_bytes: the bytes of the results, all shards together.
      moved_bytes: the bytes that came from the client or from other islands, or that the client has fetched.
      waited: the seconds for which the first step in the queue of the client waited, by the reason; the time
        of a step of several islands is divided among them.
    """

    device_seconds: float = 0.0
    steps: int = 0
    last: int = 0
    failures: int = 0
    result_bytes: int = 0
    moved_bytes: int = 0
    waited: dict[str, float] = msgspec.field(default_factory=dict)

    def add(self, other: Use) -> None:
        """Adds another use to this one; bytes up to `MAX_BYTES`."""
        self.device_seconds += other.device_seconds
        self.steps += other.steps
        self.last += other.last
        self.failures += other.failures
        self.result_bytes = min(self.result_bytes + other.result_bytes, MAX_BYTES)
        self.moved_bytes = min(self.moved_bytes + other.moved_bytes, MAX_BYTES)
        for why, seconds in other.waited.items():
            self.waited[why] = self.waited.get(why, 0.0) + seconds


class AccountRecord(msgspec.Struct, frozen=True):
    """Use of an island by a program of a client.

    Attributes:
      client: the name of the client.
      program: the name of the program or function; empty for arrays that the client sends or fetches.
      island: the name of the island.
      use: the use since the start of the service; in changes, since the changes before.
      held_bytes: the bytes of its arrays there now, all shards together.
      peak_bytes: the most at a time.
    """

    client: str
    program: str
    island: str
    use: Use
    held_bytes: int = 0
    peak_bytes: int = 0


def summed(records: Iterable[AccountRecord], by: Sequence[str] = KEYS) -> list[AccountRecord]:
    """Returns one record for each combination of keys, with the largest use of devices first.

    Args:
      by: the keys; all others are empty in the result.
    """
    groups: dict[tuple[str, ...], list[AccountRecord]] = collections.defaultdict(list)
    for record in records:
        groups[tuple(getattr(record, key) if key in by else "" for key in KEYS)].append(record)
    sums = []
    for (client, program, island), group in groups.items():
        use = Use()
        for record in group:
            use.add(record.use)
        held = min(sum(record.held_bytes for record in group), MAX_BYTES)
        # Not necessarily at one time: a bound.
        most = min(sum(record.peak_bytes for record in group), MAX_BYTES)
        sums.append(AccountRecord(client, program, island, use, held, most))
    return sorted(sums, key=lambda record: (-record.use.device_seconds, *map(str, _key(record))))


def account_table(records: Iterable[AccountRecord], by: Sequence[str] = KEYS) -> str:
    """Returns a table of accounts."""
    units = ("device time", "steps", "failures", "made", "held", "moved", "waited")
    rows = [(*(key for key in KEYS if key in by), *units)]
    for record in summed(records, by):
        use = record.use
        rows.append(
            (
                *(cell or "-" for key, cell in zip(KEYS, _key(record), strict=True) if key in by),
                duration(use.device_seconds, "s"),
                str(use.steps if "island" in by else use.last),
                str(use.failures),
                size(use.result_bytes),
                size(record.held_bytes),
                size(use.moved_bytes),
                waited_text(use.waited),
            )
        )
    return table(rows) if len(rows) > 1 else "no client has used an island"


def waited_text(waited: Mapping[str, float]) -> str:
    """Returns waited seconds by their reasons, the longest first: `1.5 s (share 1 s, data 500 ms)`."""
    longest = sorted(((seconds, why) for why, seconds in waited.items() if seconds > 0), reverse=True)
    if not longest:
        return "-"
    reasons = ", ".join(f"{why} {duration(seconds, 's')}" for seconds, why in longest)
    return f"{duration(sum(waited.values()), 's')} ({reasons})"


def _key(record: AccountRecord) -> tuple[str, str, str]:
    return record.client, record.program, record.island
