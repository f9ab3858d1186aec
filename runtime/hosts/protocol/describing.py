"""What XLA made of programs on hosts, as plain data: asked for by the controller, told by workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pathways.runtime.hosts.protocol.messages import Described
from pathways.runtime.local.facts import device_text, flops_of
from pathways.runtime.local.load import Executable
from pathways.runtime.local.memory import SliceMemory, analyze, stats_of

_CHARACTERS = 1 << 20
"""How much text is in one message."""


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


def answers(request: int, executable: Executable | None, *, text: bool) -> Iterator[Described]:
    """What a worker answers, in pieces.

    Args:
      request: the number of the question.
      executable: the program; None for one that is not here.
      text: whether the text of XLA's modules is asked for.
    """
    if executable is None:
        yield Described(request, {}, (), "", True, "the program is not on this host")
        return
    analysis = analyze(executable.plan, stats_of(executable.executables))
    memory = {name: dataclasses.astuple(of_slice) for name, of_slice in analysis.items()}
    flops = tuple((*pair, flops_of(loaded)) for pair, loaded in executable.executables.items())
    whole = device_text(executable.executables) if text else ""
    pieces = [whole[n : n + _CHARACTERS] for n in range(0, len(whole), _CHARACTERS)]
    yield Described(request, memory, flops, "", not pieces, None)
    for n, piece in enumerate(pieces, 1):
        yield Described(request, {}, (), piece, n == len(pieces), None)


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
