"""What XLA made of programs on hosts, as plain data: what all that workers answer says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from pathways.runtime.hosts.protocol.messages import Described
from pathways.runtime.local.memory import SliceMemory


@dataclasses.dataclass(frozen=True)
class HostFacts:
    """What XLA made of a program on its hosts.

    Attributes:
      memory: the memory of each slice.
      flops: the floating-point operations of a launch of each computation on each slice, on all its devices.
      text: XLA's modules, where they were asked for.
    """

    memory: Mapping[str, SliceMemory]
    flops: Mapping[tuple[str, str], float]
    text: str


def facts_of(answers: Iterable[Sequence[Described]]) -> HostFacts:
    """What all answers say, each in its pieces. Hosts that run the same say the same."""
    answers = list(answers)
    pieces = [piece for answer in answers for piece in answer]
    texts = dict.fromkeys("".join(piece.text for piece in answer) for answer in answers)
    return HostFacts(
        {name: SliceMemory(*fields) for piece in pieces for name, fields in piece.memory.items()},
        {(computation, slice): flops for piece in pieces for computation, slice, flops in piece.flops},
        "".join(texts),
    )
