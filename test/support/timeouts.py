"""Plugin of pytest: a test that is about to time out reports the state of its hosts, and then fails.

pytest-timeout terminates the process, and with it the log of the test and all later tests.
Some seconds before, this plugin writes the stacks of threads and the state of hosts, and kills the hosts: a
test that waits for them fails, and the run continues. Only a test that waits for something else is left to
pytest-timeout.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import threading
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import pathways as pw
from pathways.runtime.clusters.connect import controller
from pathways.runtime.control.records.step import FunctionCall
from pathways.runtime.hosts.cluster.host import WorkerHandle

FOLDER = Path("build/test/timeouts")
"""Folder of the reports, relative to the root of the repository."""
_MAX_LEAD_S = 15.0
"""Time before the timeout of a test at which this acts, or half of that timeout."""
_MAX_STEPS = 5
_TIMER = pytest.StashKey[threading.Timer]()


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    timer = threading.Timer(settings.timeout - _lead_of(settings), _act, (item, settings))
    timer.daemon = True
    item.stash[_TIMER] = timer
    timer.start()
    return (yield)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> Generator[None, object, object]:
    if (timer := item.stash.get(_TIMER, None)) is not None:
        timer.cancel()
    return (yield)


def _act(item: pytest.Item, settings: Any) -> None:
    import pytest_timeout

    if not settings.disable_debugger_detection and pytest_timeout.is_debugging():
        return
    name = re.sub(r"[^\w.,=\[\]-]+", "_", f"{item.path.stem}.{item.name}")[:200]
    path = item.config.rootpath / FOLDER / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    hosts = _hosts()
    with path.open("w") as file:
        # The stacks are on disk before hosts are queried: that may hang as the test does.
        file.write(f"{item.nodeid}: still running, its timeout is {settings.timeout:g} s\n\nthreads\n")
        file.flush()
        faulthandler.dump_traceback(file)
        for text in _in_time(_described(), _lead_of(settings) / 2) if hosts else ["not connected to hosts"]:
            file.write(f"\n{text}\n")
    item.add_report_section("call", "state before the timeout", f"{path.read_text()}\n(also in {path})")
    for host in hosts:
        with contextlib.suppress(ProcessLookupError):
            os.kill(host.process.pid, signal.SIGKILL)


def _lead_of(settings: Any) -> float:
    return min(_MAX_LEAD_S, settings.timeout / 2)


def _hosts() -> list[WorkerHandle]:
    connected = controller()
    return [] if connected is None else [*connected.hosts]


def _in_time(texts: Iterable[str], seconds: float) -> list[str]:
    """Returns the texts that a generator yields in a thread of its own within some seconds."""
    found: list[str] = []
    last: list[str] = []

    def collect() -> None:
        try:
            found.extend(texts)
        except BaseException as error:
            last.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(seconds)
    return [*found, *(last or [f"no answer within {seconds:g} s"] * thread.is_alive())]


def _described() -> Iterator[str]:
    """Yields the last output of workers, the status of the cluster, and the state of each step on hosts."""
    connected = controller()
    assert connected is not None
    for host in connected.hosts:
        lines = [f"standard error of {host}, process {host.process.pid}", *host.process.last_lines()]
        yield "\n  | ".join(lines)
    yield str(pw.status())
    for step in connected.unfinished()[:_MAX_STEPS]:
        yield connected.describe_call(cast(FunctionCall, step))
