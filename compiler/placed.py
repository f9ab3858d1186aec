"""Placed functions of `pw.jit`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pathways.compiler.frontend.arguments import conventions_of, join_static, without_handles
from pathways.compiler.frontend.jax_internals import Tracer, placed_call
from pathways.compiler.frontend.memory_kinds import in_their_memory
from pathways.compiler.frontend.meshes import NO_MESH, off_mesh, refuse_mesh, results_off_mesh
from pathways.compiler.frontend.specs import abstract_mesh, checked, flat_specs, positional_only
from pathways.compiler.frontend.trace_state import active_trace, register_slice
from pathways.compiler.frontend.user_code import documentation_of, symbol_of
from pathways.compiler.program import Program
from pathways.compiler.stages import Lowered
from pathways.dialect.operations.metadata import CallMetadata
from pathways.passes.pipeline import Options
from pathways.runtime.resources.virtual import ProcessBound, VirtualSlice
from pathways.runtime.xla.tracebacks import boundary, filter_traceback

_SHOWN = 8
"""Limit of the arguments that a message lists."""


class PlacedFunction[**P, R](ProcessBound):
    """Function that runs on all devices of a slice; created by `pw.jit`.

    Called inside a program it becomes one computation of it. Called alone it is a program of one launch.
    """

    def __init__(
        self,
        fun: Callable[P, R],
        devices: VirtualSlice,
        stage: int | None,
        in_shardings: Any,
        out_shardings: Any,
        static_argnums: int | Sequence[int] | None,
        static_argnames: str | Sequence[str] | None,
    ) -> None:
        functools.update_wrapper(self, fun)
        self.__doc__ = documentation_of(
            fun, f"Placed on {devices!r} by `pw.jit`: one computation of the programs that call it."
        )
        self.fun = fun
        self.devices = devices
        self.stage = stage
        self.name = symbol_of(fun)
        self._conventions = conventions_of(
            fun, self.name, static_argnums=static_argnums, static_argnames=static_argnames
        )
        # `fun` may be a placed function itself, whose attributes `update_wrapper` has copied.
        self._alone: Program[P, R] | None = None
        self._with_static: dict[Any, Callable[..., Any]] = {}
        self._mesh = abstract_mesh(devices)
        self._in_shardings = in_shardings
        self._out_shardings = out_shardings
        # One object for all calls: JAX traces a function object once per signature.
        self._body = self._on_mesh(fun)
        register_slice(devices)

    def __repr__(self) -> str:
        return f"<pw.jit {self.name} on {self.devices.name}>"

    @property
    def alone(self) -> Program[P, R]:
        """The program of one launch that a call outside of other programs runs."""
        if self._alone is None:
            self._alone = Program(self, self._conventions, Options())
        return self._alone

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function on its slice, or adds the call to the program that is being traced."""
        # As `boundary`, without the time of a wrapper.
        try:
            if active_trace.program is None:
                for leaf in jax.tree.leaves((args, kwargs)):
                    if isinstance(leaf, Tracer):
                        raise TypeError(
                            f"'{self.name}', placed on {self.devices.name}, was called under a JAX "
                            "transformation outside a program; put the outermost function under @pw.program "
                            "instead of jax.jit, and transformations such as jax.grad inside it"
                        )
                return self.alone(*args, **kwargs)
            refuse_mesh(f"'{self.name}', placed on {self.devices.name}", jax.tree.leaves((args, kwargs)))
            metadata = CallMetadata(
                name=self.name, slice=self.devices.name, call=str(active_trace.calls), stage=self.stage
            )
            active_trace.calls += 1
            fun, passed, named = self._bind_static(args, kwargs)
            call = placed_call(fun, metadata)
            passed, named = off_mesh(
                without_handles((passed, named), f"'{self.name}', placed on {self.devices.name},")
            )
            try:
                # Outside of the call, which then has no residuals except values that its backward reads.
                return results_off_mesh(call(*passed, **named))
            except Exception as error:
                error.add_note(f"'{self.name}', placed on {self.devices.name}, got {_types(passed, named)}")
                raise
        except Exception as error:
            filter_traceback(error)
            raise

    @boundary
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Lowers the program of one launch; see `Program.lower`."""
        return self.alone.lower(*args, **kwargs)

    def _on_mesh(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function as it is traced: on the mesh of its slice, with constrained arguments and
        results."""

        @functools.wraps(fun)
        def body(*args: Any, **kwargs: Any) -> Any:
            with (
                # JAX cannot switch between meshes of different sizes directly, only through no mesh.
                jax.sharding.use_abstract_mesh(NO_MESH),
                jax.sharding.use_abstract_mesh(self._mesh),
                active_trace.set(placed=True, loop=None),
            ):
                if self._in_shardings is not None:
                    positional_only(kwargs, f"in_shardings of '{self.name}'")
                    args = self._constrain(args, self._in_shardings, "in_shardings")
                results = fun(*args, **kwargs)
                if self._out_shardings is not None:
                    results = self._constrain(results, self._out_shardings, "out_shardings")
                return in_their_memory(results)

        return body

    def _constrain(self, tree: Any, specs: Any, option: str) -> Any:
        subject = f"{option} of '{self.name}'"
        leaves, structure = jax.tree.flatten(tree)
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        constrained = []
        for leaf, path, spec in zip(leaves, paths, flat_specs(specs, tree, subject), strict=True):
            if spec is not None:
                checked(spec, jnp.shape(leaf), self.devices, f"{subject} at {path or 'the result'}")
                leaf = jax.lax.with_sharding_constraint(leaf, spec)
            constrained.append(leaf)
        return jax.tree.unflatten(structure, constrained)

    def _bind_static(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Binds static arguments; equal ones give the same function object, so that JAX traces it once."""
        dynamic, named, static = self._conventions.split_static(args, kwargs)
        if not static:
            return self._body, args, kwargs
        key = len(args), static
        if key not in self._with_static:

            @functools.wraps(self.fun)
            def bound(*dynamic: Any, **named: Any) -> Any:
                full, all_named = join_static(dynamic, named, static)
                return self.fun(*full, **all_named)

            self._with_static[key] = self._on_mesh(bound)
        return self._with_static[key], dynamic, named


def _types(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Returns the types of arguments, for a message."""
    leaves = jax.tree.leaves((args, kwargs))
    more = f" and {len(leaves) - _SHOWN} more" if len(leaves) > _SHOWN else ""
    return (", ".join(map(_type, leaves[:_SHOWN])) or "nothing") + more


def _type(leaf: Any) -> str:
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
