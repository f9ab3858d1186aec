"""Prefetched batches of an input, put on the slices that read them during the previous step."""

from __future__ import annotations

import atexit
import collections
import copy
import itertools
import logging
import sys
import time
import traceback
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from pathways.compiler.backends.executable import ProgramExecutable
from pathways.compiler.data.host_input import InputBatches, batches_of
from pathways.compiler.data.on_hosts import FunctionOnHosts
from pathways.compiler.frontend.jax_internals import flatten, unflatten
from pathways.compiler.program import Program
from pathways.compiler.stages import Bound
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.resources.threads import Condition, RunningThread, start_thread

_LAST_WAIT = 5.0
"""Time that closing waits for an input in the middle of a batch."""

_ALIGNMENT = 64
"""Alignment that XLA requires of arrays (`xla::cpu::MinAlign`)."""

log = logging.getLogger("pathways")


class Prefetched[T](Iterator[T]):
    """Iterator over batches that are on their slices; created by `prefetch`.

    As a context manager it is closed at the end of the block; otherwise when it ends, when it is
    garbage-collected, or with the process.

    Attributes:
      waited: the seconds that `next` has waited for the input in all; compared with the time of the steps
        it shows whether the input keeps up.
    """

    def __init__(self, reader: _Reader, stall_report: float | None) -> None:
        self.waited = 0.0
        self._reader = reader
        self._stall_report = stall_report
        self._state: Any = None
        self._is_first = True
        self._error: BaseException | None = None
        # The thread has no reference to this object, and stops when it is collected.
        self._stop = weakref.finalize(self, reader.stop)
        self._stop.atexit = False
        reader.start()

    def __next__(self) -> T:
        """Returns the next batch.

        Raises:
          StopIteration: the input has ended, or this was closed.
          Exception: the error of the input, with a note of the batch. Later calls raise it again.
        """
        if self._error is not None:
            raise self._error
        began = time.monotonic()
        try:
            self._reader.take(self._stall_report)
        except StopIteration:
            self.close()
            raise
        except Exception as error:
            self._error = error
            # The traceback of the reader's error refers to this object, which would never be collected.
            self._stop()
            raise
        finally:
            self.waited += time.monotonic() - began
        # No call from here on, after which Ctrl-C could drop the batch.
        batch, self._state = self._reader.item
        self._reader.item = None
        self._is_first = False
        return batch

    def __enter__(self) -> Prefetched[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops the thread, and frees the batches that it has put on slices.

        If the input is in the middle of a batch, it waits for that for up to 5 seconds.
        """
        # Not `_stop`, which does nothing after a call that Ctrl-C has interrupted.
        self._reader.stop()
        self._stop.detach()
        self._reader.join()
        self._error = None

    def get_state(self) -> Any:
        """Returns the position of the input after the last batch that was returned, not after those read
        ahead.

        `checkpoint.save(..., data=...)` saves it. Before the first batch it waits until the input is open.

        Raises:
          Exception: the error of the input when it was opened.
          TypeError: the input has no positions: no `get_state`, which iterators of Grain have.
        """
        if self._is_first:
            try:
                self._state = self._reader.first_state()
            except Exception:
                self._stop()
                raise
        if self._state is None:
            raise TypeError(
                f"pw.prefetch: the input has no position to save: {self._reader.kind} has no get_state(), "
                "which iterators of Grain have"
            )
        return copy.deepcopy(self._state)


def prefetch[T](
    iterable: Iterable[T] | FunctionOnHosts,
    step: Bound | Program[..., Any],
    argument: str,
    depth: int = 2,
    *,
    count: int | None = None,
    stall_report: float | None = 60.0,
    rows: int | None = None,
    shards: int | None = None,
) -> Prefetched[T]:
    """Reads batches in a thread, and puts them on the slices of a step's argument, during earlier steps.

    Args:
      iterable: the input: trees of arrays or numbers. Arrays of NumPy are copied, so the input may reuse
        their memory. Or `pw.on_hosts` of a function: each host produces the rows that its devices read, and
        none passes through this process; give `rows` or `shards`. It begins at its `get_state()`.
      step: the compiled program that reads them. A program that is not compiled gets the batches as they
        are, until its first call has compiled it.
      argument: the name of the argument of the step.
      depth: the limit of batches that are ready or being read; each takes memory on its slices.
      count: the number of batches to read. No more are read then, and an input that ends before is an error.
      stall_report: seconds after which a wait for the input is reported on the logger `pathways`, and again
        each time they have doubled; None for never.
      rows: for an input on hosts: the number of rows of a batch. The function returns an object with
        `__getitem__`, such as a `grain.MapDataset`: row r of batch k is its row k * rows + r.
      shards: for an input on hosts: the number of shards. The function is called with `shard=i` and
        `shards`, and returns an iterator over rows: shard i has the i-th block of each batch. Hosts share
        them, so the number of hosts changes nothing.

    Returns:
      An iterator over the batches. If a checkpoint has the position of the input, restore it before this is
        called.

    Raises:
      ValueError: the step has no such argument, or a depth or count is out of range. Or rows differ from the
        argument's, or shards do not divide them. Or the input starts at a position of other shards.
      TypeError: the input or the step has another type; from `next`, a batch has a type that the step was not
        compiled for.

    Example:
      ```python
      with pw.prefetch(batches, step, "batch") as ready:
          for batch in ready:
              state, loss = step(state, batch)
      ```
    """
    if not isinstance(step, Bound | Program):
        raise TypeError(f"pw.prefetch: step must be a program, got {type(step).__name__}")
    for name, number in {"depth": depth, "count": count}.items():
        if number is not None and not isinstance(number, int | np.integer):
            raise TypeError(f"pw.prefetch: {name} must be a whole number, got {number!r}")
    if depth < 1:
        raise ValueError(f"pw.prefetch: depth must be at least 1, got {depth}")
    if count is not None and count < 0:
        raise ValueError(f"pw.prefetch: count must not be negative, got {count}")
    for executable in _executables(step):
        executable.argument(argument)
    if isinstance(iterable, FunctionOnHosts):
        if not _executables(step):
            raise ValueError(
                "pw.prefetch: an input on hosts is for a step that is compiled; step.place(...) of its "
                "arguments compiles it"
            )
        # Hosts produce one of them while another one is waited for.
        is_ahead = depth > 1
        depth -= is_ahead
        executable = next(
            (candidate for candidate in _executables(step) if _has_rows(candidate, argument, rows, shards)),
            _executables(step)[0],
        )
        batches: Any = batches_of(iterable, executable, argument, rows, shards, is_ahead=is_ahead)
    elif rows is not None or shards is not None:
        raise TypeError("pw.prefetch: rows= and shards= are for an input of pw.on_hosts")
    else:
        batches = iter(iterable)
    return Prefetched(_Reader(batches, step, argument, depth, count), stall_report)


class _Reader:
    """Thread that reads, and the batches that are ready.

    Attributes:
      kind: the type of the input, for messages.
      item: the batch that `take` has fetched, and the position of the input after it.
    """

    def __init__(
        self,
        iterator: Iterator[Any],
        step: Bound | Program[..., Any],
        argument: str,
        depth: int,
        count: int | None,
    ) -> None:
        self.kind = iterator.kind if isinstance(iterator, InputBatches) else type(iterator).__name__
        self._iterator = iterator
        self._step = step
        self._argument = argument
        self._depth = depth
        self._count = count
        self._x64 = jax.config.jax_enable_x64
        self._ready: collections.deque[tuple[Any, Any]] = collections.deque()
        self.item: Any = None
        self._number = 0
        self._first_state: Any = None
        self._is_open = False
        self._ended = False
        self._error: BaseException | None = None
        # Reentrant, because the garbage collector may call `stop` anywhere in the thread that holds it.
        self._changed = Condition()
        self._thread: RunningThread | None = None

    def start(self) -> None:
        """Starts the thread."""
        if not isinstance(self._iterator, InputBatches):
            self._note_first_state()
        # In front of JAX's own handler, which releases the devices.
        atexit.register(self._exit)
        self._thread = start_thread(self._read, "prefetch")

    def _state(self) -> Any:
        """Returns the position of the input; None if it has none."""
        get_state = getattr(self._iterator, "get_state", None)
        return None if get_state is None else copy.deepcopy(get_state())

    def _note_first_state(self) -> None:
        with self._changed:
            self._first_state = self._state()
            self._is_open = True
            self._changed.notify_all()

    def first_state(self) -> Any:
        """Returns the position of the input before its first batch, once it is open; None if it has none.

        Raises:
          Exception: the error of the input.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_open or self._ended)
            if not self._is_open and self._error is not None:
                raise self._error
            return self._first_state

    def take(self, stall_report: float | None) -> None:
        """Stores the next batch in `item`, unless Ctrl-C kept the previous one from being used.

        Raises:
          StopIteration: the input has ended.
          Exception: the error of the input.
        """
        began, report = time.monotonic(), stall_report
        if self.item is not None:
            return
        with self._changed:
            while not self._changed.wait_for(lambda: self._ready or self._ended, _left(began, report)):
                assert report is not None
                log.warning("%s", self._stalled(time.monotonic() - began))
                report *= 2
            if self._ready:
                with uninterrupted():
                    self.item = self._ready.popleft()
                    self._changed.notify_all()
                return
        if self._error is not None:
            raise self._error
        raise StopIteration

    def stop(self) -> None:
        """Stops the thread, and frees the batches that are ready."""
        with self._changed:
            self._ended = True
            self._error = None
            self._ready.clear()
            self.item = None
            self._changed.notify_all()
        atexit.unregister(self._exit)

    def join(self) -> None:
        """Waits for the thread, unless the input blocks it."""
        if self._thread is not None:
            self._thread.join(_LAST_WAIT)

    def _exit(self) -> None:
        self.stop()
        self.join()

    def _read(self) -> None:
        try:
            # Settings of JAX belong to threads.
            with jax.enable_x64(self._x64):
                if isinstance(self._iterator, InputBatches):
                    self._iterator.open()
                    self._note_first_state()
                self._read_all()
        except BaseException as error:
            error.add_note(f"pw.prefetch: batch {self._number_of_input()} of the input")
            with self._changed:
                # Its traceback refers to batches, and to this object, which keeps none of them after `stop`.
                self._error = None if self._ended else error
        finally:
            if isinstance(self._iterator, InputBatches):
                self._iterator.close()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _read_all(self) -> None:
        for number in itertools.count() if self._count is None else range(self._count):
            self._number = number
            with self._changed:
                self._changed.wait_for(lambda: len(self._ready) < self._depth or self._ended)
            if self._ended:
                return
            try:
                batch = next(self._iterator)
            except StopIteration:
                if self._count is not None:
                    raise ValueError(
                        f"pw.prefetch: the input ended after {number} of {self._count} batches"
                    ) from None
                return
            # The position belongs to this batch: when it is returned, the iterator is further ahead.
            item = _placed(batch, self._step, self._argument), self._state()
            with self._changed:
                if self._ended:
                    return
                self._ready.append(item)
                self._changed.notify_all()

    def _number_of_input(self) -> int:
        return self._iterator.number if isinstance(self._iterator, InputBatches) else self._number

    def _stalled(self, seconds: float) -> str:
        if isinstance(self._iterator, InputBatches) and (description := self._iterator.described()):
            return (
                f"pw.prefetch: the steps wait for batch {self._number_of_input()} of the input: {description}"
            )
        frame = sys._current_frames().get(0 if self._thread is None else self._thread.ident)
        at = traceback.extract_stack(frame)[-1] if frame is not None else None
        place = f"; it is in {at.name} at {at.filename}:{at.lineno}" if at is not None else ""
        return (
            "pw.prefetch: the steps wait for the input, which has given no batch "
            f"{self._number_of_input()} for {seconds:.1f} seconds{place}"
        )


