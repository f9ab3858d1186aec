"""Programs on hosts give what they give in one process. Each test is a controller with workers of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

PREPARE = """
import os
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import pathways as pw
from pathways.runtime.hosts.controller.connect import controller
from pathways.runtime.control.errors import HostError

devices = pw.make_virtual_device_set()
X = np.linspace(-1, 1, 8 * 4, dtype=np.float32).reshape(8, 4)
W = np.linspace(-1, 1, 4 * 4, dtype=np.float32).reshape(4, 4)


def front(w, h):
    return jnp.tanh(h @ w)


def back(w, h):
    return h + jnp.sin(h @ w)


def training(a, b):
    # Through b, a, and b again: weights that are read twice.
    def loss(w, x):
        return (b(w[1], a(w[0], b(w[1], x))) ** 2).mean()

    def step(w, x):
        value, grads = jax.value_and_grad(loss)(w, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value

    return step


def assert_equal(ours, theirs):
    def check(a, b):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-6)

    jax.tree.map(check, ours, theirs)


def refused(kind, *words):
    class Refused:
        def __enter__(self):
            return self

        def __exit__(self, got, error, _):
            assert got is not None and issubclass(got, kind), got
            assert all(word in str(error) for word in words), str(error)
            return True

    return Refused()

"""


def run(script: str, timeout: float = 100) -> str:
    """Runs a controller; it and its workers end within the time."""
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + script], capture_output=True, text=True, check=False, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def test_figure_2_over_three_hosts():
    run("""
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
assert y.hosts == (1,) and z.hosts == (0,)
assert_equal((y, z), ([3.0, 5.0], [2.0, 4.0]))
""")


def test_training_between_unlike_meshes_of_two_hosts():
    """Gradients, donation, values that are cut and joined on the way, and results that are passed on."""
    run("""
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
    assert_equal((ours, value), (theirs, expected))
assert all(w.is_deleted() for w in before)
with refused(RuntimeError, "argument w[0] has been deleted"):
    program(before, X)
""")


def test_pipelines_and_loops_over_two_hosts():
    run("""
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
    assert_equal(pw.program(steps(a, b), schedule=schedule)((W, W + 1), batches), theirs)
""")


def test_all_kinds_of_values_travel():
    run("""
pw.connect(hosts=2)
f, g = (
    pw.jit(lambda x: jnp.stack([x, x]), devices=devices.add_slice((1,), ("x",))) for _ in range(2)
)
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
""")


def test_linear_algebra():
    """A worker lowers nothing with JAX, which would prepare the calls of LAPACK."""
    run("""
pw.connect(hosts=1)
f = pw.jit(lambda x: jnp.linalg.cholesky(x @ x.T + jnp.eye(4)), devices=devices.add_slice((1,), ("x",)))
assert_equal(pw.program(lambda x: f(x))(W), np.linalg.cholesky(W @ W.T + np.eye(4)))
""")


def test_keys_travel():
    run("""
pw.connect(hosts=2)
split, normal = (
    pw.jit(f, devices=devices.add_slice((1,), ("x",)))
    for f in (jax.random.split, lambda keys: jax.random.normal(keys[1], (3,)))
)
keys, noise = pw.program(lambda key: (lambda keys: (keys, normal(keys)))(split(key)))(jax.random.key(3))
assert jax.dtypes.issubdtype(keys.dtype, jax.dtypes.prng_key) and keys.shape == (2,)
assert_equal(noise, jax.random.normal(jax.random.split(jax.random.key(3))[1], (3,)))
""")


def test_handles_are_arrays_to_those_who_read_them():
    run("""
