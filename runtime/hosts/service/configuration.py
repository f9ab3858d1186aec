"""The file that describes a cluster: its islands, how they are started, and what clients get of them."""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pathways.runtime.control.sharing.scheduler import Policy
from pathways.runtime.hosts.launch.choosing import LAUNCHERS, settings_of
from pathways.runtime.hosts.launch.folders import address_of, check_name
from pathways.runtime.hosts.launch.options import HostOptions
from pathways.runtime.hosts.launch.settings import Island, Settings

_MOST = 1 << 16
_POLICIES: tuple[Policy, ...] = ("fair", "fifo")
_NEVER = ("stall_report", "step_deadline")
"""Options that may be for never, for which TOML has no word but false."""

_OF_CONNECT = {
    "cpu_devices": "devices_per_host is the number of CPU devices of each host",
    "device_memory": "it is of the devices of one process",
    "token_file": "token is the path of the token of clients",
    "secret": "secret_file is the path of the secret of those who join",
}
"""Keys that one may look for, and what there is instead."""


class ConfigurationError(ValueError):
    """What a file says of a cluster cannot be; names the file, the key and what is expected."""


@dataclasses.dataclass(frozen=True)
class Configuration:
    """What a file says of a cluster.

    Attributes:
      settings: how its workers are started and watched.
      weights: the shares of clients, by name; of others it is 1.
      policy: whose step is next, see `control.sharing.scheduler`.
      listen: address and port where clients connect; None for a socket in the folder of the cluster.
      token: the file with what clients have to know; None for one in that folder.
    """

    settings: Settings
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    policy: Policy = "fair"
    listen: tuple[str, int] | None = None
    token: Path | None = None


