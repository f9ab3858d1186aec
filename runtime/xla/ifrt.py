"""Private calls of jax and jaxlib for arrays and executables that a client of another process owns.

Like `pjrt`, it is thin: its callers say what each call means. Shardings of such clients are XLA's own, for
which `jax.sharding` has no public class, and are known before any array exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import sharding_impls
from jaxlib import _hlo, _jax, xla_client

from pathways.runtime.xla import pjrt

HloSharding = Any
"""How an array is cut into shards, without devices."""


def hlo_sharding(serialized: bytes) -> HloSharding:
    """A sharding of a serialised `xla.OpSharding`; no bytes mean replicated."""
    proto = _hlo.OpSharding()
    proto.ParseFromString(serialized)
    return _hlo.HloSharding.from_proto(proto)


def serialize_sharding(sharding: Any) -> bytes:
    """An `OpSharding`, or an `HloSharding`, as a serialised `xla.OpSharding`."""
    proto = sharding.to_proto() if isinstance(sharding, _hlo.HloSharding) else sharding
    return proto.SerializeToString()


def replicated() -> HloSharding:
    """The sharding of an array of which each device has a copy."""
    return _hlo.HloSharding.replicate()


def is_replicated(sharding: HloSharding) -> bool:
    """Returns whether each device has a copy of the array."""
    return sharding.is_replicated()


def sharding_on(
    devices: Sequence[jax.Device], sharding: HloSharding, memory_kind: str | None
) -> jax.sharding.Sharding:
    """A sharding on devices; JAX replaces its public class by `NamedSharding`, which needs names of axes."""
    if len(devices) == 1:
        return jax.sharding.SingleDeviceSharding(devices[0], memory_kind=memory_kind)
    return sharding_impls.GSPMDSharding(pjrt.device_list(devices), sharding, memory_kind=memory_kind)


def hlo_of(sharding: jax.sharding.Sharding, rank: int) -> HloSharding:
    """Returns XLA's form of a sharding of JAX, for arrays of a rank."""
    return sharding._to_xla_hlo_sharding(rank)


def array_maker(
    shape: Sequence[int], dtype: np.dtype[Any], sharding: jax.sharding.Sharding
) -> Callable[[Sequence[jax.Array]], jax.Array]:
    """A function that makes an array of its shards. It believes what it is told of shape and sharding."""
    return _jax.array_result_handler(jax.core.ShapedArray(tuple(shape), dtype), sharding, True)


def shards(array: jax.Array) -> list[jax.Array]:
    """The shards of an array as arrays of one device each, which share its buffers.

    Raises:
      RuntimeError: it was deleted.
    """
    return pjrt.take_apart(array)


def put(
    values: Sequence[np.ndarray],
    shape: Sequence[int],
    sharding: jax.sharding.Sharding,
    devices: Sequence[jax.Device],
) -> jax.Array:
    """An array of shards in the memory of the host, one for each device.

    The public functions make 32-bit values of 64-bit ones unless x64 is enabled in this thread.
    """
    aval = jax.core.ShapedArray(tuple(shape), values[0].dtype)
    return _jax.batched_device_put(aval, sharding, list(values), list(devices), True, enable_x64=True)


def is_ready(array: jax.Array) -> bool:
    """Returns whether an array is computed; the classes of JAX do not declare this method."""
    return array.is_ready()  # type: ignore[attr-defined]


def host_value(shard: jax.Array) -> np.ndarray:
    """The value of an array of one device; unlike `numpy.asarray` it keeps no copy in the array."""
    value, _ = shard._single_device_array_to_np_array_did_copy()  # type: ignore[attr-defined]
    return value


def compile_options(serialized: bytes) -> Any:
    """Options of the compiler of a serialised `xla.CompileOptionsProto`."""
    return xla_client.CompileOptions.ParseFromString(serialized)


def execute(executable: Any, operands: list[jax.Array], makers: Sequence[Any]) -> list[jax.Array]:
    """Starts an execution on all of its devices; `array_maker` makes each result."""
    return executable.execute_sharded(operands).consume_with_handlers(list(makers))


_ALIASES = re.compile(r"\((\d+), \{[\d, ]*\}, (?:may|must)-alias\)")


def donated_operands(executable: Any) -> tuple[int, ...]:
    """The operands whose buffers an execution consumes; XLA may have refused others that were offered."""
    options = _hlo.HloPrintOptions.short_parsable()
    options.print_large_constants = False
    header = executable.hlo_modules()[0].to_string(options).partition("\n")[0]
    return tuple(sorted({int(number) for number in _ALIASES.findall(header)}))


def layout(proto: Any, layout: Any) -> None:
    """Fills an `xla.LayoutProto` from a layout of an executable or of an array."""
    xla = layout._xla_layout()
    proto.minor_to_major.extend(xla.minor_to_major())
    for tile in xla.tiling():
        proto.tiles.add().dimensions.extend(tile)
    proto.element_size_in_bits = xla.element_size_in_bits()