pw.connect(hosts=1)
double = pw.jit(lambda x: x * 2, devices=devices.add_slice((1,), ("x",)))
program = pw.program(lambda x: double(x))
h = program(np.float32([1, 2, 3]))
assert isinstance(h, pw.Array) and h.block_until_ready() is h and h.is_ready()
assert (h.shape, h.ndim, h.size, h.nbytes, len(h), h.dtype) == ((3,), 1, 3, 12, 3, np.float32)
assert_equal((h + 1, 1 - h, h[0], h @ h, -h), ([3, 5, 7], [-1, -3, -5], 2, 56, [-2, -4, -6]))
assert jax.device_get({"h": h})["h"].tolist() == [2, 4, 6]
assert jax.eval_shape(lambda x: x + 1, h).shape == (3,)
assert float(program(2.0)) == 4 and f"{program(2.0):.1f}" == "4.0" and bool(program(2.0) > 3)
large = program(np.zeros(1 << 19, np.float32))
with refused(TypeError, "would fetch 2097152 bytes", "put this under pw.program"):
    large + 1
h.delete()
with refused(RuntimeError, "Array has been deleted"):
    np.asarray(h)
""")


def test_a_tree_of_handles_is_asked_for_before_any_is_waited_for():
    """One round trip in all, not one each."""
    run("""
