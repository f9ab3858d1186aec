"""Client of a cluster: dispatches steps and calls, and waits for what becomes of them."""

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
      fetching: as `order`, for numbers that are sent to fetch an array. Nothing waits while it is held.
      traces: the traces that the workers take part in.
      step_deadline: see `Session`.
    """

    def __init__(self, session: HostSession) -> None:
        self.session = session
        self.pool = session.pool
        self.hosts = session.pool.hosts
        self.cluster = session.cluster
        self.traces = session.traces
        self.step_deadline = session.step_deadline
        self.fetching = threading.Lock()
        self._is_multi_host = session.is_multi_host

    @property
    def order(self) -> threading.RLock:
        """Lock of the order of steps, see `WorkerPool`. `run` waits under it until there is room."""
        return self.pool.order

    def close(self) -> None:
        """Ends the session; workers that this process has started end."""
        self.session.close()

    def leave(self) -> None:
        """Gives the cluster up in a forked process, see `Session.leave`."""
        self.fetching = threading.Lock()
        self.session.leave()

    def resource_manager(self, cluster: Cluster) -> ResourceManager[VirtualSlice]:
        """Returns what binds the slices of this process to devices of the cluster."""
        return self.session.bind(cluster)

    def load(self, program: BoundProgram, split: Split) -> HostedProgram:
        """Compiles a program on its hosts, see `Session.load`."""
        return self.session.load(program, split)

    def is_usable(self) -> bool:
        """Returns whether it is not closed, and all islands have workers, or will have new ones."""
        return not self.session.is_closed and not any(gang.is_dead() for gang in self.session.gangs)

    def is_whole(self) -> bool:
        """Returns whether no host is lost or leaves, and the cluster is not closed."""
        return not self.session.is_closed and all(gang.problem is None for gang in self.session.gangs)

    def spares(self) -> SpareStatus | None:
        """Returns how many spare workers this process has ready; None if there are to be none."""
        return self.session.spares()

    def describe(self, program: HostedProgram, *, text: bool = False) -> HostFacts:
        """Returns what XLA made of a program on its hosts, with the text of its modules or without.

        Raises:
          HostError: a host is lost.
        """
        request = self.session.request_description(program, text=text)
        self.session.wait_for(request)
        for _, failure in request.first_failure():
            raise failure.error(f"program {program.name}")
        # All hosts of an island that run a computation say the same of it.
        pieces = [request.answers[host.index] for host in program.hosts]
        error = next((piece.error for said in pieces for piece in said if piece.error is not None), None)
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
          arguments: for each island the numbers of the arrays that it takes.
          producers: the steps that made these arrays.

        Returns:
          The step. The first array that an island makes has the number after that of the step on its hosts,
          and others follow it.

        Raises:
          HostError: a host is lost.
        """
        with self.pool.order:
            step = self.prepare_step(program)
            self.session.run(step, program, arguments, producers)
        return step

    def prepare_step(self, program: HostedProgram) -> Step:
        """Waits for room, and returns a step for `issue`; the caller holds `order` until it is issued.

        Raises:
          HostError: a host is lost.
        """
        self.session.wait_for_room(program)
        number = self.session.take_numbers(1 + program.max_outputs)
        return Step(
            program.name, number, program.host_numbers, program.number, time.monotonic(), program.share
        )

    def issue(
        self,
        step: Step,
        program: HostedProgram,
        arguments: Mapping[int, Sequence[int]],
        producers: Sequence[Step | None] = (),
    ) -> None:
        """Issues a step, see `run`; it reaches all of its hosts or none, also if Ctrl-C comes meanwhile."""
        self.session.run(step, program, arguments, producers)

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
          hosts: those of them that make the call.
          message: the call without the numbers and the hosts.
          producers: the steps that made the arrays that it takes.

        Returns:
          The call. The first array that it makes has the number after that of the call, and others follow it.

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
        """Returns the requested bytes, when they are ready.

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

        Where islands have several hosts, until nothing can spoil it any more.

        Args:
          step: the step.
          location: the location; None for all hosts.
          number: the number of an array that they make; None for all.

        Raises:
          HostError: the array failed, or a host is lost.
        """
        hosts = None if location is None else [host.index for host in location.holders]
        self.session.wait(self._is_known(step, hosts))
        step.check(hosts, number)
        if location is not None:
            location.gang.life.check()

    def wait_for_call(self, call: FunctionCall) -> None:
        """Waits until all hosts have ended a call, or are lost.

        Raises:
          HostError: it is unknown what it took.
        """
        self.session.wait(self._is_known(call, None))
        call.check_spoiled()

    def describe_call(self, call: FunctionCall) -> str:
        """Returns the current operation of the hosts that have not ended a call."""
        request = self.session.request_reports(call.pending())
        self.session.wait_for(request, 2 * REPORT_SECONDS)
        reports = {host: said[-1] for host, said in request.answers.items()}
        return describe_step(call, time.monotonic() - call.began, reports)

    def has_ended(self, call: FunctionCall) -> bool:
        """Returns whether all hosts have ended a call, or are lost."""
        if not call.is_done():
            self.session.poll()
        return call.is_done()

    def settle(self, step: Step) -> None:
        """Waits until nothing can spoil what a step has producers, where anything can.

        Raises:
          HostError: it is spoiled.
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

    def free(self, location: Location, number: int) -> None:
        """Notes that an array is no longer held; finalizers may call it."""
        self.session.free(location, number)

    def status(self) -> tuple[tuple[HostStatus, ...], tuple[StepStatus, ...]]:
        """Returns the status of all hosts, and of the steps that are not done."""
        request = self.session.request_reports(range(len(self.hosts)))
        # Longer than the core lets it take, which has no clock when the cluster is closed meanwhile.
        self.session.wait_for(request, 2 * REPORT_SECONDS)
        self.session.poll()
        reports = {host: said[-1] for host, said in request.answers.items()}
        now = time.monotonic()
        return (
            tuple(host.status(reports.get(host.index)) for host in self.hosts),
            tuple(step.status(now) for step in self.session.unfinished()),
        )

    def waits_for_network(self) -> bool:
        """Returns whether steps wait for the longest round trip to a host, and for nothing else."""
        known = [trip for host in [*self.hosts] if (trip := host.round_trip.seconds) is not None]
        return self.session.waits.is_network(max(known, default=None))
