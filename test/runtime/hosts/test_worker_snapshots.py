"""Snapshots that a worker writes, sends, receives and reads, without a controller."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from check import assert_equal
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pathways.runtime.hosts.protocol.messages import DeviceLayout, ResultArray
from pathways.runtime.hosts.worker import call_runner, snapshots
from pathways.runtime.hosts.worker.array_store import FailedArray
from pathways.runtime.hosts.worker.call_runner import CallContext, CallRefused
from pathways.runtime.hosts.worker.probes import Probes
from pathways.runtime.resilience.records import VersionKey
from pathways.runtime.snapshots.host_snapshots import HostSnapshots

SECRET, RUN, KEY = b"s" * 32, "run1", (10, 1)
RESULT = ResultArray((8,), "float32", DeviceLayout((0, 1), (2,), ("x",), (("x",),)))


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Address of the probes of a worker in this process, host 3, with an open run."""
    server = socket.create_server(("127.0.0.1", 0))
    probes = Probes(server, SECRET, 3, 0, lambda *_: None, lambda *_: None, 5.0)
    snapshots.serve_snapshots(probes, 5.0)
    call_runner._current.context = CallContext(3, (), (), {})
    snapshots.open_run(run=RUN, folder=str(tmp_path / "mine"), rate=None)
    yield probes.address
    snapshots.close_run(run=RUN)
    probes.close()
    call_runner._current.context = None


def array() -> jax.Array:
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    return jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, PartitionSpec("x")))


def write(value: Any, copy: int = 1) -> None:
    blocks: list[Any] = [(0, 0, "w[0:4]", [[0, 4]]), (0, 1, "w[4:8]", [[4, 8]])]
    snapshots.write([value], run=RUN, key=KEY, copy=copy, names=["w"], blocks=blocks)


def read() -> np.ndarray:
    call_runner._current.context = CallContext(3, (RESULT,), (array().sharding,), {})
    (value,) = snapshots.read(run=RUN, key=KEY, leaves=[[([[0, 4]], "w[0:4]"), ([[4, 8]], "w[4:8]")]])
    return np.asarray(value)


def test_worker_reads_the_shards_that_it_wrote(address, tmp_path):
    write(array())
    assert_equal(read(), np.arange(8, dtype=np.float32))
    opened = snapshots.open_run(run=RUN, folder=str(tmp_path / "mine"), rate=None)
    assert opened["versions"] == [[10, 1, ["w[0:4]", "w[4:8]"]]]
    assert opened["bytes"] > 0
    with pytest.raises(CallRefused, match="w is an error: no memory"):
        write(FailedArray("no memory"))


def test_worker_keeps_versions_that_are_begun_later(address):
    write(array())
    snapshots.keep(run=RUN, keys=[], newest=(8, 1))
    read()
    snapshots.keep(run=RUN, keys=[], newest=KEY)
    with pytest.raises(CallRefused, match=r"host3 has no block w\[\d:\d\] of version 10"):
        read()


def test_worker_receives_blocks_of_another_one(address):
    """All blocks of a copy, or some of them; the worker connects to itself."""
    source: dict[str, Any] = {"run": RUN, "key": KEY, "host": 3, "address": address}
    write(array())
    snapshots.receive(**source, copy=2, blocks=["w[0:4]", "w[4:8]"])
    snapshots.receive(**source, copy=3, blocks=["w[4:8]"])
    stored = snapshots._runs[RUN].snapshots
    assert stored.names(VersionKey(*KEY), 2) == ("w[0:4]", "w[4:8]")
    assert stored.names(VersionKey(*KEY), 3) == ("w[4:8]",)
    assert_equal(stored.read(VersionKey(*KEY), 3)["w[4:8]"].data, np.arange(4, 8, dtype=np.float32))
    assert snapshots.fetch(**source, blocks=["w[0:4]"]) == {}
    assert_equal(read(), np.arange(8, dtype=np.float32))


def test_worker_reports_blocks_that_it_does_not_receive(address):
    source: dict[str, Any] = {"run": RUN, "key": KEY, "host": 3, "blocks": ["w"]}
    why = snapshots.fetch(**source, address=address)
    assert why["is_corrupt"]
    assert why["why"].endswith("host3 has no block w of version 10")
    with pytest.raises(CallRefused, match="has no block w of version 10"):
        snapshots.receive(**source, address=address, copy=2)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    why = snapshots.fetch(**source, address=f"127.0.0.1:{port}")
    assert why == {"why": "host 3 does not send them: [Errno 111] Connection refused", "is_corrupt": False}


def test_worker_drops_a_stream_of_a_version_that_is_not_kept(address):
    write(array())
    snapshots._runs[RUN].kept = frozenset()
    with pytest.raises(CallRefused, match="version 10 was dropped while it was received"):
        snapshots.receive(run=RUN, key=KEY, copy=2, host=3, address=address, blocks=["w[0:4]"])


def test_worker_refuses_blocks_without_the_secret(address):
    server = socket.create_server(("127.0.0.1", 0))
    stranger = Probes(server, b"?" * 32, 4, 0, lambda *_: None, lambda *_: None, 5.0)
    snapshots.serve_snapshots(stranger, 5.0)
    try:
        why = snapshots.fetch(run=RUN, key=KEY, host=3, address=address, blocks=["w[0:4]"])
    finally:
        stranger.close()
    assert why["why"].startswith("host 3 does not send them: ")
    assert not why["is_corrupt"]


@pytest.mark.process
def test_worker_removes_runs_of_exited_controllers(tmp_path):
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE)
    names = [
        snapshots.run_name("1"),
        snapshots.run_name("2").replace(str(os.getpid()), ended.stdout.decode().strip()),
    ]
    for name in names:
        HostSnapshots(tmp_path / "mine", name, 3).close()
    call_runner._current.context = CallContext(3, (), (), {})
    snapshots.open_run(run="new", folder=str(tmp_path / "mine"), rate=None)
    left = [path.parent.name for path in (tmp_path / "mine").glob("*/host3")]
    snapshots.close_run(run="new")
    assert sorted(left) == sorted(["new", names[0]])


def test_worker_waits_for_an_earlier_one_that_is_about_to_exit(tmp_path):
    earlier = HostSnapshots(tmp_path / "mine", RUN, 3)
    closing = threading.Timer(0.2, earlier.close)
    closing.start()
    call_runner._current.context = CallContext(3, (), (), {})
    snapshots.open_run(run=RUN, folder=str(tmp_path / "mine"), rate=None)
    snapshots.close_run(run=RUN)
    closing.join()
