"""Keywords of `pathways.connect`: which devices they request, and which of them go together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pathways.dialect.spelling import nearest
from pathways.runtime.hosts.launch.launcher_records import LauncherRecord, launcher_of_keyword
from pathways.runtime.hosts.launch.options import HostOptions

_DEVICES = {"process": "devices of this process", "workers": "workers", "service": "clients of a service"}

Kind = Literal["process", "workers", "service"]
"""Devices of this process, workers that it starts, or a service that it attaches to."""

_KEYWORDS: Mapping[Kind, Sequence[str]] = {
    "process": ("cpu_devices", "islands", "platform", "device_memory", "options"),
    "workers": ("hosts", "devices_per_host", "islands", "platform", "options"),
    "service": ("client", "token"),
}

_REMEDIES = {
    "cpu_devices": "workers have devices_per_host=, as in pathways.connect(hosts=2, devices_per_host={0!r})",
    "device_memory": "pathways.connect(device_memory={0!r}) limits the memory of devices of this process",
    "devices_per_host": "pathways.connect(hosts=2, devices_per_host={0!r}) starts workers",
    "hosts": "pathways.connect(hosts={0!r}) starts workers on this machine",
    "client": "pathways.connect('lab', client={0!r}) attaches to a service",
    "token": "pathways.connect('10.0.0.5:7070', token={0!r}) attaches to a service",
    "islands": "the file of the cluster has its islands",
    "platform": "the file of the cluster has its platform",
    "options": "the file of the cluster has its options",
}
"""Remedies for keywords that do not fit the devices requested."""

_LAUNCHERS = {
    "ray": "pathways.connect(pathways.Ray(), islands=[...])",
    "slurm": "pathways.connect(pathways.Slurm())",
    "join": "pathways.connect(pathways.Join(secret_file=, bind=, ports=), hosts=2)",
    "ssh": "pathways.connect(pathways.Ssh(['a', 'b'], bind=))",
}
"""Calls for names of launchers, which no cluster may have."""


def kind_of(target: object, keywords: Mapping[str, object]) -> Kind:
    """Returns the kind of devices that a call of `connect` requests.

    Args:
      target: the first argument.
      keywords: all other arguments by name; None for a missing one.

    Raises:
      TypeError: the first argument has another type.
      ValueError: the arguments do not go together; the message has a call that works.
    """
    _check_target(target)
    set_values = {name: value for name, value in keywords.items() if value is not None}
    if not isinstance(set_values.get("platform", ""), str):
        raise TypeError(f"platform={set_values['platform']!r}: expected the name of a platform, as in 'cpu'")
    kind: Kind = "process"
    if isinstance(target, str):
        kind = "service"
    elif target is not None or "hosts" in set_values or not isinstance(set_values.get("islands", 1), int):
        kind = "workers"
    for name, value in set_values.items():
        if name not in _KEYWORDS[kind]:
            raise ValueError(
                f"connect: {name}= is not for {_DEVICES[kind]}, which have {_listed(_KEYWORDS[kind])}; "
                + _REMEDIES[name].format(value)
            )
    return kind


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _check_target(target: object) -> None:
    if isinstance(target, str) and target in _LAUNCHERS:
        raise ValueError(f"connect({target!r}): launchers are records, as in {_LAUNCHERS[target]}")
    if target is None or isinstance(target, str | LauncherRecord):
        return
    text = f"connect({target!r}): expected the name of a cluster, or pathways.Ssh, Slurm, Ray or Join"
    if isinstance(target, int) and not isinstance(target, bool):
        text += f"; did you mean hosts={target}?"
    elif isinstance(target, type) and issubclass(target, LauncherRecord):
        text = f"connect({target.__name__}): expected a record, as in {_LAUNCHERS[target.__name__.lower()]}"
    elif isinstance(target, Sequence):
        text += f"; for machines pathways.connect(pathways.Ssh({list(target)!r}, bind=))"
    raise TypeError(text)


def keyword_error(name: str, value: Any, keywords: Iterable[str]) -> TypeError:
    """Returns the error of a call of `connect` with a keyword that it does not have."""
    text = f"connect() got an unexpected keyword argument {name!r}"
    if name == "attach":
        text += f"; a service comes first, as in pathways.connect({value!r})"
    elif (launcher := launcher_of_keyword(name, value)) is not None:
        text += f"; it belongs to the launcher, as in {launcher}"
    elif (near := nearest(name, keywords)) is not None:
        text += f"; did you mean {near}={value!r}?"
    elif name in HostOptions.__struct_fields__:
        text += f"; pass options=pathways.HostOptions({name}={value!r})"
    return TypeError(text)
