"""Training with `pw.resilient` in one process: whatever is lost, the bits are those of an undisturbed run."""

from __future__ import annotations

import collections
import dataclasses
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import host_functions
import jax
import jax.numpy as jnp
import models
import numpy as np
import optax
import preloaded
import pytest
from check import assert_equal
from models import layer, squared_error

import pathways as pw
from pathways.compiler.resilience import resilient as resilient_module
from pathways.compiler.resilience.settings import checked_interval
from pathways.runtime.resilience.events import WorkersLeaving

WIDTH, ROWS, STEPS = 8, 16, 24


@pytest.fixture(autouse=True)
def islands() -> Iterator[None]:
    """Returns four islands of two devices."""
    pw.disconnect()
    pw.connect(cpu_devices=8, islands=4)
    yield
    pw.disconnect()


def batches(count: int = STEPS) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [
        (rng.normal(size=(ROWS, WIDTH)).astype(np.float32), rng.normal(size=(ROWS, WIDTH)).astype(np.float32))
        for _ in range(count)
    ]


def weights(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(WIDTH, WIDTH)) / 4).astype(np.float32) for _ in range(count)]


def trainer(layers: Sequence[Any], optimizer: optax.GradientTransformation, **options: Any) -> pw.Program:
    """Returns a program that trains layers in eight microbatches."""
    gradients = pw.accumulate(jax.value_and_grad(squared_error(layers)), 8)

    def train(state: Any, batch: Any) -> tuple[Any, Any]:
        value, grads = gradients(state["params"], batch)
        updates, moments = optimizer.update(grads, state["moments"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "moments": moments}, {"loss": value}

    return pw.program(train, donate_argnums=0, **options)


def state_of(optimizer: optax.GradientTransformation, layers: int) -> Any:
    params = weights(layers)
    return {"params": params, "moments": jax.device_get(optimizer.init(params))}


def replicas(schedule: str, **options: Any) -> tuple[Any, Any]:
    devices = pw.make_virtual_device_set(replicas=4)
    slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]
    adam = optax.adam(1e-2)
    step = trainer([pw.jit(layer, devices=one) for one in slices], adam, schedule=schedule, **options)
    return step, state_of(adam, 2)


def stages(schedule: str, order: Sequence[int]) -> tuple[Any, Any]:
    """Places layers of a pipeline over two islands: no other device has the same bytes."""
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((2,), ("x",), island=f"island{n}") for n in (0, 2)]
    layers = [pw.jit(layer, devices=slices[place], stage=n) for n, place in enumerate(order)]
    momentum = optax.sgd(0.05, momentum=0.9)
    return trainer(layers, momentum, schedule=schedule), state_of(momentum, len(order))


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "replicas": lambda: replicas("1f1b"),
    "zero1": lambda: replicas("1f1b", zero1=True),
    "zero1 and zero bubble": lambda: replicas("zb-h1", zero1=True),
    "interleaved": lambda: stages("interleaved-1f1b", (0, 1, 0, 1)),
    "zero bubble": lambda: stages("zb-v", (0, 1, 1, 0)),
}


def undisturbed(step: Callable[..., Any], state: Any, source: Sequence[Any]) -> tuple[list[Any], Any]:
    metrics = []
    for batch in source:
        state, values = step(state, batch)
        metrics.append(jax.device_get(values))
    return metrics, state


class Saboteur:
    """Saboteur that loses islands at random calls of `act`.

    Args:
      seed: chooses when and which.
      losses: how many.
      calls: the number of calls among which they are.
    """

    def __init__(self, seed: int, losses: int, calls: int) -> None:
        self._chance = random.Random(seed)
        self._when = collections.Counter(self._chance.randrange(calls) for _ in range(losses))
        self._calls = 0
        self.run: Any = None
        # Buddies keep all copies; two losses of memory at once could lose a state.
        self.has_memory = True

    def act(self) -> None:
        self._calls += 1
        for _ in range(self._when[self._calls - 1]):
            memory = self.has_memory and self.run.protected
            self.run.lose(f"island{self._chance.randrange(4)}", memory=memory)


class SabotagedSequence(collections.abc.Sequence):
    """Source whose reader, a thread of its own, loses islands, too."""

    def __init__(self, items: Sequence[Any], saboteur: Saboteur) -> None:
        self._items, self._saboteur = items, saboteur

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: Any) -> Any:
        self._saboteur.has_memory = False
        if self._saboteur.run is not None:
            self._saboteur.act()
        return self._items[number]


