"""Programs of Shardy's MPMD compiler: run by us, beside other ways to run them.

  python bench/mpmd.py [--json PATH] [--rounds N] [--only TEXT]

It needs Shardy's front end, see `pathways.mpmd`. A training step, 1F1B, as Shardy has partitioned it, runs

- as an imported program, fused or not, against the IFRT IR that Shardy makes of it, walked by bare Python on
  PjRt with the calls that our own launch path makes;
- against the same step written with `pw.jit`.

Then it counts XLA modules, and times `pw-import-mpmd` over 64 and 2,000 launches.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from _ratios import Case, run
from jaxlib.mlir import ir
from pipeline import RATE, Batch, Size, Training, check, layer, loss_of_layer, ours

import pathways
from pathways.dialect import make_context
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.passes.import_.mpmd.import_mpmd import ImportMpmd
from pathways.passes.manager.driver import run_passes
from pathways.runtime.xla import pjrt

FRONT_END = "shardy.integrations.python.jax.mpmd"
SIZES = [Size(stages, 8, width) for stages in (2, 4) for width in (8, 512)]


def partitioned(size: Size, schedule: str = "ONE_FWD_ONE_BWD") -> Any:
    """Returns the output of Shardy's front end for the step of a pipeline."""
    # Makes the front end importable.
    importlib.import_module("pathways.mpmd")
    mpmd = importlib.import_module(FRONT_END)
    registry = importlib.import_module(f"{FRONT_END}.pipeline_registry")
    last = size.stages - 1

    def loss(weights: Sequence[Any], x: Any, y: Any) -> Any:
        for n, w in enumerate(weights[:-1]):
            x = mpmd.named_computation(layer, name=f"stage{n}")(w, x)
        return mpmd.named_computation(loss_of_layer, name=f"stage{last}")(weights[-1], x, y)

    def step(weights: Any, batch: Batch) -> Any:
        blocks = [array.reshape(size.microbatches, size.rows, size.width) for array in batch]
        total: Any = None
        for m in range(size.microbatches):
            value = mpmd.call(lambda *args: jax.value_and_grad(loss)(*args), call_counter=m)(
                weights, blocks[0][m], blocks[1][m]
            )
            total = value if total is None else jax.tree.map(lambda a, b: a + b, total, value)
        scaled = [g / size.microbatches for g in total[1]]
        return total[0] / size.microbatches, [w - RATE * g for w, g in zip(weights, scaled, strict=True)]

    topology = {
        f"mesh{n}": jax.sharding.Mesh(np.array(jax.devices()[n : n + 1]), ("x",)) for n in range(size.stages)
    }
    config = mpmd.make_config(
        topology,
        {f"stage{n}": f"mesh{n}" for n in range(size.stages)},
        name_to_stage_assignment={f"stage{n}": n for n in range(size.stages)},
        pipeline_schedule=registry.get_pipeline_schedule(schedule),
    )
    return mpmd.jit(step, config, donate_argnums=0).lower(size.weights(), size.batch())


@dataclasses.dataclass(frozen=True)
class Action:
    """Operation of IFRT IR: a launch, or copies, from and to slots."""

    run: Callable[[list[Any]], list[Any]]
    operands: list[int]
    results: list[int]
    dead: list[int]


class IfrtWalk:
    """IFRT IR of a program, interpreted operation by operation in Python, like its executable."""

    def __init__(self, lowered: Any) -> None:
        module = lowered.compiler_ir("ifrt")
        self.devices = {name: list(mesh.devices.flat) for name, mesh in lowered.topology.items()}
        self.modules = {
            op.attributes["sym_name"].value: op
            for op in module.body.operations
            if op.operation.name == "builtin.module"
        }
        (main,) = (op for op in module.body.operations if op.operation.name == "func.func")
        block = main.regions[0].blocks[0]
        self.slots: dict[ir.Value, int] = {}
        self.where: dict[int, str] = {}
        names = list(lowered.topology)
        for argument in block.arguments:
            # `[2, 3]` are numbers of devices, mesh by mesh.
            first = int(re.search(r", \[([0-9]+)", str(argument.type))[1])
            self.where[self.slot(argument)] = names[first]
        *operations, terminator = block.operations
        self.arguments = len(block.arguments)
        self.compiled: dict[tuple[str, str], Any] = {}
        last: dict[int, int] = {}
        plain = []
        for number, op in enumerate(operations):
            operands = [self.slot(v) for v in op.operands if "ifrt.array" in str(v.type)]
            results = [self.slot(v) for v in op.results if "ifrt.array" in str(v.type)]
            last.update(dict.fromkeys(operands, number))
            plain.append((self.action(op, operands, results), operands, results))
        self.returned = [self.slots[v] for v in terminator.operands]
        kept = {*self.returned, *range(self.arguments)}
        self.actions = [
            Action(act, operands, results, [s for s in {*operands} if last[s] == n and s not in kept])
            for n, (act, operands, results) in enumerate(plain)
        ]

    def slot(self, value: ir.Value) -> int:
        return self.slots.setdefault(value, len(self.slots))

    def action(self, op: Any, operands: list[int], results: list[int]) -> Callable[[list[Any]], list[Any]]:
        if op.operation.name == "ifrt.Call":
            mesh = op.attributes["ifrt.mesh_name"].value
            self.where.update(dict.fromkeys(results, mesh))
            return self.launch(op.attributes["callee"].value[0], mesh)
        assert op.operation.name == "ifrt.CopyArrays", op.operation.name
        first = int(re.search(r", \[([0-9]+)", str(op.results[0].type))[1])
        mesh = list(self.devices)[first]
        self.where.update(dict.fromkeys(results, mesh))
        device = self.devices[mesh][0]
        count = len(results)
        to = [pjrt.device_list([device])] * count, [self.sharding(mesh)] * count, [pjrt.ALWAYS_COPY] * count
        return lambda arrays: pjrt.copy_arrays(arrays, *to)

    def sharding(self, mesh: str) -> Any:
        return jax.sharding.SingleDeviceSharding(self.devices[mesh][0])

    def launch(self, name: str, mesh: str) -> Callable[[list[Any]], list[Any]]:
        if (name, mesh) not in self.compiled:
            devices = self.devices[mesh]
            module = ir.Module.parse(str(self.modules[name]), make_context())
            (main,) = (op for op in module.body.operations if op.operation.name == "func.func")
            types = [ir.RankedTensorType(type_) for type_ in main.type.results]
            options = pjrt.compile_options(devices, len(main.type.inputs), len(types))
            executable, _ = pjrt.compile_and_load(bytecode_of(module), devices, options)
            avals = [jax.core.ShapedArray(tuple(t.shape), np.float32) for t in types]
            handlers = [pjrt.result_handler(aval, self.sharding(mesh), name) for aval in avals]
            self.compiled[name, mesh] = executable.execute_sharded, handlers
        execute, handlers = self.compiled[name, mesh]
        return lambda arrays: execute(arrays).consume_with_handlers(handlers)

    def __call__(self, weights: Any, batch: Batch) -> Any:
        values: dict[int, Any] = dict(enumerate([*weights, *batch]))
        for action in self.actions:
            results = action.run([values[slot] for slot in action.operands])
            values.update(zip(action.results, results, strict=True))
            for slot in action.dead:
                del values[slot]
        loss, *updated = (values[slot] for slot in self.returned)
        return loss, updated


