"""The base of all errors that users of `pathways` see."""

from __future__ import annotations


class PathwaysError(Exception):
    """Base of the errors of `pathways`; each derived class names one kind of failure.

    Each of them is also the built-in exception that fits: a `ProgramError` is a `ValueError`, a `HostError` a
    `RuntimeError`.
    """

    __module__ = "pathways"
