"""Checkpoints are restored to the same bits, on any slices, also after a process was killed."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import preloaded
import pytest
from check import assert_equal
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from models import apply, place_on

import pathways as pw

ocp = pytest.importorskip("orbax.checkpoint.experimental.v1", reason="orbax-checkpoint is not installed")

LAYERS, WIDTH = 4, 16
OPTIMIZER = optax.adamw(1e-2)


def make_programs(stages: int, shape: int) -> tuple[pw.Program, pw.Program]:
    """Returns programs that initialize and train a model of four layers over `stages` slices."""
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((shape,), ("x",)) for _ in range(stages)]
    places = [slices[n * stages // LAYERS] for n in range(LAYERS)]

    def born(key):
        return jax.random.normal(key, (WIDTH, WIDTH)) / 4

    makers = place_on(places, born, out_shardings=P("x"))
    layers = place_on(places, in_shardings=(P("x"), None))

    @pw.program
    def init(key):
        keys = jax.random.split(key, LAYERS + 1)
        params = [maker(k) for maker, k in zip(makers, keys[1:], strict=True)]
        return {"params": params, "moments": OPTIMIZER.init(params), "key": keys[0]}

    @pw.program(donate_argnums=0)
    def step(state, x):
        key, noise = jax.random.split(state["key"])

        def loss(params):
            h = x + 0.1 * jax.random.normal(noise, x.shape)
            return (apply(layers, params, h) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, moments = OPTIMIZER.update(grads, state["moments"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "moments": moments, "key": key}, value

    return init, step


X = np.linspace(-1, 1, 8 * WIDTH, dtype=np.float32).reshape(8, WIDTH)
TWO_STAGES = (2, 2)


@pytest.fixture(scope="module")
def programs() -> tuple[pw.Program, pw.Program]:
    return make_programs(*TWO_STAGES)


@pytest.mark.feature("training", "values")
def test_checkpoint_continues_a_run_with_the_same_bits(programs, tmp_path: Path) -> None:
    init, step = programs
    state = init(jax.random.key(0))
    losses = []
    for n in range(6):
        if n == 3:
            pw.checkpoint.save(tmp_path, state, n)  # The next step donates the arrays at once.
        state, loss = step(state, X)
        losses.append(float(loss))

    like = init.lower(jax.random.key(0)).compile().out_info
    again = pw.checkpoint.restore(tmp_path, like)
    assert jax.tree.map(lambda a: a.sharding, again) == jax.tree.map(lambda a: a.sharding, like)
    rest = []
    for _ in range(3):
        again, loss = step(again, X)
        rest.append(float(loss))
    assert rest == losses[3:]
    assert_equal(again, state)


def test_checkpoint_is_restored_to_other_meshes_and_stages(programs, tmp_path: Path) -> None:
    state = programs[0](jax.random.key(0))
    pw.checkpoint.save(tmp_path, state, 1)
    for stages, shape in ((4, 1), (1, 4)):
        init, _ = make_programs(stages, shape)
        like = init.lower(jax.random.key(0)).compile().out_info
        moved = pw.checkpoint.restore(tmp_path, like)
        first, last = moved["params"][0].sharding, moved["params"][-1].sharding
        assert (first.num_devices, first == last) == (shape, stages == 1)
        assert_equal(moved, state)


def test_checkpoint_keeps_leaves_of_all_kinds(tmp_path: Path) -> None:
    state = {
        "bf16": jnp.arange(4, dtype=jnp.bfloat16),
        "keys": jax.random.split(jax.random.key(1), 3),
        "weak": jnp.asarray(2.0) * 1,
        "numpy": np.arange(3, dtype=np.int8),
        "of numpy": [np.float32(3), np.bool_(True)],
        "of Python": (7, 2.5, True, 1j, "adamw", None),
    }
    pw.checkpoint.save(tmp_path, state, 0)
    back = pw.checkpoint.restore(tmp_path, state)
    assert jax.tree.map(type, back) == jax.tree.map(type, state)
    assert back["of Python"] == state["of Python"]
    arrays = ("bf16", "keys", "weak", "numpy")
    assert_equal({k: back[k] for k in arrays}, {k: state[k] for k in arrays})
    without = {
        **state,
        "keys": jax.ShapeDtypeStruct((3,), state["keys"].dtype),
        "bf16": np.zeros(4, jnp.bfloat16),
    }
    assert isinstance(pw.checkpoint.restore(tmp_path, without)["bf16"], np.ndarray)


@pytest.mark.parametrize("x64", [True, False], ids=["inside", "outside"])
def test_checkpoint_keeps_64_bits_of_a_context(tmp_path: Path, x64: bool) -> None:
    slice_ = pw.make_virtual_device_set().add_slice((2,), ("x",))
    thirds = pw.program(pw.jit(lambda v: v / 3, devices=slice_, out_shardings=P("x")))
    with jax.enable_x64(True):
        compiled = thirds.lower(jnp.arange(4.0)).compile()
        array = compiled(jnp.arange(4.0))
        state = {kind: array.astype(kind) for kind in ("float64", "int64", "uint64", "complex128", "float32")}
        state |= {"weak": jnp.asarray(2.0) / 3, "keys": jax.random.split(jax.random.key(1), 3)}
        pw.checkpoint.save(tmp_path / "state", state, 0)
        pw.checkpoint.save(tmp_path / "argument", array, 0)
    assert array.dtype == "float64"
    with jax.enable_x64(x64):
        back = pw.checkpoint.restore(tmp_path / "state", state)
        assert_equal(back, state)
        assert {k: a.sharding for k, a in back.items()} == {k: a.sharding for k, a in state.items()}
        assert_equal(pw.checkpoint.restore(tmp_path / "argument", compiled.out_info), array)
        wanted = pw.checkpoint.restore(tmp_path / "argument", program=compiled, argument="v")
    assert_equal(wanted, array)


def test_checkpoint_is_exchanged_with_orbax(programs, tmp_path: Path) -> None:
    import orbax.checkpoint as v0

    params = programs[0](jax.random.key(0))["params"]
    pw.checkpoint.save(tmp_path / "ours", {"params": params}, 3).wait()
    mesh = Mesh(jax.devices()[:4], ("m",))
    everywhere = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P(None, "m")))
    like = {"params": [everywhere] * LAYERS}
    with ocp.training.Checkpointer(tmp_path / "ours") as checkpointer:
        assert checkpointer.latest.step == 3
        assert_equal(checkpointer.load(3, like)["params"], params)
    with v0.CheckpointManager(tmp_path / "ours") as manager:
        kept = manager.restore(3, args=v0.args.Composite(state=v0.args.StandardRestore(like)))
        assert_equal(kept.state["params"], params)

    theirs = jax.tree.map(lambda a: jax.device_put(np.asarray(a), everywhere.sharding), {"params": params})
    with ocp.training.Checkpointer(tmp_path / "v1") as checkpointer:
        checkpointer.save(8, theirs)
    with v0.CheckpointManager(tmp_path / "v0") as manager:
        manager.save(8, args=v0.args.StandardSave(theirs))
    for folder in ("v1", "v0"):
        assert pw.checkpoint.latest(tmp_path / folder) == 8
        back = pw.checkpoint.restore(tmp_path / folder, {"params": params})["params"]
        assert [a.sharding for a in back] == [a.sharding for a in params]
        assert_equal(back, params)


def test_checkpoint_has_the_position_of_the_input_as_by_grain(programs, tmp_path: Path) -> None:
    grain = pytest.importorskip("grain", reason="grain is not installed")
    init, step = programs
    state = init(jax.random.key(0))
    dataset = grain.MapDataset.range(100).seed(1).shuffle().map(lambda n: X + n).to_iter_dataset()
    loader = grain.DataLoader(
        data_source=range(100),
        sampler=grain.samplers.IndexSampler(num_records=100, shuffle=True, seed=1),
        operations=[],
    )
    for folder, source in ((tmp_path / "dataset", dataset), (tmp_path / "loader", loader)):
        wanted = [np.asarray(batch) for _, batch in zip(range(6), source, strict=False)]
        if source is dataset:
            compiled = step.lower(state, X).compile()
            with pw.prefetch(iter(source), compiled, "x", depth=3) as batches:
                assert [(next(batches) == w).all() for w in wanted[:3]] == [True] * 3
                pw.checkpoint.save(folder, {"n": 1}, 1, data=batches)
        else:
            batches = iter(source)
            assert [next(batches) for _ in range(3)] == wanted[:3]
            pw.checkpoint.save(folder, {"n": 1}, 1, data=batches)
        ours, theirs = iter(source), iter(source)
        pw.checkpoint.restore(folder, {"n": 0}, data=ours)
        ocp.load_checkpointables(folder / "1", {"data": theirs})
        for again in (ours, theirs):
            assert [np.array_equal(next(again), w) for w in wanted[3:]] == [True] * 3


def test_checkpoint_save_keeps_the_last_ones(tmp_path: Path) -> None:
    (tmp_path / "1.removed").mkdir()
    for step in range(1, 6):
        pw.checkpoint.save(tmp_path, {"a": np.arange(step)}, step, max_to_keep=2)
    assert pw.checkpoint.latest(tmp_path) == 5
    assert sorted(file.name for file in tmp_path.iterdir()) == ["4", "5"]
    with pytest.raises(TypeError, match=r"max_to_keep must be a whole number, got 1\.5"):
        pw.checkpoint.save(tmp_path, {"a": 1}, 6, max_to_keep=1.5)
    with pytest.raises(ValueError, match="file:///x: nothing here reads file:// paths"):
        pw.checkpoint.save("file:///x", {"a": 1}, 6)
    with pytest.raises(ValueError, match="max_to_keep must be at least 1, got 0"):
        pw.checkpoint.save(tmp_path, {"a": 1}, 6, max_to_keep=0)


def test_checkpoint_save_refuses_other_leaves(tmp_path: Path) -> None:
    def refused(kind: type[Exception], message: str, state: Any, step: int = 1, **options: Any) -> None:
        with pytest.raises(kind, match=message):
            pw.checkpoint.save(tmp_path, state, step, **options)

    deleted = jnp.ones(3)
    deleted.delete()
    refused(TypeError, r"state\['f'\]\[1\] is a function, not an array", {"f": [1, make_programs]})
    refused(TypeError, r"state\['names'\] has the dtype <U1", {"names": np.array(["a"])})
    refused(ValueError, r"state\['w'\] of shape \(0, 2\) has no elements", {"w": jnp.ones((0, 2))})
    refused(ValueError, r"state\['w'\] has been deleted; it was donated", {"w": deleted})
    refused(ValueError, "more than 64 bits", {"n": 2**64})
    refused(ValueError, "has no leaves", {})
    alike = {"a.b": 1, "a": {"b": 2}}
    refused(ValueError, r"state\['a'\]\['b'\] and state\['a.b'\] would both be saved as 'a.b'; rename", alike)
    with pytest.raises(ValueError, match=r"run\[1\]/1 has brackets, which Orbax takes for a pattern"):
        pw.checkpoint.save(tmp_path / "run[1]", {"n": 1}, 1)
    refused(ValueError, "must not be negative, got -1", {"n": 1}, -1)
    refused(TypeError, "must be a whole number, got 2.7", {"n": 1}, 2.7)
    refused(TypeError, r"list_iterator has no get_state\(\)", {"n": 1}, data=iter([1]))
    assert pw.checkpoint.latest(tmp_path) is None
    pw.checkpoint.save(tmp_path, {"n": 1}, 1)
    refused(FileExistsError, "there is a checkpoint of step 1 already", {"n": 1})


@pytest.mark.feature("training", "error")
def test_checkpoint_restore_refuses_another_structure(tmp_path: Path) -> None:
    state = {"w": jnp.ones((2, 3)), "moments": OPTIMIZER.init({"w": jnp.ones((2, 3))})}
    with pytest.raises(FileNotFoundError, match="there is no checkpoint in"):
        pw.checkpoint.restore(tmp_path, state)
    pw.checkpoint.save(tmp_path, state, 1)
    for like, message in (
        ({**state, "w": jnp.ones((3, 2))}, r"w in .* is float32\[2, 3\], but `like` has float32\[3, 2\]"),
        ({**state, "w": jnp.ones((2, 3), jnp.int32)}, r"w in .* but `like` has int32\[2, 3\]"),
        ({**state, "v": state["w"]}, "has no leaf v, only moments/0/count, moments/0/mu/w"),
        (
            {**state, "w": jnp.ones((2, 3), jnp.bfloat16)},
            "but `like` has bfloat16.*; partial=True converts it",
        ),
        (
            {"w": state["w"]},
            "has the leaf moments/0/count, which `like` does not have; with partial=True only",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            pw.checkpoint.restore(tmp_path, like)
    pw.checkpoint.save(tmp_path / "other", {"x": jnp.ones(2), "n": 5, "f": 1.5, "name": "lion"}, 1)
    wholes = {"x": jnp.ones(2), "n": 0, "f": 0.0, "name": ""}
    for other, message in (
        ({"x": 0}, r"x in .* is float32\[2\], but `like` has the type int"),
        ({"x": ""}, r"x in .* is float32\[2\], but `like` has the type str"),
        ({"n": ""}, "n in .* is the type int, but `like` has the type str"),
        ({"n": False}, r"n in .* is the type int, but `like` has bool\[\]"),
        ({"f": 0}, "f in .* is the type float, but `like` has the type int"),
        ({"name": 0}, "name in .* is the type str, but `like` has the type int"),
        ({"name": jnp.ones(2)}, r"name in .* is the type str, but `like` has float32\[2\]"),
    ):
        with pytest.raises(ValueError, match=message):
            pw.checkpoint.restore(tmp_path / "other", {**wholes, **other})
    assert pw.checkpoint.restore(tmp_path / "other", {**wholes, "n": 0.0})["n"] == 5.0
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 2 in .*, only of 1"):
        pw.checkpoint.restore(tmp_path, state, step=2)
    with pytest.raises(ValueError, match="has no position of an input"):
        pw.checkpoint.restore(tmp_path, state, data=Position())


@pytest.mark.feature("training", "values")
def test_checkpoint_restores_parameters_alone(programs, tmp_path: Path) -> None:
    """For inference, for example: without moments, and in bfloat16."""
    state = {**programs[0](jax.random.key(0)), "pair": (jnp.arange(3), jnp.ones(2)), "n": 5}
    pw.checkpoint.save(tmp_path, state, 1)
    halves = [jax.ShapeDtypeStruct(w.shape, jnp.bfloat16, sharding=w.sharding) for w in state["params"]]
    back = pw.checkpoint.restore(tmp_path, {"params": halves}, partial=True)
    assert_equal(back, {"params": [w.astype(jnp.bfloat16) for w in state["params"]]})
    assert [w.sharding for w in back["params"]] == [w.sharding for w in state["params"]]
    # Of lists the first ones, of named tuples some entries, and leaves of every kind.
    (adam, *_) = state["moments"]
    some = {
        "params": state["params"][:2],
        "moments": (adam._replace(mu=None),),
        "pair": state["pair"][:1],
        "key": state["key"],
        "n": 0,
    }
    back = pw.checkpoint.restore(tmp_path, some, partial=True)
    assert (jax.tree.structure(back), back["n"]) == (jax.tree.structure(some), 5)
    assert_equal({**back, "n": 0}, some)
    assert_equal(pw.checkpoint.restore(tmp_path, state, partial=True), state)


def test_checkpoint_restores_no_other_kind_of_leaf_in_part(tmp_path: Path) -> None:
    pw.checkpoint.save(tmp_path, {"w": jnp.ones(2), "n": jnp.arange(2), "key": jax.random.key(0)}, 1)
    for like, message in (
        ({"v": jnp.ones(2)}, "has no leaf v, only key, n, w"),
        ({"w": jnp.ones(3, jnp.bfloat16)}, r"w in .* is float32\[2\], but `like` has bfloat16\[3](\n|$)"),
        ({"w": jnp.ones(2, int)}, r"w in .* is float32\[2\], but `like` has int32\[2](\n|$)"),
        ({"n": np.ones(2, np.int8)}, r"n in .* is int32\[2\], but `like` has int8\[2](\n|$)"),
        ({"key": jnp.ones(2)}, r"key in .* is uint32\[2\], but `like` has float32\[2](\n|$)"),
    ):
        with pytest.raises(ValueError, match=message):
            pw.checkpoint.restore(tmp_path, like, partial=True)


class Position:
    def get_state(self) -> dict[str, int]:
        return {"n": 0}

    def set_state(self, state: dict[str, int]) -> None:
        raise AssertionError


def test_checkpoint_save_refuses_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(FileExistsError, match="file"):
        pw.checkpoint.save(tmp_path / "file", {"n": 1}, 1)
    with pytest.raises(NotADirectoryError, match="file"):
        pw.checkpoint.save(tmp_path / "file" / "runs", {"n": 1}, 1)
    # No folder can be created there.
    with pytest.raises(OSError, match="/proc/"):
        pw.checkpoint.save("/proc/self/runs", {"n": 1}, 1)
    with pytest.raises(OSError, match="File name too long"):
        pw.checkpoint.save(tmp_path, {"n": 1}, 10**240)


def test_checkpoint_save_refuses_a_folder_without_inodes_at_once(tmp_path, monkeypatch, caplog):
    """Orbax in the background would wait for the folder for minutes, and log the error of each thread."""
    create, full = os.mkdir, "2.orbax-checkpoint-tmp"

    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        if full in os.fspath(path):
            raise OSError(errno.ENOSPC, "No space left on device", os.fspath(path))
        create(path, *args, **kwargs)

    pw.checkpoint.save(tmp_path, {"w": jnp.ones(3)}, 1)
    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(OSError, match=rf"step 2 in {tmp_path}/2 was not saved: .*No space") as error:
        pw.checkpoint.save(tmp_path, {"w": jnp.ones(3)}, 2)
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path / full))
    assert pw.checkpoint.latest(tmp_path) == 1
    # Of the second folder that Orbax creates for a step.
    full = "3.orbax-checkpoint-tmp/state"
    with pytest.raises(OSError, match=r"step 3 .* was not saved: .*No space"):
        pw.checkpoint.save(tmp_path, {"w": jnp.ones(3)}, 3)
    assert caplog.messages == []
    monkeypatch.undo()
    pw.checkpoint.save(tmp_path, {"w": jnp.ones(3)}, 3)
    assert pw.checkpoint.latest(tmp_path) == 3


WITHOUT = """
import sys
sys.modules["orbax"] = None
import pathways as pw
try:
    pw.checkpoint.latest("/tmp")
