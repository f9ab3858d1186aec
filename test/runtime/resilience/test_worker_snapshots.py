"""Snapshots that a worker writes, sends, receives and reads, without a controller."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_equal
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pathways.runtime.hosts.protocol.join_messages import WorkerConfig
from pathways.runtime.hosts.protocol.messages import DeviceLayout, KeepClients, ResultArray
from pathways.runtime.hosts.worker import call_runner
from pathways.runtime.hosts.worker.array_store import FailedArray
from pathways.runtime.hosts.worker.call_runner import CallContext, CallRefused
from pathways.runtime.hosts.worker.probes import Probes
from pathways.runtime.resilience.records import VersionKey
from pathways.runtime.resilience.snapshots import snapshot_streams
from pathways.runtime.resilience.snapshots import worker_snapshots as snapshots
from pathways.runtime.resilience.snapshots.host_snapshots import HostSnapshots
from pathways.runtime.resilience.snapshots.run_names import client_run_name, run_name
from pathways.runtime.resources.process_identity import this_machine, this_process

SECRET, RUN, KEY = b"s" * 32, run_name("0" * 32), (10, 1)
RESULT = ResultArray((8,), "float32", DeviceLayout((0, 1), (2,), ("x",), (("x",),)))


def worker(probes: Probes, folder: Path) -> Any:
    """Returns the parts of a worker of this process that serve snapshots."""
    config = WorkerConfig(
        "", "", 3, 0, 0, 1, 1, 5.0, 20.0, snapshot_folder=str(folder / "mine"), owner=this_process()
    )
    return SimpleNamespace(probes=probes, config=config, releases=[], handlers={"steps": {}})


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Address of the probes of a worker in this process, host 3, with an open run."""
    server = socket.create_server(("127.0.0.1", 0))
    probes = Probes(server, SECRET, 3, 0, lambda *_: None, lambda *_: None, 5.0)
    snapshots.serve_snapshots(worker(probes, tmp_path))
    call_runner._current.context = CallContext(3, (), (), {})
    snapshots.open_run(run=RUN)
    yield probes.address
    call_runner._current.context = CallContext(3, (), (), {})
    snapshots.close_run(run=RUN)
    probes.close()
    call_runner._current.context = None


def array() -> jax.Array:
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    return jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, PartitionSpec("x")))


def write(value: Any, copy: int = 1) -> None:
    blocks: list[Any] = [(0, 0, "w[0:4]", [[0, 4]], [[0, 4]]), (0, 1, "w[4:8]", [[4, 8]], [[0, 4]])]
    snapshots.write([value], run=RUN, key=KEY, copy=copy, names=["w"], blocks=blocks)


def read() -> np.ndarray:
    call_runner._current.context = CallContext(3, (RESULT,), (array().sharding,), {})
    (value,) = snapshots.read(run=RUN, key=KEY, leaves=[[([[0, 4]], "w[0:4]"), ([[4, 8]], "w[4:8]")]])
    return np.asarray(value)


def test_worker_reads_the_shards_that_it_wrote(address, tmp_path):
    write(array())
    assert_equal(read(), np.arange(8, dtype=np.float32))
    opened = snapshots.open_run(run=RUN)
    assert opened["versions"] == [(10, 1, ["w[0:4]", "w[4:8]"])]
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


def test_worker_reads_what_was_fetched_in_the_same_lane(address):
    """A save to disk may read one version while another one is restored."""
    write(array())
    source: dict[str, Any] = {"run": RUN, "key": KEY, "host": 3, "address": address}
    assert snapshots.fetch(**source, blocks=["w[0:4]"]) == {}
    context = call_runner._current.context
    call_runner._current.context = dataclasses.replace(context, lane=1)
    assert snapshots.fetch(**source, blocks=["w[4:8]"]) == {}
    read()
    assert {lane: [*found] for lane, found in snapshots._runs[RUN].fetched.items()} == {1: ["w[4:8]"]}


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
    snapshots._runs[RUN].live_versions = frozenset()
    with pytest.raises(CallRefused, match="version 10 was dropped while it was received"):
        snapshots.receive(run=RUN, key=KEY, copy=2, host=3, address=address, blocks=["w[0:4]"])


def test_worker_refuses_blocks_without_the_secret(address, tmp_path):
    server = socket.create_server(("127.0.0.1", 0))
    stranger = Probes(server, b"?" * 32, 4, 0, lambda *_: None, lambda *_: None, 5.0)
    snapshots.serve_snapshots(worker(stranger, tmp_path))
    try:
        why = snapshots.fetch(run=RUN, key=KEY, host=3, address=address, blocks=["w[0:4]"])
    finally:
        stranger.close()
    assert why["why"].startswith("host 3 does not send them: ")
    assert not why["is_corrupt"]


