"""Training that goes on with fewer replicas while islands are lost, and with all when they are back.

Each step is compared, bit for bit, with that of a program for as many replicas.
"""

from __future__ import annotations

import collections
import functools
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from models import layer, squared_error

import pathways as pw
from pathways.compiler import stages
from pathways.compiler.backends import backend
from pathways.compiler.backends.replica_executable import programs_on, run_on_replicas
from pathways.compiler.resilience.layouts.array_layouts import SharedDimensions
from pathways.compiler.resilience.layouts.step_replicas import StepReplicas
from pathways.runtime.clusters import connect as clients
from pathways.runtime.resilience.events import WorkersLeaving

ROWS, MICROBATCHES = 24, 12
LONG = 400
"""Maximum of steps until the event that a test waits for; the test ends before."""


@pytest.fixture(autouse=True)
def islands() -> Iterator[None]:
    """Returns four islands of two devices, and two more devices for the steps to compare with."""
    pw.disconnect()
    pw.connect(cpu_devices=8, islands=4)
    yield
    pw.disconnect()


def batches(count: int = LONG, width: int = 12) -> list[Any]:
    rng = np.random.default_rng(1)
    return [tuple(rng.normal(size=(2, ROWS, width)).astype(np.float32)) for _ in range(count)]


class Trainer:
    """Step on replicas of two slices, as a program.

    Args:
      replicas: the number of replicas.
      width: the size of its layers.
      options: the options of its program.

    Attributes:
      step: the program of a state and a batch.
      state: its initial state.
    """

    def __init__(self, replicas: int = 4, width: int = 12, **options: Any) -> None:
        self.devices = pw.make_virtual_device_set(replicas=replicas)
        adam = optax.adam(1e-2)
        gradients = pw.accumulate(jax.value_and_grad(squared_error(self.place())), MICROBATCHES)

        def train(state: Any, batch: Any) -> tuple[Any, Any]:
            value, grads = gradients(state["params"], batch)
            updates, moments = adam.update(grads, state["moments"], state["params"])
            params = optax.apply_updates(state["params"], updates)
            return {"params": params, "moments": moments}, {"loss": value}

        self.step: Any = pw.program(train, donate_argnums=0, **{"schedule": "1f1b", **options})
        self.feeds = self.step, "batch"
        rng = np.random.default_rng(0)
        params = [(rng.normal(size=(width, width)) / 4).astype(np.float32) for _ in range(2)]
        self.state = {"params": params, "moments": jax.device_get(adam.init(params))}

    def place(self) -> list[Any]:
        """Returns the layers, on slices."""
        return [pw.jit(layer, devices=self.devices.add_slice((1,), ("x",))) for _ in range(2)]


class Sharded(Trainer):
    """Step on replicas of one slice of two devices, which share the columns of its weights."""

    def place(self) -> list[Any]:
        one = self.devices.add_slice((2,), ("x",))
        return [pw.jit(layer, devices=one, in_shardings=(P(None, "x"), P()))] * 2


class TwoPrograms:
    """Step that calls a program for gradients and another one for updates; see `Trainer`."""

    def __init__(self, replicas: int = 4) -> None:
        devices = pw.make_virtual_device_set(replicas=replicas)
        layers = [pw.jit(layer, devices=devices.add_slice((1,), ("x",))) for _ in range(2)]
        loss = jax.value_and_grad(squared_error(layers))
        self.gradients = pw.program(pw.accumulate(loss, MICROBATCHES), schedule="gpipe")
        # Without placed functions: it runs where its arguments are.
        self.update = pw.program(lambda w, grad, rate: w - rate * grad, donate_argnums=0)
        self.feeds = self.gradients, "batch"
        rng = np.random.default_rng(0)
        params = [(rng.normal(size=(12, 12)) / 4).astype(np.float32) for _ in range(2)]
        self.state = {"params": params, "key": jax.random.key(3), "count": 0}

    def step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        value, grads = self.gradients(state["params"], batch)
        key, new = jax.random.split(state["key"])
        rate = 0.1 + float(jax.random.uniform(new)) / 10
        params = [self.update(w, grad, rate) for w, grad in zip(state["params"], grads, strict=True)]
        return {"params": params, "key": key, "count": state["count"] + 1}, {"loss": value}


