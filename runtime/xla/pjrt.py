"""Private calls of jax and jaxlib, each with its reason.

All functions here are thin: their callers explain them. `docs.jax.dev` documents none of these names, so that
a new release of JAX is checked against this file first.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import jaxlib
import numpy as np
from jax._src import api_util, compiler, core, dispatch, dtypes, op_shardings, traceback_util
from jax._src.interpreters import mlir, pxla
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo as stablehlo
from jax._src.numpy import util as numpy_util
from jaxlib import _jax, _profiler, cpu_sparse, lapack, xla_client

from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.dialect.syntax.stablehlo import parse_module
from pathways.runtime.bundle.file import is_artifact

Aval = Any
"""`jax.core.ShapedArray`, possibly of an extended dtype such as a typed PRNG key."""

LoadedExecutable = Any
"""Executable of `jaxlib` that is loaded on its devices."""

ShardReader = Callable[[Any], Sequence[Any]]
"""Function that returns the shards of the value in a slot, which is an array or a list of shards."""

ShardMaker = Callable[[Sequence[Any]], Any]
"""Function that returns the value of a slot for its shards: an array, or the list of shards itself."""

# Public `jax.device_put` costs 25 us for each array; this costs 2.7 us and takes several at once.
copy_arrays = xla_client.batched_copy_array_to_devices_with_sharding
# The other semantics may alias the source, which a later donation would delete.
ALWAYS_COPY = xla_client.ArrayCopySemantics.ALWAYS_COPY

# Returns whether any profile is being recorded, in 0.02 us. JAX has no public function for that.
is_profiled: Callable[[], bool] = _profiler.TraceMe.is_enabled

# Computations of other processes may call these; JAX itself registers them with `jax.experimental.sparse`.
for _name, _function, _version in cpu_sparse.registrations()["cpu"]:
    jax.ffi.register_ffi_target(_name, _function, platform="cpu", api_version=_version)

_persistent_cache = threading.local()


def _note_cache_hit(event: str, **_: str | int) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _persistent_cache.hit = True


jax.monitoring.register_event_listener(_note_cache_hit)


def device_put(arrays: Any, places: Any, **options: Any) -> Any:
    """Copies values to devices at once, as `jax.device_put` does, even while JAX is tracing a function.

    `jax.device_put` itself would return tracers then. The public `jax.ensure_compile_time_eval` avoids that,
    too, but functions that were compiled in it are compiled again outside of it.
    """
    with core.eval_context():
        return jax.device_put(arrays, places, **options)


def put_shard(data: Any, device: jax.Device, sharding: jax.sharding.Sharding, **options: Any) -> jax.Array:
    """Copies the shard of an array to its device, in the memory of the array's sharding."""
    place = jax.sharding.SingleDeviceSharding(device, memory_kind=sharding.memory_kind)
    return jax.device_put(data, place, **options)


def is_proxied(device: jax.Device) -> bool:
    """Returns whether a device belongs to a server, such as `pw-proxy`, in the process of a client."""
    return device.client.runtime_type.startswith("proxy/")


def platform_of(device: jax.Device) -> str:
    """Returns the platform that a device runs code for: cpu, cuda, rocm, tpu.

    The public name of both kinds of GPU is gpu, which does not distinguish their code.
    """
    return getattr(device.client, "_raw_platform", device.platform)


def device_list(devices: Sequence[jax.Device]) -> Any:
    """Returns the list of devices in the form that the calls of jaxlib accept."""
    return _jax.DeviceList(tuple(devices))


def memory_space(kind: str | None) -> Any:
    """Returns the memory in the types of arrays of a memory kind; None is the default memory of devices."""
    return core.mem_kind_to_space(kind)


def compile_options(devices: Sequence[Any], operands: int, results: int, client: Any = None) -> Any:
    """Returns the options with which `jax.jit` compiles a module for `devices`.

    JAX's own helper reads XLA_FLAGS, jax.config and the settings of the calling thread, so it must run in the
    thread of the caller, not in one that compiles.

    Args:
      operands: the number of operands of the module.
      results: the number of its results.
      client: the client of the devices; by default the client of the first one.
    """
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array(devices, dtype=object).reshape(1, -1),
        detailed_logging=False,
        backend=client or devices[0].client,
    )
    build = options.executable_build_options
    # The plan has decided all shardings: with another one the buffers of a launch would be read in a layout
    # that they do not have, since executables do not check their operands.
    build.allow_spmd_sharding_propagation_to_parameters = [False] * operands
    build.allow_spmd_sharding_propagation_to_output = [False] * results
    return options


