"""Session of a client: its handles, and the reply to each request of its stream.

Requests are dispatched one after the other, in the order of the stream. None of them waits for a device: what
does is replied to from other threads. A session owns what its handles stand for, and frees it when it ends.

The client chooses the handles of most results and sends the next request without waiting for a reply. An
error of such a request is therefore stored under its handles, and raised when one of them is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from pathways.runtime.proxy import arrays, programs
from pathways.runtime.proxy.arrays import ProxyArray
from pathways.runtime.proxy.devices import STRING, ArraySpec, ServedDevices, checked_shape, shape_of
from pathways.runtime.proxy.host_buffers import Buffer, HostBuffers, max_bytes
from pathways.runtime.proxy.mpmd_programs import MpmdProgram
from pathways.runtime.proxy.persistence import FileJob, PersistenceProgram
from pathways.runtime.proxy.programs import Program, ProxyProgram
from pathways.runtime.proxy.stalls import COMPILE_LIMIT_S, WAIT_LIMIT_S
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, slice_lost, status_of
from pathways.runtime.resources.manager import ResourceError

FIRST_SERVER_HANDLE = 1 << 62
"""Handles from here on are chosen by the server; clients count from 1."""

DONATED = StatusError(StatusCode.INVALID_ARGUMENT, "the array was deleted: it was donated")
"""What takes the place of an array whose buffers another one has taken over."""

_STRINGS = "xla.ifrt.proto.StringArrayContents"
"""What the host buffer of an array of strings holds."""

Send = Callable[[bytes], None]
"""Sends a serialised `IfrtResponse` to the client, from any thread."""

Run = Callable[[Callable[[], None]], None]
"""Runs a function in another thread."""

Watch = Callable[[str, float], AbstractContextManager[object]]
"""Makes the context of an activity, which is reported when it takes longer than so many seconds."""

_MAX_FETCH_INLINE_BYTES = 64 << 10
"""Largest array that the dispatching thread fetches when it is ready: that beats a switch of threads."""


@dataclasses.dataclass(frozen=True, eq=False)
class Later:
    """A reply that another thread computes.

    Attributes:
      waited: the arrays that it waits for first; the reply is the error of one that has none.
      fill: fills the body of the response, or raises.
    """

    waited: Sequence[ProxyArray | FileJob] = ()
    fill: Callable[[], None] = lambda: None


class ProxySession:
    """The server's side of one connection of a client.

    Args:
      number: its id, by which calls that carry host buffers name it.
      served: the devices.
      send: sends replies.
      wait: runs what waits for arrays or compiles.
      watch: reports what takes long.
    """

    def __init__(
        self,
        number: int,
        served: ServedDevices,
        send: Send,
        wait: Run,
        watch: Watch = lambda *_: contextlib.nullcontext(),
    ) -> None:
        self.number = number
        self.host_buffers = HostBuffers(max_bytes(), self._watch_host_buffer)
        self._watch = watch
        self._served = served
        self._send = send
        self._wait = wait
        self._response = served.messages["xla.ifrt.proxy.IfrtResponse"]
        self._request = served.messages["xla.ifrt.proxy.IfrtRequest"]
        fields = served.messages["xla.ifrt.proxy.CopyArraysRequest"].DESCRIPTOR.fields_by_name
        semantics = fields["copy_semantics"].enum_type.values_by_name
        self._donates = semantics["ARRAY_COPY_SEMANTICS_DONATE_INPUT"].number
        self._arrays: dict[int, ProxyArray] = {}
        self._slices = served.slice_states
        self._pending: dict[Later, int] = {}
        self._programs: dict[int, Program] = {}
        self._futures: dict[int, Sequence[ProxyArray | FileJob]] = {}
        self._file_jobs: list[FileJob] = []
        self._handles = itertools.count(FIRST_SERVER_HANDLE)
        self._closing = threading.Lock()
        self._replies = itertools.count()
        self._is_closed = False
        self._handlers: dict[str, Callable[[Any, Any], Later | None]] = {
            name.removeprefix("_handle_") + "_request": getattr(self, name)
            for name in dir(self)
            if name.startswith("_handle_")
        }

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Numbers of arrays, programs, futures and host buffers that the session owns."""
        return len(self._arrays), len(self._programs), len(self._futures), len(self.host_buffers)

    def dispatch(self, data: Buffer) -> bytes | None:
        """Handles the next request of the stream; returns its reply, or None when that is sent later.

        Raises:
          ValueError: the data is no request; the session cannot go on.
        """
        request = self._served.messages.parse("xla.ifrt.proxy.IfrtRequest", data)
        if self._slices is not self._served.slice_states:
            self._lose_arrays()
        op_id = request.request_metadata.op_id
        kind = request.WhichOneof("request")
        response = self._response()
        try:
            handler = self._handlers.get(kind or "")
            if handler is None:
                raise StatusError(
                    StatusCode.UNIMPLEMENTED, f"requests of the kind {kind!r} are not supported by the server"
                )
            body = getattr(request, kind)
            answer = getattr(response, kind.removesuffix("request") + "response")
            answer.SetInParent()
            later = handler(body, answer)
        except Exception as error:
            return self._encode_error(op_id, status_of(error))
        if later is None:
            return self._encode(op_id, response)
        self._pending[later] = op_id
        self._wait(lambda: self._reply_later(later, response))
        if self._slices is not self._served.slice_states:
            self.fail_pending()  # The slice was lost too early for its own call.
        return None

    def fail_pending(self) -> None:
        """Replies to requests that wait for arrays of slices that are lost; called from any thread."""
        lost = self._served.slice_states.lost
        for later in tuple(self._pending):
            error = next(filter(None, (self._loss_of(array, lost) for array in later.waited)), None)
            op_id = None if error is None else self._pending.pop(later, None)
            if error is not None and op_id is not None and not self._is_closed:
                self._send(self._encode_error(op_id, error))

    def close(self) -> None:
        """Frees all that the session owns; later replies are dropped."""
        with self._closing:
            self._is_closed = True
        self.interrupt()
        self._arrays.clear()
        self._programs.clear()
        self._futures.clear()

    def interrupt(self) -> None:
        """Ends what requests wait for: host buffers that will not come, and files."""
        self.host_buffers.close()
        for job in self._file_jobs:
            job.cancel()

    def _watch_host_buffer(self, handle: int) -> AbstractContextManager[object]:
        subject = f"session {self.number}: waiting for host buffer {handle}, which the client has not sent"
        return self._watch(subject, WAIT_LIMIT_S)

    def _watch_compile(self, name: str) -> AbstractContextManager[object]:
        return self._watch(f"session {self.number}: compiling program {name!r}", COMPILE_LIMIT_S)

    def _reply_later(self, later: Later, response: Any) -> None:
        failed: Exception | None = None
        try:
            _wait_all(later.waited)
        except Exception as error:
            failed = error
        op_id = self._pending.pop(later, None)
        if op_id is None:  # A slice was lost meanwhile, which was the reply.
            return
        try:
            if failed is not None:
                raise failed
            later.fill()
            reply = self._encode(op_id, response)
        except Exception as error:
            reply = self._encode_error(op_id, status_of(error))
        if not self._is_closed:
            self._send(reply)

    def _lose_arrays(self) -> None:
        """Puts errors in place of arrays on slices that were lost since the last request."""
        states = self._served.slice_states
        lost = states.lost_since(self._slices.epoch)
        self._slices = states
        for handle, array in self._arrays.items():
            self._arrays[handle] = self._unless_lost(array, lost)
        for handle, waited in tuple(self._futures.items()):
            self._futures[handle] = [
                array if isinstance(array, FileJob) else self._unless_lost(array, lost) for array in waited
            ]

    @property
    def _is_restricted(self) -> bool:
        """Returns whether arrays may be lost, or too many."""
        return bool(self._slices.lost) or self._served.memory.limit is not None

    def _admit(self, array: ProxyArray) -> ProxyArray:
        """Accounts for a new array; returns its error if it is on a lost slice, or too large."""
        array = self._unless_lost(array, self._slices.lost)
        if self._served.memory.limit is None or array.spec is None:
            return array
        if array.error is not None or array.memory:
            return array
        try:
            memory = self._served.memory.reserve([array.spec.shard_bytes] * len(array.spec.placement.devices))
        except ResourceError as error:
            return ProxyArray(array.spec, status_of(error))
        return array.with_memory(memory)

    def _unless_lost(self, array: ProxyArray, lost: frozenset[int]) -> ProxyArray:
        error = self._loss_of(array, lost)
        return array if error is None else ProxyArray(array.spec, error)

    def _loss_of(self, array: ProxyArray | FileJob, lost: frozenset[int]) -> StatusError | None:
        """Returns the error in place of an array that has a shard on slices that are lost."""
        if isinstance(array, FileJob) or not lost or array.spec is None:
            return None
        on_lost = lost & self._served.slices_of(array.spec.placement.devices)
        return slice_lost(on_lost) if on_lost and array.error is None else None

    def _encode(self, op_id: int, response: Any) -> bytes:
        metadata = response.response_metadata
        metadata.op_id = op_id
        metadata.status.SetInParent()
        # The client counts replies that have a body, and only these.
        metadata.seq_num = next(self._replies)
        return response.SerializeToString()

    def _encode_error(self, op_id: int, error: StatusError) -> bytes:
        response = self._response()
        response.response_metadata.op_id = op_id
        response.response_metadata.status.code = int(error.code)
        response.response_metadata.status.message = error.message
        return response.SerializeToString()

    def _array(self, handle: int) -> ProxyArray:
        array = self._arrays.get(handle)
        if array is None:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"no array has the handle {handle}")
        return array

    def _found(self, handles: Iterable[int]) -> list[ProxyArray]:
        return [self._array(handle) for handle in handles]

    def _program(self, handle: int) -> Program:
        program = self._programs.get(handle)
        if program is None:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"no program has the handle {handle}")
        return program

    def _xla_program(self, handle: int) -> ProxyProgram:
        program = self._program(handle)
        if not isinstance(program, ProxyProgram):
            raise StatusError(StatusCode.UNIMPLEMENTED, "the program is no XLA program")
        return program

    def _mpmd_program(self, handle: int) -> MpmdProgram:
        program = self._program(handle)
        if not isinstance(program, MpmdProgram):
            raise StatusError(StatusCode.UNIMPLEMENTED, "the program is not one of several meshes")
        return program

    def _put(self, handles: Sequence[int], make: Callable[[], Sequence[ProxyArray]]) -> None:
        """Stores what `make` returns under the handles, or its error under each of them."""
        if 0 in handles:
            raise StatusError(StatusCode.INVALID_ARGUMENT, "the client has not chosen the handle of a result")
        try:
            made = make()
            if len(made) != len(handles):
                raise StatusError(
                    StatusCode.INVALID_ARGUMENT, f"{len(handles)} handles for {len(made)} results"
                )
            made = [self._admit(array) for array in made] if self._is_restricted else made
        except Exception as error:
            made = [ProxyArray(None, status_of(error))] * len(handles)
        self._arrays.update(zip(handles, made, strict=True))

    def _donate(self, handles: Iterable[int], copy_semantics: int) -> None:
        """Takes arrays from handles whose buffers were given to the result of a request."""
        if copy_semantics == self._donates:
            for handle in handles:
                if handle in self._arrays:
                    self._arrays[handle] = ProxyArray(self._arrays[handle].spec, DONATED)

    def _future(self, waited: Sequence[ProxyArray | FileJob] = ()) -> int:
        handle = next(self._handles)
        self._futures[handle] = waited
        return handle

    def _view_host_buffer(self, data: Buffer, spec: ArraySpec, strides: Sequence[int] | None) -> np.ndarray:
        if spec.dtype != STRING:
            return arrays.view_host_buffer(data, spec, strides)
        contents = self._served.messages.parse(_STRINGS, data)
        return np.array([text.decode() for text in contents.strings], STRING).reshape(spec.shape)

    def _to_host_buffer(self, value: np.ndarray, strides: Sequence[int] | None) -> Buffer:
        if value.dtype != STRING:
            return arrays.to_host_buffer(value, strides)
        texts = [str(text).encode() for text in value.flat]
        return self._served.messages[_STRINGS](strings=texts).SerializeToString()

    # Fields of requests that are not read, and need nothing:
    # - `user_context_id` and `payloads` are the client's own, for its messages and traces; so are payloads of
    #   the errors of which it makes arrays;
    # - `version_number` of what is serialised was agreed upon when the client connected;
    # - `launch_id`, `execution_stream_id` and `deletion_stream_id` order what several processes or streams
    #   do, and one thread does all of a session, in the order of its stream;
    # - `untuple_result`: results are never tuples;
    # - `single_device_shard_semantics`: all shards are addressable;
    # - `copy_semantics` of requests that cut or join arrays: they share buffers, as in local JAX;
    # - `input_specs` of a remap plan: the server knows the arrays;
    # - `compile_options` of plugin programs, which are empty.
    # All others are read, or an error.

    # The session itself.

    def _handle_init(self, body: Any, answer: Any) -> None:
        self._served.describe(answer, self.number)

    def _handle_check_future(self, body: Any, answer: Any) -> Later | None:
        waited = self._futures.pop(body.future_handle, None)
        if waited is None:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"no future has the handle {body.future_handle}")
        return _wait_for(waited)

    def _handle_check_value_ready(self, body: Any, answer: Any) -> Later | None:
        return _wait_for(self._found(body.value_handles))

    def _handle_get_default_device_assignment(self, body: Any, answer: Any) -> None:
        replicas, partitions = body.num_replicas, body.num_partitions
        devices = self._served.devices
        if not 1 <= replicas * partitions <= len(devices):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"{replicas} x {partitions} devices of a server that has {len(devices)}",
            )
        assignment = answer.device_assignment
        assignment.replica_count, assignment.computation_count = replicas, partitions
        for partition in range(partitions):
            chosen = devices[partition * replicas : (partition + 1) * replicas]
            assignment.computation_devices.add(replica_device_ids=[device.id for device in chosen])

    def _handle_get_default_layout(self, body: Any, answer: Any) -> None:
        dtype = self._served.dtype(body.dtype)
        device = self._served.device(body.device_id)
        # The platforms that are served have the same layout in each kind of memory.
        self._served.memory_kind(body.memory_kind or None)
        layout = device.client.get_default_layout(dtype, checked_shape(body.dims), device)
        # As text, although the field holds bytes.
        answer.serialized_pjrt_layout = str(layout).encode()

    # Arrays.

    def _handle_make_array_from_host_buffer(self, body: Any, answer: Any) -> None:
        def make() -> list[ProxyArray]:
            # Taken even when the rest is invalid: nobody else will free it.
            data = self.host_buffers.take(body.host_buffer_handle)
            shape = shape_of(body.shape)
            layout = self._served.layout(body.layout, len(shape))
            spec = ArraySpec(
                self._served.dtype(body.dtype), shape, self._served.placement(body.sharding), layout
            )
            value = self._view_host_buffer(data, spec, _strides(body))
            return [arrays.make(spec, [value] * len(spec.placement.devices))]

        self._put([body.array_handle], make)
        answer.array_handle = body.array_handle

    def _handle_make_arrays_from_host_buffer_shards(self, body: Any, answer: Any) -> None:
        _check_counts(handles=body.array_handles, specifications=body.specs)
        for spec, handle in zip(body.specs, body.array_handles, strict=True):
            self._put([handle], functools.partial(self._make_of_shards, spec))
        answer.array_handles.extend(body.array_handles)

    def _make_of_shards(self, proto: Any) -> list[ProxyArray]:
        buffers = [self.host_buffers.take(buffer.host_buffer_handle) for buffer in proto.host_buffers]
        spec = self._served.spec(proto.array_spec)
        shards: list[Any] = [None] * len(spec.placement.devices)
        _check_counts(**{"host buffers": buffers, "lists of shards": proto.addressable_shard_indices})
        for indices, buffer, data in zip(
            proto.addressable_shard_indices, proto.host_buffers, buffers, strict=True
        ):
            shard_spec = ArraySpec(self._served.dtype(buffer.dtype), shape_of(buffer.shape), spec.placement)
            value = self._view_host_buffer(data, shard_spec, _strides(buffer))
            for index in indices.indices:
                if not 0 <= index < len(shards):
                    raise StatusError(
                        StatusCode.INVALID_ARGUMENT, f"shard {index} of an array of {len(shards)}"
                    )
                shards[index] = value
        if any(shard is None for shard in shards):
            raise StatusError(StatusCode.INVALID_ARGUMENT, "a shard has no host buffer")
        return [arrays.make(spec, shards)]

    def _handle_make_error_arrays(self, body: Any, answer: Any) -> None:
        code = body.error.code
        known = StatusCode(code) if code in StatusCode.__members__.values() and code else StatusCode.UNKNOWN
        error = StatusError(known, body.error.message)
        self._put(
            body.array_handles,
            lambda: [ProxyArray(self._served.spec(spec), error) for spec in body.array_specs],
        )
        answer.array_handles.extend(body.array_handles)

    def _handle_assemble_array_from_single_device_arrays(self, body: Any, answer: Any) -> None:
        def make() -> list[ProxyArray]:
            shards = self._found(body.single_device_array_handles)
            if not shards:
                raise StatusError(StatusCode.INVALID_ARGUMENT, "an array needs at least one shard")
            has_dtype = body.HasField("dtype")
            dtype = self._served.dtype(body.dtype) if has_dtype else shards[0].read()[0].dtype
            spec = ArraySpec(dtype, shape_of(body.shape), self._served.placement(body.sharding))
            return [arrays.assemble(spec, shards)]

        self._put([body.result_handle], make)
        self._donate(body.single_device_array_handles, body.copy_semantics)
        answer.array_handle = body.result_handle

    def _handle_disassemble_into_single_device_arrays(self, body: Any, answer: Any) -> None:
        self._put(body.result_handles, lambda: arrays.disassemble(self._array(body.array_handle)))
        self._donate([body.array_handle], body.copy_semantics)
        answer.array_handles.extend(body.result_handles)

    def _handle_copy_arrays(self, body: Any, answer: Any) -> None:
        def make() -> list[ProxyArray]:
            devices = [self._served.device(number) for number in body.device_ids]
            memory = body.memory_kind if body.HasField("memory_kind") else None
            return arrays.copy(self._found(body.array_handles), devices, memory)

        self._put(body.result_handles, make)
        self._donate(body.array_handles, body.copy_semantics)
        answer.array_handles.extend(body.result_handles)

    def _handle_fully_replicated_shard(self, body: Any, answer: Any) -> None:
        self._put(
            [body.result_handle], lambda: [arrays.fully_replicated_shard(self._array(body.array_handle))]
        )
        self._donate([body.array_handle], body.copy_semantics)
        answer.array_handle = body.result_handle

    def _handle_remap_arrays(self, body: Any, answer: Any) -> None:
        def make() -> list[ProxyArray]:
            specs = [self._served.spec(spec) for spec in body.plan.output_specs]
            return arrays.remap(specs, body.plan, self._found(body.array_handles))

        self._put(body.result_handles, make)
        self._donate(body.array_handles, body.copy_semantics)
        answer.array_handles.extend(body.result_handles)

    def _handle_bitcast_arrays(self, body: Any, answer: Any) -> None:
        self._put_each(body, arrays.bitcast)
        self._donate(body.array_handles, body.copy_semantics)
        answer.array_handles.extend(body.result_handles)

    def _handle_reshard_arrays(self, body: Any, answer: Any) -> None:
        self._put_each(body, arrays.reshard)
        self._donate(body.array_handles, body.copy_semantics)
        answer.array_handles.extend(body.result_handles)

    def _put_each(self, body: Any, make: Callable[[ArraySpec, ProxyArray], ProxyArray]) -> None:
        """Makes one array of each, as its specification says."""
        _check_counts(results=body.result_handles, arrays=body.array_handles, specifications=body.array_specs)
        for result, handle, spec in zip(
            body.result_handles, body.array_handles, body.array_specs, strict=True
        ):
            self._put([result], functools.partial(self._make_one, make, spec, handle))

    def _make_one(
        self, make: Callable[[ArraySpec, ProxyArray], ProxyArray], spec: Any, handle: int
    ) -> list[ProxyArray]:
        return [make(self._served.spec(spec), self._array(handle))]

    def _handle_copy_to_host_buffer(self, body: Any, answer: Any) -> Later | None:
        array = self._array(body.array_handle)
        strides = _strides(body)

        def fetch() -> None:
            value = arrays.fetch(array)
            self.host_buffers.store(body.host_buffer_handle, self._to_host_buffer(value, strides))

        if not isinstance(array.value, StatusError) and not (
            array.is_ready and array.value.nbytes <= _MAX_FETCH_INLINE_BYTES
        ):
            return Later([array], fetch)
        fetch()
        return None

    def _handle_delete_array(self, body: Any, answer: Any) -> None:
        for handle in body.array_handle:
            array = self._arrays.get(handle)
            if (
                array is not None
                and not isinstance(array.value, StatusError)
                and not array.value.is_deleted()
            ):
                array.value.delete()
                array.free()
        answer.deletion_future_handle = self._future()

    def _handle_is_array_deleted(self, body: Any, answer: Any) -> None:
        value = self._array(body.array_handle).value
        answer.deleted = value is DONATED or (not isinstance(value, StatusError) and value.is_deleted())

    def _handle_destruct_array(self, body: Any, answer: Any) -> None:
        for handle in body.array_handle:
            self._arrays.pop(handle, None)

    # Programs.

    def _handle_compile(self, body: Any, answer: Any) -> Later:
        if body.host_callbacks:
            raise StatusError(StatusCode.UNIMPLEMENTED, "the server does not call back into the client")

        def compile_() -> None:
            program = programs.compile_program(
                self._served, body.program, body.compile_options, self._watch_compile
            )
            handle = next(self._handles)
            with self._closing:
                if self._is_closed:
                    return
                self._programs[handle] = program
                answer.ready_future_handle = self._future()
            ids = [device.id for device in program.devices]
            answer.loaded_executable_handle = handle
            answer.name = program.name
            answer.num_devices = len(ids)
            answer.device_ids.extend(ids)
            answer.addressable_device_ids.extend(ids)
            if isinstance(program, MpmdProgram):
                program.describe_slices(answer)

        return Later(fill=compile_)

    def _handle_loaded_executable_metadata(self, body: Any, answer: Any) -> None:
        self._program(body.loaded_executable_handle).describe(answer)

    def _handle_loaded_executable_execute(self, body: Any, answer: Any) -> None:
        program = self._programs.get(body.loaded_executable_handle)
        if program is None:
            # Without its results there is nothing that could hold the error.
            self._put(body.result_array_handle, lambda: [self._program(body.loaded_executable_handle)])  # type: ignore[list-item]
            return
        results: list[ProxyArray]
        waited: Sequence[ProxyArray | FileJob]
        try:
            _check_execution(body, program)
            arguments = self._found(body.args_handles)
            kept = body.execute_options.non_donatable_input_indices
            if self._is_restricted:
                results = self._execute_restricted(program, arguments, kept)
            else:
                results = self._execute(program, arguments, kept)
            waited = [self._file_jobs[-1]] if isinstance(program, PersistenceProgram) else results
        except Exception as error:
            results = program.fail(status_of(error))
            # A program without results fails, too.
            waited = results or [ProxyArray(None, status_of(error))]
        handles = body.result_array_handle or [next(self._handles) for _ in results]
        self._put(handles, lambda: results)
        if body.execute_options.fill_status:
            if body.result_status_handle:
                self._futures[body.result_status_handle] = waited
                answer.status_handle = body.result_status_handle
            else:
                answer.status_handle = self._future(waited)
        if not body.result_array_handle:
            for handle, result in zip(handles, results, strict=True):
                self._describe_output(answer.outputs.add(array_handle=handle), result)

    def _execute(
        self, program: Program, arguments: Sequence[ProxyArray], kept: Sequence[int]
    ) -> list[ProxyArray]:
        if not isinstance(program, PersistenceProgram):
            return program.execute(arguments, kept)
        job = program.start(arguments, self._wait)
        self._file_jobs = [other for other in self._file_jobs if not other.is_ready] + [job]
        return list(job.results)

    def _execute_restricted(
        self, program: Program, arguments: Sequence[ProxyArray], kept: Sequence[int]
    ) -> list[ProxyArray]:
        """Starts an execution where slices are lost, or memory has a limit.

        Raises:
          StatusError: the program is on a lost slice.
          ResourceError: it needs too much memory.
        """
        lost = self._slices.lost & self._served.slices_of(program.devices)
        if lost:
            raise slice_lost(lost)
        donated = [
            arguments[number] for number in set(program.donated) - set(kept) if number < len(arguments)
        ]
        if isinstance(program, ProxyProgram | MpmdProgram):
            consumed = sum(allocation.size for array in donated for allocation in array.memory)
            self._served.memory.check(program.needed_bytes - consumed)
        results = self._execute(program, arguments, kept)
        for array in donated:
            if not isinstance(array.value, StatusError) and array.value.is_deleted():
                array.free()
        return [self._admit(array) for array in results]

    def _describe_output(self, output: Any, result: ProxyArray) -> None:
        if result.spec is None:
            result.read()
            return
        self._served.describe_dtype(output.dtype, result.spec.dtype)
        output.shape.dims.extend(result.spec.shape)
        self._served.describe_placement(output.sharding, result.spec.placement)

    def _handle_loaded_executable_fetch_execute_result(self, body: Any, answer: Any) -> Later | None:
        waited = self._futures.pop(body.result_status_handle, None)
        if waited is None:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT, f"no execution has the handle {body.result_status_handle}"
            )
        return _wait_for(waited)

    def _handle_loaded_executable_cost_analysis(self, body: Any, answer: Any) -> None:
        program = self._xla_program(body.loaded_executable_handle)
        answer.attributes.SetInParent()
        for name, value in program.executable.cost_analysis().items():
            answer.attributes.attributes[name].float_value = value

    def _handle_loaded_executable_mpmd_metadata(self, body: Any, answer: Any) -> None:
        self._mpmd_program(body.mpmd_loaded_executable_handle).describe_memory(answer)

    def _handle_loaded_executable_mpmd_cost_analysis(self, body: Any, answer: Any) -> None:
        self._mpmd_program(body.loaded_executable_handle).describe_costs(answer)

    def _handle_loaded_executable_human_readable_program_text(self, body: Any, answer: Any) -> None:
        program = self._xla_program(body.loaded_executable_handle)
        answer.human_readable_program_text = program.executable.get_hlo_text()

    def _handle_loaded_executable_delete(self, body: Any, answer: Any) -> None:
        self._programs.pop(body.loaded_executable_handle, None)
        answer.future_handle = self._future()

    def _handle_loaded_executable_is_deleted(self, body: Any, answer: Any) -> None:
        answer.is_deleted = body.loaded_executable_handle not in self._programs

    def _handle_loaded_executable_destruct(self, body: Any, answer: Any) -> None:
        self._programs.pop(body.loaded_executable_handle, None)