@pytest.mark.process
def test_worker_removes_runs_of_exited_controllers(address, tmp_path):
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE)
    own, exited = this_process(), f"{this_machine()}-{ended.stdout.decode().strip()}"
    token = "1" * 32
    left = [f"run-{own}-{token}", client_run_name(own, 7, token)]
    over = [f"run-{exited}-{token}", client_run_name(exited, 7, token)]
    for name in (*left, *over):
        HostSnapshots(tmp_path / "mine", name, 4).close()
    snapshots.close_run(run=RUN)
    snapshots.open_run(run=RUN)
    assert sorted(path.parent.name for path in (tmp_path / "mine").glob("*/host4")) == sorted(left)


@pytest.mark.process
def test_worker_keeps_runs_that_may_go_on_until_their_space_is_needed(address, tmp_path):
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE)
    killed = f"{this_machine()}-{ended.stdout.decode().strip()}"
    for name, owner in (("kept-1", this_process()), ("kept-2", killed)):
        with HostSnapshots(tmp_path / "mine", name, 3) as left:
            left.set_owner(owner)
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["kept-1", "kept-2", RUN]
    assert snapshots.free_memory(run=RUN)["bytes"] > 0
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["kept-1", RUN]


def test_worker_records_versions_that_it_has_blocks_of(address):
    write(array())
    for key in (KEY, (12, 1)):
        snapshots.commit(run=RUN, key=key, record="{}")
    assert snapshots.read_records(run=RUN) == [(10, 1, "{}")]


def test_worker_waits_for_an_earlier_one_that_is_about_to_exit(address, tmp_path):
    snapshots.close_run(run=RUN)
    earlier = HostSnapshots(tmp_path / "mine", RUN, 3)
    closing = threading.Timer(0.2, earlier.close)
    closing.start()
    snapshots.open_run(run=RUN)
    closing.join()


def of_client(number: int) -> None:
    """Makes the next calls those of a client of a service."""
    call_runner._current.context = CallContext(3, (RESULT,), (array().sharding,), {}, client=number)


def test_worker_keeps_runs_of_clients_apart(address, tmp_path):
    """A client that knows the name of a run of another one has a run of its own of that name."""
    of_client(1)
    snapshots.open_run(run=RUN)
    write(array())
    of_client(2)
    source: dict[str, Any] = {"run": RUN, "key": KEY, "host": 3, "address": address, "blocks": ["w[0:4]"]}
    with pytest.raises(CallRefused, match=r"run client-.* is closed"):
        snapshots.receive(**source, copy=2)
    assert snapshots.fetch(**source)["why"].endswith("is closed")
    assert snapshots.open_run(run=RUN)["versions"] == []
    with pytest.raises(CallRefused, match="has no block"):
        snapshots.receive(**source, copy=2)
    snapshots.keep(run=RUN, keys=[], newest=KEY)
    snapshots.close_run(run=RUN)
    of_client(1)
    assert snapshots.open_run(run=RUN)["versions"] == [(10, 1, ["w[0:4]", "w[4:8]"])]
    snapshots.close_run(run=RUN)
    assert len([*(tmp_path / "mine").iterdir()]) == 1


