"""Loading of plans on devices: compiles the computations, places constants, generates the function."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from pathways.runtime.local import codegen, memory, recording, stalls
from pathways.runtime.local.devices import (
    devices_of,
    is_here,
    live_arrays,
    mesh_of,
)
from pathways.runtime.local.local_target import LocalTarget
from pathways.runtime.local.slots import SlotArrays, aval_of, slot_arrays
from pathways.runtime.plan.plan import Argument, ArrayType, Launch, Plan, Result
from pathways.runtime.resources.manager import Binding
from pathways.runtime.resources.status import HostStatus
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.compile_cache import Loaded, Request, load_all
from pathways.runtime.xla.compile_threads import Progress


@functools.cache
def _finish_before_exit() -> None:
    """Makes the process wait for its pending work before it exits.

    XLA:CPU runs computations and copies in its own threads, and a process that destroys its devices while
    they run crashes with a segmentation fault.
    """

    def wait() -> None:
        for array in live_arrays("cpu"):
            # An error of an array is for its reader, and there is none any more.
            with contextlib.suppress(Exception):
                array.block_until_ready()

    atexit.register(wait)


@dataclasses.dataclass(frozen=True)
class Port:
    """Input or output of a loaded program: an array on one slice.

    Attributes:
      number: the number of the argument or result in the plan.
      type: its global shape and dtype on that slice.
      sharding: its sharding, which names its devices.
    """

    number: int
    slice: str
    type: ArrayType
    sharding: NamedSharding


@dataclasses.dataclass(eq=False)
class Executable:
    """Program that is loaded on its devices.

    Attributes:
      inputs: the arguments of `run`, in order: every slot of every argument that the caller passes.
      outputs: the results of `run`, in order: every slot of every result.
      run: `run(arrays) -> arrays`. It returns while the work is pending, and does not check its arguments: an
        array that differs from its port in shape, dtype or device gives wrong values or an error of XLA.
        An error in a computation surfaces on the arrays that depend on it, or here if XLA runs the
        computation at once. While a trace is recorded, this is another function.
      source: the source of `run` without a trace.
      profiled: whether profiles of XLA have the times of launches; profiles of XLA:CPU do.
      executables: the executable of each computation on each slice, by their names; of a local computation,
        the executable of the first device.
      requests: the load requests, in order.
      loaded: the result of each request.
    """

    plan: Plan
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    run: Callable[[list[jax.Array]], list[jax.Array]]
    source: str
    profiled: bool
    executables: Mapping[tuple[str, str], pjrt.LoadedExecutable]
    requests: Sequence[Request] = dataclasses.field(repr=False)
    loaded: Sequence[Loaded] = dataclasses.field(repr=False)
    _target: LocalTarget = dataclasses.field(repr=False)
    # The number of devices of this process in each slice.
    _devices: Mapping[str, int] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        self._untraced = self.run
        _loaded.add(self)
        recording.register(self)

    def observe(self, recorder: recording.CallRecorder | None) -> None:
        """Reports all calls to a recorder from now on; stops reporting for None."""
        if recorder is None:
            self.run = self._untraced
        else:
            observer = recorder.observer_of(self.plan, self.profiled, self._devices)
            self.run = codegen.generate(self.plan, self._target, observer).run


_loaded: weakref.WeakSet[Executable] = weakref.WeakSet()


def host_status(pid: int, islands: Iterable[str], devices: Sequence[jax.Device]) -> HostStatus:
    """Returns the status of this process. Its arrays are all live arrays of JAX on some devices.

    Args:
      islands: the names of the islands that the devices form.
    """
    platform = pjrt.platform_of(devices[0])
    arrays = [
        array
        for array in live_arrays(platform)
        if not array.is_deleted() and not array.sharding.device_set.isdisjoint(devices)
    ]
    return HostStatus(
        0,
        " ".join(islands),
        pid,
        platform,
        len(devices),
        len(arrays),
        sum(map(_bytes_here, arrays)),
        tuple(sorted(executable.plan.name for executable in list(_loaded))),
    )


def _bytes_here(array: jax.Array) -> int:
    """Returns the bytes of the shards of an array in this process."""
    # Another thread may have deleted it by now.
    with contextlib.suppress(RuntimeError):
        return sum(shard.data.nbytes for shard in array.addressable_shards)
    return 0


def device_text(executables: Mapping[tuple[str, str], pjrt.LoadedExecutable]) -> str:
    """Returns XLA's optimized module of each computation on each slice."""
    return "\n".join(
        f"// computation {computation} on slice {slice}\n\n{module.to_string().strip()}\n"
        for (computation, slice), executable in executables.items()
        for module in executable.hlo_modules()
    )


