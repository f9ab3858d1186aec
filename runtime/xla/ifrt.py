"""Private calls of jax and jaxlib for arrays and executables that a client in another process owns.

Like `pjrt`, the module is thin: its callers explain each call. Such clients use XLA's own shardings, which
`jax.sharding` has no public class for, and which are known before any array exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import op_shardings, sharding_impls
from jaxlib import _hlo, _jax, xla_client
from jaxlib.mlir import ir

from pathways.dialect.operations.bindings import mpmd_bindings
from pathways.runtime.xla import pjrt

MpmdExecutable = Any
"""Program on several meshes that a server has compiled."""

HloSharding = Any
"""Division of an array into shards, without devices."""


def hlo_sharding(serialized: bytes) -> HloSharding:
    """Parses a serialised `xla.OpSharding`; no bytes mean replicated."""
    proto = _hlo.OpSharding()
    proto.ParseFromString(serialized)
    return _hlo.HloSharding.from_proto(proto)


def serialize_sharding(sharding: Any) -> bytes:
    """Returns an `OpSharding`, or an `HloSharding`, as a serialised `xla.OpSharding`."""
    proto = sharding.to_proto() if isinstance(sharding, _hlo.HloSharding) else sharding
    return proto.SerializeToString()


def replicated() -> HloSharding:
    """Returns the sharding of an array that each device has a copy of."""
    return _hlo.HloSharding.replicate()


def is_replicated(sharding: HloSharding) -> bool:
    """Returns whether each device has a copy of the array."""
    return sharding.is_replicated()


def parts_of(sharding: HloSharding) -> list[int]:
    """Returns the number of parts of each dimension of an array; empty if each device has a copy.

    Raises:
      AssertionError, NotImplementedError: JAX never gives arrays such a sharding.
    """
    return op_shardings.get_num_ways_dim_sharded(sharding)[0]


def is_unreduced(sharding: HloSharding) -> bool:
    """Returns whether devices have summands of the elements."""
    return "unreduced" in str(sharding)


def are_equivalent(left: HloSharding, right: HloSharding) -> bool:
    """Returns whether two shardings divide arrays alike."""
    return op_shardings.are_hlo_shardings_equal(left, right)


def tiles_of(sharding: HloSharding) -> tuple[list[int], list[int]]:
    """Returns the tiles of an array that is divided: the positions of the devices in the order of tiles, and
    the number of tiles of each dimension. Dimensions after the dimensions of the array are copies."""
    return sharding.tile_assignment_devices(), sharding.tile_assignment_dimensions()


def sharding_on(
    devices: Sequence[jax.Device], sharding: HloSharding, memory_kind: str | None
) -> jax.sharding.Sharding:
    """Returns a sharding on devices. The public class of JAX, `NamedSharding`, needs axis names, which XLA's
    shardings do not have."""
    if len(devices) == 1:
        return jax.sharding.SingleDeviceSharding(devices[0], memory_kind=memory_kind)
    return sharding_impls.GSPMDSharding(pjrt.device_list(devices), sharding, memory_kind=memory_kind)


def hlo_of(sharding: jax.sharding.Sharding, rank: int) -> HloSharding:
    """Returns XLA's form of a sharding of JAX, for arrays of a rank."""
    return sharding._to_xla_hlo_sharding(rank)


def array_maker(
    shape: Sequence[int], dtype: np.dtype[Any], sharding: jax.sharding.Sharding
) -> Callable[[Sequence[jax.Array]], jax.Array]:
    """Returns a function that joins shards to an array. It does not check the shape and the sharding."""
    return _jax.array_result_handler(jax.core.ShapedArray(tuple(shape), dtype), sharding, True)


def shards(array: jax.Array) -> list[jax.Array]:
    """Returns the shards of an array as arrays of one device each, which share its buffers.

    Raises:
      RuntimeError: the array was deleted.
    """
    return pjrt.shards_of(array)


def put(
    values: Sequence[np.ndarray],
    shape: Sequence[int],
    sharding: jax.sharding.Sharding,
    devices: Sequence[jax.Device],
) -> jax.Array:
    """Returns an array with the given shards, which are in host memory, one for each device.

    The public functions convert 64-bit values to 32 bits unless x64 is enabled in this thread.
    """
    aval = jax.core.ShapedArray(tuple(shape), values[0].dtype)
    return _jax.batched_device_put(aval, sharding, list(values), list(devices), True, enable_x64=True)


def is_ready(array: jax.Array) -> bool:
    """Returns whether an array is computed; the classes of JAX do not declare this method."""
    return array.is_ready()  # type: ignore[attr-defined]


def host_value(shard: jax.Array) -> np.ndarray:
    """Returns the value of an array of one device; unlike `numpy.asarray` it keeps no copy in the array."""
    value, _ = shard._single_device_array_to_np_array_did_copy()  # type: ignore[attr-defined]
    return value


def compile_options(serialized: bytes) -> Any:
    """Parses a serialised `xla.CompileOptionsProto`."""
    return xla_client.CompileOptions.ParseFromString(serialized)


def execute(executable: Any, operands: list[jax.Array], makers: Sequence[Any]) -> list[jax.Array]:
    """Starts an execution on all of its devices; `makers` from `array_maker` build the results."""
    return executable.execute_sharded(operands).consume_with_handlers(list(makers))


_ALIASES = re.compile(r"\((\d+), \{[\d, ]*\}, (?:may|must)-alias\)")


def donated_operands(executable: Any) -> tuple[int, ...]:
    """Returns the operands whose buffers an execution consumes. XLA may not use all that were donated."""
    options = _hlo.HloPrintOptions.short_parsable()
    options.print_large_constants = False
    # The first line of the text has the aliases: `input_output_alias={ {0}: (1, {}, may-alias) }`.
    header = executable.hlo_modules()[0].to_string(options).partition("\n")[0]
    return tuple(sorted({int(number) for number in _ALIASES.findall(header)}))


def compile_mpmd(
    module: ir.Module,
    devices: Sequence[jax.Device],
    avals: Sequence[pjrt.Aval],
    shardings: Sequence[jax.sharding.Sharding],
) -> MpmdExecutable:
    """Compiles a module in IFRT IR by the server of devices; returns the program, which has `execute`.

    JAX has no call for a program on several meshes; the call of Shardy's MPMD compiler takes any module.

    Args:
      devices: the devices that the program numbers from 0.
      avals: the avals of the results.
    """
    return mpmd_bindings().compile_mpmd(
        devices[0].client, module, list(devices), list(avals), list(shardings)
    )


def compile_request(client: Any, request: str) -> Any:
    """Compiles a request in JSON by the server of a client, instead of a program; returns the program.

    `jax.extend` has only the program, and no call that compiles it.
    """
    programs = _jax.ifrt_programs
    return client.compile_ifrt_program(
        programs.make_plugin_program(request), programs.make_plugin_compile_options()
    )
