"""JAX's own tests through the proxy server, next to the same tests on local devices.

    python test/conformance.py DIR --files array pjit -k donat

DIR is a checkout of the tag of the installed jax. Each chunk of tests runs in a process, first locally,
then as a client of a server; a test that takes too long or ends its process is one outcome, and the others
go on. Outcomes are appended to files of the state folder as they come, so a run that was stopped continues.
The table at the end has each test that passes locally and not through the server, by reason. The exit code
is 1 if a reason is not in `KNOWN`, which the manual explains.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
import queue
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unittest
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
FILES = ("array", "pjit", "shard_map", "api", "lax_numpy")
SIDES = ("local", "proxied")
DEVICES = 8
IMPORT_TIMEOUT_S = 300.0


@dataclasses.dataclass(frozen=True)
class KnownDifference:
    """Reason for which tests fail through the server.

    Attributes:
      origin: the part that refuses or differs: the client in JAX, the test itself, or `pw-proxy`.
      what: the reason, as the manual has it.
      message: a pattern in the message of the failure.
      tests: a pattern in the name of the test.
    """

    origin: str
    what: str
    message: str
    tests: str = ""

    def explains(self, test: str, message: str) -> bool:
        """Returns whether a failure has this reason."""
        return bool(re.search(self.message, message) and re.search(self.tests, test))


CLIENT = "the client in JAX"

KNOWN = (
    KnownDifference(CLIENT, "callbacks", "[Hh]ost callback|callbacks? "),
    KnownDifference(CLIENT, "negative and zero strides", "Negative or zero strides"),
    KnownDifference(CLIENT, "dlpack and the buffer protocol", "Only local arrays are supported|dlpack"),
    KnownDifference(
        CLIENT,
        "unsafe_buffer_pointer, and cost_analysis of what is not compiled",
        "implemented for a PjRt-compatible backend only",
    ),
    KnownDifference(
        CLIENT,
        "is_deleted of an array that shares buffers with a donated one",
        "False is not true",
        "test_fully_replicated_donated_array_is_deleted|test_device_put_donate_pytree",
    ),
    KnownDifference(
        CLIENT,
        "devices of the program's own process",
        "Unknown backend cpu|non-PjRt-compatible client|instances of xla::ifrt::proxy::Device",
    ),
    KnownDifference(
        CLIENT,
        "devices of the program's own process",
        "returned non-zero exit status",
        "test_no_backend_warning_on_cpu_if_platform_specified",
    ),
    KnownDifference(
        "pw-proxy on hosts",
        "the value of a token: an empty array, where one process raises an error",
        "RuntimeError not raised",
        "test_print_token_buffer_error",
    ),
)


# In the process of a chunk.


class OutcomeRecorder(unittest.TestResult):
    """Result that writes the start and the outcome of each test as a line of JSON."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self._out = out
        self._outcome = ("passed", "")

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._outcome = ("passed", "")
        self._write({"start": name_of(test)})

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        outcome, message = self._outcome
        self._write({"test": name_of(test), "outcome": outcome, "message": message})

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._outcome = "skipped", reason

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._fail(err)

    addError = addFailure

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._fail(err)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._outcome = "failed", "unexpected success"

    def _fail(self, err: Any) -> None:
        # JAX's notes on filtered tracebacks say nothing.
        err[1].__notes__ = []
        text = "".join(traceback.format_exception_only(err[0], err[1])).strip()
        self._outcome = "failed", text[:1000]

    def _write(self, line: Mapping[str, str]) -> None:
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


def name_of(test: unittest.TestCase) -> str:
    """Returns the name of a test without its parameters, whose text may hold addresses."""
    kind = type(test)
    return f"{kind.__module__}.{kind.__qualname__}.{test._testMethodName}"


def tests_of(folder: Path, module_name: str) -> list[unittest.TestCase]:
    """Returns the tests of a module, in the order of JAX's loader."""
    sys.path.insert(0, str(folder))
    # JAX's flags are read when the module is imported.
    sys.argv = [module_name]
    module = importlib.import_module(module_name)
    from jax._src import test_util

    def flat(suite: Iterable[Any]) -> Iterator[unittest.TestCase]:
        for one in suite:
            if isinstance(one, unittest.TestSuite):
                yield from flat(one)
            else:
                yield one

    return list(flat(test_util.JaxTestLoader().loadTestsFromModule(module)))


