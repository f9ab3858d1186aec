"""Arguments of a program: signature, interface, and checks with the name of a wrong argument."""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from pathways.compiler.frontend.jax_internals import Tracer, abstractify, is_handle, is_known
from pathways.compiler.frontend.memory_kinds import kind_of
from pathways.compiler.frontend.trees import KeyPath, Sealed, name_of, sealed
from pathways.runtime.resources.virtual import VirtualSlice

Static = tuple[tuple[int | str, type, int, Any], ...]
"""Static arguments as a key: the position or name of each, its type, its hash at the call, and its value.

With the type because `1 == 1.0 == True`. As in `jax.jit`, `(1,)` and `(1.0,)` are equal. With the
hash because an object that was changed in place since an earlier call is equal to itself.
"""


_TYPES = jax.ShapeDtypeStruct | jax.core.AbstractValue
"""Types that `lower` accepts instead of arrays."""


@dataclasses.dataclass(frozen=True)
class ArgumentHome:
    """The slice that an argument is placed on.

    Attributes:
      spec: its sharding over the slice; None if that is unknown.
    """

    slice: VirtualSlice
    spec: PartitionSpec | None


@dataclasses.dataclass(frozen=True)
class Interface:
    """Arguments, results and slices of a program, for its callers and the runtime.

    Attributes:
      slices: the slices by their names in the module, in the order of their creation.
      argument_paths: the name of each flat argument in messages.
      in_avals: JAX's abstract values of the flat arguments.
      out_avals: likewise of the flat results.
      out_tree: the structure of the results.
      out_keys: the path of each flat result in it.
      platform: JAX's name of its platform, such as `cuda`.
      homes: the slice of each flat argument, for a program that runs there; empty if placed functions
        determine the slices.
    """

    slices: Mapping[str, VirtualSlice]
    argument_paths: tuple[str, ...]
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    out_tree: Any
    out_keys: tuple[KeyPath, ...]
    platform: str
    homes: tuple[ArgumentHome | None, ...] = ()


@dataclasses.dataclass(frozen=True)
class Signature:
    """Key for which a program is specialised.

    Attributes:
      tree: the structure of `(args, kwargs)`, static arguments left out.
      keys: the path of each leaf in it.
      avals: the abstract value of each leaf: shape, dtype and weak type.
      static: static arguments, see `Conventions.split_static`.
      context: JAX's own key of all settings that change a trace.
      strict: whether weak types distinguish signatures, as they do if they would change a trace.
      kinds: the memory kind of each leaf, None for the default memory of devices; empty if all are in that,
        and None if any kind is accepted.
    """

    tree: Any
    keys: tuple[KeyPath, ...]
    avals: tuple[Any, ...]
    static: Static
    context: Any
    strict: bool = True
    kinds: tuple[str | None, ...] | None = ()

    def sealed(self) -> tuple[list[Sealed], dict[str, Sealed]]:
        """Returns positional and named arguments for tracing, with an abstract value for each leaf."""
        # Not `ShapeDtypeStruct`s, which have no 64 bits outside of `enable_x64`, while arrays created in it
        # do.
        leaves = [
            jax.core.ShapedArray(a.shape, a.dtype, weak_type=a.weak_type, memory_space=a.memory_space)
            for a in self.avals
        ]
        positional, named = self.tree.children()
        first = 0
        arguments = []
        for tree in (*positional.children(), *named.children()):
            span = slice(first, first + tree.num_leaves)
            arguments.append(sealed(tree, [keys[2:] for keys in self.keys[span]], leaves[span]))
            first = span.stop
        count = len(positional.children())
        return arguments[:count], dict(zip(named.node_data()[1], arguments[count:], strict=True))

    def kind(self, n: int) -> str | None:
        """Returns the memory kind of argument `n`; None for the default memory of devices."""
        return self.kinds[n] if self.kinds else None

    def takes(self, n: int, leaf: Any, aval: Any) -> bool:
        """Returns whether argument `n` may be a value, which has that abstract value.

        Where weak types do not count, a value that is in no memory of devices, such as an array of NumPy, may
        be passed for an array in any memory.
        """
        is_apart = not self.strict and not hasattr(leaf, "sharding")
        return self.accepts(n, aval, self.kind(n) if is_apart else kind_of(leaf))

    def accepts(self, n: int, aval: Any, kind: str | None) -> bool:
        """Returns whether argument `n` may have this abstract value, in memory of this kind."""
        expected = self.avals[n]
        return (
            expected.shape == aval.shape
            and expected.dtype == aval.dtype
            and (not self.strict or expected.weak_type == aval.weak_type)
            and (self.kinds is None or self.kind(n) == kind)
        )


