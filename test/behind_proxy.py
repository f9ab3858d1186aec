"""Our own tests of programs, in processes behind `pw-proxy`: there they pass, but for the listed differences.

    python test/behind_proxy.py [--on-hosts] [--some] [arguments of pytest]

runs them on devices of one process, or on two islands of two hosts. A failure that has a reason of
`DIFFERENCES` counts as expected; all others fail.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SERVERS = {
    "one process": ("--cpu-devices", "8"),
    "hosts": ("--hosts", "4", "--islands", "2", "--devices-per-host", "4"),
}
"""Flags of `pw-proxy` for each place of devices."""

SOME = ("checkpoints", "conditions", "errors", "memory_kinds", "retraces", "timeline", "while_loops")
"""Names of the files with the tests, a tenth of all, that `--some` runs."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """Reason for which tests fail behind `pw-proxy`.

    Attributes:
      reason: what is different there.
      message: a pattern in the message of the failure.
      tests: a pattern in the name of the test.
    """

    reason: str
    message: str
    tests: str = ""

    def explains(self, test: str, message: str) -> bool:
        """Returns whether a failure has this reason."""
        return bool(re.search(self.message, message) and re.search(self.tests, test))


DIFFERENCES = (
    Difference("a server cannot call back into Python", "calls back into Python"),
    Difference("the devices are those of the server", "JAX has no cpu devices here"),
    Difference("workers run no Python of the program", "in workers, which a program has not behind pw-proxy"),
    Difference(
        "a server checks no values of launches",
        "DID NOT RAISE.*FloatingPointError|check no value of programs behind pw-proxy",
    ),
    Difference(
        "the client in JAX does not know of deleted arrays whose shards a donated one shares",
        r"is_deleted\(\)|is_deleted of",
        "of_other_sharding_is_consumed|arrays_of_the_caller_in_place",
    ),
    Difference("arrays cannot be on islands that are not joined", "islands .* that are not joined"),
    Difference("the client in JAX has no pointers to buffers", "a PjRt-compatible backend only"),
    Difference(
        "the hosts have 16 devices",
        "DID NOT RAISE.*ResourceError|there are 16",
        "more_devices_than_there_are|larger_than_island",
    ),
    Difference(
        "the server launches, not this process, whose profiles and calls are without",
        "AssertionError",
        "test_trace.*(profiles?_of_jax|when_piece_ends|keeps_results_and_leaves_nothing)",
    ),
    Difference("each host has a track of its own", r"s\d+/\d", "sees_launches_on_several_devices"),
    Difference(
        "transfers between islands take longer, so that a pipeline has more microbatches in flight",
        "AssertionError",
        "memory_plan_of_1f1b_is_less_than_of_gpipe",
    ),
    Difference(
        "slices of a loaded bundle may be on other islands, where values that are received count longer",
        r"memory_analysis\(\) == compiled.memory_analysis\(\)",
        "bundle_keeps_the_memory",
    ),
    Difference(
        "the window of calls keeps some small results",
        r"live_bytes\(\)",
        "memory_of_thousand_steps",
    ),
    Difference(
        "a server compiles no calls of unknown functions",
        "'not_there', which is not a call of JAX itself",
        "computation_that_xla_refuses",
    ),
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports a failure that is a known difference as an expected one."""
    report = yield
    if report.failed:
        known = next((d for d in DIFFERENCES if d.explains(item.nodeid, report.longreprtext)), None)
        if known is not None:
            report.outcome = "skipped"
            report.wasxfail = f"reason: {known.reason}"
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--on-hosts", action="store_true", help="on two islands of two hosts")
    parser.add_argument("--some", action="store_true", help="a tenth of the tests")
    parser.add_argument("--jobs", type=int, default=2, help="processes that run tests (2 by default)")
    options, arguments = parser.parse_known_args()
    tests = [f"test/e2e/test_{name}.py" for name in SOME] if options.some else ["test/e2e"]
    command = [
        *(sys.executable, "-m", "pathways.tools.pw_proxy"),
        *SERVERS["hosts" if options.on_hosts else "one process"],
        *("--", sys.executable, "-m", "pytest", "-p", "behind_proxy", "-rfE"),
        *("-m", "not hosts and not process", "-n", str(options.jobs), "--dist", "loadfile"),
        *(*tests, *arguments),
    ]
    # The server compiles, not the process of the tests: code that runs once need not be fast.
    flags = f"--xla_backend_optimization_level=0 {os.environ.get('XLA_FLAGS', '')}"
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT / "test")}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
