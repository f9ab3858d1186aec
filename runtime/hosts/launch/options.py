"""Options of workers that users seldom have to set."""

# Without `from __future__ import annotations`: msgspec would look for the names of fields in `pathways`.

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec import Meta

from pathways.dialect.plain_data import PlainDataError, check_fields, read_record
from pathways.runtime.hosts.launch.launcher_records import launcher_of_keyword

AUTO: Final = "auto"

MAX_AHEAD = 256
"""Limit on the steps in flight where nothing else limits them."""

_MAX_SECONDS = 1e12

Steps = Annotated[int, Meta(ge=1)]
Deadline = Annotated[float, Meta(gt=0, lt=_MAX_SECONDS, description="seconds, or None for never")]
Seconds = Annotated[float, Meta(ge=0, lt=_MAX_SECONDS, description="seconds, 0 for none")]
Spares = Annotated[int, Meta(ge=0, le=256, description="a number of spare workers from 0 to 256")]
Folder = Annotated[str, Meta(pattern="^/.", description="an absolute path")]
Rate = Annotated[float, Meta(gt=0, lt=_MAX_SECONDS, description="bytes per second, or None for any")]


_HINTS = {name: f"{name} belongs to the launcher, such as pathways.Ssh" for name in ("ports", "advertise")}
"""Keys of earlier releases, and hints at their replacements."""


class _OptionsType(msgspec.StructMeta):
    """Type of `HostOptions`: names the launcher for options that launchers have."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        for name, value in options.items():
            if (launcher := launcher_of_keyword(name, value)) is not None:
                raise TypeError(
                    f"HostOptions got an unexpected keyword argument {name!r}; it belongs to the launcher, "
                    f"as in {launcher}"
                )
        return super().__call__(*args, **options)


class HostOptions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=_OptionsType
):
    """Options of `pathways.connect` for workers on hosts. All times are in seconds.

        pw.connect(hosts=2, options=pw.HostOptions(heartbeat=5, ahead=8))

    Attributes:
      ahead: maximum number of steps in flight. Hosts issue steps before their data has arrived; each further
        step takes the memory of the arrays that a step sends and receives. `auto`: 256 for programs that send
        nothing between hosts, for others as many as fit the memory of devices, up to 16; fewer with large
        arguments.
      heartbeat: after how long without a message a worker counts as lost, for the controller and for workers
        that exchange arrays with it; then it is killed, and its arrays are lost.
      grace: how long an island continues after a worker of it got SIGTERM: it accepts no new steps, finishes
        those in flight, and its arrays can be read. It exits sooner when no array on it is held. Then it is
        restarted like a lost one.
      stall_report: after how long without progress a step on hosts, or an array of this process, is reported
        in the log, with what each host waits for and since when; again whenever that time has doubled. None
        for never.
      step_deadline: after how long without progress a step on hosts is cancelled: hosts that other hosts wait
        for are killed, and their arrays are errors. None for never: a slow step looks like one that hangs.
      restart_seconds: for how long the controller tries to restart the workers of an island; calls that need
        them wait until then.
      spares: number of spare workers on this machine that replace lost ones, for all islands together;
        `Island(spares=)` adds to it. A spare has imported JAX, so that an island of one host is back in
        tenths of a second, and takes some memory. Only for workers that are children of this process.
      snapshot_folder: the folder on each host in which `pathways.resilient` keeps copies of the state: in
        memory that outlives workers, and accessible to its user only. None for one in `/dev/shm`.
      snapshot_rate: limit on the bytes per second that a host sends of these copies to other hosts. None for
        no limit.

    Raises:
      ValueError: an option is not valid; the message begins with its name.
    """

    __module__ = "pathways"

    ahead: Annotated[
        Steps | Literal["auto"], Meta(description="a number of steps of at least 1, or 'auto'")
    ] = AUTO
    heartbeat: Annotated[float, Meta(ge=1, lt=_MAX_SECONDS, description="at least one second")] = 10.0
    grace: Seconds = 20.0
    stall_report: Deadline | None = 60.0
    step_deadline: Deadline | None = None
    restart_seconds: Seconds = 300.0
    spares: Spares = 0
    snapshot_folder: Folder | None = None
    snapshot_rate: Rate | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Creates options from a table of a file, such as TOML; missing keys keep their defaults.

        Raises:
          ValueError: a key is not an option, or its value is not valid; the message names the key.
        """
        try:
            return read_record(dict(values), cls, _HINTS)
        except PlainDataError as error:
            raise ValueError(str(error)) from None


def check_count(name: str, number: object, *, at_least: int = 1) -> None:
    """Checks that a setting is a count.

    Raises:
      ValueError: it is not an integer, or less than `at_least`.
    """
    if not isinstance(number, int) or isinstance(number, bool) or number < at_least:
        raise ValueError(f"{name}={number!r}: expected at least {at_least}")
