"""Spare workers whose processes are pipes: how the pool handles their output and exits."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pathways as pw
from pathways.runtime.control.records.errors import HostStartError
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.hosts.protocol.join_messages import WorkerConfig
from pathways.runtime.resilience.spares import spare_core
from pathways.runtime.resilience.spares.spare_pool import SparePool
from pathways.runtime.resources.status import ServiceStatus, SpareStatus, Status

CONFIG = WorkerConfig("/tmp/nowhere", "", 3, 0, 0, 1, 1, 10.0, 20.0)


class PipeChild:
    """A `Child` without a process."""

    def __init__(self) -> None:
        self.pid = 7
        read, write = os.pipe()
        self.output, self._write = os.fdopen(read, "rb"), os.fdopen(write, "wb")
        self._how: str | None = None
        self._ended = threading.Event()
        self.config: WorkerConfig | None = None

    def get_ready(self) -> None:
        self._write.write(b"ready\n")
        self._write.flush()

    def exit(self, how: str) -> None:
        self._how = how
        self._ended.set()
        self._write.close()

    def kill(self) -> None:
        if not self._ended.is_set():
            self.exit("killed by signal 9")

    def exit_status(self, timeout: float) -> str | None:
        return self._how if self._ended.wait(timeout) else None

    def last_lines(self) -> tuple[str, ...]:
        return ()

    def configure(self, config: WorkerConfig) -> None:
        self.config = config
        self._write.close()


class Pool:
    """A pool, and the children that it has started."""

    def __init__(self, count: int) -> None:
        self.children: list[PipeChild] = []
        self.fails = False
        self.pool = SparePool(count, self._start)
        with self.pool.no_refill():
            pass

    def _start(self) -> PipeChild:  # type: ignore[override]
        if self.fails:
            raise HostStartError("a spare worker did not start: no memory")
        self.children.append(PipeChild())
        return self.children[-1]

    def get_ready(self, count: int) -> None:
        """Waits for some children to be started, and makes them ready, one after the other."""
        for n in range(count):
            wait_until(lambda n=n: len(self.children) > n)
            self.children[n].get_ready()
        wait_until(lambda: self.pool.status() == SpareStatus(self.pool._core.count, self.pool._core.count))


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.005)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Pool]]:
    monkeypatch.setattr(spare_core, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(spare_core, "PAUSES", (0.0,) * 4)
    pools: list[Pool] = []

    def make(count: int) -> Pool:
        pools.append(Pool(count))
        return pools[-1]

    yield make
    for each in pools:
        each.pool.close()
        assert all(child.config or child.exit_status(5) for child in each.children), "one is left"


def test_spare_pool_gives_the_oldest(make):
    two = make(2)
    two.get_ready(2)
    assert two.pool.take(CONFIG) is two.children[0]
    assert two.children[0].config is CONFIG
    wait_until(lambda: len(two.children) == 3)
    assert two.pool.status() == SpareStatus(1, 2)


def test_spare_pool_refuses_another_environment(make, monkeypatch, caplog):
    one = make(1)
    one.get_ready(1)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert one.pool.take(CONFIG) is None
    assert one.children[0].exit_status(5)
    wait_until(lambda: len(one.children) == 2)
    line = "a spare worker is not used: XLA_FLAGS changed in the environment since it started; a new worker"
    wait_until(lambda: line in caplog.text)
    assert one.pool.take(CONFIG) is one.children[1]


def test_spare_pool_refuses_another_folder(make, monkeypatch, tmp_path, caplog):
    one = make(1)
    one.get_ready(1)
    before = Path.cwd()
    monkeypatch.chdir(tmp_path)
    assert one.pool.take(CONFIG) is None
    reason = f"its working directory is {before}, that of this process is now {tmp_path}"
    wait_until(lambda: reason in caplog.text)


def test_spare_pool_ignores_what_only_the_controller_reads(make, monkeypatch):
    one = make(1)
    one.get_ready(1)
    monkeypatch.setenv("PW_TRACE", "trace.json")
    assert one.pool.take(CONFIG) is one.children[0]


def test_spare_pool_replaces_one_that_exits(make, caplog):
    one = make(1)
    one.get_ready(1)
    one.children[0].exit("killed by signal 9")
    wait_until(lambda: len(one.children) == 2)
    wait_until(lambda: "a spare worker exited (killed by signal 9); another one starts" in caplog.text)


def test_spare_pool_passes_over_one_that_has_just_exited(make, caplog):
    """The process is found exited before its pipe is closed."""
    one = make(1)
    one.get_ready(1)
    child = one.children[0]
    child._how = "killed by signal 9"
    child._ended.set()
    assert one.pool.take(CONFIG) is None
    child._write.close()
    wait_until(lambda: "not used: it has exited (killed by signal 9); a new worker" in caplog.text)
    wait_until(lambda: len(one.children) == 2)


def test_spare_pool_says_why_there_are_none(make, caplog):
    caplog.set_level(logging.ERROR, "pathways")
    one = make(1)
    one.get_ready(1)
    one.fails = True
    one.children[0].exit("exit code 1")
    wait_until(lambda: one.pool.status().problem is not None)
    why = "a spare worker did not start: no memory, the last of 5 that failed in a row; no more are started"
    assert one.pool.status() == SpareStatus(0, 1, why)
    wait_until(lambda: why in caplog.text)


def test_spare_pool_without_spares_has_no_thread(make):
    none = make(0)
    assert none.pool.status() is None
    assert none.pool.take(CONFIG) is None


def test_spare_status_is_shown():
    spares = SpareStatus(1, 2, "no memory")
    line = "spare workers: 1 of 2 ready; no memory"
    assert str(Status("hosts", (), (), spares=spares)) == line
    assert f"<p>{line}</p>" in Status("hosts", (), (), spares=spares)._repr_html_()
    assert line in str(ServiceStatus(1, (), (), spares))


@pytest.mark.parametrize(
    ("launcher", "keywords"),
    [
        (pw.Ssh(["a"], bind="127.0.0.1"), {}),
        (pw.Join(secret_file="s", bind="127.0.0.1", ports=(7000, 7009)), {"hosts": 2}),
    ],
)
def test_spares_are_refused_elsewhere(launcher, keywords):
    with pytest.raises(ValueError, match="spares=1: spare workers are children of this process; expected"):
        pw.connect(launcher, options=pw.HostOptions(spares=1), **keywords)


def test_spares_of_options_and_islands_add_up():
    islands = (Island(spares=2), Island(2), Island(spares=1))
    assert Settings(islands, pw.HostOptions(spares=1)).spares == 4
    with pytest.raises(ValueError, match=r"spares=-1: expected at least 0"):
        Island(spares=-1)
    with pytest.raises(ValueError, match=r"spares=-1: expected a number of spare workers from 0 to 256"):
        pw.HostOptions(spares=-1)
