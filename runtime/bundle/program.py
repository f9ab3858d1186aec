"""The MLIR of a bundle: its scheduled program, and the computations as portable artifacts. Never imports jax.

MLIR's C++ code trusts its input in places, so an untrusted bundle is read in a separate process first; see
`runtime.bundle.examine`.
"""

from __future__ import annotations

import dataclasses
import graphlib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import (
    argument_attrs,
    donated_arguments,
    form_of,
    make_context,
    nested_ops,
    ops_named,
    referenced_symbols,
    result_attrs,
    symbol_table,
)
from pathways.dialect.attributes.names import MAIN, MEMORY_KIND
from pathways.dialect.operations.operation import is_text, parts_of, printed, symbol_name
from pathways.dialect.syntax.bytecode import copy_of
from pathways.dialect.verification.forms import PARTS
from pathways.dialect.verification.wellformed import type_problem
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.schedule.verify_schedule import VerifySchedule
from pathways.runtime.bundle.custom_calls import BUNDLE_CALLS, problem_of_call, refusal, refused_in
from pathways.runtime.bundle.file import PROGRAM, Bundle
from pathways.runtime.bundle.manifest import VERSION_OF_SUB_PROGRAMS, BundleError, Constant, Leaf
from pathways.runtime.bundle.shardy_markers import FRONTEND, parse_attribute, problem_of_markers
from pathways.runtime.plan.lower import array_type, plan_of
from pathways.runtime.plan.plan import Argument, ArrayType, Launch, Plan, Result
from pathways.runtime.plan.stored import Stored, StoredComputation
from pathways.runtime.plan.sub_programs import SubProgramCalls, calls_of

_DIALECTS = ("builtin", "func", "stablehlo")
_FORBIDDEN = frozenset(f"stablehlo.{name}" for name in ("infeed", "outfeed", "send", "recv"))
_FORMER_NAMES = {"soon": "overlap_with_loop"}
"""Names of attributes of steps in bundles of earlier releases, each with its name of today."""

_STEPS = ("pw.launch", "pw.transfer", "pw.mirror", "pw.release", "func.return")


@dataclasses.dataclass(frozen=True)
class StoredSubProgram:
    """Sub-program in a bundle, or the whole program.

    Attributes:
      module: the program in scheduled form.
      plan: its plan; the computations are artifacts that are not checked yet.
      stored: the contents that the module only declares.
    """

    module: ir.Module
    plan: Plan
    stored: Stored


@dataclasses.dataclass(frozen=True)
class StoredProgram:
    """Program in a bundle.

    Attributes:
      sub_programs: its sub-programs by name, in their order; a program without any is one with the name "".
      calls: the calls of the sub-programs; None in a program without any.
    """

    sub_programs: Mapping[str, StoredSubProgram]
    calls: SubProgramCalls | None

    @property
    def plan(self) -> Plan:
        """The plan that reports show; with sub-programs, the plan of the first repeated one."""
        return self.sub_programs[self.calls.repeated if self.calls else ""].plan


def stored_name(sub_program: str, name: str) -> str:
    """Returns the name in the manifest of a computation or constant of a sub-program."""
    return f"{sub_program}::{name}" if sub_program else name


def read_program(bundle: Bundle) -> StoredProgram:
    """Returns the scheduled program of a bundle, each sub-program proved free of deadlock.

    Raises:
      BundleError: it is not such a program, or differs from the manifest.
    """
    try:
        text = bytes(bundle.program).decode()
    except UnicodeDecodeError:
        raise _error(bundle, f"{PROGRAM} is not UTF-8 text") from None
    context = make_context()
    with Diagnostics(context) as diagnostics:
        try:
            module = ir.Module.parse(text, context)
            modules = _modules_in(bundle, module)
            # Before the pass, which relies on the shape.
            for sub_module in modules.values():
                _check_shape(bundle, sub_module)
                _rename_attributes(sub_module)
            run_passes(module, [VerifySchedule()])
        except (ir.MLIRError, PassFailure):
            first = diagnostics.errors[0] if diagnostics.errors else None
            line = f", line {first.position.line}" if first and first.position else ""
            reason = " ".join(first.message.split()) if first else "cannot be parsed"
            raise _error(bundle, f"{PROGRAM}{line}: {reason[:500]}") from None
    _check_declarations(bundle, modules)
    artifacts, constants = bundle.artifacts(), bundle.constants()
    listed = {computation.name: computation for computation in bundle.manifest.computations}
    sub_programs = {}
    for name, sub_module in modules.items():
        computations = {
            function: StoredComputation(bytes(artifacts[full]), listed[full].local, listed[full].effects)
            for function, full in ((f, stored_name(name, f)) for f in _declared(sub_module))
        }
        constants_of_program = {
            constant.sym_name: constants[stored_name(name, constant.sym_name)]
            for constant in ops_named(sub_module, ["pw.constant"])
        }
        stored = Stored(computations, constants_of_program)
        program_name = f"{bundle.manifest.name}_{name}" if name else bundle.manifest.name
        sub_module = copy_of(sub_module) if name else sub_module
        plan = plan_of(sub_module, program_name, stored, proved=True)
        sub_programs[name] = StoredSubProgram(sub_module, plan, stored)
    program = StoredProgram(sub_programs, None if "" in sub_programs else calls_of(module))
    _check_plans(bundle, program)
    return program


