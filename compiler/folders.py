"""Where the code of this package is, which messages to the user leave out."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parents[1]

OURS = tuple(str(_ROOT / name) for name in ("compiler", "dialect", "passes", "runtime"))
"""Not the folder that they are in: with an editable installation, tests and examples are there too."""
