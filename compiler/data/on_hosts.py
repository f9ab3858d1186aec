"""`pw.on_hosts`: functions that run beside the arrays, in the processes of the hosts."""

from __future__ import annotations

import abc
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, override

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pathways.compiler.data.editions import edition_with
from pathways.compiler.frontend import jax_internals
from pathways.runtime.clusters.connect import controller
from pathways.runtime.control.records.errors import CallFailedError, HostError
from pathways.runtime.control.records.step import FunctionCall
from pathways.runtime.data.batches import InputEnded
from pathways.runtime.hosts.client.array import Array, results_of
from pathways.runtime.hosts.client.calls import call_of, lanes
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.client.relocation import relocate_array
from pathways.runtime.hosts.cluster.host import HostGang, Location
from pathways.runtime.hosts.protocol import plain as plain_values
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.messages import DeviceLayout, KeptArray, ResultArray
from pathways.runtime.hosts.protocol.programs import WHOLE_ARRAY
from pathways.runtime.hosts.worker.call_runner import numpy_of
from pathways.runtime.hosts.worker.client_modules import find_function
from pathways.runtime.local.devices import bind, mesh_of
from pathways.runtime.local.proxied_load import check_not_proxied
from pathways.runtime.resources.manager import Binding
from pathways.runtime.resources.virtual import ProcessBound, VirtualSlice
from pathways.runtime.xla.tracebacks import boundary

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

_ARRAYS = (Array, jax.Array, np.ndarray, np.generic)


class FunctionOnHosts(ProcessBound):
    """Function that runs on hosts; created by `on_hosts`.

    Attributes:
      name: its import path, as in `package.module:name`.
      devices: the slice on whose hosts it runs; None for an input of `pw.prefetch`.
      plain: named arguments of all calls.
      edition: see `Call.edition`; that at its creation.
    """

    def __init__(self, name: str, devices: VirtualSlice | None, out: Any, plain: Mapping[str, Any]) -> None:
        self.name = name
        self.devices = devices
        self.plain = dict(plain)
        self.edition = edition_with(name.partition(":")[0])
        self._out = out
        self._lane = next(lanes)
        self._state: Any = None

    def __repr__(self) -> str:
        place = "" if self.devices is None else f" on {self.devices.name}"
        return f"<pw.on_hosts {self.name}{place}>"

    @boundary
    def __call__(self, /, *arrays: Any, **plain: Any) -> HostCall:
        """Calls it on every host of the slice, and returns at once.

        The call has a place in the order of steps: it reads the arrays as they are now. Later steps run
        beside it; one that donates an array of the call waits. Calls of one `on_hosts` run one after the
        other, calls of different ones at the same time.

        Args:
          *arrays: arrays, or dictionaries, lists and tuples of arrays. Each host gets its shards of each, as
            a `jax.Array` of its own devices. Arrays elsewhere are transferred to the slice.
          **plain: named arguments that JSON can represent; tuples arrive as lists.

        Raises:
          TypeError: an argument is neither, names it; or the function has no slice.
          HostError: a host was lost.
        """
        if self.devices is None:
            raise TypeError(f"pw.on_hosts: {self.name} needs devices= to be called on")
        named = {**self.plain, **plain}
        leaves: list[Any] = []
        trees = [
            plain_values.tree_of(each, f"{self.name}: argument {n}", _is_array, leaves)
            for n, each in enumerate(arrays)
        ]
        tree = {"t": trees}
        # Raises for values that JSON does not have, also if nothing is sent.
        text = plain_values.encode([[], tree, named], f"{self.name}: named arguments")
        hosts = controller()
        if hosts is None:
            check_not_proxied(f"pw.on_hosts: {self.name} runs")
            return _LocalCall(self, plain_values.build(tree, leaves), plain_values.decode(text)[2])
        return self._start(hosts, leaves, text)

    def get_state(self) -> Any:
        """Returns, for an input, the position at which it begins; None for the beginning."""
        return self._state

    def set_state(self, state: Any) -> None:
        """Sets, for an input, the position at which the next `pw.prefetch` of it begins, from its
        `get_state`."""
        plain_values.encode(state, "the position")
        self._state = state

    def _start(self, hosts: HostSession, leaves: list[Any], text: bytes) -> HostCall:
        assert self.devices is not None
        while True:
            bindings = bind(self.devices.replicas, program=self.name)
            try:
                return self._start_on(hosts, bindings, leaves, text)
            except (HostError, KeyError):
                if bind(self.devices.replicas, program=self.name) == bindings:
                    raise
                # The slice has moved to another island meanwhile.

    def _start_on(
        self, hosts: HostSession, bindings: Mapping[VirtualSlice, Binding], leaves: list[Any], text: bytes
    ) -> HostCall:
        """Calls it on the devices of its slices."""
        assert self.devices is not None
        outputs, structure = self.results()
        gangs = []
        for slice in self.devices.replicas:
            binding = bindings[slice]
            gang = gang_of(hosts, binding)
            is_replica = len(self.devices.replicas) > 1
            placed = [_at(hosts, leaf, gang, binding, is_replica=is_replica) for leaf in leaves]
            gangs.append((gang, binding, placed))
        calls = []
        results: list[Any] = []
        # Held from reading the numbers of the arrays to the last call: another thread may donate one of them.
        with hosts.order:
            for gang, *_ in gangs:
                gang.life.check_open()
            for gang, binding, arrays in gangs:
                ids = {device.id for device in binding.devices}
                records = None
                if outputs is not None:
                    records = tuple(
                        output_array(aval, layout_of(binding, spec, _ndim(aval))) for aval, spec in outputs
                    )
                message = call_of(
                    self.name,
                    self.edition,
                    self._lane,
                    [kept_array(array.number_at(location), array.aval) for array, location in arrays],
                    text,
                    records,
                    structure,
                )
                # Without a handle nothing would free a result.
                with uninterrupted():
                    call = hosts.call(
                        self.name,
                        gang,
                        [host for host in gang.hosts if not ids.isdisjoint(host.ready.devices)],
                        message,
                        [array.step_at(location) for array, location in arrays],
                    )
                    calls.append(call)
                    hosts.used.add(gang.number)
                    for n, (aval, _) in enumerate(outputs or ()):
                        location = gang.location((records or ())[n].placement)
                        results += results_of(hosts, call, [aval], [[(location, n)]])
        tree = None if outputs is None else plain_values.build(plain_values.decode(structure), results)
        return _RemoteCall(self.name, hosts, calls, tree, is_value=outputs is None)

    def results(self) -> tuple[list[tuple[Any, PartitionSpec]] | None, bytes]:
        """Returns the types and shardings of the arrays in its result, and the encoded structure of the
        result.

        Raises:
          TypeError: `out` has a leaf of another type.
          ValueError: a sharding is not one of the slice.
        """
        if self._out is None:
            return None, b"null"
        assert self.devices is not None
        leaves: list[Any] = []
        tree = plain_values.tree_of(
            self._out, "out", lambda leaf: hasattr(leaf, "dtype") and hasattr(leaf, "shape"), leaves
        )
        if len(self.devices.replicas) > 1:
            raise ValueError(
                f"pw.on_hosts: {self.name} creates arrays, but slice {self.devices.name} has replicas, "
                "and each would create its own"
            )
        return [_result(leaf, self.devices) for leaf in leaves], plain_values.encode(tree, "out")


