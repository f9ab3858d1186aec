"""Records of launchers, which a user passes to `pathways.connect`."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pathways.runtime.hosts.launch.commands import DEFAULT_START, StartCommand

LauncherName = Literal["ray", "slurm", "join"]
"""Launchers by their names in files of clusters and in flags."""


LAUNCHERS = ("ssh", "slurm", "ray", "join")
"""Names of launchers, which no cluster may have: `connect("slurm")` would have two meanings."""

SLURM_START = "srun --overlap -w {host} -N1 -n1 {command}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Addresses and ports on which controller and workers listen.

    Attributes:
      bind: the address on which the controller listens for workers. None for a socket in a folder of this
        machine.
      advertise: the address at which workers find the controller; by default `bind`.
      ports: the first and the last port that controller and workers may listen on; None for any.

    Raises:
      TypeError: a text has another type.
      ValueError: a setting is not valid, or misses another.
    """

    bind: str | None = None
    advertise: str | None = None
    ports: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.bind is not None:
            try:
                # Of a number, too, `IPv4Address` makes an address.
                address = ipaddress.IPv4Address(str(self.bind))
            except ValueError:
                raise ValueError(f"bind={self.bind!r}: expected an IPv4 address of this machine") from None
            if address.is_unspecified and self.advertise is None:
                raise ValueError(
                    f"bind={self.bind!r} is every address; pass advertise= with the one for workers"
                )
        elif self.advertise is not None or self.ports is not None:
            raise ValueError("advertise= and ports= need bind=, the address that the controller listens on")
        if not isinstance(self.advertise, str | None) or self.advertise == "":
            raise ValueError(f"advertise={self.advertise!r}: expected an address")
        for name in _fields(type(self)) & {"start", "python", "address", "secret_file"}:
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name == "start"):
                raise TypeError(f"{name}={value!r}: expected a text")
        if self.ports is not None:
            object.__setattr__(self, "ports", _ports_of(self.ports))


def _ports_of(ports: object) -> tuple[int, int]:
    """Checks a first and a last port, and returns them."""
    if isinstance(ports, Sequence) and len(ports) == 2 and all(type(port) is int for port in ports):
        first, last = ports
        if 0 < first <= last < 1 << 16:
            return first, last
    raise ValueError(f"ports={ports!r}: expected a first and a last port from 1 to 65535")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Children(Endpoints):
    """Launcher of workers as children of this process, which `connect(hosts=2)` uses."""


