"""Plans that are written step by step, for tests of the runtime, and their loader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.local.devices import bind
from pathways.runtime.local.load import load
from pathways.runtime.plan import plan
from pathways.runtime.resources.virtual import VirtualSlice


class PlanBuilder:
    """Builder of a plan: a method takes slots and returns the slot that it fills."""

    def __init__(self, *slices: VirtualSlice, name: str = "program") -> None:
        self.name = name
        self.slices = slices
        self.computations: dict[str, plan.Computation] = {}
        self.arguments: list[plan.Argument] = []
        self.constants: dict[str, Any] = {}
        self.steps: list[plan.Step] = []
        self.types: list[plan.ArrayType] = []
        self.where: list[str] = []
        self.callbacks: tuple[Any, ...] = ()

    def slot(self, type_: plan.ArrayType, slice: VirtualSlice) -> int:
        self.types.append(type_)
        self.where.append(slice.name)
        return len(self.types) - 1

    def argument(self, shape: tuple[int, ...], *slices: VirtualSlice, donated: bool = False) -> int:
        """Adds an argument of 32 bit floats, mirrored on slices if there are more; returns its first slot."""
        type_ = plan.ArrayType(shape, "float32")
        slots = {slice.name: self.slot(type_, slice) for slice in slices}
        self.arguments.append(plan.Argument(type_, slots, donated))
        return min(slots.values())

    def constant(self, value: Any, slice: VirtualSlice) -> int:
        type_ = plan.ArrayType(value.shape, value.dtype.name)
        name = f"constant{len(self.constants)}"
        self.constants[name] = value
        slot = self.slot(type_, slice)
        self.arguments.append(plan.Argument(type_, {slice.name: slot}, constant=name))
        return slot

    def launch(
        self, fn: Callable[..., Any], slice: VirtualSlice, *slots: int, donated: tuple[int, ...] = ()
    ) -> int:
        """Adds a launch of a function with one result; functions are identified by their names."""
        operands = tuple(self.types[slot] for slot in slots)
        shapes = [jax.ShapeDtypeStruct(type_.shape, jnp.dtype(type_.dtype)) for type_ in operands]
        lowered = jax.jit(fn, donate_argnums=donated).trace(*shapes).lower(lowering_platforms=("cpu",))
        callbacks = tuple(lowered._lowering.compile_args["host_callbacks"])
        self.callbacks = callbacks or self.callbacks
        out = jax.tree.leaves(lowered.out_info)[0]
        result = plan.ArrayType(out.shape, out.dtype.name)
        module = bytecode_of(lowered.compiler_ir())
        name = f"{fn.__name__}_{'_'.join(map(str, donated))}"
        self.computations[name] = plan.Computation(
            name,
            module,
            operands,
            (result,),
            donated,
            bool(callbacks),
            bool(lowered._lowering.compile_args["unordered_effects"]),
        )
        filled = self.slot(result, slice)
        self.steps.append(plan.Launch(name, slice.name, slots, (filled,), f"{fn.__name__} on {slice.name}"))
        return filled

    def transfer(self, slot: int, slice: VirtualSlice) -> int:
        """Adds a transfer of a value that is replicated on both sides."""
        filled = self.slot(self.types[slot], slice)
        (size,) = {s.size for s in self.slices if s.name == self.where[slot]}
        routes = (tuple((0, n % size) for n in range(slice.size)),) if size != slice.size else None
        self.steps.append(plan.Transfer((slot,), (filled,), self.where[slot], slice.name, routes))
        return filled

    def release(self, *slots: int, delete: tuple[int, ...] = ()) -> None:
        self.steps.append(plan.Release(slots, delete))

    def finish(self, *results: int, shardings: Sequence[tuple[tuple[str, ...], ...]] = ()) -> plan.Plan:
        """Returns the plan; its slots are replicated unless shardings are given."""
        # Arguments that the caller passes come first.
        arguments = sorted(self.arguments, key=lambda argument: argument.constant is not None)
        return plan.Plan(
            name=self.name,
            slices={slice.name: slice.spec for slice in self.slices},
            computations=self.computations,
            arguments=tuple(arguments),
            results=tuple(plan.Result(self.types[slot], {self.where[slot]: slot}) for slot in results),
            steps=tuple(self.steps),
            slot_types=tuple(self.types),
            slot_shardings=tuple(shardings),
            constants=self.constants,
        )


class Runner:
    """Runner that binds and loads plans on the default cluster."""

    def load(self, builder: PlanBuilder, *results: int, shardings: Any = (), **options: Any) -> Any:
        finished = builder.finish(*results, shardings=shardings)
        bound = bind(builder.slices, finished.name)
        bindings = {slice.name: binding for slice, binding in bound.items()}
        return load(finished, bindings, callbacks=builder.callbacks, **options)

    def place(self, loaded: Any, *values: Any) -> list[jax.Array]:
        """Returns each value on the slice of the input of the same number."""
        return [
            jax.device_put(value, port.sharding) for value, port in zip(values, loaded.inputs, strict=True)
        ]
