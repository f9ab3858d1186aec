"""Pipeline of passes from the output of JAX to the input of the runtime, with the reasons for their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pathways.dialect.verification.forms import IFRT, MPMD
from pathways.passes.import_.import_ import Import
from pathways.passes.import_.mpmd.import_ifrt import ImportIfrt
from pathways.passes.import_.mpmd.import_mpmd import ImportMpmd
from pathways.passes.manager.base import Pass
from pathways.passes.place.cse import Cse
from pathways.passes.place.dce import Dce
from pathways.passes.place.group_branches import GroupBranches
from pathways.passes.place.inference.infer_placement import InferPlacement
from pathways.passes.place.insert_all_reduces import InsertAllReduces
from pathways.passes.place.insert_transfers import InsertTransfers
from pathways.passes.place.merge_residuals import MergeResiduals
from pathways.passes.place.outline import Outline
from pathways.passes.place.sink_constants import SinkConstants
from pathways.passes.place.sink_loop_reductions import SinkLoopReductions
from pathways.passes.place.verify_placed import VerifyPlaced
from pathways.passes.schedule.chunks.split_chunks import SplitChunks
from pathways.passes.schedule.fuse.accumulate import Accumulate
from pathways.passes.schedule.fuse.fuse_launches import FuseLaunches
from pathways.passes.schedule.fuse.share_loops import ShareLoops
from pathways.passes.schedule.memory.assign_memory_kinds import AssignMemoryKinds
from pathways.passes.schedule.memory.plan_memory import PlanMemory
from pathways.passes.schedule.order.lower_all_to_alls import LowerAllToAlls
from pathways.passes.schedule.order.schedule import Schedule
from pathways.passes.schedule.replicas.lower_all_reduces import LowerAllReduces
from pathways.passes.schedule.replicas.replicate import Replicate
from pathways.passes.schedule.replicas.sum_carries import SumCarries
from pathways.passes.schedule.unroll.unroll_microbatches import UnrollMicrobatches
from pathways.passes.schedule.verify_schedule import VerifySchedule
from pathways.passes.shard.halves.split_backward import SplitBackward
from pathways.passes.shard.lower_transfers import LowerTransfers
from pathways.passes.shard.propagate_shardings import PropagateShardings
from pathways.passes.shard.updates.split_updates import SplitUpdates


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the compiler for a program.

    Attributes:
      policy: the policy of `pw-schedule` for all loops; empty for the policy that each loop requests.
      schedule_file: a CSV file with the orders of all loops, instead of a policy.
      fuse: whether the user's own placed calls may be fused with each other.
      exchange_dtype: the dtype in which replicas send wider floats to each other; empty for their own.
      chunk: the iterations issued at once of a loop over slices whose end depends on values.
      zero1: whether each replica updates a block of the parameters, and keeps that block of their state.
    """

    policy: str = ""
    schedule_file: str = ""
    fuse: bool = False
    exchange_dtype: str = ""
    zero1: bool = False
    chunk: int = 8


@dataclasses.dataclass(frozen=True)
class Phase:
    """Passes that end in a form of the IR worth inspecting."""

    name: str
    passes: tuple[Pass, ...]


def phases(options: Options) -> list[Phase]:
    """Returns the phases of the compiler; each starts from the form in which the one before it ends."""
    return [
        Phase("imported", (Import(options.chunk),)),
        Phase(
            "placed",
            (
                InferPlacement(),
                # Before sums sink: the sum over replicas comes after the join of slices, which crosses once.
                InsertAllReduces(),
                # Before outlining: additions that join slices are still operations of their own.
                SinkLoopReductions(),
                # After all passes over single operations: it moves operations of branches into others.
                GroupBranches(),
                # No canonicalize between placement and outline: its rewrites may drop the placement.
                Outline(),
                # Outlining has merged equal glue, so that equal launches now look equal.
                Cse(),
                # Before constants: it inlines small helpers, which may compute constants.
                MergeResiduals(),
                # After it, some results are read by nothing.
                SinkConstants(),
                # Before transfers: a launch that nothing needs must not pull its operands over.
                Dce(),
                InsertTransfers(),
                # Proved again at the end, for the final program: it costs nothing where passes are trusted.
                VerifyPlaced(),
            ),
        ),
        Phase(
            "sharded",
            (
                # Transfers show the values that other slices wait for. Not later: Shardy sees both halves.
                SplitBackward(options.policy, options.schedule_file),
                # Transfers are explicit by now: Shardy sees which values are on which mesh.
                PropagateShardings(),
                # Before scheduling: cutting and joining are launches that are in the order of their slice.
                LowerTransfers(),
                # Not sooner: blocks are of dimensions that devices do not divide, where there are any.
                *([SplitUpdates()] if options.zero1 else []),
            ),
        ),
        Phase(
            "scheduled",
            (
                # First: all passes above see one program, all passes below run on each of its sub-programs.
                SplitChunks(),
                # Right before carries go from replica to replica: their updates are in computations by now.
                SumCarries(),
                # Late, so that the passes above see a single replica.
                Replicate(),
                # Before unrolling: exchanges in a loop become launches and transfers of its iterations.
                LowerAllReduces(dtype=options.exchange_dtype),
                # Late, so that the passes above see a single microbatch.
                UnrollMicrobatches(),
                Schedule(options.policy, options.schedule_file),
                # Right after it: every pass above sees an exchange of blocks as one operation.
                LowerAllToAlls(),
                # After the order is known: a sum goes from launch to launch as they run.
                Accumulate(),
                # After the order is known: only neighbours on a slice may become one.
                FuseLaunches(options.fuse),
                # After fusion: stages differ by the glue that was fused with them, not by their loops.
                *([] if options.fuse else [ShareLoops()]),
                # After all that creates computations: only their bodies say which memory values are in.
                AssignMemoryKinds(),
                # After fusion: former intermediates are inside of computations now.
                PlanMemory(),
                # Last: the proof is for the final program.
                VerifySchedule(),
            ),
        ),
    ]


def phases_after(options: Options, form: str | None) -> list[Phase]:
    """Returns the phases that a module in a form has yet to go through; the first may lack its first passes.

    Args:
      options: of the compiler.
      form: the form; None for a module that JAX lowered.
    """
    every = phases(options)
    if form is not None and form in _IMPORTS:
        return _of_shardy(every, options, _IMPORTS[form])
    for n in reversed(range(len(every))):
        passes = every[n].passes
        for k in reversed(range(len(passes))):
            output_form = passes[k].output_form
            if output_form is not None and output_form.name == form:
                rest = [dataclasses.replace(every[n], passes=passes[k + 1 :])] if k + 1 < len(passes) else []
                return [*rest, *every[n + 1 :]]
    return every


_IMPORTS: Mapping[str, Pass] = {MPMD.name: ImportMpmd(), IFRT.name: ImportIfrt()}
"""Passes that import programs that Shardy has partitioned, by the form of these programs."""


def _of_shardy(every: list[Phase], options: Options, import_: Pass) -> list[Phase]:
    """Returns the phases of a program that Shardy has partitioned: fragments are launches, in its order."""
    names = [phase.name for phase in every]
    placed = Phase("placed", (import_,))
    rest = every[names.index(placed.name) + 1 :]
    if options.fuse:
        return [placed, *rest]
    # Glue is not fused either: Shardy inferred it and left it unmerged on purpose.
    return [
        placed,
        *(
            dataclasses.replace(
                phase, passes=tuple(p for p in phase.passes if not isinstance(p, FuseLaunches))
            )
            for phase in rest
        ),
    ]
