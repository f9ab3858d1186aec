"""Unmodified JAX programs on hosts behind the proxy server: each equals local JAX, bit by bit."""

from __future__ import annotations

import collections
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import proxy_persistence
import proxy_programs
import pytest

import pathways.proxy
from pathways.proxy import ProxyServer
from pathways.runtime.clusters.connect import start_session
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.launch.launcher_choice import settings_of
from pathways.runtime.hosts.launch.settings import Island
from pathways.runtime.proxy.hosted.hosts_backend import HostsBackend

pytestmark = [pytest.mark.process, pytest.mark.hosts]


ISLANDS = {
    "one host": [Island(hosts=1, devices_per_host=8)],
    "two hosts": [Island(hosts=2, devices_per_host=4)],
}
TOLERANCE = {"one host": 0.0, "two hosts": 1e-5}
"""Relative tolerances. Between hosts, XLA adds in another order than within a process."""


@pytest.fixture(scope="module", params=ISLANDS)
def where(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def server(where: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    """Starts a server of the devices of hosts."""
    backend = HostsBackend(start_session(settings_of(None, islands=ISLANDS[where])))
    with pathways.proxy.serve(tmp_path_factory.mktemp("proxy") / "socket", backend=backend) as server:
        yield server


@pytest.fixture(scope="module")
def proxied(server: ProxyServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the results of all programs, from one process that uses the server."""
    return proxy_programs.run_proxied(server, proxy_programs.__file__, tmp_path_factory.mktemp("proxied"))


@pytest.mark.parametrize("name", proxy_programs.PROGRAMS)
def test_equals_local_jax(name: str, where: str, proxied: dict[str, Any]) -> None:
    proxy_programs.assert_equal(proxied[name], proxy_programs.PROGRAMS[name], TOLERANCE[where])


def start(server: ProxyServer, program: str) -> subprocess.Popen[str]:
    """Starts a program that uses a server."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environment = os.environ | server.environment
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def run(server: ProxyServer, program: str) -> str:
    """Runs a program that uses a server, and returns its output."""
    with start(server, program) as client:
        out, err = client.communicate(timeout=120)
    assert client.returncode == 0, err[-2000:]
    return out


def session_of(server: ProxyServer) -> HostSession:
    backend = server.served.backend
    assert isinstance(backend, HostsBackend)
    return backend.engine.session


def test_a_program_of_one_device_messages_one_host(server, where, monkeypatch):
    sent = collections.Counter()
    for host in session_of(server).hosts:
        send = host.steps.send_frames

        def count(*frames, host=host, send=send):
            sent[host.index] += 1
            send(*frames)

        monkeypatch.setattr(host.steps, "send_frames", count)
    program = """
        import jax
        x = jax.device_put(1.0, jax.devices()[0])
        step = jax.jit(lambda x: x + 1)
        for _ in range(100):
            x = step(x)
        print(x)
    """
    assert run(server, program) == "101.0\n"
    assert sent[0] >= 100
    # Those that free the arrays of the programs before.
    assert sent[1] < 20


RESHARDING = """
    import random
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    chance, devices = random.Random(7), jax.devices()
    x = np.arange(8 * 8 * 8, dtype=np.float32).reshape(8, 8, 8)

    def any_sharding(same=None):
        sizes = [(1,), (2,), (4,), (8,), (2, 2), (2, 4), (4, 2), (2, 2, 2)]
        sizes = chance.choice([each for each in sizes if same is None or np.prod(each) == len(same)])
        chosen = chance.sample(devices, int(np.prod(sizes))) if same is None else same
        names = [f"a{n}" for n in range(len(sizes))]
        dims = [None] * 3
        for name in names:
            dim = chance.randrange(4)
            if dim < 3:
                dims[dim] = (*(dims[dim] or ()), name)
        return NamedSharding(Mesh(np.array(chosen).reshape(sizes), names), P(*dims))

    array = jax.device_put(x, any_sharding())
    for number in range(60):
        sharding = any_sharding([*array.sharding.mesh.devices.flat] if number % 3 else None)
        if number % 3 == 2:
            array = jax.jit(lambda x: x, out_shardings=sharding)(array)
        else:
            array = jax.device_put(array, sharding)
        assert array.sharding == sharding
        for shard in array.addressable_shards:
            assert (np.asarray(shard.data) == x[shard.index]).all(), (number, sharding)
    print("equal")
"""


def test_any_sharding_becomes_any_other(server):
    assert run(server, RESHARDING) == "equal\n"


TRAINING = """
import os
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

if "RANK" in os.environ:
    jax.distributed.initialize(os.environ["ADDRESS"], 2, int(os.environ["RANK"]))
mesh = jax.make_mesh((2, 4), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
chance = np.random.default_rng(0)

def placed(shape, *spec):
    value = chance.standard_normal(shape, np.float32) / 8
    return jax.make_array_from_callback(shape, NamedSharding(mesh, P(*spec)), lambda index: value[index])

weights = {"up": placed((32, 64), None, "model"), "down": placed((64, 32), "model", None)}
moments = {name: (array * 0, array * 0) for name, array in weights.items()}

def loss_of(weights, x):
    return ((jax.nn.gelu(x @ weights["up"]) @ weights["down"] - x) ** 2).mean()

@jax.jit
def step(weights, moments, x):
    loss, gradients = jax.value_and_grad(loss_of)(weights, x)
    first = {n: 0.9 * m + 0.1 * gradients[n] for n, (m, _) in moments.items()}
    second = {n: 0.99 * v + 0.01 * gradients[n] ** 2 for n, (_, v) in moments.items()}
    weights = {n: w - 0.01 * first[n] / (jnp.sqrt(second[n]) + 1e-6) for n, w in weights.items()}
    return loss, weights, {n: (first[n], second[n]) for n in weights}

losses = []
for _ in range(40):
    loss, weights, moments = step(weights, moments, placed((16, 32), "data", None))
    losses.append(float(loss).hex())
if os.environ.get("RANK", "0") == "0":
    print(losses)
"""


def free_port() -> int:
    """Returns a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_training_equals_that_of_jax_distributed(server, where):
    """Workers are processes of `jax.distributed`, which add in the same order."""
    if where != "two hosts":
        pytest.skip("one host is one process")
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        # As workers have it: flags of XLA, which may change the order of sums, are the same.
        "JAX_NUM_CPU_DEVICES": "4",
        "ADDRESS": f"127.0.0.1:{free_port()}",
    }
    command = [sys.executable, "-c", TRAINING]
    processes = [
        subprocess.Popen(
            command,
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert not any(process.returncode for process in processes), outputs
    # The library of collectives prints lines, too.
    assert run(server, TRAINING).splitlines() == outputs[0][0].splitlines()[-1:]


FAILING = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P

    jax.config.update("jax_enable_x64", True)
    devices = jax.devices()
    over_all = NamedSharding(jax.make_mesh((len(devices),), ("x",)), P("x"))
    total = jax.jit(lambda x: x.sum())
    large = jax.jit(lambda x: jnp.zeros((1 << 20, 1 << 15), "complex128").at[0].set(x))
    huge = lambda x: large(x)[0, :1].real
    good = [jax.device_put(np.ones(1), device) for device in devices]
"""


def test_a_shard_that_failed_is_an_error_of_all_and_later_values_are_right(server, where):
    program = (
        FAILING
        + """
    for position in (0, len(devices) - 1):
        shards = list(good)
        shards[position] = huge(shards[position][0])
        joined = jax.make_array_from_single_device_arrays((len(devices),), over_all, shards)
        further = total(joined) + 1
        for array in (further, total(joined)):
            try:
                array.block_until_ready()
            except jax.errors.JaxRuntimeError as error:
                print(str(error).partition(":")[0])
        joined = jax.make_array_from_single_device_arrays((len(devices),), over_all, good)
        print(*(float(total(joined * n)) for n in range(20)))
    """
    )
    right = " ".join(f"{8.0 * n}" for n in range(20))
    assert run(server, program) == f"RESOURCE_EXHAUSTED\nRESOURCE_EXHAUSTED\n{right}\n" * 2
    assert session_of(server).is_whole()


@pytest.fixture
def islands(tmp_path: Path) -> Iterator[ProxyServer]:
    """Starts a server of two islands."""
    backend = HostsBackend(start_session(settings_of(None, islands=[Island(1, 2)] * 2)))
    with pathways.proxy.serve(tmp_path / "socket", backend=backend) as server:
        yield server


@pytest.mark.feature("unmodified", "hosts")
def test_islands_are_slices(islands):
    program = """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

        devices = jax.devices()
        print([(d.id, d.slice_index, d.virtual_task_index) for d in devices])
        first, second = (NamedSharding(Mesh(np.array(devices[n : n + 2]), ("x",)), P("x")) for n in (0, 2))
        x = jax.device_put(jnp.arange(4.0), first)
        y = jax.jit(lambda x: x * 2)(jax.device_put(x, second))
        print(y, {d.id for d in y.devices()})
        try:
            over_both = NamedSharding(Mesh(np.array(devices), ("x",)), P("x"))
            jax.device_put(jnp.arange(4.0), over_both).block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            print(error)
    """
    assert run(islands, program).splitlines() == [
        "[(0, 0, 0), (1, 0, 0), (2, 1, 1), (3, 1, 1)]",
        "[0. 2. 4. 6.] {2, 3}",
        "UNIMPLEMENTED: an array or a program cannot be on 2 islands (island0, island1) that are not joined; "
        "use one (pw-proxy --islands 1, pw-cluster run --islands island0), or join them "
        "(pw-proxy --joined, joined in the file of the cluster)",
    ]


def test_joined_islands_are_slices_of_one_mesh(tmp_path):
    program = """
        import jax, jax.numpy as jnp
        from jax.experimental import mesh_utils
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

        print([(d.id, d.slice_index, d.virtual_task_index) for d in jax.devices()])
        devices = mesh_utils.create_hybrid_device_mesh((1, 2), (2, 1), jax.devices())
        over = NamedSharding(Mesh(devices, ("dcn", "ici")), P(("dcn", "ici")))
        x = jax.device_put(jnp.arange(8.0), over)
        print(jax.jit(lambda x: x.sum())(x))
    """
    backend = HostsBackend(start_session(settings_of(None, islands=[Island(2, 2, slices=2)])))
    with pathways.proxy.serve(tmp_path / "socket", backend=backend) as server:
        assert run(server, program).splitlines() == [
            "[(0, 0, 0), (1, 0, 0), (2, 1, 1), (3, 1, 1)]",
            "28.0",
        ]


def test_a_lost_island_is_data_loss_until_it_returns(islands):
    program = """
        import time
        import jax, jax.numpy as jnp

        def code(work):
            try:
                return str(work())
            except jax.errors.JaxRuntimeError as error:
                return str(error).partition(":")[0]

        here, there = jax.devices()[0], jax.devices()[2]
        step = jax.jit(lambda x: x + 1)
        kept, lost = (step(jax.device_put(jnp.float32(1), device)) for device in (here, there))
        print(kept, lost, flush=True)
        input()
        while code(lambda: lost + 1) != "DATA_LOSS":
            time.sleep(0.01)
        print(code(lambda: step(kept)), code(lambda: step(lost)), flush=True)
        began = time.monotonic()
        while (after := code(lambda: step(jax.device_put(jnp.float32(1), there)))) == "DATA_LOSS":
            time.sleep(0.1)
        print(after, code(lambda: lost + 1), time.monotonic() - began < 60)
    """
    with start(islands, program) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "2.0 2.0\n"
        os.kill(session_of(islands).hosts[1].process.pid, signal.SIGKILL)
        out, err = client.communicate("\n", timeout=120)
    assert out == "3.0 DATA_LOSS\n2.0 DATA_LOSS True\n", err[-2000:]


LOSING = """
    import os, sys, time
    import jax, numpy as np

    first, second = jax.devices()[0], jax.devices()[2]
    step = jax.jit(lambda x: x + 1)
    value = np.arange(1 << 21, dtype=np.float32)

    def lost_after(work):
        began = time.monotonic()
        try:
            work()
        except jax.errors.JaxRuntimeError as error:
            assert str(error).startswith("DATA_LOSS: "), error
            return time.monotonic() - began

    step(jax.device_put(value, second)).block_until_ready()
    source = step(jax.device_put(value, first)).block_until_ready()
    copy = lambda: jax.device_put(source, second).block_until_ready()
    copies = [copy()]
    print("ready", flush=True)
    # The worker of the source is killed meanwhile.
    while lost_after(lambda: copies.append(copy())) is None:
        del copies[:-4]
    assert all((np.asarray(copy) == value + 1).all() for copy in copies)
    assert (np.asarray(step(step(copies[-1]))) == value + 3).all()
    # A program that was never compiled there, while the island restarts.
    new = lost_after(lambda: jax.jit(lambda x: x * 7, device=first)(value).block_until_ready())
    known = lost_after(lambda: step(jax.device_put(value, first)).block_until_ready())
    assert max(new or 0, known or 0) < 1
    while lost_after(lambda: step(jax.device_put(value, first)).block_until_ready()) is not None:
        time.sleep(0.1)
    assert (np.asarray(jax.device_put(step(jax.device_put(value, first)), second)) == value + 1).all()
    print(sorted(d.id for d in jax.devices()))
"""


def test_copies_from_a_lost_island_leave_others_as_they_are(islands):
    with start(islands, LOSING) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        time.sleep(0.3)
        os.kill(session_of(islands).hosts[0].process.pid, signal.SIGKILL)
        out, err = client.communicate(timeout=120)
    assert out == "[0, 1, 2, 3]\n", err[-2000:]


def test_orbax_has_hosts_write_and_read_arrays(tmp_path, monkeypatch):
    files = tmp_path / "files"
    files.mkdir()
    backend = HostsBackend(start_session(settings_of(None, islands=ISLANDS["two hosts"])))
    with pathways.proxy.serve(tmp_path / "socket", backend=backend, files=[files]) as server:
        # Shards do not pass this process.
        monkeypatch.setattr(backend.engine, "read", None)
        refused = proxy_persistence.run(server, "save", files / "step", tmp_path / "other")
        assert refused.startswith(f"PERMISSION_DENIED: path '{tmp_path / 'other'}")
        monkeypatch.undo()
        assert proxy_persistence.run(server, "restore", files / "step") == "True 120.0 8\nTrue\n"
