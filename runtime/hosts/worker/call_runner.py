"""Calls of functions on this host, in threads beside the steps.

The arrays of a call are resolved when it is dispatched in order among the steps, so that it sees their values
at that point. A step that donates one waits until the call has ended: `CallRunner.wait_for`.
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
from pathways.runtime.hosts.protocol.messages import Call, Called, CallFailure, KeptArray, ResultArray
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.hosts.worker.array_store import (
    ELSEWHERE,
    ArrayStore,
    FailedArray,
    PromisedArray,
    sharding_of,
)
from pathways.runtime.hosts.worker.client_modules import ClientModules, find_function
from pathways.runtime.plan.block_rows import rows_of, rows_within, shape_of
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.tracebacks import PACKAGE_FOLDERS

_MAX_VALUE_BYTES = 16 << 20
"""Limit on the value that a call returns, in bytes of JSON."""

_MAX_TRACEBACK_CHARACTERS = 8 << 10
"""Limit on the characters of a traceback that is reported."""

_MARK = "is_of_package"

_PACKAGE = f"{__name__.partition('.')[0]}."


class CallRefused(Exception):
    """Failure of a call other than an error of its function.

    Args:
      kind: see `CallFailure.kind`.
      text: the message.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclasses.dataclass
class CallContext:
    """Context of a call, for functions of this package.

    Attributes:
      results: the arrays that the function has to return.
      shardings: the sharding of each.
      objects: objects that calls of the same client keep on this host, by name; they may remove them.
      find: finds functions by name, in the modules of the client.
      about: the current operation, as the end of a phrase, for messages.
      value: a plain value that is sent back besides the arrays.
      client: the number of the client of a service; 0 for the process that has started the worker.
      lane: the lane of the call, whose calls run one after the other.
    """

    host: int
    results: Sequence[ResultArray]
    shardings: Sequence[NamedSharding]
    objects: dict[str, Any]
    find: Callable[[str], Callable[..., Any]] = find_function
    about: str = ""
    value: Any = None
    client: int = 0
    lane: int = 0


def of_package[F: Callable[..., Any]](function: F) -> F:
    """Marks a function of this package.

    Such a function receives whole arrays and `FailedArray`s, as steps do, and its results are not copied.
    """
    function.__dict__[_MARK] = True
    return function


_current = threading.local()


def context() -> CallContext:
    """Returns the context of the call that this thread runs."""
    current: CallContext = _current.context
    return current


@dataclasses.dataclass(eq=False)
class _AcceptedCall:
    """Call in a lane, with its arguments."""

    message: Call
    arrays: list[Any]
    context: CallContext
    thread: int = 0
    began: float = 0.0


