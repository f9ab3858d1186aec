"""Loading of programs on hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.protocol.programs import BoundProgram, SlicePlace, SplitProgram
from pathways.runtime.hosts.splitting.splitting import split
from pathways.runtime.plan.plan import Plan


class ProgramLoader:
    """Loader of a program on its hosts, also on workers that replace lost ones.

    It has the split program instead of the module: a loss changes workers, and not the devices of slices.

    Args:
      session: the session with the hosts.
      program: the program, whose slices need no places yet.
      plan: the plan of the whole program.
      context: a context to parse its module in, for the first time that the program is loaded.

    Attributes:
      session: see above.
      plan: see above.
    """

    def __init__(self, session: HostSession, program: BoundProgram, plan: Plan, context: ir.Context) -> None:
        self.session = session
        self.plan = plan
        self._program = program
        self._context: ir.Context | None = context
        self._split: dict[tuple[Any, ...], SplitProgram] = {}

    def load(self, places: Mapping[str, SlicePlace]) -> HostedProgram:
        """Compiles the program for the devices of its slices, and returns it.

        Raises:
          SplitError: it cannot be split by islands.
          HostError: a host was lost, or cannot compile its program.
        """
        bound = msgspec.structs.replace(self._program, slices=dict(places))

        def split_once(ahead: int | str, *, multi_host: bool) -> SplitProgram:
            key = (*places.items(), ahead, multi_host)
            if key not in self._split:
                context = self._context or make_context()
                self._split = {key: split(bound, self.plan, context, ahead, multi_host=multi_host)}
            return self._split[key]

        loaded = self.session.load(bound, split_once)
        # Not needed again, as long as no slice gets other devices.
        self._context = None
        owners = {name: place.owners for name, place in places.items()}
        for observer in self.session.pool.observers:
            observer.load(loaded, self.plan, owners)
        return loaded
