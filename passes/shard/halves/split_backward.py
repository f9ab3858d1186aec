"""`pw-split-backward`: splits backward computations in two halves, so that nothing waits for the second."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from jaxlib.mlir import ir

import pathways.dialect as dialect
from pathways.dialect.attributes.names import SHARDING
from pathways.dialect.attributes.origins import Origin
from pathways.dialect.verification.forms import PLACED
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.functions import body_block, erase_unused_functions, inline_call
from pathways.passes.analysis.operations import byte_size, captured, copy_into, has_side_effect
from pathways.passes.manager.base import Pass, main_function, option, remark
from pathways.passes.schedule.policies.registry import PROGRAM
from pathways.passes.schedule.policies.request import RequestError, ScheduleRequest, read_request
from pathways.passes.schedule.policies.schedule_file import loops_with_halves
from pathways.passes.shard.halves.halves import Halves, HalvesRequest, halve
from pathways.passes.shard.halves.split_loops import LoopSplitter

_BARRIER = "stablehlo.optimization_barrier"


@dataclasses.dataclass(frozen=True)
class SplitBackward(Pass):
    """Splits backward launches into an input half, which others wait for, and a weight half.

    The loops over microbatches whose schedule has halves are split: by the option, else by their own
    `schedule`. The first half, I, computes the values that other slices, stages or the next microbatch wait
    for: the gradients of inputs. The second half, W, computes values that are only accumulated: the gradients
    of weights. A backward that computes only one of these is entirely that half.

    1. I contains at least a backward slice of its results. All other work may be in either half, except
       products and other heavy work, which is in W. The cut is the one with the fewest bytes between the
       halves: the bytes passed on, and the bytes that only W keeps alive. Nothing is computed twice, but
       broadcasts, constants and other work that only lays out values may be repeated.
    2. A `stablehlo.while` that computes both becomes two loops. The first stacks operands of the second;
       the second is not a loop if all iterations can be done at once. A loop whose trip count is not
       known stays whole, as does a branch, with a remark.
    3. Calls are inlined, and an `optimization_barrier` holds each of its values by itself.

    If a forward is recomputed (`jax.checkpoint`), a remark states how many bytes are kept for W.

    ```mlir
    // before
    %3:2 = pw.launch @b(%arg1, %1, %2) on @s1 [bwd 1] in @l
    %4 = pw.transfer %3#1 to @s0 in @l
    // after
    %3:2 = pw.launch @b_input(%arg1, %2) on @s1 [bwd.input 1] in @l
    %4 = pw.launch @b_weight(%1, %3#1) on @s1 [bwd.weight 1] in @l
    %5 = pw.transfer %3#0 to @s0 in @l
    ```

    Requires: transfers inserted.
    Guarantees: the same values; `origins` state the `part` of a backward that a launch is.
    """

    name: ClassVar[str] = "pw-split-backward"
    input_forms = (PLACED,)
    policy: str = option("", "the policy of all loops, overriding that of each")
    file: str = option("", "the schedule file of all loops, instead of a policy")
    recompute: bool = option(False, "let W repeat cheap operations of I, so that less is passed on")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        by_file = loops_with_halves(self.file, _staged_loops(main)) if self.file else set()
        split_loops = [op for op in dialect.ops_named(module, ["pw.loop"]) if self.has_halves(op, by_file)]
        loops = {op.sym_name for op in split_loops}
        if not loops:
            return
        by_request = not self.file and any(
            request.recompute for op in split_loops if (request := self.request(op))
        )
        splitter = _Splitter(module, self.recompute or by_request)
        waits = _Waits()
        # Readers first: their waits are known when their operands are met.
        for op in reversed(list(body_block(main).operations)):
            if not isinstance(op, dialect.LaunchOp):
                if not isinstance(op, dialect.ReduceOp):
                    waits.urgent.update(op.operands)
            elif op.loop in loops and _is_backward(op):
                (stage,) = {origin.stage for origin in op.origins}
                for half in splitter.split(op, waits.awaited_results(op, stage)):
                    is_weight = any(origin.part == "weight" for origin in half.origins)
                    waits.read(half, {stage} if is_weight else None)
            elif (
                op.loop not in loops
                or any(origin.is_forward for origin in op.origins)
                or not waits.urgent.isdisjoint(op.results)
                or splitter.has_effect(splitter.symbols[op.callee])
            ):
                waits.read(op, None)
            else:
                # Glue for halves of weights alone: it waits with them, and makes nothing urgent.
                waits.read(op, set().union(*(waits.late.get(r, ()) for r in op.results)))
        erase_unused_functions(module)

    def has_halves(self, op: ir.OpView, by_file: set[str]) -> bool:
        """Returns whether the schedule of a loop has halves."""
        if not isinstance(op, dialect.LoopOp) or op.sequential:
            return False
        if self.file:
            return op.sym_name in by_file
        request = self.request(op)
        return request is not None and request.has_halves

    def request(self, loop: dialect.LoopOp) -> ScheduleRequest | None:
        """Returns the schedule that a loop requests; None for a request that `pw-schedule` refuses."""
        try:
            return read_request(self.policy or loop.schedule or PROGRAM)
        except RequestError:
            return None


def _staged_loops(main: ir.OpView) -> dict[str, None]:
    """Returns the loops with stages, which a schedule file orders."""
    launches = (op for op in body_block(main).operations if isinstance(op, dialect.LaunchOp) and op.loop)
    return {op.loop: None for op in launches if any(map(_of_stage, op.origins))}


def _of_stage(origin: Origin) -> bool:
    """Returns whether a placed call is part of an action of a stage."""
    return origin.stage is not None and origin.kind != "recompute"


def _is_backward(launch: dialect.LaunchOp) -> bool:
    """Returns whether a launch is the whole backward of a stage."""
    return any(o.kind == "bwd" and o.stage is not None and o.part is None for o in launch.origins)


@dataclasses.dataclass(frozen=True)
class _Waits:
    """Readers that wait for values.

    Attributes:
      urgent: values for which another slice, a forward or the half of an input waits.
      late: for each value the stages whose halves of weights it leads to.
    """

    urgent: set[ir.Value] = dataclasses.field(default_factory=set)
    late: dict[ir.Value, set[int | None]] = dataclasses.field(default_factory=dict)

    def awaited_results(self, launch: dialect.LaunchOp, stage: int | None) -> tuple[int, ...]:
        """Returns the results of a backward that others wait for, other stages on its slice included."""
        return tuple(
            n
            for n, result in enumerate(launch.results)
            if result in self.urgent or self.late.get(result, set()) - {stage}
        )

    def read(self, launch: dialect.LaunchOp, stages: set[int | None] | None) -> None:
        """Notes that a launch reads its operands: for the weights of some stages, or, for None, urgently."""
        for value in launch.operands:
            if stages is None:
                self.urgent.add(value)
            else:
                self.late.setdefault(value, set()).update(stages)


@dataclasses.dataclass(frozen=True)
class _Half:
    """One half of a computation.

    Attributes:
      callee: its name.
      arguments: which arguments of the whole it takes.
      results: which results of the whole it returns.
    """

    callee: str
    arguments: Sequence[int]
    results: Sequence[int]


@dataclasses.dataclass(frozen=True)
class _Halved:
    """A computation in halves.

    Attributes:
      input: the half that other launches wait for; it returns the residuals of W after its results.
      weight: the other half, which takes the residuals after its arguments.
      passed: for each value passed on, the result of the first half that it is.
      passed_bytes: their size.
      unsplit: names of code that stays in the first half without a split.
    """

    input: _Half
    weight: _Half
    passed: Sequence[int]
    passed_bytes: int
    unsplit: tuple[str, ...]


class _Splitter:
    def __init__(self, module: ir.Module, repeats: bool) -> None:
        self.symbols = dialect.symbol_table(module)
        self.computations = Computations(module, self.symbols)
        self.repeats = repeats
        self.effects: dict[str, bool] = {}
        self.splits: dict[tuple[str, tuple[int, ...], tuple[int, ...]], _Halved | tuple[str, ...]] = {}

    def has_effect(self, op: ir.OpView) -> bool:
        """Returns whether an operation does more than compute its results."""
        return has_side_effect(op, self.symbols, self.effects)

    def split(self, launch: dialect.LaunchOp, awaited: tuple[int, ...]) -> list[dialect.LaunchOp]:
        """Replaces a launch by its halves, which it returns.

        Args:
          awaited: its results that others wait for.
        """
        if not awaited and not self.has_effect(self.symbols[launch.callee]):
            _name(launch, "weight")
            return [launch]
        costs = tuple(_bytes_kept(v, launch.loop) for v in launch.operands)
        key = (launch.callee, awaited, costs)
        if key not in self.splits:
            self.splits[key] = self.make(*key)
        split = self.splits[key]
        for subject in split if isinstance(split, tuple) else split.unsplit:
            remark(launch, f"keeps {subject} in the half that others wait for, so it is not split")
        if isinstance(split, tuple):
            _name(launch, "input")
            return [launch]
        return self.replace(launch, split)

    def replace(self, launch: dialect.LaunchOp, split: _Halved) -> list[dialect.LaunchOp]:
        """Launches both halves of a computation, which it returns."""
        if _is_repeated(launch, self.symbols[launch.callee]):
            read = {launch.operands[n] for n in split.weight.arguments} - {
                v for v in launch.operands if not _bytes_kept(v, launch.loop)
            }
            size = sum(byte_size(v.type) for v in read)
            remark(
                launch,
                f"is split: {split.passed_bytes} bytes per microbatch are passed on to the "
                f"weight half, and {size} bytes that it reads are kept, although the forward is "
                "recomputed",
            )
        operands, half = list(launch.operands), split.input
        first = launch.rebuilt(
            [operands[n] for n in half.arguments], self.symbols[half.callee].type.results, callee=half.callee
        )
        _name(first, "input")
        half = split.weight
        second = launch.rebuilt(
            [*(operands[n] for n in half.arguments), *(first.results[n] for n in split.passed)],
            self.symbols[half.callee].type.results,
            callee=half.callee,
        )
        _name(second, "weight")
        for launched, results in ((first, split.input.results), (second, split.weight.results)):
            for number, result in zip(results, launched.results, strict=False):
                launch.results[number].replace_all_uses_with(result)
        launch.operation.erase()
        return [first, second]

    def make(self, callee: str, urgent: tuple[int, ...], costs: tuple[int, ...]) -> _Halved | tuple[str, ...]:
        """Cuts a computation; returns the names of unsplit code if nothing is left for W."""
        # Splitting changes loops in place, and other launches may have other results that are waited for.
        scratch = self.computations.variant(callee, f"{callee}_scratch")
        name = scratch.attributes["sym_name"].value
        try:
            self.flatten(scratch)
            block = body_block(scratch)
            returned = list(block.operations)[-1].operands
            loops = LoopSplitter(scratch, self.has_effect, self.repeats)
            byte_costs = dict(zip(block.arguments, costs, strict=True))
            loops.split(block, [returned[n] for n in urgent], byte_costs)
            *operations, terminator = block.operations
            awaited = dict.fromkeys(terminator.operands[n] for n in urgent)
            late = [v for v in dict.fromkeys(terminator.operands) if v not in awaited]
            halves = halve(
                HalvesRequest(
                    operations, list(awaited), late, byte_costs, self.has_effect, repeats=self.repeats
                )
            )
            if not halves.late_in_second:
                return tuple(loops.unsplit)
            return self.emit(callee, scratch, halves, tuple(loops.unsplit))
        finally:
            del self.symbols[name]
            scratch.operation.erase()

    def flatten(self, function: ir.OpView) -> None:
        """Inlines all calls, and lets barriers hold one value each."""
        while calls := [op for op in dialect.nested_ops(function) if op.operation.name == "func.call"]:
            for call in calls:
                (name,) = dialect.referenced_symbols(call)
                inline_call(call, self.symbols[name])
        # As one operation a barrier would keep all its values in the half that others wait for.
        for op in list(dialect.nested_ops(function)):
            if op.operation.name != _BARRIER or len(op.operands) == 1:
                continue
            for old, value in zip(op.results, op.operands, strict=True):
                alone = ir.Operation.create(
                    _BARRIER,
                    results=[value.type],
                    operands=[value],
                    loc=op.operation.location,
                    ip=ir.InsertionPoint(op),
                )
                old.replace_all_uses_with(alone.results[0])
            op.operation.erase()

    def emit(self, callee: str, function: ir.OpView, halves: Halves, unsplit: tuple[str, ...]) -> _Halved:
        """Makes the computations of both halves."""
        block = body_block(function)
        arguments = list(block.arguments)
        returned = list(list(block.operations)[-1].operands)
        argument_shardings = [attrs.get(SHARDING) for attrs in dialect.argument_attrs(function)]
        result_shardings = [attrs.get(SHARDING) for attrs in dialect.result_attrs(function)]
        of_second = [n for n, v in enumerate(returned) if v in halves.late_in_second]
        of_first = [n for n in range(len(returned)) if n not in of_second]
        values = [returned[n] for n in of_first]
        added = [v for v in halves.passed if v not in values]

        def half(
            base: str,
            operations: Sequence[ir.OpView],
            results: Sequence[int],
            incoming: Sequence[ir.Value],
            outgoing: Sequence[ir.Value],
        ) -> _Half:
            read = {v for op in operations for v in captured(op)} | {returned[n] for n in results}
            numbers = [n for n, argument in enumerate(arguments) if argument in read]
            inputs = [*(arguments[n] for n in numbers), *incoming]

            def body(values: list[ir.Value]) -> list[ir.Value]:
                mapping = dict(zip(inputs, values, strict=True))
                copy_into(operations, mapping)
                return [mapping[v] for v in (*(returned[n] for n in results), *outgoing)]

            name = self.computations.make(
                base,
                [v.type for v in inputs],
                body,
                function.operation.location,
                arguments=[*(argument_shardings[n] for n in numbers), *[None] * len(incoming)],
                results=[*(result_shardings[n] for n in results), *[None] * len(outgoing)],
            )
            return _Half(name, numbers, results)

        return _Halved(
            half(f"{callee}_input", halves.first, of_first, [], added),
            half(f"{callee}_weight", halves.second, of_second, halves.passed, []),
            [[*values, *added].index(v) for v in halves.passed],
            sum(byte_size(v.type) for v in halves.passed),
            unsplit,
        )


def _bytes_kept(value: ir.Value, loop: str | None) -> int:
    """Returns the bytes of a value that end with the microbatch: none for a block of the batch."""
    if dialect.loop_of(value) != loop or isinstance(value.owner.opview, dialect.SplitOp):
        return 0
    return byte_size(value.type)


def _is_repeated(launch: dialect.LaunchOp, function: ir.OpView) -> bool:
    """Returns whether a backward repeats its forward, or reads a repeated forward."""
    makers = [v.owner.opview for v in launch.operands if not isinstance(v, ir.BlockArgument)]
    return any(op.operation.name == _BARRIER for op in dialect.nested_ops(function)) or any(
        isinstance(op, dialect.LaunchOp) and any(o.kind == "recompute" for o in op.origins) for op in makers
    )


def _name(launch: dialect.LaunchOp, part: str) -> None:
    """Says which half of a backward a launch is."""
    launch.origins = tuple(
        dataclasses.replace(origin, part=part) if origin.kind == "bwd" else origin
        for origin in launch.origins
    )
