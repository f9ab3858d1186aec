"""What workers say that they are at. Plain data, which travels as it is."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class WaitReport:
    """Arrays of another host that are not there yet.

    Attributes:
      host: the other host.
      address: where it is asked for them.
      channel: the channel.
      src: the slice that they come from.
      dst: the slice that they go to.
      index: the number of the transfer.
      seconds: since when they were asked for.
      is_sure: whether they are known not to be there; else they have been passed on to XLA, which may wait.
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
    """A step that is not done on a host.

    Attributes:
      program: the name of its program.
      run: its number.
      seconds: since when it is issued.
      is_issued: whether all of it is.
      waiting: what it waits for, or may wait for.
    """

    program: str
    run: int
    seconds: float
    is_issued: bool
    waiting: tuple[WaitReport, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class CallReport:
    """A call of a function that has not ended on a host.

    Attributes:
      number: its number.
      about: what it is at, as the end of a phrase; nothing when that is not known.
      seconds: since when it runs.
      place: the function, file and line where it is.
    """

    number: int
    about: str
    seconds: float
    place: str


@dataclasses.dataclass(frozen=True, slots=True)
class HostReport:
    """How a worker is.

    Attributes:
      arrays: how many arrays it holds.
      bytes: the bytes of all their shards.
      programs: the names of the programs that it has loaded.
      steps: the steps that it has begun and that are not done.
      calls: the calls of functions that run there.
      clients: of arrays of clients, for each client their number and their bytes.
    """

    arrays: int
    bytes: int
    programs: tuple[str, ...]
    steps: tuple[StepReport, ...]
    calls: tuple[CallReport, ...] = ()
    clients: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
