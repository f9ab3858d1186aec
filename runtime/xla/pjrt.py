"""The one module that makes private calls of jax and jaxlib, each with its reason.

Everything here is thin: what a call means is said by its callers. `docs.jax.dev` documents none of these
names, so a new JAX release is checked against this file alone.
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
from jaxlib import _jax, _profiler, lapack, xla_client

from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.dialect.syntax.stablehlo import parse_module
from pathways.runtime.bundle.file import is_artifact

Aval = Any
"""A `jax.core.ShapedArray`, possibly of an extended dtype such as a typed PRNG key."""

LoadedExecutable = Any
"""A `jaxlib` executable that is loaded on its devices."""

ShardReader = Callable[[Any], Sequence[Any]]
"""Makes the shards of what is in a slot: an array, or shards already."""

ShardMaker = Callable[[Sequence[Any]], Any]
"""Makes what is in a slot of its shards: an array, or shards as they are."""

# Public `jax.device_put` costs 25 us for each array; this costs 2.7 us and takes several at once.
copy_arrays = xla_client.batched_copy_array_to_devices_with_sharding
# The other semantics may alias the source, which a later donation would delete.
ALWAYS_COPY = xla_client.ArrayCopySemantics.ALWAYS_COPY

# Whether a profile is being taken, by whomever: 0.02 us. Nothing public tells.
is_profiled: Callable[[], bool] = _profiler.TraceMe.is_enabled

_persistent_cache = threading.local()


def _note_cache_hit(event: str, **_: str | int) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _persistent_cache.hit = True


jax.monitoring.register_event_listener(_note_cache_hit)


def device_put(arrays: Any, places: Any, **options: Any) -> Any:
    """Copies values to devices at once, as `jax.device_put` does unless JAX is tracing a function.

    Then that would make tracers of them. The public `jax.ensure_compile_time_eval` does the same, but what is
    compiled in it is compiled anew outside of it.
    """
    with core.eval_context():
        return jax.device_put(arrays, places, **options)


def platform_of(device: jax.Device) -> str:
    """The platform that a device runs code for: cpu, cuda, rocm, tpu.

    The public name of both kinds of GPU is gpu, which does not say whose code runs there.
    """
    return getattr(device.client, "_raw_platform", device.platform)


def device_list(devices: Sequence[jax.Device]) -> Any:
    """The list of devices in the form in which every other call here takes it."""
    return _jax.DeviceList(tuple(devices))


def compile_options(devices: Sequence[jax.Device], operands: int, results: int) -> Any:
    """The options with which `jax.jit` compiles a module of so many operands and results for `devices`.

    JAX's own helper reads XLA_FLAGS, jax.config and the settings of the calling thread, so it runs in the
    thread of the caller and not in the one that compiles.
    """
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array(devices, dtype=object).reshape(1, -1),
        detailed_logging=False,
        backend=devices[0].client,
    )
    build = options.executable_build_options
    build.allow_spmd_sharding_propagation_to_parameters = [False] * operands
    build.allow_spmd_sharding_propagation_to_output = [False] * results
    return options


def fingerprint(devices: Sequence[jax.Device], operands: int, results: int) -> bytes:
    """What the code that XLA makes of a module depends on, besides the module: platform and options.

    Says how many devices but not which, so that an executable can be loaded on others.
    """
    options = compile_options(devices, operands, results)
    options.device_assignment = _jax.DeviceAssignment.create(np.arange(len(devices)).reshape(1, -1))
    client = devices[0].client
    return f"{client.platform} {client.platform_version} {devices[0].device_kind} ".encode() + (
        options.SerializeAsString()
    )


def environment(devices: Sequence[jax.Device]) -> bytes:
    """What serialised code depends on besides its `fingerprint`: versions, flags, and the machine.

    On a CPU the machine is its instruction set, which the name of the platform does not say. JAX keys its
    own persistent cache with the topology, which also counts the devices of the process.
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
    """The kind of processor, and what Linux says that it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = [line for line in lines if line.startswith(("flags", "Features"))]
    return platform.machine(), platform.processor(), *features[:1]


def portable_artifact(module: bytes) -> bytes:
    """MLIR bytecode of StableHLO, CHLO and Shardy as an artifact that other releases of jaxlib read.

    This serialiser of JAX, unlike the bindings' own, keeps CHLO operations as composites, from which XLA
    makes the same code as from the originals, and writes shardings as attributes that XLA knows.
    """
    version = stablehlo.get_version_from_compatibility_requirement(
        stablehlo.StablehloCompatibilityRequirement.WEEK_12
    )
    return _jax.mlir.serialize_portable_artifact(_with_jax_mesh(module), version, False)


def _with_jax_mesh(module: bytes) -> bytes:
    """A module whose only mesh is called `mesh`, as JAX calls it.

    XLA aborts on an artifact with a manual computation over a mesh of another name, which it keeps as text.
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

    JAX's own entry point also serves its persistent compilation cache and its dumps. An executable that
    came out of that cache was deserialised, and serialising such a one loses its code.
    """
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
    """Compiles what `parse` has returned for `devices`, past JAX's persistent compilation cache."""
    return compiler.backend_compile_and_load(devices[0].client, module, device_list(devices), options, [])


