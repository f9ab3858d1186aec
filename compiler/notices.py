"""Warnings to the user, each at the line of the user's code that it is about."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import jax

from pathways.runtime.resources import virtual

_FOLDERS = (
    str(Path(__file__).parent),
    str(Path(virtual.__file__).parents[1]),
    jax.__path__[0],
    # Some functions here are decorated by context managers. Python ignores prefixes that are whole names.
    contextlib.__file__.removesuffix(".py"),
)


class PathwaysWarning(UserWarning):
    """Something works, but not as one would want it to: slowly, or not at once.

    `warnings.simplefilter("error", pathways.PathwaysWarning)` makes errors of them.
    """


def warn(message: str) -> None:
    """Warns at the innermost line that is neither ours nor JAX's."""
    warnings.warn(message, PathwaysWarning, skip_file_prefixes=_FOLDERS)