except ImportError as error:
    print(error)
"""


@pytest.mark.quick
@pytest.mark.process
def test_checkpoint_names_the_package_to_install() -> None:
    done = preloaded.run("-c", WITHOUT)
    assert done.stdout == "pw.checkpoint needs orbax-checkpoint: pip install 'pathways-mlir[checkpoint]'\n"


SAVES = """
import sys
import jax.numpy as jnp
import pathways as pw

path, steps = sys.argv[1], int(sys.argv[2])
for step in range(pw.checkpoint.latest(path) or 0, steps):
    saving = pw.checkpoint.save(path, {"w": jnp.full((256, 1024), float(step + 1)), "n": step + 1}, step + 1)
    print(step + 1, flush=True)
"""


def saved(folder: Path, step: int) -> int:
    """Returns the number in a checkpoint, after checking that the checkpoint is complete."""
    back = pw.checkpoint.restore(folder, {"w": np.zeros((256, 1024), np.float32), "n": 0}, step=step)
    assert (back["w"] == back["n"]).all()
    return back["n"]


@pytest.mark.process
def test_checkpoint_survives_a_killed_process(tmp_path: Path) -> None:
    for _ in range(2):
        command = [sys.executable, "-W", "ignore", "-c", SAVES, str(tmp_path), "100000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            started = int(process.stdout.readline())
            time.sleep(random.uniform(0, 0.3))
            process.kill()
            started = int(([started, *process.stdout.read().split()])[-1])
        # Each save waits for the previous one.
        last = pw.checkpoint.latest(tmp_path)
        assert (last or 0) >= started - 1
        assert last is None or saved(tmp_path, last) == last


@pytest.mark.process
def test_checkpoint_is_saved_before_the_process_exits(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", SAVES, str(tmp_path), "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1\n2\n", "")
    assert saved(tmp_path, 2) == 2


FAILS = """
import atexit, contextlib, resource, signal, sys, threading, time
import numpy as np
import pathways as pw

