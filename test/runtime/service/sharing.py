"""Plays random histories of clients that share islands, and names the seeds that go wrong.

.venv/bin/python test/runtime/service/sharing.py --count 10000
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from simulated_sharing import problem


def main() -> int:
    parser = argparse.ArgumentParser(description="random histories of clients that share islands")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10000, help="how many")
    options = parser.parse_args()
    began = time.monotonic()
    wrong = [what for seed in range(options.first, options.first + options.count) if (what := problem(seed))]
    print("\n".join(wrong[:20]))
    print(f"{options.count} seeds, {len(wrong)} went wrong, {time.monotonic() - began:.1f} s")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