def on_host(tree: Any) -> Any:
    """Returns a copy of a tree without devices; keys stay as they are."""
    return jax.tree.map(lambda leaf: np.array(leaf) if not is_key(leaf) else leaf, jax.device_get(tree))


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def bits(tree: Any) -> list[bytes]:
    leaves = jax.tree.leaves(on_host(tree))
    return [np.asarray(jax.random.key_data(one) if is_key(one) else one).tobytes() for one in leaves]


class CheckedStep:
    """Step whose calls are compared with those of a program for as many replicas.

    Args:
      create: creates a trainer for some replicas.

    Attributes:
      trainer: the trainer of four replicas, whose step it is.
      run: the run that calls it.
      counts: the number of replicas of each call.
      mistakes: the differences. A run calls a step again that fails while an island is lost.
    """

    def __init__(self, create: Callable[[int], Any]) -> None:
        self.trainer = create(4)
        self.run: Any = None
        self.counts: list[int] = []
        self.mistakes: list[str] = []
        self._create = functools.cache(create)
        # The bits of the states that were computed before each step.
        self._states = collections.defaultdict(list, {0: [bits(self.trainer.state)]})

    def __call__(self, state: Any, batch: Any) -> Any:
        if self.run is None:
            return self.trainer.step(state, batch)
        n, before = self.run.step, on_host(state)
        if bits(before) not in self._states[n]:
            self.mistakes.append(f"the state before step {n} was never computed")
        result = self.trainer.step(state, batch)
        count = len(islands_of(result[1]))
        self.counts.append(count)
        if bits(result) != bits(self.reference(count, batch, before)):
            self.mistakes.append(f"step {n} of {count} replicas has other values")
        self._states[n + 1].append(bits(result[0]))
        return result

    def reference(self, count: int, batch: Any, state: Any = None) -> Any:
        """Returns the results of a step for as many replicas."""
        trainer = self._create(count)
        return trainer.step(trainer.state if state is None else state, on_host(batch))

    def resilient(self, source: Any, **options: Any) -> Any:
        """Returns a run of it."""
        return pw.resilient(self, self.trainer.state, source, feeds=self.trainer.feeds, **options)


def train(run: Any, step: CheckedStep, act: Callable[[int], bool | None]) -> None:
    """Runs steps until `act`, which is called after each of them, returns true."""
    step.run = run
    for n, metrics in run.steps(LONG):
        assert np.isfinite(metrics["loss"])
        if act(n):
            break
    else:
        pytest.fail(f"{LONG} steps were not enough: {step.counts}")
    assert not step.mistakes


def islands_of(tree: Any) -> set[str]:
    """Returns the islands that have some of the arrays on slices."""
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array) and leaf.committed]
    return {f"island{device.id // 2}" for array in arrays for device in array.devices()}


