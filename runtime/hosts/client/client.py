"""Client of a cluster: dispatches steps and calls, and waits for their completion."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pathways.runtime.control.cluster_view import REPORT_SECONDS
from pathways.runtime.control.records.errors import failed
from pathways.runtime.control.records.replies import HostRequest
from pathways.runtime.control.records.step import FunctionCall, Step
from pathways.runtime.control.stalls import describe_step
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import HostGang, Location, WorkerHandle
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.cluster.reply_sinks import FetchSink
from pathways.runtime.hosts.cluster.worker_cluster import Split
from pathways.runtime.hosts.protocol.host_facts import HostFacts, facts_of
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.messages import Call
from pathways.runtime.hosts.protocol.programs import BoundProgram
from pathways.runtime.resources.cluster import Cluster
from pathways.runtime.resources.manager import ResourceManager
from pathways.runtime.resources.status import HostStatus, SpareStatus, StepStatus
from pathways.runtime.resources.virtual import VirtualSlice


class Client:
    """Client of a cluster, its own or a shared one, for programs and arrays.

    Args:
      session: the session with it.

    Attributes:
      pool: the workers of its islands.
      hosts: these workers, by their numbers.
      cluster: the devices of all islands.
      fetching: a lock like `order`, held from reading the number of an array until its fetch is sent. Nothing
        blocks while it is held.
      used: the islands that programs were loaded on, or that functions of the user were called on.
      step_deadline: see `Session`.
    """

    def __init__(self, session: HostSession) -> None:
        self.session = session
        self.pool = session.pool
        self.hosts = session.pool.hosts
        self.cluster = session.cluster
        self.used: set[int] = set()
        self.step_deadline = session.step_deadline
        self.fetching = threading.Lock()
        self._is_multi_host = session.is_multi_host

    @property
    def order(self) -> threading.RLock:
        """Lock of the order of steps, see `WorkerPool`. `run` waits for room while it holds the lock."""
        return self.pool.order

    def close(self) -> None:
        """Closes the session; workers that this process has started exit."""
        self.session.close()

    def leave(self) -> None:
        """Releases the cluster in a forked process, see `Session.leave`."""
        self.fetching = threading.Lock()
        self.session.leave()

    def resource_manager(self, cluster: Cluster) -> ResourceManager[VirtualSlice]:
        """Returns the manager that binds the slices of this process to devices of the cluster."""
        return self.session.bind(cluster)

    def load(self, program: BoundProgram, split: Split) -> HostedProgram:
        """Compiles a program on its hosts, see `Session.load`."""
        loaded = self.session.load(program, split)
        self.used.update(gang.number for gang in loaded.gangs)
        return loaded

    def is_usable(self) -> bool:
        """Returns whether it is open, and all islands have workers or restart."""
        return not self.session.is_closed and not any(gang.is_dead() for gang in self.session.gangs)

    def is_whole(self) -> bool:
        """Returns whether it is open, and no host is lost or leaves."""
        return not self.session.is_closed and all(gang.problem is None for gang in self.session.gangs)

    def spares(self) -> SpareStatus | None:
        """Returns the status of the spare workers of the cluster; None if none are configured."""
        return self.session.spares()

    def describe(self, program: HostedProgram, *, text: bool = False) -> HostFacts:
        """Returns what XLA compiled of a program on its hosts, with the text of its modules if `text`.

        Raises:
          HostError: a host is lost.
        """
        request = self.session.request_description(program, text=text)
        self.session.wait_for(request)
        for _, failure in request.first_failure():
            raise failure.error(f"program {program.name}")
        # All hosts of an island that run a computation report the same facts.
        pieces = [request.answers[host.index] for host in program.hosts]
        error = next(
            (piece.error for of_host in pieces for piece in of_host if piece.error is not None), None
        )
        if error is not None:
            raise failed(error).error(f"program {program.name}")
        return facts_of(pieces)

    def unload(self, program: HostedProgram) -> None:
        """Notes that a program is no longer run; finalizers may call it."""
        self.session.unload(program)

    def put(self, value: np.ndarray[Any, Any], location: Location, number: int) -> None:
        """Sends an array to the hosts of a location, see `Session.put`."""
        self.session.put(value, location, number)

    def take_numbers(self, count: int = 1) -> int:
        """Returns the first of `count` consecutive numbers, for arrays that are put."""
        return self.session.take_numbers(count)

    def run(
        self,
        program: HostedProgram,
        arguments: Mapping[int, Sequence[int]],
        producers: Sequence[Step | None] = (),
    ) -> Step:
        """Issues a step, when there is room for it.

        Args:
          program: the program.
          arguments: for each island the numbers of the arrays that it consumes.
          producers: the steps that compute these arrays.

        Returns:
          The step. The outputs of an island have the numbers that follow the number of the step.

        Raises:
          HostError: a host is lost.
        """
        with self.pool.order:
            self.session.wait_for_room(program)
            with uninterrupted():
                return self.session.run(program, arguments, producers)

    def call(
        self,
        name: str,
        gang: HostGang,
        hosts: Sequence[WorkerHandle],
        message: Call,
        producers: Sequence[Step | None] = (),
    ) -> FunctionCall:
        """Starts a call of a function; one message to each host, as for a step.

        Args:
          name: its name in messages.
          gang: the workers of the island.
          hosts: the workers that run the call.
          message: the call without the numbers and the hosts.
          producers: the steps that compute its arguments.

        Returns:
          The call. Its outputs have the numbers that follow the number of the call.

        Raises:
          HostError: a host is lost.
        """
        with self.pool.order:
            gang.life.check_open()
            number = self.session.take_numbers(1 + len(message.results or ()))
            indices = tuple(host.index for host in hosts)
            call = FunctionCall(name, number, indices, time.monotonic())
            whole = msgspec.structs.replace(message, call=number, first=number + 1, hosts=indices)
            self.session.call(call, gang, whole, producers)
        return call

    def request_bytes(
        self, location: Location, host: int, number: int, devices: Sequence[int], sizes: Sequence[int]
    ) -> HostRequest:
        """Requests the bytes of some shards of an array, see `Session.request_bytes`; `fetch` waits."""
        return self.session.request_bytes(location, host, number, devices, sizes)

    def fetch(self, request: HostRequest) -> list[bytearray]:
        """Waits for requested bytes, and returns them.

        Raises:
          HostError: the host is lost, or the array is an error.
        """
        self.session.wait_for(request)
        for _, failure in request.first_failure():
            raise failure.error()
        assert isinstance(request.sink, FetchSink)
        return request.sink.shards

    def wait(self, step: Step, location: Location | None = None, number: int | None = None) -> None:
        """Waits until the hosts of a location, or all hosts, are done with a step.

        On islands of more than one host, waits until no failure can spoil the step any more.

        Args:
          step: the step.
          location: the location; None for all hosts.
          number: the number of an array that they compute; None for all.

        Raises:
          HostError: the array failed, or a host is lost.
        """
        hosts = None if location is None else [host.index for host in location.holders]
        self.session.wait(self._is_known(step, hosts))
        step.check(hosts, number)
        if location is not None:
            location.gang.life.check()

    def wait_for_call(self, call: FunctionCall) -> None:
        """Waits until all hosts have completed a call, or are lost.

        Raises:
          HostError: the call may have consumed wrong values.
        """
        self.session.wait(self._is_known(call, None))
        call.check_spoiled()

    def describe_call(self, call: FunctionCall) -> str:
        """Returns a description of the current operations of the hosts that have not completed a call."""
        request = self.session.request_reports(call.pending())
        self.session.wait_for(request, 2 * REPORT_SECONDS)
        reports = {host: replies[-1] for host, replies in request.answers.items()}
        return describe_step(call, time.monotonic() - call.began, reports)

    def has_ended(self, call: FunctionCall) -> bool:
        """Returns whether all hosts have completed a call, or are lost."""
        if not call.is_done():
            self.session.poll()
        return call.is_done()

    def settle(self, step: Step) -> None:
        """Waits until no failure can spoil the outputs of a step, on islands of more than one host.

        Raises:
          HostError: they are spoiled.
        """
        if self._is_multi_host:
            self.session.wait(step.is_settled)
            step.check_spoiled()

    def is_done(self, step: Step, location: Location) -> bool:
        """Returns whether the hosts of a location are done with a step; see `wait`."""
        hosts = [host.index for host in location.holders]
        is_done = self._is_known(step, hosts)
        if not is_done():
            self.session.poll()
        return is_done()

    def _is_known(self, step: Step, hosts: Sequence[int] | None) -> Callable[[], bool]:
        """Returns a test for whether the results of some hosts, or all, are known."""
        is_done = step.is_settled if self._is_multi_host else functools.partial(step.is_done, hosts)
        return lambda: is_done() or step.has_cut_hosts(hosts)

    def status(self) -> tuple[tuple[HostStatus, ...], tuple[StepStatus, ...]]:
        """Returns the status of all hosts, and of the steps that are not done."""
        request = self.session.request_reports(range(len(self.hosts)))
        # The core ends the request after REPORT_SECONDS, unless the cluster is closed meanwhile, which stops
        # its clock.
        self.session.wait_for(request, 2 * REPORT_SECONDS)
        self.session.poll()
        reports = {host: replies[-1] for host, replies in request.answers.items()}
        now = time.monotonic()
        return (
            tuple(host.status(reports.get(host.index)) for host in self.hosts),
            tuple(step.status(now) for step in self.session.unfinished()),
        )

    def waits_for_network(self) -> bool:
        """Returns whether the longest round trip to a host is what steps wait for."""
        known = [trip for host in [*self.hosts] if (trip := host.round_trip.seconds) is not None]
        return self.session.waits.is_network(max(known, default=None))
