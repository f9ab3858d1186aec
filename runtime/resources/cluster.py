"""Clusters: islands of physical devices, and their hosts. Plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pathways.runtime.resources.tables import html_table, size

CPU_REMEDY = (
    "for more CPU devices set JAX_NUM_CPU_DEVICES={count} in the environment, or call "
    "pathways.connect(cpu_devices={count}) before anything else uses JAX"
)

HOSTS_REMEDY = (
    "for more devices connect to more hosts, or to more devices of each: "
    "pathways.connect(hosts=..., devices_per_host=...)"
)
SERVER_REMEDY = "for more devices start pw-proxy with more: --cpu-devices, --hosts and --devices-per-host"
SERVICE_REMEDY = "for more devices attach to a service that has more: the file of its cluster says how many"
AFTER_DISCONNECT = (
    "these are the devices of this process, since pathways.disconnect() was called; call "
    "pathways.connect(...) again for devices of a cluster"
)
"""Remedies for missing devices; `count` is the number that is needed."""

_MAX_ISLANDS_IN_REPR = 8


@dataclasses.dataclass(frozen=True)
class Host:
    """Process that owns devices; `index` is its JAX process index."""

    index: int


@dataclasses.dataclass(frozen=True)
class Device:
    """Physical device.

    Attributes:
      position: its position in the cluster, from zero. Ids have large gaps between hosts.
      id: its id in the process of its host, unique within a platform.
      platform: the platform that programs are lowered for: cpu, cuda, rocm, tpu.
      host: the process that owns it.
      memory: the bytes of memory that programs may use, None if unknown.
    """

    position: int
    id: int
    platform: str
    host: Host
    island: str
    memory: int | None = None


@dataclasses.dataclass(frozen=True)
class DeviceIsland:
    """Devices with a fast interconnect; the devices of a slice are on one island.

    Attributes:
      slices: the number of slices as which unmodified JAX programs see it.
      state: `running`; `draining` while clients move off it; `leaving` when it accepts nothing more;
        `drained` until an operator has it return; `restarting` until its lost workers are replaced; `lost` if
        they will not be. Islands are equal whatever their state.
      round_trip: the seconds that a request to its hosts and the last reply take, from the process that
        started the workers or is attached to a service; None if unknown, and for devices of one process.
    """

    name: str
    devices: tuple[Device, ...]
    slices: int = 1
    state: str = dataclasses.field(default="running", compare=False)
    round_trip: float | None = dataclasses.field(default=None, compare=False)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts of its devices, in the order of these."""
        return tuple(dict.fromkeys(device.host for device in self.devices))

    @property
    def memory(self) -> int | None:
        """The bytes of memory that programs may use on each device, None if unknown."""
        return min((device.memory for device in self.devices if device.memory is not None), default=None)


@dataclasses.dataclass(frozen=True, repr=False)
class Cluster:
    """All devices that programs may use, grouped into islands.

    Attributes:
      remedy: the remedy for too few devices, for messages; None for the one for devices of this process.
    """

    islands: tuple[DeviceIsland, ...]
    remedy: str | None = None

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices, by position."""
        return tuple(device for island in self.islands for device in island.devices)

    def _repr_html_(self) -> str:
        """Returns the table of islands, for a notebook."""
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

    def __repr__(self) -> str:
        shown = [
            f"{island.name}: {len(island.devices)} on {_hosts(island.devices)}"
            for island in self.islands[:_MAX_ISLANDS_IN_REPR]
        ]
        if hidden := len(self.islands) - len(shown):
            shown.append(f"and {hidden} more islands")
        count = len(self.devices)
        return f"<pathways.Cluster of {count} {self.platform} device{'s'[: count != 1]} ({', '.join(shown)})>"


def _hosts(devices: Sequence[Device]) -> str:
    """Returns the hosts of an island, such as `host 3` or `hosts 0 to 15`; their numbers are consecutive."""
    first, last = devices[0].host.index, devices[-1].host.index
    return f"host {first}" if first == last else f"hosts {first} to {last}"


def _memory(device: Device) -> str:
    return "unknown" if device.memory is None else size(device.memory)
