"""Counts of random examples, of which runs at night may try more."""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """Returns how many examples a test tries: `count`, times the factor in the environment."""
    return count * int(os.environ.get("PW_TEST_EXAMPLES_FACTOR", "1"))
