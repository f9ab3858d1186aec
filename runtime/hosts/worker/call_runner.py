"""Calls of functions on this host, in threads beside the steps.

Arrays are looked up when the call has its turn among steps, so that they are those of that moment. A step
that donates one waits until the call has ended: `CallRunner.wait_for`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import msgspec
import numpy as np
from jax.sharding import NamedSharding

from pathways.runtime.control.records.reports import CallReport
from pathways.runtime.control.records.step import SESSION_BITS
from pathways.runtime.hosts.protocol import plain
from pathways.runtime.hosts.protocol.messages import (
    Call,
    Called,
    CallFailure,
    KeptArray,
    ResultArray,
)
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.hosts.worker.array_store import (
    ELSEWHERE,
    ArrayStore,
    FailedArray,
    PromisedArray,
    sharding_of,
)
from pathways.runtime.hosts.worker.client_modules import ClientModules, found
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.xla.tracebacks import PACKAGE_FOLDERS

_MOST_VALUE = 16 << 20
"""The longest value that a call may return, in bytes of JSON."""

_MOST_TRACEBACK = 8 << 10
"""The most characters of a traceback that are told."""


_MARK = "is_of_package"

_PACKAGE = f"{__name__.partition('.')[0]}."


class CallRefused(Exception):
    """A call fails for another reason than that its function raised.

    Args:
      kind: see `CallFailure.kind`.
      text: what is wrong.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclasses.dataclass
class CallContext:
    """What a function of this package knows of its call.

    Attributes:
      host: the number of this host.
      made: the arrays that it has to make.
      shardings: how these lie.
      kept: what calls of the same client have kept on this host, by names; they may remove it.
      find: finds functions by their names, as whoever calls has them.
      about: what it is at, as the end of a phrase, for messages.
      value: what it says besides the arrays that it makes.
    """

    host: int
    made: Sequence[ResultArray]
    shardings: Sequence[NamedSharding]
    kept: dict[str, Any]
    find: Callable[[str], Callable[..., Any]] = found
    about: str = ""
    value: Any = None


def of_package[F: Callable[..., Any]](function: F) -> F:
    """Marks a function of this package: it gets arrays and `FailedArray`s as steps do, and makes new ones."""
    function.__dict__[_MARK] = True
    return function


_current = threading.local()


def context() -> CallContext:
    """That of the call that this thread makes."""
    found: CallContext = _current.context
    return found


@dataclasses.dataclass(eq=False)
class _AcceptedCall:
    """A call that has had its turn, and what it takes."""

    message: Call
    arrays: list[Any]
    context: CallContext
    thread: int = 0
    began: float = 0.0


