"""The front end: `pw.jit` places functions, `pw.program` makes a program of the code that calls them."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, overload

import jax

from pathways.compiler import lowering
from pathways.compiler.arguments import Conventions, Signature, abstract, conventions
from pathways.compiler.call import UNLIKE, Call
from pathways.compiler.jax_internals import flatten, trace_context, unflatten
from pathways.compiler.placed import PlacedFunction, active_trace, symbol
from pathways.compiler.specs import Spec, flat_specs, positional_only
from pathways.compiler.stages import Lowered, ProgramError
from pathways.passes.pipeline import Options
from pathways.passes.schedule.schedule import POLICIES, unknown_policy
from pathways.runtime.local.devices import cluster
from pathways.runtime.resources.virtual import VirtualSlice

Fun = Callable[..., Any]
Numbers = int | Sequence[int] | None
Names = str | Sequence[str] | None


@overload
def jit(
    fun: Fun,
    *,
    devices: VirtualSlice,
    stage: int | None = ...,
    in_shardings: Any = ...,
    out_shardings: Any = ...,
    static_argnums: Numbers = ...,
    static_argnames: Names = ...,
) -> PlacedFunction: ...
@overload
def jit(
    fun: None = ...,
    *,
    devices: VirtualSlice,
    stage: int | None = ...,
    in_shardings: Any = ...,
    out_shardings: Any = ...,
    static_argnums: Numbers = ...,
    static_argnames: Names = ...,
) -> Callable[[Fun], PlacedFunction]: ...
def jit(
    fun: Fun | None = None,
    *,
    devices: VirtualSlice,
    stage: int | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: Numbers = None,
    static_argnames: Names = None,
) -> PlacedFunction | Callable[[Fun], PlacedFunction]:
    """Places a function on a slice: it runs as one computation on all devices of it.

    Args:
      fun: a function that `jax.jit` would take; without it, returns a decorator.
      devices: the slice.
      stage: the pipeline stage it belongs to; by default runs of calls on one slice are numbered.
      in_shardings: a `PartitionSpec` over the axes of the slice for each positional argument, as a tree or a
        prefix of one; None leaves an argument to the compiler. With it no argument may be given by name.
      out_shardings: the same for the results.
      static_argnums: positions of arguments that are compile-time constants, as in `jax.jit`.
      static_argnames: their names, likewise.

    Returns:
      A function to call inside a program, or alone as a program of one launch.

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


