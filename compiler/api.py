"""Front end: `pw.jit` places functions, `pw.program` compiles the code that calls them."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypedDict, Unpack, overload

import jax

from pathways.compiler.frontend.arguments import conventions_of
from pathways.compiler.frontend.user_code import symbol_of
from pathways.compiler.placed import PlacedFunction
from pathways.compiler.program import Program
from pathways.dialect.attributes.names import MAX_MICROBATCHES
from pathways.passes.pipeline import Options
from pathways.passes.schedule.policies.custom import register
from pathways.passes.schedule.policies.pipeline import Policy
from pathways.passes.schedule.policies.request import RequestError, policy_or_file
from pathways.passes.schedule.replicas.exchange import WIRES
from pathways.runtime.resources.paths import absolute_path
from pathways.runtime.resources.virtual import VirtualSlice
from pathways.runtime.xla.tracebacks import boundary


class _JitDecorator(Protocol):
    """Decorator that `pw.jit` returns without a function."""

    def __call__[**P, R](self, fun: Callable[P, R], /) -> PlacedFunction[P, R]: ...


class _ProgramDecorator(Protocol):
    """Decorator that `pw.program` returns without a function."""

    def __call__[**P, R](self, fun: Callable[P, R], /) -> Program[P, R]: ...


Numbers = int | Sequence[int] | None
Names = str | Sequence[str] | None


class _Placement(TypedDict, total=False):
    """Options of `pw.jit` besides the slice."""

    stage: int | None
    in_shardings: Any
    out_shardings: Any
    static_argnums: Numbers
    static_argnames: Names


class _ProgramKeywords(TypedDict, total=False):
    """Options of `pw.program`."""

    donate_argnums: Numbers
    donate_argnames: Names
    static_argnums: Numbers
    static_argnames: Names
    in_shardings: Any
    out_shardings: Any
    schedule: str | os.PathLike[str] | Policy | None
    fuse: bool
    exchange_dtype: Any
    zero1: bool
    chunk: int


@overload
def jit[**P, R](
    fun: Callable[P, R], *, devices: VirtualSlice, **options: Unpack[_Placement]
) -> PlacedFunction[P, R]: ...
@overload
def jit(fun: None = ..., *, devices: VirtualSlice, **options: Unpack[_Placement]) -> _JitDecorator: ...
@boundary
def jit(
    fun: Callable[..., Any] | None = None,
    *,
    devices: VirtualSlice,
    stage: int | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Any:
    """Places a function on a slice: it runs as one computation on all devices of it.

    Args:
      fun: a function that `jax.jit` accepts; without it, returns a decorator.
      devices: the slice.
      stage: the pipeline stage it belongs to; by default runs of calls on one slice are numbered.
      in_shardings: a `PartitionSpec` over the axes of the slice for each positional argument, as a tree or a
        prefix of one; None leaves an argument to the compiler. With it no argument may be given by name.
      out_shardings: the same for the results.
      static_argnums: positions of arguments that are compile-time constants, as in `jax.jit`.
      static_argnames: their names, likewise.

    Returns:
      A function to call inside a program, or alone as a program of one launch.

    Raises:
      TypeError: `fun` is not a function, or `devices` not a slice.

    Example:
      ```python
      s0 = pw.make_virtual_device_set().add_slice(shape=(1,), axis_names=("x",))
      double = pw.jit(lambda x: x * 2, devices=s0)
      ```
    """
    if not isinstance(devices, VirtualSlice):
        raise TypeError(
            "devices must be a slice from make_virtual_device_set().add_slice(...), "
            f"got {type(devices).__name__}"
        )
    if fun is None:
        return functools.partial(
            jit,
            devices=devices,
            stage=stage,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
        )
    if not callable(fun):
        raise TypeError(f"expected a function to place on {devices.name}, got {type(fun).__name__}")
    return PlacedFunction(fun, devices, stage, in_shardings, out_shardings, static_argnums, static_argnames)


@overload
def program[**P, R](fun: Callable[P, R], **options: Unpack[_ProgramKeywords]) -> Program[P, R]: ...
@overload
def program(fun: None = ..., **options: Unpack[_ProgramKeywords]) -> _ProgramDecorator: ...
@boundary
def program(
    fun: Callable[..., Any] | None = None,
    *,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    schedule: str | os.PathLike[str] | Policy | None = None,
    fuse: bool = False,
    exchange_dtype: Any = None,
    zero1: bool = False,
    chunk: int = 8,
) -> Any:
    """Compiles a function that calls placed functions.

    The function is traced once per signature of its arguments and JAX settings, and again after
    `jax.clear_caches()`; under `jax.disable_jit` each call traces and compiles it. Placed calls in it run on
    their slices; plain `jax.numpy` code between them is placed so that the fewest bytes move; values are
    transferred between slices automatically. Calling the program returns at once with arrays that become
    ready later.

    Args:
      fun: the function; without it, returns a decorator.
      donate_argnums: positions of arguments whose buffers the program may reuse, as in `jax.jit`.
      donate_argnames: their names, likewise.
      static_argnums: positions of arguments that are compile-time constants, as in `jax.jit`: each call
        compares their hashes, too, so that one that was changed in place is traced again.
      static_argnames: their names, likewise.
      in_shardings: a `PartitionSpec` for each positional argument that is not static, as a tree or a prefix
        of one, over the axes of the slice on which the argument is placed; None leaves it open.
      out_shardings: the same for the results.
      schedule: the order in which the microbatches of `pw.accumulate` go through the slices: `gpipe`, `1f1b`,
        `interleaved-1f1b`, `looped-bfs`, `eager`, `zb-h1`, `zb-h2`, `zb-v`, `interleaved-zb` or `search`,
        with options such as `zb-h1(max-live=4, times=times.json)`; or the path of a CSV file that lists it,
        action by action; or a policy of yours, a function from `pathways.extending.Pipeline` to the actions
        of each slice. By default the microbatches run one after the other.
      fuse: also fuse placed calls that follow each other on a slice, unless that delays a transfer.
      exchange_dtype: `bfloat16` or `float16`: replicas round the sums that they send each other to it,
        half of the bytes or less, and add them up in their own dtype.
      zero1: each replica updates a shard of the parameters, and keeps only that shard of the optimizer's
        state: of arrays that only updates read, and that the results replace. Their sharding is `P(...,
        "replica", ...)`.
      chunk: the number of iterations that are issued at once of a `jax.lax.while_loop` over two or more
        slices that ends depending on values; after each chunk the call waits for one boolean before it issues
        more.

    Returns:
      The program, to be called like the function.

    Raises:
      TypeError: `fun` is not a function, or `schedule` of another type.
        ValueError: an argument does not exist, or the schedule is unknown.

    Example:
      ```python
      @pw.program
      def f(v):
          x = a(v)
          return b(x), a(c(x))
      ```
    """
    if fun is None:
        return functools.partial(
            program,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            schedule=schedule,
            fuse=fuse,
            exchange_dtype=exchange_dtype,
            zero1=zero1,
            chunk=chunk,
        )
    if isinstance(chunk, bool) or not hasattr(chunk, "__index__"):
        raise TypeError(f"chunk must be a number of iterations, got {chunk!r}")
    chunk = operator.index(chunk)
    if not 1 <= chunk <= MAX_MICROBATCHES:
        raise ValueError(f"chunk must be a number of iterations from 1 to {MAX_MICROBATCHES}, got {chunk}")
    if not callable(fun):
        raise TypeError(f"expected a function to compile as a program, got {type(fun).__name__}")
    conventions = conventions_of(
        fun, symbol_of(fun), donate_argnums, donate_argnames, static_argnums, static_argnames
    )
    policy, file = _policy_or_file(schedule)
    options = Options(
        schedule_file=file,
        fuse=fuse,
        exchange_dtype=_exchange_dtype(exchange_dtype),
        zero1=zero1,
        chunk=chunk,
    )
    return Program(fun, conventions, options, in_shardings, out_shardings, policy)


def _exchange_dtype(dtype: Any) -> str:
    """Returns the name of the dtype of sums that replicas send each other; empty for their own dtype.

    Raises:
      ValueError: it cannot be used for that.
    """
    if dtype is None:
        return ""
    try:
        name = jax.numpy.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in WIRES:
        raise ValueError(f"exchange_dtype must be one of {', '.join(WIRES)}, got {dtype!r}")
    return name


def _policy_or_file(schedule: str | os.PathLike[str] | Policy | None) -> tuple[str | None, str]:
    """Returns the policy that a schedule names, or the path of its file; paths are absolute."""
    if schedule is None:
        return None, ""
    if callable(schedule):
        return register(schedule), ""
    if not isinstance(schedule, (str, os.PathLike)):
        raise TypeError(f"schedule must be a policy or the path of a file, got {type(schedule).__name__}")
    if not isinstance(schedule, str):
        return None, absolute_path(schedule)
    try:
        policy, file = policy_or_file(schedule)
    except RequestError as error:
        raise ValueError(f"schedule is {error}") from None
    return policy or None, absolute_path(file) if file else ""