pw.connect(hosts=2)
a, b = (pw.jit(lambda x: x * 2, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
program = pw.program(lambda x: (a(x), b(x), a(x + 1)))
tree = program(np.float32([1, 2]))
seen = []
for name in ("ask", "fetch"):
    def noted(*args, name=name, do=getattr(controller(), name)):
        seen.append(name)
        return do(*args)

    setattr(controller(), name, noted)
assert_equal(jax.device_get(tree), ([2, 4], [2, 4], [4, 6]))
assert seen == ["ask"] * 3 + ["fetch"] * 3
# Asking again, or reading it, asks no host.
tree[0].copy_to_host_async()
np.asarray(tree[0])
assert len(seen) == 6
other = program(np.float32([1, 2]))[0]
other.copy_to_host_async()
other.copy_to_host_async()
other.delete()
with refused(RuntimeError, "Array has been deleted"):
    other.copy_to_host_async()
assert seen[6:] == ["ask"]
# What goes wrong is said by whoever reads it.
last = program(np.float32([1, 2]))[1]
os.kill(controller().hosts[1].process.pid, signal.SIGKILL)
last.copy_to_host_async()
with refused(HostError, "host 1"):
    np.asarray(last)
""")


def test_as_many_steps_are_under_way_as_have_room():
    """By default; many of a program that sends nothing between hosts."""
    run("""
import pathways.compiler.backends.ahead as ahead
from pathways.runtime.control.window import Window


def allowed(program, argument):
    before = step_shares[:]
    np.asarray(program(argument))
    (share,) = set(step_shares[len(before):])
    return window_sizes[0] // share


step_shares, window_sizes = [], []
add = Window.add


def noted(self, step):
    step_shares.append(step.share)
    window_sizes[:] = [self._most]
    add(self, step)


Window.add = noted
small, large = np.zeros(4, np.float32), np.zeros(1 << 23, np.float32)
for options, expected in ((pw.HostOptions(), [256, 5, 16, 9]), (pw.HostOptions(ahead=3), [3] * 4)):
    pw.connect(hosts=2, options=options)
    slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]
    a, b = (pw.jit(lambda x: x + 1, devices=slice) for slice in slices)
    alone, crossing = pw.program(lambda x: a(x)), pw.program(lambda x: b(a(x)))
    # Each further step takes argument and result, or what is sent, of 256 MiB where nothing is known.
    found = [allowed(program, x) for program in (alone, crossing) for x in (small, large)]
    assert found == expected, found
    if options.ahead == "auto":
        # One step has 32 bytes on each slice, and each further one 16 that are sent.
        ahead._memory = lambda binding: 80
        assert allowed(pw.program(lambda x: b(a(x))), small) == 4
        ahead._memory = lambda binding: 32
        assert allowed(pw.program(lambda x: b(a(x))), small) == 1
    for slice in slices:
        pw.release(slice)
""")


def test_what_xla_made_of_a_program_is_told():
    """As in one process: its memory, operations and text."""
    run("""
os.environ["PW_CPU_DEVICES"] = "4"


def compiled():
    a, b = (
        pw.jit(f, devices=devices.add_slice((2,), ("x",)), in_shardings=(None, P("x"))) for f in (front, back)
    )
    program = pw.program(lambda w, x: b(w, a(w, x)))
    return program.lower(np.zeros((256, 256), np.float32), np.zeros((64, 256), np.float32)).compile()


local = compiled()
expected = local.memory_analysis(), local.cost_analysis(), local.as_text("device")
for slice in local.slices.values():
    pw.release(slice)
pw.connect(hosts=2, devices_per_host=2)
remote = compiled()
memory, cost = remote.memory_analysis(), remote.cost_analysis()
assert cost == expected[1] and cost["flops"] > 0
for ours, theirs in zip(memory.values(), expected[0].values(), strict=True):
    assert ours.argument_size_in_bytes == theirs.argument_size_in_bytes
    assert ours.temp_size_in_bytes == theirs.temp_size_in_bytes
    assert ours.generated_code_size_in_bytes == theirs.generated_code_size_in_bytes
    assert ours.peak_memory_in_bytes >= theirs.peak_memory_in_bytes
text = remote.as_text("device")
assert text.count("// computation") == expected[2].count("// computation") == 2
assert text.count("ENTRY") == 2
os.kill(controller().hosts[1].process.pid, signal.SIGKILL)
with refused(HostError, "host 1 (island1) is lost"):
    while True:
        remote.as_text("device")
assert remote.memory_analysis() == memory
""")


def test_slices_that_overlap_may_be_on_different_hosts():
    run("""
pw.connect(hosts=2)
a, b, c = (
    pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",), overlap=True)) for _ in range(3)
)
y, z = pw.program(lambda x: (a(x), c(b(a(x)))))(np.float32(0))
assert_equal((y, z), (1, 3))
""")


def test_many_steps_of_several_threads():
    """All hosts take the steps in one order, however threads mix programs that go round both ways."""
    run("""
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
""")


def test_threads_that_want_an_array_that_another_one_donates():
    """They get it, or are told that it is deleted: no worker waits for what it has freed."""
    run("""
sys.setswitchinterval(1e-5)
pw.connect(hosts=2)
a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
make = pw.program(lambda x: a(x))
read = pw.program(lambda x: b(a(x)))
take = pw.program(lambda x: b(a(x)), donate_argnums=0)


def work(use, n):
    barrier.wait()
    try:
        seen[n] = use()
    except (RuntimeError, HostError) as error:
        assert "deleted" in str(error), error


for n in range(150):
    x = make(np.float32(n))
    uses = [lambda: float(take(x)), lambda: float(take(x)), lambda: float(read(x)), lambda: float(x)]
    if not n % 2:
        uses.append(x.delete)
    barrier, seen = threading.Barrier(len(uses)), {}
    threads = [threading.Thread(target=work, args=(use, number)) for number, use in enumerate(uses)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = [value for number, value in seen.items() if number < 2]
    assert taken == [n + 3] or (taken == [] and not n % 2), seen
    assert seen.get(2, n + 3) == n + 3 and seen.get(3, n + 1) == n + 1, seen
""")


def test_programs_that_call_python_are_refused():
    """The message names the computation; a callback that nothing needs is none."""
    run("""
pw.connect(hosts=2)


def body(x):
    return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((), np.float32), x)


f, g = (pw.jit(f, devices=devices.add_slice((1,), ("x",))) for f in (jnp.sin, body))
with refused(pw.ProgramError, "computation body calls back into Python", "run no code of yours"):
    pw.program(lambda x: g(f(x)))(1.0)
assert_equal(pw.program(lambda x: (g(x), f(x))[1])(0.0), 0)
""")


def test_a_worker_that_is_killed():
    """All that it had is an error that names it; the others live, and its island comes back."""
    run("""
pw.connect(hosts=2)
slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]
a, b = (pw.jit(lambda x: x + 1, devices=slice) for slice in slices)
program = pw.program(lambda x: (a(x), b(a(x))))
compiled = program.lower(np.float32(0)).compile()
kept, lost = program(np.float32(0))
lost.block_until_ready()
os.kill(controller().hosts[1].process.pid, signal.SIGKILL)
began = time.monotonic()
with refused(HostError, "host 1 (island1) is lost: its process has ended (killed by signal 9)"):
    np.asarray(lost)
