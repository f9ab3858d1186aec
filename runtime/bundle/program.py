"""The MLIR of a bundle: its scheduled program, and the computations as portable artifacts. Never imports jax.

MLIR's C++ trusts its input in places. What comes from a stranger is read here first in a process of its own;
see `runtime.bundle.examine`.
"""

from __future__ import annotations

import dataclasses
import graphlib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import (
    donated_arguments,
    form_of,
    make_context,
    ops_named,
    referenced_symbols,
    symbol_table,
)
from pathways.dialect.attributes.names import MAIN
from pathways.dialect.operations.operation import is_text, parts_of, printed, symbol_name
from pathways.dialect.syntax.bytecode import copy_of
from pathways.dialect.verification.forms import PARTS
from pathways.dialect.verification.wellformed import type_problem
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.schedule.verify_schedule import VerifySchedule
from pathways.runtime.bundle.file import PROGRAM, Bundle
from pathways.runtime.bundle.manifest import VERSION_OF_PARTS, BundleError, Constant, Leaf
from pathways.runtime.plan.lower import array_type, plan_of
from pathways.runtime.plan.parts import PartCalls, calls_of
from pathways.runtime.plan.plan import Argument, ArrayType, Plan, Result
from pathways.runtime.plan.stored import Stored, StoredComputation

_LAPACK = ("potrf", "geqrf", "geev", "gees", "gehrd", "geqp3", "gesdd", "gesvd", "getrf", "gtsv", "trsm")
_LAPACK_REAL = ("orgqr", "ormqr", "syevd", "sytrd")
_LAPACK_COMPLEX = ("ungqr", "unmqr", "heevd", "hetrd")

_IDENTITIES = (
    "Sharding",
    "annotate_device_placement",
    "xla.sdy.FuncResultSharding",
    "xla.sdy.PropagationBarrier",
)
"""Marks of a value: one operand, one result, one type. XLA relies on that without asking."""

CUSTOM_CALLS = frozenset(
    [f"lapack_{kind}{routine}_ffi" for kind, routine in itertools.product("sdcz", _LAPACK)]
    + [f"lapack_{kind}{routine}_ffi" for kind, routine in itertools.product("sd", _LAPACK_REAL)]
    + [f"lapack_{kind}{routine}_ffi" for kind, routine in itertools.product("cz", _LAPACK_COMPLEX)]
    + [
        f"{vendor}solver_{routine}_ffi"
        for vendor, routine in itertools.product(
            ("cu", "hip"),
            (
                "getrf",
                "geqrf",
                "orgqr",
                "ormqr",
                "potrf",
                "geev",
                "syevd",
                "gesvd",
                "gesvdj",
                "gesvdp",
                "sytrd",
                "syrk",
            ),
        )
    ]
    + [
        "tridiagonal_solve_perturbed_ffi",
        "hipsolver_gesdd_ffi",
        "cusparse_gtsv2_ffi",
        "cu_threefry2x32_ffi",
        "hip_threefry2x32_ffi",
    ]
    + ["cu_lu_pivots_to_permutation", "hip_lu_pivots_to_permutation"]
    # Linear algebra and selection on TPU.
    + ["Eigh", "Qr", "ProductOfElementaryHouseholderReflectors", "LuDecomposition", "ApproxTopK"]
    # Marks that XLA itself removes: shardings, and manual parts of a program.
    + [*_IDENTITIES, "SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.ShardingGroup"]
    + ["xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"]
    + ["local_xla.sdy.GlobalToLocalShape", "local_xla.sdy.LocalToGlobalShape"]
)
"""The custom calls that an untrusted computation may make: what `jax.numpy` and `jax.lax` lower to, and
nothing that runs code from the file (Pallas kernels) or calls into Python."""

_FRONTEND = "mhlo.frontend_attributes"
_DIALECTS = ("builtin", "func", "stablehlo")
_FORBIDDEN = frozenset(f"stablehlo.{name}" for name in ("infeed", "outfeed", "send", "recv"))
_FORMER_NAMES = {"soon": "overlap_with_loop"}
"""What bundles of earlier releases call attributes of steps, and what these are called now."""

_STEPS = ("pw.launch", "pw.transfer", "pw.mirror", "pw.release", "func.return")


