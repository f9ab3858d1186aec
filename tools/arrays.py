"""Arrays of programs in files: `.npz`, by the names of arguments and results."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from pathways.runtime.plan import ArrayType
from pathways.tools.files import UserError, write_output


def read_arrays(path: str, wanted: Mapping[str, ArrayType]) -> dict[str, np.ndarray]:
    """Reads arrays and checks them against the arguments of a program.

    Args:
      path: an `.npz` file; nothing in it is unpickled.
      wanted: the type of each argument, by name; that of their bits for typed PRNG keys.

    Raises:
      UserError: the file is none, or has an array that is unknown or of another shape or dtype.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise UserError(f"{path}: expected an .npz file, with a name for each array")
            for name in file.files:
                if name not in wanted:
                    raise UserError(f"{path}: the program has no argument {name}; see pw-bundle inspect")
            return {name: _checked(path, name, file[name], wanted[name]) for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UserError(f"{path}: cannot read arrays: {reason}") from None


def _checked(path: str, name: str, array: np.ndarray, type_: ArrayType) -> np.ndarray:
    shape, dtype = type_.shape, np.dtype(type_.dtype)
    # numpy forgets the names of small floats when it writes them.
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize and dtype.kind == "V":
        array = array.view(dtype)
    if (array.shape, array.dtype) != (shape, dtype):
        raise UserError(
            f"{path}: {name} is {array.dtype}{list(array.shape)}, but the program takes {dtype}{list(shape)}"
        )
    return array


def write_arrays(path: str, arrays: Mapping[str, Any]) -> None:
    """Writes arrays by name.

    Raises:
      UserError: the file cannot be written.
    """
    buffer = io.BytesIO()
    # numpy's own `savez` takes names as keywords, of which it has some itself.
    with zipfile.ZipFile(buffer, "w") as file:
        for name, array in arrays.items():
            with file.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
    write_output(path, buffer.getvalue())


def made_up(wanted: Mapping[str, ArrayType], seed: int | None) -> dict[str, np.ndarray]:
    """Arrays for all arguments: zeros, or with a seed standard normal numbers, small integers, and keys."""
    rng = np.random.default_rng(seed)
    return {name: _made_up(type_, None if seed is None else rng) for name, type_ in wanted.items()}


def _made_up(type_: ArrayType, rng: np.random.Generator | None) -> np.ndarray:
    shape, dtype = type_.shape, np.dtype(type_.dtype)
    if rng is None:
        return np.zeros(shape, dtype)
    if dtype.kind in "biu":
        return rng.integers(2, size=shape).astype(dtype)
    numbers = rng.standard_normal(shape)
    return (numbers + 1j * rng.standard_normal(shape) if dtype.kind == "c" else numbers).astype(dtype)
