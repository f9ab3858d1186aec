"""Reports of workers about their state: plain data, which is sent as it is."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class WaitReport:
    """Wait for arrays of another host.

    Attributes:
      address: the address of the other host for such requests.
      src: the slice that they come from.
      dst: the slice that they go to.
      index: the number of the transfer.
      seconds: the time since the request.
      is_sure: whether they are known to be missing; else they have been passed on to XLA, which may wait.
    """

    host: int
    address: str
    channel: str
    src: str
    dst: str
    index: int
    seconds: float
    is_sure: bool

    def __str__(self) -> str:
        return (
            f"host {self.host} at {self.address} on channel {self.channel} "
            f"({self.src} -> {self.dst}, transfer {self.index}) for {self.seconds:.0f} s"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class StepReport:
    """Step that is not done on a host.

    Attributes:
      run: its number.
      seconds: the time since it began.
      is_issued: whether all of it is issued.
      waiting: the transfers that it waits for, or may wait for.
    """

    program: str
    run: int
    seconds: float
    is_issued: bool
    waiting: tuple[WaitReport, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class CallReport:
    """Call of a function that has not ended on a host.

    Attributes:
      about: its current operation, as the end of a phrase; empty when that is not known.
      seconds: the time since it began.
      place: its current function, file and line.
    """

    number: int
    about: str
    seconds: float
    place: str


@dataclasses.dataclass(frozen=True, slots=True)
class HostReport:
    """State of a worker.

    Attributes:
      arrays: the number of arrays that it holds.
      programs: the names of the programs that it has loaded.
      steps: the steps that it has begun, and that are not done.
      calls: the calls of functions that run there.
      clients: for each client, the number and the bytes of its arrays.
    """

    arrays: int
    bytes: int
    programs: tuple[str, ...]
    steps: tuple[StepReport, ...]
    calls: tuple[CallReport, ...] = ()
    clients: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