def train(run: Any, count: int, saboteur: Saboteur | None = None) -> list[Any]:
    """Returns the metrics of all steps, and checks their numbers."""
    found = []
    for n, metrics in run.steps(count):
        assert n == len(found)
        found.append(metrics)
        if saboteur is not None:
            saboteur.act()
    return found


@pytest.mark.parametrize("name", MODELS)
def test_resilient_training_gives_the_bits_of_an_undisturbed_run(name: str) -> None:
    step, state = MODELS[name]()
    source = batches()
    step(*jax.tree.map(np.copy, (state, source[0])))
    expected = undisturbed(step, state, source)
    for seed in range(3):
        saboteur = Saboteur(seed, losses=5, calls=2 * STEPS)

        def sabotaged(state: Any, batch: Any, saboteur: Saboteur = saboteur) -> Any:
            result = step(state, batch)
            saboteur.act()
            return result

        feeds = (step, "batch")
        with pw.resilient(sabotaged, state, source, feeds=feeds, every=3) as run:
            saboteur.run = run
            metrics = train(run, STEPS, saboteur)
        assert_equal((metrics, run.state), expected)


def test_resilient_training_survives_losses_while_the_source_is_read() -> None:
    step, state = MODELS["replicas"]()
    source = batches()
    expected = undisturbed(step, state, source)
    saboteur = Saboteur(7, losses=6, calls=STEPS)
    with pw.resilient(step, state, SabotagedSequence(source, saboteur), every=2) as run:
        saboteur.run = run
        metrics = train(run, STEPS)
    assert_equal((metrics, run.state), expected)


def test_resilient_training_survives_losses_by_another_thread() -> None:
    step, state = MODELS["replicas"]()
    source = batches()
    expected = undisturbed(step, state, source)
    with pw.resilient(step, state, source, every=2) as run:
        is_done = threading.Event()

        def lose() -> None:
            for n in range(12):
                is_done.wait(0.02)
                if not is_done.is_set():
                    run.lose(f"island{n % 4}")

        thread = threading.Thread(target=lose)
        thread.start()
        metrics = train(run, STEPS)
        is_done.set()
        thread.join()
    assert_equal((metrics, run.state), expected)


class Counted:
    """Step of two programs, with a key and a count in its state."""

    def __init__(self) -> None:
        devices = pw.make_virtual_device_set()
        self.slices = [devices.add_slice((1,), ("x",), island=f"island{n}") for n in range(2)]
        layers = [pw.jit(layer, devices=one) for one in self.slices]
        self.gradients = pw.program(jax.value_and_grad(squared_error(layers)))
        self.update = pw.program(
            lambda params, grads, rate: [p - rate * g for p, g in zip(params, grads, strict=True)]
        )
        self.calls: list[int] = []

    def state(self) -> Any:
        return {
            "params": weights(2),
            "key": jax.random.key(3),
            "rate": jnp.asarray(0.1),
            "count": 0,
            "name": "run",
        }

    def __call__(self, state: Any, batch: Any) -> tuple[Any, Any]:
        self.calls.append(state["count"])
        key, new = jax.random.split(state["key"])
        rate = state["rate"] * (1 + jax.random.uniform(new) / 10)
        value, grads = self.gradients(state["params"], batch)
        params = self.update(state["params"], grads, rate)
        new_state = {**state, "params": params, "key": key, "count": state["count"] + 1}
        return new_state, {"loss": value, "count": state["count"]}


def test_resilient_step_may_call_several_programs() -> None:
    step, source = Counted(), batches(10)
    expected = undisturbed(step, step.state(), source)
    step.calls.clear()
    with pw.resilient(step, step.state(), source, feeds=(step.gradients, "batch"), every=4) as run:
        metrics = []
        for n, values in run.steps(10):
            metrics.append(values)
            if n == 6:
                run.lose("island1", memory=True)
    assert [values["count"] for values in metrics] == [*range(10)]
    # Steps are run again; the body of the loop is not.
    assert len(step.calls) > 10
    keys = [state.pop("key") for state in (run.state, expected[1])]
    assert_equal(*(jax.random.key_data(key) for key in keys))
    assert run.state.pop("name") == expected[1].pop("name") == "run"
    assert_equal((metrics, run.state), expected)