def _left(began: float, report: float | None) -> float | None:
    return None if report is None else max(0.0, began + report - time.monotonic())


def _executables(step: Bound | Program[..., Any]) -> tuple[ProgramExecutable, ...]:
    return (step.executable,) if isinstance(step, Bound) else step.executables


def _has_rows(executable: ProgramExecutable, argument: str, rows: int | None, shards: int | None) -> bool:
    """Returns whether an argument has such rows, or rows that shards divide."""
    numbers, _ = executable.argument(argument)
    counts = {kind.shape[0] if kind.shape else 0 for kind in executable.argument_types(numbers)}
    if rows is not None:
        return counts == {rows}
    return isinstance(shards, int) and shards > 0 and all(count % shards == 0 for count in counts)


def _placed(batch: Any, step: Bound | Program[..., Any], argument: str) -> Any:
    """Returns a batch on the slices of the step; unchanged if a program is not compiled for such batches."""
    leaves, tree = flatten(batch)
    # JAX reads memory of NumPy later, or for as long as the array lives.
    leaves = [_copied(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    for executable in _executables(step):
        # The next call compiles an executable with lost workers again.
        if executable.is_lost and not isinstance(step, Bound):
            continue
        numbers, expected = executable.argument(argument)
        if tree != expected and isinstance(step, Bound):
            raise TypeError(
                f"program '{executable.name}' was compiled for {argument} of structure {expected}, got {tree}"
            )
        if tree == expected and (
            isinstance(step, Bound)
            or (executable.is_at_home(numbers, leaves) and executable.accepts(numbers, leaves))
        ):
            placed = executable.put_arguments(dict(zip(numbers, leaves, strict=True)), copy=True)
            return unflatten(tree, list(placed.values()))
    return unflatten(tree, leaves)


def _copied(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns an aligned copy: JAX copies unaligned arrays again if devices read memory of the host."""
    if type(array) is not np.ndarray or array.dtype.hasobject:
        return array.copy()
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy
