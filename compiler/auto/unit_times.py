"""Times of units: by their operations, as stated, or as measured in traces of other cuts.

A trace names stages after the units in them, `loss_4_9` for units 4 up to 9. The time of a stage is the
sum of its units; equal units take equally long. Times that this leaves open are in proportion to
operations.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pathways.compiler.auto.request import TimesGiven
from pathways.compiler.auto.units import Units
from pathways.dialect.plain_data import PlainDataError, parse_json
from pathways.passes.analysis.measured.durations import by_stage, launch_times
from pathways.passes.analysis.measured.events import EventLog
from pathways.passes.analysis.measured.trace_file import TraceError, is_trace, read_trace
from pathways.passes.analysis.quantities import FLOPS, SECONDS, QuantityReader, TimesError

_PRIOR = 1e-2
"""Weight of operations beside measurements."""

Observation = tuple[tuple[int, int], float]
"""The first unit of a stage and the end, and the time of a microbatch there."""


def timed_units(units: Units, times: TimesGiven, name: str, speeds: Sequence[float]) -> tuple[Units, str]:
    """Returns units with their times, for a slice of speed 1, and the unit of these times.

    Args:
      units: the units, by floating point operations.
      times: the user's `times`.
      speeds: the speeds of the slices that a trace is of.

    Raises:
      TimesError: the times cannot be read, or are of another loss.
    """
    if times is None or times == FLOPS:
        return units, FLOPS
    if isinstance(times, Mapping):
        return _stated(units, times, "times")
    paths = [times] if isinstance(times, (str, os.PathLike)) else list(times)
    observations: list[Observation] = []
    for path in paths:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise TimesError(f"times: '{path}': {error.strerror}") from None
        if not is_trace(data):
            if len(paths) > 1:
                raise TimesError(f"times: '{path}' is not a trace")
            return _stated(units, _document(path, data), f"times: '{path}'")
        try:
            observations += _observed(read_trace(data), units, name, speeds, str(path))
        except TraceError as error:
            raise TimesError(f"times: '{path}': {error}") from None
    return units.reweighed(_fitted(units, observations)), SECONDS


def _document(path: str | os.PathLike[str], data: bytes) -> Any:
    try:
        return parse_json(data)
    except PlainDataError as error:
        raise TimesError(f"times: '{path}' is not a trace, and {error}") from None


def _stated(units: Units, document: Any, subject: str) -> tuple[Units, str]:
    """Returns units with the times of a document like `{"units": {"0": "1ms", "4": "3ms"}}`; the rest take
    none."""
    table = document.get("units") if isinstance(document, Mapping) else None
    if not isinstance(table, Mapping) or len(document) != 1:
        raise TimesError(f'{subject}: expected an object such as {{"units": {{"0": "1ms"}}}}')
    reader = QuantityReader()
    work = np.zeros(units.count)
    for key, value in table.items():
        if not str(key).isdecimal() or int(key) >= units.count:
            raise TimesError(f"{subject}: unit '{key}' does not exist; the last unit is {units.count - 1}")
        work[int(key)] = reader.time(value, f"{subject}, unit {key}")
    if not work.sum():
        raise TimesError(f"{subject}: no unit takes any time")
    return units.reweighed(list(work)), reader.unit


def _observed(
    timelines: Sequence[EventLog], units: Units, name: str, speeds: Sequence[float], path: str
) -> list[Observation]:
    """Returns the times of the stages of each program in a trace in which `plan.loss` has run."""
    observations: list[Observation] = []
    for program in dict.fromkeys(timeline.program for timeline in timelines):
        steps = [timeline for timeline in timelines if timeline.program == program]
        edges = _edges(steps, name)
        if edges is None or edges[-1] != units.count:
            continue
        times_by_stage = by_stage(launch_times(steps))
        slices = _slices_of_stages(steps)
        for stage, (first, end) in enumerate(itertools.pairwise(edges)):
            kinds = times_by_stage.get(stage, {})
            time = sum(kinds.get(kind, 0.0) for kind in ("fwd", "bwd", "recompute"))
            speed = dict(zip(slices, speeds, strict=False)).get(slices[stage], speeds[0])
            observations.append(((first, end), time * speed))
    if not observations:
        raise TimesError(
            f"times: '{path}' has no step in which the loss of a plan of '{name}' ran, cut as here into "
            f"{units.count} units"
        )
    return observations


def _slices_of_stages(timelines: Sequence[EventLog]) -> list[str]:
    """Returns the slice of each stage."""
    slices = {call.stage: e.slice for t in timelines for e in t.launches for call in e.origins}
    return [slices[stage] for stage in sorted(s for s in slices if s is not None)]


def _edges(timelines: Sequence[EventLog], name: str) -> list[int] | None:
    """Returns the units at which the stages of a program begin, and the end, by their names; None for other
    programs.

    Equal stages share one computation, with the name of the first; but they have as many units.
    """
    pattern = re.compile(rf"{re.escape(name)}_(\d+)_(\d+)(?:_|\[|$)")
    spans: dict[int, set[tuple[int, int]]] = {}
    for event in (e for t in timelines for e in t.launches):
        match = pattern.match(event.label)
        for call in event.origins:
            if match and call.stage is not None:
                spans.setdefault(call.stage, set()).add((int(match[1]), int(match[2])))
    edges = [0]
    for stage in range(len(spans)):
        bounds = spans.get(stage, set())
        ends = {end for first, end in bounds if first == edges[-1]} or {edges[-1] + b - a for a, b in bounds}
        if len(ends) != 1:
            return None
        edges += ends
    return edges if len(edges) > 1 else None


def _fitted(units: Units, observations: Sequence[Observation]) -> list[float]:
    """Returns times of units that add up to the measured ones, nearly in proportion to their operations."""
    flops = units.before[1:] - units.before[:-1]
    kinds = np.asarray(units.kinds)
    count = int(kinds.max()) + 1
    of_kind = np.zeros(count)
    np.maximum.at(of_kind, kinds, flops)
    measured = np.array([time for _, time in observations])
    weights = np.array([np.bincount(kinds[a:b], minlength=count) for (a, b), _ in observations], float)
    scale = measured.sum() / max(1e-30, float((weights @ of_kind).sum()))
    # The unknowns are factors of operations: the prior weighs kinds with more work and with less alike.
    rows = weights * of_kind * scale / measured[:, None]
    # Ridge regression towards factors of 1, which decide what the measurements leave open.
    prior = np.sqrt(_PRIOR) * np.eye(count)
    targets = np.concatenate([np.ones(len(measured)), np.full(count, np.sqrt(_PRIOR))])
    factors, *_ = np.linalg.lstsq(np.concatenate([rows, prior]), targets, rcond=None)
    return list(flops * scale * np.maximum(factors, 0.0)[kinds])