MODELS: dict[str, Callable[[int], Any]] = {
    "replicas": Trainer,
    "zero1": functools.partial(Trainer, zero1=True),
    # Three replicas cannot share 8 rows of a moment, which four do.
    "zero1 that does not divide": functools.partial(Trainer, zero1=True, width=8),
    "zero1 and zero bubble": functools.partial(Trainer, zero1=True, schedule="zb-h1"),
    "zero1 on slices of two devices": functools.partial(Sharded, zero1=True, schedule=None),
    "two programs": TwoPrograms,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lost", ["island0", "island2"])
def test_fewer_replicas_have_the_bits_of_as_many(name: str, lost: str) -> None:
    """Steps run on four replicas, then on three, whichever are left, then on four again."""
    step = CheckedStep(MODELS[name])
    width = 8 if "not divide" in name else 12
    with step.resilient(batches(width=width), every=3, min_replicas=3) as run:

        def act(n: int) -> bool | None:
            if n == 4:
                run.lose(lost, memory=True, returns=False)
            if n == 9:
                assert islands_of(run.state) == {f"island{k}" for k in range(4)} - {lost}
                assert run.status().replicas == 3
                run.return_island(lost)
            return n > 9 and step.counts[-1] == 4 and step.counts[-2] == 4

        train(run, step, act)
        assert islands_of(run.state) == {f"island{k}" for k in range(4)}
    switches = [a for a, b in zip(step.counts, [*step.counts[1:], 0], strict=True) if a != b]
    assert switches == [4, 3, 4]


@pytest.mark.quick
def test_fewer_replicas_take_no_compile(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    caplog.set_level("INFO", "pathways")
    loads = loads_of(monkeypatch)
    step = CheckedStep(functools.partial(Trainer, zero1=True))
    # Compiled before: the first loss may be one of any island.
    for count in (3, 4):
        step.reference(count, batches(1)[0])
    with step.resilient(batches(), every=3, min_replicas=3) as run:
        wait_for_loads(run)
        loads.clear()

        def act(n: int) -> bool | None:
            if n == 4:
                run.lose("island1", returns=False)
            if n == 7:
                run.return_island("island1")
            return n > 7 and step.counts[-1] == 4

        train(run, step, act)
    assert not loads
    switches = [record.message for record in caplog.records if "resuming" in record.message]
    assert [message.partition(", with ")[2] for message in switches] == ["3 of 4 replicas", "4 of 4 replicas"]
    # The island came back without a loss, so no step is run again.
    assert switches[1].endswith("in memory, 0 steps are run again, with 4 of 4 replicas")


def test_fewer_replicas_are_loaded_for_the_next_loss_after_one(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = loads_of(monkeypatch)
    step = CheckedStep(Trainer)
    for count in (2, 3, 4):
        step.reference(count, batches(1)[0])
    with step.resilient(batches(), every=3, min_replicas=2) as run:
        wait_for_loads(run)
        loads.clear()

        def lose_one(n: int) -> bool | None:
            if n == 2:
                run.lose("island1", returns=False)
            # (2, 3), (0, 3) and (0, 2) of three replicas that are left.
            return n > 2 and len(loads) == 3

        def lose_another(n: int) -> bool | None:
            if run.status().losses == 1:
                run.lose("island3", returns=False)
            return step.counts[-1] == 2

        train(run, step, lose_one)
        train(run, step, lose_another)
        assert islands_of(run.state) == {"island0", "island2"}
    assert len(loads) == 3


def test_fewer_replicas_go_on_if_nothing_can_be_loaded_ahead(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Programs that could not be loaded beside the steps are loaded when they are needed."""
    step = CheckedStep(Trainer)
    load = StepReplicas._load

    def fail(replicas: StepReplicas, numbers: Any) -> None:
        if threading.current_thread().name != "MainThread":
            raise MemoryError("no room")
        load(replicas, numbers)

    monkeypatch.setattr(StepReplicas, "_load", fail)
    with step.resilient(batches(), every=2, min_replicas=3) as run:

        def act(n: int) -> bool | None:
            if n == 4:
                run.lose("island2", returns=False)
            return n > 4 and step.counts[-1] == 3

        train(run, step, act)
    assert "the step could not be loaded for replicas 0, 1, 3: MemoryError: no room" in caplog.text


def test_fewer_replicas_go_on_if_another_island_is_lost_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step of three replicas has to be loaded on an island that is lost by then."""
    step = CheckedStep(Trainer)
    run_on = StepReplicas.run_on

    def fail(replicas: StepReplicas, numbers: Any) -> None:
        if numbers == (0, 2, 3):
            run.lose("island2", returns=False)
            raise pw.HostLostError("island2 is lost")
        run_on(replicas, numbers)

    monkeypatch.setattr(StepReplicas, "run_on", fail)
    with step.resilient(batches(), every=2, min_replicas=2) as run:

        def act(n: int) -> bool | None:
            if n == 4:
                run.lose("island1", returns=False)
            return n > 4 and step.counts[-1] == 2

        train(run, step, act)
        assert islands_of(run.state) == {"island0", "island3"}


def wait_for_loads(run: Any) -> None:
    """Waits until nothing is loaded beside the steps."""
    while (thread := run._replicas._thread) is not None:
        thread.join()


def loads_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of the programs that are loaded from now on."""
    loads: list[str] = []
    load = backend.load

    def counted(plan: Any, *args: Any, **kwargs: Any) -> Any:
        loads.append(plan.name)
        return load(plan, *args, **kwargs)

    monkeypatch.setattr(backend, "load", counted)
    return loads


def test_fewer_replicas_when_islands_are_lost_at_once_and_one_by_one() -> None:
    """Buddies are neighbours: the blocks of island1 and island3 are also on island2 and island0."""
    step = CheckedStep(functools.partial(Trainer, zero1=True))
    away = ["island0", "island1", "island3"]
    with step.resilient(batches(), every=2, min_replicas=1) as run:

        def act(n: int) -> bool | None:
            losses, count = run.status().losses, step.counts[-1]
            if losses == 0 and n == 4:
                run.lose("island1", returns=False)
                run.lose("island3", returns=False)
            if losses == 2 and n > 6 and run.protected:
                assert islands_of(run.state) == {"island0", "island2"}
                run.lose("island0", returns=False)
            if away and losses == 3 and count == 1:
                assert islands_of(run.state) == {"island2"}
                while away:
                    run.return_island(away.pop())
            return not away and count == 4

        train(run, step, act)
    assert [a for a, b in zip(step.counts, [*step.counts[1:], 0], strict=True) if a != b][:3] == [4, 2, 1]


@pytest.mark.parametrize("seed", range(4))
def test_fewer_replicas_survive_random_losses(seed: int) -> None:
    chance = random.Random(seed)
    step = CheckedStep(MODELS[chance.choice(("zero1", "replicas", "two programs"))])
    away: list[str] = []
    with step.resilient(batches(), every=chance.choice((1, 3, 5)), min_replicas=2) as run:

        def act(n: int) -> bool | None:
            if n > 60:
                while away:
                    run.return_island(away.pop())
                return step.counts[-1] == 4
            if chance.random() < 0.2:
                island = f"island{chance.randrange(4)}"
                returns = len(away) == 2 or island in away or chance.random() < 0.3
                run.lose(island, memory=run.protected and chance.random() < 0.5, returns=returns)
                away.extend([] if returns else [island])
            elif away and chance.random() < 0.2:
                run.return_island(away.pop(chance.randrange(len(away))))
            return None

        train(run, step, act)
    assert {2, 3, 4} >= set(step.counts) > {4}


def test_fewer_replicas_survive_losses_by_another_thread() -> None:
    step = CheckedStep(functools.partial(Trainer, zero1=True))
    is_over = threading.Event()
    with step.resilient(batches(), every=2, min_replicas=3) as run:

        def lose() -> None:
            for n in range(10):
                run.lose(f"island{n % 4}", returns=False)
                is_over.wait(0.03)
                run.return_island(f"island{n % 4}")
                is_over.wait(0.03)
            is_over.set()

        thread = threading.Thread(target=lose)
        thread.start()
        train(run, step, lambda n: is_over.is_set() and step.counts[-1] == 4)
        thread.join()
    assert 3 in step.counts


def test_fewer_replicas_run_no_step_again_when_an_island_leaves(caplog) -> None:
    caplog.set_level("INFO", "pathways")
    step = CheckedStep(Trainer)
    with step.resilient(batches(), every=100, min_replicas=3) as run:

        def act(n: int) -> bool | None:
            if n == 4:
                run._store._notify(WorkersLeaving(1))
            return n > 8 and step.counts[-1] == 4

        train(run, step, act)
    assert 3 in step.counts
    switches = [record.message for record in caplog.records if "resuming" in record.message]
    assert ["0 steps are run again" in message for message in switches] == [True, True]


def test_fewer_replicas_go_on_from_disk(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint.experimental.v1", reason="orbax-checkpoint is not installed")
    step = CheckedStep(functools.partial(Trainer, zero1=True))
    with step.resilient(batches(), every=2, min_replicas=3, directory=tmp_path, disk_every=1) as run:

        def act(n: int) -> bool | None:
            if n > 2 and run.status().disk and not run.status().losses:
                for island in (3, 0, 1, 2):
                    run.lose(f"island{island}", memory=True, returns=island != 3)
            return n > 6 and step.counts[-1] == 3

        train(run, step, act)
        assert islands_of(run.state) == {"island0", "island1", "island2"}


@pytest.mark.parametrize("is_compiled", [False, True])
def test_fewer_replicas_of_a_step_that_is_a_program(is_compiled: bool) -> None:
    """A program that was not called yet is compiled for the first batch."""
    trainer = Trainer(zero1=True)
    source = batches(60)
    step = trainer.step.lower(trainer.state, source[0]).compile() if is_compiled else trainer.step
    with pw.resilient(step, trainer.state, source, every=2, min_replicas=3) as run:
        for n, _ in run.steps(60):
            if n == 4:
                run.lose("island3", returns=False)
        few = islands_of(run.state)
        assert run.status().replicas == 3
        assert "protected; replicas: 3; losses survived: 1" in str(run.status())
    assert few == {"island0", "island1", "island2"}
    # The programs go on with the replicas that were left, and a new run begins with all.
    state, _ = step(run.state, source[0])
    assert islands_of(state) == few
    with pw.resilient(step, state, source, every=2, min_replicas=3) as run:
        list(run.steps(3))
        assert islands_of(run.state) == {f"island{n}" for n in range(4)}


@pytest.mark.hosts
def test_fewer_replicas_of_programs_on_hosts(shared_workers: None) -> None:
    """A program runs on the hosts of some of its replicas, and its arguments may be elsewhere."""
    pw.disconnect()
    pw.connect(hosts=4, devices_per_host=2)
    trainer, few = Trainer(zero1=True), Trainer(3, zero1=True)
    state, _ = trainer.step(trainer.state, batches(1)[0])
    before = on_host(state)
    expected = bits(few.step(before, batches(1)[0]))
    for program in programs_on([trainer.devices]):
        program.load_for((0, 2, 3))
    for running in ((0, 2, 3), (1, 2, 3)):
        run_on_replicas([trainer.devices], running)
        assert bits(trainer.step(before, batches(1)[0])) == expected
    run_on_replicas([trainer.devices], (0, 1, 3))
    assert bits(trainer.step(state, batches(1)[0])) == expected


def test_fewer_replicas_of_programs_that_are_compiled_later() -> None:
    """A step calls a program on another slice of its device set, which no program had when the run began."""

    def create(replicas: int) -> Trainer:
        trainer = Trainer(replicas)
        first, further = trainer.step, trainer.devices.add_slice((1,), ("x",))
        halved = pw.program(pw.jit(lambda w, x: w + x.mean(0), devices=further), donate_argnums=0)

        def step(state: Any, batch: Any) -> Any:
            own, metrics = first({k: v for k, v in state.items() if k != "mean"}, batch)
            return {**own, "mean": halved(state["mean"], batch[0])}, metrics

        if replicas == 4:
            first(trainer.state, batches(1)[0])
        trainer.state["mean"] = np.zeros(12, np.float32)
        trainer.step = step
        return trainer

    step = CheckedStep(create)
    with step.resilient(batches(), every=2, min_replicas=3) as run:

        def act(n: int) -> bool | None:
            if n == 4:
                run.lose("island1", returns=False)
            if n == 9:
                assert islands_of(run.state) == {"island0", "island2", "island3"}
                run.return_island("island1")
            return n > 9 and step.counts[-1] == 4

        train(run, step, act)
        assert islands_of(run.state["mean"]) == {f"island{n}" for n in range(4)}


def test_fewer_replicas_share_dimensions_that_they_divide() -> None:
    shared = SharedDimensions((1, 2, 3, 4))
    # Of 12 columns, each slice has two shards; 8 rows do not divide by 3.
    assert shared.find("a", (8, 12), (1, 2), 4, 1) == {1: None, 2: 1, 3: 1, 4: 1}
    assert shared.find("b", (8, 12), (1, 2), 4, 0) == {1: None, 2: 0, 3: None, 4: 0}
    # Three replicas have shared the columns, and four share the rows as before.
    assert shared.find("b", (8, 12), (1, 2), 3, 1) == {1: None, 2: 0, 3: 1, 4: 0}
    assert shared.find("c", (8, 12), (1, 2), 4, None) == {1: None, 2: None, 3: None, 4: None}


@pytest.mark.hosts
def test_fewer_replicas_of_programs_on_hosts_after_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program goes on without the host that was killed, and with it when it is back; it is lowered once."""
    pw.disconnect()
    pw.connect(hosts=4, devices_per_host=2)
    trainer, few = Trainer(zero1=True), Trainer(3, zero1=True)
    batch = batches(1)[0]
    state = on_host(trainer.step(trainer.state, batch)[0])
    expected, of_three = bits(trainer.step(state, batch)), bits(few.step(state, batch))
    (program,) = programs_on([trainer.devices])
    program.load_for((0, 2, 3))
    on_all = program.load_for((0, 1, 2, 3))
    monkeypatch.delattr(stages, "run_phases")
    clients.controller().hosts[1].process.kill()
    run_on_replicas([trainer.devices], (0, 2, 3))
    assert bits(trainer.step(state, batch)) == of_three
    while not on_all.is_lost:
        time.sleep(0.02)
    # It waits for the island.
    run_on_replicas([trainer.devices], (0, 1, 2, 3))
    assert bits(trainer.step(state, batch)) == expected
    assert trainer.step.executables == (program,)


# Errors.


def test_fewer_replicas_name_the_numbers_that_are_allowed() -> None:
    trainer = Trainer()
    message = (
        "min_replicas=4: the step has 4 replicas of 12 microbatches, which divide among 1, 2, 3 of them; pass"
    )
    with (
        pytest.raises(ValueError, match=message),
        pw.resilient(trainer.step, trainer.state, batches(2), min_replicas=4),
    ):
        pass
    # Compiled by now, so that it is known before the run begins.
    with pytest.raises(ValueError, match=message):
        pw.resilient(trainer.step, trainer.state, batches(2), min_replicas=4)


def test_fewer_replicas_are_for_steps_that_have_some(tmp_path: Path) -> None:
    alone = Trainer(1)
    with (
        pytest.raises(ValueError, match="min_replicas=1: the step has no replicas; leave min_replicas out"),
        pw.resilient(alone.step, alone.state, batches(2), min_replicas=1),
    ):
        pass
    trainer = Trainer()
    trainer.step.lower(trainer.state, batches(1)[0]).save(tmp_path / "step.pwb")
    loaded = pw.load(tmp_path / "step.pwb", trust=True)
    with pytest.raises(
        ValueError, match="program 'train' is from a bundle, which has it for all its replicas"
    ):
        pw.resilient(loaded, trainer.state, batches(2), min_replicas=3)


def test_fewer_replicas_are_on_islands_of_their_own() -> None:
    pw.disconnect()
    pw.connect(cpu_devices=8, islands=2)
    trainer = Trainer()
    message = (
        "the replicas are on 2 of the islands, and the loss of any one leaves 2 at most; connect to more"
    )
    with (
        pytest.raises(ValueError, match=message),
        pw.resilient(trainer.step, trainer.state, batches(2), min_replicas=3),
    ):
        pass


def test_fewer_replicas_need_a_batch_and_the_program_that_reads_it() -> None:
    trainer, other = Trainer(), Trainer()
    with (
        pytest.raises(ValueError, match="the source has no batch to compile the step for"),
        pw.resilient(trainer.step, trainer.state, [], min_replicas=3),
    ):
        pass
    with (
        pytest.raises(TypeError, match="train_step does not call the program that feeds= names"),
        pw.resilient(
            lambda state, batch: trainer.step(state, batch),
            trainer.state,
            batches(2),
            feeds=other.feeds,
            min_replicas=3,
        ),
    ):
        pass


def test_fewer_replicas_name_the_program_that_cannot_run_on_them() -> None:
    """A second program of the step, whose 8 microbatches do not divide among three."""
    trainer = Trainer()
    devices = trainer.devices
    one = pw.jit(layer, devices=devices.slices[0])
    loss = pw.accumulate(lambda w, batch: squared_error([one])([w], batch), 8)
    check = pw.program(loss)

    def step(state: Any, batch: Any) -> Any:
        state, metrics = trainer.step(state, batch)
        return state, {**metrics, "first": check(state["params"][0], batch)}

    with (
        pytest.raises(pw.ProgramError, match="8 microbatches, which is not divisible by 3") as caught,
        pw.resilient(step, trainer.state, batches(3), feeds=trainer.feeds, min_replicas=3),
    ):
        pass
    assert "while program" in caught.value.__notes__[0]
