"""The physical side: islands of devices, and the hosts that they belong to. Plain data."""

from __future__ import annotations

import dataclasses

from pathways.runtime.timelines.tables import html_table, size

MORE_CPU_DEVICES = (
    "for more CPU devices set PW_CPU_DEVICES={count} in the environment, or call "
    "pathways.connect(cpu_devices={count}) before anything else uses JAX"
)


@dataclasses.dataclass(frozen=True)
class Host:
    """A process that owns devices; `index` is its JAX process index."""

    index: int


@dataclasses.dataclass(frozen=True)
class Device:
    """A physical device.

    Attributes:
      position: its position in the cluster, from zero; ids differ between hosts by large gaps.
      id: the number by which the process of its host knows it, unique for its platform.
      platform: the platform that programs are lowered for: cpu, cuda, rocm, tpu.
      host: the process that owns it.
      island: the name of its island.
      memory: bytes of memory that programs may use, None where that is not known.
    """

    position: int
    id: int
    platform: str
    host: Host
    island: str
    memory: int | None = None


@dataclasses.dataclass(frozen=True)
class DeviceIsland:
    """Devices joined by a fast interconnect; a slice lies within one island."""

    name: str
    devices: tuple[Device, ...]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """All devices that programs may use, grouped into islands."""

    islands: tuple[DeviceIsland, ...]

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices, by position."""
        return tuple(device for island in self.islands for device in island.devices)

    def _repr_html_(self) -> str:
        """Its islands, in a notebook."""
        rows = [
            (
                island.name,
                f"{len(island.devices)} ({island.devices[0].position} to {island.devices[-1].position})",
                " ".join(dict.fromkeys(device.platform for device in island.devices)),
                " ".join(dict.fromkeys(str(device.host.index) for device in island.devices)),
                " ".join(dict.fromkeys(_memory(device) for device in island.devices)),
            )
            for island in self.islands
            if island.devices
        ]
        return html_table([("island", "devices", "platform", "hosts", "memory of a device"), *rows])

    @property
    def platform(self) -> str:
        """The platform that programs are lowered for: cpu, cuda, rocm, tpu."""
        return self.devices[0].platform


def _memory(device: Device) -> str:
    return "not known" if device.memory is None else size(device.memory)
