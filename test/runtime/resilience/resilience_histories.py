"""Plays random histories of training that goes on by itself, and names the seeds that go wrong.

.venv/bin/python test/runtime/resilience/resilience_histories.py --count 10000
.venv/bin/python test/runtime/resilience/resilience_histories.py --first 123 --count 1 -v
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from simulated_resilience import SimulatedTraining, described, problem_of


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    parser.add_argument("--count", type=int, default=10000, metavar="N", help="how many seeds")
    parser.add_argument("-v", "--verbose", action="store_true", help="print all events and effects")
    options = parser.parse_args()
    began = time.process_time()
    wrong, counts = [], collections.Counter[str]()
    for seed in range(options.first, options.first + options.count):
        training = SimulatedTraining(seed)
        what = problem_of(training)
        if options.verbose:
            print(described(training))
        if what is not None:
            wrong.append(f"seed {seed}: {what}")
        counts += training.counts
    print("\n".join(wrong[:20]))
    print(", ".join(f"{count} {what}" for what, count in counts.most_common()))
    print(f"{options.count} seeds, {len(wrong)} went wrong, {time.process_time() - began:.1f} s of CPU")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