def load(
    plan: Plan,
    bindings: Mapping[str, Binding],
    *,
    result_avals: Sequence[pjrt.Aval] | None = None,
    callbacks: Sequence[object] = (),
    argument_names: Sequence[str] | None = None,
    code: Mapping[tuple[str, str], bytes | memoryview] | None = None,
    progress: Progress | None = None,
    make_target: Callable[..., LocalTarget] = LocalTarget,
) -> Executable:
    """Compiles every computation of a plan for the devices of its slices and places its constants.

    Args:
      bindings: the devices of each of its slices, by name.
      result_avals: the avals of the program's results, which may have weak types and the dtypes of typed PRNG
        keys, unlike the types of the plan. By default the avals of the plan.
      callbacks: the Python callbacks of JAX's lowering of the program, for computations that call them.
      argument_names: the names of the arguments, for messages. By default their numbers.
      code: serialised executables for such devices, by the names of computation and slice; computations
        without one are compiled.
      progress: called whenever computations become ready. By default a line on standard error shows them if
        it takes longer than a second.
      make_target: returns the target of the steps, for the arguments of a `LocalTarget`.

    Raises:
      CompileError: XLA rejected a computation, or chose another sharding of its operands or results.
      ResourceError: the devices have less memory than the program uses; see `memory.check_fits`.
      ValueError: a transfer sends a device a shard that it does not need, so that the plan is wrong.
    """
    _finish_before_exit()
    stalls.monitor.start()
    # Checked before XLA compiles, too, which may take minutes.
    memory.check_fits(plan, bindings, None, _count_here)
    requests = _requests(plan, bindings, callbacks, code or {})
    loaded = load_all(list(itertools.chain(*requests.values())), progress, plan.name)
    remaining = iter([computation.executable for computation in loaded])
    executables = {pair: tuple(itertools.islice(remaining, len(group))) for pair, group in requests.items()}
    first = {pair: on_devices[0] for pair, on_devices in executables.items()}
    memory.check_fits(plan, bindings, stats_of(first), _count_here)
    meshes = {name: mesh_of(binding) for name, binding in bindings.items()}
    if result_avals is None:
        # In the memory of its slots, so that an argument may become a result as the same array.
        kinds = (plan.memory_kind(next(iter(result.slots.values()))) for result in plan.results)
        result_avals = [aval_of(result.type, kind) for result, kind in zip(plan.results, kinds, strict=True)]
    slots = slot_arrays(plan, meshes, result_avals)
    passed = [argument for argument in plan.arguments if argument.constant is None]
    names = argument_names or [str(number) for number in range(len(passed))]
    target = make_target(plan, meshes, executables, slots, result_avals, names)
    generated = codegen.generate(plan, target)
    return Executable(
        plan,
        tuple(ports_of(plan, passed, slots)),
        tuple(ports_of(plan, plan.results, slots)),
        generated.run,
        generated.source,
        all(pjrt.platform_of(device) == "cpu" for mesh in meshes.values() for device in mesh.devices.flat),
        first,
        # The code may be large, and is loaded now.
        [dataclasses.replace(request, code=None) for request in itertools.chain(*requests.values())],
        loaded,
        target,
        {name: len(mesh.local_devices) for name, mesh in meshes.items()},
    )


def _count_here(binding: Binding) -> int:
    """Returns the number of devices of a slice that are of this process."""
    return sum(map(is_here, devices_of(binding)))


def _requests(
    plan: Plan,
    bindings: Mapping[str, Binding],
    callbacks: Sequence[object],
    code: Mapping[tuple[str, str], bytes | memoryview],
) -> dict[tuple[str, str], list[Request]]:
    """Returns the request of each computation on each slice; of a local one, a request for each device."""
    requests = {}
    for pair in dict.fromkeys((s.computation, s.slice) for s in plan.steps if isinstance(s, Launch)):
        computation, slice = plan.computations[pair[0]], pair[1]
        devices = devices_of(bindings[slice])
        used = tuple(callbacks) if computation.callbacks else ()
        requests[pair] = [
            Request(computation, slice, group, used, code.get(pair))
            for group in (
                [(device,) for device in devices if is_here(device)] if computation.local else [devices]
            )
        ]
    return requests


def ports_of(plan: Plan, values: Sequence[Argument | Result], slots: SlotArrays) -> Iterator[Port]:
    """Yields the ports of the arguments or results of a plan, in order."""
    for number, value in enumerate(values):
        for slice, slot in value.slots.items():
            yield Port(number, slice, plan.slot_types[slot], slots.shardings[slot])


def stats_of(executables: Mapping[tuple[str, str], pjrt.LoadedExecutable]) -> dict[tuple[str, str], Any]:
    """Returns XLA's analysis of the memory of each computation on each slice, as far as it has one."""
    stats = {pair: pjrt.memory_stats(executable) for pair, executable in executables.items()}
    return {pair: analysis for pair, analysis in stats.items() if analysis is not None}
