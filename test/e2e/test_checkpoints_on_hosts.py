"""Checkpoints that hosts write and read themselves: Orbax alone reads them, and none remains half written."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import preloaded
import pytest
import read_checkpoints
from jax.sharding import PartitionSpec as P

import pathways as pw
from pathways.runtime.clusters.connect import controller
from pathways.runtime.data import checkpoints
from pathways.runtime.data.host_files import CheckpointFailedError, HostSave

pytestmark = pytest.mark.usefixtures("own_or_attached_workers")

ISLANDS = [pw.Island(devices_per_host=2), pw.Island(devices_per_host=2), pw.Island(hosts=2)]
OPTIONS = pw.HostOptions(heartbeat=3)
X = np.arange(64, dtype=np.float32).reshape(16, 4)


def on_islands(devices, *numbers):
    """Runs a program that creates a tree of all kinds of leaves on some islands."""
    pw.connect(islands=ISLANDS, options=OPTIONS)
    slices = [devices.add_slice((2,), ("x",), island=f"island{n}") for n in numbers]
    rows = [
        pw.jit(lambda x, k=k: x * (k + 1), devices=slice, in_shardings=P("x"), out_shardings=P("x"))
        for k, slice in enumerate(slices)
    ]
    halves = pw.jit(lambda x: x.astype(jnp.bfloat16), devices=slices[-1], out_shardings=P(None, "x"))

    @pw.program
    def init(x, key):
        # A sum of mirrored values is on several slices.
        return {"rows": [f(x) for f in rows], "halves": halves(x), "key": key, "count": jnp.int32(7) + 1}

    compiled = init.lower(X, jax.random.key(0)).compile()
    return compiled, compiled(X, jax.random.key(3))


def equal(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = (
                jax.random.key_data(x if isinstance(x, jax.Array) else x._fetch_as_local()) for x in (a, b)
            )
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.not_attached
def test_checkpoint_on_hosts_is_read_by_orbax_and_onto_other_layouts(devices, tmp_path):
    """One, three and four hosts, two of them an island, and replicas; compressed or not."""
    saved = {}
    for step, numbers in enumerate([(0,), (0, 1), (2, 1), (0, 1, 2)], 1):
        compiled, state = on_islands(devices, *numbers)
        pw.checkpoint.save(tmp_path, {**state, "name": "lion", "n": 5}, step, compress=bool(step % 2))
        saved[step] = state, compiled
    slice = pw.make_virtual_device_set(replicas=2).add_slice((2,), ("x",))
    double = pw.jit(lambda w: w * 2, devices=slice, out_shardings=P("x"))
    replicated = {"w": pw.program(lambda w: double(w))(X)}
    pw.checkpoint.save(tmp_path, {**replicated, "name": "lion", "n": 5}, 5)
    saved[5] = replicated, None
    assert pw.checkpoint.latest(tmp_path) == 5
    written = {file.name for file in (tmp_path / "4" / "state").iterdir()}
    assert {f"ocdbt.process_host{n}" for n in range(4)} <= written
    assert not [name for name in written if name.startswith(".pathways")]

    script = read_checkpoints.__file__
    folders = [str(tmp_path / str(step)) for step in saved]
    done = subprocess.run([sys.executable, script, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for (state, _), line in zip(saved.values(), done.stdout.splitlines(), strict=True):
        here = jax.tree.map(lambda x: x._fetch_as_local() if isinstance(x, pw.Array) else x, state)
        assert json.loads(line) == read_checkpoints.description({**here, "name": "lion", "n": 5})

    # What one island has written, another one reads; two of its hosts as well.
    for step, numbers in ((1, (1,)), (1, (2,)), (3, (0, 1)), (2, (2, 0)), (4, (1, 2, 0))):
        compiled, other = on_islands(devices, *numbers)
        like = {**compiled.out_info, "name": "", "n": 0}
        restored = pw.checkpoint.restore(tmp_path, like, step=step)
        assert restored.pop("name") == "lion"
        assert restored.pop("n") == 5
        equal(restored, saved[step][0])
        assert restored["halves"].locations == other["halves"].locations
    for each in slice.replicas:
        pw.release(each)


@pytest.mark.feature("training", "hosts")
def test_checkpoint_on_hosts_allows_donation_right_after(devices, tmp_path):
    pw.connect(islands=ISLANDS, options=OPTIONS)
    slices = [devices.add_slice((2,), ("x",), island=f"island{n}") for n in (0, 1)]
    doubles = [pw.jit(lambda x: 2 * x, devices=slice, in_shardings=P("x")) for slice in slices]
    bump = pw.program(lambda rows: [f(x) for f, x in zip(doubles, rows, strict=True)], donate_argnums=0)
    bump = bump.lower([X, 2 * X]).compile()
    (rows,) = bump.place([X, 2 * X])
    for step in range(1, 4):
        saving = pw.checkpoint.save(tmp_path, rows, step, max_to_keep=2)
        rows = bump(rows)
        saving.wait()
    for step in (2, 3):
        restored = pw.checkpoint.restore(tmp_path, program=bump, argument="rows", step=step)
        equal(restored, [X * 2 ** (step - 1), 2 * X * 2 ** (step - 1)])
        # The leaves are on the devices that the program expects.
        equal(bump(restored), [X * 2**step, 2 * X * 2**step])
    with pytest.raises(TypeError, match="expected like=, or both program= and argument="):
        pw.checkpoint.restore(tmp_path)


def test_checkpoint_on_hosts_writes_shared_arrays_of_replicas_once(tmp_path):
    pw.connect(islands=ISLANDS, options=OPTIONS)
    devices = pw.make_virtual_device_set(replicas=2)
    slice = devices.add_slice((2,), ("x",))
    double = pw.jit(lambda w: w * 2, devices=slice, out_shardings=P("x"))
    state = pw.program(lambda w: double(w))(X)
    assert len(state.hosts) > 1 or len(state.locations) > 1
    pw.checkpoint.save(tmp_path, {"w": state}, 1, compress=False).wait()
    size = sum(file.stat().st_size for file in (tmp_path / "1" / "state").rglob("*") if file.is_file())
    assert size < 8192 + X.nbytes
    equal(pw.checkpoint.restore(tmp_path, {"w": state}), {"w": 2 * X})
    for one in slice.replicas:
        pw.release(one)


@pytest.mark.feature("training", "hosts")
def test_checkpoint_on_hosts_reads_one_of_orbax(devices, tmp_path):
    import orbax.checkpoint as ocp

    on_islands(devices, 1)
    tree = {"w": np.arange(8, dtype=np.float32).reshape(4, 2)}
    with ocp.CheckpointManager(tmp_path / "managed") as manager:
        manager.save(3, args=ocp.args.StandardSave(tree))
    slice = devices.add_slice((2,), ("x",), island="island0")
    f = pw.jit(lambda w: w + 1, devices=slice, in_shardings=P("x"))
    program = pw.program(lambda w: f(w["w"])).lower(tree).compile()
    for partial in (False, True):
        restored = pw.checkpoint.restore(tmp_path / "managed", program=program, argument="w", partial=partial)
        assert isinstance(restored["w"], pw.Array)
        equal(restored, {"w": tree["w"]})


def test_checkpoint_on_hosts_restores_parameters_alone(devices, tmp_path):
    """The program for inference reads them in bfloat16."""
    _, state = on_islands(devices, 0, 1)
    pw.checkpoint.save(tmp_path, {**state, "n": 5}, 1)
    slice = devices.add_slice((2,), ("x",), island="island1")
    f = pw.jit(lambda rows: rows[0] + 1, devices=slice, in_shardings=P("x"))
    halves = [jax.ShapeDtypeStruct(X.shape, jnp.bfloat16)]
    infer = pw.program(lambda state: f(state["rows"])).lower({"rows": halves}).compile()
    restored = pw.checkpoint.restore(tmp_path, program=infer, argument="state", partial=True)
    assert isinstance(restored["rows"][0], pw.Array)
    equal(restored, {"rows": [X.astype(jnp.bfloat16)]})
    with pytest.raises(ValueError, match=r"rows/0 in .* but `like` has bfloat16\[16, 4\]; partial=True conv"):
        pw.checkpoint.restore(tmp_path, {**state, "rows": restored["rows"] * 2, "n": 0})


def test_checkpoint_on_hosts_reads_one_of_this_process(devices, tmp_path):
    """A run in one process has saved it; some leaves of the same tree may stay in this process."""
    _, state = on_islands(devices, 0, 1)
    here = jax.tree.map(jnp.asarray, jax.tree.map(np.asarray, state["rows"]))
    pw.checkpoint.save(tmp_path, {"rows": here, "same": here[0], "n": 5}, 1)
    like = {"rows": state["rows"], "same": here[0], "n": 0}
    restored = pw.checkpoint.restore(tmp_path, like)
    assert all(isinstance(row, pw.Array) for row in restored["rows"])
    assert isinstance(restored["same"], jax.Array)
    equal(restored["rows"], state["rows"])
    equal(restored["same"], here[0])
    with pytest.raises(ValueError, match=r"n in .* is the type int, but `like` has int32\[\]"):
        pw.checkpoint.restore(tmp_path, {**like, "n": state["count"]})


@pytest.mark.feature("training", "error")
def test_checkpoint_on_hosts_refuses_another_folder(devices, tmp_path, monkeypatch):
    """The file that a host reads first is missing; the next save of the same step is whole."""
    compiled, state = on_islands(devices, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", lambda self, text: len(text))
        saving = pw.checkpoint.save(tmp_path, state, 1)
        with pytest.raises(OSError, match=r"host 0 \(island0\) does not see the folder .*state"):
            saving.wait()
    # Writes still in flight would go to files of the next save.
    assert not [thread for thread in threading.enumerate() if type(thread).__module__.startswith("orbax.")]
    assert pw.checkpoint.latest(tmp_path) is None
    pw.checkpoint.save(tmp_path, state, 1).wait()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "manifest", lambda folder: {"size": 1, "checksum": 2})
        with pytest.raises(OSError, match=r"host \d \(island\d\) does not see the folder"):
            pw.checkpoint.restore(tmp_path, compiled.out_info)


@pytest.mark.not_attached
@pytest.mark.needs("root")
def test_checkpoint_on_hosts_refuses_another_mount(tmp_path):
    """The folder exists on both hosts, but is not the same folder."""
    folder, start = tmp_path / "checkpoints", tmp_path / "start.sh"
    folder.mkdir()
    start.write_text(
        "host=$1; shift\n"
        'if [ $host = two ]; then exec unshare -m sh -c \'mount -t tmpfs none "$0" && exec "$@"\' '
        f'{folder} "$@"; fi\n'
        'exec "$@"\n'
    )
    pw.connect(pw.Ssh(["one", "two"], bind="127.0.0.1", start=f"sh {start} {{host}} {{command}}"))
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]
    f, g = (pw.jit(lambda x: x + 1, devices=slice) for slice in slices)
    init = pw.program(lambda x: (f(x), g(x))).lower(X).compile()
    state = init(X)
    with pytest.raises(OSError, match=rf"not saved: host 1 \(island1\) does not see the folder {folder}"):
        pw.checkpoint.save(folder, state, 1).wait()
    pw.checkpoint.save(folder, state[:1], 1).wait()
    with pytest.raises(OSError, match=rf"host 1 \(island1\) does not see the folder {folder}"):
        pw.checkpoint.restore(folder, init.out_info[1:])
    equal(pw.checkpoint.restore(folder, init.out_info[:1]), state[:1])
    for slice in slices:
        pw.release(slice)
    pw.disconnect()


def test_checkpoint_on_hosts_has_to_be_seen_by_the_controller(devices, tmp_path, monkeypatch):
    from pathways.runtime.data import host_files

    _, state = on_islands(devices, 0, 1)
    monkeypatch.setattr(host_files, "_SEEN_SECONDS", 0.1)
    monkeypatch.setattr(checkpoints, "manifest", lambda folder: {"size": -1, "checksum": 0})
    with pytest.raises(
        OSError, match=r"host 0 \(island0\) has written .*host0, but this process does not see"
    ):
        pw.checkpoint.save(tmp_path, state, 1).wait()
    assert pw.checkpoint.latest(tmp_path) is None


@pytest.mark.not_attached
@pytest.mark.needs("root")
@pytest.mark.leaves_arrays  # The error of the save refers to them.
def test_checkpoint_on_hosts_reports_a_full_disk_once(devices, tmp_path, capfd):
    pw.connect(islands=ISLANDS, options=OPTIONS)
    large = pw.jit(
        lambda key: jax.random.normal(key, (1024, 1024)),
        devices=devices.add_slice((1,), ("x",), island="island1"),
    )
    state = {"w": large(jax.random.key(0))}
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], check=True)
    try:
        capfd.readouterr()
        with pytest.raises(
            OSError, match=r"step 1 .* was not saved: host 1 \(island1\): .*No space"
        ) as error:
            pw.checkpoint.save(folder, state, 1, compress=False).wait()
        assert error.value.errno == errno.ENOSPC
        assert str(folder) in error.value.filename
        assert "Traceback" not in capfd.readouterr().err
        assert pw.checkpoint.latest(folder) is None
        # Before any of it is written.
        with contextlib.suppress(OSError), (folder / "all of it").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        with pytest.raises(OSError, match=r"was not saved: the controller: .*No space") as error:
            pw.checkpoint.save(folder, state, 2).wait()
        assert error.value.errno == errno.ENOSPC
        assert str(folder) in error.value.filename
        assert "Traceback" not in capfd.readouterr().err
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.not_attached
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("when", ["copy", "write"])
def test_checkpoint_on_hosts_stays_when_a_host_is_lost(devices, tmp_path, monkeypatch, how, when):
    """The host is killed, or stopped, while it copies or writes. The step is saved again afterwards."""
    _, state = on_islands(devices, 0, 1)
    pw.checkpoint.save(tmp_path, state, 1).wait()
    victim, call = controller().hosts[1].process.pid, controller().call

    def lost_in(name, gang, *rest):
        if gang.number == 1 and name == f"pw.checkpoint: {when}":
            # The call must not end before the host is lost.
            os.kill(victim, signal.SIGSTOP)
            threading.Timer(0.2, os.kill, (victim, how)).start()
        return call(name, gang, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(controller(), "call", lost_in)
        saving = pw.checkpoint.save(tmp_path, state, 2)
        with pytest.raises(OSError, match=r"step 2 .* was not saved: .*host 1 \(island1\) is lost") as error:
            saving.wait()
    assert isinstance(error.value.__cause__, pw.HostError)
    assert pw.checkpoint.latest(tmp_path) == 1
    compiled, again = on_islands(devices, 0, 1)
    restored = pw.checkpoint.restore(tmp_path, compiled.out_info)
    equal(restored, again)
    pw.checkpoint.save(tmp_path, restored, 2).wait()
    assert pw.checkpoint.latest(tmp_path) == 2


@pytest.mark.quick
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_checkpoint_on_hosts_survives_a_host_lost_after_writing(devices, tmp_path, monkeypatch, how):
    """The controller merges the files that hosts have written."""
    from orbax.checkpoint._src.serialization import ocdbt_utils

    _, state = on_islands(devices, 0, 1)
    here = jax.tree.map(lambda x: x._fetch_as_local() if isinstance(x, pw.Array) else x, state)
    victim, merge, merged = controller().hosts[1].process.pid, ocdbt_utils.merge_ocdbt_per_process_files, []

    def lost_first(*args, **kwargs):
        os.kill(victim, how)
        merged.append(args)
        return merge(*args, **kwargs)

    monkeypatch.setattr(ocdbt_utils, "merge_ocdbt_per_process_files", lost_first)
    pw.checkpoint.save(tmp_path, state, 1).wait()
    assert merged
    with contextlib.suppress(ProcessLookupError):  # The loss of a killed host may have been noticed.
        os.kill(victim, signal.SIGKILL)
    equal(pw.checkpoint.restore(tmp_path, here), here)


@pytest.mark.parametrize("victim", [0, 1])
def test_checkpoint_on_hosts_stops_all_writes_when_a_host_is_lost(devices, tmp_path, monkeypatch, victim):
    """The host is lost when all have copied; later writes of others would get into the step's next save."""
    pw.connect(islands=ISLANDS, options=OPTIONS)
    slices = [devices.add_slice((1,), ("x",), island=f"island{n}") for n in (0, 1)]
    makers = [pw.jit(lambda k: jax.random.normal(k, (2048, 2048)), devices=slice) for slice in slices]
    state = [make(jax.random.key(n)) for n, make in enumerate(makers)]
    begun, write, call = [], HostSave.write, controller().call

    def lost_first(self, *args):
        for copies in self._copies:
            self._controller.wait_for_call(copies)
        gang = controller().hosts[victim].gang
        os.kill(controller().hosts[victim].process.pid, signal.SIGKILL)
        while not gang.is_lost():
            time.sleep(0.01)
        monkeypatch.setattr(self._controller, "call", lambda *args: begun.append(call(*args)) or begun[-1])
        write(self, *args)

    monkeypatch.setattr(HostSave, "write", lost_first)
    saving = pw.checkpoint.save(tmp_path, state, 1, compress=True)
    with pytest.raises(OSError, match=rf"host {victim} .* is lost: .* \(it had shards of {tmp_path}/1"):
        saving.wait()
    assert [each.program for each in begun] == ["pw.checkpoint: write", "pw.checkpoint: drop"]
    assert begun[0].is_done()
    assert pw.on_hosts("host_functions:kept", devices=slices[1 - victim])().result() == [0]


