"""Compilation of programs on several meshes: of Shardy's MPMD compiler, and of Pathways."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
from jaxlib.mlir import ir

from pathways.dialect.operations.bindings import make_context
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.bundle.carrier import bundle_in
from pathways.runtime.bundle.file import Bundle, parse
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.bundle.program import read_program
from pathways.runtime.plan.stored import Stored
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.local_mpmd import status_of_program
from pathways.runtime.proxy.loading.mpmd_program import MpmdProgram
from pathways.runtime.proxy.loading.mpmd_source import MpmdInterface, MpmdSource
from pathways.runtime.proxy.loading.program_checks import check_module
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError


def compile_mpmd_program(served: ServedDevices, program: bytes, options: bytes) -> MpmdProgram:
    """Compiles a serialised `IfrtIRProgram`, or the bundle in it, for the devices that its options name.

    Raises:
      StatusError: the server or XLA rejects it.
    """
    proto = served.messages.parse("xla.ifrt.IfrtIrProgramProto", program)
    bundle = bundle_in(proto.ifrt_program)
    if bundle is None and served.schedule_ifrt is None:
        raise StatusError(StatusCode.UNIMPLEMENTED, "programs in IFRT IR are not supported by the server")
    if proto.HasField("ifrt_version") or proto.atom_programs:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, "versioned programs in IFRT IR are not supported by the server"
        )
    compile_options = served.messages.parse("xla.ifrt.IfrtIrCompileOptionsProto", options)
    if compile_options.mlir_dump_to or compile_options.dot_graph_dump_to:
        raise StatusError(
            StatusCode.PERMISSION_DENIED, "the compiler options would have the server use files"
        )
    if any(value.env_option_overrides for value in compile_options.compile_option_overrides.values()):
        raise StatusError(
            StatusCode.UNIMPLEMENTED,
            "compiler options for the computations of a program in IFRT IR are not supported by the server",
        )
    devices = tuple(served.device(number) for number in compile_options.device_ids)
    if bundle is not None:
        served.reader.check_bundle(bundle)
    else:
        module = served.reader.read_ifrt(proto.ifrt_program)
    try:
        if bundle is not None:
            source = _source_of(served, parse(bundle, "the program"), devices)
        else:
            assert served.schedule_ifrt is not None
            source = served.schedule_ifrt(module, devices, served.platform)
        compiled = served.backend.load_mpmd(source)
    except Exception as error:
        raise status_of_program(error) from None
    memory = served.memory.reserve([compiled.code_bytes])
    default_memory = served.backend.devices[0].facts.default_memory
    return dataclasses.replace(compiled, memory=memory, default_memory=default_memory)


def _source_of(served: ServedDevices, bundle: Bundle, devices: Sequence[Any]) -> MpmdSource:
    """Returns the program of a bundle that was checked, for devices of its slices, one slice after the other.

    Its computations are bytecode that MLIR has written here: XLA reads no bytes of a client.

    Raises:
      BundleError: it is for another platform, or for another number of devices.
      StatusError: a computation is not allowed for clients.
    """
    manifest = bundle.manifest
    if manifest.platform != served.platform:
        raise BundleError(
            f"compiled for platform {manifest.platform}, but these are {served.platform} devices"
        )
    if sum(slice.size for slice in manifest.slices) != len(devices):
        raise BundleError(f"its slices have other devices than the {len(devices)} of the request")
    program = read_program(bundle)
    if program.calls is not None:
        raise BundleError("loops whose end depends on values are not supported in a proxied process")
    (part,) = program.sub_programs.values()
    stored = {
        name: msgspec.structs.replace(computation, module=_checked(served, computation.module))
        for name, computation in part.stored.computations.items()
    }
    computations = {
        name: dataclasses.replace(computation, module=stored[name].module)
        for name, computation in part.plan.computations.items()
    }
    plan = dataclasses.replace(part.plan, computations=computations)
    remaining = iter(devices)
    slices = {slice.name: tuple(itertools.islice(remaining, slice.size)) for slice in manifest.slices}
    return MpmdSource(
        part.module,
        plan,
        Stored(stored, part.stored.constants),
        MpmdInterface.of(plan, devices, slices, by_port=True),
        tuple(leaf.name for leaf in manifest.arguments),
    )


def _checked(served: ServedDevices, artifact: bytes) -> bytes:
    """Returns the bytecode of a computation, which was checked as one of `jax.jit`.

    Raises:
      StatusError: the server must not compile it.
    """
    module = ir.Module.parse(served.reader.read_stablehlo(bytes(artifact)), make_context())
    check_module(module, served.platform)
    return bytecode_of(module)