class CallRunner:
    """Calls on this host that have been accepted and have not ended.

    Args:
      store: the arrays of the host.
      connection: the connection on which the controller is notified when a call ends.
    """

    def __init__(self, host: int, store: ArrayStore, connection: Connection[Any]) -> None:
        self._host = host
        self._store = store
        self._connection = connection
        self._modules = ClientModules()
        self._changed = threading.Condition()
        self._lanes: dict[int, collections.deque[_AcceptedCall]] = {}
        # By client, see `CallContext.objects`.
        self._objects: collections.defaultdict[int, dict[str, Any]] = collections.defaultdict(dict)
        self.holding: list[_AcceptedCall] = []

    def accept(self, message: Call) -> None:
        """Accepts a call in its order among steps; it runs in a thread."""
        results = message.results or ()
        if self._host not in message.hosts:
            self._store.add(message.first, [ELSEWHERE] * len(results))
            return
        self._store.promise(message.first, len(results))
        arrays = [self._store.get_or_promise(argument.array) for argument in message.arrays]
        client = message.first >> SESSION_BITS
        context = CallContext(self._host, results, (), self._objects[client], client=client)
        call = _AcceptedCall(message, arrays, context)
        with self._changed:
            if arrays:
                self.holding.append(call)
            lane = self._lanes.get(message.lane)
            if lane is not None:
                lane.append(call)
                return
            self._lanes[message.lane] = collections.deque([call])
        start_thread(functools.partial(self._work, message.lane), "call")

    def release_client(self, client: int) -> None:
        """Releases the objects of a client; they are freed when its last running call has ended."""
        self._objects.pop(client, None)

    def wait_for(self, arrays: Sequence[Any]) -> None:
        """Waits until no call holds some arrays."""
        ids = {id(array) for array in arrays}
        with self._changed:
            self._changed.wait_for(
                lambda: not any(id(_resolved(held)) in ids for call in self.holding for held in call.arrays)
            )

    def report(self) -> tuple[CallReport, ...]:
        """Returns the running calls, each with the line that its thread executes."""
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
        """Runs the calls of a lane, one after the other."""
        lane = self._lanes[number]
        while True:
            call = lane[0]
            call.thread, call.began = threading.get_ident(), time.monotonic()
            reply = self._run(call)
            with self._changed:
                # Release the arrays before the reply: the controller may free or donate them right after it.
                call.arrays = []
                if call in self.holding:
                    self.holding.remove(call)
                lane.popleft()
                is_last = not lane
                if is_last:
                    del self._lanes[number]
                self._changed.notify_all()
            try:
                self._connection.send(reply)
            except ConnectionEnded:
                # The dispatch thread ends the process.
                return
            if is_last:
                return

    def _run(self, call: _AcceptedCall) -> Called:
        """Runs a call, stores its results, and returns the reply."""
        message = call.message
        _current.context = call.context
        value, failure = b"", None
        arrays: list[Any] = []
        try:
            value, arrays = self._result(call)
        except CallRefused as error:
            failure = CallFailure(error.kind, "", str(error))
        except (
            BaseException
        ) as error:  # `sys.exit` in a function of the user does not end the worker, either.
            failure = _failure(error)
        finally:
            _current.context = None
        if failure is not None:
            failure = msgspec.structs.replace(failure, about=call.context.about)
            text = f"{message.function}{failure.about} failed: {failure.type or failure.kind}: {failure.text}"
            arrays = [FailedArray(text)] * len(message.results or ())
        for number, array in enumerate(arrays, message.first):
            self._store.keep_promise(number, array)
        return Called(message.call, value, failure)

    def _result(self, call: _AcceptedCall) -> tuple[bytes, list[Any]]:
        message = call.message
        positional, tree, named = plain.decode(message.arguments)
        function = self._find(message, message.function)
        call.context.find = functools.partial(self._find, message)
        is_ours = hasattr(function, _MARK)
        arrays = [
            _argument(argument, _resolved(array), n, is_ours)
            for n, (argument, array) in enumerate(zip(message.arrays, call.arrays, strict=True))
        ]
        args = plain.build(tree, arrays)
        results = message.results
        call.context.shardings = [sharding_of(each.placement, self._store.handles) for each in results or ()]
        # JAX keeps this setting for each thread.
        with jax.enable_x64(message.x64):
            result = function(*args, *positional, **named)
        if results is None:
            try:
                return plain.encode(result, "the result", _MAX_VALUE_BYTES), []
            except plain.TooLargeError as error:
                raise CallRefused("result", f"{error}; return arrays, with out=") from None
            except TypeError as error:
                raise CallRefused("result", _sendable(str(error))) from None
        try:
            leaves = plain.matched(plain.decode(message.structure), result, "the result")
        except TypeError as error:
            raise CallRefused("result", str(error)) from None
        try:
            value = plain.encode(call.context.value, "the position of the input")
        except TypeError as error:
            raise CallRefused("result", str(error)) from None
        return value, [
            _placed(*leaves[n], each, sharding, is_ours)
            for n, (each, sharding) in enumerate(zip(results, call.context.shardings, strict=True))
        ]

    def _find(self, message: Call, function: str) -> Callable[..., Any]:
        """Finds a function by name, in the modules of the client.

        Raises:
          CallRefused: it cannot be imported.
        """
        try:
            if function.startswith(_PACKAGE):
                return find_function(function)
            client = message.first >> SESSION_BITS
            return self._modules.find(function, client, message.path, message.edition)
        except ImportError as error:
            text, cause = str(error), error.__cause__
            if cause is not None and not isinstance(cause, ModuleNotFoundError):
                text += f"\n{_traceback(cause)}".rstrip()
            raise CallRefused("import", text) from None


def _resolved(array: Any) -> Any:
    """Returns an array; waits for one that another call has promised."""
    return array.wait() if isinstance(array, PromisedArray) else array


def _argument(record: KeptArray, array: Any, n: int, is_ours: bool) -> Any:
    if is_ours:
        return array
    if isinstance(array, FailedArray):
        raise CallRefused("argument", f"array argument {n} is an error: {array.error}")
    if array is ELSEWHERE:
        raise CallRefused("argument", f"array argument {n} is not on this host")
    try:
        block = _own_block(array)
    except ValueError as error:
        raise CallRefused("argument", f"array argument {n}: {error}") from None
    return block if record.key is None else jax.random.wrap_key_data(block, impl=record.key)