def check_artifacts(bundle: Bundle, program: StoredProgram) -> None:
    """Checks that each artifact is the computation that the program declares, with allowed calls alone.

    Raises:
      BundleError: the message names the computation, and the call.
    """
    context = make_context()
    calls: set[str] = set()
    declared_computations = {
        stored_name(sub_program, name): computation
        for sub_program, stored in program.sub_programs.items()
        for name, computation in stored.plan.computations.items()
    }
    memories = {
        stored_name(sub_program, step.computation): [
            tuple(map(stored.plan.memory_kind, slots)) for slots in (step.operands, step.results)
        ]
        for sub_program, stored in program.sub_programs.items()
        for step in stored.plan.steps
        if isinstance(step, Launch)
    }
    for name, data in bundle.artifacts().items():
        subject = f"computation '{name}'"
        computation = _parse_artifact(bundle, subject, bytes(data), context)
        _check_operations(bundle, subject, computation)
        calls |= custom_calls(computation)
        main = symbol_table(computation).get("main")
        if main is None or main.operation.name != "func.func":
            raise _error(bundle, f"{subject} has no function @main")
        declared = declared_computations[name]
        sides = main.type.inputs, main.type.results
        # `array_type` accepts valid tensor types only.
        is_invalid = any(type_problem(type_) is not None for side in sides for type_ in side)
        if is_invalid or [tuple(map(array_type, s)) for s in sides] != [declared.operands, declared.results]:
            raise _error(
                bundle, f"{subject} is of type {main.type}, which differs from what the program declares"
            )
        kinds = [
            tuple(attrs[MEMORY_KIND].value if MEMORY_KIND in attrs else None for attrs in ports)
            for ports in (argument_attrs(main), result_attrs(main))
        ]
        if kinds != memories[name]:
            raise _error(bundle, f"{subject} is for other memory than the program declares")
        if sorted(donated_arguments(main)) != list(declared.donated):
            raise _error(bundle, f"{subject} donates other arguments than the program declares")
    _check_same(bundle, "custom calls", set(bundle.manifest.custom_calls), calls)


def artifact_of(bundle: Bundle, name: str) -> ir.Module:
    """Returns a computation of a bundle as StableHLO.

    Raises:
      BundleError: this release cannot read its artifact.
    """
    return _parse_artifact(bundle, f"computation '{name}'", bytes(bundle.artifacts()[name]), make_context())


def _called_by_custom_calls(module: ir.Module) -> set[str]:
    """Returns the functions that custom calls in a module refer to."""
    return {
        str(symbol).removeprefix("@")
        for op in nested_ops(module.operation.opview)
        if op.operation.name == "stablehlo.custom_call"
        for symbol in op.operation.attributes.get("called_computations") or ()
    }


def custom_calls(module: ir.Module) -> set[str]:
    """Returns the targets of all custom calls in a module of StableHLO."""
    return {
        op.attributes["call_target_name"].value
        for op in nested_ops(module.operation.opview)
        if op.operation.name == "stablehlo.custom_call"
    }


def read_artifact(data: bytes, context: ir.Context | None = None) -> ir.Module:
    """Returns the StableHLO of a portable artifact.

    Raises:
      MLIRError, ValueError, RuntimeError: this release cannot read it.
    """
    return stablehlo.deserialize_portable_artifact(context or make_context(), data)


def _error(bundle: Bundle, message: str) -> BundleError:
    return BundleError(f"{bundle.path}: {message}")


def _parse_artifact(bundle: Bundle, subject: str, data: bytes, context: ir.Context) -> ir.Module:
    with Diagnostics(context) as diagnostics:
        try:
            return read_artifact(data, context)
        except (ir.MLIRError, ValueError, RuntimeError) as error:
            first = diagnostics.errors[0].message if diagnostics.errors else str(error)
            message = " ".join(first.split())[:300]
            raise _error(
                bundle, f"{subject} is not an artifact that this release can read: {message}"
            ) from None


