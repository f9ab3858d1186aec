"""The forms of the IR in one table: the legal and the required operations and attributes of each.

Every pass declares the forms that it accepts and the one that it produces, by the names here; the driver of
passes and every tool check modules by this table and by nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect.attributes.names import FORM, HOST, IFRT_FUNCTION, MAIN, NUMBER, SLICE, TOPOLOGY
from pathways.dialect.operations import ops
from pathways.dialect.operations.operation import PwOp, attribute_of, ops_named, parts_of, symbol_name
from pathways.dialect.relations import host_relations, relations, subprogram_relations
from pathways.dialect.relations.host_relations import JointRelation
from pathways.dialect.relations.program_view import ProgramView, Report
from pathways.dialect.relations.relations import Relation

Fields = Mapping[type[PwOp], Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Form:
    """One form of the IR.

    Attributes:
      name: the value of `pw.form` in such a module.
      symbols: the operations of this dialect that may be beside functions and meshes.
      main: the operations of this dialect that may be in `@main`.
      hosts: whether there is a function for each host instead of `@main`; rules for `@main` apply to each.
      glue: whether operations of other dialects may be there, too; computations hold them in every form.
      arrays: whether all values of `@main`, and all arguments and results of computations, are arrays: ranked
          tensors of static shape and bounded size.
      needs: attributes that operations must have in this form, beyond their required attributes.
      lacks: attributes that operations must not have yet.
      together: groups of attributes; an operation has all of a group or none.
      ports: attributes that all arguments and results of `@main` must have, and operations that are glue.
      relations: relations between operations, checked only if all rules above hold.
      proofs: properties of the program as a whole, checked only if all relations hold.
      foreign: whether it is the form of another compiler, whose verifier has passed it; the pass that accepts
          it rejects the contents that we have no meaning for.
      joint: relations between the functions of hosts, checked one after the other up to the first that does
          not hold.
    """

    name: str
    symbols: frozenset[type[PwOp]] = frozenset({ops.SliceOp, ops.ConstantOp, ops.LoopOp})
    main: frozenset[type[PwOp]] = frozenset()
    hosts: bool = False
    glue: bool = False
    arrays: bool = True
    needs: Fields = dataclasses.field(default_factory=dict)
    lacks: Fields = dataclasses.field(default_factory=dict)
    together: Mapping[type[PwOp], Sequence[Sequence[str]]] = dataclasses.field(default_factory=dict)
    ports: Sequence[str] = ()
    relations: Sequence[Relation] = ()
    proofs: Sequence[Relation] = ()
    joint: Sequence[JointRelation] = ()
    foreign: bool = False

    def check(self, program: ProgramView, report: Report) -> None:
        """Checks a program whose operations are well formed, each by itself."""
        for name, op in program.symbols.items():
            if isinstance(op, PwOp) and type(op) not in self.symbols:
                report(op, f"@{name} is not legal in form '{self.name}'")
            elif isinstance(op, PwOp):
                self.check_needs(op, report)
            elif HOST in op.attributes and not self.hosts:
                report(op, f"is a host function, which is not legal in form '{self.name}'")
        for side, all_attrs in (("argument", program.arguments), ("result", program.results)):
            for number, attrs in enumerate(all_attrs):
                for port in self.ports:
                    if port not in attrs:
                        report(program.main, f"{side} #{number} {_MISSING[port]}: it has no `{port}`")
        for op in program.ops:
            self.check_operation(op, report)

    def check_operation(self, op: ir.OpView, report: Report) -> None:
        """Checks one operation of `@main`."""
        if not isinstance(op, PwOp):
            self.check_glue(op, report)
            return
        kind = type(op)
        if kind not in self.main:
            report(op, f"is not legal in form '{self.name}'{_HINTS.get((self.name, kind), '')}")
            return
        self.check_needs(op, report)
        attributes = op.attributes
        for name in self.lacks.get(kind, ()):
            if name in attributes:
                report(op, f"has a `{name}`, which form '{self.name}' does not have yet")
        for group in self.together.get(kind, ()):
            has = [name for name in group if name in attributes]
            if has and len(has) < len(group):
                missing = next(name for name in group if name not in has)
                report(op, f"has `{has[0]}`, but no `{missing}`")

    def check_needs(self, op: PwOp, report: Report) -> None:
        """Checks that an operation has the attributes that it needs."""
        attributes = op.attributes
        for name in self.needs.get(type(op), ()):
            if name not in attributes:
                report(op, f"has no `{name}`, which form '{self.name}' requires")

    def check_glue(self, op: ir.OpView, report: Report) -> None:
        """Checks an operation of another dialect."""
        if not self.glue:
            report(op, f"is outside a computation, which is not legal in form '{self.name}'")
            return
        for port in self.ports:
            if port not in op.attributes:
                report(op, f"{_MISSING[port]}: it has no `{port}`")


_MISSING = {SLICE: "is not placed", NUMBER: "does not belong to the program"}

_HINTS = {
    ("unrolled", ops.UntilOp): "; run pw-split-chunks",
    ("unrolled", ops.AllReduceOp): "; run pw-lower-all-reduces",
    ("unrolled", ops.ReduceScatterOp): "; run pw-lower-all-reduces",
    ("unrolled", ops.AllGatherOp): "; run pw-lower-all-reduces",
    ("unrolled", ops.ReplicaOp): "; run pw-replicate",
    ("ordered", ops.SplitOp): "; run pw-unroll-microbatches",
    ("unrolled", ops.SplitOp): "; run pw-unroll-microbatches",
    ("scheduled", ops.ReduceOp): "; run pw-accumulate",
    ("scheduled", ops.AllToAllOp): "; run pw-lower-all-to-alls",
    ("scheduled", ops.SplitOp): "; run pw-unroll-microbatches",
}

_ALWAYS = (
    relations.arguments_carry_constants,
    relations.loops_are_closed,
    relations.operands_are_alive,
    relations.calls_end,
)
_APART = (relations.computations_are_plain, relations.mirrored_copies_are_apart)
_PLACED = (
    *_ALWAYS,
    *_APART,
    relations.operands_live_here,
    relations.moves_lead_elsewhere,
    relations.microbatches_exist,
)
_CARRIES = (relations.reductions_are_rolled, relations.carries_go_on, relations.chunks_end)
_ROLLED = (*_PLACED, *_CARRIES)
_OF_ONE_REPLICA = (relations.sums_stand_for_replicas,)
_OF_REPLICAS = (relations.replicas_are_one, relations.replicas_agree)
_UNROLLED = (*_PLACED, *_OF_REPLICAS, relations.reductions_are_unrolled)
_SHARDED_AS_EXPECTED = (relations.operands_have_expected_shardings,)
_CORRESPONDS = (
    *_SHARDED_AS_EXPECTED,
    relations.shards_correspond,
    relations.exchanged_blocks_are_whole,
)
_CAN_RUN = (*_CORRESPONDS, relations.operands_are_in_expected_memory)
_ORDERED = (*_UNROLLED, relations.channels_fit, relations.one_order_per_queue)

_BEFORE_UNROLLING = {
    ops.LaunchOp: ("microbatch", "order"),
    ops.TransferOp: ("microbatch", "order", "channel"),
    ops.AllToAllOp: ("microbatch", "orders"),
}
_IN_PIECES = {**_BEFORE_UNROLLING, ops.TransferOp: (*_BEFORE_UNROLLING[ops.TransferOp], "routes")}
_OF_ONE_MICROBATCH = dict.fromkeys((ops.LaunchOp, ops.TransferOp, ops.AllToAllOp), (("loop", "microbatch"),))
_PLACED_LOOPS = {ops.SplitOp: ("slice",), ops.ReduceOp: ("slice",), ops.AllReduceOp: ("slice",)}
_WITH_SLICE = {**_PLACED_LOOPS, ops.CarryOp: ("slice",), ops.NextOp: ("slice",)}
_WITH_ORDER = {
    ops.LaunchOp: ("order",),
    ops.TransferOp: ("order", "channel"),
    ops.AllToAllOp: ("orders",),
    ops.ReduceOp: ("slice",),
}
_LOOPS = frozenset(
    {ops.SplitOp, ops.ReduceOp, ops.AllReduceOp, ops.CarryOp, ops.NextOp, ops.IndexOp, ops.UntilOp}
)
_BLOCKS = frozenset({ops.ReduceScatterOp, ops.AllGatherOp, ops.ReplicaOp})
_CHANNELS = frozenset({ops.SliceOp, ops.ConstantOp, ops.LoopOp, ops.ChannelOp})

TRACED = Form("traced", main=frozenset(), glue=True, arrays=False, relations=(relations.calls_end,))
# The output of Shardy's MPMD compiler: fragments on the meshes of a topology.
MPMD = Form("mpmd", foreign=True)
# Its lowering for a runtime: calls of atom programs on devices, and copies between them.
IFRT = Form("ifrt", foreign=True)
IMPORTED = Form(
    "imported",
    main=frozenset({ops.LaunchOp, ops.AllToAllOp}) | _LOOPS,
    glue=True,
    lacks=_BEFORE_UNROLLING,
    relations=(*_ALWAYS, *_CARRIES, *_OF_ONE_REPLICA),
)
# Small carried values may be on more than one slice as yet, and name them as glue does.
LOCATED = dataclasses.replace(
    IMPORTED,
    name="located",
    needs={**_PLACED_LOOPS, ops.CarryOp: (SLICE,), ops.NextOp: (SLICE,)},
    ports=(SLICE,),
)
OUTLINED = Form(
    "outlined",
    main=frozenset({ops.LaunchOp, ops.MirrorOp, ops.AllToAllOp}) | _LOOPS,
    needs=_WITH_SLICE,
    lacks=_BEFORE_UNROLLING,
    ports=(SLICE,),
    relations=(*_ALWAYS, *_APART, *_CARRIES, *_OF_ONE_REPLICA),
)
PLACED = Form(
    "placed",
    main=frozenset({ops.LaunchOp, ops.MirrorOp, ops.TransferOp, ops.AllToAllOp}) | _LOOPS,
    needs=_WITH_SLICE,
    lacks=_IN_PIECES,
    ports=(SLICE,),
    # Not later: a host may hold copies on other slices only than the first of an argument.
    relations=(*_ROLLED, *_OF_ONE_REPLICA, relations.values_move_once, relations.shardings_are_over_slices),
    proofs=_SHARDED_AS_EXPECTED,
)
# With replicas, or after `pw-replicate` with a slice for each of them.
SHARDED = dataclasses.replace(
    PLACED,
    name="sharded",
    main=PLACED.main | _BLOCKS,
    needs={kind: names for kind, names in _WITH_SLICE.items() if kind is not ops.AllReduceOp},
    lacks=_BEFORE_UNROLLING,
    relations=(
        *_ROLLED,
        relations.sums_are_over_replicas,
        relations.blocks_are_there,
        relations.replicas_agree,
    ),
    proofs=_CORRESPONDS,
)
# Sub-programs, each issued at once: modules inside of this one that claim forms of their own, from `sharded`
# on.
PARTS = Form(
    "parts",
    symbols=frozenset({ops.SliceOp}),
    main=frozenset({ops.RunOp, ops.RepeatOp}),
    ports=(SLICE,),
    relations=(subprogram_relations.subprograms_are_programs,),
    proofs=(
        subprogram_relations.operands_match_signatures,
        subprogram_relations.last_subprogram_returns,
        subprogram_relations.values_last,
        subprogram_relations.iterations_keep_shared_operands,
        subprogram_relations.carried_values_stay_in_place,
    ),
)
UNROLLED = Form(
    "unrolled",
    main=frozenset({ops.LaunchOp, ops.ReduceOp, ops.MirrorOp, ops.TransferOp, ops.AllToAllOp}),
    needs={ops.ReduceOp: ("slice",)},
    lacks={ops.LaunchOp: ("order",), ops.TransferOp: ("order", "channel"), ops.AllToAllOp: ("orders",)},
    together=_OF_ONE_MICROBATCH,
    ports=(SLICE,),
    relations=_UNROLLED,
    proofs=_CORRESPONDS,
)
ORDERED = Form(
    "ordered",
    symbols=_CHANNELS,
    main=frozenset({ops.LaunchOp, ops.ReduceOp, ops.MirrorOp, ops.TransferOp, ops.AllToAllOp, ops.ReleaseOp}),
    needs=_WITH_ORDER,
    together=_OF_ONE_MICROBATCH,
    ports=(SLICE,),
    relations=_ORDERED,
    # Without capacities, which `pw-plan-memory` sets again for the order that it decides.
    proofs=(*_CORRESPONDS, relations.order_can_be_met),
)
SCHEDULED = Form(
    "scheduled",
    symbols=_CHANNELS,
    main=frozenset({ops.LaunchOp, ops.MirrorOp, ops.TransferOp, ops.ReleaseOp}),
    needs=_WITH_ORDER,
    together=_OF_ONE_MICROBATCH,
    ports=(SLICE,),
    relations=_ORDERED,
    proofs=(*_CAN_RUN, relations.order_is_met),
)
BOUND = dataclasses.replace(SCHEDULED, name="bound", needs={**_WITH_ORDER, ops.SliceOp: ("host",)})
SPLIT = Form(
    "host",
    symbols=_CHANNELS,
    main=frozenset({ops.LaunchOp, ops.MirrorOp, ops.TransferOp, ops.SendOp, ops.RecvOp, ops.ReleaseOp}),
    hosts=True,
    needs={**_WITH_ORDER, ops.SliceOp: ("host",)},
    together={
        **_OF_ONE_MICROBATCH,
        ops.SendOp: (("loop", "microbatch"),),
        ops.RecvOp: (("loop", "microbatch"),),
    },
    ports=(SLICE, NUMBER),
    relations=(
        *_PLACED,
        *_OF_REPLICAS,
        relations.channels_fit,
        host_relations.work_is_on_the_host,
        host_relations.positions_increase,
        host_relations.numbers_differ,
        host_relations.sent_values_last,
    ),
    proofs=_CAN_RUN,
    joint=(
        host_relations.hosts_stand_alone,
        host_relations.ports_agree,
        host_relations.sends_have_receives,
        host_relations.hosts_differ,
        host_relations.channels_keep_their_order,
        host_relations.shards_arrive_where_needed,
        host_relations.hosts_do_not_deadlock,
    ),
)

FORMS: Mapping[str, Form] = {
    form.name: form
    for form in (
        TRACED,
        MPMD,
        IFRT,
        IMPORTED,
        LOCATED,
        OUTLINED,
        PLACED,
        SHARDED,
        PARTS,
        UNROLLED,
        ORDERED,
        SCHEDULED,
        BOUND,
        SPLIT,
    )
}
"""All forms by name, in the order in which a program takes them."""

UNCLAIMED = Form(
    "",
    symbols=frozenset({ops.SliceOp, ops.ConstantOp, ops.LoopOp, ops.ChannelOp}),
    main=frozenset({ops.LaunchOp, ops.MirrorOp, ops.TransferOp, ops.SendOp, ops.RecvOp, ops.ReleaseOp})
    | _LOOPS
    | _BLOCKS
    | {ops.AllToAllOp},
    glue=True,
    arrays=False,
    relations=(
        *_ALWAYS,
        relations.mirrored_copies_are_apart,
        relations.operands_live_here,
        relations.moves_lead_elsewhere,
        relations.microbatches_exist,
        relations.carries_go_on,
    ),
)
"""The rules of a module that claims no form, and that no pass produced."""


def form_of(module: ir.Module) -> str | None:
    """Returns the form that a module claims to be in; None when it claims none."""
    claim = attribute_of(module.operation, FORM)
    return claim.value_bytes.decode(errors="replace") if isinstance(claim, ir.StringAttr) else None


def stage_of(module: ir.Module) -> str | None:
    """Returns the progress of a module: the form that it claims, or that its sub-programs claim."""
    form = form_of(module)
    return form_of(parts_of(module)[0]) if form == PARTS.name and parts_of(module) else form


def working_modules(module: ir.Module) -> list[ir.Module]:
    """Returns the modules that passes work on: the sub-programs in the form `parts`, or the module."""
    return parts_of(module) if form_of(module) == PARTS.name else [module]


def foreign_form(module: ir.Module) -> Form | None:
    """Returns the form of another compiler that a module is in; None for one of ours.

    It is Shardy's if a function has a topology, and IFRT IR if one is marked so, or if values of `@main` are
    on meshes or on devices although such a mark is missing.
    """
    try:
        functions = ops_named(module, ["func.func"])
        inputs = [str(type_) for op in functions if symbol_name(op) == MAIN for type_ in op.type.inputs]
    # Names that are not UTF-8 are an error of `WellFormed`, which has yet to run. For strings that are
    # not, the bindings raise a RuntimeError.
    except (UnicodeDecodeError, RuntimeError):
        return None
    for form, mark, prefix in ((MPMD, TOPOLOGY, "!mpmd."), (IFRT, IFRT_FUNCTION, "!ifrt.")):
        if any(mark in op.attributes for op in functions) or any(text.startswith(prefix) for text in inputs):
            return form
    return None


def set_form(module: ir.Module, form: Form) -> None:
    """Claims that a module is in a form."""
    module.operation.attributes[FORM] = ir.StringAttr.get(form.name, module.context)
