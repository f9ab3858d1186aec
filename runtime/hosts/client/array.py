"""What a program on hosts returns: a handle of an array whose shards lie on them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.replies import HostRequest
from pathways.runtime.control.records.step import Step
from pathways.runtime.hosts.client.client import Client
from pathways.runtime.hosts.cluster.host import Location
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.programs import WHOLE, ReplicaBlock
from pathways.runtime.hosts.protocol.shards import different_shards
from pathways.runtime.xla import pjrt

SMALL = 1 << 20
"""Bytes up to which arithmetic outside of a program fetches an array."""


@dataclasses.dataclass(frozen=True)
class _PendingFetch:
    """What one location was asked for.

    Attributes:
      location: the location.
      number: that of the array there.
      step: the run that makes it there; None when it was put there.
      requests: the shards that each host sends, and the request for them.
    """

    location: Location
    number: int
    step: Step | None
    requests: list[tuple[list[tuple[slice, ...]], HostRequest]]


class Array:
    """An array on slices of other processes.

    It is ready later, like a `jax.Array`: passed on to the next program it moves nothing. `np.asarray`,
    `jax.device_get` and `float` fetch it. Arithmetic, indexing and methods such as `sum` outside of a program
    fetch it too, if it has at most 1 MiB. What is pickled or copied is an array of this process.

    Attributes:
      aval: its abstract value.
    """

    is_on_hosts = True
    """Tells it from arrays of this process without importing this module."""

    # In front of numpy's own operators.
    __array_priority__ = 100

    # As that of JAX: `==` compares the elements.
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        controller: Client,
        aval: Any,
        copies: dict[Location, int],
        step: Step | None,
    ) -> None:
        """Made by programs.

        Args:
          controller: the controller of the hosts.
          aval: the abstract value.
          copies: its number at each location that has it; the array keeps it.
          step: the run that makes it; None when it was put there.
        """
        self.aval = aval
        self._controller = controller
        self._copies = copies
        self._step = step
        # Of copies that other runs producers: these.
        self._steps: dict[Location, Step] = {}
        self._deleted = False
        self._value: np.ndarray[Any, Any] | None = None
        # What of it is on its way, or is here.
        self._fetches: list[_PendingFetch] | None = None
        self._lock = threading.Lock()
        # The number of logical buffers is that of handles: the last one frees all shards.
        for location, number in copies.items():
            location.gang.life.unused.add_after(self, number)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.aval.shape)

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        return self.aval.dtype

    @property
    def weak_type(self) -> bool:
        """Whether its dtype gives way to others, as that of a Python number."""
        return bool(self.aval.weak_type)

    @property
    def ndim(self) -> int:
        """The number of its dimensions."""
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return int(self.aval.size)

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Its bytes, all shards put together."""
        return self.size * self.itemsize

    @property
    def sharding(self) -> NamedSharding:
        """How it lies over the devices of its first slice, which have no objects in this process.

        Of an array whose rows replicas share, how each block of them does.
        """
        return abstract_sharding(next(iter(self._copies)))

    @property
    def hosts(self) -> tuple[int, ...]:
        """The hosts that have it."""
        # A copy: another thread may bring it to one more.
        return tuple(
            dict.fromkeys(host.index for location in list(self._copies) for host in location.holders)
        )

    @property
    def locations(self) -> tuple[Location, ...]:
        """Where it lies."""
        return tuple(self._copies)

    def is_ready(self) -> bool:
        """Whether it has been computed."""
        self._check_alive()
        steps = [(self.step_at(where), where) for where in list(self._copies)]
        return all(step is None or self._controller.is_done(step, where) for step, where in steps)

    def block_until_ready(self) -> Array:
        """Waits until it has been computed, and returns it.

        Raises:
          HostError: the computation failed, or a host is gone.
        """
        self._check_alive()
        for location, number in list(self._copies.items()):
            step = self.step_at(location)
            if step is not None:
                self._controller.wait(step, location, number)
            location.gang.life.check()
        return self

    def delete(self) -> None:
        """Frees it on all hosts; it must not be used any more."""
        # Not between the look of another thread at its number and what that thread sends.
        with self._controller.order, self._controller.fetching:
            self._deleted = True
            self._value = None
            self._fetches = None
            for location, number in list(self._copies.items()):
                self._controller.free(location, number)
            self._copies = {}

    def is_deleted(self) -> bool:
        """Whether it was deleted, or donated to a program."""
        return self._deleted

    def step_at(self, location: Location) -> Step | None:
        """The run that makes it at a location; None when it was put there."""
        return self._steps.get(location, self._step)

    def is_of(self, controller: Client) -> bool:
        """Whether it lies on the hosts of this controller, and not on those of an earlier one."""
        return self._controller is controller

    def is_at(self, location: Location) -> bool:
        """Whether it lies where a program wants it."""
        return location in self._copies

    def number_at(self, location: Location) -> int:
        """Its number where it lies.

        Raises:
          RuntimeError: it was deleted.
        """
        try:
            return self._copies[location]
        except KeyError:
            self._check_alive()
            raise

    def put(self, location: Location, value: np.ndarray[Any, Any]) -> None:
        """Sends its value to a location, where it has a copy from now on.

        Raises:
          HostError: an island is lost or leaves.
        """
        number = self._controller.take_numbers()
        try:
            self._controller.put(value, location, number)
            self.add_copy(location, number)
        except BaseException:
            # Ctrl-C may come between the two lines.
            with uninterrupted():
                if self._copies.get(location) != number:
                    self._controller.free(location, number)
            raise

    def add_copy(self, location: Location, number: int, step: Step | None = None) -> None:
        """Notes that it lies somewhere else, too, and the run that makes it there, if one does."""
        if step is not None:
            self._steps.setdefault(location, step)
        if self._copies.setdefault(location, number) != number:
            # Another thread was faster.
            self._controller.free(location, number)
        else:
            location.gang.life.unused.add_after(self, number)

    def _check_alive(self) -> None:
        if self._deleted:
            raise RuntimeError(f"Array has been deleted with shape={self.dtype.name}{list(self.shape)}.")

    def copy_to_host_async(self) -> None:
        """Asks for its value, which `fetch` then waits for. So several arrays take one round trip together.

        What goes wrong is an error of `fetch`.

        Raises:
          RuntimeError: it was deleted.
        """
        with self._lock:
            self._check_alive()
            if self._value is None and self._fetches is None:
                # A host that is gone now may not be the only one that has it later.
                with contextlib.suppress(HostError):
                    self._fetches = self._request()

    def fetch(self) -> np.ndarray[Any, Any]:
        """Its value; of typed PRNG keys that of their data.

        Raises:
          HostError: the computation failed, or a host is gone.
          RuntimeError: it was deleted.
        """
        with self._lock:
            self._check_alive()
            if self._value is None:
                fetches, self._fetches = self._fetches, None
                self._value = self._fetched(self._request() if fetches is None else fetches)
            return self._value

    def _request(self) -> list[_PendingFetch]:
        """Asks its hosts for all of it."""
        # In this order: when there is none any more it has been deleted, perhaps by another thread just now.
        copies = list(self._copies)
        self._check_alive()
        shape = self._data().shape
        # What replicas share lies in blocks; of what is in several places any will do.
        blocks: dict[ReplicaBlock, Location] = {}
        # Those of hosts that are there first.
        for location in sorted(copies, key=lambda where: where.gang.is_lost()):
            blocks.setdefault(location.block, location)
        # There may be copies that are cut otherwise.
        first = WHOLE if WHOLE in blocks else next(iter(blocks))
        return [
            self._request_from(part.shape(shape), location)
            for part, location in blocks.items()
            if (part.count, part.dim) == (first.count, first.dim)
        ]

    def _request_from(self, shape: Sequence[int], location: Location) -> _PendingFetch:
        """Asks for what one of its locations has."""
        parts = dict(different_shards(shape, location.placement))
        itemsize = self._data().dtype.itemsize
        step, number = None, None
        try:
            with self._controller.fetching:
                number, step = self.number_at(location), self.step_at(location)
                requests = [
                    (own, self._controller.request_bytes(location, host.index, number, positions, sizes))
                    for host, held in location.holders.items()
                    for positions in [[n for n, at in enumerate(held) if at in parts]]
                    for own in [[parts[held[n]] for n in positions]]
                    for sizes in [[itemsize * _elements(part) for part in own]]
                    if own
                ]
        except HostError:
            self._explain(step, location, number)
            raise
        return _PendingFetch(location, number, step, requests)

    def _fetched(self, fetches: list[_PendingFetch]) -> np.ndarray[Any, Any]:
        data = self._data()
        whole = np.empty(data.shape, data.dtype)
        for piece in fetches:
            self._fill(piece.location.block.of(whole), piece)
        whole.flags.writeable = False
        return whole

    def _fill(self, whole: np.ndarray[Any, Any], piece: _PendingFetch) -> None:
        """Fills in what one of its locations has, when it is here."""
        try:
            for parts, request in piece.requests:
                raw = self._controller.fetch(request)
                for part, shard in zip(parts, raw, strict=True):
                    whole[part] = np.frombuffer(shard, whole.dtype).reshape(whole[part].shape)
        except HostError:
            self._explain(piece.step, piece.location, piece.number)
            raise
        if piece.step is not None:
            self._controller.settle(piece.step)

    def _explain(self, step: Step | None, location: Location, number: int | None) -> None:
        """Raises what the run says that should have made it: it knows whether another host is why."""
        if step is not None:
            self._controller.wait(step, location, number)

    def _data(self) -> Any:
        """Shape and dtype of what lies on hosts: of typed PRNG keys their data."""
        return jax.eval_shape(jax.random.key_data, self.aval) if _is_key(self.aval) else self.aval

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        value = self.fetch()
        if dtype is not None and value.dtype != dtype:
            return value.astype(dtype)
        return value.copy() if copy else value

    def __repr__(self) -> str:
        where = ", ".join(f"host {host}" for host in self.hosts)
        return f"<pathways.Array {self.aval.str_short()} on {where}>"

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
        """Its only element as a Python number."""
        return self.fetch().item()

    def __getitem__(self, index: Any) -> Any:
        return self._local("indexing")[index]

    # Python would index until it fails, which arrays of JAX do not.
    def __iter__(self) -> Iterator[Any]:
        return iter(self._local("iteration"))

    def __contains__(self, value: Any) -> bool:
        return value in self._local("in")

    def __reduce__(self) -> Any:
        # With nothing of ours, so that any process reads it; and typed keys have no `__reduce__` that works.
        return operator.getitem, ((self._fetch_as_local(),), 0)

    def _fetch_as_local(self) -> Any:
        """Its value as an array of this process."""
        # Without x64 JAX would narrow what has 64 bits; while something is traced it would make a tracer.
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
                f"{user} gets {self!r} of {self.nbytes} bytes, which the program closes over, and would have "
                "as a constant; make it an argument of the program"
            )
        return self._fetch_as_local()

    def refuse(self) -> NoReturn:
        """Raises an error for a function of JAX, which needs an array of this process."""
        self._check_alive()
        fetch = "jax.random.wrap_key_data(np.asarray(x))" if _is_key(self.aval) else "np.asarray(x)"
        raise ValueError(
            f"{self!r} is not in this process: {fetch} fetches it, and a program that has it as an argument "
            "uses it where it is"
        )

    def _local(self, what: str) -> Any:
        """Its value as an array of this process, for arithmetic.

        Raises:
          TypeError: it is too large for that.
        """
        if self.nbytes > SMALL:
            raise TypeError(
                f"{what} outside of a program would fetch {self.nbytes} bytes of {self!r} from its host: put "
                "this under pw.program, or say np.asarray(array) first"
            )
        return self._fetch_as_local()


