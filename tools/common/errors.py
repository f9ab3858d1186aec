"""Mistakes of the caller of a tool."""

from __future__ import annotations


class UserError(Exception):
    """A mistake of the caller, told in one line and without a traceback."""