def test_checkpoint_on_hosts_frees_copies_when_the_first_host_is_lost(devices, tmp_path, monkeypatch):
    _, state = on_islands(devices, 0, 1)

    def lost_first(self, *_):
        gang = controller().hosts[0].gang
        os.kill(controller().hosts[0].process.pid, signal.SIGKILL)
        while not gang.is_lost():
            time.sleep(0.01)
        raise CheckpointFailedError("the folder was removed")

    monkeypatch.setattr(HostSave, "write", lost_first)
    with pytest.raises(OSError, match="the folder was removed"):
        pw.checkpoint.save(tmp_path, state, 1).wait()
    slice = devices.add_slice((1,), ("x",), island="island1")
    assert pw.on_hosts("host_functions:kept", devices=slice)().result() == [0]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_checkpoint_on_hosts_reports_a_host_lost_while_reading(devices, tmp_path, how):
    compiled, state = on_islands(devices, 0, 1)
    pw.checkpoint.save(tmp_path, state, 1).wait()
    victim = controller().hosts[1].process.pid
    os.kill(victim, signal.SIGSTOP)
    timer = threading.Timer(0.5, os.kill, (victim, how))
    timer.start()
    # Also once it is known to be lost: the program was compiled for it.
    for _ in range(2):
        with pytest.raises(OSError, match=rf"host 1 \(island1\) is lost: .*shards of {tmp_path}") as error:
            pw.checkpoint.restore(tmp_path, compiled.out_info)
        assert isinstance(error.value.__cause__, pw.HostError)
        timer.join()