def abstract_sharding(where: Location) -> NamedSharding:
    """How arrays lie over the devices of a location, which have no objects in this process."""
    placement = where.placement
    # As meshes of slices are. Explicit axes would be part of their types, and not go with those of others.
    kinds = (AxisType.Auto,) * len(placement.mesh)
    mesh = AbstractMesh(placement.mesh, placement.axis_names, axis_types=kinds)
    dims = [axes[0] if len(axes) == 1 else axes or None for axes in placement.dims]
    return NamedSharding(mesh, PartitionSpec(*dims))


def _elements(part: Sequence[slice]) -> int:
    return math.prod(dim.stop - dim.start for dim in part)


def _is_key(aval: Any) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)


_OPERANDS = (Array, jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def _operator(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Array, *others: Any) -> Any:
        # Such as None, to which nothing is equal.
        if not all(isinstance(other, _OPERANDS) for other in others):
            return NotImplemented
        values = [other._local(name) if isinstance(other, Array) else other for other in others]
        return function(self._local(name), *values)

    apply.__name__ = name
    return apply


def _method(name: str) -> Callable[..., Any]:
    def call(self: Array, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._local(name), name)(*args, **kwargs)

    call.__name__ = name
    return call


def _property(name: str) -> property:
    return property(lambda self: getattr(self._local(name), name))


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
