"""Moves what is ready from CPU to CPU in one pass over memory. Never imports jax.

A reshard is a cut on the source, a transfer of pieces, and a join on the target (see docs/transfers.md).
None of them waits for another, and each is a pass over memory. The devices of the CPU platform share the
memory of the process, so a value that is ready when the first of the three steps is issued needs one pass:
that step leaves views of the source's shards behind in place of pieces, and the last one fills the shards of
the target from them. A value that is not ready yet takes the three steps, since waiting would hold up all
that is issued after them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from pathways.runtime.plan.parts import Part, Shard, read_parts, whole, within
from pathways.runtime.plan.plan import Launch, Plan, Release, Slot, Step, Transfer
from pathways.runtime.xla.host_memory import Views


@dataclasses.dataclass(frozen=True)
class Role:
    """What a step does when a value moves through the host.

    Attributes:
      begins: whether it finds out that the value is ready; else an earlier step did.
      shards: for each device of the target what its shard is made of, by devices of the source; None for a
        step that leaves views behind.
    """

    begins: bool
    shards: tuple[Shard, ...] | None = None


def find_roles(
    plan: Plan, slices: Set[str], apart: Set[Slot], replicas: Callable[[Slot], Sequence[int]]
) -> Mapping[Slot, Role]:
    """The roles of the steps of a plan that move a value through the host, by their first results.

    Args:
      plan: the plan.
      slices: the slices on devices of the CPU platform.
      apart: the slots that hold shards and no array.
      replicas: for each device of a slot's slice the first one that holds the same shard.
    """
    return _Finder(plan, slices, apart).roles(replicas)


@dataclasses.dataclass(frozen=True)
class _Move:
    """The steps that move a value; there may be nothing to cut, or nothing to join."""

    cut: Launch | None
    transfer: Transfer
    join: Launch | None

    @property
    def steps(self) -> list[Launch | Transfer]:
        return [step for step in (self.cut, self.transfer, self.join) if step is not None]

    @property
    def source(self) -> Slot:
        return self.steps[0].operands[0]

    @property
    def result(self) -> Slot:
        return self.steps[-1].results[0]


class _Finder:
    def __init__(self, plan: Plan, slices: Set[str], apart: Set[Slot]) -> None:
        self.plan = plan
        self.slices = slices
        self.apart = apart
        self.makers: dict[Slot, Launch] = {}
        self.readers: dict[Slot, list[Launch | Transfer]] = {}
        self.numbers: dict[int, int] = {}
        """The number of each step, by its identity: launches without results may be equal."""
        self.ends: dict[Slot, int] = {}
        """The number of the step that consumes what is in a slot."""
        for number, step in enumerate(plan.steps):
            self.numbers[id(step)] = number
            self.ends.update(dict.fromkeys(self.consumed(step), number))
            if isinstance(step, Launch | Transfer):
                for slot in step.operands:
                    self.readers.setdefault(slot, []).append(step)
            if isinstance(step, Launch) and self.is_local(step):
                self.makers.update(dict.fromkeys(step.results, step))
        self.parts = functools.cache(self._parts)

    def roles(self, replicas: Callable[[Slot], Sequence[int]]) -> dict[Slot, Role]:
        found: dict[Slot, Role] = {}
        for move in self.moves():
            shards = tuple(self.shards(move, replicas(move.source)))
            for step in move.steps:
                ends = step is move.steps[-1]
                found[step.results[0]] = Role(step is move.steps[0], shards if ends else None)
        return found

    def moves(self) -> list[_Move]:
        """The moves all of whose steps can do their part."""
        found = [move for step in self.plan.steps if isinstance(step, Transfer) for move in self.move(step)]
        able = {move.transfer.results[0] for move in found}

        def reads_views(step: Launch | Transfer) -> bool:
            return isinstance(step, Transfer) and step.results[0] in able

        return [
            move
            for move in found
            if move.cut is None
            or all(reads_views(step) for slot in move.cut.results for step in self.readers.get(slot, ()))
        ]

    def move(self, transfer: Transfer) -> Iterator[_Move]:
        """The move that a transfer is part of, if it is one that saves a pass over memory."""
        if transfer.routes is None or not {transfer.src, transfer.dst} <= self.slices:
            return
        found = _Move(self.cut(transfer), transfer, self.join(transfer))
        first, last = found.steps[0], found.steps[-1]
        launches = [step for step in found.steps if isinstance(step, Launch)]
        if (
            launches
            and len(first.operands) == len(last.results) == 1
            and self.apart.isdisjoint({found.source, found.result})
            and not self.numbers[id(first)] <= self.ends.get(found.source, -1) <= self.numbers[id(last)]
            and all(self.parts(launch.computation) is not None for launch in launches)
        ):
            yield found

    def consumed(self, step: Step) -> Iterator[Slot]:
        """The slots whose arrays a step donates or deletes: XLA could not, while there are views of them."""
        match step:
            case Launch():
                for number in self.plan.computations[step.computation].donated:
                    yield step.operands[number]
            case Release():
                yield from step.delete
            case Transfer():
                pass

    def cut(self, transfer: Transfer) -> Launch | None:
        """The local launch that made the operands of a transfer, and that only transfers read."""
        cut = self.makers.get(transfer.operands[0])
        if cut is None or not set(transfer.operands) <= set(cut.results) <= self.apart:
            return None
        return cut

    def join(self, transfer: Transfer) -> Launch | None:
        """The local launch that alone reads the results of a transfer."""
        readers = [reader for slot in transfer.results for reader in self.readers.get(slot, ())]
        if not readers or not set(transfer.results) <= self.apart:
            return None
        join = readers[0]
        alone = all(reader is join for reader in readers)
        if alone and isinstance(join, Launch) and self.is_local(join) and join.operands == transfer.results:
            return join
        return None

    def is_local(self, launch: Launch) -> bool:
        return self.plan.computations[launch.computation].local

    def shards(self, move: _Move, replicas: Sequence[int]) -> Iterator[Shard]:
        """For each device of the target what its shard is made of."""
        transfer = move.transfer
        piece = self.plan.shard_type(transfer.results[0]).shape
        joined: Shard = (Part(0, whole(piece), whole(piece)),)
        pieces = [joined]
        if move.cut is not None:
            made = dict(zip(move.cut.results, self.parts(move.cut.computation) or [], strict=True))
            pieces = [made[slot] for slot in transfer.operands]
        if move.join is not None:
            (joined,) = self.parts(move.join.computation) or []
        assert transfer.routes is not None
        for device in range(len(transfer.routes[0])):
            yield tuple(
                Part(replicas[sender], inner.there, inner.here)
                for part in joined
                for operand, sender in [transfer.routes[part.source][device]]
                for inner in within(pieces[operand], part)
            )

    def _parts(self, computation: str) -> list[Shard] | None:
        return read_parts(self.plan.computations[computation].module)


def through_host(
    views: Callable[[Any], Views | None],
    land: Callable[[Views], Any] | None,
    results: int,
    otherwise: Callable[[list[Any]], list[Any]],
) -> Callable[[list[Any]], list[Any]]:
    """A step of a move, which is made as it is planned where the value was not ready.

    Args:
      views: the views that an operand is or begins with, None where the value is not ready.
      land: makes the result of the last step; None for other steps, which hand the views on.
      results: how many results the step has.
      otherwise: makes the step as it is planned.
    """

    def step(operands: list[Any]) -> list[Any]:
        held = views(operands[0])
        if held is None:
            return otherwise(operands)
        return [held] * results if land is None else [land(held)]

    return step


def handed_on(operand: Any) -> Views | None:
    """The views that an earlier step has left behind, if it did."""
    return operand if isinstance(operand, Views) else None
