"""Compiler options of programs: clients may set some, and the server's settings replace the others."""

from __future__ import annotations

import re
from typing import Any

from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError

_FILES = re.compile(r"dump(?!_max_hlo_modules$)|path|file|dir$|_dir_|_to$")
"""Pattern of compiler options that name files or have XLA write some, except limits of their number."""
_NOT_OF_CLIENTS = re.compile(
    rf"{_FILES.pattern}|crash|terminat|hlo_passes|extra_options|extra_flags|gpu_detect_(nan|inf)"
)
"""Pattern of compiler options that clients may not set: they name files, or can abort the process.

XLA aborts if code lacks a pass, if a collective exceeds its timeout, if LLVM does not know an option, and if
a result is not finite.
"""
_SPLIT_COUNT = "xla_cpu_parallel_codegen_split_count"
_MAX_SPLIT_COUNT = 1024
"""Maximum of modules that XLA may split a program into for compilation; it also creates empty ones."""


_BUILD_OPTIONS = (
    "use_shardy_partitioner",
    "use_spmd_partitioning",
    "optimization_level",
    "memory_fitting_level",
)
"""Compiler options that clients may set. XLA does not check the others, or JAX never sets them."""


def set_options(options: Any, proto: Any, operands: int, results: int) -> None:
    """Sets compiler options to the options of a client, except options that clients may not set.

    Args:
      options: the options of the server for the devices of the program, which are changed.
      proto: the options of the client.
      operands: the number of operands of the program.

    Raises:
      StatusError: the program itself sets an option that clients may not set, in `compiler_options` of
        `jax.jit`, or an option does not fit the operands or results or is out of range.
    """
    build, of_client = options.executable_build_options, proto.executable_build_options
    for name in _BUILD_OPTIONS:
        setattr(build, name, getattr(of_client, name))
    for field, count in (
        ("allow_spmd_sharding_propagation_to_parameters", operands),
        ("allow_spmd_sharding_propagation_to_output", results),
    ):
        allowed = getattr(of_client, field)
        if len(allowed) not in (0, 1, count):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"the compiler option {field} has {len(allowed)} values for {count}",
            )
        build.ClearField(field)
        getattr(build, field).extend(allowed)
    if of_client.HasField("debug_options"):
        default = type(build.debug_options).FromString(build.debug_options.SerializeToString())
        build.debug_options.CopyFrom(of_client.debug_options)
        for field in build.debug_options.DESCRIPTOR.fields:
            if _NOT_OF_CLIENTS.search(field.name):
                build.debug_options.ClearField(field.name)
                # The setting of the server, which XLA_FLAGS may give, takes its place.
                if field.is_repeated:
                    getattr(build.debug_options, field.name).MergeFrom(getattr(default, field.name))
                elif default.HasField(field.name):
                    setattr(build.debug_options, field.name, getattr(default, field.name))
        if build.debug_options.HasField(_SPLIT_COUNT):
            _check_split_count(getattr(build.debug_options, _SPLIT_COUNT))
    for name in proto.env_option_overrides:
        if _NOT_OF_CLIENTS.search(name):
            effect = "use files" if _FILES.search(name) else "end"
            raise StatusError(
                StatusCode.PERMISSION_DENIED, f"the compiler option {name!r} would have the server {effect}"
            )
        value = proto.env_option_overrides[name]
        if name == _SPLIT_COUNT:
            _check_split_count(getattr(value, value.WhichOneof("value") or "int_field"))
        options.env_option_overrides[name].CopyFrom(value)


def _check_split_count(count: float | str) -> None:
    """Checks the number of modules that a client wants a program split into.

    Raises:
      StatusError: the number is too large, or not positive.
    """
    try:
        number = int(count)
    except (ValueError, OverflowError):
        number = 0
    if not 1 <= number <= _MAX_SPLIT_COUNT:
        raise StatusError(
            StatusCode.INVALID_ARGUMENT,
            f"the compiler option {_SPLIT_COUNT} is {str(count)[:30]}; the server accepts 1 to "
            f"{_MAX_SPLIT_COUNT}",
        )
