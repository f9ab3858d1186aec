"""Repetition of tests, to find those that fail now and then.

    python test/repeat.py --times 20 --busy 2 -m "hosts or process"

Each repetition is one process of pytest: files in random order, the tests of a file in theirs. Outcomes are
appended to the state file as they come, so a run with the same arguments continues where the last one
stopped. Once all repetitions are there it only prints the table; delete the file to start again.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MAX_SILENCE_S = 330
"""Longer than pytest-timeout waits, which says more of a test that hangs."""
BUSY_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass"

# Hooks of pytest, which loads this file as a plugin.


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--repeat-state", type=Path)
    parser.addoption("--repeat-tests", type=Path)


class OutcomeRecorder:
    """Plugin that selects and orders tests and appends their outcomes to the state file."""

    def __init__(self, state: Path, tests: Path | None) -> None:
        self.state = state
        self.tests = tests
        self.outcome: dict[str, Any] = {}

    def pytest_collection_finish(self, session: Any) -> None:
        ids = [item.nodeid for item in session.items]
        if self.tests is None:
            append(self.state, {"tests": ids})
            return
        # After all hooks that sort or deselect.
        items = {item.nodeid: item for item in session.items}
        session.items[:] = [items[test] for test in json.loads(self.tests.read_text()) if test in items]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.outcome = {"test": nodeid, "outcome": "passed", "seconds": 0.0}
        append(self.state, {"start": nodeid})

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.outcome["seconds"] = round(self.outcome["seconds"] + report.duration, 3)
        if report.skipped and self.outcome["outcome"] == "passed":
            self.outcome["outcome"] = "skipped"
        if report.failed:
            name = re.sub(r"[^\w.-]+", "_", report.nodeid)[-120:]
            log = log_folder(self.state) / f"{name}-{time.time_ns()}.log"
            sections = [f"--- {title}\n{text}" for title, text in report.sections]
            log.write_text("\n".join([report.nodeid, report.longreprtext, *sections]))
            # Of several failures the first counts.
            self.outcome = {"log": str(log)} | self.outcome | {"outcome": "failed"}

    def pytest_runtest_logfinish(self) -> None:
        append(self.state, self.outcome)


def pytest_configure(config: Any) -> None:
    if config.option.repeat_state:
        recorder = OutcomeRecorder(config.option.repeat_state, config.option.repeat_tests)
        config.pluginmanager.register(recorder)


# The program.


def append(state: Path, line: dict[str, Any]) -> None:
    with state.open("a") as file:
        file.write(json.dumps(line) + "\n")


def log_folder(state: Path) -> Path:
    folder = state.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Repetition:
    """Repeated runs of the selected tests.

    Args:
      options: the flags.
      selection: the arguments for pytest.
    """

    def __init__(self, options: argparse.Namespace, selection: list[str]) -> None:
        self.state = options.state.resolve()
        self.times = options.times
        self.deadline = time.monotonic() + options.limit
        self.selection = selection
        self.tests: list[str] = []
        self.outcomes: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
        self.running: str | None = None
        self._read = 0

        arguments = {"times": options.times, "busy": options.busy, "selection": selection}
        if not self.state.exists():
            log_folder(self.state)
            append(self.state, {"arguments": arguments})
        with self.state.open() as file:
            first = json.loads(file.readline())
        if first != {"arguments": arguments}:
            sys.exit(f"{options.state} is of other arguments, {first}: delete it or give another --state")
        self._read_state(show=False)
        # A test that an interrupted run did not finish is run again.
        self.running = None

    def run(self) -> None:
        """Runs what is not done yet, until the time limit."""
        if not self.tests:
            self._run_pytest("--collect-only")
        if not self.tests:
            sys.exit(f"no tests collected: see {self._log}")
        done = sum(min(len(self.outcomes[test]), self.times) for test in self.tests)
        print(f"{len(self.tests)} tests, {done} of {self.times * len(self.tests)} runs done", flush=True)
        for number in range(self.times):
            while batch := [test for test in self.tests if len(self.outcomes[test]) <= number]:
                if time.monotonic() > self.deadline:
                    print("time limit reached; run again to continue")
                    return
                self._run_batch(number, batch)

    def print_table(self) -> bool:
        """Prints tests that failed; returns whether there are any."""
        failed = {test: [o for o in self.outcomes[test] if "log" in o] for test in self.tests}
        rows = [
            (test, str(len(self.outcomes[test])), str(len(found)), found[0]["log"])
            for test, found in failed.items()
            if found
        ]
        if not rows:
            print("no test failed")
            return False
        rows.insert(0, ("test", "runs", "failures", "log of the first"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return True

    def _run_batch(self, number: int, batch: list[str]) -> None:
        files = collections.defaultdict(list)
        for test in batch:
            files[test.partition("::")[0]].append(test)
        order = random.sample(list(files), len(files))
        tests = self.state.with_suffix(".tests")
        tests.write_text(json.dumps([test for file in order for test in files[file]]))
        before = {test: len(self.outcomes[test]) for test in batch}
        start = time.monotonic()
        status = self._run_pytest(f"--repeat-tests={tests}")
        if self.running is not None and status is not None:
            append(
                self.state, {"test": self.running, "outcome": "died", "status": status, "log": str(self._log)}
            )
            self._read_state()
        new = [outcome for test in batch for outcome in self.outcomes[test][before[test] :]]
        if not new and time.monotonic() < self.deadline:
            sys.exit(f"pytest ended before the first test: see {self._log}")
        failures = sum("log" in outcome for outcome in new)
        print(
            f"repetition {number + 1} of {self.times}: {len(new)} tests, {failures} failed, "
            f"{time.monotonic() - start:.1f} s",
            flush=True,
        )

    def _run_pytest(self, *flags: str) -> int | None:
        """Returns the status of a process of pytest, nothing if it was killed at the time limit."""
        self._log = log_folder(self.state) / f"pytest-{time.time_ns()}.log"
        plugin = ["-o", f"pythonpath={ROOT}/test/support {ROOT}/test", "-p", "repeat"]
        command = [*plugin, f"--repeat-state={self.state}", *flags, *self.selection]
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *command],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            heard = time.monotonic()
            try:
                while True:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(0.2)
                    if self._read_state():
                        heard = time.monotonic()
                    if process.returncode is not None:
                        if process.returncode == 0 and self.running is None:
                            self._log.unlink()
                        return process.returncode
                    if time.monotonic() > self.deadline:
                        return None
                    if time.monotonic() > heard + MAX_SILENCE_S:
                        return -signal.SIGKILL
            finally:
                # Also what a process that died has left.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _read_state(self, show: bool = True) -> bool:
        """Reads new lines of the state file; returns whether there are any."""
        with self.state.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        # The last line may be half written.
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        for line in map(json.loads, text.splitlines()):
            match line:
                case {"tests": tests}:
                    self.tests = tests
                case {"start": test}:
                    self.running = test
                case {"test": test}:
                    self.running = None
                    self.outcomes[test].append(line)
                    if show and "log" in line:
                        print(f"{line['outcome']}: {test} ({line['log']})", flush=True)
        return bool(text)


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Processes that keep cores busy, until the block or this process ends."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__,
        epilog="All other arguments select tests and are handed to pytest.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    flags.add_argument("--times", type=int, default=20, help="runs of each test (default: %(default)s)")
    flags.add_argument("--busy", type=int, default=0, help="busy loops beside (default: %(default)s)")
    state = Path("build", "test", "repeat.jsonl")
    flags.add_argument("--state", type=Path, default=ROOT / state, help=f"state file (default: {state})")
    flags.add_argument("--limit", type=float, default=float("inf"), help="seconds until it stops")
    options, selection = flags.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    repetition = Repetition(options, selection)
    try:
        with busy_loops(options.busy):
            repetition.run()
    except KeyboardInterrupt:
        print("interrupted; run again to continue")
    sys.exit(repetition.print_table())


if __name__ == "__main__":
    main()