def small() -> tuple[pw.Program, Any, list[Any]]:
    """Returns a program without microbatches, whose state is on two islands."""
    devices = pw.make_virtual_device_set()
    layers = [pw.jit(layer, devices=devices.add_slice((1,), ("x",), island=f"island{n}")) for n in range(2)]
    loss = squared_error(layers)

    def train_step(state: Any, batch: Any) -> tuple[Any, Any]:
        value, grads = jax.value_and_grad(loss)(state, batch)
        return [w - 0.1 * g for w, g in zip(state, grads, strict=True)], value

    return pw.program(train_step, donate_argnums=0), weights(2), batches(12)


@pytest.mark.quick
def test_resilient_training_is_protected_but_for_the_time_of_a_recovery(caplog) -> None:
    step, state, source = small()
    expected = undisturbed(step, state, source)
    caplog.set_level("INFO", "pathways")
    with pw.resilient(step, state, source, every=3) as run:
        assert run.protected
        metrics = []
        for n, value in run.steps(12):
            metrics.append(value)
            if n in (4, 8):
                run.lose("island1", memory=n == 8)
            assert run.protected
    assert not run.protected
    assert_equal((metrics, run.state), expected)
    assert [record.message for record in caplog.records if "version" in record.message] == [
        "pw.resilient: island1 is lost (run.lose); resuming from version 3 in memory, 4 steps are run again",
        "pw.resilient: island1 is lost (run.lose); resuming from version 9 in memory, 2 steps are run again",
    ]


def test_resilient_steps_go_on_after_a_break_and_end_with_the_source() -> None:
    step, state, source = small()
    expected = undisturbed(step, state, source)
    found = []
    with pw.resilient(step, state, source, every=3) as run:
        for n, value in run.steps(100):
            found.append(value)
            if n == 2:
                break
        for n, value in run.steps(7):
            assert n == len(found)
            found.append(value)
        run.lose("island0", memory=True)
        for n, value in run.steps(100):
            assert n == len(found)
            found.append(value)
    assert_equal((found, run.state), expected)


def test_resilient_status_shows_the_places_of_versions() -> None:
    step, state, source = small()
    with pw.resilient(step, state, source, every=3) as run:
        list(run.steps(6))
        run.lose("island1")
        list(run.steps(7))
        status = run.status()
        assert (status.step, status.version, status.losses, status.disk) == (7, 6, 1, None)
        # A layer of 256 bytes is on either island, and the next island has its copy.
        assert status.islands == {"island0": 256, "island1": 512, "island2": 256, "island3": 0}
        assert "protected; losses survived: 1\n  memory: island0 256 B, island1 512 B" in str(status)
        (shown,) = pw.status().training
        assert dataclasses.replace(shown, age=status.age) == status
        assert "training, step 7: version 6" in str(pw.status())
    assert not pw.status().training


def test_resilient_status_shows_a_run_while_an_island_is_lost() -> None:
    step, state, source = small()
    with pw.resilient(step, state, source, every=3) as run:
        for n, _ in run.steps(8):
            if n == 4:
                run.lose("island1", returns=False)
                assert "training, step 7: version" in str(pw.status())
                run.return_island("island1")
                assert len(run.state) == 2
                assert "losses survived: 1" in str(pw.status())


def test_resilient_runs_no_step_again_when_an_island_leaves(caplog) -> None:
    step, state, source = small()
    expected = undisturbed(step, state, source)
    caplog.set_level("INFO", "pathways")
    with pw.resilient(step, state, source, every=100) as run:
        metrics = []
        for n, value in run.steps(12):
            metrics.append(value)
            if n == 4:
                run._store._notify(WorkersLeaving(1))
                # Requested before the metrics of the steps in flight were read.
                assert run.step == 7
                assert_equal(jax.device_get(run.state), jax.device_get(run.state))
    assert_equal((metrics, run.state), expected)
    moved = [record.message for record in caplog.records if "resuming" in record.message]
    assert len(moved) == 1
    assert moved[0].endswith(", 0 steps are run again")


def test_resilient_state_after_a_loss_is_the_state_again() -> None:
    step, state, source = small()
    with pw.resilient(step, state, source, every=3) as run:
        list(run.steps(6))
        before = jax.device_get(run.state)
        run.lose("island0")
        assert run.step == 6
        assert_equal(jax.device_get(run.state), before)
        assert run.step == 6