def program(
    fun: Fun | None = None,
    *,
    donate_argnums: Numbers = None,
    donate_argnames: Names = None,
    static_argnums: Numbers = None,
    static_argnames: Names = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    schedule: str | os.PathLike[str] | None = None,
    fuse: bool = False,
) -> Any:
    """Makes a program of a function that calls placed functions.

    The function is traced once per signature of its arguments. Placed calls in it run on their slices;
    plain `jax.numpy` code between them is placed so that the fewest bytes move; values move between
    slices by themselves. Calling the program returns at once with arrays that become ready later.

    Args:
      fun: the function; without it, returns a decorator.
      donate_argnums: positions of arguments whose buffers the program may reuse, as in `jax.jit`.
      donate_argnames: their names, likewise.
      static_argnums: positions of arguments that are compile-time constants.
      static_argnames: their names, likewise.
      in_shardings: a `PartitionSpec` for each positional argument that is not static, as a tree or a prefix
        of one, over the axes of the slice on which the argument turns out to live; None leaves it open.
      out_shardings: the same for the results.
      schedule: the order in which the microbatches of `pw.accumulate` go through the slices: `gpipe`, `1f1b`,
        `interleaved-1f1b` or `eager`, or the path of a CSV file that says it, action by action. Unless given,
        one microbatch goes after the other.
      fuse: also fuse placed calls that follow each other on a slice, where nothing waits longer for it.

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
        )
    if not callable(fun):
        raise TypeError(f"expected a function to make a program of, got {type(fun).__name__}")
    how = conventions(
        fun,
        symbol(getattr(fun, "__name__", type(fun).__name__)),
        donate_argnums,
        donate_argnames,
        static_argnums,
        static_argnames,
    )
    policy, file = _policy_or_file(schedule)
    return Program(fun, how, Options(schedule_file=file, fuse=fuse), in_shardings, out_shardings, policy)


def _policy_or_file(schedule: str | os.PathLike[str] | None) -> tuple[str | None, str]:
    """The policy that a schedule names, or the file that it is in."""
    if schedule is None:
        return None, ""
    if not isinstance(schedule, (str, os.PathLike)):
        raise TypeError(f"schedule must be a policy or the path of a file, got {type(schedule).__name__}")
    path = os.fspath(schedule)
    if not isinstance(schedule, str) or path.endswith(".csv"):
        return None, path
    if schedule not in POLICIES:
        raise ValueError(f"schedule is neither a policy nor a .csv file: {unknown_policy(schedule)}")
    return schedule, ""


class Program:
    """A function compiled for many slices; made by `pw.program`."""

    def __init__(
        self,
        fun: Fun,
        how: Conventions,
        options: Options,
        in_shardings: Any = None,
        out_shardings: Any = None,
        schedule: str | None = None,
    ) -> None:
        functools.update_wrapper(self, fun)
        self.name = how.name
        self._fun = fun
        self._options = options
        self._how = how
        self._in_shardings = in_shardings
        self._out_shardings = out_shardings
        self._schedule = schedule
        self._has_static = how.has_static
        self._calls: list[Call] = []
        self._last: Call | None = None
        self._compiling = threading.Lock()

    def __repr__(self) -> str:
        return f"<pw.program {self.name}>"

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program and returns at once, with arrays that become ready later."""
        static: tuple[Any, ...] = ()
        if self._has_static:
            dynamic, named, static = self._how.split_static(args, kwargs)
            leaves, tree = flatten((dynamic, named))
        else:
            leaves, tree = flatten((args, kwargs))
        last = self._last
        if (
            last is not None
            and tree == last.tree
            and static == last.static
            and last.context == trace_context()
            and active_trace.program is None
        ):
            result = last.go_if_like_last(leaves)
            if result is not UNLIKE:
                return result
        return self._call_slowly(leaves, tree, static, args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Traces the program and takes it through all passes, without devices or data.

        Args:
          *args: arrays, numbers or `jax.ShapeDtypeStruct`s; static arguments as they are.
          **kwargs: likewise.

        Raises:
          ProgramError: when a pass refuses the program; names the place in the user's code.
        """
        signature = self._signature(args, kwargs)
        return self._lower(signature, args, kwargs)

    def _call_slowly(
        self,
        leaves: list[Any],
        tree: Any,
        static: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call that brings something new: arguments to move, or a signature to compile."""
        if active_trace.program is not None:
            # A program called inside a program is part of it.
            return self._fun(*args, **kwargs)
        found = self._find(leaves, tree, static)
        if found is None:
            with self._compiling:
                # Another thread may have been faster.
                found = self._find(leaves, tree, static)
                if found is None:
                    call = self.lower(*args, **kwargs).compile()._call
                    self._calls.append(call)
                    found = call, call.bring_or_fail(leaves, tree)
        self._last, brought = found
        return found[0].go(brought)

    def _find(self, leaves: list[Any], tree: Any, static: tuple[Any, ...]) -> tuple[Call, list[Any]] | None:
        """The compiled signature that these arguments have, and the arguments on their slices."""
        context = trace_context()
        # The last one first: most programs get a new array from the host in every call.
        for call in sorted(self._calls, key=lambda call: call is not self._last):
            if tree == call.tree and static == call.static and context == call.context:
                brought = call.bring(leaves)
                if brought is not None:
                    return call, brought
        return None

    def _signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
        dynamic, named, static = self._how.split_static(args, kwargs)
        leaves, tree = flatten((dynamic, named))
        avals = abstract(leaves, self.name, lambda: self._how.paths(args, kwargs))
        return Signature(tree, tuple(avals), static, trace_context())

    def _lower(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lowered:
        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in signature.avals]
        dynamic, named = unflatten(signature.tree, structs)
        static = dict(signature.static)
        values = iter(dynamic)
        full = tuple(static[n] if n in static else next(values) for n in range(len(args)))
        full_named = {**named, **{k: v for k, v in static.items() if isinstance(k, str)}}
        donated = self._how.donated(args, kwargs)
        traced = lowering.trace(
            self._fun,
            self.name,
            full,
            full_named,
            donated,
            cluster().platform,
            self._how.static_argnums,
            self._how.static_argnames,
            self._argument_specs(dynamic, named),
            self._out_shardings,
            self._schedule,
        )
        if not traced.out_avals and not traced.callbacks:
            raise ProgramError(f"program '{self.name}' returns nothing, so there is nothing to compute")
        return Lowered(self.name, traced, signature, self._options)

    def _argument_specs(self, dynamic: tuple[Any, ...], named: dict[str, Any]) -> list[Spec]:
        """What the user says of the sharding of each flat argument."""
        if self._in_shardings is None:
            return []
        what = f"in_shardings of program '{self.name}'"
        positional_only(named, what)
        return flat_specs(self._in_shardings, dynamic, what)