@pytest.mark.feature("training", "error")
def test_checkpoint_on_hosts_names_arrays_of_failed_steps(devices, tmp_path):
    _, state = on_islands(devices, 0, 1)
    slice = devices.add_slice((1,), ("x",), island="island1")
    bad = pw.on_hosts(
        "host_functions:fail", devices=slice, out=jax.ShapeDtypeStruct((), jnp.int32)
    )().result()
    with pytest.raises(OSError, match=r"not saved: host 1 .*: state\['w'\]\['bad'\] is an error: .*row 17"):
        pw.checkpoint.save(tmp_path, {"w": {"good": state["rows"], "bad": bad}}, 1).wait()
    assert pw.checkpoint.latest(tmp_path) is None


def test_checkpoint_on_hosts_lets_threads_wait_for_one_save(devices, tmp_path, monkeypatch):
    """No thread sees the save in flight as missing, or saves the same step into it."""
    _, state = on_islands(devices, 0, 1)
    go, write = threading.Event(), HostSave.write
    monkeypatch.setattr(HostSave, "write", lambda *args: go.wait(30) and write(*args))

    def save_again():
        with pytest.raises(FileExistsError):
            pw.checkpoint.save(tmp_path, state, 1)
        return 1

    def restored():
        equal(pw.checkpoint.restore(tmp_path, state, step=1), state)
        return 1

    pw.checkpoint.save(tmp_path, state, 1, max_to_keep=1)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        results = [
            pool.submit(read)
            for read in (*[lambda: pw.checkpoint.latest(tmp_path)] * 2, save_again, restored)
        ]
        assert not concurrent.futures.wait(results, 0.3).done
        go.set()
        assert [each.result(30) for each in results] == [1, 1, 1, 1]


