"""Requests of programs: compilation, metadata, execution, and deletion."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pathways.runtime.proxy import programs
from pathways.runtime.proxy.arrays.memory_account import Allocation
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.loading.compiled_program import CompiledProgram
from pathways.runtime.proxy.loading.looping_program import LoopingProgram
from pathways.runtime.proxy.loading.mpmd_program import MpmdProgram
from pathways.runtime.proxy.loading.xla_program import XlaProgram
from pathways.runtime.proxy.persistence import FileJob, PersistenceProgram
from pathways.runtime.proxy.plugin_programs import RepliedRequest
from pathways.runtime.proxy.programs import Program
from pathways.runtime.proxy.sessions.replies import DeferredReply, wait_for
from pathways.runtime.proxy.sessions.server_replies import REPLIES
from pathways.runtime.proxy.sessions.state import Handler, SessionState
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, status_of


def _compile(state: SessionState, body: Any, response: Any) -> DeferredReply:
    if body.host_callbacks:
        raise StatusError(StatusCode.UNIMPLEMENTED, "the server does not call back into the client")

    def compile_() -> None:
        program = programs.compile_program(
            state.served,
            body.program,
            body.compile_options,
            state.watch_compile,
            state.compilations,
            {kind: functools.partial(reply, state) for kind, reply in REPLIES.items()},
        )
        handles = state.add_program(program)
        if handles is None:
            return
        response.loaded_executable_handle, response.ready_future_handle = handles
        ids = [device.id for device in program.devices]
        response.name = program.name
        response.num_devices = len(ids)
        response.device_ids.extend(ids)
        response.addressable_device_ids.extend(ids)
        if isinstance(program, MpmdProgram):
            program.describe_slices(response)

    return DeferredReply(fill=compile_)


def _loaded_executable_metadata(state: SessionState, body: Any, response: Any) -> None:
    state.program(body.loaded_executable_handle).describe(response)


def _loaded_executable_execute(state: SessionState, body: Any, response: Any) -> None:
    program = state.programs.get(body.loaded_executable_handle)
    if program is None:
        # The error is stored under the handles of results; without any, it is the reply.
        state.put(body.result_array_handle, lambda: [state.program(body.loaded_executable_handle)])  # type: ignore[list-item]
        return
    results: list[ProxyArray]
    waited: Sequence[ProxyArray | FileJob]
    try:
        _check_execution(body, program)
        arguments = state.arrays_of(body.args_handles)
        undonated = body.execute_options.non_donatable_input_indices
        if state.is_restricted:
            results, job = _start_restricted(state, program, arguments, undonated)
        else:
            results, job = _start(state, program, arguments, undonated)
        waited = results if job is None else [job]
    except Exception as error:
        results = program.fail(status_of(error))
        # A program without results reports its error by the future.
        waited = results or [ProxyArray(None, status_of(error))]
    handles = body.result_array_handle or state.new_handles(len(results))
    state.put(handles, lambda: results)
    if body.execute_options.fill_status:
        if body.result_status_handle:
            state.futures[body.result_status_handle] = waited
            response.status_handle = body.result_status_handle
        else:
            response.status_handle = state.add_future(waited)
    if not body.result_array_handle:
        for handle, result in zip(handles, results, strict=True):
            _describe_output(state, response.outputs.add(array_handle=handle), result)


def _start(
    state: SessionState, program: Program, arguments: Sequence[ProxyArray], undonated: Sequence[int]
) -> tuple[list[ProxyArray], FileJob | None]:
    """Starts an execution; returns its results, and the job of a program that uses files."""
    if isinstance(program, LoopingProgram):
        state.flush()
    if not isinstance(program, PersistenceProgram):
        return program.execute(arguments, undonated), None
    job = program.start(arguments, state.run)
    state.add_file_job(job)
    return list(job.results), job


def _start_restricted(
    state: SessionState, program: Program, arguments: Sequence[ProxyArray], undonated: Sequence[int]
) -> tuple[list[ProxyArray], FileJob | None]:
    """Starts an execution while islands are lost, or with a limit of memory.

    The memory that it needs is reserved before. With the memory that it consumes, it passes to the results,
    so that no other session can take any of it meanwhile.

    Raises:
      StatusError: the program is on a lost island.
      ResourceError: it needs too much memory.
    """
    lost = state.islands.lost & state.served.islands_of(program.devices)
    if lost:
        raise state.islands.refusal_of(lost)
    donated = [
        arguments[number] for number in set(program.donated) - set(undonated) if number < len(arguments)
    ]
    consumed = [allocation for array in donated for allocation in array.memory]
    reserved: tuple[Allocation, ...] = ()
    if isinstance(program, CompiledProgram):
        needed = program.needed_bytes - sum(allocation.size for allocation in consumed)
        reserved = state.served.memory.reserve([max(needed, 0)])
    try:
        results, job = _start(state, program, arguments, undonated)
        consumed = [allocation for array in donated if _is_deleted(array) for allocation in array.memory]
        return state.admit_results(results, [*reserved, *consumed]), job
    finally:
        for allocation in reserved:
            allocation.free()


def _is_deleted(array: ProxyArray) -> bool:
    return not isinstance(array.value, StatusError) and array.value.is_deleted()


def _describe_output(state: SessionState, output: Any, result: ProxyArray) -> None:
    if result.spec is None:
        result.read()
        return
    state.served.describe_dtype(output.dtype, result.spec.dtype)
    output.shape.dims.extend(result.spec.shape)
    state.served.describe_placement(output.sharding, result.spec.placement)


def _loaded_executable_fetch_execute_result(
    state: SessionState, body: Any, response: Any
) -> DeferredReply | None:
    waited = state.futures.pop(body.result_status_handle, None)
    if waited is None:
        raise StatusError(
            StatusCode.INVALID_ARGUMENT, f"no execution has the handle {body.result_status_handle}"
        )
    return wait_for(waited)


def _xla_program(state: SessionState, handle: int) -> XlaProgram:
    program = state.program(handle)
    if not isinstance(program, XlaProgram):
        raise StatusError(StatusCode.UNIMPLEMENTED, "the program is no XLA program")
    return program


def _mpmd_program(state: SessionState, handle: int) -> MpmdProgram:
    program = state.program(handle)
    if not isinstance(program, MpmdProgram):
        raise StatusError(StatusCode.UNIMPLEMENTED, "the program is not one of several meshes")
    return program


def _loaded_executable_cost_analysis(state: SessionState, body: Any, response: Any) -> None:
    program = _xla_program(state, body.loaded_executable_handle)
    response.attributes.SetInParent()
    for name, value in program.costs().items():
        response.attributes.attributes[name].float_value = value


def _loaded_executable_mpmd_metadata(state: SessionState, body: Any, response: Any) -> None:
    _mpmd_program(state, body.mpmd_loaded_executable_handle).describe_memory(response)


def _loaded_executable_mpmd_cost_analysis(state: SessionState, body: Any, response: Any) -> None:
    _mpmd_program(state, body.loaded_executable_handle).describe_costs(response)


def _loaded_executable_human_readable_program_text(state: SessionState, body: Any, response: Any) -> None:
    program = state.program(body.loaded_executable_handle)
    if not isinstance(program, RepliedRequest):
        program = _xla_program(state, body.loaded_executable_handle)
    response.human_readable_program_text = program.text()


def _loaded_executable_delete(state: SessionState, body: Any, response: Any) -> None:
    state.programs.pop(body.loaded_executable_handle, None)
    response.future_handle = state.add_future()


def _loaded_executable_is_deleted(state: SessionState, body: Any, response: Any) -> None:
    response.is_deleted = body.loaded_executable_handle not in state.programs


def _loaded_executable_destruct(state: SessionState, body: Any, response: Any) -> None:
    state.programs.pop(body.loaded_executable_handle, None)


_KNOWN_OPTIONS = frozenset({"call_location"})
"""Custom options of an execution that do not affect its results."""


def _check_execution(body: Any, program: Program) -> None:
    """Checks the devices and options of an execution.

    Raises:
      StatusError: the server does not support them.
    """
    devices = [device.id for device in program.devices]
    if body.device_ids and list(body.device_ids) != devices:
        raise StatusError(
            StatusCode.UNIMPLEMENTED,
            f"a program for devices {devices[:64]} cannot run on devices {list(body.device_ids[:64])}",
        )
    unknown = [name for name in body.execute_options.custom_options.attributes if name not in _KNOWN_OPTIONS]
    if unknown:
        raise StatusError(
            StatusCode.UNIMPLEMENTED,
            f"options of executions that the server does not know: {sorted(unknown)}"[:1000],
        )


HANDLERS: Mapping[str, Handler] = {
    "compile_request": _compile,
    "loaded_executable_metadata_request": _loaded_executable_metadata,
    "loaded_executable_execute_request": _loaded_executable_execute,
    "loaded_executable_fetch_execute_result_request": _loaded_executable_fetch_execute_result,
    "loaded_executable_cost_analysis_request": _loaded_executable_cost_analysis,
    "loaded_executable_mpmd_metadata_request": _loaded_executable_mpmd_metadata,
    "loaded_executable_mpmd_cost_analysis_request": _loaded_executable_mpmd_cost_analysis,
    "loaded_executable_human_readable_program_text_request": _loaded_executable_human_readable_program_text,
    "loaded_executable_delete_request": _loaded_executable_delete,
    "loaded_executable_is_deleted_request": _loaded_executable_is_deleted,
    "loaded_executable_destruct_request": _loaded_executable_destruct,
}
