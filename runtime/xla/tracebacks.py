"""Tracebacks that end in the user's code, without frames of pathways and JAX."""

from __future__ import annotations

import functools
import traceback
import types
from collections.abc import Callable
from pathlib import Path

from pathways.runtime.xla import pjrt

_ROOT = Path(__file__).parents[2]

PACKAGE_FOLDERS = tuple(str(_ROOT / name) for name in ("compiler", "dialect", "passes", "runtime"))
"""Folders of the package; in an editable installation, tests and examples are beside them."""

_GENERATED = "<pathways "
"""Prefix of the file names of functions that `runtime/local/codegen.py` generates."""

_NOTE = f"{'-' * 20}\nFrames of pathways and JAX are hidden; set JAX_TRACEBACK_FILTERING=off to show them."

# Has JAX hide our frames in tracebacks that it filters itself, such as of a transformed function of the user.
for _folder in PACKAGE_FOLDERS:
    pjrt.exclude_from_tracebacks(_folder)


def boundary[**P, R](fun: Callable[P, R]) -> Callable[P, R]:
    """Decorates a public function: the tracebacks of its errors show frames of the user alone.

    The call of a program does without, since the wrapper would cost time; see `Program.__call__`.
    """

    @functools.wraps(fun)
    def called_by_user(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fun(*args, **kwargs)
        except Exception as error:
            filter_traceback(error)
            # A bare `raise` adds no frame of this function.
            raise

    return called_by_user


def filter_traceback(error: BaseException) -> None:
    """Hides frames of pathways and JAX in a traceback, in the way that `jax_traceback_filtering` selects."""
    mode = pjrt.traceback_filtering()
    if mode == "tracebackhide":
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if _is_internal(frame):
                frame.f_locals["__tracebackhide__"] = True
    elif mode == "remove_frames":
        _move_to_cause(error)
        error.__traceback__ = _of_user(error.__traceback__)
    elif mode != "off":
        for each in _with_causes(error):
            each.__traceback__ = _of_user(each.__traceback__)
        # JAX's own note, which starts with the same line, has much the same text.
        has_note = any(note.startswith("-----") for note in getattr(error, "__notes__", ()))
        # In a trace the boundary around it adds one.
        if not has_note and not pjrt.is_tracing():
            error.add_note(_NOTE)


def _move_to_cause(error: BaseException) -> None:
    """Keeps the whole traceback of an error in its cause, unless an inner boundary has done so."""
    if pjrt.is_unfiltered(error.__cause__):
        return
    unfiltered = pjrt.unfiltered(error)
    unfiltered.__cause__, unfiltered.__context__ = error.__cause__, error.__context__
    unfiltered.__suppress_context__ = error.__suppress_context__
    error.__cause__ = unfiltered


def _with_causes(error: BaseException) -> list[BaseException]:
    """Returns an error, with the causes and contexts that Python prints above it."""
    errors: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in errors:
        errors.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return errors


def _is_internal(frame: types.FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(_GENERATED) or pjrt.is_excluded_from_tracebacks(file)


def _of_user(frames: types.TracebackType | None) -> types.TracebackType | None:
    traceback_of_user = None
    for frame, line in reversed(list(traceback.walk_tb(frames))):
        if not _is_internal(frame):
            traceback_of_user = types.TracebackType(traceback_of_user, frame, frame.f_lasti, line)
    return traceback_of_user
