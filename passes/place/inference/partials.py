"""Regrouping of associative chains whose links alternate between slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from pathways.passes.place.inference.placement_problem import Homes, PlacementProblem

_ASSOCIATIVE = frozenset(
    {"stablehlo.add", "stablehlo.multiply", "stablehlo.maximum", "stablehlo.minimum"}
    | {"stablehlo.and", "stablehlo.or", "stablehlo.xor"}
)


@dataclasses.dataclass(frozen=True, eq=False)
class _Chain:
    """A chain that crosses more often than its partial results would.

    Attributes:
      links: its operations, users before producers.
      terms: the values that each slice folds, in the order of the chain.
    """

    links: Sequence[ir.OpView]
    terms: Mapping[int, Sequence[ir.Value]]


def fold_on_each_slice(problem: PlacementProblem, homes: Homes) -> tuple[PlacementProblem, Homes]:
    """Rewrites chains in `@main` so that each slice folds its own terms and one slice combines the results.

    Only chains that would cross more often than that are touched; all others keep their order, and so
    their rounding.

    Returns:
      The problem as it is now, and the homes of its values.
    """
    chains = [
        chain
        for op in problem.operations
        if op.view.operation.name in _ASSOCIATIVE
        and not _is_link(op.view)
        and (chain := _alternating(op.view, homes)) is not None
    ]
    if not chains:
        return problem, homes
    now = dict(homes)
    # A term may be the result of an earlier chain.
    replaced: dict[ir.Value, ir.Value] = {}
    for chain in chains:
        _write(chain, now, replaced)
    # Not before all are written: terms of later chains may be results of these.
    for link in (link for chain in chains for link in chain.links):
        now.pop(link.results[0], None)
        link.operation.erase()
    return problem.read_again(), now


def _write(chain: _Chain, homes: dict[ir.Value, int], replaced: dict[ir.Value, ir.Value]) -> None:
    """Writes a chain in its new order in front of the old one, and gives its readers the result."""
    root = chain.links[0]

    def fold(values: Sequence[ir.Value], place: int) -> ir.Value:
        total = values[0]
        for value in values[1:]:
            link = root.operation.clone(ir.InsertionPoint(root)).opview
            link.operands[0], link.operands[1] = total, value
            total = link.results[0]
            homes[total] = place
        return total

    partials = [
        fold([replaced.get(term, term) for term in terms], place) for place, terms in chain.terms.items()
    ]
    replaced[root.results[0]] = fold(partials, homes[root.results[0]])
    root.results[0].replace_all_uses_with(replaced[root.results[0]])


def _alternating(root: ir.OpView, homes: Homes) -> _Chain | None:
    """Returns the chain that ends in an operation, if it goes back to a slice that it has left."""
    links, terms = _collect(root)
    slices = [homes.get(term) for term in terms]
    place = next((s for s in slices if s is not None), None)
    if len(terms) < 3 or place is None:
        return None
    # A mirrored term (the zero that `sum` starts from) goes with its neighbour.
    by_slice: dict[int, list[ir.Value]] = {}
    changes = 0
    for term, home in zip(terms, slices, strict=True):
        changes += home not in (None, place)
        place = place if home is None else home
        by_slice.setdefault(place, []).append(term)
    # The chain crosses at each change; of partial results all but that of one slice cross, once.
    return _Chain(links, by_slice) if changes >= len(by_slice) else None


def _is_link(op: ir.OpView) -> bool:
    """Returns whether an operation is inside a chain: its only user is of the same kind."""
    uses = list(op.results[0].uses)
    return len(uses) == 1 and uses[0].owner.operation.name == op.operation.name


def _collect(root: ir.OpView) -> tuple[list[ir.OpView], list[ir.Value]]:
    """Returns the links of a chain, users before producers, and its terms in order."""
    links: list[ir.OpView] = [root]
    terms: list[ir.Value] = []
    pending: list[ir.Value] = [root.operands[1], root.operands[0]]
    while pending:
        value = pending.pop()
        producer = value.owner
        if (
            not isinstance(producer, ir.Block)
            and producer.operation.name == root.operation.name
            and _is_link(producer)
        ):
            links.append(producer)
            pending += [producer.operands[1], producer.operands[0]]
        else:
            terms.append(value)
    return links, terms