def fingerprint(devices: Sequence[jax.Device], operands: int, results: int) -> bytes:
    """Returns a key of all that XLA's code for a module depends on, except the module: platform and options.

    The key has the number of devices but not their ids, so that an executable can be loaded on others.
    """
    options = compile_options(devices, operands, results)
    # Any devices will do: the ids must not be in the key.
    options.device_assignment = _jax.DeviceAssignment.create(np.arange(len(devices)).reshape(1, -1))
    client = devices[0].client
    return f"{client.platform} {client.platform_version} {devices[0].device_kind} ".encode() + (
        options.SerializeAsString()
    )


def environment(devices: Sequence[jax.Device]) -> bytes:
    """Returns a key of all that serialised code depends on besides its `fingerprint`.

    The key has the versions of jax and jaxlib, flags, and the machine.

    On CPU the machine is the instruction set, which the name of the platform does not include. JAX's own
    persistent cache uses the topology, which also counts the devices of the process.
    """
    flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    machine = _instruction_set() if devices[0].platform == "cpu" else _topology(devices)
    return repr((jax.__version__, jaxlib.__version__, machine, flags)).encode()


def _topology(devices: Sequence[jax.Device]) -> int:
    try:
        return xla_client.get_topology_for_devices(list(devices)).fingerprint()
    except jax.errors.JaxRuntimeError:  # The platform has none.
        return 0


@functools.cache
def _instruction_set() -> tuple[str, ...]:
    """Returns the kind of the processor, and its features as Linux lists them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = [line for line in lines if line.startswith(("flags", "Features"))]
    return platform.machine(), platform.processor(), *features[:1]


def portable_artifact(module: bytes) -> bytes:
    """Converts MLIR bytecode of StableHLO, CHLO and Shardy to an artifact for other releases of jaxlib.

    Unlike the one of the bindings, this serialiser of JAX keeps CHLO operations as composites, which XLA
    compiles to the same code as the originals, and writes shardings as attributes that XLA knows.
    """
    version = stablehlo.get_version_from_compatibility_requirement(
        stablehlo.StablehloCompatibilityRequirement.WEEK_12
    )
    return _jax.mlir.serialize_portable_artifact(_with_jax_mesh(module), version, False)


def _with_jax_mesh(module: bytes) -> bytes:
    """Returns a module whose only mesh has JAX's name, `mesh`.

    XLA aborts on an artifact with a manual computation over a mesh of any other name, since the artifact
    refers to the mesh in text.
    """
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        parsed = ir.Module.parse(module)
        meshes = [op.attributes["sym_name"].value for op in parsed.body.operations if op.name == "sdy.mesh"]
        if len(meshes) != 1 or meshes == ["mesh"]:
            return module
        text = re.sub(rf"@{re.escape(meshes[0])}\b", "@mesh", str(parsed))
        if "sdy.manual_computation" not in text:
            return module
        return bytecode_of(ir.Module.parse(text))


def compile_and_load(
    module: bytes, devices: Sequence[jax.Device], options: Any, callbacks: Sequence[object] = ()
) -> tuple[LoadedExecutable, bool]:
    """Compiles MLIR bytecode for `devices`; returns the executable and whether it may be serialised.

    JAX's entry point also uses its persistent compilation cache and writes its dumps. An executable from that
    cache was deserialised, and serialising such an executable again loses its code.
    """
    # JAX calls listeners of events in the thread that compiles: this one.
    _persistent_cache.hit = False
    executable = compiler.compile_or_get_cached(
        devices[0].client,
        parse(module),
        np.array(devices, dtype=object),
        options,
        list(callbacks),
        device_list(devices),
    )
    return executable, not _persistent_cache.hit


def compile_anew(module: bytes, devices: Sequence[jax.Device], options: Any) -> LoadedExecutable:
    """Compiles MLIR bytecode for `devices`, past JAX's persistent compilation cache."""
    return compile_module(parse(module), devices, options)


def compile_module(module: Any, devices: Sequence[jax.Device], options: Any) -> LoadedExecutable:
    """Compiles a module from `parse` for `devices`, past JAX's persistent compilation cache."""
    return compiler.backend_compile_and_load(devices[0].client, module, device_list(devices), options, [])


