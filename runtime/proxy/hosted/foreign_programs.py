"""Programs of the proxy's loaders on hosts, as the front loads, runs and unloads them."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import msgspec

from pathways.runtime.control.records.step import Step
from pathways.runtime.hosts.client.array import results_of
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import Location, WorkerHandle
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram, HostPort
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.proxy.arrays.placements import ArraySpec
from pathways.runtime.proxy.hosted.hosted_values import HostedValue


@dataclasses.dataclass(frozen=True)
class ResultPlace:
    """Result of a program: its type, and where it is."""

    spec: ArraySpec
    location: Location


class ForeignProgram:
    """Program of workers, which is unloaded after its last use.

    Args:
      session: the session with the hosts.
      program: the loaded program, on one island.
      results: its results.

    Attributes:
      program: see above.
      results: see above.
    """

    def __init__(self, session: HostSession, program: HostedProgram, results: Sequence[ResultPlace]) -> None:
        self.program = program
        self._session = session
        self.results = tuple(results)
        self._avals = [jax.core.ShapedArray(result.spec.shape, result.spec.dtype) for result in results]
        self._places = [[(result.location, number)] for number, result in enumerate(results)]
        weakref.finalize(self, session.unload, program).atexit = False

    @classmethod
    def load(
        cls,
        session: HostSession,
        name: str,
        hosts: tuple[WorkerHandle, ...],
        kind: str,
        body: Any,
        results: Callable[[bytes], Sequence[ResultPlace]],
    ) -> ForeignProgram:
        """Loads a program on hosts of an island.

        Args:
          kind: the name of its loader in workers.
          body: the program, which is sent as msgpack.
          results: returns its results, by the facts of the first host that has some.

        Raises:
          HostError: a host is lost, or rejects the program.
        """
        number, replies = session.load_foreign(name, hosts, kind, msgspec.msgpack.encode(body))
        gang = hosts[0].gang
        some = () if hosts == gang.hosts else hosts
        program = HostedProgram(number, name, (gang,), {gang.number: ()}, {}, some_hosts=some)
        try:
            places = results(next((reply.facts for reply in replies if reply.facts), b""))
        except BaseException:
            session.unload(program)
            raise
        ports = tuple(HostPort(n, place.location) for n, place in enumerate(places))
        program = dataclasses.replace(program, outputs={gang.number: ports})
        return cls(session, program, places)

    def is_ready(self) -> bool:
        """Returns whether no worker that runs it is lost."""
        return self.program.is_ready()

    def run(self, operands: Sequence[HostedValue], donated: Sequence[Any] = ()) -> list[HostedValue]:
        """Issues a step, and returns its results.

        Args:
          donated: the values that it consumes.

        Raises:
          HostError: the island is lost, or leaves.
          RuntimeError: an operand was deleted.
        """
        session, program = self._session, self.program
        (gang,) = program.gangs
        # Another thread may donate them, too: before this, which is an error, or after it.
        with session.pool.order:
            numbers = [operand.number() for operand in operands]
            producers: list[Step | None] = [operand.array.step_at(operand.location) for operand in operands]
            session.wait_for_room(program)
            # Without a handle nothing would free a result.
            with uninterrupted():
                step = session.issue(program, {gang.number: numbers}, producers)
                for value in donated:
                    value.delete()
                arrays = results_of(session, step, self._avals, self._places)
        return [
            HostedValue(array, result.location, result.spec.placement.devices)
            for array, result in zip(arrays, self.results, strict=True)
        ]


class ReloadedProgram:
    """Program that is loaded again after a restart of its workers.

    Args:
      load: loads it.
    """

    def __init__(self, load: Callable[[], ForeignProgram]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._program = load()

    def current(self) -> ForeignProgram:
        """Returns the program on the current workers.

        Raises:
          HostError: the island is lost, or leaves.
        """
        with self._lock:
            if not self._program.is_ready():
                self._program = self._load()
            return self._program