def test_resilient_state_is_that_of_the_last_step_after_a_loss() -> None:
    """Also where it was after the last version."""
    step, state, source = small()
    expected = undisturbed(step, state, source)
    with pw.resilient(step, state, source, every=5) as run:
        assert len([*run.steps(12)]) == 12
        run.lose("island0")
        assert_equal(jax.device_get(run.state), expected[1])
        assert run.step == 12
        run.lose("island1")
    assert_equal(jax.device_get(run.state), expected[1])


def test_resilient_names_what_is_left_nowhere() -> None:
    step, state, source = small()
    with (  # noqa: PT012 # the error comes from the loop
        pytest.raises(
            pw.HostLostError, match=r"of version 3, no host has state\[0\] any more; pass directory="
        ),
        pw.resilient(step, state, source, every=3) as run,
    ):
        for n, _ in run.steps(12):
            if n == 4:
                for island in range(4):
                    run.lose(f"island{island}", memory=True)


def test_resilient_protects_nothing_on_one_island() -> None:
    pw.disconnect()
    pw.connect(cpu_devices=8, islands=1)
    devices = pw.make_virtual_device_set()
    one = pw.jit(layer, devices=devices.add_slice((1,), ("x",)))
    step = pw.program(lambda state, batch: (state, one(state, batch).sum()))
    with pw.resilient(step, weights(1)[0], [b[0] for b in batches(3)], every=1) as run:
        list(run.steps(2))
        assert not run.protected


# Disk.


def orbax() -> None:
    pytest.importorskip("orbax.checkpoint.experimental.v1", reason="orbax-checkpoint is not installed")


def test_resilient_training_goes_on_from_disk_after_ctrl_c(tmp_path: Path) -> None:
    orbax()
    step, state, source = small()
    expected = undisturbed(step, state, source)

    def resilient() -> Any:
        return pw.resilient(step, state, source, every=3, directory=tmp_path / "run", disk_every=2)

    first = []
    with pytest.raises(KeyboardInterrupt) as caught, resilient() as run:  # noqa: PT012 # of its body
        for n, value in run.steps(12):
            first.append(value)
            # Of the two versions in memory none is replaced while it is saved, as the first one is.
            run._disk.wait()
            if n == 7:
                raise KeyboardInterrupt
    assert caught.value.__notes__ == [
        f"pw.resilient: stopped after step 8; version 6 is in {tmp_path}/run: the same call resumes from it"
    ]
    with resilient() as run:
        assert run.step == 6
        rest = dict(run.steps(12))
    assert [*rest] == [*range(6, 12)]
    assert_equal(([*first[:6], *rest.values()], run.state), expected)
    # All steps are done.
    with resilient() as run:
        assert list(run.steps(12)) == []
        assert_equal(run.state, expected[1])


def test_resilient_training_goes_on_from_disk_when_memory_is_lost(tmp_path: Path) -> None:
    orbax()
    step, state, source = small()
    expected = undisturbed(step, state, source)
    with pw.resilient(step, state, source, every=2, directory=tmp_path, disk_every=1) as run:
        metrics = []
        for n, value in run.steps(12):
            metrics.append(value)
            if n == 7:
                run._disk.wait()
                for island in range(4):
                    run.lose(f"island{island}", memory=True)
    assert_equal((metrics, run.state), expected)


def test_resilient_training_refuses_the_folder_of_another_state(tmp_path: Path) -> None:
    orbax()
    step, state, source = small()
    pw.checkpoint.save(tmp_path, {"other": state[0]}, 7).wait()
    with (
        pytest.raises(ValueError, match="has no leaf 0, only other"),
        pw.resilient(step, state, source, directory=tmp_path),
    ):
        pass