class CallRunner:
    """The calls that have had their turn on this host and have not ended.

    Args:
      host: its number.
      store: its arrays.
      connection: where the controller hears of their ends.

    Attributes:
      holding: those that hold arrays.
    """

    def __init__(self, host: int, store: ArrayStore, connection: Connection[Any]) -> None:
        self._host = host
        self._store = store
        self._connection = connection
        self._modules = ClientModules()
        self._changed = threading.Condition()
        self._lanes: dict[int, collections.deque[_AcceptedCall]] = {}
        # What the calls of each client have kept.
        self._kept: collections.defaultdict[int, dict[str, Any]] = collections.defaultdict(dict)
        self.holding: list[_AcceptedCall] = []

    def take(self, message: Call) -> None:
        """Takes a call in its turn; it is made in a thread."""
        made = message.made or ()
        if self._host not in message.hosts:
            self._store.add(message.first, [ELSEWHERE] * len(made))
            return
        self._store.promise(message.first, len(made))
        arrays = [self._store.look_up(kept.array) for kept in message.arrays]
        kept = self._kept[message.first >> SESSION_BITS]
        call = _AcceptedCall(message, arrays, CallContext(self._host, made, (), kept))
        with self._changed:
            if arrays:
                self.holding.append(call)
            lane = self._lanes.get(message.lane)
            if lane is not None:
                lane.append(call)
                return
            self._lanes[message.lane] = collections.deque([call])
        start_thread(functools.partial(self._work, message.lane), "call")

    def forget(self, client: int) -> None:
        """A client is gone; what its calls have kept goes with the last of them that runs."""
        self._kept.pop(client, None)

    def wait_for(self, arrays: Sequence[Any]) -> None:
        """Waits until no call holds some arrays."""
        wanted = {id(array) for array in arrays}
        with self._changed:
            self._changed.wait_for(
                lambda: not any(id(_there(held)) in wanted for call in self.holding for held in call.arrays)
            )

    def report(self) -> tuple[CallReport, ...]:
        """What runs, and where it is."""
        with self._changed:
            running = [lane[0] for lane in self._lanes.values() if lane and lane[0].began]
        frames = sys._current_frames()
        now = time.monotonic()
        return tuple(
            CallReport(
                call.message.call, call.context.about, now - call.began, _place(frames.get(call.thread))
            )
            for call in running
        )

    def _work(self, number: int) -> None:
        """Makes the calls of a lane, one after the other."""
        lane = self._lanes[number]
        while True:
            call = lane[0]
            call.thread, call.began = threading.get_ident(), time.monotonic()
            answer = self._made(call)
            with self._changed:
                # Nothing of it is held any more when the controller hears that it has ended.
                call.arrays = []
                if call in self.holding:
                    self.holding.remove(call)
                lane.popleft()
                is_last = not lane
                if is_last:
                    del self._lanes[number]
                self._changed.notify_all()
            try:
                self._connection.send(answer)
            except ConnectionEnded:
                # The dispatch thread ends the process.
                return
            if is_last:
                return

    def _made(self, call: _AcceptedCall) -> Called:
        """Makes a call; returns its answer."""
        message = call.message
        _current.context = call.context
        value, failure = b"", None
        arrays: list[Any] = []
        try:
            value, arrays = self._result(call)
        except CallRefused as error:
            failure = CallFailure(error.kind, "", str(error))
        except BaseException as error:  # `sys.exit` too is no reason to end.
            failure = _failure(error)
        finally:
            _current.context = None
        if failure is not None:
            failure = msgspec.structs.replace(failure, about=call.context.about)
            text = f"{message.function}{failure.about} failed: {failure.type or failure.kind}: {failure.text}"
            arrays = [FailedArray(text)] * len(message.made or ())
        for number, array in enumerate(arrays, message.first):
            self._store.keep_promise(number, array)
        return Called(message.call, value, failure)

    def _result(self, call: _AcceptedCall) -> tuple[bytes, list[Any]]:
        message = call.message
        positional, tree, named = plain.decode(message.arguments)
        function = self._found(message, message.function)
        call.context.find = functools.partial(self._found, message)
        is_ours = hasattr(function, _MARK)
        taken = [
            _argument(kept, _there(array), n, is_ours)
            for n, (kept, array) in enumerate(zip(message.arrays, call.arrays, strict=True))
        ]
        args = plain.build(tree, taken)
        made = message.made
        call.context.shardings = [sharding_of(one.placement, self._store.handles) for one in made or ()]
        # Settings of JAX belong to threads.
        with jax.enable_x64(message.x64):
            result = function(*args, *positional, **named)
        if made is None:
            try:
                return plain.encode(result, "the result", _MOST_VALUE), []
            except plain.TooLargeError as error:
                raise CallRefused("result", f"{error}; return arrays, with out=") from None
            except TypeError as error:
                raise CallRefused("result", _sendable(str(error))) from None
        try:
            leaves = plain.matched(plain.decode(message.structure), result, "the result")
        except TypeError as error:
            raise CallRefused("result", str(error)) from None
        try:
            said = plain.encode(call.context.value, "the position of the input")
        except TypeError as error:
            raise CallRefused("result", str(error)) from None
        return said, [
            _placed(*leaves[n], one, sharding, is_ours)
            for n, (one, sharding) in enumerate(zip(made, call.context.shardings, strict=True))
        ]

    def _found(self, message: Call, function: str) -> Callable[..., Any]:
        """A function by its name, as whoever calls has it.

        Raises:
          CallRefused: there is none.
        """
        try:
            if function.startswith(_PACKAGE):
                return found(function)
            client = message.first >> SESSION_BITS
            return self._modules.find(function, client, message.path, message.edition)
        except ImportError as error:
            text, cause = str(error), error.__cause__
            if cause is not None and not isinstance(cause, ModuleNotFoundError):
                text += f"\n{_traceback(cause)}".rstrip()
            raise CallRefused("import", text) from None


def _there(array: Any) -> Any:
    """An array that may have been promised by another call."""
    return array.wait() if isinstance(array, PromisedArray) else array


def _argument(kept: KeptArray, array: Any, n: int, is_ours: bool) -> Any:
    if is_ours:
        return array
    if isinstance(array, FailedArray):
        raise CallRefused("argument", f"array {n} that it takes is an error: {array.error}")
    if array is ELSEWHERE:
        raise CallRefused("argument", f"array {n} that it takes is not on this host")
    try:
        own = _own_part(array)
    except ValueError as error:
        raise CallRefused("argument", f"array {n} that it takes: {error}") from None
    return own if kept.key is None else jax.random.wrap_key_data(own, impl=kept.key)


