"""Element types of the IR by the names that numpy and ml_dtypes give them."""

from __future__ import annotations

from jaxlib.mlir import ir

_FLOATS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}
_SMALL_FLOATS = {
    f"f{bits}E{rest}": f"float{bits}_e{rest.lower()}"
    for bits, kinds in (
        (8, ("3M4", "4M3", "4M3B11FNUZ", "4M3FN", "4M3FNUZ", "5M2", "5M2FNUZ", "8M0FNU")),
        (4, ("2M1FN",)),
        (6, ("2M3FN", "3M2FN")),
    )
    for rest in kinds
}
_INTEGERS = {f"i{bits}": f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)}
_UNSIGNED = {f"ui{bits}": f"uint{bits}" for bits in (2, 4, 8, 16, 32, 64)}
_COMPLEX = {"complex<f32>": "complex64", "complex<f64>": "complex128"}

DTYPES = {"i1": "bool", **_FLOATS, **_SMALL_FLOATS, **_INTEGERS, **_UNSIGNED, **_COMPLEX}
"""The dtype of each element type that an array of a program may have."""


_ELEMENTS = {dtype: element for element, dtype in DTYPES.items()}


def element_name(dtype: str) -> str:
    """Returns the element type of a dtype, as MLIR writes it: the inverse of `dtype_of`."""
    return _ELEMENTS[dtype]


def dtype_of(element: ir.Type) -> str | None:
    """Returns the dtype of an element type: float8_e4m3fn for `f8E4M3FN`; None if it has none."""
    return DTYPES.get(str(element))
