"""The paper's Figure 2 computes what it should, with the launches and transfers that it needs and no more."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "figure2.py"


def test_figure2() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "f([1. 2.]) = ([3. 5.], [2. 4.])\n"  # (2x + 1, 2x)
        "4 launches, 3 transfers between slices\n"  # a, b, c, a; a to b, a to c, c to a
    )
