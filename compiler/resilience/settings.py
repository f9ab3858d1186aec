"""Arguments of `pw.resilient`, checked."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from pathways.compiler.program import Program
from pathways.compiler.stages import Bound

Step = Bound | Program[..., Any]

_SECONDS = re.compile(r"(\d+(?:\.\d+)?) ?s")


@dataclasses.dataclass(frozen=True)
class Interval:
    """The distance from one version to the next.

    Attributes:
      steps: in steps; None where it is a time.
      seconds: in seconds; None where it is a number of steps.
    """

    steps: int | None
    seconds: float | None


def checked_interval(every: Any) -> Interval:
    """Returns what `every` says.

    Raises:
      TypeError: it is neither a number nor a text.
      ValueError: it is below one step, or no time.
    """
    if isinstance(every, str):
        matched = _SECONDS.fullmatch(every.strip())
        if matched is None or not float(matched[1]):
            raise ValueError(
                f"pw.resilient: every={every!r}: expected a number of steps, or a time like '10s'"
            )
        return Interval(None, float(matched[1]))
    checked_count("every", every)
    return Interval(every, None)


def checked_count(name: str, value: Any, least: int = 1) -> None:
    """Checks that an argument is a whole number that is large enough.

    Raises:
      TypeError: it is no whole number.
      ValueError: it is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"pw.resilient: {name}={value!r}: expected a whole number")
    if value < least:
        raise ValueError(f"pw.resilient: {name}={value}: expected at least {least}")


def checked_feeds(train_step: Any, feeds: Any) -> tuple[Step, str]:
    """Returns the program that reads the batches, and the name of its argument.

    Raises:
      TypeError: there is no such program.
    """
    if not callable(train_step):
        raise TypeError(f"pw.resilient: train_step must be callable, got {type(train_step).__name__}")
    if feeds is not None:
        if not (isinstance(feeds, tuple) and len(feeds) == 2 and isinstance(feeds[0], Bound | Program)):
            raise TypeError(
                "pw.resilient: feeds must be a program and the name of its argument, like "
                f"(step, 'batch'), got {feeds!r}"
            )
        program, name = feeds
        for executable in executables_of(program):
            executable.argument(name)
        return program, name
    if not isinstance(train_step, Bound | Program):
        raise TypeError(
            "pw.resilient: train_step is no program, so feeds= has to say which program reads the batches, "
            "as which argument: feeds=(step, 'batch')"
        )
    if isinstance(train_step, Bound):
        names = [*train_step.executable.arguments()]
    else:
        names = [*inspect.signature(train_step).parameters]
    if len(names) < 2:
        raise TypeError("pw.resilient: train_step must be a function of a state and a batch")
    return train_step, names[1]


def executables_of(step: Step) -> tuple[Any, ...]:
    """Returns the executables that a program has been compiled to so far."""
    return (step.executable,) if isinstance(step, Bound) else step.executables