def parse(module: bytes) -> Any:
    """Parses bytecode or a portable artifact; returns the module, with the name that JAX's compiler requires.

    Raises:
      JaxRuntimeError: the bytes are neither.
    """
    context = mlir.make_ir_context()
    try:
        parsed = parse_module(module, context, is_artifact=is_artifact(module))
    except ValueError as error:
        raise jax.errors.JaxRuntimeError(f"INVALID_ARGUMENT: {error}") from None
    if "sym_name" not in parsed.operation.attributes:
        parsed.operation.attributes["sym_name"] = ir.StringAttr.get("main", context)
    return parsed


def shared_library() -> Path:
    """Returns the shared library of jaxlib, which also contains the descriptors of its protocols."""
    folder = Path(jaxlib.__file__).parent
    return next(
        (path for path in folder.glob("libjax_common.*") if path.is_file()), folder / "libjax_common.so"
    )


def initialize_lapack() -> None:
    """Enables LAPACK calls of CPU executables, which crash otherwise; JAX does so when it lowers one."""
    lapack.prepare_lapack_call("potrf_ffi", np.float32)


def serialize(executable: LoadedExecutable) -> bytes | None:
    """Returns the executable as bytes for `deserialize`; None if the platform does not support that."""
    try:
        return executable.serialize()
    except jax.errors.JaxRuntimeError:
        return None


def deserialize(raw: bytes, devices: Sequence[jax.Device], options: Any) -> LoadedExecutable:
    """Loads a serialised executable on `devices`, which may be others than those it was compiled for.

    `options` must belong to these devices: without an assignment, the executable loads but does not run.
    """
    return devices[0].client.deserialize_executable(raw, device_list(devices), options)


def device_assignment(devices: Sequence[jax.Device]) -> Any:
    """Returns the assignment of the partitions of a program to devices, for its compile options."""
    return _jax.DeviceAssignment.create(np.array([[device.id for device in devices]]))


def memory_stats(executable: LoadedExecutable) -> Any | None:
    """Returns XLA's analysis of the memory of an executable, in bytes for each device; None if it has none.

    The object is the one that `jax.stages.Compiled.memory_analysis()` returns.
    """
    try:
        return executable.get_compiled_memory_stats()
    except jax.errors.JaxRuntimeError:
        return None


def flops_of(executable: LoadedExecutable) -> float:
    """Returns the floating-point operations of one launch by XLA's estimate, on all its devices."""
    return float(executable.cost_analysis().get("flops", 0.0))


def execute_to_shards(executable: LoadedExecutable, operands: list[Any]) -> list[list[Any]]:
    """Runs an executable; returns the shards of each result, in whatever sharding XLA chose."""
    return executable.execute_sharded(operands).disassemble_into_single_device_arrays()


def checks_values() -> bool:
    """Returns whether `jax_debug_nans` or `jax_debug_infs` is set, globally or in this thread."""
    return dispatch.needs_check_special()


def without_donation(
    execute: Callable[..., Any], donated: Sequence[int], devices: Sequence[jax.Device]
) -> Callable[..., Any]:
    """Returns a function that executes on copies of donated operands, so that a launch can be repeated."""
    lists = [device_list(devices)]

    def launch(operands: list[Any], *options: Any) -> Any:
        copied = list(operands)
        for number in donated:
            array = operands[number]
            (copied[number],) = copy_arrays([array], lists, [array.sharding], [ALWAYS_COPY])
        return execute(copied, *options)

    return launch


def result_handler(aval: Aval, sharding: jax.sharding.Sharding, name: str) -> Any:
    """Returns a handler that wraps the buffers of a result into a `jax.Array` with that aval and sharding.

    With jax_debug_nans or jax_debug_infs set, the handler raises a FloatingPointError with `name`.
    """
    handler: Any = pxla.global_aval_to_result_handler(aval, sharding, True)
    # Decided when the program is loaded, so that launches pay nothing; programs are keyed by these settings.
    if not checks_values():
        return handler

    def check(array: Any) -> Any:
        try:
            return dispatch.check_special_array(name, array)
        except api_util.InternalFloatingPointError as error:
            raise FloatingPointError(f"{name}: invalid value ({error.ty}) in a result") from None

    return handler.pre_wrap(check)


