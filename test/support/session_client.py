"""Client of a session without sockets: requests in, replies out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.sessions.session import ProxySession
from pathways.runtime.proxy.wire import descriptors

MESSAGES = descriptors.messages()


class Client:
    """Client that sends requests to a session, and reads its replies in order."""

    def __init__(self, served: ServedDevices) -> None:
        self.replies: list[Any] = []
        self.session = ProxySession(7, served, self._read, lambda work: work())
        self._op_id = 0

    def _read(self, data: bytes) -> None:
        self.replies.append(MESSAGES.parse("xla.ifrt.proxy.IfrtResponse", data))

    def request(self, kind: str, **fields: Any) -> Any:
        """Sends a request; returns the reply, which is ready at once."""
        self._op_id += 1
        request = MESSAGES["xla.ifrt.proxy.IfrtRequest"]()
        request.request_metadata.op_id = self._op_id
        body = getattr(request, f"{kind}_request")
        body.SetInParent()
        body.MergeFrom(type(body)(**fields))
        answer = self.session.dispatch(request.SerializeToString())
        if answer is not None:
            self._read(answer)
        reply = self.replies[-1]
        assert reply.response_metadata.op_id == self._op_id
        return reply

    def put(self, handle: int, value: np.ndarray, device: int = 0) -> Any:
        """Creates an array of one device."""
        self.session.host_buffers.store(handle, value.tobytes())
        return self.request(
            "make_array_from_host_buffer",
            dtype={"kind": "KIND_F32"},
            shape={"dims": value.shape},
            sharding=on_device(device),
            host_buffer_handle=handle,
            array_handle=handle,
        )

    def fetch(self, handle: int) -> np.ndarray | tuple[int, str]:
        """Returns the value of an array of floats, flat, or the status of the reply."""
        reply = self.request("copy_to_host_buffer", array_handle=handle, host_buffer_handle=1000)
        if reply.response_metadata.status.code:
            return reply.response_metadata.status.code, reply.response_metadata.status.message
        return np.frombuffer(self.session.host_buffers.take(1000), np.float32)


def on_device(device: int) -> dict[str, Any]:
    """Returns the sharding of an array of one device."""
    data = MESSAGES["xla.ifrt.SingleDeviceShardingProto"](device_id=device).SerializeToString()
    return {"serialized_sharding": {"type_name": "xla::ifrt::SingleDeviceSharding", "data": data}}


def over_devices(shard_shape: list[int], devices: int | Sequence[int]) -> dict[str, Any]:
    """Returns a sharding that names the shape of shards only."""
    proto = MESSAGES["xla.ifrt.ConcreteEvenShardingProto"](
        devices={"device_ids": range(devices) if isinstance(devices, int) else devices},
        shard_shape={"dims": shard_shape},
    )
    return {
        "serialized_sharding": {
            "type_name": "xla::ifrt::ConcreteEvenSharding",
            "data": proto.SerializeToString(),
        }
    }


def over_rows(count: int) -> dict[str, Any]:
    """Returns the sharding of an array of one dimension that is split over some devices."""
    tiles = {"type": "OTHER", "tile_assignment_dimensions": [count], "tile_assignment_devices": range(count)}
    proto = MESSAGES["xla.ifrt.HloShardingProto"](
        devices={"device_ids": range(count)}, xla_op_sharding=tiles
    ).SerializeToString()
    return {"serialized_sharding": {"type_name": "xla::ifrt::HloSharding", "data": proto}}


def compile_text(client: Client, text: str | bytes, device: int = 0, **options: Any) -> Any:
    """Compiles the text of a module for a device in a session; returns the status."""
    build = {"num_replicas": 1, "num_partitions": 1}
    devices = [{"replica_device_ids": [device]}]
    assignment = {"replica_count": 1, "computation_count": 1, "computation_devices": devices}
    proto = MESSAGES["xla.ifrt.XlaCompileOptionsProto"](
        compile_options={"executable_build_options": build | {"device_assignment": assignment}}
    )
    proto.compile_options.MergeFrom(MESSAGES["xla.CompileOptionsProto"](**options))
    return client.request(
        "compile",
        program={
            "type_name": "xla::ifrt::XlaProgram",
            "data": text.encode() if isinstance(text, str) else text,
        },
        compile_options={"data": proto.SerializeToString()},
    ).response_metadata.status


def compile_sum(client: Client, type_: str) -> int:
    """Compiles a program that adds an array to itself in a session; returns the handle."""
    text = f"""module @test {{ func.func public @main(%x: tensor<{type_}>) -> tensor<{type_}> {{
      %y = stablehlo.add %x, %x : tensor<{type_}>
      return %y : tensor<{type_}>
    }} }}"""
    assert compile_text(client, text).code == 0
    return client.replies[-1].compile_response.loaded_executable_handle


def module(body: str) -> str:
    """Returns a module with a function of one number."""
    return f"module @test {{ func.func public @main(%x: tensor<f32>) -> tensor<f32> {{ {body} }} }}"
