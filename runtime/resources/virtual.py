"""Virtual slices: the devices that a program needs, without the choice of physical ones."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, SupportsIndex

from pathways.dialect.attributes.names import MAX_DEVICES
from pathways.runtime.plan.plan import SliceSpec

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _boundary[**P, R](fun: Callable[P, R]) -> Callable[P, R]:
    """Decorates a public function: the tracebacks of its errors show frames of the user alone."""

    @functools.wraps(fun)
    def called_by_user(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fun(*args, **kwargs)
        except Exception as error:
            _hide_frames(error)
            raise

    return called_by_user


def _hide_frames(error: Exception) -> None:
    """Hides frames of pathways in the traceback of an error."""
    # Late, since this imports jax, whose setting says how.
    from pathways.runtime.xla.tracebacks import filter_traceback

    filter_traceback(error)


class ProcessBound:
    """Base of objects that are bound to devices of this process: they cannot be pickled or copied."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{self!r} belongs to this process and cannot be pickled or copied; save a bundle: "
            "program.lower(*args).save('program.pwb'); pathways.load('program.pwb') runs it elsewhere"
        )


class _SliceNames:
    """Registry of slice names. A process never uses a name twice: JAX caches traces that hold names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: set[str] = set()
        self._counter = itertools.count()

    def allocate(self, proposed: str | None) -> str:
        with self._lock:
            name = next(name for name in self._candidates(proposed) if name not in self._used)
            self._used.add(name)
        return name

    def _candidates(self, proposed: str | None) -> Iterator[str]:
        if proposed is None:
            return (f"s{number}" for number in self._counter)
        return itertools.chain([proposed], (f"{proposed}_{number}" for number in itertools.count(1)))


_names = _SliceNames()
_numbers = itertools.count()


class VirtualSlice(ProcessBound):
    """Devices that a program needs, arranged as a mesh with named axes; equal only to itself.

    `VirtualDeviceSet.add_slice` creates slices.

    Attributes:
      name: its name in the IR, unique in the process.
      shape: the sizes of its axes, major to minor.
      axis_names: their names.
      size: its number of devices.
      number: the number of slices that the process created before it.
      island: the name of the island that it must be on, None for any.
      overlap: whether it may share devices with other slices of a program that have this set.
      device_set: the set that it belongs to.
      replica: the number of its replica of the program.
      pinned: the devices that it must have, in the order of its mesh, each by its platform and its id; None
        for any.
    """

    __slots__ = (
        "__weakref__",
        "_further_replicas",
        "axis_names",
        "device_set",
        "island",
        "name",
        "number",
        "overlap",
        "pinned",
        "replica",
        "shape",
    )

    name: str
    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    island: str | None
    device_set: VirtualDeviceSet
    number: int
    overlap: bool
    pinned: tuple[tuple[str, int], ...] | None
    replica: int

    def __init__(
        self,
        device_set: VirtualDeviceSet,
        shape: int | Sequence[int],
        axis_names: str | Sequence[str],
        name: str | None = None,
        island: str | None = None,
        overlap: bool = False,
        replica: int = 0,
        pinned: tuple[tuple[str, int], ...] | None = None,
    ) -> None:
        self.pinned = pinned
        self.overlap = overlap
        self.replica = replica
        self.device_set = device_set
        self.shape = _checked_shape(shape)
        self.axis_names = _checked_axes(axis_names, self.shape)
        if island is not None and not (isinstance(island, str) and island):
            raise ValueError(f"island={island!r}: expected the name of an island")
        self.island = island
        if name is not None and not _SYMBOL.fullmatch(name):
            raise ValueError(f"slice name {name!r}: expected a letter or _, then letters, digits and _")
        self.name = _names.allocate(name)
        self.number = next(_numbers)
        # The slice of a further replica represents no others.
        further = range(1, 1 if replica else device_set.replicas)
        self._further_replicas = tuple(
            VirtualSlice(device_set, shape, axis_names, f"{self.name}_r{r}", island, overlap, r)
            for r in further
        )

    @property
    def replicas(self) -> tuple[VirtualSlice, ...]:
        """The slices of all replicas that this slice represents; itself is the slice of the first."""
        return (self, *self._further_replicas)

    def of_replicas(self, numbers: Sequence[int]) -> tuple[VirtualSlice, ...]:
        """Returns the slices of some replicas; only itself where it represents no other."""
        return tuple(self.replicas[number] for number in numbers) if self._further_replicas else (self,)

    @property
    def running(self) -> tuple[VirtualSlice, ...]:
        """The slices of the replicas that programs run on."""
        return self.of_replicas(self.device_set.running)

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)

    @property
    def spec(self) -> SliceSpec:
        """The description of this slice in a plan."""
        return SliceSpec(self.name, self.axis_names, self.shape, self.island, self.overlap)

    def __repr__(self) -> str:
        axes = ", ".join(f"{axis}={size}" for axis, size in zip(self.axis_names, self.shape, strict=True))
        island = "" if self.island is None else f", island={self.island!r}"
        overlap = ", overlap=True" if self.overlap else ""
        replicas = f", replicas={len(self.replicas)}" if self._further_replicas else ""
        return f"VirtualSlice({self.name!r}, {axes}{island}{overlap}{replicas})"


class VirtualDeviceSet(ProcessBound):
    """Set of slices that are used together: they get different devices as far as there is room.

    Example:
      devices = make_virtual_device_set()
      encoder = devices.add_slice(shape=(2, 2), axis_names=("data", "model"), name="encoder")

    Attributes:
      replicas: the number of replicas of each slice.
      running: the numbers of the replicas that programs run on, ascending; all, unless islands are lost and
        the others continue without them.
    """

    __slots__ = ("__weakref__", "_slices", "replicas", "running")

    def __init__(self, replicas: int = 1) -> None:
        self.replicas = replicas
        self.running = tuple(range(replicas))
        self._slices: list[weakref.ref[VirtualSlice]] = []

    @_boundary
    def add_slice(
        self,
        shape: int | Sequence[int],
        axis_names: str | Sequence[str],
        *,
        name: str | None = None,
        island: str | None = None,
        overlap: bool = False,
    ) -> VirtualSlice:
        """Adds a slice.

        Args:
          shape: the size of each axis, major to minor; a number for a single axis.
          axis_names: one name for each axis.
          name: its name in the IR and in messages; `name_1` and so on if that is in use. By default s0,
            s1, ...
          island: the name of the island that it must be on; by default any.
          overlap: whether it may share devices with other slices of the program that have this set, but not
            with slices of another replica. By default no two slices of a program do.

        Raises:
          TypeError: a size that is not an integer, or an axis name that is not a string.
          ValueError: no axis, a size below one, too many devices, a wrong number of axis names, an axis or
            slice name that cannot be used.
        """
        if self.replicas > 1 and "replica" in _checked_axes(axis_names, _checked_shape(shape)):
            raise ValueError(
                "axis name 'replica': reserved: callers see slices with replicas as one mesh with that axis"
            )
        added = VirtualSlice(self, shape, axis_names, name, island, overlap)
        # Weak, so that a slice that the program no longer refers to releases its devices.
        self._slices = [ref for ref in self._slices if ref() is not None] + [weakref.ref(added)]
        return added

    @property
    def slices(self) -> tuple[VirtualSlice, ...]:
        """The slices that are still in use, in the order in which they were added."""
        return tuple(slice for ref in self._slices if (slice := ref()) is not None)

    def __repr__(self) -> str:
        return f"VirtualDeviceSet({', '.join(map(repr, self.slices))})"


@_boundary
def make_virtual_device_set(*, replicas: int = 1) -> VirtualDeviceSet:
    """Returns a new, empty set of virtual devices.

    Args:
      replicas: the number of replicas of each slice of the set. Each replica of a program has its own slices,
        on one island if there is room. It works on its share of the microbatches of `pw.accumulate`, and all
        replicas sum the results of the loop; each of them runs everything else, on equal values.

    Raises:
      TypeError: `replicas` is not an integer.
      ValueError: it is below one or too large.
    """
    if isinstance(replicas, bool) or not hasattr(replicas, "__index__"):
        raise TypeError(f"replicas={replicas!r}: expected an integer")
    if not 1 <= operator.index(replicas) <= MAX_DEVICES:
        raise ValueError(f"replicas={replicas}: expected 1 to {MAX_DEVICES}")
    return VirtualDeviceSet(operator.index(replicas))


def _checked_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    try:
        sizes = tuple(operator.index(size) for size in sizes)
    except TypeError:
        raise TypeError(f"slice shape {shape!r}: expected an integer or a tuple of integers") from None
    if not sizes:
        raise ValueError("slice shape (): expected at least one axis; a single device is shape=(1,)")
    if 0 in sizes:
        raise ValueError(f"slice shape {sizes}: a slice of zero devices cannot run anything")
    if min(sizes) < 0:
        raise ValueError(f"slice shape {sizes}: expected sizes of at least 1")
    if math.prod(sizes) > MAX_DEVICES:
        raise ValueError(f"slice shape {sizes}: expected at most {MAX_DEVICES} devices")
    return sizes


def _checked_axes(axis_names: str | Sequence[str], shape: tuple[int, ...]) -> tuple[str, ...]:
    names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"axis names {names!r}: expected strings")
    if len(names) != len(shape):
        raise ValueError(f"slice shape {shape} and axis names {names}: expected a name for each axis")
    if len(set(names)) != len(names):
        raise ValueError(f"axis names {names}: expected distinct names")
    if "" in names:
        raise ValueError(f"axis names {names}: expected names that are not empty")
    return names
