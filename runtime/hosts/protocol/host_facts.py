"""Memory, FLOPs and text of compiled programs on hosts, merged from the replies of workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from pathways.runtime.hosts.protocol.messages import Described
from pathways.runtime.local.memory import SliceMemory


@dataclasses.dataclass(frozen=True)
class HostFacts:
    """Facts about a compiled program on its hosts.

    Attributes:
      flops: the floating-point operations of a launch of each computation on each slice, on all its devices.
      text: the text of XLA's modules, if it was requested.
    """

    memory: Mapping[str, SliceMemory]
    flops: Mapping[tuple[str, str], float]
    text: str


def facts_of(replies: Iterable[Sequence[Described]]) -> HostFacts:
    """Merges the replies of all workers, each in pieces.

    Hosts that run the same computation send the same text, which is kept once.
    """
    replies = list(replies)
    pieces = [piece for reply in replies for piece in reply]
    texts = dict.fromkeys("".join(piece.text for piece in reply) for reply in replies)
    return HostFacts(
        {name: SliceMemory(*fields) for piece in pieces for name, fields in piece.memory.items()},
        {(computation, slice): flops for piece in pieces for computation, slice, flops in piece.flops},
        "".join(texts),
    )