assert time.monotonic() - began < 10
with refused(HostError, "host 1 (island1) is lost"):
    jax.block_until_ready(compiled(np.float32(0)))
with refused(HostError, "host 1 (island1) is lost"):
    program(lost)
assert_equal(program(kept), (2, 3))
assert float(kept) == 1 and controller().is_whole()
while [host.arrays for host in pw.status().hosts] != [1, 0]:
    time.sleep(0.05)
""")


def test_an_island_that_is_lost_again_and_again():
    """It is given up; what the others can do is done."""
    run("""
pw.connect(hosts=2)
slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]
a, b = (pw.jit(lambda x: x + 1, devices=slice) for slice in slices)
for _ in range(4):
    while not controller().is_whole():
        time.sleep(0.05)
    os.kill(controller().hosts[1].process.pid, signal.SIGKILL)
    while controller().is_whole():
        time.sleep(0.05)
with refused(HostError, "island1", "for 3 times it was lost before it had done a step"):
    pw.program(lambda x: b(a(x)))(1.0)
assert_equal(pw.program(lambda x: a(x))(1.0), 2)
for slice in slices:
    pw.release(slice)
pw.connect(hosts=2)
assert_equal(pw.program(lambda x: b(a(x)))(1.0), 3)
""")


def test_a_worker_that_is_stopped():
    """It does not answer, and is given up in the middle of a step."""
    run("""
pw.connect(hosts=2, options=pw.HostOptions(heartbeat=2))
a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
program = pw.program(lambda x: a(b(a(x))))
assert float(program(np.float32(0))) == 3
os.kill(controller().hosts[1].process.pid, signal.SIGSTOP)
began = time.monotonic()
with refused(HostError, "host 1 (island1) is lost: it has said nothing for"):
    program(np.float32(0)).block_until_ready()
assert time.monotonic() - began < 30
""")


def test_a_controller_that_is_stopped():
    """As by Ctrl-Z: it has heard nobody for long, which is not the fault of the workers."""
    run("""
import subprocess

pw.connect(hosts=2, options=pw.HostOptions(heartbeat=2))
a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
program = pw.program(lambda x: a(b(a(x))))
assert float(program(np.float32(0))) == 3
time.sleep(1)  # Until all is heard that was said before.
resume = f"sleep 3; kill -CONT {os.getpid()}"
with subprocess.Popen(["sh", "-c", resume]):
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(1)
assert float(program(np.float32(0))) == 3
os.kill(controller().hosts[1].process.pid, signal.SIGSTOP)
with refused(HostError, "host 1 (island1) is lost: it has said nothing for"):
    program(np.float32(0)).block_until_ready()
""")


def test_workers_end_with_the_controller():
    script = """
pw.connect(hosts=2)
print(*(host.process.pid for host in controller().hosts), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + script], capture_output=True, text=True, check=False, timeout=60
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    code = f"""
import os, time
deadline = time.monotonic() + 20
while time.monotonic() < deadline and any(os.path.exists(f"/proc/{{pid}}/exe") for pid in {pids}):
    time.sleep(0.1)
print([pid for pid in {pids} if os.path.exists(f"/proc/{{pid}}/exe")])
"""
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert left.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("hosts=0", "hosts=0: expected at least 1"),
        ("hosts=2, devices_per_host=0", "devices_per_host=0: expected at least 1"),
        ("hosts=2, cpu_devices=2", "with hosts= say devices_per_host="),
    ],
)
def test_settings_that_cannot_be(arguments, message):
    import pathways as pw

    with pytest.raises(ValueError, match=message):
        eval(f"pw.connect({arguments})", {"pw": pw})


STUCK = """
@functools.partial(pw.jit, devices=slices[0])
def first(x):
    return jax.lax.while_loop(lambda v: v[0] > 0, lambda v: 1 + jnp.sin(v) ** 2, x)


second = pw.jit(lambda x: x + 1, devices=slices[1])
program = pw.program(lambda x: (lambda y: (y, second(y)))(first(x)))
np.asarray(program(np.float32([0, 0]))[1])
"""


