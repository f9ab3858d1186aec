"""Programs of `pw.program`: functions compiled once for each signature of their arguments."""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax

from pathways.compiler.backends.executable import CACHE_MISS, ProgramExecutable
from pathways.compiler.backends.homes import homes_of
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
    on_clear_caches,
    outside_meshes,
    trace_context,
    unflatten,
)
from pathways.compiler.frontend.memory_kinds import check_arguments, kind_of
from pathways.compiler.frontend.specs import Spec, flat_specs, positional_only
from pathways.compiler.frontend.trace import ProgramOptions, Traced, trace
from pathways.compiler.frontend.trace_state import active_trace, inlining
from pathways.compiler.frontend.trees import of_sealed
from pathways.compiler.frontend.user_code import documentation_of, warn
from pathways.compiler.lower.donation import unusable_donations
from pathways.compiler.lower.phases import ProgramError, run_phases
from pathways.compiler.lower.pipelining import why_not_pipelined
from pathways.compiler.stages import Lowered, lowered_of
from pathways.passes.pipeline import Options
from pathways.runtime.local.devices import cluster
from pathways.runtime.resources.virtual import ProcessBound
from pathways.runtime.xla.pjrt import memory_space
from pathways.runtime.xla.tracebacks import boundary, filter_traceback

_programs: weakref.WeakSet[Program[..., Any]] = weakref.WeakSet()


def _clear_all() -> None:
    """Makes programs trace again at their next call."""
    for program in list(_programs):
        program._executables, program._last = [], None


on_clear_caches(_clear_all)