class HostCall(abc.ABC):
    """Call of a function on hosts, which may be in flight."""

    @abc.abstractmethod
    def result(self) -> Any:
        """Returns the result of the function.

        Returns:
          A list of plain values, one for each host of the slice, in the order of the hosts. With `out=` its
            tree of arrays, which may still be computed: a failure is then an error of their readers. If an
            island has more than one host, the call waits for them.

        Raises:
          CallFailedError: it raised on a host; has type, message and traceback.
          ImportError: a host does not find it.
          TypeError: its result cannot be represented in JSON, or is not an array of the given type.
          HostError: a host was lost.
        """

    @abc.abstractmethod
    def done(self) -> bool:
        """Returns whether it has finished."""


class _RemoteCall(HostCall):
    def __init__(
        self, name: str, hosts: HostSession, calls: Sequence[FunctionCall], tree: Any, *, is_value: bool
    ) -> None:
        self._name = name
        self._hosts = hosts
        self._calls = calls
        self._tree = tree
        self._is_value = is_value

    @boundary
    @override
    def result(self) -> Any:
        if self._is_value:
            return [value for call in self._calls for value in values_of(self._hosts, call)]
        # A failure on one host of an island would leave the others in the middle of a step.
        if any(len(call.hosts) > 1 for call in self._calls):
            for call in self._calls:
                values_of(self._hosts, call)
        return self._tree

    @override
    def done(self) -> bool:
        return all(self._hosts.has_ended(call) for call in self._calls)


