"""Interface of a cluster to its user: a cluster of this process, or one that many clients share."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pathways.runtime.control.gang import GangView
from pathways.runtime.control.records.replies import HostRequest
from pathways.runtime.control.records.step import Step
from pathways.runtime.resources.cluster import Cluster
from pathways.runtime.resources.manager import ResourceManager
from pathways.runtime.resources.virtual import VirtualSlice


class Session[Program, Workers, Location](abc.ABC):
    """Session of one user with a cluster.

    Arrays, steps and programs are numbers. `issue`, `put` and the requests return before anything has
    happened; the records that they get or return have the outcome, which the session updates while some
    thread waits. Steps, calls and requests of one session reach a host in the order in which they were made.
    Handles, windows and error texts are up to the caller.

    Type parameters: a program that is loaded, the workers of an island from their start to their loss, and a
    place for arrays on them.

    Attributes:
      owns_workers: whether this process has started the workers, and may kill them.
      step_deadline: seconds after which a step, or a loop without a known end, is ended; None for never.
    """

    owns_workers: bool
    step_deadline: float | None

    @property
    @abc.abstractmethod
    def cluster(self) -> Cluster:
        """The devices of all islands; further islands may join."""

    @property
    @abc.abstractmethod
    def is_multi_host(self) -> bool:
        """Whether any island has several hosts, so that a loss can spoil steps that were done."""

    @property
    @abc.abstractmethod
    def gangs(self) -> Sequence[GangView]:
        """Workers of each island; the workers that were lost last while it is restarting."""

    @abc.abstractmethod
    def delay_leave(self, workers: Workers) -> None:
        """Requests that an island accepts steps after the signal to leave, until `allow_leave`, if it can.

        For its grace period at most.
        """

    @abc.abstractmethod
    def allow_leave(self, workers: Workers) -> None:
        """Ends a request of `delay_leave`."""

    @abc.abstractmethod
    def bind(self, cluster: Cluster) -> ResourceManager[VirtualSlice]:
        """Returns the manager that binds slices to devices of the cluster."""

    @abc.abstractmethod
    def take_numbers(self, count: int = 1) -> int:
        """Returns the first of `count` consecutive numbers, for steps and their arrays."""

    @abc.abstractmethod
    def load(self, program: Any, split: Callable[..., Any]) -> Program:
        """Compiles a program on its hosts, and waits for all of them.

        Args:
          program: the program, bound to devices.
          split: splits it into one program for each island.

        Raises:
          HostError: a host failed; names the host and the reason.
        """

    @abc.abstractmethod
    def unload(self, program: Program) -> None:
        """Notes that a program is no longer run; finalizers may call it."""

    @abc.abstractmethod
    def wait_for_room(self, program: Program) -> None:
        """Waits until one more step of a program may be issued.

        Raises:
          HostError: an island is lost or leaves.
        """

    @abc.abstractmethod
    def issue(
        self, program: Program, arguments: Mapping[int, Sequence[int]], producers: Sequence[Step | None] = ()
    ) -> Step:
        """Issues a step, for which there is room: one message to each host, to all of them before any answer.

        The caller holds the lock of the order of steps, and has Ctrl-C wait: a step that only some of its
        hosts have never completes.

        Args:
          arguments: for each island the numbers of the arrays that it reads.
          producers: the steps that computed these arrays.

        Returns:
          Its record. The first array that an island produces has the number after the number of the step.

        Raises:
          HostError: an island is lost or leaves, or an argument of the step is spoiled.
        """

    @abc.abstractmethod
    def put(self, value: Any, location: Location, number: int) -> None:
        """Sends an array to the hosts of a location.

        Args:
          value: the array.
          location: the place.
          number: its number there, from `take_numbers`.

        Raises:
          HostError: an island is lost or leaves.
        """

    @abc.abstractmethod
    def request_bytes(
        self, location: Location, host: int, number: int, devices: Sequence[int], sizes: Sequence[int]
    ) -> HostRequest:
        """Requests the bytes of some shards of an array.

        Args:
          location: the place of the array.
          host: the host that has them.
          number: the number of the array there.
          devices: the positions of the shards, among the shards of the host.
          sizes: their bytes.

        Raises:
          HostError: the host is lost.
        """

    @abc.abstractmethod
    def request_reports(self, hosts: Sequence[int]) -> HostRequest:
        """Requests the `HostReport`s of some hosts, except lost ones."""

    @abc.abstractmethod
    def wait_for(self, request: HostRequest, seconds: float | None = None) -> None:
        """Waits until a request is answered, or for some seconds; later replies are dropped."""

    @abc.abstractmethod
    def wait(self, is_done: Callable[[], bool], seconds: float = 0.5) -> None:
        """Waits until a condition holds that depends on messages and losses of hosts.

        Args:
          is_done: the condition; it must not block, nor use the session.
          seconds: the time after which it is checked again if there are none.
        """

    @abc.abstractmethod
    def poll(self) -> None:
        """Handles the messages that hosts have sent, without waiting."""

    @abc.abstractmethod
    def unfinished(self) -> list[Step]:
        """Returns the steps that are not done, in the order in which they were issued."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the session; its arrays on hosts are freed."""

    @abc.abstractmethod
    def leave(self) -> None:
        """Gives the session up in a forked process; the process that it belongs to continues it."""