class Numbers(Iterator[Any]):
    """Iterator over endless batches that can be rewound, as Grain's can."""

    def __init__(self) -> None:
        self.number = 0

    def __next__(self) -> Any:
        self.number += 1
        return batches(1)[0][0] * self.number, batches(1)[0][1]

    def get_state(self) -> dict[str, int]:
        return {"number": self.number}

    def set_state(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def grain_batches() -> Any:
    grain = pytest.importorskip("grain", reason="grain is not installed")
    one = batches(1)[0]
    return grain.MapDataset.range(100).seed(4).shuffle().map(lambda n: (one[0] * n, one[1])).to_iter_dataset()


@pytest.mark.parametrize("make", [Numbers, grain_batches], ids=["iterator", "grain"])
def test_resilient_rewinds_sources_with_positions(make: Callable[[], Any]) -> None:
    step, state, _ = small()
    endless = iter(make())
    expected = undisturbed(step, state, [next(endless) for _ in range(9)])
    with pw.resilient(step, state, make(), every=2) as run:
        metrics = []
        for n, value in run.steps(9):
            metrics.append(value)
            if n in (1, 6):
                run.lose("island0", memory=True)
    assert_equal((metrics, run.state), expected)


@pytest.mark.parametrize(
    ("name", "options"), [("numbered", {"rows": 4}), ("shard_of", {"shards": 2})], ids=["rows", "shards"]
)
def test_resilient_rewinds_sources_on_hosts(name: str, options: dict[str, int]) -> None:
    devices = pw.make_virtual_device_set()
    layers = [
        pw.jit(lambda w, x: jnp.sin(w * x), devices=devices.add_slice((1,), ("x",), island=f"island{n}"))
        for n in range(2)
    ]

    @pw.program(donate_argnums=0)
    def train_step(state: Any, batch: Any) -> Any:
        h = layers[1](state[1], layers[0](state[0], batch["x"]))
        value = h.mean() + batch["y"][0].sum() + batch["y"][1]["z"].sum()
        return [w + 0.1 * value for w in state], value

    rows = {"x": np.zeros((4, 4), np.float32), "y": (np.zeros(4, np.int32), {"z": np.zeros(4, np.int32)})}
    state = [np.float32(0.5), np.float32(2.0)]
    step = train_step.lower(state, rows).compile()
    source = pw.on_hosts(getattr(host_functions, name))
    with pw.prefetch(source, step, "batch", count=9, **options) as batches:
        expected = undisturbed(step, state, list(batches))
    with pw.resilient(step, state, source, every=2, **options) as run:
        metrics = []
        for n, value in run.steps(9):
            metrics.append(value)
            if n in (1, 6):
                run.lose("island0", memory=True)
    assert_equal((metrics, run.state), expected)


KILLED = """
import os, signal, sys
import numpy as np
import pathways as pw
from models import layer, squared_error
import jax

pw.connect(cpu_devices=4, islands=2)
devices = pw.make_virtual_device_set()
layers = [pw.jit(layer, devices=devices.add_slice((1,), ("x",), island=f"island{n}")) for n in range(2)]
loss = squared_error(layers)

@pw.program(donate_argnums=0)
def train_step(state, batch):
    value, grads = jax.value_and_grad(loss)(state, batch)
    return [w - 0.1 * g for w, g in zip(state, grads)], value

rng = np.random.default_rng(0)
source = [tuple(rng.normal(size=(2, 8, 8)).astype(np.float32)) for _ in range(60)]
state = [rng.normal(size=(8, 8)).astype(np.float32) / 3 for _ in range(2)]
disk = None if sys.argv[1] == "none" else sys.argv[1]
with pw.resilient(train_step, state, source, every=3, directory=disk, disk_every=1) as run:
    print("from", run.step, flush=True)
    for n, value in run.steps(60):
        print(n, value.tobytes().hex(), flush=True)
print("state", b"".join(np.asarray(w).tobytes() for w in run.state).hex(), flush=True)
"""


@pytest.mark.process
def test_resilient_training_goes_on_after_kills_of_the_process(tmp_path: Path) -> None:
    """Each run is killed at some step; the last one ends with the bits of a run that nobody kills."""
    orbax()
    program = tmp_path / "train.py"
    program.write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": str(Path(models.__file__).parent)}
    calm = preloaded.run(program, "none", env=environment)
    assert calm.returncode == 0, calm.stderr
    expected = calm.stdout.splitlines()[1:]
    begun = []
    for steps in (8, 20, None):
        command = [sys.executable, str(program), str(tmp_path / "run")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        assert process.stdout is not None
        first = int(process.stdout.readline().split()[1])
        begun.append(first)
        lines = [process.stdout.readline().rstrip() for _ in range(steps or 60 - first)]
        assert lines == expected[first : first + len(lines)]
        if steps is not None:
            process.kill()
            process.wait()
            process.stdout.close()
            continue
        assert process.stdout.readline().rstrip() == expected[-1]
        assert process.wait() == 0
        process.stdout.close()
    assert begun[0] == 0
    assert begun[1] <= begun[2] < 60


# Errors.


def test_resilient_rejects_sources_that_cannot_be_rewound() -> None:
    step, state, source = small()
    with (
        pytest.raises(
            TypeError, match=r"cannot be rewound: generator has no get_state\(\) and no set_state\(\)"
        ),
        pw.resilient(step, state, (batch for batch in source)),
    ):
        pass


def test_resilient_rejects_positions_that_no_file_can_have(tmp_path: Path) -> None:
    orbax()

    class Odd(Numbers):
        def get_state(self) -> Any:
            return object()

    step, state, _ = small()
    with (
        pytest.raises(TypeError, match="position of the source cannot be saved to disk"),
        pw.resilient(step, state, Odd(), directory=tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"every": 0}, ValueError, "every=0: expected at least 1"),
        ({"every": "soon"}, ValueError, "expected a number of steps, or a time like '10s'"),
        ({"every": 1.5}, TypeError, "every=1.5: expected a whole number"),
        ({"disk_every": 0}, ValueError, "disk_every=0: expected at least 1"),
        ({"patience": -1}, ValueError, "patience=-1: expected a number of seconds"),
        ({"feeds": "batch"}, TypeError, "feeds must be a program and the name of its argument"),
        ({"min_replicas": 0}, ValueError, "min_replicas=0: expected at least 1"),
    ],
)
def test_resilient_rejects_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    step, state, source = small()
    with pytest.raises(error, match=message):
        pw.resilient(step, state, source, **options)


