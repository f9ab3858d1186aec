"""Checks of the arguments of `pw.resilient`."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from typing import Any

from pathways.compiler.program import Program
from pathways.compiler.stages import Bound

Step = Bound | Program[..., Any]

MAX_SHOWN = 1000
"""Limit on the characters of a message, since a message may quote long values."""

_MAX_NAME_BYTES = 255
"""Limit of file systems on the name of a folder."""

_SECONDS = re.compile(r"(\d+(?:\.\d+)?) ?s")


@dataclasses.dataclass(frozen=True)
class Interval:
    """Distance from one version to the next.

    Attributes:
      steps: in steps; None where it is a time.
      seconds: in seconds; None where it is a number of steps.
    """

    steps: int | None
    seconds: float | None


def shortened(text: str, limit: int = MAX_SHOWN) -> str:
    """Returns a text without its middle if it is too long."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} ... {text[len(text) - limit // 2 :]}"


def shown(value: Any) -> str:
    """Returns the start and the end of the representation of a value."""
    try:
        return shortened(repr(value), 80)
    except ValueError:
        # Python refuses to write out long integers.
        return f"a value of type {type(value).__name__}"


def checked_folder(folder: Any) -> str | None:
    """Returns the folder that `directory` says.

    Raises:
      TypeError: the argument is not a path.
      ValueError: the path is empty, or has a name that no file system accepts.
    """
    if folder is None:
        return None
    if not isinstance(folder, str | os.PathLike) or not isinstance(path := os.fspath(folder), str):
        raise TypeError(f"pw.resilient: directory={shown(folder)}: expected the path of a folder")
    if not path:
        raise ValueError(
            "pw.resilient: directory='': expected the path of a folder, or None for no versions on disk"
        )
    if any(len(os.fsencode(name)) > _MAX_NAME_BYTES for name in path.split("/")):
        raise ValueError(
            f"pw.resilient: directory={shown(path)}: a name has more than {_MAX_NAME_BYTES} bytes"
        )
    return path


def checked_interval(every: Any) -> Interval:
    """Returns the interval that `every` names.

    Raises:
      TypeError: the argument is neither a number nor a string.
      ValueError: the number is below one, or the string is not a time.
    """
    if isinstance(every, str):
        matched = _SECONDS.fullmatch(every.strip())
        if matched is None or not float(matched[1]):
            raise ValueError(
                f"pw.resilient: every={shown(every)}: expected a number of steps, or a time like '10s'"
            )
        return Interval(None, float(matched[1]))
    checked_count("every", every)
    return Interval(every, None)


def checked_count(name: str, value: Any, least: int = 1) -> None:
    """Checks that an argument is an integer of at least `least`.

    Raises:
      TypeError: the argument is not an integer.
      ValueError: the integer is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"pw.resilient: {name}={shown(value)}: expected a whole number")
    if value < least:
        raise ValueError(f"pw.resilient: {name}={shown(value)}: expected at least {least}")


def checked_feeds(train_step: Any, feeds: Any) -> tuple[Step, str]:
    """Returns the program that reads the batches, and the name of its argument.

    Raises:
      TypeError: the arguments name no such program.
    """
    if not callable(train_step):
        raise TypeError(f"pw.resilient: train_step must be callable, got {type(train_step).__name__}")
    if feeds is not None:
        if not (isinstance(feeds, tuple) and len(feeds) == 2 and isinstance(feeds[0], Bound | Program)):
            raise TypeError(
                "pw.resilient: feeds must be a program and the name of its argument, like "
                f"(step, 'batch'), got {shown(feeds)}"
            )
        program, name = feeds
        if not isinstance(name, str) or len(name) > MAX_SHOWN:
            raise TypeError(f"pw.resilient: feeds={shown(feeds)}: expected the name of an argument")
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
    """Returns the executables that a program has so far."""
    return (step.executable,) if isinstance(step, Bound) else step.executables