class Program[**P, R](ProcessBound):
    """Function compiled for many slices; created by `pw.program`.

    A call runs it and returns at once. The first call with arguments of new types compiles it for them;
    `lower` and then `compile` do the same without a call, and give access to each stage.
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
            "`place(...)` moves arguments to the slices that read them.",
        )
        self.name = conventions.name
        self._fun = fun
        # One object for all signatures: JAX caches traces by it.
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
        _programs.add(self)

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
                result = last.try_fast_path(leaves)
                if result is not CACHE_MISS:
                    return result
            return self._call_slowly(leaves, tree, static, args, kwargs)
        except Exception as error:
            filter_traceback(error)
            raise

    @property
    def executables(self) -> tuple[ProgramExecutable, ...]:
        """The executables that it has been compiled to so far, the last used one first."""
        return tuple(sorted(self._executables, key=lambda executable: executable is not self._last))

    @boundary
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Traces the program and takes it through all passes, without devices or data.

        Args:
          *args: arrays, numbers or `jax.ShapeDtypeStruct`s; static arguments as they are.
          **kwargs: likewise.

        Raises:
          ProgramError: a pass rejects the program; names the place in the user's code.
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
            self._warn(reason)
        return lowered_of(
            forms,
            traced.interface,
            signature,
            callbacks=traced.callbacks,
            keepalive=traced.keepalive,
            schedule=schedule,
            options=self._options,
        )

    def traced(self, *args: Any, **kwargs: Any) -> tuple[Signature, Traced]:
        """Returns the traced program and its signature, for arguments as of `lower`."""
        signature = self._signature(args, kwargs)
        with outside_meshes():
            return signature, self._trace(signature, args, kwargs)

    @boundary
    def place(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Puts arguments on the slices that read them, so that calls need not move them; see
        `Compiled.place`.

        Args:
          *args: all arguments of a call; static ones as they are.
          **kwargs: likewise. They are part of the signature, and are not placed.

        Returns:
          The positional arguments.

        Raises:
          ProgramError: a pass rejects the program, when it is compiled for a new signature.
        """
        dynamic, named, static = self._conventions.split_static(args, kwargs)
        executable = self.loaded(*args, **kwargs)
        leaves, structure = flatten(dynamic)
        placed = unflatten(
            structure, list(executable.put_arguments(dict(enumerate(leaves)), copy=True).values())
        )
        return join_static(placed, named, static)[0]

    def loaded(self, *args: Any, **kwargs: Any) -> ProgramExecutable:
        """Returns the executable for arguments as of `lower`, and compiles it if there is none."""
        signature = self._signature(args, kwargs)
        leaves = self._leaves(args, kwargs)
        with self._compiling:
            candidates = self._candidates(leaves, signature.tree, signature.static)
            executable = next(
                (candidate for candidate in candidates if candidate.accepts_types(signature)), None
            )
            if executable is None:
                executable = self._load(leaves, args, kwargs)
        return executable

    def with_options(self, **changes: Any) -> Program[P, R]:
        """Returns the same program with some options of the compiler changed.

        Args:
          **changes: `policy` or `schedule_file`, `fuse`, and other fields of `passes.pipeline.Options`.
        """
        options = dataclasses.replace(self._options, **changes)
        changed = Program(
            self._fun, self._conventions, options, self._in_shardings, self._out_shardings, self._schedule
        )
        # The same function object, so that JAX reuses its traces.
        changed._traced = self._traced
        return changed

    def _call_slowly(
        self, leaves: list[Any], tree: Any, static: Static, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Calls the program when the fast path does not apply: arguments must move, or the signature is
        new."""
        if active_trace.program is not None:
            # A program called inside a program is inlined into it.
            dynamic, named, static = self._conventions.split_static(args, kwargs)
            dynamic, named = without_handles((dynamic, named), f"program '{self.name}'")
            args, kwargs = join_static(dynamic, named, static)
            if self._options.schedule_file:
                self._warn(
                    f"its schedule file '{self._options.schedule_file}' is of a whole program: called in "
                    f"program '{active_trace.program}', it runs in the order of that one"
                )
            with inlining(self._options.policy or self._schedule):
                return self._fun(*args, **kwargs)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return self._abstract_call(leaves, args, kwargs)
        ready = self._ready_executable(leaves, tree, static)
        if ready is None:
            with self._compiling:
                # Another thread may have compiled it in the meantime.
                ready = self._ready_executable(leaves, tree, static)
                if ready is None:
                    executable = self._load(leaves, args, kwargs)
                    ready = executable, executable.transfer_or_raise(leaves, tree)
        # Another thread may call it with other types, and replace `_last`, at any time.
        executable, brought = ready
        if not jax.config.jax_disable_jit:
            self._last = executable
        return executable.execute(brought)

    def _warn(self, reason: str) -> None:
        """Warns, once for each reason."""
        if reason not in self._warned:
            self._warned.add(reason)
            warn(f"program '{self.name}': {reason}")

    def _load(self, leaves: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ProgramExecutable:
        """Compiles the program, or loads it again if the hosts of an equal executable were lost; caches it.

        Under `jax.disable_jit` each call runs the user's Python, so no executable is cached.
        """
        usable = [cached for cached in self._executables if not cached.is_lost or cached.is_restorable]
        lost = [cached for cached in usable if cached.is_lost]
        signature = self._signature(args, kwargs) if lost else None
        restored = next(
            (
                cached
                for cached in lost
                if signature
                and cached.has_signature(signature)
                and cached.is_at_home(range(len(leaves)), leaves)
            ),
            None,
        )
        if restored is not None:
            executable = restored.load_again()
        else:
            executable = self.lower(*args, **kwargs).load(strict=True)
        if not jax.config.jax_disable_jit:
            self._executables = [*(cached for cached in usable if cached is not restored), executable]
        return executable

    def _abstract_call(self, leaves: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Binds the call to a trace of JAX, with results of the right types."""
        interface = self._trace(self._signature(args, kwargs, traced=True), args, kwargs).interface
        paths = functools.partial(self._conventions.paths, args, kwargs)
        return interface.out_tree.unflatten(abstract_call(self.name, leaves, paths, interface.out_avals))

    def _signature(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, traced: bool = False) -> Signature:
        """Returns the signature of arguments; `traced` if there may be tracers among them.

        Raises:
          TypeError: one of them is not a valid argument of a program.
        """
        dynamic, named, static = self._conventions.split_static(args, kwargs)
        pairs, tree = jax.tree_util.tree_flatten_with_path((dynamic, named))
        leaves = [_type_of(leaf) if traced else leaf for _, leaf in pairs]
        avals = abstract(leaves, self.name, lambda: self._conventions.paths(args, kwargs))
        kinds = tuple(kind_of(leaf) for leaf in leaves)
        if any(kinds):
            check_arguments(self.name, self._conventions.paths(args, kwargs), kinds)
            # Types of arrays on hosts may lack the memory.
            avals = [
                aval.update(memory_space=memory_space(kind)) for aval, kind in zip(avals, kinds, strict=True)
            ]
        else:
            kinds = ()
        keys = tuple(path for path, _ in pairs)
        return Signature(tree, keys, tuple(avals), static, trace_context(), kinds=kinds)

    def _ready_executable(
        self, leaves: list[Any], tree: Any, static: Static
    ) -> tuple[ProgramExecutable, list[Any]] | None:
        """Returns a compiled executable of these arguments, and the arguments on their slices; None if there
        is none."""
        # The last one first: most programs get a new array from the host in every call.
        for executable in self._candidates(leaves, tree, static):
            brought = executable.transfer_arguments(leaves)
            if brought is not None:
                return executable, brought
        return None

    def _candidates(self, leaves: list[Any], tree: Any, static: Static) -> Iterator[ProgramExecutable]:
        """Yields the executables for arguments on these slices, which may have other types."""
        context = trace_context()
        for executable in self.executables:
            if (
                tree == executable.tree
                and static == executable.static
                and context == executable.context
                and not executable.is_lost
                and executable.is_at_home(range(len(leaves)), leaves)
            ):
                yield executable

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
            signature.kinds or (),
        )
        sealed_args, sealed_kwargs = join_static(*signature.sealed(), signature.static)
        return trace(jitted, self.name, sealed_args, sealed_kwargs, cluster().platform, options)

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Returns the flat arguments, without static ones."""
        dynamic, named, _ = self._conventions.split_static(args, kwargs)
        return flatten((dynamic, named))[0]

    def _argument_specs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Spec]:
        """Returns the sharding that the user specified for each flat argument."""
        if self._in_shardings is None:
            return []
        dynamic, named, _ = self._conventions.split_static(args, kwargs)
        subject = f"in_shardings of program '{self.name}'"
        positional_only(named, subject)
        return flat_specs(self._in_shardings, dynamic, subject)


def _type_of(leaf: Any) -> Any:
    """Returns the type of a tracer, without its mesh; anything else as it is."""
    if not isinstance(leaf, Tracer):
        return leaf
    return jax.core.ShapedArray(leaf.shape, leaf.dtype, weak_type=jax.typeof(leaf).weak_type)