def test_checkpoint_on_hosts_is_complete_before_disconnect(devices, tmp_path, monkeypatch):
    _, state = on_islands(devices, 0, 1)
    write = HostSave.write
    monkeypatch.setattr(HostSave, "write", lambda *args: time.sleep(0.3) or write(*args))
    saving = pw.checkpoint.save(tmp_path, state["rows"], 1)
    pw.disconnect()
    saving.wait()
    restored = pw.checkpoint.restore(tmp_path, [np.zeros_like(X)] * 2)
    equal(restored, [X, 2 * X])


SAVER = """
import importlib, os, signal, sys
import numpy as np
import pathways as pw

folder, module, name = sys.argv[1:]
*path, name = name.split(".")
where = importlib.import_module(module)
for each in path:
    where = getattr(where, each)
function, saved = getattr(where, name), 0

def killed(*args, **kwargs):
    if saved:
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*args, **kwargs)

setattr(where, name, killed)
pw.connect(hosts=2)
devices = pw.make_virtual_device_set()
slices = [devices.add_slice(1, "x") for _ in range(2)]
f, g = (pw.jit(lambda x: x + 1, devices=s) for s in slices)
step = pw.program(lambda x, y: (f(x), g(y)))
state = step(*(np.zeros((1024, 512), np.float32) for _ in range(2)))
pw.checkpoint.save(folder, state, 1).wait()
saved = 1
pw.checkpoint.save(folder, step(*state), 2).wait()
"""


