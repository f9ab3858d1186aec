"""Source of batches that can be rewound to a step."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from pathways.compiler.data.on_hosts import FunctionOnHosts
from pathways.compiler.data.prefetch import Prefetched, prefetch
from pathways.compiler.program import Program
from pathways.compiler.resilience.settings import shortened, shown
from pathways.compiler.stages import Bound
from pathways.runtime.control.records.errors import HostError


class SourcePosition:
    """Position of a source, as `pw.checkpoint` saves and restores it.

    Attributes:
      position: the position; once restored, its text as bytes.
    """

    def __init__(self, position: Any = b"") -> None:
        self.position = position

    def get_state(self) -> Any:
        """Returns the position."""
        return self.position

    def set_state(self, position: Any) -> None:
        """Sets the position."""
        self.position = position


class RewindableSource:
    """Source that is read ahead, and can be rewound to the position before a step.

    `use` notes that a batch was used. If its step fails before that, the batch is read again.

    Args:
      source: the source; see `pw.resilient`.
      step: the program that reads the batches.
      argument: the name of the argument that gets the batches.
      rows: see `pw.prefetch`.
      shards: see `pw.prefetch`.
      depth: see `pw.prefetch`.

    Attributes:
      positions: the positions before the steps that may be run again.
    """

    def __init__(
        self,
        source: Any,
        step: Bound | Program[..., Any],
        argument: str,
        *,
        rows: int | None = None,
        shards: int | None = None,
        depth: int = 2,
    ) -> None:
        self.positions: dict[int, Any] = {}
        self._source = source
        self._step = step
        self._argument = argument
        self._options: dict[str, Any] = {"rows": rows, "shards": shards, "depth": depth}
        # Whether its positions are bytes.
        self._has_bytes = False
        self._reading: Prefetched[Any] | None = None
        self._reads: _LockedIterator | None = None
        # The step whose batch is read next; None if unknown.
        self._next_step: int | None = None
        # Held while a batch is read, so that the iterator is not moved meanwhile.
        self._lock = threading.Lock()

    def open(self) -> None:
        """Starts at the present position of the source, which is the position before step 0.

        Raises:
          TypeError: the source cannot be rewound.
        """
        self.positions[0] = self._open(None)
        self._has_bytes = isinstance(self.positions[0], bytes)
        self._next_step = 0

    def rewind(self, step: int) -> None:
        """Restarts at the position before a step."""
        self._open(self.positions[step])
        self._next_step = step

    def rewind_to_earlier_run(self, step: int, origin: str) -> None:
        """Restarts at the position before a step that an earlier run recorded.

        Args:
          origin: the place of the record, for messages.

        Raises:
          ValueError: the source does not accept the position.
        """
        try:
            self.rewind(step)
        except HostError:
            raise
        except Exception as error:
            raise ValueError(
                f"pw.resilient: {origin}: the position of the source is {shown(self.positions[step])}, which "
                f"the source of this call does not accept ({type(error).__name__}: {shortened(str(error))}); "
                "pass the source that the run began with, or another folder as directory="
            ) from error

    def _open(self, position: Any) -> Any:
        """Starts at a position, by default the present one of the source; returns the position."""
        self.close()
        source = self._source if isinstance(self._source, FunctionOnHosts) else self._make_iterator()
        # Under the lock: `close` waits for a limited time, so an earlier thread may still use this iterator.
        if position is not None:
            with self._lock:
                source.set_state(copy.deepcopy(position))
        if not isinstance(source, FunctionOnHosts):
            source = self._reads = _LockedIterator(source, self._lock)
        self._reading = prefetch(source, self._step, self._argument, **self._options)
        try:
            return self._reading.get_state()
        except TypeError as error:
            self.close()
            raise TypeError(f"pw.resilient: the source cannot be rewound: {error}") from None

    def _make_iterator(self) -> Any:
        """Returns a new iterator, or the source itself if it is an iterator."""
        if isinstance(self._source, Sequence):
            return _SequenceIterator(self._source)
        with self._lock:
            iterator = iter(self._source)
        missing = [name for name in ("get_state", "set_state") if not hasattr(iterator, name)]
        if missing:
            raise TypeError(
                f"pw.resilient: the source cannot be rewound: {type(iterator).__name__} has no "
                f"{' and no '.join(f'{name}()' for name in missing)}, which iterators of Grain have; or give "
                "a sequence of batches, which is read by number, or pw.on_hosts(...)"
            )
        return iterator

    def position_of(self, text: bytes) -> Any:
        """Returns the position from its text on disk, which is JSON unless positions are bytes.

        Raises:
          ValueError: the text is not JSON: it is damaged, or of another source.
        """
        if self._has_bytes:
            return text
        try:
            return json.loads(text)
        except ValueError:
            raise ValueError(f"the position of the source is {shown(text)}, which is not JSON") from None

    def check_saved(self) -> None:
        """Checks that positions can be written to disk.

        Raises:
          TypeError: the positions are not JSON.
        """
        position = self.positions[0]
        try:
            if not isinstance(position, bytes):
                json.dumps(position)
        except (TypeError, ValueError) as error:
            raise TypeError(
                "pw.resilient: the position of the source cannot be saved to disk: "
                f"{shortened(str(error))}; get_state() has to return bytes, or what JSON can write"
            ) from None

    def read(self, step: int) -> tuple[Any, Any]:
        """Returns the batch of a step, and the position after it.

        Raises:
          StopIteration: the source has ended.
          Exception: the source raised it.
        """
        if self._next_step != step:
            self.rewind(step)
        self._next_step = None
        assert self._reading is not None
        batch = next(self._reading)
        return batch, self._reading.get_state()

    def use(self, step: int, position: Any) -> None:
        """Notes that the batch of a step, the last one that was read, was used.

        Args:
          position: the position after the batch.
        """
        self.positions[step + 1] = position
        self._next_step = step + 1

    def drop_before(self, step: int) -> None:
        """Drops the positions before a step."""
        self.positions = {n: position for n, position in self.positions.items() if n >= step}

    def close(self) -> None:
        """Stops reading ahead."""
        self._next_step = None
        if self._reads is not None:
            self._reads.close()
        if self._reading is not None:
            self._reading.close()
            self._reading = None


class _LockedIterator(Iterator[Any]):
    """Iterator that one thread reads, and another one moves between reads."""

    def __init__(self, iterator: Any, lock: threading.Lock) -> None:
        self._iterator = iterator
        self._lock = lock
        self._is_closed = False

    def __next__(self) -> Any:
        with self._lock:
            if self._is_closed:
                # The iterator was moved for another reader, which would miss this batch.
                raise StopIteration
            return next(self._iterator)

    def close(self) -> None:
        """Ends the iterator, at the latest after the batch in progress."""
        self._is_closed = True

    def get_state(self) -> Any:
        return self._iterator.get_state()


class _SequenceIterator(Iterator[Any]):
    """Iterator over a sequence; its position is the index of the next item."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items
        self._number = 0

    def __next__(self) -> Any:
        if self._number >= len(self._items):
            raise StopIteration
        self._number += 1
        return self._items[self._number - 1]

    def get_state(self) -> int:
        return self._number

    def set_state(self, number: Any) -> None:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"expected the number of a batch, got {shown(number)}")
        if not 0 <= number <= len(self._items):
            raise ValueError(f"there are {len(self._items)} batches")
        self._number = number
