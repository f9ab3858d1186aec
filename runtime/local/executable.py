"""Binds a plan to devices: compiles it, places its constants, and makes the function that runs it."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pathways.runtime.local import codegen, memory, tracing
from pathways.runtime.local.devices import devices_of, mesh_of
from pathways.runtime.plan.plan import Argument, ArrayType, Launch, Plan, Release, Result, Slot, Transfer
from pathways.runtime.resources.manager import Binding
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.compile_cache import CompileError, Loaded, Progress, Request, load_all

__all__ = ["CompileError", "Executable", "Port", "load"]

# Collectives of two programs that reach devices in different orders deadlock, so a program with a slice of
# several devices issues all its steps under this lock. Reentrant: a callback may run in the same thread.
_launch_order = threading.RLock()


@functools.cache
def _finish_before_exit() -> None:
    """Lets the process end only when its work is done.

    XLA:CPU runs computations and copies in threads of its own, and a process that tears down its
    devices under them ends with a segmentation fault.
    """

    def wait() -> None:
        for array in jax.live_arrays("cpu"):
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
      type: its global shape and dtype.
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
      executables: the executable of each computation on each slice, by their names; that of the first
        device where each device has its own.
      requests: what was loaded for them, in their order.
    """

    plan: Plan
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    run: Callable[[list[jax.Array]], list[jax.Array]]
    source: str
    executables: Mapping[tuple[str, str], pjrt.LoadedExecutable]
    requests: Sequence[Request] = dataclasses.field(repr=False)
    _loaded: Sequence[Loaded] = dataclasses.field(repr=False)
    _generate: Callable[..., codegen.Generated] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        self._untraced = self.run
        tracing.register(self)

    def watch(self, watch: tracing.Watch | None) -> None:
        """Reports every call from now on, or none any more."""
        self.run = self._untraced if watch is None else self._generate(watch=watch).run