def test_a_step_that_does_not_end_is_reported_and_ended():
    done = run(
        """
import functools
import logging

logging.basicConfig(stream=sys.stdout)
pw.connect(hosts=2, options=pw.HostOptions(stall_report=1, step_deadline=2))
slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]
"""
        + STUCK
        + """
other = pw.program(lambda x: second(x))
kept = other(np.float32([1, 1]))
np.asarray(kept)
lost = program(np.float32([1, 1]))
with refused(HostError, "host 0 (island0) is lost: step", "made no progress in 2 seconds"):
    lost[1].block_until_ready()
assert_equal(kept, [2, 2])
"""
    )
    assert (
        "has made no progress for 1 seconds\n  host 0: issues it since 1 s\n  host 1: computes, or waits for"
        in done
    )


def test_status_of_hosts():
    run("""
pw.connect(hosts=2, devices_per_host=2)
slices = [devices.add_slice((2,), ("x",), name=name) for name in ("front", "back")]
a, b = (pw.jit(lambda x: x + 1, devices=slice) for slice in slices)
program = pw.program(lambda x: b(a(x)))
(x,) = program.place(np.zeros(4, np.float32))
y = program(x)
np.asarray(y)
while (status := pw.status()).steps:
    time.sleep(0.01)
assert status.backend == "hosts"
assert [(host.devices, host.arrays, host.programs) for host in status.hosts] == [
    (2, 1, ("lambda",)),
    (2, 1, ("lambda",)),
]
# The argument, and the result on both devices of its slice.
assert [host.bytes for host in status.hosts] == [32, 32]
assert [(slice.name, slice.island, slice.devices) for slice in status.slices] == [
    ("front", "island0", (0, 1)),
    ("back", "island1", (2, 3)),
]
os.kill(status.hosts[1].pid, signal.SIGKILL)
while controller().is_whole():
    time.sleep(0.01)
assert "killed by signal 9" in pw.status().hosts[1].error
""")


def test_a_bundle_on_hosts(tmp_path):
    path = tmp_path / "program.pwb"
    prepare = """
table = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)


def slices_of(names):
    return [devices.add_slice((2,), ("x",), name=name) for name in names]


def program_of(slices):
    a = pw.jit(lambda w, x: front(w, x) @ table, devices=slices[0], in_shardings=(None, P("x")))
    b = pw.jit(back, devices=slices[1])
    return pw.program(lambda w, x: b(w, a(w, x)))


expected = jax.jit(lambda w, x: back(w, front(w, x) @ table))(W, X)
"""
    run(f"""
pw.connect(cpu_devices=4)
{prepare}
program_of(slices_of("ab")).lower(W, X).save({str(path)!r})
""")
    run(f"""
pw.connect(hosts=2, devices_per_host=2)
{prepare}
loaded = pw.load({str(path)!r})
assert_equal(loaded(W, X), expected)
placed = loaded.place_by_name({{"w": W}})
assert isinstance(placed["w"], pw.Array)
assert_equal(loaded(placed["w"], X), expected)
""")


STOPPED = """
pw.connect(hosts=1)
program = pw.program(pw.jit(jnp.sum, devices=devices.add_slice((1,), ("x",))))
large = np.ones(1 << 23, np.float32)
float(program(large))
os.kill(controller().hosts[0].process.pid, signal.SIGSTOP)
"""


def test_a_worker_that_is_stopped_while_it_is_sent_something_large():
    """Its buffers are full, so that whoever sends waits; it is given up nevertheless, and can be closed."""
    run(
        STOPPED.replace("hosts=1", "hosts=1, options=pw.HostOptions(heartbeat=2)")
        + """
with refused(HostError, "host 0 (island0) is lost: it has said nothing for"):
    while True:
        program(large)
"""
    )


def test_closing_does_not_wait_for_a_worker_that_is_stopped():
    run(
        STOPPED
        + """
thread = threading.Thread(target=lambda: [program(large) for _ in range(9)], daemon=True)
threading.excepthook = lambda arguments: None
thread.start()
time.sleep(1)
began = time.monotonic()
controller().close()
assert time.monotonic() - began < 8
thread.join()
"""
    )


