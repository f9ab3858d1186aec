"""Counts of iterations of loops, which agree with running them."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.passes.analysis.trip_count import Linear, linear, trip_count_of

COMPARE = {
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
    "NE": lambda a, b: a != b,
    "EQ": lambda a, b: a == b,
}

LOOP = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %start = stablehlo.constant dense<{start}> : tensor<i32>
  %other = stablehlo.constant dense<7> : tensor<i32>
  %end = stablehlo.constant dense<{end}> : tensor<i32>
  %0:4 = stablehlo.while(%i = %start, %j = %other, %n = %end, %h = %x)
      : tensor<i32>, tensor<i32>, tensor<i32>, tensor<4xf32>
    cond {{
      %c = stablehlo.compare {direction}, {sides}, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }} do {{
      %step = stablehlo.constant dense<{step}> : tensor<i32>
      %two = stablehlo.constant dense<2> : tensor<i32>
      %next = stablehlo.add %i, %step : tensor<i32>
      %after = stablehlo.subtract %j, %two : tensor<i32>
      stablehlo.return %next, %after, %n, %h : tensor<i32>, tensor<i32>, tensor<i32>, tensor<4xf32>
    }}
  return %0#3 : tensor<4xf32>
}}
"""

MOST = 200
"""Iterations up to which the tests count: more than any loop of the first has that ends."""


def parsed(text: str, **words: object) -> tuple[ir.Module, ir.OpView]:
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(text.format(**words))
    (main,) = module.body.operations
    return module, next(op for op in main.regions[0].blocks[0] if op.operation.name == "stablehlo.while")


@given(
    start=st.integers(-20, 20),
    end=st.integers(-20, 20),
    step=st.integers(-5, 5),
    direction=st.sampled_from(sorted(COMPARE)),
    turned=st.booleans(),
)
def test_trip_count_counts_iterations(start, end, step, direction, turned):
    module, loop = parsed(
        LOOP, start=start, end=end, step=step, direction=direction, sides="%n, %i" if turned else "%i, %n"
    )
    value, count = start, 0
    while count <= MOST and COMPARE[direction](*((end, value) if turned else (value, end))):
        value, count = value + step, count + 1
    trips = trip_count_of(loop)
    if count > MOST:
        assert trips is None
        return
    assert trips is not None
    assert trips.count == count
    # What never changes is a counter too, with nothing added in each iteration.
    assert trips.counters == {0: Linear(None, step, start), 1: Linear(None, -2, 7), 2: Linear(None, 0, end)}
    assert module.operation.verify()


def test_trip_count_refuses_a_counter_that_overflows():
    """Iterations of a loop whose counter wraps round are not counted: it ends where it was not meant to."""
    _, loop = parsed(LOOP, start=2**31 - 10, end=2**31 - 1, step=8, direction="LT", sides="%i, %n")
    assert trip_count_of(loop) is None


NARROW = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %start = stablehlo.constant dense<{start}> : tensor<i32>
  %0:2 = stablehlo.while(%i = %start, %h = %x) : tensor<i32>, tensor<4xf32>
    cond {{
      %factor = stablehlo.constant dense<{factor}> : tensor<{narrow}>
      %end = stablehlo.constant dense<{end}> : tensor<i32>
      %k = stablehlo.convert %i : (tensor<i32>) -> tensor<{narrow}>
      %product = stablehlo.multiply %k, %factor : tensor<{narrow}>
      %wide = stablehlo.convert %product : (tensor<{narrow}>) -> tensor<i32>
      %c = stablehlo.compare LT, %wide, %end, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }} do {{
      %step = stablehlo.constant dense<{step}> : tensor<i32>
      %next = stablehlo.add %i, %step : tensor<i32>
      stablehlo.return %next, %h : tensor<i32>, tensor<4xf32>
    }}
  return %0#1 : tensor<4xf32>
}}
"""


@given(
    start=st.integers(-200, 200),
    end=st.integers(-200, 300),
    step=st.integers(1, 60),
    factor=st.integers(-3, 100),
    narrow=st.sampled_from(["i8", "ui8", "i32", "i64"]),
)
def test_trip_count_counts_what_tests_in_other_types_see(start, end, step, factor, narrow):
    """A test in a type that is too narrow for its numbers sees others: the loop has another count."""
    assume(factor >= 0 or narrow != "ui8")
    _, loop = parsed(NARROW, start=start, end=end, step=step, factor=factor, narrow=narrow)
    dtype = np.dtype({"ui8": "uint8", "i8": "int8", "i32": "int32", "i64": "int64"}[narrow])
    value, count = start, 0
    with np.errstate(over="ignore"):
        while count <= MOST and int(np.array([value]).astype(dtype)[0] * dtype.type(factor)) < end:
            value, count = value + step, count + 1
    trips = trip_count_of(loop)
    assert trips is None or min(trips.count, MOST + 1) == count
    # Nothing was narrowed.
    assert trips is not None or narrow != "i32" or count > MOST


def test_trip_count_reads_a_long_chain_of_doublings_once():
    """Each value is read twice by the next one: the chain has 2**64 paths."""
    lines = [f"%{n + 1} = stablehlo.add %{n}, %{n} : tensor<ui64>" for n in range(64)]
    with make_context(), ir.Location.unknown():
        start = "%0 = stablehlo.convert %x : tensor<ui64>"
        text = "\n".join(
            (
                "func.func @main(%x: tensor<ui64>) -> tensor<ui64> {",
                start,
                *lines,
                "return %64 : tensor<ui64>",
                "}",
            )
        )
        module = ir.Module.parse(text)
        main = module.body.operations[0]
        result = main.regions[0].blocks[0].operations[-1].operands[0]
        assert linear(result) == Linear(main.arguments[0], 1 << 64, 0)