def misplaced(
    executable: LoadedExecutable,
    kind: str,
    shardings: Sequence[jax.sharding.NamedSharding],
    ranks: Sequence[int],
) -> tuple[int, str] | None:
    """Returns the number of the first operand or result that XLA gave another sharding, and that sharding.

    Args:
      executable: an executable for more than one device.
      kind: `operand` or `result`.
      shardings: the expected sharding of each.
      ranks: the number of dimensions of each.
    """
    protos = executable.get_parameter_shardings() if kind == "operand" else executable.get_output_shardings()
    # An executable without results returns an empty tuple, which has a sharding, too.
    if protos is None or not shardings:
        return None
    for number, (proto, sharding, rank) in enumerate(zip(protos, shardings, ranks, strict=True)):
        chosen = xla_client.HloSharding.from_proto(proto)
        if not op_shardings.are_hlo_shardings_equal(chosen, sharding._to_xla_hlo_sharding(rank)):
            return number, str(chosen)
    return None


def register_handle(kind: type, refuse: Callable[[Any], NoReturn]) -> None:
    """Registers a class of arrays whose types JAX may read, as `jax.eval_shape` does, but not their values.

    JAX has no hook for that. Its functions inspect an argument in one of the ways below; `jnp.asarray` reads
    `__array__` alone.

    Args:
      kind: the class; its objects have an `aval`.
      refuse: raises the error of a function that needs a value. JAX would replace a TypeError by its own.
    """

    def aval_of(handle: Any) -> Aval:
        # Callers that need a type alone and callers that need a value use one table, so the caller decides.
        if sys._getframe(1).f_code is not core.shaped_abstractify.__code__:
            refuse(handle)
        return handle.aval

    def as_array(handle: Any) -> NoReturn:
        # `jax.numpy` and `jax.random` test their arguments for this attribute.
        if sys._getframe(1).f_code is numpy_util._arraylike.__code__:
            refuse(handle)
        raise AttributeError(f"{kind.__name__!r} object has no attribute '__jax_array__'")

    core.pytype_aval_mappings[kind] = aval_of
    dtypes.canonicalize_value_handlers[kind] = refuse
    kind.__jax_array__ = property(as_array)  # type: ignore[attr-defined]


def rewrap(aval: Aval, sharding: jax.sharding.Sharding, *, committed: bool = True) -> Callable[[Any], Any]:
    """Returns a function that wraps the buffers of an array with another aval: weak type, extended dtype.

    The buffers of an array are private, and the public way to get them costs ten times as much.
    """
    handler = pxla.global_aval_to_result_handler(aval, sharding, committed)
    return lambda array: handler(array._arrays)


def key_maker(aval: Aval) -> Callable[[jax.Array], jax.Array]:
    """Returns a function that makes typed PRNG keys of their words; the name of a kind is public for arrays
    alone."""
    kind = aval.dtype._impl.name
    return lambda words: jax.random.wrap_key_data(words, impl=kind)


def start_profile() -> Any | None:
    """Starts a profile of XLA's own events, without Python; returns None if another profile is running.

    The public `jax.profiler.ProfileSession` would also make `jax.profiler.trace` of the user fail, and does
    not exist in JAX 0.11.
    """
    if is_profiled():
        return None
    options = _profiler.ProfileOptions()
    options.host_tracer_level = 1
    options.python_tracer_level = 0
    return _profiler.ProfilerSession(options)


def stop_profile(session: Any) -> jax.profiler.ProfileData | None:
    """Stops a profile and returns it; None if another session had started first."""
    try:
        return session.stop_and_get_profile_data()
    except jax.errors.JaxRuntimeError:
        return None


def shards_of(array: Any) -> list[Any]:
    """Returns the shards of an array as arrays of one device each, in the order of its devices.

    Raises:
      RuntimeError: the array was deleted; `_arrays` is empty then.
    """
    array._check_if_deleted()
    return array._arrays


def shard_joiner(aval: Aval, sharding: jax.sharding.Sharding) -> Callable[[Sequence[Any]], Any]:
    """Returns a function that joins shards to an array, the reverse of `shards_of`."""
    return pxla.global_aval_to_result_handler(aval, sharding, True)