class _LocalCall(HostCall):
    """Call in this process; it runs at once."""

    def __init__(self, function: FunctionOnHosts, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        self._error: Exception | None = None
        self._result: Any = None
        try:
            self._result = _called_here(function, args, named)
        except Exception as error:
            self._error = error

    @boundary
    @override
    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    @override
    def done(self) -> bool:
        return True


@boundary
def on_hosts(
    function: Callable[..., Any] | str,
    /,
    *,
    devices: VirtualSlice | None = None,
    out: Any = None,
    **plain: Any,
) -> FunctionOnHosts:
    """Returns a function that runs in the processes of hosts, beside their arrays.

    Only its name, plain arguments and the numbers of arrays are sent: hosts import it. They search for
    modules where this process does (`sys.path`), and then where they would by themselves. Without hosts it
    runs here.

    Args:
      function: a function of a module, or its import path, as in `"package.module:name"`, which this process
        need not have.
      devices: the slice on whose hosts calls run. None for an input of `pw.prefetch`.
      out: the arrays in its result: a tree of `jax.ShapeDtypeStruct`s with global shapes, whose shardings, if
        they have any, name axes of the slice. Each host returns the arrays, or its shards of each, as for
        `jax.make_array_from_process_local_data`.
      **plain: named arguments of all calls that JSON can represent.

    Returns:
      A function of arrays and other named arguments; the result of a call has `result()`.

    Raises:
      TypeError: the function is not in a module: put it into one. Or an argument is not a JSON value.
      ValueError: a string is not an import path.

    Example:
      ```python
      norm = pw.on_hosts("metrics:norm", devices=slice)
      norm(state["params"]).result()  # [1.25] on one host
      ```
    """
    name = _name_of(function)
    if devices is not None and not isinstance(devices, VirtualSlice):
        raise TypeError(f"pw.on_hosts: devices must be a slice, got {type(devices).__name__}")
    plain_values.encode(plain, f"{name}: named arguments")
    remote = FunctionOnHosts(name, devices, out, plain)
    if devices is not None:
        remote.results()
    return remote


def _name_of(function: Callable[..., Any] | str) -> str:
    if isinstance(function, str):
        if not _NAME.fullmatch(function):
            raise ValueError(f"pw.on_hosts: {function!r}: expected package.module:name")
        if not function.startswith("__main__:"):
            return function
    name = getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", None)
    if isinstance(name, str) and isinstance(module, str):
        # Hosts import the name, which must lead to this very object. A closure or lambda has no such name.
        target: Any = sys.modules.get(module)
        for part in name.split("."):
            target = getattr(target, part, None)
        if target is function and module != "__main__" and not isinstance(function, types.ModuleType):
            return f"{module}:{name}"
    subject = f"{name} of {module}" if isinstance(name, str) else str(function)
    raise TypeError(
        f"pw.on_hosts: hosts cannot import {subject}: put it into a module, as a function, and pass the "
        "values that it closes over as arguments"
    )


def _result(leaf: Any, slice: VirtualSlice) -> tuple[Any, PartitionSpec]:
    """Returns the aval of an array in the result, and its axes."""
    sharding = getattr(leaf, "sharding", None)
    spec = PartitionSpec()
    if sharding is not None:
        if not isinstance(sharding, NamedSharding):
            raise ValueError(f"pw.on_hosts: out has the sharding {sharding}: expected a NamedSharding")
        spec = sharding.spec
    sizes = dict(zip(slice.axis_names, slice.shape, strict=True))
    for dim, axes in zip(leaf.shape, dims_of(spec, len(leaf.shape)), strict=False):
        for axis in axes:
            if axis not in sizes:
                raise ValueError(f"pw.on_hosts: out has the axis {axis!r}, slice {slice.name} has {sizes}")
        count = int(np.prod([sizes[axis] for axis in axes], dtype=int))
        if dim % count:
            raise ValueError(
                f"pw.on_hosts: out has a dimension of {dim} that {axes} do not divide evenly ({count})"
            )
    return jax.core.ShapedArray(leaf.shape, leaf.dtype), spec


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(
            "pw.on_hosts: a function on hosts is called between programs, not inside of one, or of another "
            "function that JAX traces"
        )
    return isinstance(leaf, _ARRAYS)


def dims_of(spec: PartitionSpec, ndim: int) -> tuple[tuple[str, ...], ...]:
    """Returns the axes that split each dimension."""
    dims = [*spec, *(None,) * (ndim - len(spec))]
    return tuple(() if dim is None else dim if isinstance(dim, tuple) else (dim,) for dim in dims)


def layout_of(binding: Binding, spec: PartitionSpec, ndim: int) -> DeviceLayout:
    """Returns the layout of an array on a slice."""
    ids = tuple(device.id for device in binding.devices)
    return DeviceLayout(ids, binding.shape, binding.axis_names, dims_of(spec, ndim))


def gang_of(hosts: HostSession, binding: Binding) -> HostGang:
    """Returns the workers of the island that a slice is on.

    Raises:
      HostError: they were lost.
    """
    (gang,) = hosts.pool.current([int(binding.island.removeprefix("island"))])
    return gang


def output_array(aval: Any, layout: DeviceLayout) -> ResultArray:
    """Returns the description of an array that a call creates; for typed PRNG keys of their words."""
    if _is_key(aval):
        aval = jax.eval_shape(jax.random.key_data, aval)
    return ResultArray(tuple(aval.shape), np.dtype(aval.dtype).name, layout)


def kept_array(number: int, aval: Any) -> KeptArray:
    """Returns the description of an array argument of a call."""
    return KeptArray(number, _key_kind(aval))


def _key_kind(aval: Any) -> str | None:
    return jax_internals.key_kind(aval.dtype) if _is_key(aval) else None


def _is_key(aval: Any) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)


