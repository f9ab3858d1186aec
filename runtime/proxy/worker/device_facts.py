"""Facts about devices, for the process that serves them to clients."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax
import msgspec

from pathways.runtime.xla import pjrt


class MemoryFacts(msgspec.Struct, frozen=True):
    """Memory of a device: its kind, and how JAX shows it."""

    kind: str
    text: str
    representation: str


class DeviceFacts(msgspec.Struct, frozen=True):
    """Device as clients see it.

    Attributes:
      id: its id in its process.
      platform: the platform that it runs code for.
      platform_version: the version of XLA's client of it.
      kind: its model.
      text: `str` of it in JAX.
      representation: `repr` of it.
      memories: its memories.
      default_memory: the kind of the memory that arrays are in by default.
    """

    id: int
    platform: str
    platform_version: str
    kind: str
    text: str
    representation: str
    memories: tuple[MemoryFacts, ...]
    default_memory: str

    def renumbered(self, number: int) -> DeviceFacts:
        """Returns the facts with another id, also in texts."""
        pattern = re.compile(rf"\b{self.id}\b|(?<=_){self.id}\b")
        text, representation = (pattern.sub(str(number), old) for old in (self.text, self.representation))
        return msgspec.structs.replace(self, id=number, text=text, representation=representation)


def facts_of(device: jax.Device) -> DeviceFacts:
    """Returns the facts about a device of this process."""
    memories = tuple(MemoryFacts(m.kind, str(m), repr(m)) for m in device.addressable_memories())
    return DeviceFacts(
        device.id,
        pjrt.platform_of(device),
        device.client.platform_version,
        device.device_kind,
        str(device),
        repr(device),
        memories,
        device.default_memory().kind,
    )


def encode_all(devices: Sequence[jax.Device]) -> bytes:
    """Returns the facts about devices of this process, for `decode_all`."""
    return msgspec.msgpack.encode([facts_of(device) for device in devices])


def decode_all(data: bytes) -> list[DeviceFacts]:
    """Returns the facts of `encode_all`."""
    return msgspec.msgpack.decode(data, type=list[DeviceFacts])
