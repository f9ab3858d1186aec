"""`pw.auto`: stages of a loss, cut by cost."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax

from pathways.compiler.auto.auto_plan import AutoPlan
from pathways.compiler.auto.flat_loss import flatten_loss
from pathways.compiler.auto.request import AutoRequest, TimesGiven, read_auto_request
from pathways.compiler.auto.search import CutSearch
from pathways.compiler.auto.tried_cuts import read_cuts
from pathways.dialect.spelling import renamed_keywords
from pathways.runtime.resources.virtual import VirtualSlice
from pathways.runtime.xla.tracebacks import boundary

SCHEDULES = ("1f1b", "zb-h1", "zb-v", "search")


@boundary
@renamed_keywords(microbatches="num_microbatches")
def auto(
    loss: Callable[..., Any],
    *,
    slices: Sequence[VirtualSlice],
    num_microbatches: int,
    args: tuple[Any, ...],
    has_aux: bool = False,
    schedules: Sequence[str] = SCHEDULES,
    speeds: Sequence[float] | None = None,
    times: TimesGiven = None,
    latency: str | float | None = None,
    bandwidth: str | float | None = None,
    max_bytes: str | int | None = None,
    plan: str | os.PathLike[str] | None = None,
) -> AutoPlan:
    """Cuts a loss into stages on slices, for the shortest simulated step.

    The loss is plain JAX in which nothing is placed. It is cut between its operations, around
    `jax.checkpoint` blocks, and between iterations of a `jax.lax.scan` over layers, whose stacked parameters
    become a block for each stage. Operations that depend on no microbatch are repeated on each stage that
    reads them. Cuts are found by dynamic programming over the floating point operations of forward and
    backward; the best of them, and the even split of layers, are compiled up to their schedules and
    simulated.

    Args:
      loss: the loss; its first argument are the parameters, which are cut, the others a microbatch.
      slices: the slices, in the order in which a microbatch goes through them.
      num_microbatches: the number of microbatches of a step.
      args: the arguments of the loss: arrays, or `jax.ShapeDtypeStruct`s.
      has_aux: whether the loss returns `(value, auxiliary)`, as in `jax.value_and_grad`.
      schedules: the schedules to choose from. With `zb-v` a V is also tried, with two stages on each slice.
      speeds: the work of each slice in a unit of time; by default its number of devices.
      times: the duration of units. The trace of a step with `plan.loss` (`pw.trace`), or more traces of
        different cuts; or a JSON file or a mapping, such as `{"units": {"0": "1ms", "4": "3ms"}}`. By default
        their floating point operations.
      latency: of links between slices, such as `5us`; a number of operations without `times`.
      bandwidth: of links between slices, such as `10GB/s`; a number of bytes per operation without `times`.
      max_bytes: the limit of bytes alive on a slice, such as `16GiB`.
      plan: a file that `plan.save` wrote: its cut is used again, without a search.

    Returns:
      The plan: `params`, `loss` and `schedule` for a program, `init`, `split` and `merge` for parameters.

    Raises:
      ProgramError: the loss cannot be cut; names the place.
      TypeError: an argument of another type.
      ValueError: an argument out of range, or a saved plan of another loss.
      TimesError: times or links that cannot be used.

    Source: Zheng et al., "Alpa", OSDI 2022, section 5.

    Example:
      ```python
      plan = pw.auto(loss, slices=[s0, s1], num_microbatches=8, args=(params, microbatch))
      params = plan.init(init, key)

      @pw.program(schedule=plan.schedule, donate_argnums=0)
      def step(params, batch):
          value, grads = pw.accumulate(jax.value_and_grad(plan.loss), 8)(params, batch)
          return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
      ```
    """
    request = read_auto_request(
        loss,
        slices,
        num_microbatches,
        args,
        has_aux=has_aux,
        schedules=schedules,
        speeds=speeds,
        times=times,
        latency=latency,
        bandwidth=bandwidth,
        max_bytes=max_bytes,
    )
    flat, shapes = flatten_loss(request.loss, request.args, request.name)
    _check_results(request, shapes)
    search = CutSearch(request, flat, shapes)
    return search.plan() if plan is None else search.again(read_cuts(plan, request, flat))


def _check_results(request: AutoRequest, shapes: Any) -> None:
    """Checks that `jax.value_and_grad` accepts the result of a loss; raises TypeError if not."""
    value = shapes
    if request.has_aux:
        if not isinstance(shapes, tuple) or len(shapes) != 2:
            raise TypeError(
                f"{request.subject}: with has_aux it must return (value, auxiliary), got {shapes}"
            )
        value = shapes[0]
    scalar = hasattr(value, "shape") and not value.shape
    if not scalar or not jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
        raise TypeError(f"{request.subject}: it must return a scalar of floats, got {value}")
