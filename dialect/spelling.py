"""Present names, for messages about names that are misspelt or renamed. Imports nothing."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Returns the choice that a name is most likely to mean; None when none is near."""
    # Also for names without their end: `pw-fuze` is nearer to `pw-fuse-launches` than to `pw-dce`.
    names = list(choices)
    beginnings = {choice[: len(name)]: choice for choice in names} | {choice: choice for choice in names}
    near = difflib.get_close_matches(name, beginnings, 1)
    return beginnings[near[0]] if near else None


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` for the choice nearest to a misspelt name, or nothing."""
    near = nearest(name, choices)
    return f"; did you mean '{near}'?" if near is not None else ""


def renamed_keywords[**P, R](**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator of a function: former names of its keywords are errors with the present ones.

    Args:
      names: the present name of each keyword, by its former name.
    """

    def decorate(fun: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(fun)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for former in names.keys() & kwargs.keys():
                raise TypeError(
                    f"{fun.__name__}() got an unexpected keyword argument '{former}': it is renamed to "
                    f"'{names[former]}'"
                )
            return fun(*args, **kwargs)

        return checked

    return decorate