def _ndim(aval: Any) -> int:
    """Returns the dimensions of an array on hosts: for typed PRNG keys, the dimensions of their words."""
    return int(jax.eval_shape(jax.random.key_data, aval).ndim if _is_key(aval) else aval.ndim)


def values_of(hosts: HostSession, call: FunctionCall) -> list[Any]:
    """Returns the value of each host, when all of them have finished.

    Raises:
      CallFailedError, ImportError, TypeError, HostError: see `HostCall.result`.
      InputEnded: the input has ended, and no other error occurred.
    """
    hosts.wait_for_call(call)
    failed = {host: call.answers[host].failure for host in sorted(call.hosts) if host in call.answers}
    # An error outranks the end of the input on another host: `InputEnded` alone would hide it.
    for host, why in failed.items():
        if why is not None and why.kind != "ended":
            kinds: dict[str, type[Exception]] = {"import": ImportError, "result": TypeError}
            kind = kinds.get(why.kind, CallFailedError)
            raise kind(f"{call.subject}: {call.failures()[host].text}")
    for host in sorted(call.hosts):
        if host in call.failures() and failed.get(host) is None:
            raise call.failures()[host].error(call.subject)
    if any(why is not None for why in failed.values()):
        raise InputEnded
    return [plain_values.decode(call.answers[host].value or b"null") for host in sorted(call.hosts)]


def _at(
    hosts: HostSession, leaf: Any, gang: HostGang, binding: Binding, *, is_replica: bool
) -> tuple[Array, Location]:
    """Returns an array on a slice, and its location there; transferred there if it is elsewhere.

    A replica gets its block of an array that replicas share, any other slice the full array.
    """
    ids = {device.id for device in binding.devices}
    if isinstance(leaf, Array) and leaf.is_of(hosts):
        for location in leaf.locations:
            fits = is_replica or location.block == WHOLE_ARRAY
            if location.gang is gang and fits and set(location.placement.devices) == ids:
                return leaf, location
    is_key = _is_key(leaf)
    target = gang.location(layout_of(binding, PartitionSpec(), _ndim(leaf)))
    if isinstance(leaf, Array) and leaf.is_of(hosts):
        relocate_array(hosts, leaf, target)
        return leaf, target
    aval = jax_internals.abstractify(leaf)
    array = Array(hosts, aval)
    if isinstance(leaf, Array):
        value = leaf.fetch()
    else:
        value = np.asarray(jax_internals.key_data(leaf)) if is_key else np.asarray(leaf, aval.dtype)
    array.put(target, value)
    return array, target


def find_here(name: str) -> Callable[..., Any]:
    """Returns a function of this process by its name.

    Raises:
      ImportError: it does not exist.
    """
    try:
        return find_function(name)
    except ImportError as error:
        raise ImportError(f"{name}: {error}") from error.__cause__


def _called_here(function: FunctionOnHosts, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    name = function.name
    call = find_here(name)
    arrays = jax.tree.map(lambda leaf: jax.numpy.asarray(leaf), args)
    try:
        result = call(*arrays, **named)
    except (Exception, SystemExit) as error:
        raise CallFailedError(f"{name} raised {type(error).__name__}: {error}") from error
    outputs, structure = function.results()
    if outputs is None:
        return [plain_values.decode(plain_values.encode(result, f"{name}: the result"))]
    assert function.devices is not None
    tree = plain_values.decode(structure)
    leaves = plain_values.matched(tree, result, f"{name}: the result")
    mesh = mesh_of(bind([function.devices], program=name)[function.devices])
    placed = []
    for n, (aval, spec) in enumerate(outputs):
        subject, value = leaves[n]
        expected = f"expected {aval.dtype}{list(aval.shape)}"
        try:
            got = value if isinstance(value, jax.Array) else numpy_of(value, aval.dtype)
        except OverflowError:
            raise TypeError(f"{subject} is {value}: {expected}") from None
        if got.shape != aval.shape or got.dtype != aval.dtype:
            raise TypeError(f"{subject} is {got.dtype}{list(got.shape)}: {expected}")
        # A copy: it may be an argument of the function, or an array that the function keeps.
        placed.append(jax.device_put(got, NamedSharding(mesh, spec), may_alias=False))
    return plain_values.build(tree, placed)