@dataclasses.dataclass(frozen=True)
class StoredPart:
    """A part of a program in a bundle, or all of it.

    Attributes:
      module: the program in scheduled form.
      plan: the same as a plan; its computations are artifacts, which nobody has looked into.
      stored: what the module declares only.
    """

    module: ir.Module
    plan: Plan
    stored: Stored


@dataclasses.dataclass(frozen=True)
class StoredProgram:
    """The program in a bundle.

    Attributes:
      parts: its parts by name, in their order; one without a name where it has none.
      calls: what runs the parts; None where it has none.
    """

    parts: Mapping[str, StoredPart]
    calls: PartCalls | None

    @property
    def plan(self) -> Plan:
        """The plan that is shown of it: that of a chunk where it has parts."""
        return self.parts[self.calls.repeated if self.calls else ""].plan


def stored_name(part: str, name: str) -> str:
    """What the manifest calls a computation or constant of a part."""
    return f"{part}::{name}" if part else name


def read_program(bundle: Bundle) -> StoredProgram:
    """The scheduled program of a bundle, each part of it proved free of deadlock.

    Raises:
      BundleError: it is no such program, or not what the manifest says.
    """
    try:
        text = bytes(bundle.program).decode()
    except UnicodeDecodeError:
        raise _error(bundle, f"{PROGRAM} is not UTF-8 text") from None
    context = make_context()
    with Diagnostics(context) as seen:
        try:
            module = ir.Module.parse(text, context)
            modules = _modules_in(bundle, module)
            for part in modules.values():
                _check_shape(bundle, part)
                _rename_attributes(part)
            run_passes(module, [VerifySchedule()])
        except (ir.MLIRError, PassFailure):
            first = seen.errors[0] if seen.errors else None
            line = f", line {first.position.line}" if first and first.position else ""
            what = " ".join(first.message.split()) if first else "cannot be parsed"
            raise _error(bundle, f"{PROGRAM}{line}: {what[:500]}") from None
    _check_declarations(bundle, modules)
    artifacts, constants = bundle.artifacts(), bundle.constants()
    listed = {computation.name: computation for computation in bundle.manifest.computations}
    parts = {}
    for name, part in modules.items():
        computations = {
            function: StoredComputation(bytes(artifacts[full]), listed[full].local, listed[full].effects)
            for function, full in ((f, stored_name(name, f)) for f in _declared(part))
        }
        own = {c.sym_name: constants[stored_name(name, c.sym_name)] for c in ops_named(part, ["pw.constant"])}
        stored = Stored(computations, own)
        called = f"{bundle.manifest.name}_{name}" if name else bundle.manifest.name
        part = copy_of(part) if name else part
        parts[name] = StoredPart(part, plan_of(part, called, stored, proved=True), stored)
    program = StoredProgram(parts, None if "" in parts else calls_of(module))
    _check_plans(bundle, program)
    return program


def check_artifacts(bundle: Bundle, program: StoredProgram) -> None:
    """Checks that each artifact is the computation that the program declares, and makes no foreign calls.

    Raises:
      BundleError: names the computation, and the call.
    """
    context = make_context()
    calls: set[str] = set()
    known = {
        stored_name(part, name): computation
        for part, stored in program.parts.items()
        for name, computation in stored.plan.computations.items()
    }
    for name, data in bundle.artifacts().items():
        what = f"computation '{name}'"
        computation = _parse_artifact(bundle, what, bytes(data), context)
        _check_operations(bundle, what, computation)
        calls |= custom_calls(computation)
        main = symbol_table(computation).get("main")
        if main is None or main.operation.name != "func.func":
            raise _error(bundle, f"{what} has no function @main")
        declared = known[name]
        sides = main.type.inputs, main.type.results
        has_others = any(type_problem(type_) is not None for side in sides for type_ in side)
        if has_others or [tuple(map(array_type, s)) for s in sides] != [declared.operands, declared.results]:
            raise _error(
                bundle, f"{what} is of type {main.type}, which differs from what the program declares"
            )
        if sorted(donated_arguments(main)) != list(declared.donated):
            raise _error(bundle, f"{what} donates other arguments than the program declares")
    _same(bundle, "custom calls", set(bundle.manifest.custom_calls), calls)


def artifact_of(bundle: Bundle, name: str) -> ir.Module:
    """A computation of a bundle as StableHLO.

    Raises:
      BundleError: its artifact is none that this release reads.
    """
    return _parse_artifact(bundle, f"computation '{name}'", bytes(bundle.artifacts()[name]), make_context())


