"""The work of the passes is in proportion to the program: calls are counted, and operations looked at."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.passes.import_.import_ import Import
from pathways.passes.manager.base import Pass
from pathways.passes.manager.driver import run_passes
from pathways.passes.pipeline import Options, phases
from pathways.passes.place.group_branches import GroupBranches
from pathways.passes.place.sink_constants import SinkConstants

BENCH = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "compile.py"))

X = "tensor<4xf32>"


def loops(count: int) -> str:
    """Returns a program of loops of JAX, one after the other, each over two slices."""
    call = 'pw.slice = "s{s}", pw.name = "f", pw.kind = "fwd", pw.call = "{n}.{s}"'
    call = f"mhlo.frontend_attributes = {{{{{call}}}}}"
    lines = ["module {", 'sdy.mesh @mesh = <["x"=1]>']
    lines += [f'"pw.slice"() {{sym_name = "s{s}", mesh = @mesh}} : () -> ()' for s in range(2)]
    lines += [
        f"func.func public @main(%x0: {X}) -> {X} {{",
        "%zero = stablehlo.constant dense<0> : tensor<i32>",
    ]
    for n in range(count):
        lines += [
            f"%w{n}:2 = stablehlo.while(%i = %zero, %h = %x{n}) : tensor<i32>, {X}",
            "cond {",
            "%two = stablehlo.constant dense<2> : tensor<i32>",
            "%more = stablehlo.compare LT, %i, %two, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>",
            "stablehlo.return %more : tensor<i1>",
            "} do {",
            f"%y = func.call @f(%h) {{{call.format(s=0, n=n)}}} : ({X}) -> {X}",
            f"%z = func.call @f(%y) {{{call.format(s=1, n=n)}}} : ({X}) -> {X}",
            "%one = stablehlo.constant dense<1> : tensor<i32>",
            "%next = stablehlo.add %i, %one : tensor<i32>",
            f"stablehlo.return %next, %z : tensor<i32>, {X}",
            "}",
            f"%x{n + 1} = stablehlo.tanh %w{n}#1 : {X}",
        ]
    lines += [f"return %x{count} : {X}", "}"]
    lines += [
        f"func.func private @f(%x: {X}) -> {X} {{",
        f"%y = stablehlo.tanh %x : {X}",
        f"return %y : {X}",
        "}",
    ]
    return "\n".join([*lines, "}"])


def work(text: str, passes: Sequence[Pass], monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns the calls that passes make over a program plus the operations that blocks hand to them."""
    module = ir.Module.parse(text, make_context())
    listed = calls = 0
    operations = ir.Block.operations

    def count_operations(block: ir.Block) -> ir.OperationList:
        nonlocal listed
        every = operations.fget(block)
        listed += len(every)
        return every

    def count_calls(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    with monkeypatch.context() as patch:
        patch.setattr(ir.Block, "operations", property(count_operations))
        sys.setprofile(count_calls)
        try:
            run_passes(module, passes, verify_each=False)
        finally:
            sys.setprofile(None)
    return listed + calls


ALL = tuple(item for phase in phases(Options()) for item in phase.passes)


def placed_conditions(count: int) -> str:
    """Returns conditions over slices, right before they are grouped on each slice."""
    module = ir.Module.parse(BENCH["conditions"](count), make_context())
    run_passes(module, ALL[: [item.name for item in ALL].index(GroupBranches.name)])
    return str(module)


@pytest.mark.parametrize(
    ("write", "size", "passes"),
    [
        pytest.param(BENCH["pipeline"], 32, ALL, id="launches"),
        pytest.param(BENCH["update"], 96, ALL, id="operations of the program alone"),
        pytest.param(loops, 10, (Import(),), id="loops over slices"),
        pytest.param(placed_conditions, 10, (GroupBranches(),), id="conditions over slices"),
    ],
)
def test_passes_do_twice_the_work_for_twice_the_program(
    write: Callable[[int], str], size: int, passes: Sequence[Pass], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever is loaded and remembered at first use is so by then.
    work(write(size), passes, monkeypatch)
    some, more, most = (work(write(n * size), passes, monkeypatch) for n in (1, 2, 4))
    assert most - more < 2.1 * (more - some)


def doublings(depth: int) -> str:
    """Returns a program whose first computation hands a constant to its second, doubled many times."""
    chain = [f"%c{n + 1} = stablehlo.add %c{n}, %c{n} : {X}" for n in range(depth)]
    return "\n".join(
        (
            'module attributes {pw.form = "outlined"} {',
            'sdy.mesh @mesh = <["x"=1]>',
            '"pw.slice"() {sym_name = "s", mesh = @mesh} : () -> ()',
            f"func.func @main(%x: {X} {{pw.slice = @s}}) -> ({X} {{pw.slice = @s}}) {{",
            f'%0:2 = "pw.launch"(%x) {{callee = @front, slice = @s}} : ({X}) -> ({X}, {X})',
            f'%1 = "pw.launch"(%0#0, %0#1) {{callee = @back, slice = @s}} : ({X}, {X}) -> {X}',
            f"return %1 : {X}",
            "}",
            f"func.func private @front(%x: {X}) -> ({X}, {X}) {{",
            f"%c0 = stablehlo.constant dense<1.0> : {X}",
            *chain,
            f"%y = stablehlo.tanh %x : {X}",
            f"return %y, %c{depth} : {X}, {X}",
            "}",
            f"func.func private @back(%x: {X}, %c: {X}) -> {X} {{",
            f"%y = stablehlo.add %x, %c : {X}",
            f"return %y : {X}",
            "}",
            "}",
        )
    )


def test_work_grows_with_constants_not_with_the_paths_between_them(monkeypatch):
    less, more = (work(doublings(depth), [SinkConstants()], monkeypatch) for depth in (8, 16))
    assert more < 3 * less