def parse(module: bytes) -> Any:
    """A module of bytecode or a portable artifact, with the name that JAX's compiler asks for.

    Raises:
      JaxRuntimeError: it is neither.
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
    """The shared library of jaxlib, which also holds the descriptors of the protocols that it speaks."""
    folder = Path(jaxlib.__file__).parent
    return next(
        (path for path in folder.glob("libjax_common.*") if path.is_file()), folder / "libjax_common.so"
    )


def initialize_lapack() -> None:
    """Lets CPU executables call LAPACK; JAX does so when it lowers such a call, and they crash without."""
    lapack.prepare_lapack_call("potrf_ffi", np.float32)


def serialize(executable: LoadedExecutable) -> bytes | None:
    """The executable as bytes for `deserialize`, or None where the platform cannot."""
    try:
        return executable.serialize()
    except jax.errors.JaxRuntimeError:
        return None


def deserialize(raw: bytes, devices: Sequence[jax.Device], options: Any) -> LoadedExecutable:
    """Loads a serialised executable on `devices`, which may be others than those it was compiled for.

    `options` must be made for these devices: without an assignment it loads and then refuses to run.
    """
    return devices[0].client.deserialize_executable(raw, device_list(devices), options)


def memory_stats(executable: LoadedExecutable) -> Any | None:
    """XLA's own analysis of the memory of an executable, in bytes for each device; None where it makes none.

    The object that `jax.stages.Compiled.memory_analysis()` returns.
    """
    try:
        return executable.get_compiled_memory_stats()
    except jax.errors.JaxRuntimeError:
        return None


def execute_to_shards(executable: LoadedExecutable, operands: list[Any]) -> list[list[Any]]:
    """Runs an executable; returns for each result its shards, however XLA laid it out."""
    return executable.execute_sharded(operands).disassemble_into_single_device_arrays()


def checks_values() -> bool:
    """Whether `jax_debug_nans` or `jax_debug_infs` is set, also by a context manager of this thread."""
    return dispatch.needs_check_special()


def sparing(
    execute: Callable[..., Any], donated: Sequence[int], devices: Sequence[jax.Device]
) -> Callable[..., Any]:
    """Runs an executable on copies of what it would consume, so that a launch can be looked into again."""
    lists = [device_list(devices)]

    def launch(operands: list[Any], *options: Any) -> Any:
        spared = list(operands)
        for number in donated:
            array = operands[number]
            (spared[number],) = copy_arrays([array], lists, [array.sharding], [ALWAYS_COPY])
        return execute(spared, *options)

    return launch


def result_handler(aval: Aval, sharding: jax.sharding.Sharding, name: str) -> Any:
    """Wraps the buffers of one result of an execution into a `jax.Array` with that aval and sharding.

    With jax_debug_nans or jax_debug_infs set, the handler raises FloatingPointError naming `name`.
    """
    handler: Any = pxla.global_aval_to_result_handler(aval, sharding, True)
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
    which: str,
    shardings: Sequence[jax.sharding.NamedSharding],
    ranks: Sequence[int],
) -> tuple[int, str] | None:
    """The first operand or result that a partitioned executable lays out differently, and how.

    Args:
      executable: an executable for several devices.
      which: `operand` or `result`.
      shardings: how each should lie.
      ranks: the number of dimensions of each.
    """
    protos = executable.get_parameter_shardings() if which == "operand" else executable.get_output_shardings()
    # What has no results has an empty tuple, which has a sharding.
    if protos is None or not shardings:
        return None
    for number, (proto, sharding, rank) in enumerate(zip(protos, shardings, ranks, strict=True)):
        chosen = xla_client.HloSharding.from_proto(proto)
        if not op_shardings.are_hlo_shardings_equal(chosen, sharding._to_xla_hlo_sharding(rank)):
            return number, str(chosen)
    return None


def register_handle(kind: type, refuse: Callable[[Any], NoReturn]) -> None:
    """Registers a class of arrays whose types JAX may read, as `jax.eval_shape` does, but not their values.

    JAX has no hook for that. Its functions inspect an argument in one of the ways below; `jnp.asarray` only
    reads `__array__`.

    Args:
      kind: the class; its objects have an `aval`.
      refuse: raises an error for what needs a value. JAX would replace a TypeError by one of its own.
    """

    def aval_of(handle: Any) -> Aval:
        if sys._getframe(1).f_code is not core.shaped_abstractify.__code__:
            refuse(handle)
        return handle.aval

    def as_array(handle: Any) -> NoReturn:
        # As functions of `jax.numpy` and `jax.random` test their arguments.
        if sys._getframe(1).f_code is numpy_util._arraylike.__code__:
            refuse(handle)
        raise AttributeError(f"{kind.__name__!r} object has no attribute '__jax_array__'")

    core.pytype_aval_mappings[kind] = aval_of
    dtypes.canonicalize_value_handlers[kind] = refuse
    kind.__jax_array__ = property(as_array)  # type: ignore[attr-defined]


def rewrap(aval: Aval, sharding: jax.sharding.Sharding) -> Callable[[Any], Any]:
    """A function that gives the buffers of an array another aval: weak type, extended dtype.

    The buffers of an array are private, and the public way to take them apart costs ten times as much.
    """
    handler = pxla.global_aval_to_result_handler(aval, sharding, True)
    return lambda array: handler(array._arrays)


def start_profile() -> Any | None:
    """Begins a profile of the process, with what XLA itself notes of its work and no Python; None while
    another one is being taken.

    A public `jax.profiler.ProfileSession` also tells JAX that there is one, and is none in JAX 0.11.
    """
    if is_profiled():
        return None
    options = _profiler.ProfileOptions()
    options.host_tracer_level = 1
    options.python_tracer_level = 0
    return _profiler.ProfilerSession(options)


def stop_profile(session: Any) -> jax.profiler.ProfileData | None:
    """Ends a profile; None when another session was faster to begin."""
    try:
        return session.stop_and_get_profile_data()
    except jax.errors.JaxRuntimeError:
        return None


def take_apart(array: Any) -> list[Any]:
    """The shards of an array as arrays of one device each, in the order of its devices.

    Raises:
      RuntimeError: when it was deleted; `_arrays` is then empty.
    """
    array._check_if_deleted()
    return array._arrays


def put_together(aval: Aval, sharding: jax.sharding.Sharding) -> Callable[[Sequence[Any]], Any]:
    """A function that makes an array of its shards, the reverse of `take_apart`."""
    return pxla.global_aval_to_result_handler(aval, sharding, True)


def route(
    routes: Sequence[Sequence[tuple[int, int]]],
    devices: Sequence[jax.Device],
    read: Sequence[ShardReader],
    made: Sequence[ShardMaker],
) -> Callable[[list[Any]], list[Any]]:
    """A function that makes arrays of single shards of others.

    The batched copy pairs the devices of an array one to one, so it is given single-device arrays, one for
    each shard that is to be filled.

    Args:
      routes: for each result and each of `devices` the position of an operand, and of one of its shards.
      devices: the devices of the results.
      read: makes shards of each operand.
      made: makes each result of its shards.
    """
    picks = [pick for result in routes for pick in result]
    lists = [device_list((device,)) for device in devices] * len(routes)
    shardings: list[Any] = [jax.sharding.SingleDeviceSharding(device) for device in devices] * len(routes)
    semantics = [ALWAYS_COPY] * len(picks)
    count = len(devices)

    def copy(operands: list[Any]) -> list[Any]:
        shards = [take(operand) for take, operand in zip(read, operands, strict=True)]
        sources = [shards[operand][device] for operand, device in picks]
        copies = copy_arrays(sources, lists, shardings, semantics)
        return [make(copies[n * count : (n + 1) * count]) for n, make in enumerate(made)]

    return copy


def on_each_device(
    executables: Sequence[LoadedExecutable],
    devices: Sequence[jax.Device],
    shards: Sequence[Aval],
    read: Sequence[ShardReader],
    made: Sequence[ShardMaker],
) -> Callable[[list[Any]], list[Any]]:
    """A function that launches an executable on each device by itself, on the shards that are there.

    Args:
      executables: one for each device.
      devices: the devices.
      shards: the avals of the results of each executable.
      read: makes shards of each operand.
      made: makes each result of its shards.
    """
    launches = [
        (
            executable.execute_sharded,
            [put_together(aval, jax.sharding.SingleDeviceSharding(device)) for aval in shards],
        )
        for executable, device in zip(executables, devices, strict=True)
    ]

    def launch(operands: list[Any], launch_id: int | None = None) -> list[Any]:
        taken = [take(operand) for take, operand in zip(read, operands, strict=True)]
        results = [
            execute(list(mine), False, launch_id).consume_with_handlers(handlers)
            for (execute, handlers), mine in zip(launches, zip(*taken, strict=True), strict=True)
        ]
        return [make(result) for make, result in zip(made, zip(*results, strict=True), strict=True)]

    return launch


def token_keeper(devices: Sequence[jax.Device]) -> Callable[[Any], None]:
    """A function that gives the token of an execution with side effects to JAX.

    `jax.effects_barrier` and the end of the process wait for these tokens; nothing public sets them.
    """

    def keep(token: Any) -> None:
        for index, device in enumerate(devices):
            dispatch.runtime_tokens.set_output_runtime_token(device, token.get_token(index))

    return keep


def leave_out_of_tracebacks(folder: str) -> None:
    """Lets JAX leave frames of code in a folder out of tracebacks, where it leaves out its own."""
    traceback_util.register_exclusion(folder)


def traceback_filtering() -> str:
    """The setting `jax_traceback_filtering`, with what `auto` stands for here."""
    return traceback_util._filtering_mode()


def is_left_out_of_tracebacks(file: str) -> bool:
    """Whether JAX leaves a file out of tracebacks. It leaves out some of its own, but not `jax.numpy`."""
    return file.startswith(jax.__path__[0]) or not traceback_util.include_filename(file)


def unfiltered(error: BaseException) -> Exception:
    """What JAX makes the cause of an error to show all frames of it; nothing public makes one."""
    message = f"{traceback_util.format_exception_only(error)}\n\n{traceback_util._jax_message_append}"
    return traceback_util.UnfilteredStackTrace(message).with_traceback(error.__traceback__)


def is_unfiltered(error: BaseException | None) -> bool:
    """Whether `unfiltered`, or JAX, made it."""
    return isinstance(error, traceback_util.UnfilteredStackTrace)