def test_worker_removes_runs_of_clients_that_disconnect(address, tmp_path):
    """Also those that an earlier worker has left, and those that a call in flight opens."""
    folder = tmp_path / "mine"
    of_client(1)
    snapshots.open_run(run=RUN)
    write(array())
    for client in (1, 2, 3):
        HostSnapshots(folder, client_run_name(this_process(), client, "2" * 32), 3).close()
    (folder / client_run_name(this_process(), 1, "3" * 32)).mkdir(mode=0o700)
    snapshots.release_client(1)
    wait_until(lambda: len([*folder.iterdir()]) == 3)
    with pytest.raises(CallRefused, match="is closed"):
        snapshots.open_run(run=RUN)
    snapshots._keep_clients(KeepClients((3,)))
    wait_until(lambda: len([*folder.iterdir()]) == 2)
    assert {path.name for path in folder.iterdir()} == {RUN, client_run_name(this_process(), 3, "2" * 32)}
    snapshots._released.clear()


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("function", "named", "why"),
    [
        (snapshots.open_run, {"run": "../../etc"}, 'open_run: run = "../../etc": expected the name of a run'),
        (snapshots.open_run, {"run": f"{RUN}\n"}, "open_run: run = .*: expected the name of a run"),
        (snapshots.open_run, {"run": run_name("0" * 31)}, "open_run: run = .*: expected the name of a run"),
        (snapshots.open_run, {"folder": "/etc"}, "open_run: folder: unknown key; expected some of run"),
        (snapshots.close_run, {"run": 7}, "close_run: run = 7: expected the name of a run"),
        (snapshots.keep, {"keys": [[1, -1]]}, r"keep: keys\[0\] = \[1, -1\]: expected a step and an attempt"),
        (snapshots.keep, {"keys": [[1, 1 << 900]]}, r"keep: keys\[0\] = .*: expected a step and an attempt"),
        (snapshots.receive, {"copy": -1}, "receive: copy = -1: expected a whole number of at least 0"),
        (snapshots.receive, {"copy": "../1"}, 'receive: copy = "../1": expected a whole number'),
        (snapshots.receive, {"host": True}, "receive: host = true: expected a whole number of at least 0"),
        (snapshots.receive, {"blocks": [""]}, r'receive: blocks\[0\] = "": expected the name of a block'),
        (snapshots.receive, {"blocks": ["\ud800"]}, r"receive: blocks\[0\] = .*: expected the name of a"),
        (snapshots.receive, {"blocks": ["v"]}, "has no block v of version 10"),
        (snapshots.receive, {"address": "localhost:1"}, "expected an IP address and a port"),
        (snapshots.receive, {"address": "127.0.0.1:99999"}, "host 3 does not send them"),
        (snapshots.receive, {"address": "1.2.3.4.5:1"}, "host 3 does not send them"),
        (snapshots.receive, {"host": 1 << 40}, f"host {1 << 40} does not send them"),
        (snapshots.write, {"names": []}, "write: expected 0 arrays, one for each name"),
        (
            snapshots.write,
            {"blocks": [[0, 2, "w", [[0, 4]], [[0, 4]]]]},
            "block w is in shard 2 of array 0, which is",
        ),
        (
            snapshots.write,
            {"blocks": [[1, 0, "w", [[0, 4]], [[0, 4]]]]},
            "block w is in shard 0 of array 1, which is",
        ),
        (snapshots.write, {"blocks": [[-1, 0, "w", [], []]]}, r"blocks\[0\] = .*: expected"),
        (snapshots.write, {"blocks": [[0, 0, "w", [[0, 5]], [[0, 5]]]]}, r"as .* of a shard of shape \[4\]"),
        (snapshots.write, {"blocks": [[0, 0, "w", [[0, 5]], [[0, 4]]]]}, r"as .* of a shard of shape \[4\]"),
        (snapshots.write, {"blocks": [[0, 0, "w", [[3, 2]], [[3, 2]]]]}, r"as .* of a shard of shape \[4\]"),
        (snapshots.read, {"leaves": []}, "read: blocks of 0 arrays for 1"),
        (snapshots.read, {"leaves": [[[[[0, 4]], "w[0:4]"]]]}, r"read: no blocks have the rows \[\(4, 8\)\]"),
        (
            snapshots.read,
            {"leaves": [[[[[0, 4]], "w[0:4]"], [[[4, 8]], "v"]]]},
            "has no block v of version 10",
        ),
        (snapshots.read, {"leaves": [[[[[0, 4]], "w[0:4]"], [[[4, 8]], "n"]]]}, "read: block n is int32"),
    ],
)
def test_worker_refuses_arguments_of_clients(address, function, named, why):
    """One error each, and the worker goes on."""
    given: dict[str, Any] = {"run": RUN}
    if function not in (snapshots.open_run, snapshots.close_run, snapshots.keep):
        given["key"] = KEY
    if function is snapshots.keep:
        given |= {"keys": [], "newest": None}
    if function is snapshots.receive:
        given |= {"copy": 2, "host": 3, "address": address, "blocks": ["w[0:4]"]}
    if function is snapshots.write:
        given |= {"copy": 2, "names": ["w"], "blocks": []}
    of_client(1)
    snapshots.open_run(run=RUN)
    write(array())
    snapshots.write(
        [jnp.zeros(4, jnp.int32)],
        run=RUN,
        key=KEY,
        copy=3,
        names=["n"],
        blocks=[(0, 0, "n", [(0, 4)], [(0, 4)])],
    )
    args = ([array()],) if function is snapshots.write else ()
    with pytest.raises(CallRefused, match=why) as refused:
        function(*args, **given | named)
    assert refused.value.kind == snapshots.SNAPSHOT_FAILURE
    assert "Traceback" not in str(refused.value)
    write(array(), copy=4)
    snapshots.close_run(run=RUN)


def test_worker_keeps_one_rate_for_all_streams(address, monkeypatch):
    streams, waits = snapshots._served().streams, []
    monkeypatch.setattr(snapshot_streams, "time", SimpleNamespace(monotonic=lambda: 7.0, sleep=waits.append))
    for seconds in (1.0, 2.0, 0.5):
        streams._wait_after(seconds)
    assert waits == [1.0, 3.0, 3.5]
