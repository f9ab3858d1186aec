"""`pw-import-ifrt`: from IFRT IR, which Shardy's MPMD compiler sends to runtimes, to launches."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from pathways.dialect import LaunchOp, argument_attrs, make_slices, ops_named, result_attrs, symbol_table
from pathways.dialect.attributes.names import DONATED, IFRT_FUNCTION, MAIN, SHARDING, SLICE
from pathways.dialect.attributes.shardings import make_sharding
from pathways.dialect.operations.operation import symbol_name
from pathways.dialect.verification.forms import IFRT, PLACED
from pathways.passes.analysis.functions import body_block, drop_empty_constraints
from pathways.passes.import_.mpmd.atom_programs import flatten, function_of
from pathways.passes.import_.mpmd.callbacks import keep_callbacks_together
from pathways.passes.import_.mpmd.fragments import FragmentComputations, Layouts
from pathways.passes.import_.mpmd.ifrt_arrays import DeviceIds, IfrtArray, read_devices
from pathways.passes.import_.mpmd.ifrt_slices import CALL, CONTROL, ArrayTypes, SliceMeshes, described
from pathways.passes.import_.mpmd.layouts import retarget
from pathways.passes.import_.mpmd.main_function import Port, rebuild_main, tidy_module
from pathways.passes.import_.mpmd.mesh_tensors import MeshTensor
from pathways.passes.import_.mpmd.moves import Moves, Placed
from pathways.passes.import_.mpmd.refusals import refuse_ports
from pathways.passes.import_.mpmd.slices import Home, declare_slices
from pathways.passes.manager.base import Pass, fail

_OF_ARGUMENT = "ifrt.donated"
_MOVES = ("ifrt.CopyArrays", "ifrt.Reshard")


@dataclasses.dataclass(frozen=True)
class ImportIfrt(Pass):
    """Imports a program in IFRT IR, to which Shardy's MPMD compiler lowers programs for a runtime.

    1. Each list of devices becomes a `pw.slice`, over the mesh of the computations on it; without one, over
       the coarsest that its shardings need. An array becomes a tensor on that slice with the sharding of its
       type.
    2. An `ifrt.Call` becomes a `pw.launch`, in the order of the program. The functions of its atom program
       move into the module; one that is called with other shardings gets a variant.
    3. `ifrt.CopyArrays` and `ifrt.Reshard` become a `pw.transfer` for each array; within a slice, a launch
       that reshards. `ifrt.After` and control values go: the order of each slice is that of the program.
    4. Arguments with `ifrt.donated` become `pw.donated`. The donations of calls are checked and dropped,
       since they are planned anew.

    `pw.device_ids` of the function lists the devices that the program numbers from 0. Slices that have some
    of them in common overlap.

    ```mlir
    // before
    %outputs, %control_output = ifrt.Call @f::@main(%arg0) on devices [0, 1] ...
    %outputs_0, %control_output_1 = ifrt.CopyArrays(%outputs) after %control_output ...
    // after
    %0 = pw.launch @f(%arg0) on @first ...
    %1 = pw.transfer %0 to @second ...
    ```

    Requires: one function with `ifrt.function`, of these operations alone; arrays in the memory of the
    device.
    Guarantees: placed form; `@main` in the order in which it was.
    """

    name: ClassVar[str] = "pw-import-ifrt"
    input_forms = (IFRT,)
    output_form = PLACED
    always_verified = True

    def run(self, module: ir.Module) -> None:
        _IfrtImporter(module, ifrt_function(module)).run()
        tidy_module(module)


def ifrt_function(module: ir.Module) -> ir.OpView:
    """Returns the main function of a program in IFRT IR.

    Raises:
      PassFailure: there is none, or it has another name.
    """
    functions = [op for op in ops_named(module, ["func.func"]) if IFRT_FUNCTION in op.attributes]
    if not functions:
        fail(module.operation, f"has no function with an `{IFRT_FUNCTION}`, the program")
    for function in functions:
        if symbol_name(function) != MAIN:
            fail(
                function,
                f"has the `{IFRT_FUNCTION}`, but is @{symbol_name(function)}; the program has to be @{MAIN}",
            )
    body_block(functions[0])
    return functions[0]


class _IfrtImporter:
    """Builds `@main` anew, operation by operation."""

    def __init__(self, module: ir.Module, function: ir.OpView) -> None:
        self.module = module
        self.function = function
        self.operations = list(body_block(function).operations)
        self.types = ArrayTypes()
        meshes = SliceMeshes(module, function, self.types)
        named = meshes.topology()
        flatten(module, [op for op in self.operations if op.operation.name == CALL])
        with function.location:
            topology = {name: mesh for name, (_, mesh) in named.items()}
            homes = declare_slices(module, topology, meshes.overlapping(named))
        self.homes: dict[DeviceIds, Home] = {devices: homes[name] for name, (devices, _) in named.items()}
        self.symbols = symbol_table(module)
        self.computations = FragmentComputations(module, self.symbols)
        self.moves = Moves(module, self.symbols)
        self.meshes: dict[str, Home] = {}
        self.values: dict[ir.Value, ir.Value] = {}
        self.donated: set[ir.Value] = set()

    def run(self) -> None:
        old = self.function
        inputs = [self.types.of(old, f"argument #{n}", type_) for n, type_ in enumerate(old.type.inputs)]
        results = [self.types.of(old, f"result #{n}", type_) for n, type_ in enumerate(old.type.results)]
        arguments = self.ports("argument", argument_attrs(old), inputs)
        returned = self.ports("result", result_attrs(old), results)
        rebuild_main(old, arguments, returned, self.operations, self.values, self.build)

    def ports(
        self, side: str, all_attrs: list[dict[str, ir.Attribute]], arrays: list[IfrtArray]
    ) -> list[Port]:
        """Returns the arguments or results as they are in the placed form."""
        refuse_memory(self.function, side, all_attrs, arrays)
        ports: list[Port] = []
        for number, (attrs, array) in enumerate(zip(all_attrs, arrays, strict=True)):
            port = {name: attribute for name, attribute in attrs.items() if name.startswith("jax.")}
            port[SLICE] = make_slices([self.homes[array.devices].slice])
            if _OF_ARGUMENT in attrs:
                port[DONATED] = ir.UnitAttr.get()
            layout = self.layout(self.function, f"{side} #{number}", array)
            if layout is not None:
                port[SHARDING] = layout
            ports.append((array.type, port))
        return ports

    def layout(self, op: ir.OpView, subject: str, array: IfrtArray) -> ir.Attribute | None:
        """Returns the sharding of an array over its slice."""
        mesh = self.homes[array.devices].mesh
        if array.sharding is None or mesh.mesh.size == 1:
            return None
        if array.sharding.is_partial:
            fail(op, f"{subject} is in partial sums, which only Shardy adds up: {array.sharding}")
        sharding = array.sharding.over(mesh.mesh)
        place = f"{subject} cannot be sharded over {described(mesh.mesh)} as {array.sharding}"
        if sharding is None:
            fail(op, f"{place}: it divides an axis")
        problem = sharding.problem(array.type.shape, mesh.mesh)
        if problem is not None:
            fail(op, f"{place}: {problem}")
        return make_sharding(mesh.symbol, sharding)

    def layouts(self, op: ir.OpView, side: str, arrays: list[IfrtArray]) -> Layouts:
        """Returns the shardings of all operands or results of an operation."""
        refuse_memory(op, side, [{}] * len(arrays), arrays)
        return tuple(self.layout(op, f"{side} #{n}", array) for n, array in enumerate(arrays))

    def build(self, op: ir.OpView) -> None:
        """Builds the replacement of an operation."""
        for number, value in enumerate(op.operands):
            if value in self.donated:
                fail(op, f"operand #{number} was donated to an earlier operation")
        match op.operation.name:
            case "ifrt.Call":
                self.build_launch(op)
            case "ifrt.CopyArrays" | "ifrt.Reshard":
                self.build_moves(op)
            case "ifrt.After":
                pass
            case "func.return":
                func.ReturnOp([self.values[value] for value in op.operands], loc=op.location)
            case _:
                fail(op, f"cannot be imported; only {CALL}, {', '.join(_MOVES)} and ifrt.After can")

    def build_launch(self, op: ir.OpView) -> None:
        """Builds the launch of a call."""
        home = self.homes.get(read_devices(op.attributes["devices"]))
        operands, results = self.types.of_operands(op), self.types.of_results(op)
        for array in (*operands, *results):
            if self.homes[array.devices] is not home:
                fail(
                    op, f"has an array on devices {list(array.devices)}, which are not those that it runs on"
                )
        if home is None:
            fail(op, "has neither operands nor results, so that nothing says over which mesh it runs")
        arguments = self.layouts(op, "operand", operands)
        returned = self.layouts(op, "result", results)
        callee = function_of(op, self.symbols)
        self.prepare(op, callee, home)
        values = [value for value in op.operands if str(value.type) != CONTROL]
        launch = LaunchOp.build(
            [self.values[value] for value in values],
            [array.type for array in results],
            callee=self.computations.variant(callee, arguments, returned),
            slice=home.slice,
            loc=op.location,
        )
        # The last result is a control value.
        self.values.update(zip(list(op.results)[:-1], launch.results, strict=True))
        donated = list(ir.DenseI32ArrayAttr(op.attributes["donated_input_indices"]))
        donated += [ir.DenseI32ArrayAttr(pair)[0] for pair in op.attributes["io_aliases"]]
        self.donated.update(values[number] for number in donated)

    def prepare(self, op: ir.OpView, callee: str, home: Home) -> None:
        """Prepares the function of an atom program as a computation on a slice."""
        function = self.symbols[callee]
        if callee in self.meshes:
            if self.meshes[callee].mesh.mesh != home.mesh.mesh:
                fail(op, f"calls @{callee} on devices of another mesh than an earlier call")
            return
        self.meshes[callee] = home
        body_block(function)
        drop_empty_constraints(function, self.symbols)
        retarget(function, home, self.symbols)
        keep_callbacks_together(self.module, function, home, self.symbols)

    def build_moves(self, op: ir.OpView) -> None:
        """Builds a transfer, or a launch that reshards, for each array."""
        sources, targets = self.types.of_operands(op), self.types.of_results(op)
        layouts = self.layouts(op, "operand", sources), self.layouts(op, "result", targets)
        arrays = zip(op.operands, op.results, sources, targets, *layouts, strict=False)
        for operand, result, source, target, before, after in arrays:
            if source.type != target.type:
                fail(op, f"moves a {source.type}, but its result is a {target.type}")
            placed = Placed(self.values[operand], self.homes[source.devices], before)
            self.values[result] = self.moves.move(op, placed, self.homes[target.devices], after)
        if "donated" in op.attributes and op.attributes["donated"].value:
            self.donated.update(list(op.operands)[: len(sources)])


def refuse_memory(
    op: ir.OpView, side: str, all_attrs: list[dict[str, ir.Attribute]], arrays: list[IfrtArray]
) -> None:
    """Refuses arrays in other memory than the device's, or with a layout of their own.

    Raises:
      PassFailure: there is one.
    """
    values = [MeshTensor("", array.type, None, array.memory_kind) for array in arrays]
    refuse_ports(op, side, all_attrs, values)
    for number, array in enumerate(arrays):
        if array.layout not in (None, "auto", "default"):
            fail(op, f"{side} #{number} has the layout {array.layout}; only XLA's default is supported")