def _own_part(array: jax.Array) -> jax.Array:
    """What this host has of an array, as an array of its devices alone.

    A function that computes with the array of all hosts would meet them, and their steps, in any order.

    Raises:
      ValueError: it is no block of the array.
    """
    if array.is_fully_addressable:
        return array
    whole, shards = array.sharding, array.addressable_shards
    assert isinstance(whole, NamedSharding)
    own = NamedSharding(whole.mesh.local_mesh, whole.spec)
    indices = [shard.index for shard in shards]
    first = [min(index[dim].indices(size)[0] for index in indices) for dim, size in enumerate(array.shape)]
    shape = tuple(
        max(index[dim].indices(size)[1] for index in indices) - start
        for dim, (size, start) in enumerate(zip(array.shape, first, strict=True))
    )
    expected = own.devices_indices_map(shape)
    for shard in shards:
        for dim, (size, start) in enumerate(zip(array.shape, first, strict=True)):
            begin, end, _ = shard.index[dim].indices(size)
            if expected[shard.device][dim].indices(shape[dim])[:2] != (begin - start, end - start):
                raise ValueError(
                    f"the shards of {array.dtype}{list(array.shape)} on this host, by {whole.spec} of "
                    f"{dict(whole.mesh.shape)}, are no block of it"
                )
    return jax.make_array_from_single_device_arrays(shape, own, [shard.data for shard in shards])


_NUMBERS = (np.bool_, np.integer, np.floating, np.complexfloating)
"""Kinds of numbers, each of which holds those before it."""


def holds(dtype: Any, other: Any) -> bool:
    """Whether a dtype holds numbers of the kind of another: floats hold integers, and not the reverse."""
    rank, smaller = (
        next((n for n, kind in enumerate(_NUMBERS) if jax.dtypes.issubdtype(each, kind)), None)
        for each in (dtype, other)
    )
    return rank is not None and smaller is not None and smaller <= rank


def numpy_of(value: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """A copy of what a function returned for an array; numbers of Python get its dtype if that holds them.

    Raises:
      OverflowError: it is an integer that is too large.
    """
    is_number = isinstance(value, bool | int | float | complex)
    return np.array(value, dtype if is_number and holds(dtype, np.dtype(type(value))) else None)


def _copy(array: jax.Array) -> jax.Array:
    """A copy: what a function returns may be what it took, or keeps, and steps may take it over."""
    with jax.enable_x64(True):
        shards = [
            jax.device_put(shard.data, shard.device, may_alias=False) for shard in array.addressable_shards
        ]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)


def _placed(where: str, value: Any, made: ResultArray, sharding: NamedSharding, is_ours: bool) -> Any:
    """What a function returned for an array, where it belongs.

    Raises:
      CallRefused: it is of another type.
    """
    if not sharding.addressable_devices:
        return ELSEWHERE
    if getattr(value, "dtype", None) is not None and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    dtype = jax.numpy.dtype(made.dtype)
    is_alike = isinstance(value, jax.Array) and value.shape == made.shape and value.dtype == dtype
    if is_alike and value.sharding.is_equivalent_to(sharding, value.ndim):
        return value if is_ours else _copy(value)
    try:
        # A copy: the function may use its memory again.
        data = numpy_of(value, dtype)
    except Exception as error:
        raise CallRefused("result", f"{where} is not an array: {error}") from None
    expected = f"expected {dtype}{list(made.shape)}"
    if data.dtype != dtype:
        raise CallRefused("result", f"{where} is {data.dtype}{list(data.shape)}: {expected}")
    try:
        # Without x64 JAX would narrow what has 64 bits.
        with jax.enable_x64(True):
            array = jax.make_array_from_process_local_data(sharding, data, made.shape)
    except Exception:
        raise CallRefused(
            "result",
            f"{where} is {data.dtype}{list(data.shape)}: {expected}, or the part of it that this host has",
        ) from None
    return array


def _failure(error: BaseException) -> CallFailure:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    number, path = None, ""
    if isinstance(error, OSError) and isinstance(error.errno, int):
        number = error.errno if error.errno.bit_length() < 32 else None
        name_of_file = error.filename
        if name_of_file is not None:
            path = os.fsdecode(name_of_file) if isinstance(name_of_file, bytes) else str(name_of_file)
    text, trace = _text(error), _sendable(_traceback(error))
    return CallFailure("raised", _sendable(name), text, trace, number, _sendable(path) or None)


def _text(error: BaseException) -> str:
    """What an error says, with its notes."""
    try:
        return _sendable("\n".join(map(str, (error, *getattr(error, "__notes__", ())))))
    except BaseException as other:  # Its class is the user's.
        return f"an error that cannot say what it is: {type(other).__qualname__}"


def _sendable(text: str) -> str:
    """A text without what UTF-8 lacks, such as bytes of a file that were not UTF-8 either."""
    return text.encode(errors="backslashreplace").decode()


def _traceback(error: BaseException) -> str:
    """The traceback of an error, from the first line on that is not of this package."""
    frames = traceback.extract_tb(error.__traceback__)
    own = next((n for n, frame in enumerate(frames) if not frame.filename.startswith(PACKAGE_FOLDERS)), 0)
    text = "".join(traceback.format_list(frames[own:]))
    return text if len(text) <= _MOST_TRACEBACK else f"...\n{text[-_MOST_TRACEBACK:]}"


def _place(frame: types.FrameType | None) -> str:
    """Where a thread is."""
    if frame is None:
        return "a thread that has just ended"
    at = traceback.extract_stack(frame)[-1]
    return f"{at.name} at {at.filename}:{at.lineno}"
