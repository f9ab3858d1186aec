"""A function compiled once for each signature of its arguments."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import jax

from pathways.compiler.backends.executable import ProgramExecutable
from pathways.compiler.backends.homes import homes_of
from pathways.compiler.backends.local_executable import UNLIKE
from pathways.compiler.chunks import lowered
from pathways.compiler.frontend.abstract_call import abstract_call
from pathways.compiler.frontend.arguments import (
    Conventions,
    Signature,
    Static,
    abstract,
    join_static,
    without_handles,
)
from pathways.compiler.frontend.jax_internals import (
    Tracer,
    flatten,
    outside_meshes,
    trace_context,
    unflatten,
)
from pathways.compiler.frontend.names import documentation_of
from pathways.compiler.frontend.notices import warn
from pathways.compiler.frontend.specs import Spec, flat_specs, positional_only
from pathways.compiler.frontend.trace import ProgramOptions, Traced, trace
from pathways.compiler.frontend.trace_state import active_trace
from pathways.compiler.frontend.trees import of_sealed
from pathways.compiler.lower.donation import unusable_donations
from pathways.compiler.lower.phases import ProgramError, run_phases
from pathways.compiler.lower.pipelining import why_not_pipelined
from pathways.compiler.stages import Lowered
from pathways.passes.pipeline import Options
from pathways.runtime.local.devices import cluster
from pathways.runtime.resources.virtual import ProcessBound
from pathways.runtime.xla.tracebacks import boundary, filter_traceback


class Program[**P, R](ProcessBound):
    """A function compiled for many slices; made by `pw.program`.

    A call runs it and returns at once. The first one with arguments of new types compiles it for them;
    `lower` and then `compile` do so without a call, and show what becomes of it on the way.
    """

    def __init__(
        self,
        fun: Callable[P, R],
        conventions: Conventions,
        options: Options,
        in_shardings: Any = None,
        out_shardings: Any = None,
        schedule: str | None = None,
    ) -> None:
        functools.update_wrapper(self, fun)
        self.__doc__ = documentation_of(
            fun,
            "A program of pathways: a call runs it on its slices and returns arrays that are ready later.\n"
            "`lower(...)` takes it through the passes without devices, `lower(...).compile()` compiles it,\n"
            "`place(...)` moves arguments to where the program reads them.",
        )
        self.name = conventions.name
        self._fun = fun
        # One object for all signatures: JAX remembers what it traced by it.
        self._traced = of_sealed(fun, conventions.name)
        self._options = options
        self._conventions = conventions
        self._in_shardings = in_shardings
        self._out_shardings = out_shardings
        self._schedule = schedule
        self._has_static = conventions.has_static
        self._executables: list[ProgramExecutable] = []
        self._last: ProgramExecutable | None = None
        self._compiling = threading.Lock()
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"<pw.program {self.name}>"

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the program and returns at once, with arrays that become ready later."""
        # As `boundary`, without the time of a wrapper.
        try:
            static: Static = ()
            if self._has_static:
                dynamic, named, static = self._conventions.split_static(args, kwargs)
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
                result = last.execute_if_like_last(leaves)
                if result is not UNLIKE:
                    return result
            return self._call_slowly(leaves, tree, static, args, kwargs)
        except Exception as error:
            filter_traceback(error)
            raise

    @property
    def executables(self) -> tuple[ProgramExecutable, ...]:
        """What it has been compiled for so far."""
        return tuple(self._executables)

    @boundary
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Traces the program and takes it through all passes, without devices or data.

        Args:
          *args: arrays, numbers or `jax.ShapeDtypeStruct`s; static arguments as they are.
          **kwargs: likewise.

        Raises:
          ProgramError: when a pass refuses the program; names the place in the user's code.
        """
        signature, traced = self.traced(*args, **kwargs)
        if not traced.interface.out_avals and not traced.callbacks:
            raise ProgramError(f"program '{self.name}' returns nothing, so there is nothing to compute")
        forms = run_phases(traced.module, self.name, self._options)
        schedule = self._options.schedule_file or self._options.policy or self._schedule
        for reason in (
            *why_not_pipelined(forms.scheduled, schedule),
            *unusable_donations(
                forms.scheduled, traced.interface.argument_paths, gathers=self._options.zero1
            ),
        ):
            if reason not in self._warned:
                self._warned.add(reason)
                warn(f"program '{self.name}': {reason}")
        return lowered(
            forms,
            traced.interface,
            signature,
            callbacks=traced.callbacks,
            keepalive=traced.keepalive,
            schedule=schedule,
        )

    def traced(self, *args: Any, **kwargs: Any) -> tuple[Signature, Traced]:
        """The program before all passes, for arguments as `lower` takes them, and their signature."""
        signature = self._signature(args, kwargs)
        with outside_meshes():
            return signature, self._trace(signature, args, kwargs)

    @boundary
    def place(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Puts arguments on the slices that read them, so that calls need not; see `Compiled.place`.

        Args:
          *args: all arguments of a call; static ones as they are.
          **kwargs: likewise. They are compiled for, and not placed.

        Returns:
          The positional arguments.

        Raises:
          ProgramError: a pass refuses the program, which is compiled for arguments that are new to it.
        """
        dynamic, named, static = self._conventions.split_static(args, kwargs)
        signature = self._signature(args, kwargs)
        with self._compiling:
            executable = next((known for known in self._executables if known.is_for(signature)), None)
            if executable is None:
                executable = self.lower(*args, **kwargs).load(strict=True)
                self._keep(executable)
        leaves, structure = flatten(dynamic)
        placed = unflatten(structure, list(executable.place(dict(enumerate(leaves))).values()))
        return join_static(placed, named, static)[0]

    def with_options(self, **changes: Any) -> Program[P, R]:
        """The same program with some options of the compiler changed.

        Args:
          **changes: `policy` or `schedule_file`, `fuse`, and the others of `passes.pipeline.Options`.
        """
        options = dataclasses.replace(self._options, **changes)
        changed = Program(
            self._fun, self._conventions, options, self._in_shardings, self._out_shardings, self._schedule
        )
        changed._traced = self._traced
        return changed

    def _call_slowly(
        self,
        leaves: list[Any],
        tree: Any,
        static: Static,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call that brings something new: arguments to move, or a signature to compile."""
        if active_trace.program is not None:
            # A program called inside a program is part of it.
            dynamic, named, static = self._conventions.split_static(args, kwargs)
            dynamic, named = without_handles((dynamic, named), f"program '{self.name}'")
            args, kwargs = join_static(dynamic, named, static)
            return self._fun(*args, **kwargs)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return self._abstract_call(leaves, args, kwargs)
        ready = self._ready_executable(leaves, tree, static)
        if ready is None:
            with self._compiling:
                # Another thread may have been faster.
                ready = self._ready_executable(leaves, tree, static)
                if ready is None:
                    executable = self.lower(*args, **kwargs).load(strict=True)
                    self._keep(executable)
                    ready = executable, executable.transfer_in_or_fail(leaves, tree)
        self._last, brought = ready
        return self._last.execute(brought)

    def _keep(self, executable: ProgramExecutable) -> None:
        """Keeps what was compiled, and no more what is for devices that were left."""
        self._executables = [*(kept for kept in self._executables if kept.context is not None), executable]

    def _abstract_call(self, leaves: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call under a trace of JAX, which gets results of the right types."""
        interface = self._trace(self._signature(args, kwargs, traced=True), args, kwargs).interface
        paths = functools.partial(self._conventions.paths, args, kwargs)
        return interface.out_tree.unflatten(abstract_call(self.name, leaves, paths, interface.out_avals))

    def _signature(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, traced: bool = False) -> Signature:
        """What these arguments specialise the program for; `traced` for tracers among them.

        Raises:
          TypeError: one of them is nothing that a program takes.
        """
        dynamic, named, static = self._conventions.split_static(args, kwargs)
        pairs, tree = jax.tree_util.tree_flatten_with_path((dynamic, named))
        leaves = [_type_of(leaf) if traced else leaf for _, leaf in pairs]
        avals = abstract(leaves, self.name, lambda: self._conventions.paths(args, kwargs))
        return Signature(tree, tuple(path for path, _ in pairs), tuple(avals), static, trace_context())

    def _ready_executable(
        self, leaves: list[Any], tree: Any, static: Static
    ) -> tuple[ProgramExecutable, list[Any]] | None:
        """The compiled signature that these arguments have, and the arguments on their slices."""
        context = trace_context()
        # The last one first: most programs get a new array from the host in every call.
        for executable in sorted(self._executables, key=lambda known: known is not self._last):
            if tree == executable.tree and static == executable.static and context == executable.context:
                homes = executable.interface.homes
                if homes and homes != homes_of(leaves):
                    continue
                brought = executable.transfer_in(leaves)
                if brought is not None:
                    return executable, brought
        return None

    def _trace(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
        jitted = jax.jit(
            self._traced,
            static_argnums=self._conventions.static_argnums or None,
            static_argnames=self._conventions.static_argnames or None,
            keep_unused=True,
        )
        options = ProgramOptions(
            self._conventions.donated(args, kwargs),
            self._argument_specs(args, kwargs),
            self._out_shardings,
            self._schedule,
            homes_of(self._leaves(args, kwargs)),
        )
        sealed_args, sealed_kwargs = join_static(*signature.sealed(), signature.static)
        return trace(jitted, self.name, sealed_args, sealed_kwargs, cluster().platform, options)

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The flat arguments, without static ones."""
        dynamic, named, _ = self._conventions.split_static(args, kwargs)
        return flatten((dynamic, named))[0]

    def _argument_specs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Spec]:
        """What the user says of the sharding of each flat argument."""
        if self._in_shardings is None:
            return []
        dynamic, named, _ = self._conventions.split_static(args, kwargs)
        what = f"in_shardings of program '{self.name}'"
        positional_only(named, what)
        return flat_specs(self._in_shardings, dynamic, what)


def _type_of(leaf: Any) -> Any:
    """The type of a tracer, without the mesh that it may name; anything else as it is."""
    if not isinstance(leaf, Tracer):
        return leaf
    return jax.core.ShapedArray(leaf.shape, leaf.dtype, weak_type=jax.typeof(leaf).weak_type)