def test_resilient_wants_to_know_which_program_reads_the_batches() -> None:
    step, state, source = small()
    with pytest.raises(TypeError, match=r"feeds=\(step, 'batch'\)"):
        pw.resilient(lambda state, batch: step(state, batch), state, source)
    step(*jax.tree.map(np.copy, (state, source[0])))
    with pytest.raises(ValueError, match="no argument 'rows', only state, batch"):
        pw.resilient(step, state, source, feeds=(step, "rows"))


def test_resilient_names_the_numbers_of_replicas_that_are_allowed() -> None:
    step, state = replicas("gpipe")
    compiled = step.lower(state, batches(1)[0]).compile()
    message = "4 replicas of 8 microbatches, which divide among 1, 2 of them"
    with pytest.raises(ValueError, match=message):
        pw.resilient(compiled, state, batches(), min_replicas=3)
    pw.resilient(compiled, state, batches(), min_replicas=2)
    step, state, source = small()
    compiled = step.lower(state, source[0]).compile()
    with pytest.raises(ValueError, match="min_replicas=1: the step has no replicas"):
        pw.resilient(compiled, state, source, min_replicas=1)


def test_resilient_raises_what_a_step_raises() -> None:
    step, state, source = small()

    def fails(state: Any, batch: Any) -> Any:
        raise ZeroDivisionError("here")

    with (
        pytest.raises(ZeroDivisionError, match="here"),
        pw.resilient(fails, state, source, feeds=(step, "batch")) as run,
    ):
        list(run.steps(3))
    with (
        pytest.raises(TypeError, match="must return a pair of the new state and metrics"),
        pw.resilient(lambda state, batch: state, state, source, feeds=(step, "batch")) as run,
    ):
        list(run.steps(3))


def test_resilient_is_a_context_manager() -> None:
    step, state, source = small()
    run = pw.resilient(step, state, source)
    with pytest.raises(RuntimeError, match="use it as"):
        next(run.steps(3))
    with run, pytest.raises(ValueError, match="there is no island 'island9', only island0, island1"):
        run.lose("island9")
    with pytest.raises(RuntimeError, match="a run begins once"), run:
        pass


def test_resilient_says_that_a_compiled_program_is_bound_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    step, state, source = small()
    compiled = step.lower(state, source[0]).compile()
    monkeypatch.setattr(resilient_module, "controller", object)
    with pytest.raises(TypeError, match="a compiled program is bound to workers, which may be lost"):
        pw.resilient(compiled, state, source)


def test_resilient_reads_times() -> None:
    assert checked_interval("10s").seconds == checked_interval("10 s").seconds == 10.0
    assert checked_interval("0.5s").seconds == 0.5
    assert checked_interval(3).steps == 3


def test_resilient_takes_versions_by_time() -> None:
    step, state, source = small()
    expected = undisturbed(step, state, source)
    with pw.resilient(step, state, source, every="0.01s") as run:
        metrics = train(run, 12, None)
    assert_equal((metrics, run.state), expected)
