"""Programs whose steps have no work, so that only control remains; needs no JAX."""

from __future__ import annotations

from collections.abc import Iterable

from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.protocol.programs import BoundProgram, IslandProgram, SlicePlace, SplitProgram


def load_idle(controller: HostSession, islands: int, name: str = "idle", hosts: int = 1) -> HostedProgram:
    """Returns a loaded program with an empty host program on each host of some islands."""
    program = idle_program(name, range(islands), hosts)
    return controller.load(program, lambda **_: empty_parts(program))


def idle_program(name: str, islands: Iterable[int], hosts: int = 1) -> BoundProgram:
    """Returns a program with a slice on each of some islands, of some hosts each, and without work."""
    ranks = tuple(range(hosts))
    slices = {
        f"s{n}": SlicePlace(n, ranks, tuple(n * hosts + rank for rank in ranks), None, (hosts,), ("x",))
        for n in islands
    }
    return BoundProgram(name, b"", slices, {}, {}, (), ())


def empty_parts(program: BoundProgram) -> SplitProgram:
    """Returns empty host programs."""
    parts = {
        place.island: IslandProgram(empty_part(place.owners[0]), (), (), (), (), {}, {})
        for place in program.slices.values()
    }
    return SplitProgram(parts, crossing=0, inner=0, share=1)


def empty_part(host: int) -> bytes:
    """Returns an empty host program."""
    return f"""module attributes {{pw.form = "host"}} {{
      func.func public @host_{host}() attributes {{pw.host = {host} : i64}} {{ return }}
    }}""".encode()
