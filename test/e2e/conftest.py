"""Runs of the examples, each made once however many tests look at it, and workers that tests share."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import preloaded
import pytest
from attached import ServiceInThreads

import pathways as pw
from pathways.runtime.hosts.cluster.controller import Controller
from pathways.runtime.hosts.controller import connect
from pathways.runtime.hosts.launch.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"

STARTED = connect._started
"""Starts workers of this process."""


@dataclasses.dataclass(frozen=True)
class ExampleRun:
    """What an example printed, and the folder with every form of its programs."""

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


@pytest.fixture(scope="module")
def shared_workers() -> Iterator[None]:
    """Tests of a module that connect to the same hosts have the same workers, which its last test ends."""
    pw.disconnect()
    yield
    pw.disconnect()


@pytest.fixture(scope="module", params=["own", "attached"])
def own_or_attached_workers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """As `shared_workers`, and once more as a client of a service that has started such workers."""
    pw.disconnect()
    services: list[ServiceInThreads] = []

    def started(settings: Settings) -> Controller:
        while services:
            services.pop().close()
        services.append(ServiceInThreads(settings, tmp_path_factory.mktemp("service")))
        return services[0].attach()

    with pytest.MonkeyPatch.context() as patch:
        if request.param == "attached":
            patch.setattr(connect, "_started", started)
        yield
        pw.disconnect()
    for service in services:
        service.close()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "not_attached: is not run once more as a client of a service.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that are about workers of their own are not run as clients of a service."""
    items[:] = [item for item in items if "[attached" not in item.name or not _is_about_own_workers(item)]


def _is_about_own_workers(item: pytest.Item) -> bool:
    is_marked = item.get_closest_marker("not_attached") is not None
    return is_marked or "own_workers" in getattr(item, "fixturenames", ())


@pytest.fixture
def own_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test starts workers that no other one gets, so that it may kill them."""
    pw.disconnect()
    # Also behind tests that were run as clients.
    monkeypatch.setattr(connect, "_started", STARTED)
    yield
    pw.disconnect()


@pytest.fixture
def devices() -> Iterator[pw.VirtualDeviceSet]:
    """Slices of the test, which give their devices back."""
    made = pw.make_virtual_device_set()
    yield made
    for slice in made.slices:
        pw.release(slice)
