"""Configuration file of a cluster: its islands, their launcher, and the shares of clients."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pathways.dialect.plain_data import PlainDataError, decode_text, read_record, shown
from pathways.runtime.hosts.launch.launcher_choice import settings_of
from pathways.runtime.hosts.launch.launcher_records import machines_of, record_of
from pathways.runtime.hosts.launch.options import HostOptions, Spares
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.resources.tables import bytes_of
from pathways.runtime.service.protocol.admin import MAX_COUNT, Count, Priority, Weight
from pathways.runtime.service.protocol.folders import address_of, check_name
from pathways.runtime.service.sharing.memory import DeviceLimits
from pathways.runtime.service.sharing.rules import ANY, ClientRules, Sharing, SharingRules

_NEVER = ("stall_report", "step_deadline")
"""Options that are None for never; TOML has no null, so the file has false instead."""

_HINTS = {
    "policy": "sharing is the order in which clients share the islands",
    "cpu_devices": "devices_per_host is the number of CPU devices of each host",
    "token_file": "token is the path of the token of clients",
    "secret": "secret_file is the path of the secret of hosts that join",
}
"""Keys that users may expect, as `pathways.connect` has them, and hints at their replacements."""

_Bytes = Annotated[
    Annotated[int, Meta(ge=1)] | Annotated[str, Meta(min_length=1)],
    Meta(description="a number of bytes, as in '16 GiB'"),
]
_Port = Annotated[int, Meta(gt=0, lt=1 << 16)]
_Limit = Annotated[float, Meta(gt=0, lt=1e12, description="seconds above 0")]
_Text = Annotated[str, Meta(min_length=1, description="a text")]
_Machines = Annotated[
    Count | Annotated[list[str], Meta(min_length=1)],
    Meta(description="a number of hosts, or a list of names of machines"),
]


class IslandTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table of equal islands.

    Attributes:
      count: the number of islands.
      hosts: see `Island`.
      devices_per_host: see `Island`.
      cores: see `Island`.
      spares: see `Island`.
      device_memory: the memory of each device, as in `"16 GiB"`; without it clients have no quotas.
      pool: the part of it for temporaries of steps; a quarter by default.
      joined: a text; tables with the same one are one island, and unmodified programs see them as its slices.
    """

    count: Count = 1
    hosts: _Machines = 1
    devices_per_host: Count = 1
    cores: Count | None = None
    spares: Spares = 0
    device_memory: _Bytes | None = None
    pool: _Bytes | None = None
    joined: _Text | None = None


class ClientTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules of a client; `[clients."*"]` has the rules of each client that the file does not name.

    Attributes:
      weight: its share of contended devices.
      priority: from -100 to 100: its steps come before all steps of clients with a lower one.
      memory: the bytes that its arrays may have on each device, as in `"4 GiB"`.
      step_limit: the seconds that a step of it may run.
    """

    weight: Weight = 1.0
    priority: Priority = 0
    memory: _Bytes | None = None
    step_limit: _Limit | None = None


class MetricsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Server of metrics and of the page.

    Attributes:
      port: the port at which it listens.
      address: the address at which it listens.
    """

    port: Annotated[int, Meta(ge=1, le=65535, description="a port from 1 to 65535")]
    address: _Text = "127.0.0.1"


