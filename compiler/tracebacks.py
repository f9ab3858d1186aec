"""Tracebacks that end in the user's code, without frames of ours and of JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable

from pathways.compiler.jax_internals import filter_traceback


def boundary[**P, R](fun: Callable[P, R]) -> Callable[P, R]:
    """Makes of a function one that the user calls: an error in it shows frames of the user alone.

    Not for the path of every call, where the wrapper would cost time; see `Program.__call__`.
    """

    @functools.wraps(fun)
    def called_by_user(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fun(*args, **kwargs)
        except Exception as error:
            filter_traceback(error)
            # Without a value: that adds no frame of this function.
            raise

    return called_by_user