def route(
    routes: Sequence[Sequence[tuple[int, int]]],
    devices: Sequence[jax.Device],
    read: Sequence[ShardReader],
    join: Sequence[ShardMaker],
    kind: str | None = None,
) -> Callable[[list[Any]], list[Any]]:
    """Returns a function that copies single shards of arrays, and joins the copies to other arrays.

    The batched copy pairs the devices of an array one to one, so it gets single-device arrays, one for each
    shard of the results.

    Args:
      routes: for each result and each of `devices`, the position of an operand and of one of its shards.
      devices: the devices of the results.
      read: returns the shards of each operand.
      join: joins the shards of each result.
      kind: the memory kind of the copies; None for the default memory of devices.
    """
    picks = [pick for result in routes for pick in result]
    lists = [device_list((device,)) for device in devices] * len(routes)
    places: list[Any] = [jax.sharding.SingleDeviceSharding(device, memory_kind=kind) for device in devices]
    shardings = places * len(routes)
    semantics = [ALWAYS_COPY] * len(picks)
    count = len(devices)

    def copy(operands: list[Any]) -> list[Any]:
        shards = [take(operand) for take, operand in zip(read, operands, strict=True)]
        sources = [shards[operand][device] for operand, device in picks]
        copies = copy_arrays(sources, lists, shardings, semantics)
        return [make(copies[n * count : (n + 1) * count]) for n, make in enumerate(join)]

    return copy


def on_each_device(
    executables: Sequence[LoadedExecutable],
    devices: Sequence[jax.Device],
    shards: Sequence[tuple[Aval, str | None]],
    read: Sequence[ShardReader],
    join: Sequence[ShardMaker],
) -> Callable[[list[Any]], list[Any]]:
    """Returns a function that launches an executable on each device by itself, on the shards of that device.

    Args:
      executables: one for each device.
      shards: the avals of the results of each executable, and their memory kinds.
      read: returns the shards of each operand.
      join: joins the shards of each result.
    """
    launches = [
        (
            executable.execute_sharded,
            [
                shard_joiner(aval, jax.sharding.SingleDeviceSharding(device, memory_kind=kind))
                for aval, kind in shards
            ],
        )
        for executable, device in zip(executables, devices, strict=True)
    ]

    def launch(operands: list[Any], launch_id: int | None = None) -> list[Any]:
        by_operand = [take(operand) for take, operand in zip(read, operands, strict=True)]
        results = [
            execute(list(local), False, launch_id).consume_with_handlers(handlers)
            for (execute, handlers), local in zip(launches, zip(*by_operand, strict=True), strict=True)
        ]
        return [make(result) for make, result in zip(join, zip(*results, strict=True), strict=True)]

    return launch


def token_registrar(devices: Sequence[jax.Device]) -> Callable[[Any], None]:
    """Returns a function that registers the token of an execution with side effects in JAX.

    `jax.effects_barrier` and the exit of the process wait for these tokens. No public function sets them.
    """

    def register(token: Any) -> None:
        for index, device in enumerate(devices):
            dispatch.runtime_tokens.set_output_runtime_token(device, token.get_token(index))

    return register


def exclude_from_tracebacks(folder: str) -> None:
    """Makes JAX hide frames of code in a folder in tracebacks, as it hides its own."""
    traceback_util.register_exclusion(folder)


def traceback_filtering() -> str:
    """Returns the setting `jax_traceback_filtering`, with `auto` resolved."""
    return traceback_util._filtering_mode()


def is_tracing() -> bool:
    """Returns whether a function is being traced, so that a boundary of JAX or of ours is around it."""
    return not core.trace_state_clean()


def is_excluded_from_tracebacks(file: str) -> bool:
    """Returns whether a file is of JAX, or excluded from tracebacks: JAX does not exclude all its files."""
    return file.startswith(jax.__path__[0]) or not traceback_util.include_filename(file)


def unfiltered(error: BaseException) -> Exception:
    """Returns the error that JAX sets as the cause of another to show all frames; no public call does so."""
    message = f"{traceback_util.format_exception_only(error)}\n\n{traceback_util._jax_message_append}"
    return traceback_util.UnfilteredStackTrace(message).with_traceback(error.__traceback__)


def is_unfiltered(error: BaseException | None) -> bool:
    """Returns whether an error was created by `unfiltered` or, in the same role, by JAX."""
    return isinstance(error, traceback_util.UnfilteredStackTrace)