def run_chunk(folder: Path, module_name: str, out: IO[str]) -> None:
    """Runs the tests that standard input names, or lists all if it names none."""
    wanted = sys.stdin.read().splitlines()
    tests = tests_of(folder, module_name)
    if not wanted:
        out.write(json.dumps([name_of(test) for test in tests]))
        return
    by_name = {name_of(test): test for test in tests}
    unittest.TestSuite(by_name[name] for name in wanted if name in by_name).run(OutcomeRecorder(out))


# In the process that starts the others.


class Server:
    """A server that is started again when it has ended, for one thread.

    Args:
      log: the file that it logs to.
      hosts: the number of hosts that the devices are on; None for its own process.
    """

    def __init__(self, log: Path, hosts: int | None) -> None:
        self._devices = [f"--cpu-devices={DEVICES}"]
        if hosts is not None:
            self._devices = [f"--hosts={hosts}", f"--devices-per-host={DEVICES // hosts}", "--islands=1"]
        self._folder = tempfile.mkdtemp(prefix="conformance-")
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it exited by itself."""
        return self._process is not None and self._process.poll() is not None

    def environment(self, *, with_cpu: bool) -> dict[str, str]:
        """Starts the server, unless it runs, and returns the environment of its clients."""
        socket = Path(self._folder) / "jax"
        if self._process is None or self.has_ended:
            command = [sys.executable, "-m", "pathways.tools.pw_proxy", f"--listen=unix:{socket}"]
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*command, *self._devices], stdout=subprocess.PIPE, stderr=log
                )
            assert self._process.stdout is not None
            if not self._process.stdout.readline():
                raise SystemExit(f"the server does not start; see {self._log}")
        return {
            "JAX_PLATFORMS": "proxy,cpu" if with_cpu else "proxy",
            "JAX_BACKEND_TARGET": f"grpc://unix:{socket}",
            "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
        }

    def close(self) -> None:
        """Ends the server."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            self._process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Tests of one file that share a process."""

    module: str
    side: str
    tests: tuple[str, ...]


