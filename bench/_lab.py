"""Path of the tests' lab, its switch and its sessions for benches; import it before these."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "test"
sys.path[:0] = [str(TESTS / "lab"), str(TESTS / "support")]
