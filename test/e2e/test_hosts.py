"""Programs on hosts give what they give in one process."""

from __future__ import annotations

import dataclasses
import functools
import sys
import threading
import time
from pathlib import Path

import host_functions
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close, assert_equal
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P
from on_hosts import W, X, back, front, over_tcp, refused, training

import pathways as pw
from pathways.runtime.clusters.connect import controller
from pathways.runtime.control.records.errors import HostError

pytestmark = pytest.mark.usefixtures("own_or_attached_workers")


@pytest.fixture
def eager_switches():
    """Switches between threads more often than by default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.feature("meshes", "hosts")
def test_hosts_train_between_unlike_meshes(devices):
    """Gradients, donation, values that are split and joined on the way, and results that are passed on."""
    pw.connect(hosts=2, devices_per_host=4)
    s0 = devices.add_slice((2, 2), ("x", "y"))
    s1 = devices.add_slice((2,), ("x",), island="island1")
    a = pw.jit(front, devices=s0, in_shardings=(None, P("x", "y")))
    b = pw.jit(back, devices=s1, in_shardings=(None, P("x")))
    program = pw.program(training(a, b), donate_argnums=0)
    jitted = jax.jit(training(front, back))
    ours = theirs = (W, W + 1)
    for _ in range(5):
        before = ours
        ours, value = program(ours, X)
        theirs, expected = jitted(theirs, X)
        assert_close((ours, value), (theirs, expected), 1e-5)
    assert all(w.is_deleted() for w in before)
    with refused(RuntimeError, "argument w[0] has been deleted"):
        program(before, X)


@pytest.mark.feature("pipelines", "hosts")
def test_hosts_run_pipelines_and_loops(devices):
    pw.connect(hosts=2)
    a, b = (pw.jit(f, devices=devices.add_slice((1,), ("x",))) for f in (front, back))

    def steps(a, b):
        def loss(w, x):
            return (b(w[1], a(w[0], x)) ** 2).mean()

        def step(w, batch):
            value, grads = pw.accumulate(jax.value_and_grad(loss), 4)(w, batch)
            return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value

        return lambda w, batches: jax.lax.scan(step, w, batches)

    batches = np.stack([X, X + 1, X - 1])
    theirs = jax.jit(steps(front, back))((W, W + 1), batches)
    for schedule in ("gpipe", "1f1b"):
        assert_close(pw.program(steps(a, b), schedule=schedule)((W, W + 1), batches), theirs, 1e-5)


@pytest.mark.feature("hosts", "hosts")
def test_hosts_run_linear_algebra(devices):
    """A worker lowers no function with JAX, which would register the calls of LAPACK."""
    pw.connect(hosts=2)

    def factor(x):
        return jnp.linalg.cholesky(x @ x.T + jnp.eye(4))

    f = pw.jit(factor, devices=devices.add_slice((1,), ("x",)))
    assert_close(pw.program(lambda x: f(x))(W), jax.jit(factor)(W), 1e-5)


def test_hosts_trace_again_as_jax_does(devices):
    """For a static argument that was changed in place, after `jax.clear_caches`, under `jax.disable_jit`."""
    pw.connect(hosts=1)
    config = Config(2)
    placed = pw.jit(lambda x, config: x * config.n, devices=devices.add_slice((1,), ("x",)), static_argnums=1)
    program = pw.program(lambda x: placed(x, config))
    for config.n in (2, 3):
        assert_equal(placed(X, config), X * config.n)
    assert_equal(program(X), X * 3)
    config.n = 4
    assert_equal(program(X), X * 3)
    jax.clear_caches()
    assert_equal(program(X), X * 4)
    with jax.disable_jit():
        config.n = 5
        assert_equal(program(X), X * 5)


@dataclasses.dataclass(unsafe_hash=True)
class Config:
    n: int


@pytest.mark.feature("hosts", "hosts")
def test_hosts_exchange_keys(devices):
    pw.connect(hosts=2)
    split, normal = (
        pw.jit(f, devices=devices.add_slice((1,), ("x",)))
        for f in (jax.random.split, lambda keys: jax.random.normal(keys[1], (3,)))
    )
    keys, noise = pw.program(lambda key: (lambda keys: (keys, normal(keys)))(split(key)))(jax.random.key(3))
    assert jax.dtypes.issubdtype(keys.dtype, jax.dtypes.prng_key)
    assert keys.shape == (2,)
    assert_close(noise, jax.random.normal(jax.random.split(jax.random.key(3))[1], (3,)), 1e-5)


@pytest.mark.feature("hosts", "hosts")
def test_hosts_exchange_all_kinds_of_values(devices):
    pw.connect(hosts=2)
    f, g = (pw.jit(lambda x: jnp.stack([x, x]), devices=devices.add_slice((1,), ("x",))) for _ in range(2))
    program = pw.program(lambda x: g(f(x)))
    for value in (
        np.zeros((0, 3), np.float32),
        np.array([True, False]),
        3,
        2.5,
        jnp.ones(3, jnp.bfloat16),
        np.arange(3).astype(np.complex64),
        jnp.ones(2, jnp.float8_e5m2),
        jnp.arange(4, dtype=jnp.uint8),
    ):
        ours = program(value)
        theirs = jax.jit(lambda x: jnp.stack([jnp.stack([x, x])] * 2))(value)
        assert (ours.shape, ours.dtype, ours.weak_type) == (theirs.shape, theirs.dtype, theirs.weak_type)
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.feature("overlap", "hosts")
def test_hosts_may_have_overlapping_slices(devices):
    pw.connect(hosts=2)
    a, b, c = (
        pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",), overlap=True)) for _ in range(3)
    )
    y, z = pw.program(lambda x: (a(x), c(b(a(x)))))(np.float32(0))
    assert_equal((y, z), (np.float32(1), np.float32(3)))


@pytest.mark.feature("hosts", "hosts")
def test_hosts_run_steps_of_several_threads_in_one_order(devices):
    """All hosts issue the steps in one order, although threads mix programs that go round both ways."""
    pw.connect(hosts=2)
    a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
    programs = [pw.program(lambda x: a(b(a(x)))), pw.program(lambda x: b(a(b(x))))]
    for program in programs:
        program(np.float32(0))
    seen = []

    def work(program):
        x = np.float32(0)
        for _ in range(50):
            x = program(x)
        seen.append(float(x))

    threads = [threading.Thread(target=work, args=(programs[n % 2],)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [150] * 6


@pytest.mark.feature("hosts", "hosts")
def test_hosts_serve_threads_that_share_a_donated_array(devices, eager_switches):
    """Readers get the array or an error that it is deleted: no worker waits for a freed array."""
    pw.connect(hosts=2)
    a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
    make = pw.program(lambda x: a(x))
    read = pw.program(lambda x: b(a(x)))
    take = pw.program(lambda x: b(a(x)), donate_argnums=0)

    def work(barrier, seen, number, use):
        barrier.wait()
        try:
            seen[number] = use()
        except (RuntimeError, HostError) as error:
            seen[number] = error

    def race(x, n):
        """Returns the result of each use of an array, of several that begin at once."""
        uses = [lambda: float(take(x)), lambda: float(take(x)), lambda: float(read(x)), lambda: float(x)]
        if not n % 2:
            uses.append(x.delete)
        barrier, seen = threading.Barrier(len(uses)), {}
        threads = [threading.Thread(target=work, args=(barrier, seen, *one)) for one in enumerate(uses)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors = {number: str(error) for number, error in seen.items() if isinstance(error, Exception)}
        assert all("deleted" in error for error in errors.values()), errors
        return {number: value for number, value in seen.items() if number not in errors}

    for n in range(150):
        seen = race(make(np.float32(n)), n)
        taken = [value for number, value in seen.items() if number < 2]
        assert taken == [n + 3] or (taken == [] and not n % 2), seen
        assert seen.get(2, n + 3) == n + 3, seen
        assert seen.get(3, n + 1) == n + 1, seen


@pytest.mark.not_attached
def test_hosts_print_their_lines_in_order(devices, capfd):
    pw.connect(hosts=2)

    def body(x):
        jax.debug.print("{word}: {x} {:.2f}", x[0], x=x, word="all")
        jax.lax.map(lambda y: jax.debug.print("each {y}", y={"y": y}), x)
        return x + 1

    f, g = (pw.jit(body, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
    capfd.readouterr()
    pw.program(lambda x: g(f(x)))(np.arange(2, dtype=np.float32)).block_until_ready()
    lines, until = [], time.monotonic() + 30
    while len(lines) < 6 and time.monotonic() < until:
        lines += capfd.readouterr().err.splitlines()
    for host, first in ((0, 0), (1, 1)):
        printed = [line.partition("): ")[2] for line in lines if line.startswith(f"host {host} (")]
        assert sorted(printed) == sorted(
            [
                f"all: [{first}. {first + 1}.] {first}.00",
                f"each {{'y': {ARRAY.format(first)}}}",
                f"each {{'y': {ARRAY.format(first + 1)}}}",
            ]
        )
        each = [line for line in printed if line.startswith("each")]
        assert each == sorted(each)


ARRAY = "Array({}., dtype=float32)"


@pytest.mark.feature("hosts", "error")
def test_hosts_refuse_programs_that_call_python(devices):
    """The message names the computation; a callback whose result is not needed does not count."""
    pw.connect(hosts=2)

    def body(x):
        return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((), np.float32), x)

    f, g = (pw.jit(f, devices=devices.add_slice((1,), ("x",))) for f in (jnp.sin, body))
    with refused(pw.ProgramError, "computation body calls back into Python", "workers on hosts cannot"):
        pw.program(lambda x: g(f(x)))(1.0)
    slice = devices.add_slice((1,), ("x",))
    for call, name in (
        (lambda x: jax.debug.print("{0.__class__}", x), "jax.debug.print"),
        (lambda x: jax.debug.callback(print, x), "jax.debug.callback"),
        (lambda x: io_callback(np.sin, x, x), "jax.experimental.io_callback"),
        (lambda x: jax.pure_callback(np.sin, x, x), "jax.pure_callback"),
    ):
        # The line is that of the call, also inside of a loop of a function that the placed one calls.
        looped = pw.jit(lambda x, call=call: jax.lax.map(call, x), devices=slice)
        with refused(pw.ProgramError, f"{name} at {__file__}:", " in <lambda>, which"):
            pw.program(looped)(np.ones(3, np.float32))
    assert_equal(pw.program(lambda x: (g(x), f(x))[1])(0.0), np.float32(0))


@pytest.mark.feature("hosts", "hosts")
def test_hosts_donate_empty_arrays(devices):
    """Empty arrays are not sent, but each step creates its own."""
    pw.connect(hosts=2)
    a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
    program = pw.program(lambda x: b(a(x) * 2) + 1)
    for _ in range(3):
        assert np.asarray(program(np.zeros((0, 3), np.float32))).shape == (0, 3)


@pytest.mark.feature("hosts", "error")
def test_hosts_report_a_failed_computation_to_its_dependents_alone(devices):
    """A computation that needs more memory than there is fails alone; the hosts go on."""
    pw.connect(hosts=2)
    slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]

    @functools.partial(pw.jit, devices=slices[0])
    def large(x):
        return jnp.sort(jnp.sin(jax.lax.iota(jnp.float32, 1 << 44) * x))[:3]

    add, halve = (pw.jit(f, devices=slices[1]) for f in (lambda x: x + 1, lambda x: x / 2))
    fails = pw.program(lambda x: (add(large(x)), halve(x)))
    # Otherwise it is refused when it is loaded.
    assume_memory = pw.on_hosts(host_functions.assume_memory, devices=slices[0])
    assume_memory(size=1 << 60).result()
    try:
        lost, kept = fails(np.float32(1))
    finally:
        assume_memory(size=None).result()
    result = f"a result on slice {slices[1].name}"
    for wait in (np.asarray, jax.block_until_ready):
        with refused(HostError, f"program lambda: host 1 (island1): {result}", "Out of memory"):
            wait(lost)
    assert_equal(kept.block_until_ready(), np.float32(0.5))
    assert_equal(pw.program(lambda x: add(x))(np.float32(1)), np.float32(2))
    assert controller().is_whole()


@pytest.mark.feature("training", "hosts")
def test_hosts_run_with_input_and_checkpoints(devices, tmp_path):
    """Batches wait on the hosts, arrays are fetched to be saved, and restored arrays are sent again."""
    pytest.importorskip("orbax.checkpoint", reason="orbax-checkpoint is not installed")
    pw.connect(hosts=2)
    a, b = (pw.jit(f, devices=devices.add_slice((1,), ("x",))) for f in (front, back))

    @pw.program(donate_argnums=0)
    def step(state, x):
        key, noise = jax.random.split(state["key"])

        def loss(w):
            return (b(w[1], a(w[0], x + jax.random.normal(noise, x.shape))) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(state["w"])
        return {"w": [w - 0.1 * g for w, g in zip(state["w"], grads, strict=True)], "key": key}, value

    def batches():
        return (X + n for n in range(4))

    first = {"w": [W, W + 1], "key": jax.random.key(3)}
    compiled = step.lower(first, X).compile()
    state, losses = first, []
    with pw.prefetch(batches(), compiled, "x") as ready:
        for n, x in enumerate(ready):
            assert isinstance(x, pw.Array)
            if n == 2:
                pw.checkpoint.save(tmp_path, state, n)
            state, value = compiled(state, x)
            losses.append(float(value))

    state, _ = compiled.out_info
    state = pw.checkpoint.restore(tmp_path, state)
    assert isinstance(state["w"][0], pw.Array)
    rest = []
    for x in list(batches())[2:]:
        state, value = compiled(state, x)
        rest.append(float(value))
    assert rest == losses[2:], (rest, losses)


@pytest.mark.feature("programs", "hosts")
def test_hosts_run_figure_2(devices):
    pw.connect(hosts=3)
    slices = [devices.add_slice((1,), ("x",)) for _ in range(3)]
    a = pw.jit(lambda x: x * 2, devices=slices[0])
    b = pw.jit(lambda x: x + 1, devices=slices[1])
    c = pw.jit(lambda x: x / 2, devices=slices[2])

    @pw.program
    def f(v):
        x = a(v)
        y = b(x)
        return y, a(c(x))

    y, z = f(jnp.array([1.0, 2.0]))
    assert y.hosts == (1,)
    assert z.hosts == (0,)
    assert_equal((y, z), (np.float32([3, 5]), np.float32([2, 4])))


@pytest.mark.feature("hosts", "error")
@pytest.mark.not_attached
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("hosts=0", "hosts=0: expected at least 1"),
        ("hosts=2, devices_per_host=0", "devices_per_host=0: expected at least 1"),
        ("hosts=2, cpu_devices=2", "cpu_devices= is not for workers"),
    ],
)
def test_hosts_refuse_wrong_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        eval(f"pw.connect({arguments})", {"pw": pw})


@pytest.mark.feature("bundles", "hosts")
def test_hosts_run_a_bundle(devices, tmp_path):
    """A process that had all devices itself has saved it."""
    path = tmp_path / "program.pwb"
    table = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)
    pw.connect(cpu_devices=4)
    slices = [devices.add_slice((2,), ("x",)) for _ in range(2)]
    a = pw.jit(lambda w, x: front(w, x) @ table, devices=slices[0], in_shardings=(None, P("x")))
    b = pw.jit(back, devices=slices[1])
    pw.program(lambda w, x: b(w, a(w, x))).lower(W, X).save(path)
    pw.disconnect()

    pw.connect(hosts=2, devices_per_host=2)
    expected = jax.jit(lambda w, x: back(w, front(w, x) @ table))(W, X)
    loaded = pw.load(path)
    assert_close(loaded(W, X), expected, 1e-5)
    placed = loaded.place_by_name({"w": W})
    assert isinstance(placed["w"], pw.Array)
    assert_close(loaded(placed["w"], X), expected, 1e-5)
    assert {host for array in jax.tree.leaves(loaded(W, X)) for host in array.hosts} == {1}


def test_hosts_run_a_bundle_of_sub_programs_with_closed_over_arrays(devices, tmp_path):
    """Some sub-programs, and some hosts, compute no block of an array that they return."""
    path = tmp_path / "loop.pwb"
    table = np.linspace(0, 1, 1024, dtype=np.float32)

    def loop(sine, cosine, x, end, unread):
        body = lambda state: (state[0] + 1, cosine(sine(state[1])) + table.sum())  # noqa: E731
        return jax.lax.while_loop(lambda state: state[0] < end, body, (0, x)), jnp.asarray(table), unread

    pw.connect(cpu_devices=2)
    placed = [pw.jit(f, devices=devices.add_slice((1,), ("x",))) for f in (jnp.sin, jnp.cos)]
    pw.program(functools.partial(loop, *placed)).lower(X, 3, W).save(path)
    pw.disconnect()

    pw.connect(hosts=2)
    assert_close(pw.load(path)(X, 3, W), jax.jit(functools.partial(loop, jnp.sin, jnp.cos))(X, 3, W), 1e-5)


@pytest.mark.feature("hosts", "hosts")
def test_hosts_use_tcp_on_a_range_of_ports(devices):
    """Hosts use it as between machines: all listen on the user's address, and on ports of the range."""
    ports = range(20300, 20400)
    pw.connect(over_tcp(2, (ports[0], ports[-1])))
    a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
    large = np.zeros(1 << 20, np.float32)
    assert_equal(pw.program(lambda x: b(a(x)))(large), large + 2)
    links = [link for host in pw.status().hosts for link in Path(f"/proc/{host.pid}/fd").iterdir()]
    sockets = {str(link.readlink()) for link in links if link.is_symlink()}
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    listening = [row[1].split(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
    assert {address for address, _ in listening} == {"0100007F"}, listening
    # Sockets that carry the bytes of arrays are not counted.
    assert sum(int(port, 16) in ports for _, port in listening) == 4, listening
