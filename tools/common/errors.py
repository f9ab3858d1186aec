"""Mistakes of the caller of a tool, and guesses at what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the caller, told in one line and without a traceback."""


def hint(text: str, choices: Iterable[str]) -> str:
    """What a text may mean: `; did you mean 'scheduled'?`, or nothing when no choice is near."""
    # Also what was not written to its end: `pw-fuze` is nearer to `pw-fuse-launches` than to `pw-dce`.
    names = list(choices)
    beginnings = {name[: len(text)]: name for name in names} | {name: name for name in names}
    near = difflib.get_close_matches(text, beginnings, 1)
    return f"; did you mean '{beginnings[near[0]]}'?" if near else ""
