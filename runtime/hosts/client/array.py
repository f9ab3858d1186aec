"""Handle of an array whose shards are on hosts, as programs on hosts return it."""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.step import Step
from pathways.runtime.hosts.client.array_fetch import PendingFetch, receive_blocks, request_blocks
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import Location
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.xla import pjrt

SMALL = 1 << 20
"""Bytes up to which arithmetic outside of a program fetches an array."""


class Array:
    """Array on slices of other processes.

    It is asynchronous, like a `jax.Array`, and programs use it where it is. `np.asarray`, `jax.device_get`
    and `float` fetch it. Arithmetic, indexing and methods such as `sum` outside of a program fetch it too, if
    it has at most 1 MiB. Pickling and copying it produce an array of this process.

    Attributes:
      aval: its abstract value.
      copies: its number at each location that has it.
      step: the step that computes it; None if it was put there.
      steps: the steps of copies that `step` does not compute, by their numbers.
    """

    is_on_hosts = True
    """Mark that distinguishes it from arrays of this process without importing this module."""

    # NumPy then calls the operators of this class instead of its own.
    __array_priority__ = 100

    # As in JAX: `==` compares the elements.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, controller: HostSession, aval: Any, step: Step | None = None) -> None:
        """Creates the handle of an array without copies.

        Args:
          controller: the client of the hosts.
          aval: the abstract value.
          step: the step that computes its first copies; None for none.
        """
        self.aval = aval
        self._controller = controller
        self.copies: dict[Location, int] = {}
        self.step = step
        self.steps: dict[int, Step] = {}
        self._deleted = False
        self._value: np.ndarray[Any, Any] | None = None
        # Fetches in flight, or received; None while there are none.
        self._fetches: list[PendingFetch] | None = None
        self._lock = threading.Lock()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(self.aval.shape)

    @property
    def dtype(self) -> Any:
        """Data type of the elements."""
        return self.aval.dtype

    @property
    def weak_type(self) -> bool:
        """Whether its dtype is weak in type promotion, as the type of a Python number."""
        return bool(self.aval.weak_type)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.aval.size)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.size * self.itemsize

    @property
    def sharding(self) -> NamedSharding:
        """Sharding over the devices of its first slice, which have no objects in this process.

        For an array whose rows are split among replicas, the sharding of each block of rows.

        Raises:
          AttributeError: no slice has it, as of a leaf of a batch that the step does not read.
        """
        first = next(iter(self.copies), None)
        if first is None:
            raise AttributeError(f"{self!r} is on no slice, and has no sharding")
        return abstract_sharding(first)

    @property
    def hosts(self) -> tuple[int, ...]:
        """Numbers of the hosts that have shards of it."""
        # A copy of the keys: another thread may add a location.
        return tuple(dict.fromkeys(host.index for location in list(self.copies) for host in location.holders))

    @property
    def locations(self) -> tuple[Location, ...]:
        """Locations that have a copy of it."""
        return tuple(self.copies)

    def is_ready(self) -> bool:
        """Returns whether it has been computed."""
        self.check_alive()
        steps = [(self.step_at(location), location) for location in list(self.copies)]
        return all(step is None or self._controller.is_done(step, location) for step, location in steps)

    def block_until_ready(self) -> Array:
        """Waits until it has been computed, and returns it.

        Raises:
          HostError: the computation failed, or a host is lost.
        """
        self.check_alive()
        for location, number in list(self.copies.items()):
            step = self.step_at(location)
            try:
                if step is not None:
                    self._controller.wait_for_step(step, location, number)
                location.gang.life.check()
            except HostError:
                if self.copies.get(location) == number:
                    raise
                # It has moved off an island that left meanwhile.
                return self.block_until_ready()
        return self

    def delete(self) -> None:
        """Frees it on all hosts; it must not be used any more."""
        # Both locks: another thread may have read its number, and not yet sent the step or the fetch.
        with self._controller.pool.order, self._controller.fetching:
            self._deleted = True
            self._value = None
            self._fetches = None
            for location, number in self.copies.items():
                location.unused.add(number)
            self.copies = {}

    def is_deleted(self) -> bool:
        """Returns whether it was deleted, or donated to a program."""
        return self._deleted

    def step_at(self, location: Location) -> Step | None:
        """Returns the step that computes it at a location; None if it was put there."""
        return self.steps.get(self.copies.get(location, -1), self.step)

    def is_of(self, controller: HostSession) -> bool:
        """Returns whether it is on the hosts of this client, rather than the hosts of an earlier one."""
        return self._controller is controller

    def is_at(self, location: Location) -> bool:
        """Returns whether it has a copy at a location."""
        return location in self.copies

    def number_at(self, location: Location) -> int:
        """Returns its number at a location.

        Raises:
          RuntimeError: it was deleted.
        """
        try:
            return self.copies[location]
        except KeyError:
            self.check_alive()
            raise

    def put(self, location: Location, value: np.ndarray[Any, Any]) -> None:
        """Sends its value to a location, and adds the copy there.

        Raises:
          HostError: an island is lost or leaves.
        """
        number = self._controller.take_numbers()
        sending = location.gang, number
        self._controller.puts.add(sending)
        try:
            self._controller.put(value, location, number)
            # A copy whose finalizer is not set yet would never be freed.
            with uninterrupted():
                self.add_copy(location, number)
        except BaseException:
            # Ctrl-C may come between `put` and `add_copy`.
            with uninterrupted():
                if self.copies.get(location) != number:
                    location.unused.add(number)
            raise
        finally:
            self._controller.puts.discard(sending)

    def add_copy(self, location: Location, number: int, step: Step | None = None) -> None:
        """Adds a copy at another location, and the step that computes it there, if any."""
        # Before the copy, which other threads read without a lock: they find its step, too.
        if step is not None:
            self.steps[number] = step
        if self.copies.setdefault(location, number) != number:
            # Another thread has added a copy there.
            self.steps.pop(number, None)
            location.unused.add(number)
        else:
            # Each handle owns its copies: its finalizer frees all shards.
            location.unused.add_after(self, number)

    def prefer(self, location: Location) -> None:
        """Makes a location that has a copy the first one; the caller holds `order`."""
        copies = self.copies
        if next(iter(copies), location) is not location:
            # Replaced in one step: other threads read it without a lock.
            self.copies = {location: copies[location], **copies}

    def drop_copy(self, location: Location) -> None:
        """Frees the copy at a location, of an array that is at another one, too; the caller holds `order`."""
        # As in `delete`: another thread may have read its number, and not yet sent the fetch.
        with self._controller.fetching:
            if (number := self.copies.pop(location, None)) is not None:
                self.steps.pop(number, None)
                location.unused.add(number)

    def check_alive(self) -> None:
        if self._deleted:
            raise RuntimeError(f"Array has been deleted with shape={self.dtype.name}{list(self.shape)}.")

    def copy_to_host_async(self) -> None:
        """Requests its value, for which `fetch` then waits: so many arrays take one round trip together.

        `fetch` raises the error if the request fails.

        Raises:
          RuntimeError: it was deleted.
        """
        with self._lock:
            self.check_alive()
            if self._value is None and self._fetches is None:
                # `fetch` tries again: by then another location may have a copy.
                with contextlib.suppress(HostError):
                    self._fetches = self._request(self._data())

    def fetch(self) -> np.ndarray[Any, Any]:
        """Returns its value; for typed PRNG keys the value of their data.

        Raises:
          HostError: the computation failed, or a host is lost.
          RuntimeError: it was deleted.
        """
        with self._lock:
            self.check_alive()
            if self._value is None:
                # Removed first: after a failure the next call requests again, maybe from other locations.
                fetches, self._fetches = self._fetches, None
                data = self._data()
                if fetches is None:
                    fetches = self._request(data)
                try:
                    self._value = receive_blocks(self._controller, data, fetches)
                except HostError:
                    if all(self.is_at(fetch.location) for fetch in fetches):
                        raise
                    # It has moved off an island that left meanwhile.
                    self._value = receive_blocks(self._controller, data, self._request(data))
            return self._value

    def _request(self, data: Any) -> list[PendingFetch]:
        """Requests the whole array from its locations."""
        while True:
            # In this order: another thread may delete it meanwhile, and leave no copies.
            copies = list(self.copies)
            self.check_alive()
            # A copy that has moved off an island is not found, and its new location is in the list then.
            with contextlib.suppress(KeyError):
                return request_blocks(self._controller, data, copies, self._copy_at)

    def _copy_at(self, location: Location) -> tuple[int, Step | None]:
        return self.number_at(location), self.step_at(location)

    def _data(self) -> Any:
        """Returns the abstract value of the data on hosts: for typed PRNG keys of their key data."""
        return jax.eval_shape(jax.random.key_data, self.aval) if _is_key(self.aval) else self.aval

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        value = self.fetch()
        if dtype is not None and value.dtype != dtype:
            return value.astype(dtype)
        return value.copy() if copy else value

    def __repr__(self) -> str:
        hosts = ", ".join(f"host {host}" for host in self.hosts)
        return f"<pathways.Array {self.aval.str_short()} on {hosts}>"

    def __str__(self) -> str:
        return str(self.fetch())

    def __format__(self, spec: str) -> str:
        return format(self.fetch()[()] if not self.shape else self.fetch(), spec)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __float__(self) -> float:
        return float(self.fetch())

    def __int__(self) -> int:
        return int(self.fetch())

    def __complex__(self) -> complex:
        return complex(self.fetch())

    def __bool__(self) -> bool:
        return bool(self.fetch())

    def __index__(self) -> int:
        return operator.index(self.fetch()[()])

    def item(self) -> Any:
        """Returns its only element as a Python number."""
        return self.fetch().item()

    def __getitem__(self, index: Any) -> Any:
        return self._fetch_small("indexing")[index]

    # Without this, Python would index until an IndexError, which arrays of JAX do not raise.
    def __iter__(self) -> Iterator[Any]:
        return iter(self._fetch_small("iteration"))

    def __contains__(self, value: Any) -> bool:
        return value in self._fetch_small("in")

    def __reduce__(self) -> Any:
        # Without classes of pathways, so that any process can unpickle it. In a tuple, since `__reduce__` of
        # typed keys does not work.
        return operator.getitem, ((self._fetch_as_local(),), 0)

    def _fetch_as_local(self) -> Any:
        """Returns its value as an array of this process."""
        # Without x64 JAX would narrow 64-bit values; under a trace it would create a tracer.
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            array = jnp.asarray(self.fetch())
        if self.weak_type or _is_key(self.aval):
            return pjrt.rewrap(self.aval, array.sharding)(array)
        return array

    def as_constant(self, user: str) -> Any:
        """Returns its value as an array of this process, for a program that closes over it.

        Args:
          user: the function that gets it in the program, for messages.

        Raises:
          ValueError: it is too large for that.
        """
        if self.nbytes > SMALL:
            raise ValueError(
                f"{user} gets {self!r} of {self.nbytes} bytes, which the program closes over and would "
                "contain as a constant; make it an argument of the program"
            )
        return self._fetch_as_local()

    def refuse(self) -> NoReturn:
        """Raises an error for a function of JAX, which needs an array of this process."""
        self.check_alive()
        fetch = "jax.random.wrap_key_data(np.asarray(x))" if _is_key(self.aval) else "np.asarray(x)"
        raise ValueError(
            f"{self!r} is not in this process: {fetch} fetches it, and a program that has it as an argument "
            "uses it where it is"
        )

    def _fetch_small(self, operation: str) -> Any:
        """Returns its value as an array of this process, for an operation outside of programs.

        Raises:
          TypeError: it is too large for that.
        """
        if self.nbytes > SMALL:
            raise TypeError(
                f"{operation} outside of a program would fetch {self.nbytes} bytes of {self!r} from its "
                "host: put this under pw.program, or call np.asarray(array) first"
            )
        return self._fetch_as_local()


