"""How workers are watched and where they listen: what a user may set and seldom has to."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypedDict

AUTO: Final = "auto"

MOST_AHEAD = 256
"""How many steps may be under way where nothing else bounds them."""

_MOST = 1e12


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostOptions:
    """Options of `pathways.connect` for workers on hosts. All times are in seconds.

        pw.connect(hosts=["a", "b"], bind="10.0.0.5", options=pw.HostOptions(heartbeat=5, ahead=8))

    Attributes:
      ahead: how many steps may be issued and not done. Hosts issue steps before their data is there; each
        one more takes the memory of what a step sends and receives. `auto`: 256 of programs that send nothing
        between hosts, of others as many as fit the memory of devices, 16 at most; fewer of large arguments.
      heartbeat: how long a worker may say nothing to the controller, or to another worker that exchanges
        arrays with it; then it is killed, and what it had is lost.
      grace: how long an island goes on for when a worker of it gets SIGTERM: it takes no new steps, finishes
        those that it has, and what it has can be read. It ends sooner when nothing of it is held. Then
        it starts anew, as one that is lost.
      stall_report: after how long without progress a step on hosts, or an array of this process, is reported
        in the log, with what each host waits for and since when; again whenever that time has doubled. None
        for never.
      step_deadline: after how long without progress a step on hosts is ended: hosts that others wait for are
        killed, and their arrays are errors. None for never: what is slow is not told from what hangs.
      restart_seconds: for how long it is tried to start the workers of an island anew; calls that need them
        wait until then.
      ports: the first and the last port that the controller and its workers may listen on; None for any. Goes
        with `bind=`.
      advertise: the address at which workers find the controller; None for that of `bind=`.

    Raises:
      ValueError: one of them cannot be; the message begins with its name.
    """

    __module__ = "pathways"

    ahead: int | Literal["auto"] = AUTO
    heartbeat: float = 10.0
    grace: float = 20.0
    stall_report: float | None = 60.0
    step_deadline: float | None = None
    restart_seconds: float = 300.0
    ports: tuple[int, int] | None = None
    advertise: str | None = None

    def __post_init__(self) -> None:
        if self.ahead != AUTO:
            if isinstance(self.ahead, str):
                raise ValueError(f"ahead={self.ahead!r}: expected a number of steps, or 'auto'")
            check_count("ahead", self.ahead)
        for name in ("stall_report", "step_deadline"):
            seconds = getattr(self, name)
            if seconds is not None and not (_is_number(seconds) and seconds > 0):
                raise ValueError(f"{name}={seconds!r}: expected seconds, or None for never")
        if not (_is_number(self.heartbeat) and self.heartbeat >= 1):
            raise ValueError(f"heartbeat={self.heartbeat!r}: expected at least one second")
        for name in ("grace", "restart_seconds"):
            seconds = getattr(self, name)
            if not (_is_number(seconds) and seconds >= 0):
                raise ValueError(f"{name}={seconds!r}: expected seconds, 0 for none")
        if self.ports is not None:
            object.__setattr__(self, "ports", _port_range(self.ports))
        if self.advertise is not None and not (isinstance(self.advertise, str) and self.advertise):
            raise ValueError(f"advertise={self.advertise!r}: expected an address")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HostOptions:
        """Options as a file has them, such as a table of TOML: what is not there keeps its default.

        Raises:
          ValueError: there is no such option, or it cannot have this value; the message names the key.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in names:
                near = difflib.get_close_matches(str(key), names, 1)
                hint = f"; did you mean {near[0]}?" if near else f"; expected some of {', '.join(names)}"
                raise ValueError(f"{key}: there is no such host option{hint}")
        return cls(**values)


class FormerKeywords(TypedDict, total=False):
    """The keywords of `pathways.connect` that are options now."""

    ahead: int | Literal["auto"]
    heartbeat: float
    grace: float
    stall_report: float | None
    step_deadline: float | None
    ports: tuple[int, int] | None
    advertise: str | None


def with_former(
    options: HostOptions | None, former: Mapping[str, Any], others: Iterable[str] = ()
) -> HostOptions:
    """The options of a caller who may still give them as keywords, of which one is warned.

    Args:
      options: the options.
      former: the keywords.
      others: all other keywords that may be given.

    Raises:
      TypeError: there is no such keyword, there are options as well, or they are something else.
    """
    for name, value in former.items():
        if name not in FormerKeywords.__annotations__:
            text = f"connect() got an unexpected keyword argument {name!r}"
            if near := difflib.get_close_matches(name, others, 1):
                text += f"; did you mean {near[0]}={value!r}?"
            elif name in HostOptions.__dataclass_fields__:
                text += f"; pass options=pathways.HostOptions({name}={value!r})"
            raise TypeError(text)
    if not isinstance(options, HostOptions | None):
        raise TypeError(f"options={options!r}: expected pathways.HostOptions(...)")
    if not former:
        return options or HostOptions()
    said = ", ".join(f"{name}=" for name in former)
    if options is not None:
        raise TypeError(f"connect: {said} beside options=: expected in options=pathways.HostOptions(...)")
    new = ", ".join(f"{name}={value!r}" for name, value in former.items())
    warnings.warn(
        f"connect: {said} is deprecated as a keyword: pass options=pathways.HostOptions({new})",
        DeprecationWarning,
        stacklevel=4,
    )
    return HostOptions(**former)


def check_count(name: str, number: object) -> None:
    """Checks that a setting is a number of things.

    Raises:
      ValueError: it is below one, or no number.
    """
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError(f"{name}={number!r}: expected at least 1")


def _is_number(value: object) -> bool:
    # Some whole numbers have no float.
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST < value < _MOST


def _port_range(ports: object) -> tuple[int, int]:
    match ports:
        case (int(first), int(last)) if 0 < first <= last < 1 << 16:
            return first, last
    raise ValueError(f"ports={ports!r}: expected a first and a last port")
