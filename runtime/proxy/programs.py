"""Programs of clients: the kind of each, and its checks and compilation."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from jaxlib.mlir import ir

from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.compile_options import set_options
from pathways.runtime.proxy.loading.compile_process import Cancellation
from pathways.runtime.proxy.loading.mpmd_program import MpmdProgram
from pathways.runtime.proxy.loading.program_checks import check_module
from pathways.runtime.proxy.loading.xla_program import XlaProgram, XlaSource, type_of_main
from pathways.runtime.proxy.mpmd_programs import compile_mpmd_program
from pathways.runtime.proxy.persistence import PersistenceProgram, parse_read, parse_write
from pathways.runtime.proxy.plugin_programs import (
    RepliedRequest,
    ReshardProgram,
    parse_request,
    parse_reshard,
)
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError
from pathways.runtime.xla import pjrt

Program = XlaProgram | ReshardProgram | PersistenceProgram | RepliedRequest | MpmdProgram
"""Program that a client can execute."""


def compile_program(
    served: ServedDevices,
    program: Any,
    options: Any,
    watch: Callable[[str], AbstractContextManager[object]] = lambda _: contextlib.nullcontext(),
    cancellation: Cancellation | None = None,
    replies: Mapping[str, Callable[[Any], str]] | None = None,
) -> Program:
    """Compiles a serialised program for the devices that its options name.

    Args:
      served: the devices.
      program: the program of a `CompileRequest`.
      watch: returns the context in which a program with that name is compiled.
      cancellation: ends the compilation of a long program, and its loops.
      replies: by the kinds of requests, functions that return the reply to the content of a request.

    Raises:
      StatusError: the server or XLA rejects it.
    """
    kind = program.type_name.rpartition("::")[2]
    if kind == "PluginProgram":
        return _plugin_program(served, program.data, replies or {})
    if kind == "IfrtIRProgram":
        with watch("of several meshes"):
            return compile_mpmd_program(served, program.data, options.data, cancellation or Cancellation())
    if kind == "CustomCallProgram":
        raise StatusError(StatusCode.UNIMPLEMENTED, _COLOCATED)
    if kind != "XlaProgram":
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"programs of the kind {kind[:100]!r} are not supported by the server"
        )
    of_ifrt = served.messages.parse("xla.ifrt.XlaCompileOptionsProto", options.data)
    # Serialised again, since clients serialise maps in any order.
    key = of_ifrt.SerializeToString(deterministic=True)
    compiled = served.program_cache.find(program.data, key)
    if compiled is None:
        compiled = _compile_xla(served, program.data, of_ifrt, watch, cancellation or Cancellation())
        served.program_cache.add(program.data, key, compiled)
    return compiled


_COLOCATED = (
    "colocated Python is the program's, and runs in its own process: PjRtCompiler requires an HloProgram"
)
"""Refusal of colocated Python. With the last words, JAX runs the function in the process of the client."""


def _compile_xla(
    served: ServedDevices,
    data: bytes,
    of_ifrt: Any,
    watch: Callable[[str], AbstractContextManager[object]],
    cancellation: Cancellation,
) -> XlaProgram:
    source = _source(served, data, of_ifrt)
    with watch(source.name):
        program = served.backend.load(source, cancellation)
    return dataclasses.replace(program, memory=served.memory.reserve([program.facts.code_bytes]))


def _source(served: ServedDevices, data: bytes, of_ifrt: Any) -> XlaSource:
    """Returns the checked source of a program, with the options that it gets.

    Raises:
      StatusError: the server rejects it.
    """
    proto = of_ifrt.compile_options
    if of_ifrt.outputs_bundle_slice_sizes:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, "programs with bundles of results are not supported by the server"
        )
    build = proto.executable_build_options
    if build.num_replicas > 1:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, "programs of several replicas are not supported by the server"
        )
    assigned = build.device_assignment.computation_devices
    devices = tuple(
        served.device(entry.replica_device_ids[0]) for entry in assigned if entry.replica_device_ids
    )
    if not devices or len(devices) != max(build.num_partitions, 1):
        raise StatusError(
            StatusCode.UNIMPLEMENTED,
            "portable programs, which name no devices, are not supported by the server",
        )
    if len(set(devices)) != len(devices):
        raise StatusError(StatusCode.INVALID_ARGUMENT, "a program names a device twice")
    module = pjrt.parse(served.reader.read_stablehlo(data))
    check_module(module, served.platform)
    defaults = pjrt.compile_options(devices, 0, 0, served.backend.client).SerializeAsString()
    options = served.messages.parse("xla.CompileOptionsProto", defaults)
    main = type_of_main(module)
    set_options(options, proto, len(main.inputs), len(main.results))
    name = ir.StringAttr(module.operation.attributes["sym_name"]).value
    # Maps are in one order, so that a service recognizes a program that is started again.
    return XlaSource.of(name, data, module, options.SerializeToString(deterministic=True), devices)


_PLUGIN_PROGRAMS: Mapping[str, Callable[[ServedDevices, Any], ReshardProgram | PersistenceProgram]] = {
    "reshardRequest": parse_reshard,
    "bulk_persistence_write_request": parse_write,
    "bulk_persistence_read_request": parse_read,
}
"""Parsers of the requests of `pathwaysutils` and Orbax, by kind."""


def _plugin_program(
    served: ServedDevices, data: bytes, replies: Mapping[str, Callable[[Any], str]]
) -> ReshardProgram | PersistenceProgram | RepliedRequest:
    kind, body = parse_request(data)
    if kind in replies:
        return RepliedRequest(served.devices[:1], replies[kind](body))
    if kind not in _PLUGIN_PROGRAMS:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"plugin programs {kind[:100]!r} are not supported by the server"
        )
    return _PLUGIN_PROGRAMS[kind](served, body)
