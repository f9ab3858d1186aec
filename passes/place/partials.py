"""Regrouping of associative chains whose links alternate between slices."""

from __future__ import annotations

import itertools

from jaxlib.mlir import ir

from pathways.passes.util.functions import body_block

ASSOCIATIVE = frozenset(
    {"stablehlo.add", "stablehlo.multiply", "stablehlo.maximum", "stablehlo.minimum"}
    | {"stablehlo.and", "stablehlo.or", "stablehlo.xor"}
)


def sum_on_each_slice(main: ir.OpView, home: dict[ir.Value, int], mirrored: set[ir.Value]) -> bool:
    """Rewrites chains so that each slice folds its own terms and one slice combines the results.

    Only chains that would cross more often than that are touched; all others keep their order, and so
    their rounding.

    Args:
      main: the function that holds the chains.
      home: the slice of each value that is not mirrored; kept up to date.
      mirrored: values that every slice can compute by itself; kept up to date.

    Returns:
      Whether anything was rewritten.
    """
    changed = False
    for op in list(body_block(main).operations):
        if not op.operation.attached or op.operation.name not in ASSOCIATIVE or _is_link(op):
            continue
        links, terms = _collect(op)
        if len(terms) < 3 or any(v not in home and v not in mirrored for v in terms):
            continue
        # A mirrored term (the zero that `sum` starts from) goes with its neighbour.
        slices = [home.get(v) for v in terms]
        first = next((s for s in slices if s is not None), None)
        if first is None:
            continue
        for n, s in enumerate(slices):
            if s is None:
                slices[n] = slices[n - 1] if n else first
        groups: dict[int, list[ir.Value]] = {}
        for term, s in zip(terms, slices, strict=True):
            assert s is not None
            groups.setdefault(s, []).append(term)
        changes = sum(a != b for a, b in itertools.pairwise(slices))
        if changes < len(groups):
            continue
        root_slice = home[op.results[0]]

        def fold(values: list[ir.Value], place: int, like: ir.OpView = op) -> ir.Value:
            total = values[0]
            for value in values[1:]:
                link = like.operation.clone(ir.InsertionPoint(like)).opview
                link.operands[0], link.operands[1] = total, value
                total = link.results[0]
                home[total] = place
            return total

        total = fold([fold(values, place) for place, values in groups.items()], root_slice)
        op.results[0].replace_all_uses_with(total)
        changed = True
        for link in links:
            for result in link.results:
                home.pop(result, None)
                # Another operation may come to lie where this one was.
                mirrored.discard(result)
            link.operation.erase()
    return changed


def _is_link(op: ir.OpView) -> bool:
    """Whether an operation is inside a chain: its only user is of the same kind."""
    uses = list(op.results[0].uses)
    return len(uses) == 1 and uses[0].owner.operation.name == op.operation.name


def _collect(root: ir.OpView) -> tuple[list[ir.OpView], list[ir.Value]]:
    """The links of a chain, users before producers, and its terms in order."""
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