def load(
    plan: Plan,
    bindings: Mapping[str, Binding],
    *,
    result_avals: Sequence[pjrt.Aval] | None = None,
    callbacks: Sequence[object] = (),
    argument_names: Sequence[str] | None = None,
    code: Mapping[tuple[str, str], bytes | memoryview] | None = None,
    progress: Progress | None = None,
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

    Raises:
      CompileError: XLA refused a computation, or laid out its operands or results differently.
      ResourceError: the devices have less memory than the program takes; see `memory.check_fits`.
      ValueError: a transfer brings a device what it does not need; the plan is wrong.
    """
    _finish_before_exit()
    # Also before XLA gets to work, which may take minutes.
    memory.check_fits(plan, bindings, None)
    pairs = list(dict.fromkeys((s.computation, s.slice) for s in plan.steps if isinstance(s, Launch)))
    requests = {
        pair: list(_requests(plan, bindings, pair, callbacks, (code or {}).get(pair))) for pair in pairs
    }
    loaded = load_all([request for several in requests.values() for request in several], progress)
    found = (entry.executable for entry in loaded)
    executables = {pair: tuple(itertools.islice(found, len(requests[pair]))) for pair in pairs}
    first = {pair: several[0] for pair, several in executables.items()}
    memory.check_fits(plan, bindings, first)
    target = _Target(plan, bindings, executables, result_avals)
    several = any(len(binding.devices) > 1 for binding in bindings.values())
    passed = [argument for argument in plan.arguments if argument.constant is None]
    names = range(len(passed)) if argument_names is None else argument_names
    slots = [
        (slot, str(name))
        for argument, name in zip(passed, names, strict=True)
        for slot in argument.slots.values()
    ]
    generate = functools.partial(
        codegen.generate,
        plan,
        target,
        copy_arrays=pjrt.copy_arrays,
        constants=target.constants(),
        order=_launch_order if several else None,
        explain=functools.partial(_explain, plan.name, slots),
    )
    generated = generate()
    inputs = tuple(target.ports(passed))
    outputs = tuple(target.ports(plan.results))
    # Without the code, which may be large.
    asked = [dataclasses.replace(request, code=None) for several in requests.values() for request in several]
    return Executable(plan, inputs, outputs, generated.run, generated.source, first, asked, loaded, generate)


def _requests(
    plan: Plan,
    bindings: Mapping[str, Binding],
    pair: tuple[str, str],
    callbacks: Sequence[object],
    code: bytes | memoryview | None,
) -> Iterator[Request]:
    """One request for all devices of a slice, or one for each where a computation is local."""
    computation, slice = plan.computations[pair[0]], pair[1]
    devices = devices_of(bindings[slice])
    used = tuple(callbacks) if computation.callbacks else ()
    for group in [(device,) for device in devices] if computation.local else [devices]:
        yield Request(computation, slice, group, used, code)


# What XLA and JAX say of a deleted array, each in its own way.
_DELETED = ("INVALID_ARGUMENT", "has been deleted")


def check_alive(program: str, name: str, array: jax.Array) -> None:
    """Raises a RuntimeError that names an argument of a program if it was deleted."""
    if array.is_deleted():
        raise RuntimeError(
            f"program '{program}': argument {name} has been deleted, with type {array.aval.str_short()}; it "
            "was donated to an earlier call, or is passed twice and donated once"
        )


def _explain(
    program: str,
    arguments: Sequence[tuple[Slot, str]],
    lines: Mapping[int, codegen.Line],
    error: Exception,
    arrays: Sequence[jax.Array],
) -> None:
    """Says which argument was deleted, or else which step of the program failed.

    Only what the step reads: steps before it may have used up other arguments, which were donated.
    """
    step = lines.get(error.__traceback__.tb_lineno if error.__traceback__ else 0)
    if step is None:
        return
    if any(text in str(error) for text in _DELETED):
        for (slot, name), array in zip(arguments, arrays, strict=True):
            if slot in step.reads:
                check_alive(program, name, array)
    error.add_note(f"in program {program}, step {step.label}")


class _Target:
    """The plan's launches, transfers and results on their devices; see `codegen.Target`."""

    def __init__(
        self,
        plan: Plan,
        bindings: Mapping[str, Binding],
        executables: Mapping[tuple[str, str], Sequence[pjrt.LoadedExecutable]],
        result_avals: Sequence[pjrt.Aval] | None,
    ) -> None:
        self.plan = plan
        self.bindings = bindings
        self.meshes = {name: mesh_of(binding) for name, binding in bindings.items()}
        self.executables = executables
        self._named: dict[tuple[str, tuple[tuple[str, ...], ...]], NamedSharding] = {}
        self.shardings = dict(self._shardings())
        self.avals = [_aval(type_) for type_ in plan.slot_types]
        self.result_avals = (
            [_aval(result.type) for result in plan.results] if result_avals is None else list(result_avals)
        )
        self._refine_avals()
        self._kernels: dict[tuple[object, ...], codegen.Kernel] = {}
        self._execute = {pair: several[0].execute_sharded for pair, several in executables.items()}
        self._copies: dict[tuple[object, ...], tuple[Any, ...]] = {}
        self._routed: dict[tuple[object, ...], Callable[[list[Any]], list[Any]]] = {}

    def kernel(self, launch: Launch) -> codegen.Kernel:
        avals = tuple(self.avals[slot] for slot in launch.results)
        shardings = tuple(self.shardings[slot] for slot in launch.results)
        operands = tuple(self.shardings[slot] for slot in launch.operands)
        local = self.plan.computations[launch.computation].local
        apart = self._are_apart((*launch.operands, *launch.results)) if local else ()
        key = (launch.computation, launch.slice, operands, avals, shardings, apart)
        if key not in self._kernels and local:
            self._check_shards(launch)
            self._kernels[key] = codegen.Kernel(self._on_each_device(launch), None)
        elif key not in self._kernels:
            self._check_shardings(launch)
            keep = None
            if self.plan.computations[launch.computation].effects:
                keep = pjrt.token_keeper(devices_of(self.bindings[launch.slice]))
            handlers = [
                pjrt.result_handler(aval, sharding, f"{launch.computation} on {launch.slice}")
                for aval, sharding in zip(avals, shardings, strict=True)
            ]
            self._kernels[key] = codegen.Kernel(
                self._execute[launch.computation, launch.slice], handlers, keep
            )
        return self._kernels[key]

    def _on_each_device(self, launch: Launch) -> Callable[[list[Any]], list[Any]]:
        return pjrt.on_each_device(
            self.executables[launch.computation, launch.slice],
            devices_of(self.bindings[launch.slice]),
            [_aval(type_) for type_ in self.plan.computations[launch.computation].results],
            self._readers(launch.operands),
            self._makers(launch.results),
        )

    @functools.cached_property
    def _apart(self) -> frozenset[Slot]:
        """The slots that hold shards instead of an array: nothing needs the array.

        Local launches and transfers of pieces make and read shards, and arrays of them only for others.
        """
        made: set[Slot] = set()
        needed = {slot for result in self.plan.results for slot in result.slots.values()}
        for step in self.plan.steps:
            match step:
                case Launch() if self.plan.computations[step.computation].local:
                    made.update(step.results)
                case Transfer() if step.routes is not None:
                    made.update(step.results)
                case Launch() | Transfer():
                    needed.update(step.operands)
                case Release():
                    pass
        return frozenset(made - needed)

    def _are_apart(self, slots: Sequence[Slot]) -> tuple[bool, ...]:
        return tuple(slot in self._apart for slot in slots)

    def _readers(self, slots: Sequence[Slot]) -> list[pjrt.Reader]:
        return [_as_it_is if slot in self._apart else pjrt.take_apart for slot in slots]

    def _makers(self, slots: Sequence[Slot]) -> list[pjrt.Maker]:
        return [
            _as_it_is if slot in self._apart else pjrt.put_together(self.avals[slot], self.shardings[slot])
            for slot in slots
        ]

    def _check_shards(self, launch: Launch) -> None:
        """Checks that what each device does with its shards was made for such shards."""
        computation = self.plan.computations[launch.computation]
        for slots, types in ((launch.operands, computation.operands), (launch.results, computation.results)):
            held = tuple(self.plan.shard_type(slot) for slot in slots)
            if held != types:
                raise ValueError(
                    f"program {self.plan.name}: computation {launch.computation} on slice {launch.slice} is "
                    f"for shards {_names(types)}, but there are {_names(held)}"
                )

    def _check_shardings(self, launch: Launch) -> None:
        """Checks that XLA laid out a computation as the plan says; it takes any arrays in silence."""
        if self.meshes[launch.slice].size == 1:
            return
        (executable,) = self.executables[launch.computation, launch.slice]
        for which, slots in (("operand", launch.operands), ("result", launch.results)):
            shardings = [self.shardings[slot] for slot in slots]
            ranks = [len(self.plan.slot_types[slot].shape) for slot in slots]
            wrong = pjrt.misplaced(executable, which, shardings, ranks)
            if wrong is not None:
                number, chosen = wrong
                planned = shardings[number]
                raise CompileError(
                    f"computation {launch.computation} on slice {launch.slice}: {which} #{number} lies as "
                    f"{planned.spec} on {dict(planned.mesh.shape)}, but XLA chose {chosen}"
                )

    def copies(self, transfers: Sequence[Transfer]) -> tuple[Any, ...]:
        for transfer in transfers:
            self._check_whole(transfer)
        shardings = [self.shardings[transfer.results[0]] for transfer in transfers]
        key = tuple(shardings)
        if key not in self._copies:
            devices = [pjrt.device_list(list(sharding.mesh.devices.flat)) for sharding in shardings]
            self._copies[key] = devices, shardings, [pjrt.ALWAYS_COPY] * len(shardings)
        return self._copies[key]

    def routed(self, transfer: Transfer) -> Callable[[list[Any]], list[Any]] | None:
        if transfer.routes is None:
            return None
        self._check_pieces(transfer)
        target = self.shardings[transfer.results[0]]
        avals = tuple(self.avals[slot] for slot in transfer.results)
        apart = self._are_apart((*transfer.operands, *transfer.results))
        key = (target, avals, transfer.routes, apart)
        if key not in self._routed:
            self._routed[key] = pjrt.route(
                transfer.routes,
                list(target.mesh.devices.flat),
                self._readers(transfer.operands),
                self._makers(transfer.results),
            )
        return self._routed[key]

    def _check_whole(self, transfer: Transfer) -> None:
        """Checks that a copy shard by shard, in the order of the meshes, gives each device what it needs.

        JAX does not check it, and whoever reads such an array as a whole does not see it either.
        """
        operand, result = transfer.operands[0], transfer.results[0]
        source, target = self.shardings[operand], self.shardings[result]
        if not _same_shards(source, target, self.plan.slot_types[operand].shape):
            raise ValueError(
                f"program {self.plan.name}: transfer {transfer.src} -> {transfer.dst} from {source.spec} on "
                f"{dict(source.mesh.shape)} to {target.spec} on {dict(target.mesh.shape)} needs routes; "
                "run pw-lower-transfers"
            )

    def _check_pieces(self, transfer: Transfer) -> None:
        """Checks that all pieces of a transfer have one type on both sides."""
        types = {self.plan.shard_type(slot) for slot in transfer.operands}
        types |= {self.plan.shard_type(slot) for slot in transfer.results}
        if len(types) != 1:
            raise ValueError(
                f"program {self.plan.name}: transfer {transfer.src} -> {transfer.dst} copies pieces of "
                f"different types: {_names(sorted(types, key=str))}"
            )

    def finish(self, result: int, slice: str) -> Callable[[Any], Any] | None:
        slot = self.plan.results[result].slots[slice]
        sharding = self.shardings[slot]
        aval = self.result_avals[result]
        rewrap = None if aval == self.avals[slot] else pjrt.rewrap(aval, sharding)
        if self.plan.own_slots.get(slot) == result:
            return rewrap
        devices = pjrt.device_list(list(sharding.mesh.devices.flat))

        def copy(array: Any) -> Any:
            (copied,) = pjrt.copy_arrays([array], [devices], [sharding], [pjrt.ALWAYS_COPY])
            return copied if rewrap is None else rewrap(copied)

        return copy

    def constants(self) -> dict[Slot, jax.Array]:
        """The arrays in slots of constants, on their slices."""
        placed = {}
        # Without x64 JAX would narrow a constant of 64 bits, and the module was made for its real dtype.
        with jax.enable_x64(True):
            for slot, name in self._constant_slots().items():
                value = self.plan.constants[name]
                dtype = self.avals[slot].dtype
                array = value if isinstance(value, jax.Array) else np.asarray(value, dtype)
                placed[slot] = jax.device_put(array, self.shardings[slot])
        return placed

    def ports(self, values: Sequence[Argument | Result]) -> Iterator[Port]:
        for number, value in enumerate(values):
            for slice, slot in value.slots.items():
                yield Port(number, slice, value.type, self.shardings[slot])

    def _constant_slots(self) -> dict[Slot, str]:
        return {
            slot: argument.constant
            for argument in self.plan.arguments
            if argument.constant is not None
            for slot in argument.slots.values()
        }

    def named(self, slot: Slot, slice: str) -> NamedSharding:
        """The sharding of a slot; one object for equal ones, which makes comparing arrays cheap."""
        dims = self.plan.sharding(slot)
        while dims and not dims[-1]:
            dims = dims[:-1]
        if (slice, dims) not in self._named:
            entries = [axes[0] if len(axes) == 1 else axes or None for axes in dims]
            self._named[slice, dims] = NamedSharding(self.meshes[slice], PartitionSpec(*entries))
        return self._named[slice, dims]

    def _shardings(self) -> Iterator[tuple[Slot, NamedSharding]]:
        """The sharding of each slot."""
        for argument in self.plan.arguments:
            for slice, slot in argument.slots.items():
                yield slot, self.named(slot, slice)
        for step in self.plan.steps:
            match step:
                case Launch():
                    for slot in step.results:
                        yield slot, self.named(slot, step.slice)
                case Transfer():
                    for slot in step.results:
                        yield slot, self.named(slot, step.dst)
                case Release():
                    pass

    def _refine_avals(self) -> None:
        """Lets a launch make the aval of a result of the program at once, where it can.

        Not for extended dtypes: a later step could not take such an array. A transfer hands its source's
        aval on.
        """
        by_slot = {
            slot: aval
            for result, aval in zip(self.plan.results, self.result_avals, strict=True)
            for slot in result.slots.values()
            if not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)
        }
        for step in self.plan.steps:
            match step:
                case Launch():
                    for slot in step.results:
                        self.avals[slot] = by_slot.get(slot, self.avals[slot])
                case Transfer():
                    if step.routes is None:
                        self.avals[step.results[0]] = self.avals[step.operands[0]]
                case Release():
                    pass


def _as_it_is(value: Any) -> Any:
    return value


def _names(types: Sequence[ArrayType]) -> str:
    return ", ".join(f"{type_.dtype}{list(type_.shape)}" for type_ in types)


def _aval(type_: ArrayType) -> pjrt.Aval:
    return jax.core.ShapedArray(type_.shape, jax.numpy.dtype(type_.dtype))


def _same_shards(source: NamedSharding, target: NamedSharding, shape: tuple[int, ...]) -> bool:
    """Whether a copy from device to device, in the order of the meshes, gives each the shard it needs."""
    if source.num_devices != target.num_devices:
        return False
    if source.is_fully_replicated and target.is_fully_replicated:
        return True
    held, needed = (
        [
            [part.indices(size)[:2] for part, size in zip(indices[device], shape, strict=True)]
            for indices in (sharding.devices_indices_map(shape),)
            for device in sharding.mesh.devices.flat
        ]
        for sharding in (source, target)
    )
    return held == needed
