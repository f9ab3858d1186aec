"""Orders of the slices of a loop by a policy, as a program requests it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from pathways.passes.schedule.policies.actions import Action, ActionCycleError, start_times
from pathways.passes.schedule.policies.chains import stages_read
from pathways.passes.schedule.policies.pipeline import Pipeline, PolicyError
from pathways.passes.schedule.policies.registry import BOUNDED, POLICIES, SEARCH, policy_named
from pathways.passes.schedule.policies.request import ScheduleRequest
from pathways.passes.schedule.policies.schedule_file import Work
from pathways.passes.schedule.search.construct import construct, usual_rules
from pathways.passes.schedule.search.improve import Numbers
from pathways.passes.schedule.search.replay import compared, replay, tie_time
from pathways.passes.schedule.search.scheduling_problem import Limit, SearchProblem, counted
from pathways.passes.schedule.search.search import Budget, NothingFitsError, SearchResult, search


@dataclasses.dataclass(frozen=True)
class Costs:
    """Costs of actions.

    Attributes:
      durations: the duration of each action; None where nothing is known, and each takes one unit.
      limits: the quantities with a limit on each slice, such as live bytes.
      delays: the time from an action to one that waits for its results elsewhere; none where there is none.
      ties: the durations in units that decide between equally fast orders; None for none.
    """

    durations: Mapping[Action, float] | None = None
    limits: Sequence[Limit] = ()
    delays: Mapping[tuple[Action, Action], float] | None = None
    ties: Mapping[Action, float] | None = None


def orders_by(
    request: ScheduleRequest, work: Work, costs: Costs, report: Callable[[str], None]
) -> Sequence[Sequence[Action]]:
    """Returns the orders of the slices.

    Args:
      request: the policy, and its limits.
      work: the work to order.
      costs: the costs of its actions.
      report: called with the result of a search, in words.

    Raises:
      PolicyError: the policy does not fit, or no order of it keeps to the requested limits.
      ActionCycleError: in the order of the policy slices would wait for each other.
      NoSolverError: the requested solver is not installed.
    """
    if not work.slices:
        return []
    if request.policy != SEARCH and not request.has_limits and costs.durations is None:
        return _pattern(request, work)
    orderer = _Orderer(request, work, costs)
    if request.policy == SEARCH:
        result = orderer.search()
        report(_describe(result))
        return orderer.problem.named(result.orders)
    return orderer.problem.named(orderer.fastest(request.policy)[0])


class _Orderer:
    def __init__(self, request: ScheduleRequest, work: Work, costs: Costs) -> None:
        self.request, self.work, self.costs = request, work, costs
        self.place = {stage: work.rows.index(slice) for stage, slice in work.slices.items()}
        self.problem = self.problem_with(request.max_live)

    def problem_with(self, max_live: int) -> SearchProblem:
        needs, request = self.work.needs, self.request
        limits = [*counted(needs, max_live, request.max_pending), *self.costs.limits]
        durations = self.costs.durations or dict.fromkeys(needs, 1.0)
        return SearchProblem(self.place, needs, durations, limits, self.costs.delays, self.costs.ties)

    def fastest(self, policy: str) -> tuple[Numbers, float]:
        """Returns the fastest order of a policy: its pattern, or one by its rules and the times."""
        pattern = self.problem.numbered(_pattern(dataclasses.replace(self.request, policy=policy), self.work))
        candidates: list[Numbers] = [pattern]
        if policy in BOUNDED and (self.costs.durations is not None or self.costs.limits):
            timed = self.by_times(policy)
            candidates += [timed] if timed is not None else []
        best: tuple[Numbers, float] | None = None
        for orders in candidates:
            run = replay(self.problem, orders)
            if run is None or any(map(self.problem.broken, orders)):
                continue
            slower = 0 if best is None else compared(run.step_time, best[1])
            if best is not None and slower == 0:
                slower = compared(tie_time(self.problem, orders), tie_time(self.problem, best[0]))
            if best is None or slower < 0:
                best = orders, run.step_time
        if best is None:
            # Fails where slices would wait for each other; else it is the limits that are broken.
            start_times(self.problem.named(pattern), self.work.needs)
            broken = (violation for row in pattern if (violation := self.problem.broken(row)) is not None)
            limit, alive = next(broken)
            quantity = f"{alive} {limit.quantity}"
            raise PolicyError(f"keeps {quantity} alive at once, more than {limit.most}: use search")
        return best

    def by_times(self, policy: str) -> Numbers | None:
        """Returns the order that the rules of a policy give for the times and limits."""
        longest = max(self.problem.to_loss.values())
        # As many as the patterns of these policies keep alive on each stage.
        alive = {"zb-h1": longest, "zb-h2": 2 * longest - 1}.get(policy, self.request.max_live)
        if self.request.max_live:
            alive = min(alive, self.request.max_live)
        problem = self.problem_with(alive)
        return construct(problem, usual_rules(problem)[policy])

    def search(self) -> SearchResult:
        """Returns the best order that a search finds."""
        named: dict[str, Numbers] = {}
        for policy in POLICIES:
            try:
                named[policy] = self.fastest(policy)[0]
            except (PolicyError, ActionCycleError):
                continue
        request = self.request
        budget = Budget(request.iterations, request.seconds, request.seed, request.solver != "")
        try:
            return search(self.problem, named, budget)
        except NothingFitsError as error:
            least = f"{error.least} {error.limit.quantity}"
            raise PolicyError(f"needs at least {least}, and may have {error.limit.most}") from None


def _pattern(request: ScheduleRequest, work: Work) -> list[list[Action]]:
    """Returns the orders that a policy gives by the shape of a pipeline alone."""
    stages = list(work.slices)
    number = {stage: k for k, stage in enumerate(stages)}
    read = stages_read(work.needs)
    pipeline = Pipeline(
        tuple(work.rows.index(work.slices[stage]) for stage in stages),
        work.microbatches,
        any(action.kind != "F" for action in work.needs),
        request.max_live,
        request.max_pending,
        tuple(frozenset(number[other] for other in read[stage]) for stage in stages),
    )
    orders = policy_named(request.policy)(pipeline)
    return [
        [action for step in order for action in fitting(step._replace(stage=stages[step.stage]), work)]
        for order in orders
    ]


def fitting(action: Action, work: Work) -> list[Action]:
    """Returns the actions for an action of a pattern; a whole backward runs when its first half would."""
    kinds = {"F": "F", "B": "BIW", "I": "BI", "W": "W"}[action.kind]
    return [variant for kind in kinds if (variant := action._replace(kind=kind)) in work.needs]


def _describe(result: SearchResult) -> str:
    """Describes the result of a search."""
    than = "no policy stays within the limits"
    if result.best is not None:
        name, time = result.best
        faster = time / result.step_time - 1 if result.step_time else 0.0
        than = f"{faster:.1%} faster than '{name}', the best policy"
    steps = f"{result.steps} step" + "s" * (result.steps != 1)
    return f"is ordered by a search of {steps}: {than}; {result.gap:.1%} above the lower bound"
