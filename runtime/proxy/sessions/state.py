"""State of a session: the values of its handles, and errors of lost, donated or too large ones."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pathways.runtime.proxy.arrays.island_states import IslandStates
from pathways.runtime.proxy.arrays.memory_account import Allocation
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.host_buffers import HostBuffers, max_bytes
from pathways.runtime.proxy.loading.call_traces import SessionTrace
from pathways.runtime.proxy.loading.compile_process import Cancellation
from pathways.runtime.proxy.persistence import FileJob, Run
from pathways.runtime.proxy.programs import Program
from pathways.runtime.proxy.sessions.replies import DeferredReply
from pathways.runtime.proxy.stalls import COMPILE_LIMIT_S, WAIT_LIMIT_S
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, status_of
from pathways.runtime.resources.manager import ResourceError

FIRST_SERVER_HANDLE = 1 << 62
"""First of the handles that the server chooses; clients count from 1."""

DONATED = StatusError(StatusCode.INVALID_ARGUMENT, "the array was deleted: it was donated")
"""Error in place of an array whose buffers belong to another one now."""

Watch = Callable[[str, float], AbstractContextManager[object]]
"""Function that returns the context of an activity, which is reported if it exceeds a limit in seconds."""


class SessionState:
    """Tables of a session: its values by handle.

    The dispatching thread alone reads and changes the tables. Other threads set the values of arrays that are
    in the tables already, use host buffers, which have their own lock, or call `add_program`.

    Args:
      number: the id of the session.
      served: the devices.
      run: runs functions that wait for arrays or compile.
      watch: reports long activities.
      flush: sends the replies to earlier requests, before the dispatching thread waits for a loop.

    Attributes:
      arrays: the arrays, or the errors in their places.
      futures: the arrays and jobs that each future waits for.
      host_buffers: the host buffers that the client has stored, or will fetch.
      compilations: ends the compilations of long programs, and loops.
      trace: the calls of its programs of Pathways that are recorded.
      is_closed: whether the session has ended.
    """

    def __init__(
        self,
        number: int,
        served: ServedDevices,
        run: Run,
        watch: Watch = lambda *_: contextlib.nullcontext(),
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self.number = number
        self.served = served
        self.run = run
        self.flush = flush
        self.arrays: dict[int, ProxyArray] = {}
        self.programs: dict[int, Program] = {}
        self.futures: dict[int, Sequence[ProxyArray | FileJob]] = {}
        self.host_buffers = HostBuffers(max_bytes(), self._watch_host_buffer)
        self.compilations = Cancellation()
        self.trace = SessionTrace(served.call_traces)
        self.is_closed = False
        self._watch = watch
        self._islands = served.island_states
        self._file_jobs: list[FileJob] = []
        self._handles = itertools.count(FIRST_SERVER_HANDLE)
        self._closing = threading.Lock()
        fields = served.messages["xla.ifrt.proxy.CopyArraysRequest"].DESCRIPTOR.fields_by_name
        semantics = fields["copy_semantics"].enum_type.values_by_name
        self._donates = semantics["ARRAY_COPY_SEMANTICS_DONATE_INPUT"].number

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """The numbers of arrays, programs, futures and host buffers."""
        return len(self.arrays), len(self.programs), len(self.futures), len(self.host_buffers)

    def close(self) -> None:
        """Frees all values of the session."""
        with self._closing:
            self.is_closed = True
        self.interrupt()
        self.trace.close()
        self.arrays.clear()
        self.programs.clear()
        self.futures.clear()

    def interrupt(self) -> None:
        """Wakes requests that wait for host buffers, files, long compilations or loops, with an error."""
        self.host_buffers.close()
        self.compilations.request()
        for job in self._file_jobs:
            job.cancel()

    def watch_compile(self, name: str) -> AbstractContextManager[object]:
        """Returns the context in which a program is compiled."""
        return self._watch(f"session {self.number}: compiling program {name!r}", COMPILE_LIMIT_S)

    def _watch_host_buffer(self, handle: int) -> AbstractContextManager[object]:
        subject = f"session {self.number}: waiting for host buffer {handle}, which the client has not sent"
        return self._watch(subject, WAIT_LIMIT_S)

    def array(self, handle: int) -> ProxyArray:
        """Returns an array by its handle.

        Raises:
          StatusError: no array has this handle.
        """
        array = self.arrays.get(handle)
        if array is None:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"no array has the handle {handle}")
        return array

    def arrays_of(self, handles: Iterable[int]) -> list[ProxyArray]:
        """Returns arrays by their handles.

        Raises:
          StatusError: one does not exist.
        """
        return [self.array(handle) for handle in handles]

    def program(self, handle: int) -> Program:
        """Returns a program by its handle.

        Raises:
          StatusError: no program has this handle.
        """
        program = self.programs.get(handle)
        if program is None:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"no program has the handle {handle}")
        return program

    def put(self, handles: Sequence[int], make: Callable[[], Sequence[ProxyArray]]) -> None:
        """Stores the arrays that `make` returns under the handles, or its error under each of them."""
        if 0 in handles:
            raise StatusError(StatusCode.INVALID_ARGUMENT, "the client has not chosen the handle of a result")
        try:
            created = make()
            if len(created) != len(handles):
                raise StatusError(
                    StatusCode.INVALID_ARGUMENT, f"{len(handles)} handles for {len(created)} results"
                )
            created = [self.admit(array) for array in created] if self.is_restricted else created
        except Exception as error:
            created = [ProxyArray(None, status_of(error))] * len(handles)
        self.arrays.update(zip(handles, created, strict=True))

    def donate(self, handles: Iterable[int], copy_semantics: int) -> None:
        """Removes arrays whose buffers now belong to results of a request; called after `put`."""
        if copy_semantics == self._donates:
            for handle in handles:
                if handle in self.arrays:
                    self.arrays[handle] = ProxyArray(self.arrays[handle].spec, DONATED)

    def new_handles(self, count: int) -> list[int]:
        """Returns handles that the server chooses."""
        return [next(self._handles) for _ in range(count)]

    def add_future(self, waited: Sequence[ProxyArray | FileJob] = ()) -> int:
        """Returns the handle of a new future, which is ready when the arrays and jobs are."""
        handle = next(self._handles)
        self.futures[handle] = waited
        return handle

    def add_program(self, program: Program) -> tuple[int, int] | None:
        """Adds a program, from any thread.

        Returns:
          its handle, and the handle of a future that is ready; None if the session has ended meanwhile.
        """
        # Without the lock, a session that ends now would never free the program.
        with self._closing:
            if self.is_closed:
                return None
            handle = next(self._handles)
            self.programs[handle] = program
            self.trace.add_program(program)
            return handle, self.add_future()

    def add_file_job(self, job: FileJob) -> None:
        """Adds a job that ends with the session."""
        self._file_jobs = [pending for pending in self._file_jobs if not pending.is_ready] + [job]

    @property
    def has_new_losses(self) -> bool:
        """Whether islands were lost or returned since `lose_arrays`."""
        return self._islands is not self.served.island_states

    def lose_arrays(self) -> None:
        """Replaces arrays on islands that were lost since the last call by errors."""
        states = self.served.island_states
        lost = states.lost_since(self._islands.epoch)
        self._islands = states
        for handle, array in self.arrays.items():
            self.arrays[handle] = self._unless_lost(array, lost)
        for handle, waited in tuple(self.futures.items()):
            self.futures[handle] = [
                array if isinstance(array, FileJob) else self._unless_lost(array, lost) for array in waited
            ]

    @property
    def islands(self) -> IslandStates:
        """The states of islands when `lose_arrays` was called last."""
        return self._islands

    @property
    def is_restricted(self) -> bool:
        """Whether `admit` must check arrays: islands are lost, or memory has a limit."""
        return bool(self._islands.lost) or self.served.memory.limit is not None

    def admit(self, array: ProxyArray) -> ProxyArray:
        """Accounts for a new array; returns its error if it is on a lost island, or too large."""
        array = self._unless_refused(array)
        if not self._needs_memory(array):
            return array
        try:
            return array.with_memory(self.served.memory.reserve(_shard_sizes(array)))
        except ResourceError as error:
            return ProxyArray(array.spec, status_of(error))

    def _needs_memory(self, array: ProxyArray) -> bool:
        is_limited = self.served.memory.limit is not None
        return is_limited and array.spec is not None and array.error is None and not array.memory

    def admit_results(
        self, results: Sequence[ProxyArray], reserved: Sequence[Allocation]
    ) -> list[ProxyArray]:
        """Accounts for the results of an execution, in place of allocations, which are freed."""
        admitted = [self._unless_refused(array) for array in results]
        new = [number for number, array in enumerate(admitted) if self._needs_memory(array)]
        sizes = [_shard_sizes(admitted[number]) for number in new]
        # In one step if they fit together, since an estimate of a program's memory may be too small.
        with contextlib.suppress(ResourceError):
            memory = iter(self.served.memory.reserve([size for shards in sizes for size in shards], reserved))
            for number, shards in zip(new, sizes, strict=True):
                admitted[number] = admitted[number].with_memory(tuple(itertools.islice(memory, len(shards))))
        return [self.admit(array) for array in admitted]

    def _unless_refused(self, array: ProxyArray) -> ProxyArray:
        """Returns a new array, or its error if it is on a lost island."""
        if array.spec is None or array.error is not None:
            return array
        on_lost = self._islands.lost & self.served.islands_of(array.spec.placement.devices)
        return ProxyArray(array.spec, self._islands.refusal_of(on_lost)) if on_lost else array

    def _unless_lost(self, array: ProxyArray, lost: frozenset[int]) -> ProxyArray:
        error = self.loss_of(array, lost)
        return array if error is None else ProxyArray(array.spec, error)

    def loss_of(self, array: ProxyArray | FileJob, lost: frozenset[int]) -> StatusError | None:
        """Returns the error in place of an array that has a shard on islands that are lost."""
        if isinstance(array, FileJob) or not lost or array.spec is None:
            return None
        on_lost = lost & self.served.islands_of(array.spec.placement.devices)
        return self._islands.error_of(on_lost) if on_lost and array.error is None else None


def _shard_sizes(array: ProxyArray) -> list[int]:
    assert array.spec is not None
    return [array.spec.shard_bytes] * len(array.spec.placement.devices)


Handler = Callable[[SessionState, Any, Any], DeferredReply | None]
"""Handler of a request, for the bodies of request and response: it fills the latter, now or later."""