@dataclasses.dataclass(frozen=True)
class Ssh(Endpoints):
    """Launcher that starts a worker on each of some machines by a command, which is ssh by default.

        pw.connect(pw.Ssh(["a", "b"], bind="10.0.0.5"))
        pw.connect(pw.Ssh(bind="10.0.0.5"), islands=[pw.Island(["a", "b"]), pw.Island(["c", "d"])])

    Beside it, `connect` takes `islands=` or `devices_per_host=`, `platform=` and `options=`.

    Attributes:
      machines: the names of the machines, each an island; None where `islands=` names them.
      start: the command that starts a worker on a machine. It is split as by a shell, but run without one:
        `{host}` is replaced by the name, and the word `{command}` by the words that run a worker. It has the
        environment of this process. Its standard input receives the configuration of the worker, with the
        secret of the cluster. It must not exit before the worker.
      python: the Python of the workers; by default the path of the Python of this process.
      bind: the IPv4 address of this machine at which it listens for workers, which connect over TCP and
        listen at the address from which they reach it. Required.
      advertise: the address at which workers find this process; by default `bind`.
      ports: the first and the last port that this process and its workers may listen on; None for any.

    Raises:
      ValueError: a setting is not valid, or `bind` is missing.
    """

    __module__ = "pathways"

    machines: Sequence[str] | None = None
    start: str = dataclasses.field(default=DEFAULT_START, kw_only=True)
    python: str | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.machines is not None:
            object.__setattr__(self, "machines", machines_of(self.machines))
        if self.bind is None:
            raise ValueError(
                "Ssh: expected bind=, the address of this machine that workers on others reach, as in "
                "pathways.Ssh(['a', 'b'], bind='10.0.0.5')"
            )
        # Checks the words.
        _ = self.command

    @property
    def command(self) -> StartCommand:
        """Command that starts a worker."""
        return StartCommand(self.start, self.python)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slurm(Endpoints):
    """Launcher that starts a worker on each node of the Slurm allocation in which this process runs.

        pw.connect(pw.Slurm())

    Beside it, `connect` takes `islands=`, whose hosts get nodes in order, or `devices_per_host=` for an
    island on each node; `platform=` and `options=`.

    Attributes:
      start: see `Ssh`; by default `srun`.
      python: see `Ssh`.
      bind: see `Ssh`; by default the address of this node.
      advertise: see `Ssh`.
      ports: see `Ssh`.

    Raises:
      ValueError: a setting is not valid.
    """

    __module__ = "pathways"

    start: str = SLURM_START
    python: str | None = None

    def __post_init__(self) -> None:
        # Checks all; `bind` is chosen later, on the node.
        Ssh(
            start=self.start,
            python=self.python,
            bind="127.0.0.1" if self.bind is None else self.bind,
            advertise=self.advertise,
            ports=self.ports,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ray(Endpoints):
    """Launcher that lets Ray start the workers on the machines of its cluster, an island or nothing of it.

        pw.connect(pw.Ray(address="auto", bind="10.0.0.5"), islands=[pw.Island(hosts=4)] * 2)

    It requires the extra `ray`. Beside it, `connect` takes `islands=` or `hosts=` and `devices_per_host=`;
    `platform=` and `options=`.

    Attributes:
      address: the address of the Ray cluster to join, as in `10.0.0.5:6379`; `auto` for the one of this
        machine. By default Ray starts a cluster here, which ends with this process.
      bind: see `Ssh`; by default 127.0.0.1, which only workers on this machine reach.
      advertise: see `Ssh`.
      ports: see `Ssh`.

    Raises:
      ValueError: a setting is not valid.
    """

    __module__ = "pathways"

    bind: str | None = "127.0.0.1"
    address: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Join(Endpoints):
    """Launcher that waits until as many machines have run `pw-worker --join` as there are hosts.

        pw.connect(pw.Join(secret_file="secret", bind="10.0.0.5", ports=(7000, 7099)), hosts=2)

    Beside it, `connect` takes `hosts=` and `devices_per_host=`, or `islands=`; `platform=` and `options=`.

    Attributes:
      secret_file: the path of a file with random bytes that only this user may read; joining machines need a
        copy. Required.
      bind: see `Ssh`. Required.
      advertise: see `Ssh`.
      ports: the first and the last port; machines join at the first. Required.

    Raises:
      ValueError: a setting is missing or not valid.
    """

    __module__ = "pathways"

    secret_file: str = ""

    def __post_init__(self) -> None:
        is_complete = self.secret_file and self.bind is not None and self.ports is not None
        if is_complete:
            super().__post_init__()
        if not is_complete or len(set(self.ports or ())) < 2:
            raise ValueError(
                "Join: expected secret_file=, bind= and ports=(first, last); machines join at the first "
                "port, as in pathways.Join(secret_file='secret', bind='10.0.0.5', ports=(7000, 7099))"
            )

    @property
    def join_address(self) -> str:
        """Address and port at which machines join."""
        assert self.ports is not None
        return f"{self.advertise or self.bind}:{self.ports[0]}"


LauncherRecord = Ssh | Slurm | Ray | Join
"""Launcher that a user may choose."""

WorkerLauncher = Children | Ssh | Ray | Join
"""Launcher of workers; on the nodes of a Slurm allocation it is `Ssh`, with the command `srun`."""


_EXAMPLES = {
    "address": "pathways.Ray(address={value!r})",
    "bind": "pathways.Ssh(['a', 'b'], bind={value!r})",
    "advertise": "pathways.Ssh(['a', 'b'], bind='0.0.0.0', advertise={value!r})",
    "ports": "pathways.Ssh(['a', 'b'], bind='10.0.0.5', ports={value!r})",
    "start": "pathways.Ssh(['a', 'b'], bind='10.0.0.5', start={value!r})",
    "python": "pathways.Ssh(['a', 'b'], bind='10.0.0.5', python={value!r})",
    "secret_file": "pathways.Join(secret_file={value!r}, bind='10.0.0.5', ports=(7000, 7099))",
}
"""A launcher for each keyword that only launchers have."""


def launcher_of_keyword(name: str, value: object) -> str | None:
    """Returns the text of a launcher with a keyword; None if launchers have no such keyword."""
    return _EXAMPLES[name].format(value=value) if name in _EXAMPLES else None


def record_of(
    name: LauncherName | None, are_named: bool, settings: Mapping[str, Any]
) -> LauncherRecord | Children:
    """Returns the launcher that the keys of a file, or flags, describe.

    Args:
      name: the name of the launcher; None for commands on named machines, or else children of this process.
      are_named: whether hosts have the names of machines.
      settings: attributes of launchers by name; None for a missing one.

    Raises:
      ValueError: a setting is not valid, is missing, or belongs to another launcher.
    """
    unnamed = Ssh if are_named else Children
    launcher = unnamed if name is None else {"slurm": Slurm, "ray": Ray, "join": Join}[name]
    set_values = {key: value for key, value in settings.items() if value is not None}
    for key in set_values:
        if key not in _fields(launcher):
            owners = [text for owner, text in _TEXTS.items() if key in _fields(owner)]
            raise ValueError(f"{key}: expected only with {' or '.join(owners)}")
    return launcher(**set_values)


_TEXTS: Mapping[type[Endpoints], str] = {
    Ssh: "names of machines",
    Slurm: "launcher slurm",
    Ray: "launcher ray",
    Join: "launcher join",
}


def _fields(launcher: type[Endpoints]) -> set[str]:
    return {field.name for field in dataclasses.fields(launcher)}


def machines_of(names: Sequence[str]) -> tuple[str, ...]:
    """Checks names of machines, and returns them.

    Raises:
      ValueError: the list is empty, or a name is not valid or occurs twice.
    """
    if not isinstance(names, Sequence) or isinstance(names, str) or not names:
        raise ValueError(f"hosts={names!r}: expected a number, or a list of names of machines")
    for name in names:
        # The command that starts workers would read a name with a leading dash as an option.
        if not isinstance(name, str) or len(name.split()) != 1 or name != name.strip() or name[0] == "-":
            raise ValueError(f"hosts: {name!r} is not the name of a machine")
        if names.count(name) > 1:
            raise ValueError(f"hosts: {name!r} is named more than once; expected one host on each machine")
    return tuple(names)
