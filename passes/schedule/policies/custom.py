"""Custom policies: functions and classes outside of the package, written as the policies here are.

A program names a policy by a text, so `register` gives each custom one a name for the life of the process.
Names in IR find only policies that are registered: no text of a module imports code.
"""

from __future__ import annotations

import csv
import io
import re
import threading
import traceback
from collections.abc import Sequence

from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.pipeline import Order, Pipeline, Policy, PolicyError
from pathways.passes.schedule.policies.schedule_file import ScheduleFileError, Work, read_schedules

_LOOP = "loop"
_registered: dict[str, Policy] = {}
_registering = threading.Lock()


def register(policy: Policy) -> str:
    """Returns the name of a custom policy, such as `my_policies:zigzag`, unique for each object.

    Args:
      policy: a function, an object that can be called, or a class whose objects can be, without arguments.
    """
    described = policy if hasattr(policy, "__qualname__") else type(policy)
    base = re.sub(r"[\s()]", "", f"{described.__module__}:{described.__qualname__}")
    with _registering:
        name, number = base, 1
        while _registered.setdefault(name, policy) is not policy:
            number += 1
            name = f"{base}#{number}"
    return name


def registered(name: str) -> Policy | None:
    """Returns the custom policy of a name; None if the name is not registered."""
    return _registered.get(name)


def has_halves(policy: Policy) -> bool:
    """Returns whether a custom policy declares that its orders have halves of backwards."""
    return bool(getattr(policy, "halves", False))


def order_by(policy: Policy, pipeline: Pipeline) -> Order:
    """Returns the order of a custom policy, checked as a schedule file is: its rows are the slices.

    Args:
      policy: the policy; a class is called without arguments first.
      pipeline: the pipeline to order.

    Raises:
      PolicyError: the policy raises an error, or its order is wrong; says where.
    """
    try:
        orders = (policy() if isinstance(policy, type) else policy)(pipeline)
    except PolicyError:
        raise
    except Exception as error:
        # The first frame is the call above.
        _, *frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[0].filename}:{frames[0].lineno})" if frames else ""
        raise PolicyError(f"raises {type(error).__name__}: {error}{place}") from error
    if not _is_sequence(orders) or not all(map(_is_sequence, orders)):
        raise PolicyError(f"returns {type(orders).__name__}, not a list of actions for each slice")
    if len(orders) != pipeline.width or not all(orders):
        raise PolicyError(f"returns a wrong order: expected actions for each of {pipeline.width} slices")
    halves = has_halves(policy)
    half = next((a for row in orders for a in row if isinstance(a, Action) and a.kind in "IW"), None)
    if half is not None and not halves:
        raise PolicyError(f"orders {half}, half of a backward: declare `halves = True` on the policy")
    text = io.StringIO()
    csv.writer(text).writerows(orders)
    try:
        return read_schedules(text.getvalue(), {_LOOP: _work_of(pipeline, halves)})[_LOOP]
    except ScheduleFileError as error:
        raise PolicyError(f"returns a wrong order: {error}") from None


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _work_of(pipeline: Pipeline, halves: bool) -> Work:
    """Returns the actions of an order of a pipeline."""
    kinds = ("FIW" if halves else "FB") if pipeline.backward else "F"
    stages = range(len(pipeline.slices))
    actions = [
        Action(stage, kind, number)
        for stage in stages
        for kind in kinds
        for number in range(pipeline.microbatches)
    ]
    return Work(
        [str(place) for place in range(pipeline.width)],
        {stage: str(pipeline.slices[stage]) for stage in stages},
        pipeline.microbatches,
        {action: pipeline.needs(action) for action in actions},
    )
