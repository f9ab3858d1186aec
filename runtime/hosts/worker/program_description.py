"""Memory, FLOPs and text of XLA's modules of a program on this host, for the controller."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pathways.runtime.hosts.protocol.messages import Described
from pathways.runtime.local.load import Executable, device_text, stats_of
from pathways.runtime.local.memory import analyze
from pathways.runtime.xla.pjrt import flops_of

_CHARACTERS = 1 << 20
"""Maximum length of the text in one message."""


def describe(request: int, executable: Executable | None, *, text: bool) -> Iterator[Described]:
    """Yields the replies to `Describe`, which split the text.

    Args:
      executable: the program; None if it is not on this host.
      text: whether the text of XLA's modules is requested.
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
