"""`pw-import-mpmd`: from the output of Shardy's MPMD compiler to launches and transfers."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy

from pathways.dialect import LaunchOp, argument_attrs, make_slices, ops_named, result_attrs, symbol_table
from pathways.dialect.attributes.meshes import Mesh
from pathways.dialect.attributes.names import (
    ALIASING,
    DONATED,
    DONOR,
    MAIN,
    MEMORY_KIND,
    OVERLAP,
    SHARDING,
    SLICE,
    TOPOLOGY,
)
from pathways.dialect.operations.operation import symbol_name
from pathways.dialect.verification.forms import MPMD, PLACED
from pathways.passes.analysis.functions import body_block, drop_empty_constraints
from pathways.passes.import_.mpmd.callbacks import keep_callbacks_together
from pathways.passes.import_.mpmd.fragments import FragmentComputations, Origins, constrain
from pathways.passes.import_.mpmd.layouts import MpmdLayouts, retarget
from pathways.passes.import_.mpmd.main_function import Port, rebuild_main, tidy_module
from pathways.passes.import_.mpmd.mesh_tensors import (
    MeshTensor,
    NotMpmdError,
    read_mesh_tensor,
    read_topology,
)
from pathways.passes.import_.mpmd.moves import Moves, Placed
from pathways.passes.import_.mpmd.refusals import (
    refuse_cpu_meshes,
    refuse_ports,
    refuse_type,
    refuse_unpartitioned,
)
from pathways.passes.import_.mpmd.slices import Home, declare_slices
from pathways.passes.manager.base import Pass, fail

_CALL = "mpmd.fragment_call"
_FRAGMENT = "mpmd.fragment"


@dataclasses.dataclass(frozen=True)
class ImportMpmd(Pass):
    """Imports a program partitioned by Shardy's MPMD compiler, in the order of its schedule.

    1. Each mesh of the `topology` becomes a `pw.slice`; equal ones share an `sdy.mesh`. A `mesh_tensor`
       becomes a tensor on that slice with the sharding of the type.
    2. A `fragment_call`, or a `fragment`, whose body becomes a function, becomes a `pw.launch`. Equal
       functions become one; a function that is called with other shardings gets a variant.
    3. Where a fragment states them, its launch has `origins`: forward or backward by how often the named
       computation was transposed, recomputed with `remat`, the stage, the call counter as the microbatch, and
       the half of a backward that was split. A fragment that Shardy inferred has none: it is glue, and its
       function has the name of the function of the user that most of its locations state.
    4. A `transfer` becomes a `pw.transfer`; within a mesh, or repeated to one, a launch that reshards.
    5. Donated arguments become `pw.donated`. Donation by computations is dropped, since it is
       planned anew, and host callbacks run on one device again, which Shardy has forgotten.

    Without a sharding in its type a value is replicated beside a `fragment_call`, and has the sharding that
    `pw-propagate-shardings` decides beside a `fragment`, which Shardy has not propagated through yet.

    ```mlir
    // before
    %0 = mpmd.fragment_call<mesh="mesh1", origin=["f"]> @f(%arg0) : (!mpmd.mesh_tensor<"mesh1", ...
    %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, ...
    // after
    %0 = pw.launch @f(%arg0) on @mesh1 [fwd]
    %1 = pw.transfer %0 to @mesh2
    ```

    Requires: one function with a `topology`, of fragments and transfers alone; arrays in the memory of the
    device.
    Guarantees: placed form; `@main` in the order in which it was.
    """

    name: ClassVar[str] = "pw-import-mpmd"
    input_forms = (MPMD,)
    output_form = PLACED
    always_verified = True

    def run(self, module: ir.Module) -> None:
        refuse_unpartitioned(module)
        function = _program(module)
        topology = _topology(function)
        refuse_cpu_meshes(function, topology)
        _Importer(module, function, topology).run()
        tidy_module(module)


def _program(module: ir.Module) -> ir.OpView:
    """Returns the function that Shardy has partitioned, as `@main`."""
    functions = [op for op in ops_named(module, ["func.func"]) if TOPOLOGY in op.attributes]
    if not functions:
        fail(module.operation, "has no function with a `topology`, the program")
    if len(functions) > 1:
        names = " and ".join(f"@{symbol_name(op)}" for op in functions[:2])
        fail(functions[1], f"has a `topology`, as does another function: {names}; a program is one function")
    (function,) = functions
    body_block(function)
    if symbol_name(function) != MAIN:
        if MAIN in symbol_table(module):
            fail(function, f"has the `topology`, but there is an @{MAIN} besides it")
        function.attributes["sym_name"] = ir.StringAttr.get(MAIN)
    return function


def _topology(function: ir.OpView) -> dict[str, Mesh]:
    try:
        return read_topology(function.attributes[TOPOLOGY])
    except NotMpmdError as error:
        fail(function, f"`{TOPOLOGY}` {error}")


class _Importer:
    """Builds `@main` anew, operation by operation."""

    def __init__(self, module: ir.Module, function: ir.OpView, topology: dict[str, Mesh]) -> None:
        self.module = module
        self.function = function
        overlapping = function.attributes.get(OVERLAP) or ()
        with function.location:
            self.homes = declare_slices(module, topology, [name.value for name in overlapping])
        self.symbols = symbol_table(module)
        self.operations = list(body_block(function).operations)
        fragments = [op for op in self.operations if op.operation.name in (_CALL, _FRAGMENT)]
        self.origins = Origins(fragments, symbol_name(module.operation.opview) or "")
        self.computations = FragmentComputations(module, self.symbols)
        self.layouts = MpmdLayouts(self.symbols)
        # Beside bodies Shardy has not propagated yet.
        self.is_open = any(op.operation.name == _FRAGMENT for op in fragments)
        self.types: dict[ir.Type, MeshTensor] = {}
        self.values: dict[ir.Value, ir.Value] = {}
        self.moves = Moves(module, self.symbols, is_open=self.is_open)

    def run(self) -> None:
        old = self.function
        inputs = [self.type(old, f"argument #{n}", type_) for n, type_ in enumerate(old.type.inputs)]
        results = [self.type(old, f"result #{n}", type_) for n, type_ in enumerate(old.type.results)]
        attrs, result_entries = argument_attrs(old), result_attrs(old)
        refuse_ports(old, "argument", attrs, inputs)
        refuse_ports(old, "result", result_entries, results)
        rebuild_main(
            old,
            self.ports("argument", attrs, inputs),
            self.ports("result", result_entries, results),
            self.operations,
            self.values,
            self.build,
        )

    def type(self, op: ir.OpView, subject: str, type_: ir.Type) -> MeshTensor:
        """Reads the type of a value."""
        if type_ not in self.types:
            try:
                value = read_mesh_tensor(type_)
            except NotMpmdError as error:
                fail(op, f"{subject} {error}")
            if value is None:
                refuse_type(op, subject, type_)
            if value.mesh not in self.homes:
                fail(op, f'{subject} is on the mesh "{value.mesh}", which the topology does not have')
            self.types[type_] = value
        return self.types[type_]

    def ports(
        self, side: str, all_attrs: list[dict[str, ir.Attribute]], values: list[MeshTensor]
    ) -> list[Port]:
        """Returns the arguments or results as they are in the placed form."""
        ports: list[Port] = []
        for number, (attrs, value) in enumerate(zip(all_attrs, values, strict=True)):
            home = self.homes[value.mesh]
            port = {
                name: attribute
                for name, attribute in attrs.items()
                if name not in (ALIASING, DONOR, SHARDING, MEMORY_KIND) and not name.startswith("mhlo.")
            }
            port[SLICE] = make_slices([home.slice])
            if ALIASING in attrs or DONOR in attrs:
                port[DONATED] = ir.UnitAttr.get()
            stated = dataclasses.replace(value, sharding=value.sharding or attrs.get(SHARDING))
            layout = self.layout(self.function, f"{side} #{number}", stated)
            if layout is not None:
                port[SHARDING] = layout
            ports.append((value.type, port))
        return ports

    def layout(self, op: ir.OpView, subject: str, value: MeshTensor) -> ir.Attribute | None:
        """Returns the sharding of a value over its slice."""
        read = self.layouts.of if self.is_open else self.layouts.closed
        return read(op, subject, value.sharding, value.type, self.homes[value.mesh])

    def build(self, op: ir.OpView) -> None:
        """Builds the replacement of an operation."""
        match op.operation.name:
            case "mpmd.fragment" | "mpmd.fragment_call":
                self.build_launch(op)
            case "mpmd.transfer":
                self.build_transfer(op)
            case "func.return":
                func.ReturnOp([self.values[value] for value in op.operands], loc=op.location)
            case _:
                for number, result in enumerate(op.results):
                    if read_mesh_tensor(result.type) is None:
                        refuse_type(op, f"result #{number}", result.type)
                fail(op, "is outside of a fragment, where a partitioned program may only have transfers")

    def build_launch(self, op: ir.OpView) -> None:
        mesh = op.attributes["mesh_name"].value
        if mesh not in self.homes:
            fail(op, f'runs on the mesh "{mesh}", which the topology does not have')
        home = self.homes[mesh]
        operands = [self.type(op, f"operand #{n}", value.type) for n, value in enumerate(op.operands)]
        results = [self.type(op, f"result #{n}", value.type) for n, value in enumerate(op.results)]
        if op.operation.name == _FRAGMENT:
            callee = self.outlined(op, home, operands, results)
        else:
            callee = self.called(op, home, operands, results)
        launch = LaunchOp.build(
            [self.values[value] for value in op.operands],
            [value.type for value in results],
            callee=callee,
            slice=home.slice,
            origins=self.origins.of(op),
            loc=op.location,
        )
        self.values.update(zip(op.results, launch.results, strict=True))

    def outlined(
        self, op: ir.OpView, home: Home, operands: list[MeshTensor], results: list[MeshTensor]
    ) -> str:
        """Returns the computation of a fragment with a body."""
        stated = []
        for side, name, values in (
            ("operand", "in_shardings", operands),
            ("result", "out_shardings", results),
        ):
            each = _shardings(op, name) or [value.sharding for value in values]
            stated.append(
                tuple(
                    self.layouts.of(op, f"{side} #{n}", sharding, value.type, home)
                    for n, (sharding, value) in enumerate(zip(each, values, strict=True))
                )
            )
        base = self.origins.base_name(op)
        callee = self.computations.outlined(op, base)
        function = self.symbols[callee]
        self.prepare(function, home)
        constrain(function, *stated)
        return self.computations.shared(callee, base)

    def called(self, op: ir.OpView, home: Home, operands: list[MeshTensor], results: list[MeshTensor]) -> str:
        """Returns the computation of a call, in the variant for its shardings."""
        callee = op.attributes["callee"].value
        function = self.symbols.get(callee)
        if function is None or function.operation.name != "func.func":
            fail(op, f"calls @{callee}, which is not a function of the module")
        if not function.regions[0].blocks:
            fail(op, f"calls @{callee}, which is only declared")
        if not self.computations.is_known(callee):
            self.prepare(function, home)
        arguments = tuple(self.layout(op, f"operand #{n}", value) for n, value in enumerate(operands))
        returned = tuple(self.layout(op, f"result #{n}", value) for n, value in enumerate(results))
        return self.computations.variant(callee, arguments, returned)

    def prepare(self, function: ir.OpView, home: Home) -> None:
        """Lets a body of Shardy's be that of a computation on a slice."""
        drop_empty_constraints(function, self.symbols)
        if len({home.mesh.symbol for home in self.homes.values()}) > 1:
            retarget(function, home, self.symbols)
        keep_callbacks_together(self.module, function, home, self.symbols)

    def build_transfer(self, op: ir.OpView) -> None:
        source = self.type(op, "operand #0", op.operands[0].type)
        target = self.type(op, "result #0", op.results[0].type)
        refuse_ports(op, "result", [{}], [target])
        home = self.homes[target.mesh]
        held = self.layout(op, "operand #0", source)
        placed = Placed(self.values[op.operands[0]], self.homes[source.mesh], held)
        self.values[op.results[0]] = self.moves.move(op, placed, home, self.layout(op, "result #0", target))


def _shardings(op: ir.OpView, name: str) -> list[ir.Attribute] | None:
    """Returns the shardings of operands or results in a fragment; None where it has none."""
    attribute = op.attributes.get(name)
    return None if attribute is None else list(sdy.TensorShardingPerValueAttr(attribute).shardings)