@dataclasses.dataclass(frozen=True)
class Conventions:
    """Conventions of a program's arguments: `donate_argnums` and `static_argnums` with JAX's meaning."""

    name: str
    parameters: inspect.Signature | None
    donate_argnums: tuple[int, ...]
    donate_argnames: tuple[str, ...]
    static_argnums: tuple[int, ...]
    static_argnames: tuple[str, ...]

    @property
    def has_static(self) -> bool:
        """Whether any argument is static."""
        return bool(self.static_argnums or self.static_argnames)

    def split_static(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], Static]:
        """Splits off static arguments; `join_static` is the inverse.

        Returns:
          The other positional and named arguments, and the static ones as a hashable key.

        Raises:
          TypeError: when a static argument is not hashable, as `jax.jit` does.
        """
        if not self.has_static:
            return args, kwargs, ()
        numbers = {n % len(args) for n in self.static_argnums if args and -len(args) <= n < len(args)}
        passed: dict[int | str, Any] = {n: args[n] for n in sorted(numbers)}
        passed |= {k: kwargs[k] for k in self.static_argnames if k in kwargs}
        static = []
        for key, value in passed.items():
            try:
                static.append((key, type(value), hash(value), value))
            except TypeError:
                raise TypeError(
                    f"program '{self.name}': static argument {key} must be hashable, got "
                    f"{type(value).__name__}"
                ) from None
        dynamic = tuple(a for n, a in enumerate(args) if n not in numbers)
        named = {k: v for k, v in kwargs.items() if k not in self.static_argnames}
        return dynamic, named, tuple(static)

    def donated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bool]:
        """Returns, for each leaf of the arguments that are not static, whether it is donated."""
        numbers = {n % len(args) for n in self.donate_argnums if args and -len(args) <= n < len(args)}
        static = {n % len(args) for n in self.static_argnums if args and -len(args) <= n < len(args)}
        flags: list[bool] = []
        for n, argument in enumerate(args):
            if n not in static:
                flags += [n in numbers] * len(jax.tree.leaves(argument))
        # In the order in which JAX flattens a dictionary.
        for key in sorted(kwargs):
            if key not in self.static_argnames:
                flags += [key in self.donate_argnames] * len(jax.tree.leaves(kwargs[key]))
        return flags

    def paths(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """Returns the name of each leaf that is not static: the parameter's name and the path inside it."""
        static = {n % len(args) for n in self.static_argnums if args and -len(args) <= n < len(args)}
        named = [(self._name(n), a) for n, a in enumerate(args) if n not in static]
        named += sorted((k, v) for k, v in kwargs.items() if k not in self.static_argnames)
        return [
            name + name_of(path)
            for name, argument in named
            for path, _ in jax.tree_util.tree_leaves_with_path(argument)
        ]

    def _name(self, n: int) -> str:
        parameters = list(self.parameters.parameters.values()) if self.parameters else []
        if n < len(parameters) and parameters[n].kind is not inspect.Parameter.VAR_POSITIONAL:
            return parameters[n].name
        return f"args[{n}]"


def join_static(
    dynamic: Sequence[Any], named: dict[str, Any], static: Static
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns all positional and named arguments, from the dynamic and the static ones."""
    values = {key: value for key, _, _, value in static}
    numbers = [key for key in values if isinstance(key, int)]
    rest = iter(dynamic)
    args = tuple(values[n] if n in values else next(rest) for n in range(len(dynamic) + len(numbers)))
    return args, {**named, **{key: v for key, v in values.items() if isinstance(key, str)}}


def conventions_of(
    fun: Callable[..., Any],
    name: str,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Conventions:
    """Normalises the options of `pw.program`; names and numbers imply each other where possible.

    Raises:
      TypeError: a position is not an integer, or a name not a string.
      ValueError: the function has no argument of such a number or name, or one is static and donated.
    """
    try:
        parameters = inspect.signature(fun)
    except (TypeError, ValueError):
        parameters = None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    order = [p.name for p in parameters.parameters.values() if p.kind in positional] if parameters else []

    # From the end of the parameters, as in JAX, however many of them a call passes.
    counts_all = parameters is not None and not any(
        p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters.parameters.values()
    )

    def both(positions: Sequence[int], keywords: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        if counts_all:
            positions = tuple(n + len(order) if n < 0 else n for n in positions)
        named = [order.index(k) for k in keywords if k in order]
        numbered = [order[n] for n in positions if -len(order) <= n < len(order)]
        return tuple(dict.fromkeys([*positions, *named])), tuple(dict.fromkeys([*keywords, *numbered]))

    numbers = _values(
        name, "positions", operator.index, static_argnums=static_argnums, donate_argnums=donate_argnums
    )
    names = _values(
        name, "names", _checked_name, static_argnames=static_argnames, donate_argnames=donate_argnames
    )
    if parameters is not None:
        _check_numbers(name, parameters, numbers)
        _check_names(name, parameters, names)
    static = both(numbers["static_argnums"], names["static_argnames"])
    donate = both(numbers["donate_argnums"], names["donate_argnames"])
    for n in set(static[0]) & set(donate[0]):
        raise ValueError(f"program '{name}': argument {n} is static and cannot be donated")
    return Conventions(name, parameters, donate[0], donate[1], static[0], static[1])


def _values[T](
    name: str, expected: str, read: Callable[[Any], T], **options: Any
) -> dict[str, tuple[T, ...]]:
    """Returns the values of options that have one value, more or none.

    Args:
      expected: the expected values, for messages.
      read: returns a value as it is used, or raises TypeError.

    Raises:
      TypeError: `read` does; names the option.
    """
    values = {}
    for option, passed in options.items():
        has_one = isinstance(passed, str) or not isinstance(passed, Iterable)
        try:
            values[option] = () if passed is None else tuple(map(read, (passed,) if has_one else passed))
        except TypeError:
            raise TypeError(
                f"program '{name}': {option}={passed!r}: expected {expected} of arguments"
            ) from None
    return values


def _checked_name(name: Any) -> str:
    """Returns a name; raises TypeError for other values."""
    if not isinstance(name, str):
        raise TypeError
    return name


def _check_numbers(name: str, parameters: inspect.Signature, options: Mapping[str, tuple[int, ...]]) -> None:
    """Raises an error for positions that the function does not have, like `jax.jit`."""
    kinds = [p.kind for p in parameters.parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(kind in positional for kind in kinds)
    for option, passed in options.items():
        if any(not -count <= n < count for n in passed):
            raise ValueError(
                f"program '{name}' has {option}={passed}, but only accepts {count} positional arguments"
            )


def _check_names(name: str, parameters: inspect.Signature, options: Mapping[str, tuple[str, ...]]) -> None:
    """Raises an error for names that the function does not have, like `jax.jit`."""
    kinds = [p.kind for p in parameters.parameters.values()]
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return
    for option, passed in options.items():
        unknown = [k for k in passed if k not in parameters.parameters]
        if unknown:
            allowed = ", ".join(parameters.parameters) or "none"
            raise ValueError(f"program '{name}' has {option}={unknown}, but its arguments are {allowed}")


def abstract(
    leaves: Sequence[Any], name: str, paths: Callable[[], list[str]], *, values: bool = False
) -> list[Any]:
    """Returns the abstract value of each argument.

    Args:
      paths: the name of each of them.
      values: whether they must have values; without it, types suffice.

    Raises:
      TypeError: one is not an array, or is a tracer; names it and a remedy.
      ValueError: one has a symbolic shape.
      OverflowError: one is a number that does not fit its dtype.
    """
    avals = []
    for n, leaf in enumerate(leaves):
        if isinstance(leaf, Tracer):
            raise TypeError(
                f"program '{name}': argument {paths()[n]} is a JAX tracer. A program cannot be called under "
                "jax.jit, jax.grad, jax.vmap or another transformation: put the transformation inside the "
                "program. If nothing transforms this call, the tracer leaked out of an earlier trace."
            )
        try:
            aval = abstractify(leaf)
        except OverflowError as error:
            raise OverflowError(f"program '{name}': argument {paths()[n]}: {error}") from None
        except (TypeError, ValueError) as error:
            raise TypeError(f"program '{name}': argument {paths()[n]} {_refusal(leaf, error)}") from None
        if not isinstance(aval, jax.core.ShapedArray) or (values and is_type(leaf)):
            raise TypeError(f"program '{name}': argument {paths()[n]} {_refusal(leaf)}")
        if not all(isinstance(size, int | np.integer) for size in aval.shape):
            raise ValueError(
                f"program '{name}': argument {paths()[n]} has the symbolic shape {aval.shape}, but programs "
                "are compiled for static shapes: lower it with concrete sizes, once for each"
            )
        avals.append(aval)
    return avals


def without_handles(tree: Any, user: str) -> Any:
    """Replaces arrays on hosts by their values, for a program that closes over them.

    Args:
      user: the function that gets it in the program, for messages.

    Raises:
      ValueError: one of them is too large for a constant.
    """
    if not any(map(is_handle, jax.tree.leaves(tree))):
        return tree
    return jax.tree.map(lambda leaf: leaf.as_constant(user) if is_handle(leaf) else leaf, tree)


def is_type(leaf: Any) -> bool:
    """Returns whether a leaf has the type of an array but no value that a program could read."""
    return isinstance(leaf, _TYPES | jax.Ref) or not is_known(leaf)


def _refusal(leaf: Any, error: Exception | None = None) -> str:
    """Returns why a leaf is not a valid argument, with a remedy."""
    elsewhere = "pass it as a static argument or remove it from the arguments"
    match leaf:
        case jax.Ref():
            state = "is a Ref, not an array or a number; a program has no state: pass the value of the "
            return f"{state}reference and return the new one"
        case np.ma.MaskedArray():
            return f"is a MaskedArray: {error}"
        case np.ndarray() | np.generic() if leaf.dtype.type is not np.str_ or leaf.ndim:
            kind = f"is {'an array' if leaf.ndim else 'a number'} of dtype {leaf.dtype}"
            if not leaf.dtype.isnative:
                native = leaf.dtype.newbyteorder("=")
                return f"{kind}, whose byte order differs from this machine's; pass x.astype('{native}')"
            return f"{kind}, which JAX does not support; remove it from the arguments"
    if hasattr(leaf, "__array__"):
        return f"is a {type(leaf).__name__}, not an array of JAX or NumPy; pass np.asarray(x)"
    if isinstance(leaf, _TYPES):
        return f"is a {type(leaf).__name__}, which only `lower` accepts; a call takes an array or a number"
    return f"is a {type(leaf).__name__}, not an array or a number; {elsewhere}"