def read(path: str) -> Configuration:
    """Reads a file of TOML that describes a cluster.

    Raises:
      ConfigurationError: it cannot be read, or says what cannot be.
    """
    try:
        # RecursionError: brackets in brackets in brackets.
        values = tomllib.loads(Path(path).read_bytes().decode())
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: not TOML: {error}") from None
    try:
        return _configuration(_Table("", values), Path(path).parent)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _configuration(file: _Table, folder: Path) -> Configuration:
    launcher = file.word("launcher", LAUNCHERS)
    islands = _islands(file)
    devices = file.count("devices_per_host", _MOST)
    asked: dict[str, Any] = {
        "hosts": file.machines("hosts", None),
        "islands": islands,
        "address": file.text("address"),
        "bind": file.text("bind"),
        "start": file.text("start"),
        "python": file.text("python"),
        "platform": file.text("platform"),
    }
    secret = file.text("secret_file")
    token = file.text("token")
    policy = next(policy for policy in _POLICIES if policy == (file.word("policy", _POLICIES) or "fair"))
    listen = file.take("listen", "an address and a port, as in '10.0.0.5:7070'", _is_address, None)
    weights = _weights(file)
    options = _options(file)
    file.end()
    _check_together(launcher, asked, devices, secret, options)
    try:
        settings = settings_of(
            launcher,
            devices_per_host=devices or 1,
            secret_file=None if secret is None else str(folder / secret),
            options=options,
            **asked,
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return Configuration(
        settings,
        weights,
        policy,
        None if listen is None else address_of(listen),
        None if token is None else folder / token,
    )


def _islands(file: _Table) -> list[Island] | None:
    tables = file.tables("islands")
    if tables is None:
        return None
    islands: list[Island] = []
    for table in tables:
        count = table.count("count", _MOST) or 1
        try:
            island = Island(
                table.machines("hosts", 1),
                table.count("devices_per_host", _MOST) or 1,
                table.count("cores", _MOST),
            )
        except ConfigurationError:
            raise
        except ValueError as error:
            raise ConfigurationError(f"{table.name}: {error}") from None
        table.end()
        islands += [island] * count
        if sum(len(island.machines) for island in islands) > _MOST:
            raise ConfigurationError(f"islands: more than {_MOST} hosts")
    return islands


def _weights(file: _Table) -> dict[str, float]:
    weights: dict[str, float] = {}
    for name, table in file.named_tables("clients").items():
        try:
            check_name(name, "a client")
        except ValueError as error:
            raise ConfigurationError(f"clients: {error}") from None
        weights[name] = table.take("weight", "a number from 0.001 to 1000", _is_weight, 1.0)
        table.end()
    return weights


def _options(file: _Table) -> HostOptions:
    values = file.some([field.name for field in dataclasses.fields(HostOptions)])
    for name in _NEVER:
        if values.get(name) is False:
            values[name] = None
    try:
        return HostOptions.from_dict(values)
    except ValueError as error:
        # The message begins with the key.
        raise ConfigurationError(str(error).replace("None for never", "false for never")) from None


def _check_together(
    launcher: str | None,
    asked: Mapping[str, Any],
    devices: int | None,
    secret: str | None,
    options: HostOptions,
) -> None:
    """Checks what does not go together, in words of the file rather than of `pathways.connect`."""
    hosts, islands = asked["hosts"], asked["islands"]
    if hosts is not None and islands is not None:
        raise ConfigurationError("hosts: expected in each of [[islands]], or for all of them without these")
    if devices is not None and islands is not None:
        raise ConfigurationError("devices_per_host: expected in each of [[islands]]")
    if launcher != "slurm" and hosts is None and islands is None:
        raise ConfigurationError("islands: expected [[islands]] with count, hosts and others, or hosts")
    if launcher in ("ray", "slurm") and hosts is not None:
        raise ConfigurationError(f"hosts: with launcher = {launcher!r} expected in each of [[islands]]")
    if launcher != "ray" and asked["address"] is not None:
        raise ConfigurationError(
            "address: it is for Ray clusters, with launcher = 'ray'; listen is where clients connect"
        )
    if (launcher == "join") != (secret is not None):
        raise ConfigurationError("secret_file: it is required by launcher = 'join', and only allowed with it")
    if launcher == "join" and (asked["bind"] is None or options.ports is None):
        raise ConfigurationError(
            "launcher: with 'join' expected bind and ports; those who join come to the first of these"
        )


class _Table:
    """A table of the file, of which keys are taken one by one.

    Args:
      name: where it is in the file.
      values: what it has.
    """

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self._values = values
        self._known: list[str] = []

    def some(self, keys: Sequence[str]) -> dict[str, Any]:
        """The values of those of some keys that are there, whatever they are."""
        self._known += keys
        return {key: self._values[key] for key in keys if key in self._values}

    def take(self, key: str, expected: str, accepts: Callable[[Any], bool], default: Any) -> Any:
        """The value of a key, or a default where it is not there.

        Raises:
          ConfigurationError: it is something else than expected.
        """
        self._known.append(key)
        if key not in self._values:
            return default
        if not accepts(value := self._values[key]):
            raise ConfigurationError(f"{self._place(key)} = {_shown(value)}: expected {expected}")
        return value

    def end(self) -> None:
        """Checks that nothing else is in it than what was taken.

        Raises:
          ConfigurationError: it has a key that nothing knows.
        """
        for key in self._values:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, 1)
                instead = f"did you mean {near[0]}?" if near else f"expected some of {', '.join(self._known)}"
                raise ConfigurationError(f"{self._place(key)}: unknown key; {_OF_CONNECT.get(key, instead)}")

    def text(self, key: str) -> str | None:
        """A text, or None."""
        return self.take(key, "a text", lambda value: isinstance(value, str) and bool(value), None)

    def word(self, key: str, words: tuple[str, ...]) -> str | None:
        """One of some words, or None."""
        choices = ", ".join(f"'{word}'" for word in words)
        return self.take(key, f"one of {choices}", lambda value: value in words, None)

    def count(self, key: str, most: int) -> int | None:
        """A number of things, or None."""

        def is_count(value: object) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most

        return self.take(key, f"a whole number from 1 to {most}", is_count, None)

    def machines(self, key: str, default: int | None) -> Any:
        """A number of hosts, or the names of their machines."""

        def is_hosts(value: object) -> bool:
            if isinstance(value, list):
                return bool(value) and all(isinstance(name, str) for name in value)
            return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST

        return self.take(key, "a number of hosts, or a list of names of machines", is_hosts, default)

    def tables(self, key: str) -> list[_Table] | None:
        """A list of tables, or None."""

        def are_tables(value: object) -> bool:
            return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)

        values = self.take(key, f"tables [[{key}]]", are_tables, None)
        return None if values is None else [_Table(f"{key}[{n}]", each) for n, each in enumerate(values)]

    def named_tables(self, key: str) -> dict[str, _Table]:
        """Tables by their names."""

        def are_tables(value: object) -> bool:
            return isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())

        values = self.take(key, f"tables [{key}.NAME]", are_tables, {})
        return {name: _Table(f"{key}.{name}", each) for name, each in values.items()}

    def _place(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key


def _is_address(value: object) -> bool:
    return isinstance(value, str) and address_of(value) is not None


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1e-3 <= value <= 1e3


def _shown(value: object) -> str:
    """A value as it may stand in a file, shortened."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
