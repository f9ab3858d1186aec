"""Arrays of programs in files: `.npz`, by the names of arguments and results."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pathways.runtime.plan.plan import ArrayType
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import write_output

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Readers of the header in each version of numpy's format; the third version is for records."""


def read_arrays(path: str, types: Mapping[str, ArrayType]) -> dict[str, np.ndarray]:
    """Reads arrays and checks them against the arguments of a program.

    Args:
      path: an `.npz` file; nothing in it is unpickled.
      types: the type of each argument, by name; for typed PRNG keys, the type of their bits.

    Raises:
      UserError: the file is not `.npz`, or has an array that is unknown or of another shape or dtype.
    """
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise UserError(f"{path}: cannot read arrays: not a file")
        if Path(path).exists() and not zipfile.is_zipfile(path):
            raise UserError(f"{path}: cannot read arrays: not a .npz file as written by np.savez")
        with zipfile.ZipFile(path) as file:
            members = _members(path, file)
            for name in members:
                if name not in types:
                    raise UserError(f"{path}: the program has no argument {name}; see pw-bundle inspect")
            return {name: _array(path, file, name, member, types[name]) for name, member in members.items()}
    except UserError:
        raise
    # The parsers of zip, its compressions and numpy have a dozen types of errors.
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{path}: cannot read arrays: {reason}") from None


def _members(path: str, file: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Returns the member of each array, by the name of the array."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in file.infolist():
        name = member.filename.removesuffix(".npy")
        if not name.isprintable():
            raise UserError(f"{path}: the program has no argument {name!r}; see pw-bundle inspect")
        if name in members:
            raise UserError(f"{path}: {name} occurs twice")
        members[name] = member
    return members


def _array(
    path: str, file: zipfile.ZipFile, name: str, member: zipfile.ZipInfo, type_: ArrayType
) -> np.ndarray:
    """Reads an array after its header was checked, so that no more memory than expected is allocated."""
    with file.open(member) as data:
        version = np.lib.format.read_magic(data)
        if version not in _HEADERS:
            raise UserError(f"{path}: {name} is in version {version[0]}.{version[1]} of numpy's format")
        shape, _, dtype = _HEADERS[version](data)
    expected = np.dtype(type_.dtype)
    if shape != type_.shape or not (dtype == expected or holds_bits_of(dtype, expected)):
        raise UserError(
            f"{path}: {name} is {dtype}{list(shape)}, but the program takes {expected}{list(type_.shape)}"
        )
    with file.open(member) as data:
        return np.lib.format.read_array(data, allow_pickle=False).view(expected)


def write_arrays(path: str, arrays: Mapping[str, Any]) -> None:
    """Writes arrays by name.

    Raises:
      UserError: the file cannot be written.
    """
    buffer = io.BytesIO()
    # numpy's own `savez` takes array names as keywords, besides its other keywords.
    with zipfile.ZipFile(buffer, "w") as file:
        for name, array in arrays.items():
            with file.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                value = np.asarray(array)
                if _is_small(value.dtype):
                    # numpy would write a name of float8_e5m2 that it cannot read.
                    value = value.view(f"V{value.itemsize}")
                np.lib.format.write_array(member, value, allow_pickle=False)
    write_output(path, buffer.getvalue())


def holds_bits_of(dtype: np.dtype, expected: np.dtype) -> bool:
    """Returns whether an array has the bits of another type: numpy drops the names of small ones."""
    return (
        dtype.kind == "V" and _is_small(expected) and dtype.itemsize == expected.itemsize and not dtype.fields
    )


def _is_small(dtype: np.dtype) -> bool:
    """Returns whether a dtype is an addition of `ml_dtypes` to numpy."""
    return dtype.isbuiltin == 2


def generated_arrays(types: Mapping[str, ArrayType], seed: int | None) -> dict[str, np.ndarray]:
    """Returns arrays for all arguments: zeros, or with a seed normal numbers, small integers, and keys."""
    rng = np.random.default_rng(seed)
    return {name: _generated_array(type_, None if seed is None else rng) for name, type_ in types.items()}


def _generated_array(type_: ArrayType, rng: np.random.Generator | None) -> np.ndarray:
    shape, dtype = type_.shape, np.dtype(type_.dtype)
    if rng is None:
        return np.zeros(shape, dtype)
    if dtype.kind in "biu":
        return rng.integers(2, size=shape).astype(dtype)
    numbers = rng.standard_normal(shape)
    return (numbers + 1j * rng.standard_normal(shape) if dtype.kind == "c" else numbers).astype(dtype)
