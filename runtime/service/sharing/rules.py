"""Rules by which clients share a cluster, as its file has them and `pw-cluster set` changes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, Protocol

from pathways.runtime.service.sharing.memory import DeviceLimits, SharedMemory

Sharing = Literal["fair", "fifo"]

ANY = "*"
"""Name of the rules of each client that the file does not name."""


@dataclasses.dataclass(frozen=True)
class ClientRules:
    """Rules of a client.

    Attributes:
      weight: its share of contended devices.
      priority: its steps come before all steps of clients with a lower one.
      memory: the bytes that its arrays may have on each device; None for a share of the rest.
      is_suspended: whether nothing of it is dispatched.
      step_limit: the seconds that a step of it may run; None for any time.
    """

    weight: float = 1.0
    priority: int = 0
    memory: int | None = None
    is_suspended: bool = False
    step_limit: float | None = None


@dataclasses.dataclass(frozen=True)
class SharingRules:
    """Rules of a cluster.

    Attributes:
      sharing: which client's step is next: by device time and weight, or in the order of calls.
      ageing: the seconds after which the priority of a waiting step rises by one.
      clients: the rules of named clients; the rules of `ANY` hold for each other client.
      max_clients: the most clients at a time that the file does not name; None for any number.
      islands: the memory of the devices of each island, None where it is not limited; empty without limits.
    """

    sharing: Sharing = "fair"
    ageing: float = 1.0
    clients: Mapping[str, ClientRules] = dataclasses.field(default_factory=dict)
    max_clients: int | None = None
    islands: tuple[DeviceLimits | None, ...] = ()

    @property
    def default(self) -> ClientRules:
        """The rules of a client that the file does not name."""
        return self.clients.get(ANY, ClientRules())

    def memory(self, islands: int) -> SharedMemory:
        """Returns the quotas of clients on a number of islands.

        Raises:
          ValueError: all quotas together exceed the memory of an island without its pool.
        """
        named = {
            name: rules.memory
            for name, rules in self.clients.items()
            if name != ANY and rules.memory is not None
        }
        limits = self.islands or (None,) * islands
        return SharedMemory(limits, named, self.default.memory, self.max_clients or 0)


class RuleChange(Protocol):
    """Change of the rules of a client; None for a rule that stays."""

    @property
    def name(self) -> str: ...
    @property
    def weight(self) -> float | None: ...
    @property
    def priority(self) -> int | None: ...
    @property
    def memory(self) -> int | None: ...
    @property
    def is_suspended(self) -> bool | None: ...


class RuleBook:
    """Rules of clients as they are now.

    Args:
      rules: the rules of the file of the cluster.
    """

    def __init__(self, rules: SharingRules) -> None:
        self.rules = rules
        self._changed: dict[str, ClientRules] = {}

    def of(self, name: str) -> ClientRules:
        """Returns the rules of a client."""
        return self._changed.get(name) or self.rules.clients.get(name) or self.rules.default

    def is_named(self, name: str) -> bool:
        """Returns whether the file names a client, or its rules were changed."""
        return name in self.rules.clients or name in self._changed

    def change(self, change: RuleChange) -> ClientRules:
        """Changes the rules of a client until the service ends, and returns them."""
        changes = {
            field.name: value
            for field in dataclasses.fields(ClientRules)
            if (value := getattr(change, field.name, None)) is not None
        }
        rules = self._changed[change.name] = dataclasses.replace(self.of(change.name), **changes)
        return rules
