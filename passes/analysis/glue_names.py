"""Names of glue computations: the function of the user from which most of their operations come.

JAX gives an operation the location `jit(step)/norm/mul`, its place in the name stack, at the functions that
were called. A name has two parts: `scale_by_adam/update` for `scale_by_adam.<locals>.update_fn`, `step/norm`
for a function that `step` calls, `step/div` for an operation of the program itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from jaxlib.mlir import ir

UNNAMED = "glue"
"""Name where locations state no function."""

_WRAPPED = re.compile(r"\w+\((.*)\)")
_OF_JAX = frozenset(
    {"", "while", "body", "cond", "scan", "closed_call", "checkpoint", "rematted_computation"}
)
"""Names in a name stack that no user wrote."""

type _Path = tuple[str, ...]
"""Names from the outermost to the innermost."""


class GlueNames:
    """Namer of glue computations.

    Args:
      program: the name of the program.
    """

    def __init__(self, program: str) -> None:
        self.program = program
        self._functions: dict[ir.Location, _Path] = {}

    def name(self, locations: Iterable[ir.Location], last: ir.Location) -> str:
        """Returns the name for operations at some locations.

        Args:
          locations: the locations of all operations.
          last: the location of the operation that produces the result.
        """
        named = [location for location in locations if isinstance(location, ir.NameLoc)]
        scopes = _most([_scopes(location.name_str) for location in named])
        called = _most([path for location in named if (path := self.functions(location.child_loc))])
        inner = scopes or tuple(part for function in called for part in _parts(function))
        if inner and inner[-1] != self.program:
            return "/".join([self.program, *inner][-2:])
        if inner and isinstance(last, ir.NameLoc):
            return f"{self.program}/{_symbol(last.name_str.rpartition('/')[2])}"
        return UNNAMED

    def functions(self, location: ir.Location) -> _Path:
        """Returns the functions whose calls led to a location, from the program on."""
        path = self._functions.get(location)
        if path is not None:
            return path
        called: _Path = ()
        match location:
            case ir.CallSiteLoc():
                called = (*self.functions(location.caller), *self.functions(location.callee))
            case ir.NameLoc():
                called = (location.name_str,)
        starts = (n for n, function in enumerate(called) if _parts(function)[-1:] == [self.program])
        self._functions[location] = called[next(starts, 0) :]
        return self._functions[location]


def _scopes(stack: str) -> _Path:
    """Returns the names in a name stack that the user wrote: `jax.named_scope`s, and modules of flax."""
    names = []
    for name in stack.split("/")[:-1]:
        if name.startswith(("jit(", "pjit(")):
            continue
        while wrapped := _WRAPPED.fullmatch(name):
            name = wrapped[1]
        if name not in _OF_JAX:
            names.append(_symbol(name))
    return tuple(names)


def _most(paths: Sequence[_Path]) -> _Path:
    """Returns the longest start of paths that more than half of them have."""
    common: _Path = ()
    while True:
        longer = Counter(path[: len(common) + 1] for path in paths if path[: len(common)] == common != path)
        start, count = next(iter(longer.most_common(1)), ((), 0))
        if 2 * count <= len(paths):
            return common
        common = start


def _parts(function: str) -> list[str]:
    """Returns the names in a qualified name; lambdas and the like have none."""
    return [_symbol(part.removesuffix("_fn")) for part in function.split(".") if not part.startswith("<")]


def _symbol(name: str) -> str:
    return re.sub(r"\W", "_", name)
