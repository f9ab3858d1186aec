"""Counts of random examples; nightly runs may try more."""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """Returns the number of examples of a test: `count`, times the factor in the environment."""
    return count * int(os.environ.get("PW_TEST_EXAMPLES_FACTOR", "1"))
