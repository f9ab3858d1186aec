"""The start of workers, which are threads here: how often it polls them, and its errors."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from workers_without_jax import ThreadLauncher

from pathways.runtime.control.gang import START_SECONDS
from pathways.runtime.control.records.errors import HostStartError
from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.cluster.starter import Starter
from pathways.runtime.hosts.launch.descriptors import reserve_descriptors
from pathways.runtime.hosts.launch.launcher import is_crash
from pathways.runtime.hosts.launch.launcher_records import Children, Ssh
from pathways.runtime.hosts.launch.settings import Island, Settings


def start(launcher: ThreadLauncher, hosts: int, contact: float = START_SECONDS) -> list[WorkerHandle]:
    settings = Settings((Island(),) * hosts)
    gangs = Starter(settings, launcher).start(range(hosts), threading.Event(), contact)
    return [host for gang in gangs for host in gang]


@pytest.fixture
def limits() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_starter_checks_each_worker_a_few_times():
    """The number of polls does not grow with the square of the number of workers."""
    launcher = ThreadLauncher(seconds=0.01)
    hosts = start(launcher, 40)
    assert [host.index for host in hosts] == [*range(40)]
    # There is more than one poll each only if the start takes longer than the pause between two.
    assert sum(worker.checks for worker in launcher.workers) < 40 * 20
    for host in hosts:
        host.close()
        host.process.kill()


def test_starter_names_a_worker_that_ends():
    launcher = ThreadLauncher(seconds=0.01, fails=5)
    with pytest.raises(HostStartError, match=r"host 5 did not start \(exit code 1\)\n  \| it has no JAX"):
        start(launcher, 8)
    assert all(worker.exit_status(5.0) for worker in launcher.workers)


def test_starter_does_not_wait_for_the_exit_of_a_worker_that_is_cut_off():
    """The next start, which may succeed, would wait as long."""
    launcher = ThreadLauncher(silent=1)
    with pytest.raises(HostStartError, match=r"host 1 did not connect in 0 seconds"):
        start(launcher, 2, contact=0.3)
    assert [worker.waited for worker in launcher.workers] == [0.0, 0.0]


def test_starter_numbers_an_island_that_does_not_start_again():
    launcher = ThreadLauncher(fails=3)
    starter = Starter(Settings((Island(2),)), launcher)
    assert starter.add_island(Island(2)) == 1
    with pytest.raises(HostStartError, match=r"host 3 did not start \(exit code 1\)"):
        starter.start([1], threading.Event())
    starter.remove_last_island()
    assert starter.add_island(Island(1)) == 1
    ((host,),) = starter.start([1], threading.Event())
    assert (host.index, host.island) == (2, "island1")
    host.close()
    host.process.kill()


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (2, ["a"], r"^hosts=\('a',\): expected a number of hosts, as the other islands have$"),
        (["a"], 2, "^hosts=2: expected names of machines, as the other islands have$"),
        (["a", "b"], ["b"], "^hosts: 'b' is named more than once; expected one host on each machine$"),
    ],
)
def test_starter_refuses_an_island_unlike_the_others(
    first: int | list[str], second: int | list[str], message: str
):
    launcher = Children() if isinstance(first, int) else Ssh(bind="127.0.0.1")
    starter = Starter(Settings((Island(first),), launcher=launcher), ThreadLauncher())
    with pytest.raises(ValueError, match=message):
        starter.add_island(Island(second))
    assert starter.add_island(Island(first if isinstance(first, int) else ["c"])) == 1


def test_reserve_descriptors_raises_the_soft_limit(limits):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    reserve_descriptors(100)
    assert 600 < resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= hard


@pytest.mark.process
def test_reserve_descriptors_refuses_a_low_hard_limit():
    script = """
import resource, pathways as pw
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
try:
    pw.connect(hosts=338)
except pw.HostError as error:
    print(error)
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.startswith("338 hosts need up to 2")
    assert output.endswith("but the limit is 256: raise the hard limit (ulimit -Hn)\n")


def test_crash_is_an_exit_that_no_user_and_no_network_causes():
    crashes = ["killed by signal 11", "killed by signal 6", "exit code 1", "exit code 139"]
    assert all(map(is_crash, crashes))
    # SIGKILL, SIGTERM, SIGINT and SIGHUP; SIGKILL as shells report it; a lost connection of ssh; others.
    outside = [*(f"killed by signal {signal}" for signal in (9, 15, 2, 1)), "exit code 137", "exit code 255"]
    assert not any(map(is_crash, [*outside, "exit code 0", "the process that started it disconnected", ""]))
    # JAX aborts the other hosts of an island when they lose the first one.
    assert not is_crash("killed by signal 6", is_first=False)
    assert is_crash("killed by signal 11", is_first=False)
