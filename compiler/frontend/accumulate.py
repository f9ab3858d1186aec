"""`pw.accumulate`: turns a function of one microbatch into a function of the whole batch."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pathways.compiler.frontend.arguments import without_handles
from pathways.compiler.frontend.jax_internals import Tracer, line_of_user, metadata_call
from pathways.compiler.frontend.meshes import is_array
from pathways.compiler.frontend.trace_state import active_trace, counts_are_checked
from pathways.compiler.frontend.trees import flat_prefix, name_of
from pathways.compiler.frontend.user_code import symbol
from pathways.dialect.attributes.names import MAX_MICROBATCHES
from pathways.dialect.operations.metadata import CallMetadata, Mark
from pathways.passes.schedule.policies.custom import register
from pathways.passes.schedule.policies.pipeline import Policy
from pathways.passes.schedule.policies.request import RequestError, read_request
from pathways.runtime.xla.tracebacks import boundary

REDUCTIONS = ("mean", "sum", "concat")

_numbers = itertools.count()


@boundary
def accumulate(
    fun: Callable[..., Any],
    num_microbatches: int,
    *,
    reduce: Any = "mean",
    batch_argnums: int | Sequence[int] | None = None,
    carry_argnums: int | Sequence[int] | None = None,
    schedule: str | Policy | None = None,
) -> Callable[..., Any]:
    """Returns a function that processes a batch in microbatches and reduces their results.

    The leading axis of every array in the batch is cut into `num_microbatches` equal blocks, `fun` is
    traced once, and each of its results is reduced over the microbatches. Take gradients inside `fun`.

    Inside a program this becomes a pipeline: calls of placed functions in `fun` run for different
    microbatches at the same time, in the order of the program's schedule. Anywhere else, under `jax.jit`
    too, it is a `jax.lax.scan` with the same result.

    Args:
      fun: a function of a microbatch, such as `fun(params, microbatch)`.
      num_microbatches: the number of microbatches of a batch; divides the leading axis of all its arrays.
      reduce: `mean`, `sum` or `concat` (along the leading axis) for each result, as a tree or a prefix of
        one. Means and sums are taken in the dtype of the result, microbatch by microbatch.
      batch_argnums: positions of the arguments that are cut; by default all but the first and the carried
        ones.
      carry_argnums: positions of arguments that each microbatch passes on to the next, such as batch
        statistics or a key. `fun` then returns `(carry, results)`, like the function of `jax.lax.scan`: the
        argument for the next microbatch, or a tuple of them if more than one position is given, and the
        values to reduce.
      schedule: the policy of this loop, by name or as a function, in place of the one of
        `pw.program(schedule=...)`. Outside of a program it has no effect.

    Returns:
      A function with the arguments of `fun`, whole batches in place of microbatches. With `carry_argnums` it
        returns `(carry, results)`, where `carry` is the carry of the last microbatch.

    Raises:
      ValueError: an unknown reduction or policy, or a number that is too small or too large; when the
        function is called, a batch that does not divide, or nested loops; from the program, a reference
        (`jax.new_ref`) that `fun` writes and did not create.
      TypeError: the result is differentiated, or a carried argument changes its type.

    Example:
      ```python
      @pw.program(schedule="1f1b", donate_argnums=0)
      def step(params, batch):
          loss, grads = pw.accumulate(jax.value_and_grad(loss_fn), 8)(params, batch)
          return loss, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
      ```
    """
    if not callable(fun):
        raise TypeError(f"pw.accumulate expects a function, got {type(fun).__name__}")
    if isinstance(num_microbatches, bool) or not isinstance(num_microbatches, int | np.integer):
        raise TypeError(f"num_microbatches must be an integer, got {num_microbatches!r}")
    if num_microbatches < 1:
        raise ValueError(f"num_microbatches must be at least 1, got {num_microbatches}")
    if num_microbatches > MAX_MICROBATCHES:
        raise ValueError(f"num_microbatches must be at most {MAX_MICROBATCHES}, got {num_microbatches}")
    for kind in jax.tree.leaves(reduce):
        if kind not in REDUCTIONS:
            raise ValueError(f"reduce must be one of {', '.join(REDUCTIONS)} for each result, got {kind!r}")
    name = symbol(getattr(fun, "__name__", "loop"))
    loop = _MicrobatchLoop(
        fun,
        name,
        int(num_microbatches),
        reduce,
        batch_argnums,
        carry_argnums,
        None if schedule is None else _policy_of(schedule, name),
    )

    # Without the attributes of `fun`, which would make this a placed function if `fun` is one.
    @functools.wraps(fun, updated=())
    def accumulated(*args: Any, **kwargs: Any) -> Any:
        return loop(*args, **kwargs)

    return accumulated


def _policy_of(schedule: Any, name: str) -> str:
    """Returns the policy that a loop requests, with its options; raises TypeError or ValueError for none."""
    if callable(schedule):
        return register(schedule)
    subject = f"pw.accumulate of '{name}' at {line_of_user()}"
    if not isinstance(schedule, str):
        raise TypeError(f"{subject}: schedule must be a policy, got {type(schedule).__name__}")
    if schedule.endswith(".csv"):
        raise ValueError(
            f"{subject}: a file schedules all loops of a program: use "
            f"pw.program(schedule={schedule!r}) for it"
        )
    try:
        return str(read_request(schedule).with_absolute_times())
    except RequestError as error:
        raise ValueError(f"{subject}: schedule is {error}") from None


class _MicrobatchLoop:
    """Loop that calls `fun` for every microbatch of a batch."""

    def __init__(
        self,
        fun: Callable[..., Any],
        name: str,
        count: int,
        reduce: Any,
        batch_argnums: int | Sequence[int] | None,
        carry_argnums: int | Sequence[int] | None,
        schedule: str | None,
    ) -> None:
        self.fun = fun
        self.name = name
        self.count = count
        self.reduce = reduce
        self.batch_argnums = (batch_argnums,) if isinstance(batch_argnums, int) else batch_argnums
        self.carry_argnums = (carry_argnums,) if isinstance(carry_argnums, int) else carry_argnums
        self.schedule = schedule
        self.carries_one = isinstance(carry_argnums, int)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if active_trace.program is not None:
            args, kwargs = without_handles((args, kwargs), f"pw.accumulate of '{self.name}'")
        carried = self._carried_positions(len(args))
        batch = {n: self._checked(args[n], n) for n in self._cut_positions(len(args), carried)}
        if not jax.tree.leaves(batch):
            raise ValueError(f"pw.accumulate of '{self.name}': no batch to cut: it contains no array")
        self._check_alike(batch)
        if active_trace.loop is not None:
            raise ValueError(
                f"pw.accumulate of '{self.name}' is called inside pw.accumulate of '{active_trace.loop}': "
                "loops over microbatches cannot be nested; see the recipe 'Two towers' of docs/recipes.md"
            )

        def of_block(carry: list[Any], block: dict[int, Any]) -> tuple[list[Any], Any]:
            inputs = block | dict(zip(carried, carry, strict=True))
            results = self.fun(*(inputs.get(n, arg) for n, arg in enumerate(args)), **kwargs)
            return self._handed_on(carry, results) if carried else ([], results)

        init = [jax.tree.map(lambda leaf: _without_gradient(_as_array(leaf)), args[n]) for n in carried]
        in_program = active_trace.program is not None and not active_trace.placed
        with active_trace.set(loop=self.name):
            loop = self._in_program if in_program else self._scan
            carry, results = loop(of_block, init, batch)
        if self.carry_argnums is None:
            return results
        return carry[0] if self.carries_one else tuple(carry), results

    def _carried_positions(self, count: int) -> list[int]:
        """Returns the positions of the arguments that microbatches pass on."""
        carried = [n % count if -count <= n < count else n for n in self.carry_argnums or ()]
        if not all(0 <= n < count for n in carried) or len(set(carried)) < len(carried):
            raise ValueError(
                f"pw.accumulate of '{self.name}': carry_argnums={self.carry_argnums} must be different "
                f"positions of the {count} positional arguments that it is called with"
            )
        return carried

    def _cut_positions(self, count: int, carried: Sequence[int]) -> list[int]:
        """Returns the positions of the arguments that are cut into microbatches."""
        if self.batch_argnums is None:
            cut = [n for n in range(1, count) if n not in carried]
        else:
            cut = [n % count if -count <= n < count else n for n in self.batch_argnums]
        both = sorted(set(cut) & set(carried))
        if both:
            raise ValueError(
                f"pw.accumulate of '{self.name}': argument {both[0]} cannot be both split and carried"
            )
        if not cut or not all(0 <= n < count for n in cut):
            carried_too = " and the carried ones" if carried else ""
            default = self.batch_argnums is None
            batch = f"all but the first{carried_too} are" if default else f"{self.batch_argnums} would be"
            raise ValueError(
                f"pw.accumulate of '{self.name}': no batch to cut: called with {count} positional arguments, "
                f"and {batch} the batch; see batch_argnums"
            )
        return cut

    def _handed_on(self, carry: list[Any], results: Any) -> tuple[list[Any], Any]:
        """Returns the checked carry for the next microbatch, and the results of this one."""
        subject = f"pw.accumulate of '{self.name}'"
        if not isinstance(results, tuple) or len(results) != 2:
            raise TypeError(
                f"{subject}: with carry_argnums the function returns (carry, results), as that of "
                f"jax.lax.scan, got {_shown(results)}"
            )
        expected: Any = carry[0] if self.carries_one else tuple(carry)
        if _shown(results[0]) != _shown(expected):
            raise TypeError(
                f"{subject}: the new carry must have the structure of the old one, {_shown(expected)}, got "
                f"{_shown(results[0])}"
            )

        def check(path: Any, old: Any, new: Any) -> Any:
            new = _as_array(new)
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                raise TypeError(
                    f"{subject}: carry{name_of(path)} is passed on as {new.dtype}"
                    f"{list(new.shape)}, but carried as {old.dtype}{list(old.shape)}"
                )
            return new

        following = jax.tree_util.tree_map_with_path(check, expected, results[0])
        return [following] if self.carries_one else list(following), results[1]

    def _checked(self, batch: Any, position: int) -> Any:
        """Returns a batch as JAX arrays that each divide into microbatches."""

        def check(path: Any, leaf: Any) -> Any:
            array = _as_array(leaf)
            subject = f"argument {position}{name_of(path)} of '{self.name}'"
            if array.ndim == 0:
                raise ValueError(
                    f"pw.accumulate: {subject} is a scalar: a batch is split along its leading axis; pass "
                    "what all microbatches share as the first argument, or see batch_argnums"
                )
            if array.shape[0] % self.count:
                raise ValueError(
                    f"pw.accumulate: {subject} has shape {array.shape}: its leading axis of {array.shape[0]} "
                    f"is not divisible into {self.count} microbatches"
                )
            return _without_gradient(array)

        return jax.tree_util.tree_map_with_path(check, batch)

    def _check_alike(self, batch: dict[int, Any]) -> None:
        """Checks that all arrays of a batch have as many rows. A microbatch may have any number of keys."""
        first: dict[int, str] = {}
        for number, argument in batch.items():
            for path, array in jax.tree_util.tree_leaves_with_path(argument):
                if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
                    continue
                first.setdefault(array.shape[0], f"argument {number}{name_of(path)} of shape {array.shape}")
        if len(first) > 1:
            left, right, *_ = first.values()
            raise ValueError(
                f"pw.accumulate of '{self.name}': {left} and {right} have different leading axes: a batch is "
                "cut along one; pass what all microbatches share as the first argument, or see batch_argnums"
            )

    def _kinds(self, results: Any) -> list[str]:
        """Returns the checked reduction of each flat result."""
        subject = f"pw.accumulate of '{self.name}'"
        try:
            kinds = flat_prefix(self.reduce, results)
        except ValueError:
            raise ValueError(
                f"{subject}: reduce must be a tree like that of the results or a prefix of one: it is "
                f"{_shown(self.reduce)}, the results are {_shown(results)}"
            ) from None

        pairs = jax.tree_util.tree_leaves_with_path(results)
        for kind, (path, result) in zip(kinds, pairs, strict=True):
            dtype, shape = result.dtype, result.shape
            name = f"{subject}: result{name_of(path)} of type {dtype}{list(shape)}"
            if kind == "concat" and not shape:
                raise ValueError(f"{name} is a scalar and cannot be concatenated; give it an axis of one")
            if kind == "mean" and not jnp.issubdtype(dtype, jnp.inexact):
                raise ValueError(f"{name} has no mean in its own dtype; use reduce='sum'")
            if kind == "sum" and not jnp.issubdtype(dtype, jnp.number):
                raise ValueError(f"{name} cannot be summed; use reduce='concat'")
        return kinds

    def _in_program(self, of_block: _OfBlock, init: list[Any], batch: Any) -> tuple[list[Any], Any]:
        """Traces one microbatch, between calls that mark its begin and end."""
        number = str(next(_numbers))
        schedule = self.schedule or active_trace.schedule
        loop = CallMetadata(name=self.name, loop=number, count=self.count, schedule=schedule)

        def marked(mark: Mark, compute: Callable[..., Any]) -> Callable[..., Any]:
            return metadata_call(compute, dataclasses.replace(loop, mark=mark).strings())

        def split(array: jax.Array) -> jax.Array:
            return jax.lax.slice_in_dim(array, 0, array.shape[0] // self.count)

        def join(kind: str, value: jax.Array) -> jax.Array:
            if kind == "concat":
                return marked("concat", lambda v: jnp.concatenate([v] * self.count))(value)
            # Like a sum that starts from a zero of that dtype, it has no weak type.
            value = jax.lax.convert_element_type(value, value.dtype)
            return _total(kind, marked("sum", lambda v: v)(value), self.count)

        carry = jax.tree.map(marked("carry", lambda v: v), init)
        cut = marked("split", split)
        microbatch = cut(jnp.arange(self.count)) if counts_are_checked() else None
        with active_trace.set(microbatch=microbatch):
            following, results = of_block(carry, jax.tree.map(cut, batch))
        # An ordinary call, which marks the end of a microbatch for `checkify` before anything is reduced.
        end = metadata_call(lambda *values: values, loop.strings())
        following, results = end(following, jax.tree.map(_as_array, results))
        # The old carry is an operand so that the pass that reads the marks can pair the two.
        last = jax.tree.map(marked("next", lambda _, v: v), carry, following)
        structure: Any
        leaves, structure = jax.tree.flatten(results)
        reduced = map(join, self._kinds(results), leaves)
        return jax.tree.map(_without_gradient, (last, structure.unflatten(reduced)))

    def _scan(self, of_block: _OfBlock, init: list[Any], batch: Any) -> tuple[list[Any], Any]:
        """Returns the same results from a `jax.lax.scan`."""
        blocks = jax.tree.map(lambda a: a.reshape(self.count, a.shape[0] // self.count, *a.shape[1:]), batch)
        traced: list[tuple[Any, list[str]]] = []

        def flat(carry: list[Any], block: Any) -> tuple[list[Any], list[Any]]:
            following, results = of_block(carry, block)
            results = jax.tree.map(_as_array, results)
            # The trace returns arrays alone; the structure and the reductions are read from here.
            traced.append((jax.tree.structure(results), self._kinds(results)))
            return jax.tree.leaves(following), jax.tree.leaves(results)

        # Traced once: for the shapes of the results, and for the scan.
        flat = jax.jit(flat)
        _, shapes = jax.eval_shape(flat, init, jax.tree.map(lambda a: a[0], blocks))
        structure, kinds = traced[0]
        zeros = [
            None if kind == "concat" else jnp.zeros(shape.shape, shape.dtype)
            for kind, shape in zip(kinds, shapes, strict=True)
        ]
        carried: Any = jax.tree.structure(init)

        def step(before: tuple[list[Any], list[Any]], block: Any) -> tuple[Any, list[Any]]:
            carry, totals = before
            following, values = flat(carry, block)
            added = [None if t is None else t + v for t, v in zip(totals, values, strict=True)]
            stacked = [v if t is None else None for t, v in zip(totals, values, strict=True)]
            return (carried.unflatten(following), added), stacked

        (last, totals), stacked = jax.lax.scan(step, (init, zeros), blocks)
        results = [
            s.reshape(self.count * s.shape[1], *s.shape[2:])
            if total is None
            else _total(kind, total, self.count)
            for kind, total, s in zip(kinds, totals, stacked, strict=True)
        ]
        return jax.tree.map(_without_gradient, (last, jax.tree.unflatten(structure, results)))


_OfBlock = Callable[[list[Any], dict[int, Any]], tuple[list[Any], Any]]
"""Function from the carry and a microbatch to the next carry and the results."""


def _shown(tree: Any) -> str:
    """Returns the structure of a tree, with `*` for leaves."""
    return str(jax.tree.structure(tree)).removeprefix("PyTreeDef(").removesuffix(")")


def _as_array(leaf: Any) -> jax.Array:
    if isinstance(leaf, Tracer) and not is_array(leaf):
        raise TypeError(
            f"pw.accumulate: microbatches carry and return arrays, got a value of type {jax.typeof(leaf)}"
        )
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)


def _total(kind: str, total: jax.Array, count: int) -> jax.Array:
    return total / count if kind == "mean" else total


@jax.custom_jvp
def _without_gradient(array: jax.Array) -> jax.Array:
    """Returns the array itself, and raises an error when it is differentiated."""
    return array


@_without_gradient.defjvp
def _refuse_gradient(primals: Any, tangents: Any) -> Any:
    raise TypeError(
        "pw.accumulate cannot be differentiated: take the gradient inside the function that it is given, as "
        "in pw.accumulate(jax.value_and_grad(loss), num_microbatches)(params, batch)"
    )
