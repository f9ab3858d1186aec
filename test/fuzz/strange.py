"""Values, types, symbols and shardings that are valid in IR, but that a compiler may not expect."""

from __future__ import annotations

import random

import syntax

INTEGERS = (
    *("0", "1", "2", "3", "7", "64", "-1", "-2", "1000", "1000000", "2147483647", "2147483648", "4294967296"),
    *("-2147483649", "9223372036854775807", "-9223372036854775808", "4611686018427387904"),
)
STRINGS = (
    *('""', '"s0"', '"s1"', '"main"', '"x"', '"fwd"', '"bwd"', '"glue"', '"recompute"', '"mean"', '"sum"'),
    *(
        '"concat"',
        '"named"',
        '"placed"',
        '"scheduled"',
        '"imported"',
        '"1f1b"',
        '"-1"',
        '"2"',
        '"1e9"',
        '"0x1"',
    ),
    *(
        r'"\E9"',
        r'"a\00b"',
        r'"\0A"',
        r'"\22"',
        r'"%d{}"',
        '"\N{GREEK SMALL LETTER ALPHA}"',
        '"a b"',
        '"@s0"',
    ),
    *('"9223372036854775807"', '"99999999999999999999999"', '"s0,s1"', "\"P('x')\"", '"[]"', '"null"'),
)
SYMBOLS = (
    "@s0",
    "@s1",
    "@main",
    "@mesh",
    "@nowhere",
    '@""',
    r'@"\E9"',
    '@"a b"',
    "@a::@b",
    "@s0::@s0",
    "@main::@s1",
)
FURTHER_VALUES = (
    *(
        "unit",
        "true",
        "false",
        "1.5 : f32",
        "0x7FC00000 : f32",
        "1.0 : f64",
        "1 : i32",
        "-1 : i1",
        "1 : index",
    ),
    *("3 : si64", "255 : ui8", "170141183460469231731687303715884105727 : i128", "i32", "none", "index"),
    *("tensor<4xf32>", "tensor<?xf32>", "tensor<*xf32>", "tensor<0xf32>", "() -> ()", "(i32) -> tensor<f32>"),
    *("memref<4xf32>", "!stablehlo.token", "!sdy.nothing", "tuple<>", "complex<f32>"),
    *('loc("file":1:1)', "loc(unknown)", 'loc("name")', "[]", "[[]]", "[unit]", '["s0"]', '["fwd", "bwd"]'),
    *('[1, "x", @s0]', "[@s0]", "[@s0, @s0]", "[@s0, @s1]", "[@s0, @nowhere]", "[@a::@b]", r'["\E9"]'),
    *("{}", "{x = 1}", '{pw.slice = "s0"}', "[{}]", "[{}, {}]", "[{pw.slice = @s0}]", "[1, 2]"),
    *("array<i64>", "array<i64: 0>", "array<i64: 0, 1>", "array<i64: 0, 0, 1, 1>", "array<i64: -1, 0>"),
    *("array<i64: 0, 1000000>", "array<i64: 9223372036854775807, 0>", "array<i32: 0, 1>", "array<i1: true>"),
    *("array<f32: 0.5>", "dense<1> : tensor<4xi32>", "dense<1.0> : tensor<f32>", "dense<> : tensor<0xf32>"),
    *("dense<1.0> : tensor<1000000x1000000xf32>", "dense<true> : tensor<2xi1>", "dense<1> : vector<4xi32>"),
    *(
        "dense<(1.0,2.0)> : tensor<2xcomplex<f32>>",
        "dense_resource<r> : tensor<4xf32>",
        "dense<1.5> : tensor<2xbf16>",
    ),
    *(
        'dense<"a"> : tensor<2x!stablehlo.token>',
        "dense<[1, 2]> : tensor<2xi4>",
        "dense<1.0> : tensor<2xf8E4M3FN>",
    ),
    *("dense<1> : tensor<2xui4>", "dense<7> : tensor<3xindex>", "sparse<[[0]], [1.0]> : tensor<4xf32>"),
    *(
        "affine_map<(d0) -> (d0)>",
        "affine_set<(d0) : (d0 >= 0)>",
        "strided<[1]>",
        "distinct[0]<unit>",
        "#nothing.at<all>",
    ),
    *('#sdy.sharding<@mesh, [{"x"}, {}]>', "#sdy.sharding<@mesh, []>", "#sdy.sharding<@nowhere, [{}]>"),
    *(
        '#sdy.sharding<mesh<["x"=2]>, [{"x"}]>',
        "#sdy.sharding_per_value<[<@mesh, [{}]>]>",
        '#sdy.mesh<["x"=2]>',
    ),
    *('#sdy<manual_axes{"x"}>', "#stablehlo<precision DEFAULT>", "#stablehlo.bounds<4>"),
)
TYPES = (
    *("tensor<f32>", "tensor<?xf32>", "tensor<*xf32>", "tensor<0xf32>", "tensor<4x0xf32>", "tensor<1xf32>"),
    *(
        "tensor<3xf32>",
        "tensor<7x5xf32>",
        "tensor<8x8xf32>",
        "tensor<2x2x2x2x2x2xf32>",
        "tensor<4xi4>",
        "tensor<4xi1>",
    ),
    *(
        "tensor<4xbf16>",
        "tensor<4xcomplex<f32>>",
        "tensor<4xcomplex<i32>>",
        "tensor<4xindex>",
        "tensor<4xui32>",
    ),
    *(
        "tensor<4xsi8>",
        "tensor<4xi3>",
        "tensor<4xi128>",
        "tensor<4xf80>",
        "tensor<4xtf32>",
        "tensor<4xf8E5M2>",
    ),
    *("tensor<4xf4E2M1FN>", "tensor<4x!stablehlo.token>", "tensor<4xvector<2xf32>>", "tensor<2x?xf32>"),
    *("tensor<9223372036854775807xf32>", "tensor<9223372036854775807x4xf32>", "tensor<1000000x1000000xf32>"),
    *("tensor<4294967296x4294967296xf32>", "tensor<2147483648xf32>", "tensor<?xf32, #stablehlo.bounds<4>>"),
    *("tensor<4xf32, 1 : i64>", 'tensor<4xf32, "x">', "tensor<4x!quant.uniform<i8:f32, 1.0>>"),
    *("tensor<4xi32>", "tensor<4xf64>", "tensor<4xf16>", "tensor<4x1x4xf32>", "tensor<1000003xf32>"),
    *(
        "i32",
        "f32",
        "index",
        "none",
        "memref<4xf32>",
        "vector<4xf32>",
        "!stablehlo.token",
        "tuple<tensor<f32>>",
    ),
    *(
        "tuple<>",
        "() -> ()",
        "complex<f32>",
        '!mpmd.mesh_tensor<"m", tensor<4xf32>>',
        "!pw.nothing",
        "memref<*xf32>",
    ),
)
MESHES = (
    *(
        '["x"=1]',
        '["x"=2]',
        '["x"=4]',
        '["x"=3]',
        '["data"=2, "model"=2]',
        '["x"=2, "y"=2]',
        '["y"=2, "x"=2]',
        "[]",
    ),
    *(
        '["x"=1000]',
        '["x"=1000000]',
        '["x"=1000, "y"=1000]',
        '["x"=1000000000000]',
        '["x"=1, "y"=1]',
        '["x"=16]',
    ),
    *('["x"=2], device_ids=[1, 0]', '["x"=2], device_ids=[0, 0]', '["x"=4], device_ids=[3, 2, 1, 0]'),
    *("[], device_ids=[0]", "[], device_ids=[1000000]", r'["\E9"=2]', '[""=2]', '["x"=2, "x"=2]', '["x"=0]'),
    *(
        '["x"=-1]',
        '["x"=2, "y"=2, "z"=2]',
        '["x"=9223372036854775807, "y"=9223372036854775807]',
        '["a"=2, "b"=3]',
    ),
)
AXES = (
    *(
        "{}",
        "{}",
        '{"x"}',
        '{"x"}',
        '{"y"}',
        '{"data"}',
        '{"model"}',
        '{"x", "y"}',
        '{"data", "model"}',
        "{?}",
    ),
    *(
        '{"x", ?}',
        '{"x":(1)2}',
        '{"x":(2)2}',
        '{"data":(1)2}',
        '{"nowhere"}',
        '{"x", "x"}',
        r'{"\E9"}',
        '{"x"}p0',
    ),
)