def _calls_itself(module: ir.Module) -> bool:
    """Returns whether any function of a module calls itself, directly or not; XLA would inline it forever."""
    calls: dict[str, set[str]] = {}
    for function in ops_named(module, ["func.func"]):
        calls[function.attributes["sym_name"].value] = {
            symbol for op in (function, *nested_ops(function)) for symbol in referenced_symbols(op)
        }
    try:
        tuple(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError:
        return True
    return False


def _check_operations(bundle: Bundle, subject: str, module: ir.Module) -> None:
    problem = problem_of(module)
    if problem is not None:
        raise _error(bundle, f"{subject} {problem}")


def problem_of(
    module: ir.Module,
    holder: str = "a bundle",
    dialects: Collection[str] = _DIALECTS,
    calls: Collection[str] = BUNDLE_CALLS,
    advice: str = "; if you trust where the bundle comes from, load it with trust=True (--trust)",
) -> str | None:
    """Returns the problem of an untrusted computation that could make XLA crash, hang or run other code.

    Args:
      module: StableHLO.
      holder: the container of the computation, for messages.
      dialects: the dialects that it may use.
      calls: the custom calls that it may make.
      advice: the remedy for a call that is not allowed.

    Returns:
      The end of a sentence about the computation; None if it has no problem.
    """
    # First: the checks below read names and strings, which the bindings cannot decode otherwise.
    text = printed(module)
    if not is_text(text):
        # Some calls have pointers among their strings.
        refused = refused_in(text)
        return f"{refusal(refused)}{advice}" if refused else "holds a name or a string that is not UTF-8 text"
    names = {op.operation.name for op in nested_ops(module.operation.opview)}
    for name in sorted(names):
        # Groups of devices may be axes of a mesh.
        is_known = name == "sdy.mesh" or name.partition(".")[0] in dialects
        if not is_known or name in _FORBIDDEN:
            return f"has an operation that {holder} may not have: {name}"
    defined = set()
    for function in ops_named(module, ["func.func"]):
        if not function.regions[0].blocks:
            return f"has a function without a body: @{symbol_name(function)}"
        defined.add(symbol_name(function))
    if _calls_itself(module):
        return "has a function that calls itself"
    # MLIR verifies the symbols of `func.call` alone.
    for name in sorted(_called_by_custom_calls(module) - defined):
        return f"has a custom call of an unknown function: @{name}"
    for target in sorted(custom_calls(module).difference(calls)):
        return f"{refusal(target)}{advice}"
    problem = _problem_of_values(module)
    return problem_of_markers(module) if problem is None and b"xla.sdy." in text else problem


def _problem_of_values(module: ir.Module) -> str | None:
    """Returns the problem of custom calls and of attributes of shardings, which XLA reads without checks."""
    # The module, too, has attributes.
    for view in (module.operation.opview, *nested_ops(module.operation.opview)):
        op = view.operation
        problem = problem_of_call(op) if op.name == "stablehlo.custom_call" else None
        if problem is not None:
            return problem
        for text in _shardings(op):
            if parse_attribute(text, module.context) is None:
                return f"has an invalid sharding: {text[:100]!r}"
    return None


def _shardings(op: ir.Operation) -> list[str]:
    """Returns the attributes of Shardy that an artifact has as text, on operations and on arguments."""
    texts: list[str] = []
    holders = [[op.attributes.get(FRONTEND)]]
    for name in ("arg_attrs", "res_attrs") if op.name == "func.func" else ():
        values = op.attributes.get(name) or ()
        holders.append([named.attr for attrs in values for named in attrs if named.name == FRONTEND])
    for attributes in itertools.chain(*holders):
        for named in attributes if isinstance(attributes, ir.DictAttr) else ():
            if named.name.startswith("xla.sdy."):
                text = named.attr
                texts.append(text.value if isinstance(text, ir.StringAttr) else str(text))
    return texts


def _modules_in(bundle: Bundle, module: ir.Module) -> dict[str, ir.Module]:
    """Returns the sub-programs of a program by name; a program without any has the name ""."""
    if bundle.manifest.version != VERSION_OF_SUB_PROGRAMS:
        return {"": module}
    if form_of(module) != PARTS.name:
        raise _error(bundle, f"{PROGRAM} is not in the form {PARTS.name}")
    functions = [symbol_name(op) for op in ops_named(module, ["func.func"])]
    if functions != ["main"]:
        raise _error(bundle, f"{PROGRAM} has functions beside its sub-programs other than @main")
    modules = parts_of(module)
    names = [symbol_name(each.operation.opview) or "" for each in modules]
    if not all(names) or len(set(names)) < len(names):
        raise _error(bundle, f"{PROGRAM} has sub-programs without a name, or two of one name")
    return dict(zip(names, modules, strict=True))


def _check_shape(bundle: Bundle, module: ir.Module) -> None:
    """Checks that the module has a flat `@main` and declarations alone."""
    if form_of(module) != "scheduled":
        raise _error(bundle, f"{PROGRAM} is not in the form scheduled")
    mains = 0
    for op in module.body.operations:
        if op.operation.name != "func.func":
            continue
        blocks = op.regions[0].blocks
        if op.attributes["sym_name"].value != "main":
            if blocks:
                raise _error(
                    bundle, f"{PROGRAM} has a body for {op.attributes['sym_name']}; computations are members"
                )
            continue
        mains += 1
        if len(blocks) != 1:
            raise _error(bundle, f"{PROGRAM}: @main has {len(blocks)} blocks, not one")
        for step in blocks[0].operations:
            if step.operation.name not in _STEPS:
                raise _error(
                    bundle, f"{PROGRAM}: @main has a {step.operation.name}, which is not a step of a program"
                )
    if mains != 1:
        raise _error(bundle, f"{PROGRAM} has no function @main")


def _rename_attributes(module: ir.Module) -> None:
    """Renames attributes of steps that an earlier release wrote to their names of today."""
    blocks = [block for op in ops_named(module, ["func.func"]) for block in op.regions[0].blocks]
    for step in itertools.chain.from_iterable(block.operations for block in blocks):
        for old, new in _FORMER_NAMES.items():
            if old in step.attributes:
                step.attributes[new] = step.attributes[old]
                del step.attributes[old]


def _declared(module: ir.Module) -> list[str]:
    """Returns the names of the computations that a module declares."""
    return [n for op in ops_named(module, ["func.func"]) if (n := op.attributes["sym_name"].value) != MAIN]


def _check_declarations(bundle: Bundle, modules: Mapping[str, ir.Module]) -> None:
    manifest = bundle.manifest
    declared = [stored_name(name, f) for name, module in modules.items() for f in _declared(module)]
    _check_same(bundle, "computations", sorted(c.name for c in manifest.computations), sorted(declared))
    constants = [
        Constant(stored_name(name, op.sym_name), *_shape_and_dtype(array_type(op.value.type)))
        for name, module in modules.items()
        for op in ops_named(module, ["pw.constant"])
    ]
    _check_same(bundle, "constants", list(manifest.constants), constants)
    for module in modules.values():
        overlap = [(op.sym_name, bool(op.overlap)) for op in ops_named(module, ["pw.slice"])]
        _check_same(bundle, "slices", [(s.name, s.overlap) for s in manifest.slices], overlap)


def _check_plans(bundle: Bundle, program: StoredProgram) -> None:
    manifest = bundle.manifest
    plans = {name: sub_program.plan for name, sub_program in program.sub_programs.items()}
    for plan in plans.values():
        slices = {name: (s.axis_names, s.shape, s.island) for name, s in plan.slices.items()}
        _check_same(
            bundle, "slices", {s.name: (s.axis_names, s.shape, s.island) for s in manifest.slices}, slices
        )
    names = [computation.name for computation in manifest.computations]
    planned = [
        stored_name(name, computation) for name, plan in plans.items() for computation in plan.computations
    ]
    _check_same(bundle, "computations", names, planned)
    ports = program.calls.plan_of_ports(manifest.name, plans) if program.calls else program.plan
    passed = [argument for argument in ports.arguments if argument.constant is None]
    _check_same(bundle, "arguments", *_leaves(manifest.arguments, passed))
    _check_same(bundle, "results", *_leaves(manifest.results, ports.results))


def _leaves(
    leaves: Iterable[Leaf], values: Iterable[Argument | Result]
) -> tuple[Sequence[object], Sequence[object]]:
    listed = [(leaf.buffer, leaf.donated, set(leaf.slices), leaf.memory_kind) for leaf in leaves]
    planned = [(v.type, isinstance(v, Argument) and v.donated, set(v.slots), v.memory_kind) for v in values]
    return listed, planned


def _check_same(bundle: Bundle, kind: str, listed: object, actual: object) -> None:
    if listed != actual:
        raise _error(bundle, f"the {kind} in the manifest are not those of the program")


def _shape_and_dtype(type_: ArrayType) -> tuple[tuple[int, ...], str]:
    return type_.shape, type_.dtype