class ClusterFile(HostOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """File of a cluster; it also has the options of `HostOptions`, and tables.

    Attributes:
      launcher: `"ray"`, `"slurm"` or `"join"`; without it workers start on this machine, or by ssh where
        hosts have names.
      hosts: in place of `[[islands]]`: a number of islands of one host each, or the names of their machines.
      devices_per_host: with `hosts`, the number of CPU devices of each.
      address: see `Ray`.
      bind: see the launchers.
      start: see `Ssh` and `Slurm`.
      python: see `Ssh` and `Slurm`.
      ports: see the launchers.
      advertise: see the launchers.
      platform: see `pathways.connect`.
      secret_file: see `Join`.
      token: a file with the secret that clients present; by default one in the folder of the cluster.
      listen: the address and port for clients; by default a socket that only this user reaches.
      sharing: which client's step is next: `"fair"`, by device time and weight, or `"fifo"`, in the order of
        calls.
      ageing: the seconds after which the priority of a waiting step rises by one, up to the highest of a
        waiting step: no step waits for ever, and among equal priorities shares decide.
      max_clients: the most clients at a time that the file does not name; one more is refused.
    """

    launcher: Literal["ray", "slurm", "join"] | None = None
    hosts: _Machines | None = None
    islands: Annotated[list[IslandTable], Meta(min_length=1, description="tables [[islands]]")] | None = None
    devices_per_host: Count | None = None
    address: _Text | None = None
    bind: _Text | None = None
    start: _Text | None = None
    python: _Text | None = None
    platform: _Text | None = None
    secret_file: _Text | None = None
    token: _Text | None = None
    listen: _Text | None = None
    sharing: Sharing = "fair"
    ports: Annotated[tuple[_Port, _Port], Meta(description="a first and a last port")] | None = None
    advertise: Annotated[str, Meta(min_length=1, description="an address")] | None = None
    ageing: Annotated[float, Meta(gt=0, le=1e6, description="seconds above 0")] = 1.0
    max_clients: Count | None = None
    metrics: Annotated[MetricsTable, Meta(description="a table [metrics]")] | None = None
    clients: dict[str, Annotated[ClientTable, Meta(description="a table [clients.NAME]")]] = {}


class ConfigurationError(ValueError):
    """Error of a configuration file; its message names the file, the key and the expected value."""


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Contents of a configuration file.

    Attributes:
      rules: the rules by which clients share the islands.
      listen: the address and port for clients; None for a socket in the folder of the cluster.
      token: the file with the secret of clients; None for one in that folder.
      metrics: the address and port of the metrics and the page; None for none.
    """

    settings: Settings
    rules: SharingRules = dataclasses.field(default_factory=SharingRules)
    listen: tuple[str, int] | None = None
    token: Path | None = None
    metrics: tuple[str, int] | None = None


def read(path: str) -> Configuration:
    """Reads the configuration file of a cluster, in TOML.

    Raises:
      ConfigurationError: the file cannot be read, or is invalid.
    """
    try:
        # Deeply nested brackets raise RecursionError.
        values = tomllib.loads(decode_text(Path(path).read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: not TOML: {error}") from None
    try:
        return _configuration(_file_of(values), Path(path).absolute().parent)
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _file_of(values: dict[str, Any]) -> ClusterFile:
    values |= {name: None for name in _NEVER if values.get(name) is False}
    try:
        return read_record(values, ClusterFile, _HINTS)
    except PlainDataError as error:
        raise ConfigurationError(str(error).replace("None for never", "false for never")) from None


def _configuration(file: ClusterFile, folder: Path) -> Configuration:
    if file.listen is not None and address_of(file.listen) is None:
        raise ConfigurationError(
            f"listen = {shown(file.listen)}: expected an address and a port, as in '10.0.0.5:7070'"
        )
    for name in file.clients:
        if name == ANY:
            continue
        try:
            check_name(name, "a client")
        except ValueError as error:
            raise ConfigurationError(f"clients: {error}") from None
    islands = _islands(file)
    _check_together(file)
    launcher = record_of(
        file.launcher,
        _has_names(file),
        {
            "bind": file.bind,
            "advertise": file.advertise,
            "ports": file.ports,
            "address": file.address,
            "start": file.start,
            "python": file.python,
            "secret_file": None if file.secret_file is None else str(folder / file.secret_file),
        },
    )
    settings = settings_of(
        launcher,
        islands=islands,
        devices_per_host=file.devices_per_host if islands is None else None,
        platform=file.platform,
        options=HostOptions(**{name: getattr(file, name) for name in HostOptions.__struct_fields__}),
    )
    return Configuration(
        settings,
        _rules(file),
        None if file.listen is None else address_of(file.listen),
        None if file.token is None else folder / file.token,
        None if file.metrics is None else (file.metrics.address, file.metrics.port),
    )


def _rules(file: ClusterFile) -> SharingRules:
    """Returns the rules of clients; ConfigurationError: they exceed the memory."""
    clients = {
        name: ClientRules(
            table.weight,
            table.priority,
            _bytes(f"clients.{name}.memory", table.memory),
            step_limit=table.step_limit,
        )
        for name, table in file.clients.items()
    }
    limits = _limits(file)
    quotas = [name for name, rules in clients.items() if rules.memory is not None]
    if quotas and not any(limits):
        raise ConfigurationError(f"clients.{quotas[0]}.memory: expected device_memory in [[islands]]")
    rules = SharingRules(file.sharing, file.ageing, clients, file.max_clients, limits)
    try:
        memory = rules.memory(len(limits))
        if rules.default.memory is not None and rules.max_clients is None:
            # As many as there is memory for.
            rest = [number for number in memory.rest() if number is not None]
            rules = dataclasses.replace(rules, max_clients=min(rest) // rules.default.memory)
    except ValueError as error:
        raise ConfigurationError(f"clients: {error}") from None
    return rules


def _limits(file: ClusterFile) -> tuple[DeviceLimits | None, ...]:
    """Returns the memory of the devices of each island; of a joined island, the memory of its first table."""
    limits: list[DeviceLimits | None] = []
    joined: set[str] = set()
    for n, table in enumerate(file.islands or ()):
        key = f"islands[{n}]"
        memory = _bytes(f"{key}.device_memory", table.device_memory)
        pool = _bytes(f"{key}.pool", table.pool)
        if pool is not None and memory is None:
            raise ConfigurationError(f"{key}.pool: expected device_memory beside it")
        if memory is not None and pool is not None and pool >= memory:
            raise ConfigurationError(f"{key}.pool: expected less than device_memory")
        limit = None if memory is None else DeviceLimits(memory, memory // 4 if pool is None else pool)
        if table.joined is None:
            limits += [limit] * table.count
        elif table.joined not in joined:
            joined.add(table.joined)
            limits.append(limit)
    return tuple(limits)


def _bytes(key: str, value: int | str | None) -> int | None:
    if not isinstance(value, str):
        return value
    try:
        return bytes_of(value)
    except ValueError as error:
        raise ConfigurationError(f"{key}: {error}") from None


def _has_names(file: ClusterFile) -> bool:
    """Returns whether hosts have the names of machines."""
    hosts = [file.hosts, *(table.hosts for table in file.islands or ())]
    return any(isinstance(each, list) for each in hosts)


def _islands(file: ClusterFile) -> list[Island] | None:
    if file.islands is None and file.hosts is None:
        return None
    each = file.devices_per_host or 1
    if isinstance(file.hosts, int):
        return [Island(1, each)] * file.hosts
    if file.hosts is not None:
        return [Island([machine], each) for machine in machines_of(file.hosts)]
    islands: list[Island] = []
    joined: dict[str, int] = {}
    for n, table in enumerate(file.islands or ()):
        try:
            island = Island(table.hosts, table.devices_per_host, table.cores, table.spares)
            for _ in range(table.count):
                if table.joined in joined:
                    islands[joined[table.joined]] = _join(islands[joined[table.joined]], island)
                    continue
                if table.joined is not None:
                    joined[table.joined] = len(islands)
                islands.append(island)
        except ValueError as error:
            raise ConfigurationError(f"islands[{n}]: {error}") from None
        if sum(len(island.machines) for island in islands) > MAX_COUNT:
            raise ConfigurationError(f"islands: more than {MAX_COUNT} hosts")
    return islands


def _join(island: Island, other: Island) -> Island:
    """Returns an island with the hosts of two; each table of the file is one of its slices.

    Raises:
      ValueError: their hosts are not alike.
    """
    hosts: int | tuple[str, ...] | None = None
    if isinstance(island.hosts, int) and isinstance(other.hosts, int):
        hosts = island.hosts + other.hosts
    elif not isinstance(island.hosts, int) and not isinstance(other.hosts, int):
        hosts = (*island.hosts, *other.hosts)
    alike = len(island.machines) == len(other.machines) * island.slices
    if hosts is None or not alike or _each(island) != _each(other):
        raise ValueError(
            "islands that are joined need the same number of hosts, devices_per_host and cores, and names of "
            "machines in all or in none"
        )
    spares = island.spares + other.spares
    return dataclasses.replace(island, hosts=hosts, spares=spares, slices=island.slices + 1)


def _each(island: Island) -> tuple[int, int | None]:
    return island.devices_per_host, island.cores


def _check_together(file: ClusterFile) -> None:
    """Checks that keys are compatible; messages name keys of the file, not arguments of `connect`."""
    launcher, hosts, islands = file.launcher, file.hosts, file.islands
    if hosts is not None and islands is not None:
        raise ConfigurationError("hosts: expected in each of [[islands]], or for all of them without these")
    if file.devices_per_host is not None and islands is not None:
        raise ConfigurationError("devices_per_host: expected in each of [[islands]]")
    if launcher != "slurm" and hosts is None and islands is None:
        raise ConfigurationError("islands: expected [[islands]] with count, hosts and others, or hosts")
    if launcher in ("ray", "slurm") and hosts is not None:
        raise ConfigurationError(f"hosts: with launcher = {launcher!r} expected in each of [[islands]]")
    if launcher != "ray" and file.address is not None:
        raise ConfigurationError(
            "address: it is for Ray clusters, with launcher = 'ray'; listen is where clients connect"
        )
    if (launcher == "join") != (file.secret_file is not None):
        raise ConfigurationError("secret_file: it is required by launcher = 'join', and only allowed with it")
    if launcher is None and file.bind is None and _has_names(file):
        raise ConfigurationError("bind: expected the address of this machine that workers on others reach")
    if launcher == "join" and (file.bind is None or file.ports is None):
        raise ConfigurationError(
            "launcher: with 'join' expected bind and ports; hosts that join connect to the first of these"
        )
