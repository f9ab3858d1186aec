"""Prints the flaky tests of a CI run, and the sum of all its tests as the last line.

    python .ci/sum_tests.py STATUS FOLDER

STATUS is the exit code so far. FOLDER has the reports; `rest-again.xml` is of tests in `rest.xml`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def outcomes(report: Path) -> dict[tuple[str, str], str]:
    """Returns "passed", "failed" or "skipped" for the class and name of each test of a report."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found[case.get("classname", ""), case.get("name", "")] = outcome
    return found


def main(status: str, folder: Path) -> None:
    """Prints them."""
    reports = {path.stem: outcomes(path) for path in sorted(folder.glob("*.xml"))}
    for name in [name for name in reports if name.endswith("-again")]:
        first = reports[name.removesuffix("-again")]
        for test, outcome in reports.pop(name).items():
            if outcome == "passed" and first.get(test) == "failed":
                print(f"flaky: {'.'.join(test)} failed, and passed when it ran once more, alone")
                first[test] = "passed"
    all_outcomes = [outcome for report in reports.values() for outcome in report.values()]
    passed, failed, skipped = (all_outcomes.count(kind) for kind in ("passed", "failed", "skipped"))
    if status != "0":
        failed = max(failed, 1)  # a step that is no test, such as the type check
    print(f"{passed} passed, {failed} failed, {skipped} skipped")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
