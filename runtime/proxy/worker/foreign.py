"""Foreign programs in a worker, with the attributes that `Worker.run` needs besides their function."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from pathways.runtime.hosts.protocol.messages import StepMemory
from pathways.runtime.hosts.worker.array_store import FailedArray
from pathways.runtime.hosts.worker.worker import Worker, WorkerProgram
from pathways.runtime.xla import ifrt


class ForeignTarget:
    """Counterpart of `WorkerTarget` for a program that sends nothing to other hosts.

    Attributes:
      tokens: the tokens of the execution that other hosts take part in.
      missed: the error of an operand that failed on this host; zeros took its place.
    """

    def __init__(self) -> None:
        self.tokens: list[Any] = []
        self.missed: str | None = None

    def begin(self, run: int, receives: list[Any]) -> None:
        """Begins a step."""
        self.tokens = []
        self.missed = None

    def poison(self, why: str) -> None:
        """No-op: no other host waits for an array of this step."""

    def cancel(self, run: int, hosts: Sequence[int]) -> None:
        """No-op: no array was sent."""

    def peers(self) -> set[int]:
        """Returns the hosts that arrays are exchanged with: none."""
        return set()


@dataclasses.dataclass(frozen=True)
class ForeignOutput:
    """Result of a program, for messages about it."""

    slice: str


@dataclasses.dataclass(frozen=True)
class ForeignExecutable:
    """Function of a program, and its results.

    Attributes:
      details: returns the facts that a request of the kind `DETAILS` gets.
    """

    run: Callable[[Sequence[Any]], list[Any]]
    outputs: Sequence[ForeignOutput]
    details: Callable[[], bytes] = bytes


def foreign_program(
    name: str,
    executable: ForeignExecutable,
    target: ForeignTarget,
    *,
    operands: int,
    inputs: tuple[int, ...] | None = None,
    donated: tuple[int, ...] = (),
    runs_with_failed: bool = False,
    memory: StepMemory | None = None,
) -> WorkerProgram:
    """Returns a program of a function on arrays, all of whose results are on this host.

    Args:
      operands: the number of operands of the island.
      inputs: the numbers among them that the function takes; None for all.
      donated, runs_with_failed, memory: see `WorkerProgram`.
    """
    function: Any = executable
    bound: Any = target
    count = len(executable.outputs)
    return WorkerProgram(
        name,
        function,
        bound,
        inputs,
        donated,
        tuple(range(count)),
        count,
        runs_with_failed,
        operands,
        memory,
    )


def program_elsewhere(name: str, *, operands: int, count: int) -> WorkerProgram:
    """Returns a program on a host that has none of its devices: its results are on others."""
    executable: Any = ForeignExecutable(lambda _: [], ())
    target: Any = ForeignTarget()
    return WorkerProgram(name, executable, target, (), (), (), count, operands=operands)


def own_devices(worker: Worker) -> dict[int, jax.Device]:
    """Returns the devices of a host, without the devices of other hosts of its island, by their ids."""
    return {
        number: device
        for number, device in worker.store.handles.items()
        if device.process_index == jax.process_index()
    }


class UnprovedArrays:
    """Results of programs on one host whose failure its other hosts would not know of.

    On an island of several hosts, a program of all must not get an operand that fails: XLA would not launch
    it on this host, and the next collective here would meet one of the skipped launch on the others.
    """

    def __init__(self) -> None:
        # By identity: arrays have no hash.
        self._arrays: weakref.WeakValueDictionary[int, jax.Array] = weakref.WeakValueDictionary()

    def add(self, arrays: Iterable[jax.Array]) -> None:
        """Adds results; ready results stay, too, since only a wait shows whether they failed."""
        for array in arrays:
            self._arrays[id(array)] = array

    def has(self, array: Any) -> bool:
        """Returns whether an array was added."""
        return self._arrays.get(id(array)) is array

    def error_of(self, array: Any) -> str | None:
        """Returns the error of an operand, after a wait for an array that was added; None without one."""
        if isinstance(array, FailedArray):
            return array.error
        if not self.has(array):
            return None
        try:
            array.block_until_ready()
        except Exception as error:
            return str(error).strip() or type(error).__name__
        del self._arrays[id(array)]
        return None


def zeros_on(device: jax.Device, shape: tuple[int, ...], dtype: Any, memory_kind: str | None) -> jax.Array:
    """Returns zeros in place of a shard that failed, also of types of 64 bits."""
    place = jax.sharding.SingleDeviceSharding(device, memory_kind=memory_kind)
    return ifrt.put([np.zeros(shape, dtype)], shape, place, [device])
