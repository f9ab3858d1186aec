"""Guesses at what a misspelt name was meant to be, for messages. Imports nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