def custom_calls(module: ir.Module) -> set[str]:
    """The targets of all custom calls in a module of StableHLO."""
    targets = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "stablehlo.custom_call":
            targets.add(op.attributes["call_target_name"].value)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return targets


def read_artifact(data: bytes, context: ir.Context | None = None) -> ir.Module:
    """The StableHLO of a portable artifact.

    Raises:
      MLIRError, ValueError, RuntimeError: it is none that this release reads.
    """
    return stablehlo.deserialize_portable_artifact(context or make_context(), data)


def _error(bundle: Bundle, message: str) -> BundleError:
    return BundleError(f"{bundle.path}: {message}")


def _parse_artifact(bundle: Bundle, what: str, data: bytes, context: ir.Context) -> ir.Module:
    with Diagnostics(context) as seen:
        try:
            return read_artifact(data, context)
        except (ir.MLIRError, ValueError, RuntimeError) as error:
            first = seen.errors[0].message if seen.errors else str(error)
            message = " ".join(first.split())[:300]
            raise _error(bundle, f"{what} is not an artifact that this release can read: {message}") from None


def _calls_itself(module: ir.Module) -> bool:
    """Whether a function of a module calls itself, by others or not; XLA would follow it for ever."""
    calls: dict[str, set[str]] = {}
    for function in ops_named(module, ["func.func"]):
        called = calls[function.attributes["sym_name"].value] = set()

        def visit(op: ir.Operation, called: set[str] = called) -> ir.WalkResult:
            called.update(referenced_symbols(op))
            return ir.WalkResult.ADVANCE

        function.operation.walk(visit)
    try:
        tuple(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError:
        return True
    return False


def _check_operations(bundle: Bundle, what: str, module: ir.Module) -> None:
    problem = problem_of(module)
    if problem is not None:
        raise _error(bundle, f"{what} {problem}")


def problem_of(
    module: ir.Module,
    holder: str = "a bundle",
    dialects: Collection[str] = _DIALECTS,
    advice: str = "; if you trust where the bundle comes from, load it with trust=True (--trust)",
) -> str | None:
    """Finds in an untrusted computation what makes XLA crash, hang or run other code; None if nothing.

    Args:
      module: StableHLO.
      holder: what the computation came in.
      dialects: the dialects that it may use.
      advice: what to do about a call that is not allowed.
    """
    if not is_text(printed(module)):
        return "holds a name or a string that is not UTF-8 text"
    names = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        names.add(op.name)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for name in sorted(names):
        if name.partition(".")[0] not in dialects or name in _FORBIDDEN:
            return f"has an operation that {holder} may not have: {name}"
    for function in ops_named(module, ["func.func"]):
        if not function.regions[0].blocks:
            return f"has a function without a body: @{symbol_name(function)}"
    if _calls_itself(module):
        return "has a function that calls itself"
    for target in sorted(custom_calls(module) - CUSTOM_CALLS):
        return f"calls {target[:100]!r}, which is not among the calls that JAX makes by itself{advice}"
    return _problem_of_marks(module)


def _problem_of_marks(module: ir.Module) -> str | None:
    """Checks the marks and attributes of shardings, which XLA reads with less care than MLIR its own."""
    operations: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        operations.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in operations:
        target = op.attributes["call_target_name"].value if op.name == "stablehlo.custom_call" else ""
        types = [[value.type for value in values] for values in (op.operands, op.results)]
        if target in _IDENTITIES and (len(types[0]) != 1 or types[0] != types[1]):
            return f"calls {target!r} on anything but one value"
        for text in _shardings(op):
            try:
                ir.Attribute.parse(text, module.context)
            except ir.MLIRError:
                return f"has an invalid sharding: {text[:100]!r}"
    return None


def _shardings(op: ir.Operation) -> list[str]:
    """The attributes of Shardy that an artifact carries as text: on operations and on arguments."""
    texts: list[str] = []
    holders = [[op.attributes.get(_FRONTEND)]]
    for name in ("arg_attrs", "res_attrs") if op.name == "func.func" else ():
        values = op.attributes.get(name) or ()
        holders.append([named.attr for attrs in values for named in attrs if named.name == _FRONTEND])
    for attributes in itertools.chain(*holders):
        for named in attributes if isinstance(attributes, ir.DictAttr) else ():
            if named.name.startswith("xla.sdy."):
                text = named.attr
                texts.append(text.value if isinstance(text, ir.StringAttr) else str(text))
    return texts


def _modules_in(bundle: Bundle, module: ir.Module) -> dict[str, ir.Module]:
    """The parts of a program by name; one without a name where it has none."""
    if bundle.manifest.version != VERSION_OF_PARTS:
        return {"": module}
    if form_of(module) != PARTS.name:
        raise _error(bundle, f"{PROGRAM} is not in the form {PARTS.name}")
    functions = [symbol_name(op) for op in ops_named(module, ["func.func"])]
    if functions != ["main"]:
        raise _error(bundle, f"{PROGRAM} has functions beside its parts other than @main")
    parts = parts_of(module)
    names = [symbol_name(part.operation.opview) or "" for part in parts]
    if not all(names) or len(set(names)) < len(names):
        raise _error(bundle, f"{PROGRAM} has parts without a name, or two of one name")
    return dict(zip(names, parts, strict=True))


def _check_shape(bundle: Bundle, module: ir.Module) -> None:
    """Checks that the module is a flat program and declarations, before anything relies on it."""
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
    """Gives attributes of steps that an earlier release wrote the names that they have now."""
    blocks = [block for op in ops_named(module, ["func.func"]) for block in op.regions[0].blocks]
    for step in itertools.chain.from_iterable(block.operations for block in blocks):
        for old, new in _FORMER_NAMES.items():
            if old in step.attributes:
                step.attributes[new] = step.attributes[old]
                del step.attributes[old]


def _declared(module: ir.Module) -> list[str]:
    """The names of the computations that a module declares."""
    return [n for op in ops_named(module, ["func.func"]) if (n := op.attributes["sym_name"].value) != MAIN]


def _check_declarations(bundle: Bundle, modules: Mapping[str, ir.Module]) -> None:
    manifest = bundle.manifest
    declared = [stored_name(part, name) for part, module in modules.items() for name in _declared(module)]
    _same(bundle, "computations", sorted(c.name for c in manifest.computations), sorted(declared))
    constants = [
        Constant(stored_name(part, op.sym_name), *_shape_and_dtype(array_type(op.value.type)))
        for part, module in modules.items()
        for op in ops_named(module, ["pw.constant"])
    ]
    _same(bundle, "constants", list(manifest.constants), constants)
    for module in modules.values():
        overlap = [(op.sym_name, bool(op.overlap)) for op in ops_named(module, ["pw.slice"])]
        _same(bundle, "slices", [(s.name, s.overlap) for s in manifest.slices], overlap)


def _check_plans(bundle: Bundle, program: StoredProgram) -> None:
    manifest = bundle.manifest
    plans = {name: part.plan for name, part in program.parts.items()}
    for plan in plans.values():
        slices = {name: (s.axis_names, s.shape, s.island) for name, s in plan.slices.items()}
        _same(bundle, "slices", {s.name: (s.axis_names, s.shape, s.island) for s in manifest.slices}, slices)
    names = [computation.name for computation in manifest.computations]
    planned = [stored_name(part, name) for part, plan in plans.items() for name in plan.computations]
    _same(bundle, "computations", names, planned)
    if program.calls is None:
        passed = [argument for argument in program.plan.arguments if argument.constant is None]
        results: Sequence[Result] = program.plan.results
    else:
        passed, results = program.calls.ports(plans)
    _same(bundle, "arguments", *_leaves(manifest.arguments, passed))
    _same(bundle, "results", *_leaves(manifest.results, results))


def _leaves(
    leaves: Iterable[Leaf], values: Iterable[Argument | Result]
) -> tuple[Sequence[object], Sequence[object]]:
    said = [(leaf.buffer, leaf.donated, set(leaf.slices)) for leaf in leaves]
    planned = [(v.type, isinstance(v, Argument) and v.donated, set(v.slots)) for v in values]
    return said, planned


def _same(bundle: Bundle, what: str, said: object, actual: object) -> None:
    if said != actual:
        raise _error(bundle, f"the {what} in the manifest are not those of the program")


def _shape_and_dtype(type_: ArrayType) -> tuple[tuple[int, ...], str]:
    return type_.shape, type_.dtype