def results_of(
    controller: HostSession,
    step: Step,
    avals: Sequence[Any],
    places: Sequence[Sequence[tuple[Location, int]]],
) -> list[Array]:
    """Returns the handles of the results of a step.

    Args:
      places: for each result its locations, and its position among the results there.
    """
    results = [Array(controller, aval, step) for aval in avals]
    first = step.number + 1
    for result, copies in zip(results, places, strict=True):
        for location, position in copies:
            result.copies[location] = number = first + position
            location.unused.add_after(result, number)
    return results


def abstract_sharding(location: Location) -> NamedSharding:
    """Returns the sharding over the devices of a location, which have no objects in this process."""
    placement = location.placement
    # Like meshes of slices. Explicit axes would become part of the types of arrays, which then would not
    # combine with arrays on other meshes.
    kinds = (AxisType.Auto,) * len(placement.mesh)
    mesh = AbstractMesh(placement.mesh, placement.axis_names, axis_types=kinds)
    dims = [axes[0] if len(axes) == 1 else axes or None for axes in placement.dims]
    return NamedSharding(mesh, PartitionSpec(*dims), memory_kind=placement.memory_kind)


def _is_key(aval: Any) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)


_OPERANDS = (Array, jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def _operator(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Array, *operands: Any) -> Any:
        # Such as None in `x == None`; Python then tries the operator of the other operand.
        if not all(isinstance(operand, _OPERANDS) for operand in operands):
            return NotImplemented
        values = [
            operand._fetch_small(name) if isinstance(operand, Array) else operand for operand in operands
        ]
        return function(self._fetch_small(name), *values)

    apply.__name__ = name
    return apply


def _method(name: str) -> Callable[..., Any]:
    def call(self: Array, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._fetch_small(name), name)(*args, **kwargs)

    call.__name__ = name
    return call


def _property(name: str) -> property:
    return property(lambda self: getattr(self._fetch_small(name), name))


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
for _name in (*_BINARY, "lshift", "rshift", "divmod"):
    _function = divmod if _name == "divmod" else getattr(operator, f"__{_name}__")
    setattr(Array, f"__{_name}__", _operator(_name, _function))
    setattr(Array, f"__r{_name}__", _operator(_name, lambda a, b, f=_function: f(b, a)))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Array, f"__{_name}__", _operator(_name, getattr(operator, _name)))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Array, f"__{_name}__", _operator(_name, getattr(operator, f"__{_name}__")))

_METHODS = (
    *("all", "any", "argmax", "argmin", "argsort", "astype", "clip", "conj", "copy", "cumprod", "cumsum"),
    *("diagonal", "dot", "flatten", "max", "mean", "min", "nonzero", "prod", "ravel", "repeat", "reshape"),
    *("round", "sort", "squeeze", "std", "sum", "swapaxes", "take", "tolist", "trace", "transpose", "var"),
    *("view", "__round__", "__reversed__"),
)
for _name in _METHODS:
    setattr(Array, _name, _method(_name))
for _name in ("T", "mT", "at", "imag", "real"):
    setattr(Array, _name, _property(_name))

pjrt.register_handle(Array, Array.refuse)