end, path = sys.argv[1:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # As a full disk.
atexit.register(print, "exit handler")
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
pw.connect(hosts=1) if end == "on hosts" else pw.connect(cpu_devices=1)
one = pw.make_virtual_device_set().add_slice((1,), ("x",))
state = pw.program(pw.jit(lambda x: (x + 1, x + 2), devices=one))(np.ones(1 << 20, np.float32))
saving = pw.checkpoint.save(path, state, 1, compress=False)
if end == "waits":
    with contextlib.suppress(OSError):
        saving.wait()
"""


@pytest.mark.process
@pytest.mark.parametrize("end", ["exits", pytest.param("on hosts", marks=pytest.mark.hosts), "waits"])
def test_checkpoint_that_fails_at_the_end_is_the_exit_status(tmp_path: Path, end: str) -> None:
    """Unless the program has received the error. Exit handlers and threads run to their ends either way."""
    command = [sys.executable, "-W", "error", "-c", FAILS, end, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (int(end != "waits"), "thread\nexit handler\n")
    errors = [line for line in done.stderr.splitlines() if " pjrt_client.cc" not in line]
    if end == "waits":
        assert errors == []
    else:
        assert f"step 1 in {tmp_path}/1 was not saved: " in errors[-1]
        assert "[Errno 27] File too large" in errors[-1]
        assert len(errors) == 1 + (end == "on hosts")


@pytest.mark.process
def test_checkpoint_is_none_of_a_forked_process(tmp_path: Path) -> None:
    """The process calls Pathways and exits without waiting for threads of its parent."""
    pw.checkpoint.save(tmp_path, {"w": np.ones(1 << 22)}, 1)
    with warnings.catch_warnings(action="ignore"):  # JAX warns of its threads.
        child = os.fork()
    if not child:
        signal.alarm(60)
        pw.checkpoint.latest(tmp_path)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert pw.checkpoint.latest(tmp_path) == 1


def test_save_says_nothing_of_what_an_interrupted_one_has_left(tmp_path, caplog):
    (tmp_path / "3.orbax-checkpoint-tmp").mkdir()
    pw.checkpoint.save(tmp_path, {"w": np.ones(3)}, 3).wait()
    assert [file.name for file in tmp_path.iterdir()] == ["3"]
    assert caplog.messages == []
