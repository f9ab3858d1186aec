"""Binds a plan to devices: compiles it, places its constants, and makes the function that runs it."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
from jax.sharding import NamedSharding

from pathways.runtime.local import codegen, facts, memory, recording, stalls
from pathways.runtime.local.devices import devices_of, is_here, live_arrays, mesh_of
from pathways.runtime.local.local_target import LocalTarget
from pathways.runtime.local.recorder import ProgramTrace, Recorder
from pathways.runtime.local.slots import SlotArrays, aval_of, slot_arrays
from pathways.runtime.plan.plan import Argument, ArrayType, Launch, Plan, Result
from pathways.runtime.resources.manager import Binding
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.compile_cache import Loaded, Request, load_all
from pathways.runtime.xla.compile_threads import Progress


@functools.cache
def _finish_before_exit() -> None:
    """Lets the process end only when its work is done.

    XLA:CPU runs computations and copies in threads of its own, and a process that tears down its
    devices under them ends with a segmentation fault.
    """

    def wait() -> None:
        for array in live_arrays("cpu"):
            # Whatever is wrong with an array was for its reader to find out.
            with contextlib.suppress(Exception):
                array.block_until_ready()

    atexit.register(wait)


@dataclasses.dataclass(frozen=True)
class Port:
    """Where one array enters or leaves a loaded program.

    Attributes:
      number: the number of the argument or result in the plan.
      slice: the slice of the array.
      type: its global shape and dtype on that slice.
      sharding: its sharding, which names its devices.
    """

    number: int
    slice: str
    type: ArrayType
    sharding: NamedSharding


@dataclasses.dataclass(eq=False)
class Executable:
    """A program that is loaded on its devices.

    Attributes:
      plan: the plan that it runs.
      inputs: what `run` takes, in order: every slot of every argument that the caller passes.
      outputs: what `run` returns, in order: every slot of every result.
      run: `run(arrays) -> arrays`. It returns before the work is done and does not check its arguments:
        an array of another shape, dtype or device than its port says gives wrong values or an error from
        XLA. An error in a computation surfaces on the arrays that depend on it, or here when XLA runs the
        computation at once. Another function while a trace is recorded.
      source: the text of `run`, as it is without a trace.
      profiled: whether XLA says in profiles when each launch ran; XLA:CPU does.
      executables: the executable of each computation on each slice, by their names; that of the first
        device where each device has its own.
      requests: what was loaded for them, in their order.
      loaded: what came of each request.
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
    # How many of each slice are those of this process.
    _devices: Mapping[str, int] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        self._untraced = self.run
        _loaded.add(self)
        recording.register(self)

    def observe(self, recorder: Recorder | None) -> None:
        """Reports every call from now on, or none any more."""
        if recorder is None:
            self.run = self._untraced
        else:
            observer = ProgramTrace(recorder, self.plan, self.profiled, self._devices)
            self.run = codegen.generate(self.plan, self._target, observer).run


_loaded: weakref.WeakSet[Executable] = weakref.WeakSet()


def loaded_programs() -> list[Executable]:
    """Returns all programs that are loaded in this process."""
    return list(_loaded)


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
      plan: the plan.
      bindings: the devices of each of its slices, by name.
      result_avals: the avals of the program's results, where they say more than the plan does: weak types,
        typed PRNG keys. By default those of the plan.
      callbacks: the Python callbacks of JAX's lowering of the program, for computations that call them.
      argument_names: what the caller calls its arguments, for messages. By default their numbers.
      code: serialised executables that were made for such devices, by the names of computation and slice;
        what has none is compiled.
      progress: is called as computations get ready. By default a line on standard error says so when it
        takes longer than a second.
      make_target: makes what the steps are bound to, of the arguments of a `LocalTarget`.

    Raises:
      CompileError: XLA refused a computation, or laid out its operands or results differently.
      ResourceError: the devices have less memory than the program takes; see `memory.check_fits`.
      ValueError: a transfer brings a device what it does not need; the plan is wrong.
    """
    _finish_before_exit()
    stalls.watch.start()
    # Also before XLA gets to work, which may take minutes.
    memory.check_fits(plan, bindings, None)
    requests = _requests(plan, bindings, callbacks, code or {})
    loaded = load_all(list(itertools.chain(*requests.values())), progress, plan.name)
    remaining = iter([computation.executable for computation in loaded])
    executables = {pair: tuple(itertools.islice(remaining, len(asked))) for pair, asked in requests.items()}
    first = {pair: on_devices[0] for pair, on_devices in executables.items()}
    memory.check_fits(plan, bindings, facts.stats_of(first))
    meshes = {name: mesh_of(binding) for name, binding in bindings.items()}
    if result_avals is None:
        result_avals = [aval_of(result.type) for result in plan.results]
    slots = slot_arrays(plan, meshes, result_avals)
    passed = [argument for argument in plan.arguments if argument.constant is None]
    names = argument_names or [str(number) for number in range(len(passed))]
    target = make_target(plan, meshes, executables, slots, result_avals, names)
    generated = codegen.generate(plan, target)
    return Executable(
        plan,
        tuple(_ports(plan, passed, slots)),
        tuple(_ports(plan, plan.results, slots)),
        generated.run,
        generated.source,
        all(pjrt.platform_of(device) == "cpu" for mesh in meshes.values() for device in mesh.devices.flat),
        first,
        # Without the code, which may be large.
        [dataclasses.replace(request, code=None) for request in itertools.chain(*requests.values())],
        loaded,
        target,
        {name: len(mesh.local_devices) for name, mesh in meshes.items()},
    )


def _requests(
    plan: Plan,
    bindings: Mapping[str, Binding],
    callbacks: Sequence[object],
    code: Mapping[tuple[str, str], bytes | memoryview],
) -> dict[tuple[str, str], list[Request]]:
    """For each computation on each slice one request, or one for each device where it is local."""
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


def _ports(plan: Plan, values: Sequence[Argument | Result], slots: SlotArrays) -> Iterator[Port]:
    for number, value in enumerate(values):
        for slice, slot in value.slots.items():
            yield Port(number, slice, plan.slot_types[slot], slots.shardings[slot])
