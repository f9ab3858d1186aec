"""Lines of `jax.debug.print` on this host, with its name in front, on standard error."""

from __future__ import annotations

import functools
import json
import string
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from pathways.dialect import nested_ops
from pathways.runtime.hosts.protocol import plain

PRINT = "pathways.print"
"""Attribute of a call of Python in a module for hosts: its format, as JSON."""


_MAX_CALLS = 1 << 16
"""Limit of the numbers of calls in a module."""


def is_readable(text: str) -> bool:
    """Returns whether the fields of a format read no private attribute of a value."""
    fields = (f"{field or ''} {spec or ''}" for _, field, spec, _ in string.Formatter().parse(text))
    return not any("._" in field for field in fields)


def take_prints(module: ir.Module, host: str) -> list[Callable[..., Any]]:
    """Removes the formats from the calls of a module, and returns functions that print them, by number."""
    printers: dict[int, Callable[..., Any]] = {}
    for op in nested_ops(module.operation):
        if op.operation.name == "stablehlo.custom_call" and PRINT in op.attributes:
            described = json.loads(op.attributes[PRINT].value)
            del op.attributes[PRINT]
            if described["index"] >= _MAX_CALLS or not is_readable(described["text"]):
                raise ValueError(f"jax.debug.print of {described['text']!r} cannot be printed")
            printers[described["index"]] = functools.partial(_print, host, described)
    return [printers.get(n, _nothing) for n in range(1 + max(printers, default=-1))]


def _nothing(*_: Any) -> tuple[()]:
    return ()


def _print(host: str, described: dict[str, Any], *arrays: Any) -> tuple[()]:
    values = iter(arrays)
    # On other platforms a thread of a step that waits for this one must not use the device.
    put = jax.device_put if jax.default_backend() == "cpu" else np.asarray
    leaves = [put(np.asarray(next(values))) if leaf is None else leaf[0] for leaf in described["leaves"]]
    args, named = plain.build(described["tree"], leaves)
    with np.printoptions(**described["options"]):
        if described["fields"]:
            text = described["text"].format(*args, **named)
        else:
            text = " ".join((described["text"], *map(str, args)))
    # One write: lines of other threads do not get between.
    sys.stderr.write("".join(f"{host}: {line}\n" for line in text.split("\n")))
    return ()
