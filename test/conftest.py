"""Settings of every test, and the layers that tests are divided into.

`make test` runs the quick layer: tests that start no process and take little time, and of the others those
that show a feature. `make test-all` runs the rest too. Markers say what a test costs and needs, and
`durations.json` has the seconds that each took; this file alone decides from them in which layer a test is.
"""

from __future__ import annotations

import atexit
import collections
import gc
import itertools
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before JAX starts: tests count on CPU devices, also on a machine with a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Tests and the processes they start keep compiled code where they find none of earlier runs; workers of
# pytest-xdist have that of the process that started them. What is compiled runs once or twice, so LLVM need
# not make it fast.
if "PYTEST_XDIST_WORKER" not in os.environ:
    folder = tempfile.mkdtemp(prefix="pathways-test-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ.update(
        PW_CACHE_DIR=folder,
        PW_CACHE_LIMIT="",
        XLA_FLAGS=f"--xla_backend_optimization_level=0 {flags}",
        JAX_COMPILATION_CACHE_DIR=f"{folder}/jax",
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0.1",
    )

import hypothesis
import jax
import preloaded
import pytest
import requirements
from durations import MAX_QUICK_TEST_S
from jaxlib import xla_client
from plan_builder import PlanBuilder, Runner

pytest_plugins = ("timeouts",)

jax.config.update("jax_num_cpu_devices", 8)
preloaded.start_workers()

# XLA reads its flags at their first use: not in a test that changes the variable.
xla_client.CompileOptions()

# A runner that was started in the background ignores Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Python starts `uname` at the first use of the name of the processor: not during a test.
platform.processor()

# Tracing makes many objects and few cycles, and JAX looks through all of its own whenever Python collects.
gc.set_threshold(20_000, 10, 10)

# A machine may be busy: that an example takes long is no fault of the code under test.
hypothesis.settings.register_profile("pathways", deadline=None)
hypothesis.settings.load_profile("pathways")

ROOT = Path(__file__).parents[1]

MAX_UNMARKED_TEST_S = 0.8
"""Longest duration of a test that is in the quick layer without showing a feature."""

MARKERS = (
    "hosts: uses workers, of its own or of other tests; fixtures add it.",
    "process: starts a process.",
    "slow: is no test of the quick layer, whatever it takes.",
    "feature(name, kind): is a test of the quick layer, since it shows a feature of docs/features.md, by its "
    "values, by an error, or on hosts.",
    "quick: is a test of the quick layer, whatever it takes.",
    "needs(*names): is skipped where this machine lacks one of them; see test/support/requirements.py.",
    "not_attached: is not run once more as a client of a service.",
    "leaves_arrays: leaves arrays on workers, which then end; the test says why.",
)

_MARKERS_OF_FIXTURES = {
    "own_or_attached_workers": "hosts",
    "own_workers": "hosts",
    "shared_workers": "hosts",
    "own_editor": "process",
    "run_example": "process",
    "shared_editor": "process",
    "warm_checks": "process",
}

_QUICK_TESTS = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--layer",
        choices=("quick", "rest", "all"),
        default="all",
        help="the tests of `make test`, the other ones of `make test-all`, or (by default) both",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Chooses the tests of the layer, and orders them: files that take longest come first.

    Started last, they would keep one process busy after all others have ended.
    """
    for item in items:
        for fixture in _MARKERS_OF_FIXTURES.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(_MARKERS_OF_FIXTURES[fixture])
    durations = read_durations()
    config.stash[_QUICK_TESTS] = [item.nodeid for item in items if layer_of(item, durations) == "quick"]
    layer = config.getoption("--layer")
    if layer != "all":
        chosen = [item for item in items if layer_of(item, durations) == layer]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen
    seconds: collections.Counter[str] = collections.Counter()
    for item in items:
        seconds[file_of(item)] += durations.get(item.nodeid, MAX_QUICK_TEST_S)
    items.sort(key=lambda item: -seconds[file_of(item)])


def file_of(item: pytest.Item) -> str:
    """Returns the path of the file of a test."""
    return item.nodeid.partition("::")[0]


def read_durations() -> dict[str, float]:
    """Returns the seconds that each test took, by its id; `make durations` measures them."""
    return json.loads((ROOT / "test" / "durations.json").read_text())


def layer_of(item: pytest.Item, durations: dict[str, float]) -> str:
    """Returns the layer of a test: "quick" or "rest"."""
    if item.get_closest_marker("slow") or "[attached" in item.name:
        return "rest"
    if item.get_closest_marker("feature") or item.get_closest_marker("quick"):
        return "quick"
    if item.get_closest_marker("hosts") or item.get_closest_marker("process"):
        return "rest"
    # A test without a measurement runs, so that its author sees it run.
    return "quick" if durations.get(item.nodeid, 0) <= MAX_UNMARKED_TEST_S else "rest"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Names the tests that were never measured."""
    if config.getoption("--layer") == "all":
        return
    reports = itertools.chain.from_iterable(terminalreporter.stats.values())
    ran = {report.nodeid for report in reports if isinstance(report, pytest.TestReport)}
    for name in sorted(ran - read_durations().keys()):
        terminalreporter.write_line(f"not in test/durations.json (make durations ARGS=...): {name}")


def pytest_collection_finish() -> None:
    # What was imported and collected stays, and is not to be looked through again and again.
    gc.freeze()


_started: list[str] = []
"""The processes that were started since the test began."""


def _note_process(event: str, args: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        _started.append(f"{args[0]} {' '.join(map(str, args[1]))}"[:100])
    elif event == preloaded.AUDIT_EVENT:
        _started.append(" ".join(args[0])[:100])
    elif event in ("os.fork", "os.forkpty", "os.posix_spawn"):
        _started.append(event)


sys.addaudithook(_note_process)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    _started.clear()
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            if missing := requirements.MISSING[name]():
                pytest.skip(missing)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails a test that starts a process without the marker that says so."""
    result = yield
    if _started and not (item.get_closest_marker("process") or item.get_closest_marker("hosts")):
        pytest.fail(f"{item.nodeid} starts {_started[0]}: mark it with pytest.mark.process", pytrace=False)
    return result


@pytest.fixture
def quick_tests(request: pytest.FixtureRequest) -> list[str] | None:
    """The ids of the tests of the quick layer; None where pytest was to collect only some tests."""
    is_whole = (ROOT / "test").resolve() in {Path(path).resolve() for path in request.config.args}
    return request.config.stash[_QUICK_TESTS] if is_whole else None


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def plan_builder() -> type[PlanBuilder]:
    return PlanBuilder
