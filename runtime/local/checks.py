"""Validation of plans and arrays: errors that would otherwise be silent, or appear far from their cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
from jax.sharding import NamedSharding

from pathways.runtime.plan.block_rows import rows_of
from pathways.runtime.plan.plan import ArrayType, Launch, Plan, Slot, Transfer
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.compile_cache import CompileError


def check_alive(program: str, name: str, array: jax.Array) -> None:
    """Checks that an argument of a program was not deleted.

    Raises:
      RuntimeError: it was.
    """
    if array.is_deleted():
        raise RuntimeError(
            f"program '{program}': argument {name} has been deleted, with type {array.aval.str_short()}; it "
            "was donated to an earlier call, or is passed twice and donated once"
        )


def check_shards(plan: Plan, launch: Launch) -> None:
    """Checks that a local computation was compiled for the shards that it gets.

    Raises:
      ValueError: it was not, so that the plan is wrong.
    """
    computation = plan.computations[launch.computation]
    for slots, types in ((launch.operands, computation.operands), (launch.results, computation.results)):
        shards = tuple(plan.shard_type(slot) for slot in slots)
        if shards != types:
            raise ValueError(
                f"program {plan.name}: computation {launch.computation} on slice {launch.slice} is "
                f"for shards {_names(types)}, but gets {_names(shards)}"
            )


def check_shardings(
    plan: Plan, launch: Launch, shardings: Mapping[Slot, NamedSharding], executable: pjrt.LoadedExecutable
) -> None:
    """Checks that XLA chose the shardings of the plan. An executable does not check its operands itself.

    Raises:
      CompileError: it chose others; the message names the operand or result.
    """
    for kind, slots in (("operand", launch.operands), ("result", launch.results)):
        planned = [shardings[slot] for slot in slots]
        ranks = [len(plan.slot_types[slot].shape) for slot in slots]
        misplaced = pjrt.misplaced(executable, kind, planned, ranks)
        if misplaced is not None:
            number, chosen = misplaced
            spec, mesh = planned[number].spec, planned[number].mesh
            raise CompileError(
                f"computation {launch.computation} on slice {launch.slice}: {kind} #{number} has sharding "
                f"{spec} on {dict(mesh.shape)}, but XLA chose {chosen}"
            )


def check_direct(plan: Plan, transfer: Transfer, shardings: Mapping[Slot, NamedSharding]) -> None:
    """Checks that a copy shard by shard, in the order of the meshes, sends each device the shard it needs.

    JAX does not check that, and a user who reads the array would get wrong values.

    Raises:
      ValueError: it does not, so that the plan is wrong.
    """
    operand, result = transfer.operands[0], transfer.results[0]
    source, target = shardings[operand], shardings[result]
    if not _same_shards(source, target, plan.slot_types[operand].shape):
        raise ValueError(
            f"program {plan.name}: transfer {transfer.src} -> {transfer.dst} from {source.spec} on "
            f"{dict(source.mesh.shape)} to {target.spec} on {dict(target.mesh.shape)} needs routes; "
            "run pw-lower-transfers"
        )


def check_routed(plan: Plan, transfer: Transfer) -> None:
    """Checks that all shards of a transfer have the same type on both slices.

    Raises:
      ValueError: they do not, so that the plan is wrong.
    """
    types = {plan.shard_type(slot) for slot in (*transfer.operands, *transfer.results)}
    if len(types) != 1:
        raise ValueError(
            f"program {plan.name}: transfer {transfer.src} -> {transfer.dst} copies pieces of "
            f"different types: {_names(sorted(types, key=str))}"
        )


def _names(types: Sequence[ArrayType]) -> str:
    return ", ".join(f"{type_.dtype}{list(type_.shape)}" for type_ in types)


def _same_shards(source: NamedSharding, target: NamedSharding, shape: tuple[int, ...]) -> bool:
    """Returns whether the devices of two meshes, in order, hold the same shards."""
    if source.num_devices != target.num_devices:
        return False
    if source.is_fully_replicated and target.is_fully_replicated:
        return True
    held, needed = (
        [
            rows_of(indices[device], shape)
            for indices in (sharding.devices_indices_map(shape),)
            for device in sharding.mesh.devices.flat
        ]
        for sharding in (source, target)
    )
    return held == needed