def test_ctrl_c_leaves_workers_as_they_are():
    """Neither half a message nor a step that only one host knows."""
    run("""
pw.connect(hosts=2)
a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
program = pw.program(lambda x: b(a(x)))
large = np.ones(1 << 21, np.float32)
program(large).block_until_ready()
done = threading.Event()


def interrupt():
    while not done.wait(0.01):
        os.kill(os.getpid(), signal.SIGINT)


thread = threading.Thread(target=interrupt)
interrupted, deadline = 0, time.monotonic() + 2
thread.start()
while time.monotonic() < deadline:
    try:
        while True:
            program(large).block_until_ready()
    except KeyboardInterrupt:
        interrupted += 1
while thread.is_alive():
    try:
        done.set()
        thread.join()
    except KeyboardInterrupt:
        pass
assert interrupted > 10
assert controller().is_whole() and np.asarray(program(large))[0] == 3
""")


def test_a_forked_process_has_no_workers():
    run("""
pw.connect(hosts=1)
program = pw.program(pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))))
h = program(np.float32(1))
child = os.fork()
if not child:
    import atexit

    with refused(HostError, "host 0 (island0) belongs to the process that this one was forked from"):
        program(h)
    with refused(HostError, "belongs to the process that this one was forked from"):
        np.asarray(h)
    atexit._run_exitfuncs()
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
assert float(program(h)) == 3
""")


def test_handles_of_earlier_workers():
    """Numbers of arrays begin anew: a handle must not be taken for one of the new workers."""
    run("""
pw.connect(hosts=1)
slice = devices.add_slice((1,), ("x",))
program = pw.program(pw.jit(lambda x: x + 1, devices=slice))
lost, kept = program(np.float32(10)), program(np.float32(20))
assert float(kept) == 21
pw.release(slice)
pw.connect(hosts=1, devices_per_host=2)
others = [program(np.float32(n)) for n in range(5)]
with refused(HostError, "host 0 (island0) is closed"):
    program(lost)
assert float(program(kept)) == 22
""")


def test_empty_arrays_between_hosts_can_be_donated():
    """Nothing travels; each run has one of its own nevertheless."""
    run("""
pw.connect(hosts=2)
a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
program = pw.program(lambda x: b(a(x) * 2) + 1)
for _ in range(3):
    assert np.asarray(program(np.zeros((0, 3), np.float32))).shape == (0, 3)
""")


def test_what_is_donated_is_deleted():
    run("""
pw.connect(hosts=1)
f = pw.jit(lambda x, y: x + y, devices=devices.add_slice((1,), ("x",)))
program = pw.program(lambda x, y: f(x, y), donate_argnums=0)
x, y = jnp.ones(2), jnp.ones(2)
with refused(ValueError, "arguments x and y are the same array, and one of them is donated"):
    program(x, x)
assert_equal(program(x, y), [2, 2])
assert x.is_deleted() and not y.is_deleted()
with refused(RuntimeError, "argument x has been deleted"):
    program(x, y)
""")


def test_handles_behave_like_arrays_of_jax():
    run("""
import copy
import pickle

pw.connect(hosts=1)
double = pw.jit(lambda x: x * 2, devices=devices.add_slice((1,), ("x",)))
program = pw.program(lambda x: double(x))
h = program(np.float32([1, 2, 3]))
assert [float(x) for x in h] == [2, 4, 6] and 4 in h and 5 not in h
first, *_, last = h
assert (float(first), float(last), [float(x) for x in reversed(h)]) == (2, 6, [6, 4, 2])
assert_equal((h.sum(), h.T, h.reshape(3, 1), h.at[0].set(1)), (12, [2, 4, 6], [[2], [4], [6]], [1, 4, 6]))
assert (h.tolist(), h.itemsize, float(round(program(1.26), 1))) == ([2, 4, 6], 4, 2.5)
assert_equal((divmod(h, 4), 2**h), (([0, 1, 1], [2, 0, 2]), [4, 16, 64]))
large = program(np.zeros(1 << 19, np.float32))
assert (h == None, large == None, large != None, None in [large]) == (False, False, True, False)
with refused(TypeError, "unhashable"):
    hash(h)
for other in (copy.copy(h), copy.deepcopy(h), pickle.loads(pickle.dumps(h))):
    assert isinstance(other, jax.Array) and other.tolist() == [2, 4, 6]
h.delete()
assert other.tolist() == [2, 4, 6]
weak = program(2.0)
assert weak.weak_type and (weak + jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
with jax.enable_x64(True):
    wide = program(np.float64([1e-12]))
assert wide.dtype == np.float64 and wide.tolist() == [2e-12]
keys = pw.program(lambda x, key: (double(x), jax.random.split(key)))(1.0, jax.random.key(0))[1]
assert_equal(jax.random.key_data(keys[1]), jax.random.key_data(jax.random.split(jax.random.key(0))[1]))
""")


