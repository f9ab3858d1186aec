"""Orders by OR-tools' CP-SAT, from the best known order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pathways.passes.schedule.search.replay import replay
from pathways.passes.schedule.search.scheduling_problem import SearchProblem

_TICKS = 100_000
"""Into how many units of time a step is cut."""

_EFFORT = 20.0
"""CP-SAT's deterministic time where no time is given: about as many seconds."""


class NoSolverError(ImportError):
    """Error where OR-tools is not installed; the message states how to install it."""


def cp_model_or_fail() -> Any:
    """Imports OR-tools' module for CP-SAT.

    Raises:
      NoSolverError: OR-tools is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        message = f"needs OR-tools: pip install 'pathways-mlir[search]' ({error})"
        raise NoSolverError(message) from None
    return cp_model


def solve(
    problem: SearchProblem, orders: Sequence[Sequence[int]], seconds: float | None, seed: int
) -> list[list[int]] | None:
    """Looks for a faster order; None when none was found.

    Args:
      problem: the actions to order.
      orders: the best orders that are known, from which it starts.
      seconds: how long it may look; None for an effort that is the same on every machine.
      seed: of its random numbers.

    Raises:
      NoSolverError: OR-tools is not installed.
    """
    cp_model = cp_model_or_fail()
    run = replay(problem, orders)
    assert run is not None
    unit = run.step_time / _TICKS or 1.0
    takes = [max(0, round(duration / unit)) for duration in problem.durations]
    # Rounded, the known order takes a little longer or shorter.
    horizon = _TICKS + len(takes)
    model = cp_model.CpModel()
    start = [model.new_int_var(0, horizon, "") for _ in takes]
    last = model.new_int_var(0, horizon, "")
    for row in problem.rows:
        model.add_no_overlap([model.new_fixed_size_interval_var(start[n], takes[n], "") for n in row])
    for n, needs in enumerate(problem.needs):
        for other, delay in needs:
            model.add(start[n] >= start[other] + takes[other] + round(delay / unit))
        if not problem.readers[n]:
            model.add(last >= start[n] + takes[n])
    for limit in problem.limits:
        _keep(model, problem, limit, start, takes, horizon)
    for n, end in enumerate(run.end):
        model.add_hint(start[n], max(0, round((end - problem.durations[n]) / unit)))
    model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = seed
    # With several workers the result would depend on their timing.
    solver.parameters.num_workers = 1
    if seconds is None:
        solver.parameters.max_deterministic_time = _EFFORT
    else:
        solver.parameters.max_time_in_seconds = seconds
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    position = {n: at for at, n in enumerate(problem.in_order)}
    # Actions shorter than a tick may start together, in an order that the model does not know.
    return [sorted(row, key=lambda n: (solver.value(start[n]), position[n])) for row in problem.rows]


def _keep(
    model: Any, problem: SearchProblem, limit: Any, start: Sequence[Any], takes: Sequence[int], horizon: int
) -> None:
    """Lets a model keep a limit."""
    intervals, sizes = [], []
    for held in limit.held:
        first = problem.number[held.first]
        end = model.new_int_var(0, horizon, "")
        for action in held.last:
            n = problem.number[action]
            model.add(end >= start[n] + takes[n])
        size = model.new_int_var(0, horizon, "")
        intervals.append(model.new_interval_var(start[first], size, end, ""))
        sizes.append(held.size)
    model.add_cumulative(intervals, sizes, limit.most)
