"""Warnings to the user, each at the line of the user's code that it is about."""

from __future__ import annotations

import warnings

import jax

from pathways.runtime.xla.tracebacks import OURS

_FOLDERS = (*OURS, jax.__path__[0])


class PathwaysWarning(UserWarning):
    """Something works, but not as one would want it to: slowly, or not at once.

    `warnings.simplefilter("error", pathways.PathwaysWarning)` makes errors of them.
    """

    # As which tracebacks name it.
    __module__ = "pathways"


def warn(message: str) -> None:
    """Warns at the innermost line that is neither ours nor JAX's."""
    warnings.warn(message, PathwaysWarning, skip_file_prefixes=_FOLDERS)