def test_types_of_handles_on_different_meshes_go_together():
    run("""
pw.connect(hosts=2, devices_per_host=2)
a = pw.jit(lambda x: x + 1, devices=devices.add_slice((2,), ("x",)), out_shardings=P("x"))
b = pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("y",)))
x, y = pw.program(lambda v: (a(v), b(v)))(np.zeros(4, np.float32))
assert x.sharding.shard_shape(x.shape) == (2,)
assert jax.eval_shape(lambda x, y: x + y, x, y).shape == (4,)
""")


def test_a_computation_that_fails_is_an_error_of_what_depends_on_it_alone():
    """Such as one that needs more memory than there is; the hosts go on."""
    run(
        """
pw.connect(hosts=2)
slices = [devices.add_slice((1,), ("x",), name=name) for name in ("front", "back")]


@functools.partial(pw.jit, devices=slices[0])
def large(x):
    return jnp.sort(jnp.sin(jax.lax.iota(jnp.float32, 1 << 44) * x))[:3]


add, halve = (pw.jit(f, devices=slices[1]) for f in (lambda x: x + 1, lambda x: x / 2))
fails = pw.program(lambda x: (add(large(x)), halve(x)))
lost, kept = fails(np.float32(1))
for wait in (np.asarray, jax.block_until_ready):
    with refused(HostError, "program lambda: host 1 (island1): a result on slice back", "Out of memory"):
        wait(lost)
assert_equal(kept.block_until_ready(), 0.5)
assert_equal(pw.program(lambda x: add(x))(np.float32(1)), 2)
assert controller().is_whole()
""".replace("pw.connect", "import functools\n\npw.connect", 1)
    )


def test_programs_find_other_devices_after_disconnect():
    run(
        """
jax.config.update("jax_num_cpu_devices", 2)
pw.connect(hosts=2)
a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
program = pw.program(lambda x: b(a(x)))
lost = program(np.float32(0))
assert float(lost) == 2
pids = [host.pid for host in pw.status().hosts]
pw.disconnect()
assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
with refused(HostError, "host 1 (island1) is closed"):
    lost.block_until_ready()
pw.connect(cpu_devices=2)
assert isinstance(program(np.float32(0)), jax.Array) and float(program(np.float32(1))) == 3
pw.disconnect()
pw.connect(hosts=3)
assert isinstance(program(np.float32(0)), pw.Array) and float(program(np.float32(2))) == 4
"""
    )


def test_input_and_checkpoints_of_programs_on_hosts(tmp_path):
    """Batches wait on the hosts, arrays are fetched to be saved, and what is restored is sent again."""
    pytest.importorskip("orbax.checkpoint", reason="orbax-checkpoint is not installed")
    run(f"""
pw.connect(hosts=2)
a, b = (pw.jit(f, devices=devices.add_slice((1,), ("x",))) for f in (front, back))


@pw.program(donate_argnums=0)
def step(state, x):
    key, noise = jax.random.split(state["key"])
    loss = lambda w: (b(w[1], a(w[0], x + jax.random.normal(noise, x.shape))) ** 2).mean()
    value, grads = jax.value_and_grad(loss)(state["w"])
    return {{"w": [w - 0.1 * g for w, g in zip(state["w"], grads)], "key": key}}, value


def batches():
    return (X + n for n in range(4))


first = {{"w": [W, W + 1], "key": jax.random.key(3)}}
compiled = step.lower(first, X).compile()
state, losses = first, []
with pw.prefetch(batches(), compiled, "x") as ready:
    for n, x in enumerate(ready):
        assert isinstance(x, pw.Array)
        if n == 2:
            pw.checkpoint.save({str(tmp_path)!r}, state, n)
        state, value = compiled(state, x)
        losses.append(float(value))

state, _ = compiled.out_info
state = pw.checkpoint.restore({str(tmp_path)!r}, state)
assert isinstance(state["w"][0], np.ndarray)
rest = []
for x in list(batches())[2:]:
    state, value = compiled(state, x)
    rest.append(float(value))
assert rest == losses[2:], (rest, losses)
""")


