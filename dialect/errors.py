"""The base of all errors that users of `pathways` see."""

from __future__ import annotations


class PathwaysError(Exception):
    """Something that `pathways` was asked to do cannot be done; the classes derived from it say what.

    Each of them is also the built-in exception that fits: a `ProgramError` is a `ValueError`, a `HostError` a
    `RuntimeError`.
    """

    __module__ = "pathways"
