"""What the slots of a plan hold on devices: arrays of some aval and sharding, or shards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pathways.runtime.plan.plan import ArrayType, Launch, Plan, Receive, Release, Result, Send, Slot, Transfer
from pathways.runtime.xla import pjrt


@dataclasses.dataclass(frozen=True)
class SlotArrays:
    """What the slots of a plan hold.

    Attributes:
      shardings: the sharding of each slot; one object for equal ones, which makes comparing arrays cheap.
      avals: the aval of the array in each slot.
      in_shards: the slots that hold shards instead of an array.
    """

    shardings: Mapping[Slot, NamedSharding]
    avals: Sequence[pjrt.Aval]
    in_shards: frozenset[Slot]


def slot_arrays(plan: Plan, meshes: Mapping[str, Mesh], result_avals: Sequence[pjrt.Aval]) -> SlotArrays:
    """What the slots of a plan hold.

    Args:
      plan: the plan.
      meshes: the devices of its slices, by name.
      result_avals: the avals of its results.
    """
    return SlotArrays(_shardings(plan, meshes), _avals(plan, result_avals), _in_shards(plan))


def aval_of(type_: ArrayType) -> pjrt.Aval:
    """Returns the aval that says no more than a type of the plan."""
    return jax.core.ShapedArray(type_.shape, jax.numpy.dtype(type_.dtype))


def aval_of_part(result: Result, aval: pjrt.Aval) -> pjrt.Aval:
    """Returns the aval of what one replica has of a result."""
    return aval if result.replicas is None else aval.update(shape=result.replicas.block(aval.shape))


def _shardings(plan: Plan, meshes: Mapping[str, Mesh]) -> dict[Slot, NamedSharding]:
    shared: dict[tuple[str, tuple[tuple[str, ...], ...]], NamedSharding] = {}
    shardings = {}
    for slot, slice in plan.slot_slices.items():
        dims = plan.sharding(slot)
        while dims and not dims[-1]:
            dims = dims[:-1]
        if (slice, dims) not in shared:
            spec = PartitionSpec(*[axes[0] if len(axes) == 1 else axes or None for axes in dims])
            shared[slice, dims] = NamedSharding(meshes[slice], spec)
        shardings[slot] = shared[slice, dims]
    return shardings


def _avals(plan: Plan, result_avals: Sequence[pjrt.Aval]) -> list[pjrt.Aval]:
    """Returns the aval of each slot; a launch makes that of a result of the program at once, where it can.

    Not for extended dtypes: a later step could not take such an array. A transfer keeps its source's aval.
    """
    avals = [aval_of(type_) for type_ in plan.slot_types]
    of_results = {
        slot: aval_of_part(result, aval)
        for result, aval in zip(plan.results, result_avals, strict=True)
        for slot in result.slots.values()
        if not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)
    }
    for step in plan.steps:
        match step:
            case Launch():
                for slot in step.results:
                    avals[slot] = of_results.get(slot, avals[slot])
            case Transfer():
                if step.routes is None:
                    avals[step.results[0]] = avals[step.operands[0]]
            case Send() | Receive() | Release():
                pass
    return avals


def _in_shards(plan: Plan) -> frozenset[Slot]:
    """Returns the slots of which nothing needs the array.

    Local launches and transfers of pieces make and read shards, and arrays of them only for others.
    """
    made: set[Slot] = set()
    needed = {slot for result in plan.results for slot in result.slots.values()}
    for step in plan.steps:
        match step:
            case Launch() if plan.computations[step.computation].local:
                made.update(step.results)
            case Transfer() if step.routes is not None:
                made.update(step.results)
            case Launch() | Transfer() | Send():
                needed.update(step.operands)
            case Receive() | Release():
                pass
    return frozenset(made - needed)