@pytest.mark.not_attached
@pytest.mark.parametrize(
    ("module", "name"),
    [
        # Hosts have copied, hosts have written, their files are merged, the folder gets its name.
        ("pathways.runtime.data.host_files", "HostSave.write"),
        ("pathways.runtime.data.host_files", "HostSave._check_seen"),
        ("orbax.checkpoint._src.serialization.ocdbt_utils", "merge_ocdbt_per_process_files"),
        ("orbax.checkpoint._src.path.async_path", "rename"),
    ],
)
def test_checkpoint_on_hosts_survives_a_killed_controller(tmp_path, module, name):
    """The controller is killed just before a step of the second save, which is saved again afterwards."""
    (tmp_path / "saver.py").write_text(SAVER)
    folder = tmp_path / "run"
    done = preloaded.run(tmp_path / "saver.py", folder, module, name)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert pw.checkpoint.latest(folder) == 1
    zeros = (np.zeros((1024, 512), np.float32),) * 2
    restored = pw.checkpoint.restore(folder, zeros)
    equal(restored, (zeros[0] + 1,) * 2)
    pw.checkpoint.save(folder, jax.tree.map(lambda x: x + 1, restored), 2).wait()
    equal(pw.checkpoint.restore(folder, zeros, step=2), (zeros[0] + 2,) * 2)