def test_over_tcp_on_some_ports():
    """As between machines: all listen on the address that the user names, and on ports of the range."""
    run("""
from pathlib import Path

ports = range(20300, 20400)
pw.connect(hosts=2, bind="127.0.0.1", options=pw.HostOptions(ports=(ports[0], ports[-1])))
a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
large = np.zeros(1 << 20, np.float32)
assert_equal(pw.program(lambda x: b(a(x)))(large), large + 2)
links = [link for host in pw.status().hosts for link in Path(f"/proc/{host.pid}/fd").iterdir()]
sockets = {os.readlink(link) for link in links if link.is_symlink()}
rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").open()]
listening = [row[1].split(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
assert {address for address, _ in listening} == {"0100007F"}, listening
# Besides those on which bytes of arrays travel.
assert sum(int(port, 16) in ports for _, port in listening) == 4, listening
""")


def test_what_a_worker_wrote_last_is_in_the_error():
    run("""
pw.connect(hosts=1)
process = controller().hosts[0].process
program = pw.program(pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))))
h = program(np.float32(1))
float(h)
controller().hosts[0].steps.send_frames(b"this is no message" * 10)
with refused(HostError, "host 0 (island0) is lost", "| pathways worker: these bytes are no message"):
    while True:
        program(h).block_until_ready()
""")


def test_a_worker_that_does_not_start():
    run("""
from pathways.runtime.hosts.launch import children

class Broken(children.Child):
    def __init__(self, config, start):
        object.__setattr__(config, "cpu_devices", "two")
        super().__init__(config, start)

children.Child = Broken
with refused(HostError, "host 0 did not start (exit code 1)", "| TypeError"):
    pw.connect(hosts=2)
""")


def test_results_go_from_host_to_host():
    """What one program leaves on a host and another wants on a second one never passes the controller."""
    run("""
pw.connect(hosts=3, devices_per_host=2)
s0 = devices.add_slice((2,), ("x",), island="island0")
s1 = devices.add_slice((1, 2), ("u", "v"), island="island1")
s2 = devices.add_slice((1,), ("x",), island="island2")


def make():
    return jax.random.key(3), X * 2, jnp.ones(3, jnp.bfloat16), jnp.array([True, False])


def use(key, x, ones, flags):
    return jax.random.normal(key, (4,)) + x, ones * 2, ~flags


make_it = pw.program(pw.jit(make, devices=s0, out_shardings=(None, P("x"), None, None)))
users = [
    pw.program(pw.jit(use, devices=s1, in_shardings=(None, P("v"), None, None))),
    pw.program(pw.jit(use, devices=s2)),
]
expected = jax.jit(use)(*make())
here = controller()
here.put = here.ask = None  # neither fetched nor sent
state = make_it()
results = [user(*state) for user in users]
assert state[1].hosts == (0, 1, 2)
state[1].block_until_ready()
del here.put, here.ask
for result in results:
    assert_equal(result, expected)

# A copy ends with its handle; one that another program took is gone everywhere.
taker = pw.program(pw.jit(lambda x: x + 1, devices=s2), donate_argnums=0)
assert_equal(taker(state[1]), X * 2 + 1)
assert state[1].is_deleted()

# The host that has it dies before it can be moved.
state = make_it()
jax.block_until_ready(state)
os.kill(here.hosts[0].process.pid, signal.SIGKILL)
with refused(HostError, "host 0 (island0)"):
    jax.block_until_ready(users[1](*state))
""")