def _check_counts(**groups: Sequence[Any]) -> None:
    """Checks that a request has as many of one as of the others.

    Raises:
      StatusError: it has not.
    """
    if len({len(group) for group in groups.values()}) > 1:
        counts = ", ".join(f"{len(group)} {name}" for name, group in groups.items())
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"the request has {counts}; it needs as many of each")


_KNOWN_OPTIONS = frozenset({"call_location"})
"""Custom options of an execution that change nothing that it computes."""


def _check_execution(body: Any, program: Program) -> None:
    """Checks what a client wants of an execution.

    Raises:
      StatusError: the server does not do it.
    """
    devices = [device.id for device in program.devices]
    if body.device_ids and list(body.device_ids) != devices:
        raise StatusError(
            StatusCode.UNIMPLEMENTED,
            f"a program for devices {devices[:64]} cannot run on devices {list(body.device_ids[:64])}",
        )
    others = sorted(body.execute_options.custom_options.attributes.keys() - _KNOWN_OPTIONS)
    if others:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"options of executions that the server does not know: {others}"[:1000]
        )


def _strides(body: Any) -> Sequence[int] | None:
    return tuple(body.byte_strides.strides) if body.HasField("byte_strides") else None


def _wait_for(waited: Sequence[ProxyArray | FileJob]) -> Later | None:
    """A reply when arrays are ready; now if they are, which an error of any of them is, too."""
    if all(array.is_ready for array in waited):
        _wait_all(waited)
        return None
    return Later(waited)


def _wait_all(waited: Sequence[ProxyArray | FileJob]) -> None:
    for array in waited:
        array.wait()