class Runner:
    """Runner of chunks of tests in processes; appends their outcomes to the state.

    Args:
      options: the flags of the program.
      state: a folder for outcomes and logs.
    """

    def __init__(self, options: argparse.Namespace, state: Path) -> None:
        self._folder = options.source / "tests"
        self._timeout = options.timeout
        self._with_cpu = options.with_cpu
        self._state = state
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False
        self._servers: queue.SimpleQueue[Server] = queue.SimpleQueue()
        for number in range(options.jobs):
            self._servers.put(Server(state / f"server-{number}.log", options.hosts))

    def stop(self) -> None:
        """Ends all chunks; the tests that run get no outcome."""
        with self._lock:
            self._is_stopped = True
            for process in self._processes:
                process.kill()

    def close(self) -> None:
        """Ends the servers; no chunk may run."""
        while not self._servers.empty():
            self._servers.get().close()

    def list_tests(self, module: str) -> list[str]:
        """Returns the names of all tests of a file."""
        found = self._state / f"{module}.tests"
        if not found.exists():
            process, pipe = self._start(module, {"JAX_PLATFORMS": "cpu"}, ())
            with os.fdopen(pipe) as listed:
                found.write_text(listed.read())
            if process.wait():
                found.unlink()
                raise SystemExit(f"cannot import {module}; see {self._state / module}.log")
        tests: list[str] = json.loads(found.read_text())
        return tests

    def run(self, chunk: Chunk) -> None:
        """Runs a chunk; a test that ends the process, or takes too long, is not run again."""
        left = list(chunk.tests)
        server = self._servers.get()
        try:
            while left and not self._is_stopped:
                environment = {"JAX_PLATFORMS": "cpu"}
                if chunk.side == "proxied":
                    environment = server.environment(with_cpu=self._with_cpu)
                done = self._run_some(chunk, left, environment, server)
                left = [test for test in left if test not in done]
        finally:
            self._servers.put(server)

    def _run_some(
        self, chunk: Chunk, tests: Sequence[str], environment: Mapping[str, str], server: Server
    ) -> set[str]:
        """Runs tests until the process ends; returns those that have an outcome now."""
        process, pipe = self._start(chunk.module, environment, tests)
        done: set[str] = set()
        current, received = "", b""
        problem = ""
        try:
            while not problem:
                # Until the first test starts, JAX is imported.
                timeout = self._timeout if current or done else max(self._timeout, IMPORT_TIMEOUT_S)
                ready, _, _ = select.select([pipe], [], [], timeout)
                if not ready:
                    problem = f"no end within {timeout:.0f} s"
                    break
                data = os.read(pipe, 1 << 16)
                if not data:
                    break
                *lines, received = (received + data).split(b"\n")
                for line in map(json.loads, lines):
                    current = line.get("start", "")
                    if "test" in line:
                        done.add(line["test"])
                        self._add(chunk, line)
        finally:
            os.close(pipe)
            if problem:
                process.kill()
            code = process.wait()
            with self._lock:
                self._processes.discard(process)
        if self._is_stopped:
            return done
        if current:
            if not problem:
                problem = f"the process ended with code {code}"
                if chunk.side == "proxied" and server.has_ended:
                    problem = "the server ended"
            self._add(chunk, {"test": current, "outcome": "ended", "message": problem})
            return done | {current}
        # Failures of what a class or a module prepares have no test.
        missing = [] if done and problem else [test for test in tests if test not in done]
        for test in missing:
            self._add(chunk, {"test": test, "outcome": "failed", "message": f"not run: {problem or code}"})
        return done | set(missing)

    def _start(
        self, module: str, environment: Mapping[str, str], tests: Sequence[str]
    ) -> tuple[subprocess.Popen[bytes], int]:
        """Starts the process of a chunk; returns it and the file descriptor that has its outcomes."""
        pipe, end = os.pipe()
        command = [sys.executable, __file__, str(self._folder), "--chunk-of", module, "--out", str(end)]
        # Tests fail that expect no compilation cache, which any folder turns on, also one without a name.
        kept = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
        with (self._state / f"{module}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=kept | environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[end],
                cwd=self._state,
            )
        with self._lock:
            self._processes.add(process)
        os.close(end)
        assert process.stdin is not None
        process.stdin.write("\n".join(tests).encode())
        process.stdin.close()
        return process, pipe

    def _add(self, chunk: Chunk, outcome: Mapping[str, str]) -> None:
        with self._lock, outcomes_file(self._state, chunk.module, chunk.side).open("a") as file:
            file.write(json.dumps(outcome) + "\n")


def outcomes_file(state: Path, module: str, side: str) -> Path:
    """The file with the outcomes of a side."""
    return state / f"{module}.{side}.jsonl"


def read_outcomes(state: Path, module: str, side: str) -> dict[str, dict[str, str]]:
    """Returns the newest outcome of each test."""
    path = outcomes_file(state, module, side)
    if not path.exists():
        return {}
    return {line["test"]: line for line in map(json.loads, path.read_text().splitlines())}


@dataclasses.dataclass(frozen=True)
class Difference:
    """A test that passes locally, and does not through the server."""

    test: str
    message: str

    @property
    def known(self) -> KnownDifference | None:
        """The reason, if it is a known one."""
        return next((known for known in KNOWN if known.explains(self.test, self.message)), None)

    @property
    def reason(self) -> str:
        """The known reason, or the first line of the message without its numbers."""
        if self.known is not None:
            return f"{self.known.origin}: {self.known.what}"
        return re.sub(r"\d+", "N", self.message.partition("\n")[0])[:150]


def differences(state: Path, module: str) -> list[Difference]:
    """Returns the tests of a file that differ."""
    proxied = read_outcomes(state, module, "proxied")
    return [
        Difference(test, f"{proxied[test]['outcome']}: {proxied[test]['message']}")
        for test, outcome in read_outcomes(state, module, "local").items()
        if outcome["outcome"] == "passed" and proxied.get(test, outcome)["outcome"] != "passed"
    ]