def cases() -> Iterator[Case]:
    """Yields the cases of the table."""
    for size in SIZES:
        lowered = partitioned(size)
        devices = [mesh.devices.flat[0] for mesh in lowered.topology.values()]
        imported = Training(pathways.from_mpmd(lowered).compile(), size, devices)
        walked = Training(IfrtWalk(lowered), size, devices)
        written, _ = ours(size)
        fused = Training(pathways.from_mpmd(lowered, fuse=True).compile(), size, devices)
        check(imported, fused, walked, written)
        yield Case(f"{size}", "IFRT IR on PjRt", 0.8, imported, walked, is_return_timed=False)
        yield Case(f"{size}, fuse", "IFRT IR on PjRt", 0.8, fused, walked, is_return_timed=False)
        yield Case(f"{size}", "pw.jit", 1.2, imported, written, is_return_timed=False)
        yield Case(f"{size}, fuse", "pw.jit", 1.2, fused, written, is_return_timed=False)


def report_modules() -> None:
    """Counts the modules that XLA compiles for a step."""
    for schedule, target in (("ONE_FWD_ONE_BWD", 11), ("ZERO_BUBBLE_H1", 10)):
        lowered = partitioned(Size(4, 8, 8), schedule)
        compiled = pathways.from_mpmd(lowered).compile()
        count = len({c for c, _ in compiled.executable.loaded.executables})
        walked = len(IfrtWalk(lowered).compiled)
        print(f"XLA modules, S=4 M=8, {schedule}: {count} (target {target}), of Shardy's {walked}")


def report_import() -> None:
    """Times the import of programs of many launches, whose bodies are all written out."""
    for launches, target in ((64, 0.05), (2000, 0.5)):
        text = module_of(launches)
        took = []
        for _ in range(5):
            module = ir.Module.parse(text, make_context())
            began = time.perf_counter()
            run_passes(module, [ImportMpmd()], verify_each=False)
            took.append(time.perf_counter() - began)
        seconds = statistics.median(took)
        print(f"pw-import-mpmd, {launches} launches: {seconds:.3f} s (target {target})")


def module_of(launches: int) -> str:
    """Returns a program of Shardy's with some fragments, which go through 4 meshes in turn."""
    tensor = [f"!m{n}" for n in range(4)]
    lines = [f'!m{n} = !mpmd.mesh_tensor<"mesh{n}", tensor<8x4xf32>>' for n in range(4)]
    topology = ", ".join(f'<"mesh{n}" : <["x"=1]>>' for n in range(4))
    returned = tensor[(launches - 1) % 4]
    lines.append(f"func.func @main(%0: !m0) -> {returned}")
    lines.append(f"    attributes {{topology = #mpmd.topology<{topology}>}} {{")
    value = 0
    for n in range(launches):
        here = tensor[n % 4]
        if n:
            lines.append(f"  %{value + 1} = mpmd.transfer %{value} : ({tensor[(n - 1) % 4]}) -> {here}")
            value += 1
        lines += [
            f'  %{value + 1} = mpmd.fragment<mesh="mesh{n % 4}", origin=["f"], stage={n % 4}> (%{value}) '
            f"{{call_counter = {n // 4} : ui32}} (%v: tensor<8x4xf32>) {{",
            "    %a = stablehlo.tanh %v : tensor<8x4xf32>",
            "    %b = stablehlo.add %a, %v : tensor<8x4xf32>",
            "    mpmd.return %b : tensor<8x4xf32>",
            f"  }} : ({here}) -> {here}",
        ]
        value += 1
    lines += [f"  return %{value} : {returned}", "}"]
    return "\n".join(lines)


if __name__ == "__main__":
    run(__doc__ or "", cases, cpu_devices=4, rounds=50)
    report_modules()
    report_import()
