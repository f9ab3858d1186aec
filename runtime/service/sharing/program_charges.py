"""Losses of islands that are charged to the programs that ran there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

MAX_CHARGES = 2
"""Number of losses of an island after which a program is not run there again."""

_MAX_ENTRIES = 1000
"""Limit on the programs and islands that are remembered."""


class ProgramIdentity(NamedTuple):
    """Identity of a program, which stays the same when it is loaded again.

    Attributes:
      client: the name of its client.
      digest: a digest of its contents; empty for a program that is not charged.
    """

    client: str = ""
    digest: str = ""


class ProgramCharges:
    """Losses of islands, by the programs that are charged with them."""

    def __init__(self) -> None:
        # In the order of their last charges, the oldest first.
        self._counts: dict[tuple[ProgramIdentity, int], int] = {}

    def add(self, program: ProgramIdentity, island: int) -> None:
        """Charges a program with a loss of an island."""
        self._counts[program, island] = self._counts.pop((program, island), 0) + 1
        if len(self._counts) > _MAX_ENTRIES:
            del self._counts[next(iter(self._counts))]

    def refusal(self, program: ProgramIdentity, name: str, islands: Iterable[int]) -> str | None:
        """Returns why a program is not run on some islands; None if it is. Any thread may call it."""
        for island in islands:
            if self._counts.get((program, island), 0) >= MAX_CHARGES:
                return (
                    f"program '{name}' of client '{program.client}' has ended island{island} twice: "
                    "it is not run there again (until pw-cluster down)"
                )
        return None
