"""Table of the lines that two runs of tests cover, by folder.

    python test/coverage_table.py build/test/coverage.quick build/test/coverage.all

`make coverage` writes both files, and runs this.

The files name the tests of each line, which test/mutants.py reads.
"""

from __future__ import annotations

import argparse
import collections
import os
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("compiler", "dialect", "passes", "runtime", "tools")


def read_data(file: Path) -> tuple[coverage.CoverageData, Path]:
    """Returns the data of a run and the root of the checkout that was measured, maybe another than this."""
    data = coverage.CoverageData(str(file))
    data.read()
    return data, Path(os.path.commonpath(sorted(data.measured_files())))


def statements_of(file: Path) -> dict[str, tuple[set[int], set[int]]]:
    """Returns the statements of each module and those that were executed."""
    _, root = read_data(file)
    measured = coverage.Coverage(data_file=file, config_file=False)
    measured.load()
    found = {}
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        _, statements, _, missing, _ = measured.analysis2(str(path))
        found[str(path.relative_to(root))] = set(statements), set(statements) - set(missing)
    return found


def table(first: Path, second: Path, depth: int) -> list[tuple[str, int, int, int]]:
    """Returns the rows: folder, lines, lines that the first run covers, lines that the second does."""
    rows: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for column, file in (("first", first), ("second", second)):
        for name, (statements, executed) in statements_of(file).items():
            for folder in ("/".join(Path(name).parent.parts[:depth]), "all"):
                rows[folder][column] += len(executed)
                rows[folder]["lines"] += len(statements) if column == "first" else 0
    return [(folder, row["lines"], row["first"], row["second"]) for folder, row in sorted(rows.items())]


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("first", type=Path)
    flags.add_argument("second", type=Path)
    flags.add_argument("--depth", type=int, default=2, help="levels of folders (default: %(default)s)")
    options = flags.parse_args()
    print(f"{'folder':34}{'lines':>8}{options.first.name:>24}{options.second.name:>24}")
    for folder, lines, *covered in table(options.first, options.second, options.depth):
        cells = "".join(f"{count:14} ({count / max(lines, 1):6.1%})" for count in covered)
        print(f"{folder:34}{lines:8}{cells}")


if __name__ == "__main__":
    main()
