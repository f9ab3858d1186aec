"""Versions of the protocol that this server speaks, and the choice of one with a client."""

from __future__ import annotations

import dataclasses

from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError


@dataclasses.dataclass(frozen=True)
class VersionRange:
    """Consecutive versions, of the protocol's requests or of what it serialises."""

    name: str
    first: int
    last: int

    def choose(self, first: int, last: int) -> int:
        """Returns the newest version that the client, which speaks `first` to `last`, also speaks.

        Raises:
          StatusError: there is none.
        """
        if first <= last and first <= self.last and last >= self.first:
            return min(last, self.last)
        age = "old" if last < self.first else "new"
        raise StatusError(
            StatusCode.FAILED_PRECONDITION,
            f"the jaxlib of this client is too {age} for the server: it speaks versions {first} to {last} of "
            f"the {self.name}, the server {self.first} to {self.last}; use a jaxlib of the server's release",
        )


PROTOCOL = VersionRange("IFRT proxy protocol", 16, 25)
SERIALIZATION = VersionRange("IFRT serialization", 0, 6)