def _own_block(array: jax.Array) -> jax.Array:
    """Returns the block of an array that this host holds, as an array on its devices only.

    A function that computed with the global array would run collectives with the other hosts, in any order
    relative to their steps, and could deadlock.

    Raises:
      ValueError: the shards of this host are not a block of the array.
    """
    if array.is_fully_addressable:
        return array
    sharding, shards = array.sharding, array.addressable_shards
    assert isinstance(sharding, NamedSharding)
    local = NamedSharding(sharding.mesh.local_mesh, sharding.spec, memory_kind=sharding.memory_kind)
    rows = {shard.device: rows_of(shard.index, array.shape) for shard in shards}
    sides = (zip(*of_dim, strict=True) for of_dim in zip(*rows.values(), strict=True))
    block = tuple((min(starts), max(stops)) for starts, stops in sides)
    shape = shape_of(block)
    expected = local.devices_indices_map(shape)
    if any(rows_of(expected[device], shape) != rows_within(held, block) for device, held in rows.items()):
        raise ValueError(
            f"the shards of {array.dtype}{list(array.shape)} on this host, by {sharding.spec} of "
            f"{dict(sharding.mesh.shape)}, are not a block of it"
        )
    return jax.make_array_from_single_device_arrays(shape, local, [shard.data for shard in shards])


_NUMBERS = (np.bool_, np.integer, np.floating, np.complexfloating)
"""Kinds of numbers; each includes the kinds before it."""


def holds(dtype: Any, other: Any) -> bool:
    """Returns whether a dtype holds numbers of another's kind: floats hold integers, and not the reverse."""
    rank, smaller = (
        next((n for n, kind in enumerate(_NUMBERS) if jax.dtypes.issubdtype(each, kind)), None)
        for each in (dtype, other)
    )
    return rank is not None and smaller is not None and smaller <= rank


def numpy_of(value: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Returns a copy of a value that a function returned for an array.

    A Python number is converted to `dtype`, if that holds its kind.

    Raises:
      OverflowError: the value is an integer that is too large.
    """
    is_number = isinstance(value, bool | int | float | complex)
    return np.array(value, dtype if is_number and holds(dtype, np.dtype(type(value))) else None)


def _copy(array: jax.Array) -> jax.Array:
    """Copies an array: the function may return an argument or keep the result, and steps may donate it."""
    with jax.enable_x64(True):
        shards = [
            pjrt.put_shard(shard.data, shard.device, array.sharding, may_alias=False)
            for shard in array.addressable_shards
        ]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)


def _placed(name: str, value: Any, result: ResultArray, sharding: NamedSharding, is_ours: bool) -> Any:
    """Returns a value that a function returned for an array, in the sharding of that array.

    Raises:
      CallRefused: the value has another dtype or shape.
    """
    if not sharding.addressable_devices:
        return ELSEWHERE
    if getattr(value, "dtype", None) is not None and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    dtype = jax.numpy.dtype(result.dtype)
    is_alike = isinstance(value, jax.Array) and value.shape == result.shape and value.dtype == dtype
    if is_alike and value.sharding.is_equivalent_to(sharding, value.ndim):
        return value if is_ours else _copy(value)
    try:
        # Copy: the function may reuse the memory.
        data = numpy_of(value, dtype)
    except Exception as error:
        raise CallRefused("result", f"{name} is not an array: {error}") from None
    expected = f"expected {dtype}{list(result.shape)}"
    if data.dtype != dtype:
        raise CallRefused("result", f"{name} is {data.dtype}{list(data.shape)}: {expected}")
    try:
        # Without x64 JAX would narrow 64-bit elements.
        with jax.enable_x64(True):
            array = jax.make_array_from_process_local_data(sharding, data, result.shape)
    except Exception:
        raise CallRefused(
            "result",
            f"{name} is {data.dtype}{list(data.shape)}: {expected}, or the block of it on this host",
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
    """Returns the message of an error, with its notes."""
    try:
        return _sendable("\n".join(map(str, (error, *getattr(error, "__notes__", ())))))
    except BaseException as other:  # The class is the user's: its `__str__` may raise anything.
        return f"an error without a message: its __str__ raised {type(other).__qualname__}"


def _sendable(text: str) -> str:
    """Returns a text with escapes for what UTF-8 cannot encode, such as surrogates in file names."""
    return text.encode(errors="backslashreplace").decode()


def _traceback(error: BaseException) -> str:
    """Returns the traceback of an error, from the first frame on that is outside this package."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((n for n, frame in enumerate(frames) if not frame.filename.startswith(PACKAGE_FOLDERS)), 0)
    text = "".join(traceback.format_list(frames[first:]))
    return text if len(text) <= _MAX_TRACEBACK_CHARACTERS else f"...\n{text[-_MAX_TRACEBACK_CHARACTERS:]}"


def _place(frame: types.FrameType | None) -> str:
    """Returns the function and line that a thread executes."""
    if frame is None:
        return "a thread that has just ended"
    at = traceback.extract_stack(frame)[-1]
    return f"{at.name} at {at.filename}:{at.lineno}"
