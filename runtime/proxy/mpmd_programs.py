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
from pathways.runtime.bundle.carrier import bundle_in, digest_of
from pathways.runtime.bundle.file import Bundle, parse
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.bundle.program import StoredSubProgram, read_program
from pathways.runtime.plan.stored import Stored
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.compile_process import Cancellation
from pathways.runtime.proxy.loading.local_mpmd import status_of_program
from pathways.runtime.proxy.loading.looping_program import LoopingProgram
from pathways.runtime.proxy.loading.mpmd_program import MpmdProgram
from pathways.runtime.proxy.loading.mpmd_source import MpmdInterface, MpmdSource, SliceDevices
from pathways.runtime.proxy.loading.program_checks import check_module
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError


def compile_mpmd_program(
    served: ServedDevices, program: bytes, options: bytes, cancellation: Cancellation
) -> MpmdProgram:
    """Compiles a serialised `IfrtIRProgram`, or the bundle in it, for the devices that its options name.

    Args:
      cancellation: ends its loops.

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
            compiled = _load_bundle(served, parse(bundle, "the program"), devices, cancellation)
        else:
            assert served.schedule_ifrt is not None
            source = served.schedule_ifrt(module, devices, served.platform)
            compiled = served.backend.load_mpmd(source)
    except Exception as error:
        raise status_of_program(error) from None
    memory = served.memory.reserve([compiled.code_bytes])
    default_memory = served.backend.devices[0].facts.default_memory
    digest = "" if bundle is None else digest_of(bundle)
    return dataclasses.replace(compiled, memory=memory, default_memory=default_memory, digest=digest)


def _load_bundle(
    served: ServedDevices, bundle: Bundle, devices: Sequence[Any], cancellation: Cancellation
) -> MpmdProgram:
    """Loads the program of a bundle that was checked, for devices of its slices, one slice after the other.

    Raises:
      BundleError: it is for another platform, or for another number of devices.
      StatusError: a computation is not allowed for clients.
      Exception: see `Backend.load_mpmd`.
    """
    manifest = bundle.manifest
    if manifest.platform != served.platform:
        raise BundleError(
            f"compiled for platform {manifest.platform}, but these are {served.platform} devices"
        )
    if sum(slice.size for slice in manifest.slices) != len(devices):
        raise BundleError(f"its slices have other devices than the {len(devices)} of the request")
    program = read_program(bundle)
    remaining = iter(devices)
    slices = {slice.name: tuple(itertools.islice(remaining, slice.size)) for slice in manifest.slices}
    names = tuple(leaf.name for leaf in manifest.arguments)
    if program.calls is None:
        return served.backend.load_mpmd(_source_of(served, program.sub_programs[""], devices, slices, names))
    operands = {call.sub_program: call.operands for call in program.calls.calls}
    sub_programs = {}
    for name, part in program.sub_programs.items():
        own_names = tuple(names[n] if n < len(names) else f"value {n}" for n in operands[name])
        source = _source_of(served, part, devices, slices, own_names)
        sub_programs[name] = served.backend.load_mpmd(source)
    plans = {name: part.plan for name, part in program.sub_programs.items()}
    ports = program.calls.plan_of_ports(manifest.name, plans)
    interface = MpmdInterface.of(ports, devices, slices, by_port=True)
    used = served.islands_of(interface.devices)

    def check() -> None:
        """Raises an error if no further chunk of a loop may run."""
        if cancellation.is_requested:
            raise StatusError(StatusCode.CANCELLED, f"program '{manifest.name}': the session has ended")
        states = served.island_states
        if states.lost & used:
            raise states.refusal_of(states.lost & used)

    return LoopingProgram.of(
        program.calls,
        interface,
        sub_programs=sub_programs,
        plans=plans,
        engine=served.engine,
        check=check,
        step_deadline=served.backend.step_deadline,
    )


def _source_of(
    served: ServedDevices,
    part: StoredSubProgram,
    devices: Sequence[Any],
    slices: SliceDevices,
    argument_names: tuple[str, ...],
) -> MpmdSource:
    """Returns a program or sub-program of a bundle for the devices of its slices.

    Its computations are bytecode that MLIR has written here: XLA reads no bytes of a client.

    Raises:
      StatusError: a computation is not allowed for clients.
    """
    stored = {
        name: msgspec.structs.replace(computation, module=_checked(served, computation.module))
        for name, computation in part.stored.computations.items()
    }
    computations = {
        name: dataclasses.replace(computation, module=stored[name].module)
        for name, computation in part.plan.computations.items()
    }
    plan = dataclasses.replace(part.plan, computations=computations)
    return MpmdSource(
        part.module,
        plan,
        Stored(stored, part.stored.constants),
        MpmdInterface.of(plan, devices, slices, by_port=True),
        argument_names,
    )


def _checked(served: ServedDevices, artifact: bytes) -> bytes:
    """Returns the bytecode of a computation, which was checked as one of `jax.jit`.

    Raises:
      StatusError: the server must not compile it.
    """
    module = ir.Module.parse(served.reader.read_stablehlo(bytes(artifact)), make_context())
    check_module(module, served.platform)
    return bytecode_of(module)
