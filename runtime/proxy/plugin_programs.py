"""Programs that are requests in JSON: what `pathwaysutils` asks a server for besides XLA programs."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from pathways.runtime.proxy import arrays
from pathways.runtime.proxy.arrays import ProxyArray
from pathways.runtime.proxy.devices import ArrayPlacement, ArraySpec, ServedDevices
from pathways.runtime.proxy.shardings import check_op_sharding
from pathways.runtime.proxy.statuses import StatusCode, StatusError, status_of
from pathways.runtime.xla import ifrt

_PREFIX = b"__serialized_plugin_program "


@dataclasses.dataclass(frozen=True, eq=False)
class ReshardProgram:
    """Copies arrays into other shardings, on the same or on other devices.

    Attributes:
      devices: the devices of the operands; the client compares them with the number of shards.
      placements: where each result goes.
      donated: the operands that are deleted.
    """

    devices: tuple[jax.Device, ...]
    placements: tuple[ArrayPlacement, ...]
    donated: tuple[int, ...]

    name = "reshard"

    def execute(self, arguments: Sequence[ProxyArray], kept: Sequence[int] = ()) -> list[ProxyArray]:
        """Copies the arguments; an error of one is in its result."""
        if len(arguments) != len(self.placements):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT, f"{len(arguments)} arrays for {len(self.placements)} shardings"
            )
        results = [_reshard(*pair) for pair in zip(self.placements, arguments, strict=True)]
        for number in set(self.donated) - set(kept):
            value = arguments[number].value
            if not isinstance(value, StatusError):
                value.delete()
        return results

    def describe(self, response: Any) -> None:
        """Fills a `LoadedExecutableMetadataResponse`; what XLA would know of a program, nobody does."""
        for field in (
            response.parameter_layouts_error,
            response.output_layouts_error,
            response.output_memory_kinds.status,
            response.compiled_memory_stats_error,
        ):
            field.code = StatusCode.UNIMPLEMENTED
            field.message = "the program is no XLA program"
        response.donated_input_indices.SetInParent()
        response.donated_input_indices.donated_input_indices.extend(self.donated)


def parse_plugin_program(served: ServedDevices, data: bytes) -> ReshardProgram:
    """Returns the program that a request stands for.

    Raises:
      StatusError: the server has none for it, or the request is invalid.
    """
    try:
        request = json.loads(data.removeprefix(_PREFIX))
        ((kind, body),) = request.items()
    except (ValueError, AttributeError):
        raise StatusError(StatusCode.INVALID_ARGUMENT, "a plugin program is no request in JSON") from None
    if kind != "reshardRequest":
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"plugin programs {kind[:100]!r} are not supported by the server"
        )
    try:
        before = [_placement(served, item) for item in body["inSharding"]]
        after = tuple(_placement(served, item) for item in body["outSharding"])
        donates = bool(body.get("donateInput", False))
    except (KeyError, TypeError, AttributeError, binascii.Error):
        raise StatusError(StatusCode.INVALID_ARGUMENT, "invalid reshardRequest") from None
    if not before or len(before) != len(after):
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"{len(after)} shardings for {len(before)} arrays")
    return ReshardProgram(before[0].devices, after, tuple(range(len(before))) if donates else ())


def _placement(served: ServedDevices, item: Mapping[str, Any]) -> ArrayPlacement:
    devices = served.devices_of(item["devices"]["device_ids"])
    # No text means replicated.
    proto = served.messages.parse("xla.OpSharding", base64.b64decode(item.get("xla_hlo_sharding", "")))
    check_op_sharding(proto, len(devices))
    hlo = ifrt.hlo_sharding(proto.SerializeToString())
    return ArrayPlacement(devices, served.memory_kind(item.get("memory_kind")), hlo)


def _reshard(placement: ArrayPlacement, array: ProxyArray) -> ProxyArray:
    try:
        spec, _ = array.read()
        return arrays.reshard(ArraySpec(spec.dtype, spec.shape, placement), array)
    except Exception as error:
        return ProxyArray(array.spec, status_of(error))
