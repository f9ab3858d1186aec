"""Runs of the examples, each run once for all tests that read it, and workers that tests share."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import preloaded
import pytest
from worker_pool import WorkerPool

import pathways as pw

EXAMPLES = Path(__file__).parents[2] / "examples"

_HAS_FAILED = pytest.StashKey[bool]()


@dataclasses.dataclass(frozen=True)
class ExampleRun:
    """Output of an example, and the folder with every form of its programs."""

    output: str
    forms: Path


@pytest.fixture(scope="session")
def run_example(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ExampleRun]:
    """Runs `examples/<name>` with flags."""

    @functools.cache
    def run(name: str, *flags: str) -> ExampleRun:
        forms = tmp_path_factory.mktemp(name.removesuffix(".py"))
        environment = {**os.environ, "PW_DUMP_TO": str(forms)}
        done = preloaded.run(EXAMPLES / name, *flags, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return ExampleRun(done.stdout, forms)

    return run


@pytest.fixture(scope="session")
def worker_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    """Returns the workers that tests of this process share."""
    pool = WorkerPool(lambda: tmp_path_factory.mktemp("service"))
    yield pool
    pool.close()


@pytest.fixture
def shared_workers() -> None:
    """Gives the test workers that other tests have used; it leaves no arrays on them and kills none."""


@pytest.fixture(scope="module", params=["own", "attached"])
def own_or_attached_workers(request: pytest.FixtureRequest) -> str:
    """Runs a test as `shared_workers` does, and again as a client of a service with such workers."""
    return request.param


@pytest.fixture(autouse=True)
def lent_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lends workers to tests that share some; ends last, after other fixtures have freed their arrays."""
    names = request.fixturenames
    if "own_workers" in names or not {"shared_workers", "own_or_attached_workers"} & {*names}:
        yield
        return
    kind = "own"
    if "own_or_attached_workers" in names:
        kind = request.getfixturevalue("own_or_attached_workers")
    pool: WorkerPool = request.getfixturevalue("worker_pool")
    is_leaky = request.node.get_closest_marker("leaves_arrays") is not None
    with pool.lend(kind, lambda: is_leaky or request.node.stash.get(_HAS_FAILED, False)):
        yield
        # Values of fixtures may be arrays.
        request.node.funcargs.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_HAS_FAILED] = item.stash.get(_HAS_FAILED, False) or report.failed
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deselects, for clients of a service, the tests that need workers of their own."""
    items[:] = [item for item in items if "[attached" not in item.name or not _is_about_own_workers(item)]


def _is_about_own_workers(item: pytest.Item) -> bool:
    is_marked = item.get_closest_marker("not_attached") is not None
    return is_marked or "own_workers" in getattr(item, "fixturenames", ())


@pytest.fixture
def own_workers() -> Iterator[None]:
    """Starts workers for this test alone, so that it may kill them."""
    pw.disconnect()
    yield
    pw.disconnect()


@pytest.fixture
def devices() -> Iterator[pw.VirtualDeviceSet]:
    """Returns slices of the test, which releases their devices at its end."""
    device_set = pw.make_virtual_device_set()
    yield device_set
    for slice in device_set.slices:
        pw.release(slice)
