"""Mistakes of the caller of a tool."""

from __future__ import annotations


class UserError(Exception):
    """Mistake of the caller, reported in one line and without a traceback."""