def chunks_of(module: str, side: str, tests: Sequence[str], size: int) -> list[Chunk]:
    """Divides tests into chunks."""
    return [Chunk(module, side, tuple(tests[start : start + size])) for start in range(0, len(tests), size)]


def report(state: Path, modules: Sequence[str]) -> int:
    """Prints what differs; returns how many tests do for no known reason."""
    unknown = 0
    for module in modules:
        passed = {}
        for side in SIDES:
            outcomes = read_outcomes(state, module, side).values()
            counts = collections.Counter(outcome["outcome"] for outcome in outcomes)
            passed[side] = f"{counts['passed']} of {len(outcomes) - counts['skipped']}"
        print(f"{module}: {passed['local']} pass locally, {passed['proxied']} through the server")
        by_reason = collections.defaultdict(list)
        for difference in differences(state, module):
            by_reason[difference.reason, difference.known is not None].append(difference.test)
        for (reason, known), tests in sorted(by_reason.items(), key=lambda entry: -len(entry[1])):
            unknown += 0 if known else len(tests)
            print(f"  {len(tests)} {'' if known else 'NOT KNOWN: '}{reason}")
            for test in tests:
                print(f"      {test.removeprefix(module + '.')}")
    return unknown


def run_all(options: argparse.Namespace) -> int:
    """Runs what has no outcome yet, and reports."""
    import jax

    modules = [f"{name}_test" for name in options.files]
    sources = b"".join((options.source / "tests" / f"{module}.py").read_bytes() for module in modules)
    place = "" if options.hosts is None else f"-{options.hosts}-hosts"
    state = options.state / f"{jax.__version__}-{hashlib.sha256(sources).hexdigest()[:8]}{place}"
    if options.fresh:
        shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True, exist_ok=True)
    runner = Runner(options, state)
    try:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            began = time.monotonic()
            for round_ in ("once", "again"):
                chunks: list[Chunk] = []
                for module in modules:
                    listed = [test for test in runner.list_tests(module) if re.search(options.k, test)]
                    for side in SIDES:
                        if round_ == "once":
                            outcomes = read_outcomes(state, module, side)
                            tests = [test for test in listed if test not in outcomes]
                            chunks += chunks_of(module, side, tests, options.chunk)
                        elif side == "proxied":
                            # Alone, which shows what only differs by the tests before it.
                            tests = [
                                difference.test
                                for difference in differences(state, module)
                                if difference.known is None and difference.test in listed
                            ]
                            chunks += chunks_of(module, side, tests, 1)
                print(f"{round_}: {len(chunks)} chunks of tests", flush=True)
                try:
                    for number, _ in enumerate(pool.map(runner.run, chunks), 1):
                        print(f"  {number} of {len(chunks)}, {time.monotonic() - began:.0f} s", flush=True)
                except BaseException:
                    runner.stop()
                    raise
    finally:
        runner.close()
    return 1 if report(state, modules) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("source", type=Path, help="a checkout of JAX, of the tag of the installed one")
    add("--files", nargs="+", default=FILES, help=f"of {', '.join(FILES)}; default: all")
    add("-k", default="", metavar="PATTERN", help="only tests whose names match")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes of tests at once")
    add("--chunk", type=int, default=80, help="how many tests share a process")
    add("--timeout", type=float, default=300.0, help="how many seconds a test may take")
    add("--with-cpu", action="store_true", help="tests also get the CPU of their own process")
    add("--hosts", type=int, choices=(1, 2, 4, 8), help="on how many hosts the devices of the server are")
    add("--fresh", action="store_true", help="forget the outcomes of earlier runs")
    add("--state", type=Path, default=ROOT / "build" / "conformance", help="folder for outcomes and logs")
    add("--chunk-of", help=argparse.SUPPRESS)
    add("--out", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.chunk_of is not None:
        with os.fdopen(options.out, "w") as out:
            run_chunk(options.source, options.chunk_of, out)
        return 0
    options.source = options.source.resolve()
    for name in options.files:
        if not (options.source / "tests" / f"{name}_test.py").is_file():
            parser.error(f"{options.source} is no checkout of JAX: it has no tests/{name}_test.py")
    return run_all(options)


if __name__ == "__main__":
    sys.exit(main())
