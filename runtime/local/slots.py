"""Contents of the slots of a plan on devices: arrays of an aval and a sharding, or lists of shards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pathways.runtime.plan.plan import ArrayType, Launch, Plan, Receive, Release, Result, Send, Slot, Transfer
from pathways.runtime.xla import pjrt


@dataclasses.dataclass(frozen=True)
class SlotArrays:
    """Contents of the slots of a plan.

    Attributes:
      shardings: the sharding of each slot; equal shardings are one object, so that comparisons are cheap.
      in_shards: the slots that hold a list of shards instead of an array.
    """

    shardings: Mapping[Slot, NamedSharding]
    avals: Sequence[pjrt.Aval]
    in_shards: frozenset[Slot]


def slot_arrays(plan: Plan, meshes: Mapping[str, Mesh], result_avals: Sequence[pjrt.Aval]) -> SlotArrays:
    """Returns the contents of the slots of a plan.

    Args:
      meshes: the devices of its slices, by name.
    """
    return SlotArrays(_shardings(plan, meshes), _avals(plan, result_avals), _in_shards(plan))


def aval_of(type_: ArrayType, kind: str | None = None) -> pjrt.Aval:
    """Returns the aval of a type of the plan in a memory, without a weak type or extended dtype."""
    space = pjrt.memory_space(kind)
    return jax.core.ShapedArray(type_.shape, jax.numpy.dtype(type_.dtype), memory_space=space)


def aval_of_block(result: Result, aval: pjrt.Aval) -> pjrt.Aval:
    """Returns the aval of the block that one replica has of a result."""
    return aval if result.replicas is None else aval.update(shape=result.replicas.block(aval.shape))


def _shardings(plan: Plan, meshes: Mapping[str, Mesh]) -> dict[Slot, NamedSharding]:
    shared: dict[tuple[str, tuple[tuple[str, ...], ...], str | None], NamedSharding] = {}
    shardings = {}
    for slot, slice in plan.slot_slices.items():
        dims = plan.sharding(slot)
        # Trailing dimensions without axes mean nothing; without these, equal shardings have one key.
        while dims and not dims[-1]:
            dims = dims[:-1]
        key = (slice, dims, plan.memory_kind(slot))
        if key not in shared:
            spec = PartitionSpec(*[axes[0] if len(axes) == 1 else axes or None for axes in dims])
            shared[key] = NamedSharding(meshes[slice], spec, memory_kind=plan.memory_kind(slot))
        shardings[slot] = shared[key]
    return shardings


def _avals(plan: Plan, result_avals: Sequence[pjrt.Aval]) -> list[pjrt.Aval]:
    """Returns the aval of each slot. A launch creates results of the program with their final aval if it can.

    It cannot for extended dtypes: a later step would not accept such an array. A transfer keeps the aval of
    its source.
    """
    avals = [aval_of(type_, plan.memory_kind(slot)) for slot, type_ in enumerate(plan.slot_types)]
    of_results = {
        slot: aval_of_block(result, aval)
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
    """Returns the slots whose array no step needs as a whole.

    Local launches and routed transfers read and produce shards, which need to be joined for other steps only.
    """
    produced: set[Slot] = set()
    needed = {slot for result in plan.results for slot in result.slots.values()}
    for step in plan.steps:
        match step:
            case Launch() if plan.computations[step.computation].local:
                produced.update(step.results)
            case Transfer() if step.routes is not None:
                produced.update(step.results)
            case Launch() | Transfer() | Send():
                needed.update(step.operands)
            case Receive() | Release():
                pass
    return frozenset(produced - needed)
