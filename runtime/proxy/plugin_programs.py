"""Programs that are JSON requests, of `pathwaysutils`, Orbax and Pathways."""

from __future__ import annotations

import abc
import base64
import binascii
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax

from pathways.runtime.proxy.arrays.array_engine import ArrayEngine
from pathways.runtime.proxy.arrays.placements import ArrayPlacement, ArraySpec
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, status_of

_PREFIX = b"__serialized_plugin_program "


@dataclasses.dataclass(frozen=True, eq=False)
class PluginProgram(abc.ABC):
    """JSON request in place of a program.

    Attributes:
      devices: the devices of the operands; the client compares them with the number of shards.
      donated: the operands that are deleted.
    """

    devices: tuple[jax.Device, ...]
    donated: tuple[int, ...] = dataclasses.field(default=(), kw_only=True)

    name: ClassVar[str]

    @abc.abstractmethod
    def fail(self, error: StatusError) -> list[ProxyArray]:
        """Returns results that all raise an error."""

    def describe(self, response: Any) -> None:
        """Fills a `LoadedExecutableMetadataResponse`, without the fields of XLA programs."""
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


@dataclasses.dataclass(frozen=True, eq=False)
class ReshardProgram(PluginProgram):
    """Program that copies arrays to other shardings, on the same or on other devices."""

    placements: tuple[ArrayPlacement, ...]
    engine: ArrayEngine

    name = "reshard"

    def fail(self, error: StatusError) -> list[ProxyArray]:
        return [ProxyArray(None, error)] * len(self.placements)

    def execute(self, arguments: Sequence[ProxyArray], undonated: Sequence[int] = ()) -> list[ProxyArray]:
        """Copies the arguments; a result holds the error of its argument."""
        if len(arguments) != len(self.placements):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT, f"{len(arguments)} arrays for {len(self.placements)} shardings"
            )
        results = [self._reshard(*pair) for pair in zip(self.placements, arguments, strict=True)]
        for number in set(self.donated) - set(undonated):
            value = arguments[number].value
            if not isinstance(value, StatusError):
                value.delete()
        return results

    def _reshard(self, placement: ArrayPlacement, array: ProxyArray) -> ProxyArray:
        try:
            spec, _ = array.read()
            return self.engine.reshard(ArraySpec(spec.dtype, spec.shape, placement), array)
        except Exception as error:
            return ProxyArray(array.spec, status_of(error))


@dataclasses.dataclass(frozen=True, eq=False)
class RepliedRequest(PluginProgram):
    """Request whose reply is the text of the program, which cannot be executed."""

    reply: str

    name = "request"

    def fail(self, error: StatusError) -> list[ProxyArray]:
        return []

    def execute(self, arguments: Sequence[ProxyArray], undonated: Sequence[int] = ()) -> list[ProxyArray]:
        """Refuses.

        Raises:
          StatusError: always.
        """
        raise StatusError(StatusCode.UNIMPLEMENTED, "a request with a reply cannot be executed")

    def text(self) -> str:
        """Returns the reply."""
        return self.reply


def parse_request(data: bytes) -> tuple[str, Any]:
    """Returns the kind and the content of a request.

    Raises:
      StatusError: the data is not such a request.
    """
    try:
        request = json.loads(data.removeprefix(_PREFIX))
        ((kind, body),) = request.items()
    except (ValueError, AttributeError, RecursionError):
        raise StatusError(StatusCode.INVALID_ARGUMENT, "a plugin program is no request in JSON") from None
    return kind, body


def parse_reshard(served: ServedDevices, body: Any) -> ReshardProgram:
    """Returns the program that a `reshardRequest` represents.

    Raises:
      StatusError: the request is invalid.
    """
    try:
        before = [_placement(served, item) for item in body["inSharding"]]
        after = tuple(_placement(served, item) for item in body["outSharding"])
        donates = bool(body.get("donateInput", False))
    except (KeyError, TypeError, AttributeError, binascii.Error):
        raise StatusError(StatusCode.INVALID_ARGUMENT, "invalid reshardRequest") from None
    if not before or len(before) != len(after):
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"{len(after)} shardings for {len(before)} arrays")
    return ReshardProgram(
        before[0].devices, after, served.engine, donated=tuple(range(len(before))) if donates else ()
    )


def _placement(served: ServedDevices, item: Mapping[str, Any]) -> ArrayPlacement:
    # An empty text means replicated.
    hlo = base64.b64decode(item.get("xla_hlo_sharding", ""))
    return served.hlo_placement(item["devices"]["device_ids"], hlo, item.get("memory_kind"))
