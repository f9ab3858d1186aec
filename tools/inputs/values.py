"""Arrays on the command line, in the syntax of `iree-run-module`: `2x2xf32=[1 2][3 4]`, `i32=7`,
`@file.npy`."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pathways.runtime.plan.plan import ArrayType
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import read_input
from pathways.tools.inputs.arrays import holds_bits_of
from pathways.tools.inputs.signatures import DTYPES

_VALUE = re.compile(r"((?:\d{1,18}x)*)([A-Za-z]\w*)(?:=(.*))?", re.DOTALL)
_NAMES = {"bool": "i1", "bfloat16": "bf16", "float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2"}
_SHORT = {"float": "f", "int": "i", "uint": "ui", "complex": "c"}
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
MAX_SHOWN = 1024
"""Limit of the printed elements of an array."""


def read_values(texts: Sequence[str], types: Mapping[str, ArrayType]) -> dict[str, np.ndarray]:
    """Returns the arrays of flags `--input` for the first arguments of a program, in their order.

    Args:
      texts: each `SHAPExDTYPE=VALUES`, or `@FILE.npy`. One value fills all elements; none gives zeros.
      types: the type of each argument, by name.

    Raises:
      UserError: names the flag and the error.
    """
    if len(texts) > len(types):
        raise UserError(f"--input is given {len(texts)} times, but the program takes {len(types)} arguments")
    arrays: dict[str, np.ndarray] = {}
    for number, (text, name) in enumerate(zip(texts, types, strict=False), 1):
        type_ = types[name]
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        try:
            array = _from_file(text[1:]) if text.startswith("@") else _from_text(text)
        except ValueError as error:
            raise UserError(f"--input {number}, '{shown}': {error}") from None
        if holds_bits_of(array.dtype, np.dtype(type_.dtype)):
            array = array.view(type_.dtype)
        if (array.shape, array.dtype) != (type_.shape, np.dtype(type_.dtype)):
            got = type_text(array.shape, array.dtype)
            expected = type_text(type_.shape, np.dtype(type_.dtype))
            raise UserError(f"--input {number}, '{shown}', is {got}, but {name} is {expected}")
        arrays[name] = array
    return arrays


def _from_file(path: str) -> np.ndarray:
    try:
        array = np.load(io.BytesIO(read_input(path)), allow_pickle=False)
    except UserError:
        raise
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"cannot read an array: {str(error).partition('\n')[0]}") from None
    # Numpy reads the header as Python, with a dozen types of errors.
    except Exception:
        raise ValueError("cannot read an array: its header is damaged") from None
    if not isinstance(array, np.ndarray):
        raise ValueError("it holds more than one array; --inputs takes those")
    return array


def _from_text(text: str) -> np.ndarray:
    match = _VALUE.fullmatch(text)
    if match is None:
        raise ValueError("expected SHAPExDTYPE=VALUES, such as 2x2xf32=1,2,3,4")
    if match[2] not in DTYPES or match[2] == "key":
        from pathways.dialect.spelling import did_you_mean

        raise ValueError(f"no dtype is named '{match[2]}'{did_you_mean(match[2], DTYPES)}")
    shape = tuple(map(int, match[1].split("x")[:-1]))
    dtype = np.dtype(DTYPES[match[2]])
    words = [word for word in re.split(r"[\s,\[\]]+", "0" if match[3] is None else match[3]) if word]
    size = math.prod(shape)
    if len(words) not in (1, size):
        raise ValueError(f"expected {size} values or one, got {len(words)}")
    try:
        values = _converted(words, dtype)
        return np.full(shape, values[0]) if len(words) == 1 else values.reshape(shape)
    except (MemoryError, OverflowError):
        raise ValueError("it does not fit into memory") from None


def _converted(words: Sequence[str], dtype: np.dtype) -> np.ndarray:
    """Returns values of a dtype; raises ValueError, and names the word, for one that is not in its range."""
    read = _reader(dtype)
    values = []
    for word in words:
        try:
            values.append(read(word))
        except (ValueError, KeyError, OverflowError):
            raise ValueError(f"'{word}' is not a value of dtype {dtype}") from None
    # As objects, because NumPy rounds a list of small integers and ones of 2**63 or more to floats.
    return np.array(values, object).astype(dtype) if dtype.kind in "biu" else np.array(values).astype(dtype)


def _reader(dtype: np.dtype) -> Callable[[str], Any]:
    if dtype == np.bool_:
        return lambda word: _BOOLEANS[word.lower()]
    if dtype.kind == "c":
        return complex
    if not _is_integer(dtype):
        return float
    unsigned = dtype.name.startswith("uint")
    bits = int(dtype.name.removeprefix("uint").removeprefix("int"))
    least, most = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def read(word: str) -> int:
        if not least <= (number := int(word)) <= most:
            raise OverflowError
        return number

    return read


def _is_integer(dtype: np.dtype) -> bool:
    return dtype.name.startswith(("int", "uint"))


def type_text(shape: Sequence[int], dtype: np.dtype) -> str:
    """Returns a type as MLIR writes it inside of a tensor: `2x2xf32`."""
    kind = dtype.name.rstrip("0123456789")
    name = f"{_SHORT[kind]}{dtype.name.removeprefix(kind)}" if kind in _SHORT else dtype.name
    return "".join(f"{n}x" for n in shape) + _NAMES.get(dtype.name, name)


def value_text(array: np.ndarray) -> str:
    """Returns an array in the syntax of `--input`, without elements after the first 1024: `2x2xf32=[1 2][3
    4]`."""
    left = MAX_SHOWN

    def shown(sub_array: np.ndarray) -> str:
        nonlocal left
        if left <= 0:
            return "..."
        if sub_array.ndim == 0:
            left -= 1
            return _element(sub_array[()])
        if sub_array.ndim == 1:
            words = [_element(element) for element in sub_array[:left]]
            more = ["..."] if len(sub_array) > left else []
            left -= len(sub_array)
            return " ".join([*words, *more])
        rows = []
        for row in sub_array:
            rows.append(f"[{shown(row)}]")
            if left <= 0 and len(rows) < len(sub_array):
                rows.append("...")
                break
        return "".join(rows)

    return f"{type_text(array.shape, array.dtype)}={shown(array)}"


def _element(element: Any) -> str:
    if isinstance(element, np.bool_):
        return str(int(element))
    if isinstance(element, np.complexfloating):
        imaginary = _element(element.imag)
        return f"{_element(element.real)}{'' if imaginary.startswith('-') else '+'}{imaginary}j"
    return str(element).removesuffix(".0")