def strange_value(rng: random.Random, text: str) -> str:
    """Returns a value of any kind for an attribute."""
    match rng.randrange(8):
        case 0 | 1:
            return rng.choice(INTEGERS) + rng.choice(["", "", " : i64", " : i32", " : index"])
        case 2:
            return rng.choice(STRINGS)
        case 3:
            return strange_symbol(rng, text)
        case 4:
            return f"#sdy.sharding<{strange_symbol(rng, text)}, {strange_dims(rng)}>"
    return rng.choice(FURTHER_VALUES)


def strange_symbol(rng: random.Random, text: str) -> str:
    """Returns a reference: to a symbol in the text, to none, or nested."""
    declared = list(dict.fromkeys(syntax.SYMBOL.findall(text))) or ["@main"]
    if rng.random() < 0.1:
        return f"{rng.choice(declared)}::{rng.choice(declared)}"
    return rng.choice(declared) if rng.random() < 0.7 else rng.choice(SYMBOLS)


def strange_dims(rng: random.Random) -> str:
    """Returns the dimensions of a sharding."""
    dims = ", ".join(rng.choice(AXES) for _ in range(rng.choice([0, 1, 1, 2, 2, 2, 3, 4])))
    return f"[{dims}]" + rng.choice(["", "", "", "", "", ', replicated={"x"}', ', unreduced={"x"}'])
