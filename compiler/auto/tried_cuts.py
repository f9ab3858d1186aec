"""Cuts that a search tried, with their results, and their files, as JSON."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pathways.compiler.auto.flat_loss import FlatLoss
from pathways.compiler.auto.request import AutoRequest
from pathways.dialect.plain_data import PlainDataError, parse_json, read_record
from pathways.passes.schedule.policies.request import RequestError, read_request

_FORMAT = 1


class TriedCut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cut that was simulated, or dropped.

    Attributes:
      kind: `even`, `row` for one stage on each slice, or `v` for two.
      positions: the first unit of each stage but the first.
      loads: the time of each stage, in the unit of the plan.
      crossing: the bytes alive at each cut.
      bound: the closed estimate of the step.
      schedule: the best schedule of it; empty if it was dropped because no schedule could be the best.
      step: the time of its step; infinite if it was dropped.
      bubble: the share of it in which slices idle.
      peak: the peak of bytes alive on a slice.
      fits: whether that is within `max_bytes`.
    """

    kind: str
    positions: tuple[int, ...]
    loads: tuple[float, ...]
    crossing: tuple[int, ...]
    bound: float
    schedule: str = ""
    step: float = float("inf")
    bubble: float = 0.0
    peak: int = 0
    fits: bool = True

    @property
    def rank(self) -> tuple[bool, float, int, float]:
        """The sort key of cuts, best first: by whether they fit, by step, then by the bytes that cross."""
        return not self.fits, self.step, sum(self.crossing), self.bound


class _Cuts(msgspec.Struct, frozen=True):
    cuts: list[TriedCut]


def write_cuts(
    path: str | os.PathLike[str], cuts: Sequence[TriedCut], request: AutoRequest, flat: FlatLoss
) -> None:
    """Writes the cuts of a plan.

    Raises:
      OSError: the file cannot be written.
    """
    rows = [msgspec.structs.asdict(cut) | {"step": cut.step if cut.schedule else None} for cut in cuts]
    document = {
        "pathways.auto": _FORMAT,
        "loss": flat.name,
        "units": len(flat.nodes),
        "fingerprint": fingerprint(flat),
        "slices": len(request.slices),
        "microbatches": request.num_microbatches,
        "cuts": rows,
    }
    Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_cuts(path: str | os.PathLike[str], request: AutoRequest, flat: FlatLoss) -> list[TriedCut]:
    """Returns the cuts that `write_cuts` wrote, the chosen one first.

    Raises:
      OSError: the file cannot be read.
      ValueError: the file is not a saved plan, or is of another loss.
    """
    subject = f"{request.subject}: plan '{os.fspath(path)}'"
    try:
        document = parse_json(Path(path).read_bytes())
    except PlainDataError as error:
        raise ValueError(f"{subject} is {error}") from None
    if not isinstance(document, dict) or document.get("pathways.auto") != _FORMAT:
        raise ValueError(f"{subject} is not a plan written by plan.save of this release")
    if document.get("fingerprint") != fingerprint(flat):
        raise ValueError(
            f"{subject} is of another loss, or of arguments of other types: '{document.get('loss')}' of "
            f"{document.get('units')} units; this one has {len(flat.nodes)}"
        )
    if document.get("slices") != len(request.slices):
        raise ValueError(f"{subject} is for {document.get('slices')} slices, got {len(request.slices)}")
    try:
        cuts = read_record({"cuts": _with_steps(document.get("cuts"))}, _Cuts).cuts
        for cut in cuts:
            if cut.schedule:
                read_request(cut.schedule)
    except (PlainDataError, RequestError) as error:
        raise ValueError(f"{subject} cannot be read: {error}") from None
    stages = len(request.slices) * (2 if cuts and cuts[0].kind == "v" else 1)
    edges = [0, *(cuts[0].positions if cuts else ()), len(flat.nodes)]
    if len(edges) != stages + 1 or any(a >= b for a, b in itertools.pairwise(edges)):
        raise ValueError(f"{subject} cannot be read: its positions do not make {stages} stages")
    return cuts


def _with_steps(rows: Any) -> Any:
    """Returns rows of a file with the steps of dropped cuts, null in JSON, as infinity."""
    if not isinstance(rows, list):
        return rows
    dropped = [isinstance(row, dict) and row.get("step", 0.0) is None for row in rows]
    return [
        {**row, "step": float("inf")} if is_dropped else row
        for row, is_dropped in zip(rows, dropped, strict=True)
    ]


def fingerprint(flat: FlatLoss) -> str:
    """Returns a hash of a loss's operations in order, with types: losses with the same hash are cut alike."""
    lines = [
        f"{node.equation.primitive.name} {[str(v.aval) for v in (*node.reads, *node.results)]} "
        f"{node.iteration}"
        for node in flat.nodes
    ]
    lines += [str(v.aval) for v in (*flat.parameters, *flat.inputs)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
