"""Checks every `pw` operation of a module, as a registered C++ dialect would.

Errors go to the context's diagnostic handlers in MLIR's form (`'pw.transfer' op expected ...`) at the
location of the operation. All errors of a module are reported, not only the first.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from pathways.dialect.operation import OPERATIONS, PwOp, counted, symbol_name, symbol_table
from pathways.dialect.ops import (
    ChannelOp,
    LaunchOp,
    MirrorOp,
    ReduceOp,
    ReleaseOp,
    SplitOp,
    TransferOp,
)
from pathways.dialect.placement import (
    SLICE,
    Slices,
    argument_attrs,
    donated_arguments,
    joined_slices,
    read_slices,
    result_attrs,
    result_slices,
)
from pathways.dialect.shardings import read_mesh

FORM = "pw.form"
"""The module attribute that names the form of the IR; see `docs/dialect.md`."""

FORMS = ("imported", "placed", "scheduled")


def form_of(module: ir.Module) -> str | None:
    """The form a module claims to be in; None when it claims none, and is then held to all rules."""
    attributes = module.operation.attributes
    return attributes[FORM].value if FORM in attributes else None


def set_form(module: ir.Module, form: str) -> None:
    """Claims that a module is in a form."""
    module.operation.attributes[FORM] = ir.StringAttr.get(form, module.context)


def verify(module: ir.Module) -> bool:
    """Checks all `pw` operations, placements and symbols of a module; True when there is no error."""
    return _Verifier(module).run()


class _Verifier:
    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.symbols = symbol_table(module)
        self.moves_are_explicit = form_of(module) != "imported"
        self.donated: dict[str, frozenset[int]] = {}
        self.valid = True

    def error(self, op: ir.OpView, message: str) -> None:
        self.valid = False
        op.operation.location.emit_error(f"'{op.operation.name}' op {message}")

    def run(self) -> bool:
        with self.module.context:
            form = self.module.operation.attributes.get(FORM)
            if form is not None and not (isinstance(form, ir.StringAttr) and form.value in FORMS):
                forms = ", ".join(f'"{name}"' for name in FORMS)
                self.error(
                    self.module.operation.opview, f"expected `{FORM}` to be one of {forms}, got {form}"
                )
                return False
            self.check_symbol_names()
            for op in self.module.body.operations:
                if op.operation.name == "func.func":
                    self.check_function(op)
                elif self.check_operation(op) and not op.is_symbol:
                    self.error(op, "must stand directly in a function")
        return self.valid

    def check_symbol_names(self) -> None:
        seen: set[str] = set()
        for op in self.module.body.operations:
            name = symbol_name(op)
            if name in seen:
                self.error(op, f"redefines the symbol @{name}")
            if name is not None:
                seen.add(name)

    def check_operation(self, op: ir.OpView) -> bool:
        """Checks one operation by its declaration; False when it is too malformed for further checks."""
        name = op.operation.name
        if not isinstance(op, PwOp):
            if name.startswith("pw."):
                self.error(op, f"is not an operation of the pw dialect; it has {', '.join(OPERATIONS)}")
            elif not self.module.context.is_registered_operation(name):
                self.error(op, "is unknown: no dialect of this compiler has it")
            return False
        errors_before = self.valid
        self.valid = True
        fields = op.fields()
        for attribute_name in op.attributes:
            if attribute_name not in fields and "." not in attribute_name:
                self.error(op, f"has no attribute `{attribute_name}`; it has {', '.join(fields)}")
        for field in fields.values():
            if field.name not in op.attributes:
                if field.required:
                    self.error(op, f"requires attribute `{field.name}`")
                continue
            try:
                attribute = op.attributes[field.name]
            except TypeError:  # The bindings cannot hand out a location that is used as an attribute.
                self.error(op, f"attribute `{field.name}` must not be a location")
                continue
            if not field.kind.matches(attribute):
                kind = field.kind.description
                article = "an" if kind[0] in "ae" else "a"
                self.error(op, f"attribute `{field.name}` must be {article} {kind}, got {attribute}")
            elif field.kind.symbol_kind:
                self.check_symbol(op, field.name, field.kind.read(attribute), field.kind.symbol_kind)
        for what, declared, actual in (
            ("operand", op.inputs, op.operands),
            ("result", op.outputs, op.results),
        ):
            if declared.count is not None and len(actual) != declared.count:
                self.error(op, f"expected {counted(declared.count, what)}, got {len(actual)}")
        if self.valid:
            op.check(self.symbols, lambda message: self.error(op, message))
        fine = self.valid
        self.valid = fine and errors_before
        return fine

    def check_symbol(self, op: ir.OpView, field: str, name: str, kind: str) -> None:
        target = self.symbols.get(name)
        if target is None:
            self.error(op, f"attribute `{field}` refers to @{name}, which is not in the module")
        elif target.operation.name != kind:
            self.error(op, f"attribute `{field}` refers to @{name}, a {target.operation.name}, not a {kind}")

    def check_function(self, function: ir.OpView) -> None:
        placements = self.check_placements(function)
        state = _Values(placements)
        if not function.regions[0].blocks:
            return
        block = function.regions[0].blocks[0]
        for value, slices in zip(block.arguments, placements, strict=True):
            state.slices[value] = slices
        for op in block.operations:
            if not isinstance(op, PwOp) and not op.operation.name.startswith("pw."):
                self.check_other(op, state)
                continue
            if self.check_operation(op):
                if op.is_symbol:
                    self.error(op, "must stand directly in the module")
                self.check_flow(op, state)

    def check_placements(self, function: ir.OpView) -> list[Slices | None]:
        placements: list[Slices | None] = []
        for what, all_attrs in (
            ("argument", argument_attrs(function)),
            ("result", result_attrs(function)),
        ):
            for number, attrs in enumerate(all_attrs):
                slices = None
                if SLICE in attrs:
                    attribute = attrs[SLICE]
                    if not _is_placement(attribute):
                        self.error(
                            function,
                            f"{what} #{number}: `{SLICE}` must be a slice or a list of "
                            f"different slices, got {attribute}",
                        )
                    else:
                        slices = read_slices(attribute)
                        for name in slices:
                            self.check_symbol(function, SLICE, name, "pw.slice")
                constant = attrs.get("pw.constant")
                if isinstance(constant, ir.FlatSymbolRefAttr):
                    self.check_symbol(function, "pw.constant", constant.value, "pw.constant")
                if what == "argument":
                    placements.append(slices)
        return placements

    def check_other(self, op: ir.OpView, state: _Values) -> None:
        name = op.operation.name
        if not self.module.context.is_registered_operation(name):
            self.error(op, "is unknown: no dialect of this compiler has it")
        self.check_alive(op, state)
        slices = None
        if SLICE in op.attributes:
            if _is_placement(op.attributes[SLICE]):
                slices = read_slices(op.attributes[SLICE])
                for slice_name in slices:
                    self.check_symbol(op, SLICE, slice_name, "pw.slice")
            else:
                got = op.attributes[SLICE]
                self.error(op, f"`{SLICE}` must be a slice or a list of different slices, got {got}")
        for result in op.results:
            state.slices[result] = slices
        self.check_loop(op, state)
        if name == "func.return" and self.moves_are_explicit:
            self.check_returned(op, state)
        for nested in _nested(op):
            if not isinstance(nested, PwOp):
                if not self.module.context.is_registered_operation(nested.operation.name):
                    self.check_operation(nested)
            else:
                self.error(nested, f"must stand directly in a function, not inside '{name}'")

    def check_returned(self, op: ir.OpView, state: _Values) -> None:
        function = op.operation.parent.opview
        for number, (value, wanted) in enumerate(zip(op.operands, result_slices(function), strict=True)):
            have = state.slices.get(value)
            if wanted and have and not set(wanted) <= set(have):
                self.error(
                    op, f"operand #{number} lives on {_names(have)}, result needs it on {_names(wanted)}"
                )

    def check_flow(self, op: ir.OpView, state: _Values) -> None:
        self.check_alive(op, state)
        match op:
            case LaunchOp():
                if self.moves_are_explicit:
                    for number, value in enumerate(op.operands):
                        self.check_operand_slice(op, number, state.slices.get(value), op.slice)
                self.check_donation(op, state)
            case TransferOp():
                self.check_transfer(op, state)
            case SplitOp() | ReduceOp():
                if self.moves_are_explicit and op.slice is not None:
                    for number, value in enumerate(op.operands):
                        self.check_operand_slice(op, number, state.slices.get(value), op.slice)
            case MirrorOp():
                self.check_mirror(op, state)
            case ReleaseOp():
                for value in op.operands:
                    state.ended[value] = "released"
        self.check_loop(op, state)
        for result in op.results:
            state.slices[result] = self.slices_of_result(op, result, state)

    def slices_of_result(self, op: ir.OpView, result: ir.Value, state: _Values) -> Slices | None:
        match op:
            case MirrorOp():
                return joined_slices([state.slices.get(v) for v in op.operands])
            case LaunchOp() | TransferOp():
                return (op.slice,)
            case SplitOp() | ReduceOp():
                return None if op.slice is None else (op.slice,)
        return None

    def check_loop(self, op: ir.OpView, state: _Values) -> None:
        """Checks that values of a microbatch stay in their loop, and notes which loop the results are in."""
        loops = {state.loops[v] for o in (op, *_nested(op)) for v in o.operands if v in state.loops}
        match op:
            case SplitOp():
                for loop in sorted(loops):
                    self.error(op, f"splits a value of a microbatch of @{loop}: loops cannot be nested")
                loops = {op.loop}
            case ReduceOp():
                if loops - {op.loop} or (len(op.operands) == 1 and not loops):
                    self.error(op, f"reduces a value that is not of a microbatch of @{op.loop}")
                return
            case LaunchOp() if op.microbatch is None:
                if op.loop is not None:
                    loops.add(op.loop)
                elif loops:
                    self.error(op, f"reads a value of a microbatch of @{loops.pop()}, but has no `loop`")
            case LaunchOp() | MirrorOp() | ReleaseOp():
                self.refuse_microbatch(op, "reads", loops)
            case _ if op.operation.name == "func.return":
                self.refuse_microbatch(op, "returns", loops)
        if len(loops) > 1:
            first, second = sorted(loops)[:2]
            self.error(op, f"reads values of microbatches of two loops, @{first} and @{second}")
        for loop in loops:
            state.loops.update(dict.fromkeys(op.results, loop))

    def refuse_microbatch(self, op: ir.OpView, verb: str, loops: set[str]) -> None:
        for loop in sorted(loops):
            self.error(op, f"{verb} a value of a microbatch of @{loop}; only pw.reduce may take it out")

    def check_operand_slice(self, op: ir.OpView, number: int, have: Slices | None, need: str) -> None:
        if have is not None and need not in have:
            what = "the launch runs" if isinstance(op, LaunchOp) else "the operation is"
            self.error(
                op,
                f"operand #{number} lives on {_names(have)}, but {what} on @{need}: "
                f"a pw.transfer of it to @{need} is missing",
            )

    def check_transfer(self, op: TransferOp, state: _Values) -> None:
        for value in op.operands:
            self.check_moved(op, state.slices.get(value))
        have = state.slices.get(op.operands[0])
        if op.routes is not None and have is not None:
            self.check_senders(op, have)

    def check_senders(self, op: TransferOp, have: Slices) -> None:
        source = have[0] if op.channel is None else self.symbols[op.channel].src
        devices = read_mesh(self.symbols[self.symbols[source].mesh]).size
        wrong = [number for number in op.routes[1::2] if not 0 <= number < devices]
        if wrong:
            self.error(op, f"`routes` names device {wrong[0]}, but @{source} has {devices}")

    def check_moved(self, op: TransferOp, have: Slices | None) -> None:
        if have is None:
            return
        if op.slice in have:
            self.error(op, f"expected a slice other than its operand's, got @{op.slice}")
        if op.channel is None:
            return
        channel = self.symbols[op.channel]
        assert isinstance(channel, ChannelOp)
        if channel.src not in have:
            self.error(
                op, f"operand lives on {_names(have)}, but channel @{op.channel} starts at @{channel.src}"
            )

    def check_mirror(self, op: MirrorOp, state: _Values) -> None:
        seen: set[str] = set()
        for number, value in enumerate(op.operands):
            have = state.slices.get(value) or ()
            for name in seen.intersection(have):
                self.error(op, f"operand #{number} lives on @{name}, where an earlier operand lives already")
            seen.update(have)

    def check_donation(self, op: LaunchOp, state: _Values) -> None:
        if op.callee not in self.donated:
            self.donated[op.callee] = donated_arguments(self.symbols[op.callee])
        operands = list(op.operands)
        for number in sorted(self.donated[op.callee]):
            value = operands[number]
            if operands.count(value) > 1:
                again = next(n for n, other in enumerate(operands) if n != number and other == value)
                self.error(op, f"donates operand #{number}, which it is also given as operand #{again}")
            state.ended[value] = "donated"

    def check_alive(self, op: ir.OpView, state: _Values) -> None:
        for number, value in enumerate(op.operands):
            if value in state.ended:
                self.error(op, f"operand #{number} is used after it was {state.ended[value]}")


class _Values:
    """What is known of the values of one function so far."""

    def __init__(self, arguments: list[Slices | None]) -> None:
        self.slices: dict[ir.Value, Slices | None] = {}
        self.ended: dict[ir.Value, str] = {}
        self.loops: dict[ir.Value, str] = {}
        """The loop of each value of a microbatch."""


def _is_placement(attribute: ir.Attribute) -> bool:
    if isinstance(attribute, ir.ArrayAttr):
        entries = list(attribute)
        return (
            len(entries) > 0
            and all(isinstance(e, ir.FlatSymbolRefAttr) for e in entries)
            and len({e.value for e in entries}) == len(entries)
        )
    return isinstance(attribute, ir.FlatSymbolRefAttr)


def _nested(op: ir.OpView) -> Iterator[ir.OpView]:
    # Without recursion: text may nest deeper than Python's stack.
    waiting = [op]
    while waiting:
        for region in waiting.pop().regions:
            for block in region.blocks:
                for inner in block.operations:
                    yield inner
                    if inner.regions:
                        waiting.append(inner)


def _names(slices: Slices) -> str:
    return ", ".join(f"@{s}" for s in slices)
