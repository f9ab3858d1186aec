"""Training on hosts that goes on with fewer replicas while islands are lost, and with all when they are back.

Each step is compared, bit for bit, with that of a program for as many replicas in one process.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from test_fewer_replicas import MODELS, Trainer, batches, bits, on_host
from test_resilient_hosts import kill, nothing_left

import pathways as pw
from pathways.compiler.resilience.host_store import HostStore
from pathways.compiler.resilience.layouts.step_replicas import StepReplicas
from pathways.compiler.resilience.memory import memory_calls
from pathways.runtime.clusters.connect import controller
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.resilience.phases import StepsHeld

pytestmark = pytest.mark.hosts

STEPS = 1000
"""Maximum of steps until the event that a test waits for; the test ends before."""


class RecordedStep:
    """Step on hosts that records its calls, to be compared with those in one process.

    Args:
      create: creates a trainer for some replicas.
      replicas: the number of replicas.

    Attributes:
      trainer: the trainer of all replicas, whose step it is.
      run: the run that calls it.
      calls: for each call the number of the step, of its replicas, its arguments and its results.
    """

    def __init__(self, create: Callable[[int], Any], replicas: int = 4) -> None:
        self.trainer = create(replicas)
        self.run: Any = None
        self.calls: list[tuple[int, int, Any, Any]] = []
        self._create = functools.cache(create)

    def __call__(self, state: Any, batch: Any) -> Any:
        if self.run is None:
            return self.trainer.step(state, batch)
        arguments = on_host((state, batch))
        result = self.trainer.step(state, batch)
        # A call on islands that are lost is an error here, and is not recorded.
        found = on_host(result)
        self.calls.append((self.run.step, len(hosts_of(result[1])), arguments, found))
        return result

    @property
    def counts(self) -> list[int]:
        """The number of replicas of each call."""
        return [count for _, count, _, _ in self.calls]

    @property
    def switches(self) -> list[int]:
        """The numbers of replicas, in their order."""
        return [count for n, count in enumerate(self.counts) if not n or count != self.counts[n - 1]]

    def resilient(self, source: Any, **options: Any) -> Any:
        """Returns a run of it."""
        return pw.resilient(self, self.trainer.state, source, feeds=self.trainer.feeds, **options)

    def check(self) -> None:
        """Compares all calls with those in one process; disconnects from the hosts."""
        states = collections.defaultdict(set, {0: {tuple(bits(self.trainer.state))}})
        in_one_process()
        for n, count, (state, batch), found in self.calls:
            assert tuple(bits(state)) in states[n], f"the state before step {n} was never computed"
            assert bits(self._create(count).step(state, batch)) == bits(found), (n, count)
            states[n + 1].add(tuple(bits(found[0])))


def in_one_process() -> None:
    pw.disconnect()
    pw.connect(cpu_devices=8, islands=4)


def hosts_of(tree: Any) -> set[int]:
    """Returns the hosts that have some of the arrays."""
    return {host for leaf in jax.tree.leaves(tree) if isinstance(leaf, Array) for host in leaf.hosts}


@contextlib.contextmanager
def training(step: RecordedStep, **options: Any) -> Iterator[Any]:
    """Runs a step in a run, which is checked at its end."""
    source = batches(STEPS, options.pop("width", 12))
    with nothing_left(), step.resilient(source, **options) as run:
        step.run = run
        yield run
    step.check()


def train(run: Any, act: Callable[[int], bool | None]) -> None:
    """Runs steps until `act`, which is called after each of them, returns true."""
    for n, metrics in run.steps(STEPS):
        assert np.isfinite(metrics["loss"])
        if act(n):
            return
    pytest.fail(f"{STEPS} steps were not enough")


@pytest.mark.quick
def test_fewer_replicas_go_on_after_a_kill_on_hosts(own_workers: None, caplog: Any) -> None:
    """One of two replicas goes on with all of the optimizer's state, until the other one is back."""
    caplog.set_level("INFO", "pathways")
    pw.connect(hosts=2, devices_per_host=2)
    step = RecordedStep(functools.partial(Trainer, zero1=True), 2)
    with training(step, every=3, min_replicas=1) as run:

        def act(n: int) -> bool | None:
            if n == 4:
                kill(1)
            return 1 in step.counts and step.counts[-2:] == [2, 2]

        train(run, act)
        assert hosts_of(run.state) == {0, 1}
    assert step.switches == [2, 1, 2]
    going_on = [record.message for record in caplog.records if "resuming from" in record.message]
    assert going_on[0].startswith(
        "pw.resilient: island1 is lost (its process has ended (killed by signal 9)); "
    )
    assert [message.partition(", with ")[2] for message in going_on] == ["1 of 2 replicas", "2 of 2 replicas"]
    assert "0 steps are run again" in going_on[1]


@pytest.mark.parametrize(
    "name", ["zero1 that does not divide", "zero1 on slices of two devices", "two programs"]
)
def test_fewer_replicas_on_hosts_have_the_bits_of_as_many(own_workers: None, name: str) -> None:
    """An island is lost with its memory, and is away for some steps."""
    pw.connect(hosts=4, devices_per_host=2)
    step = RecordedStep(MODELS[name])
    with training(step, every=3, min_replicas=3, width=8 if "not divide" in name else 12) as run:

        def act(n: int) -> bool | None:
            if n == 4:
                run.lose("island2", memory=True, returns=False)
            if n == 9:
                assert hosts_of(run.state) == {0, 1, 3}
                assert run.status().replicas == 3
                run.return_island("island2")
            return n > 9 and step.counts[-2:] == [4, 4]

        train(run, act)
    assert step.switches == [4, 3, 4]


def test_fewer_replicas_on_hosts_when_islands_are_lost_at_once_and_one_by_one(own_workers: None) -> None:
    pw.connect(hosts=4, devices_per_host=2)
    step = RecordedStep(functools.partial(Trainer, zero1=True))
    away = ["island0", "island1", "island3"]
    with training(step, every=2, min_replicas=1) as run:

        def act(n: int) -> bool | None:
            losses, count = run.status().losses, step.counts[-1]
            if losses == 0 and n == 4:
                run.lose("island1", returns=False)
                run.lose("island3", returns=False)
            if losses == 2 and n > 6 and run.protected:
                assert hosts_of(run.state) == {0, 2}
                run.lose("island0", returns=False)
            if away and losses == 3 and count == 1:
                assert hosts_of(run.state) == {2}
                while away:
                    run.return_island(away.pop())
            return not away and count == 4

        train(run, act)
    assert {1, 2, 4} <= set(step.counts)


def kill_once(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, is_due: Callable[..., bool]
) -> list[int]:
    """Kills the worker of host 1 before the first call of a method that is due.

    Returns:
      The hosts that are left to kill.
    """
    left = [1]
    method = getattr(owner, name)

    def killing(self: Any, *args: Any) -> Any:
        if left and is_due(*args):
            kill(left.pop())
        return method(self, *args)

    monkeypatch.setattr(owner, name, killing)
    return left


@pytest.mark.parametrize("where", ["load", "snapshot", "switch", "restore"])
def test_fewer_replicas_on_hosts_survive_kills_while_growing_back(
    own_workers: None, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The island that is back is killed again."""
    pw.connect(hosts=4, devices_per_host=2)
    step = RecordedStep(functools.partial(Trainer, zero1=True))
    every = tuple(range(4))
    with training(step, every=3, min_replicas=3) as run:
        core = run._recovery.core
        owner, method, is_due = {
            "load": (StepReplicas, "_load", lambda numbers: numbers == every != run._replicas.running),
            "snapshot": (HostStore, "make_copies", lambda *_: isinstance(core.phase, StepsHeld)),
            "switch": (StepReplicas, "run_on", lambda numbers: numbers == every),
            "restore": (HostStore, "restore", lambda restore: restore.replicas == every),
        }[where]
        left = kill_once(monkeypatch, owner, method, is_due)

        def act(n: int) -> bool | None:
            if n == 4:
                run.lose("island1", returns=False)
            if n == 8:
                run.return_island("island1")
            return not left and step.counts[-2:] == [4, 4]

        train(run, act)
        assert run.status().losses == 2
    assert step.switches[:2] == [4, 3]


def test_fewer_replicas_on_hosts_wait_for_as_long_as_they_may(own_workers: None) -> None:
    pw.connect(hosts=2, devices_per_host=2)
    step = RecordedStep(Trainer, 2)
    with training(step, every=3, min_replicas=1, patience=300) as run:

        def act(n: int) -> bool | None:
            if n == 4:
                kill(1)
            return n == 8

        train(run, act)
        assert run.status().losses == 1
    assert step.switches == [2]


def test_fewer_replicas_on_hosts_are_loaded_for_no_island_that_is_lost(own_workers: None) -> None:
    """To load a program for it would wait until it is back, and steps of the others with it."""
    pw.connect(hosts=2, devices_per_host=2)
    step = RecordedStep(Trainer, 2)
    with training(step, every=3, min_replicas=1) as run:

        def act(n: int) -> bool | None:
            if n == 4:
                gang = controller().hosts[1].gang
                kill(1)
                while not gang.is_lost():
                    time.sleep(0.01)
                with pytest.raises(HostError, match="island1"):
                    run._replicas._load((0, 1))
            return n == 6

        train(run, act)
    assert step.switches[:2] == [2, 1]


@pytest.mark.parametrize("count", [2, 4])
def test_fewer_replicas_on_hosts_go_on_from_disk(own_workers: None, tmp_path: Path, count: int) -> None:
    """Three and four replicas have blocks of several sizes, which are whole chunks of a file."""
    pytest.importorskip("orbax.checkpoint.experimental.v1", reason="orbax-checkpoint is not installed")
    pw.connect(hosts=count, devices_per_host=2)
    step = RecordedStep(functools.partial(Trainer, zero1=True), count)
    lost_at: int | None = None
    with training(step, every=2, min_replicas=count - 1, directory=tmp_path / "run", disk_every=1) as run:

        def act(n: int) -> bool | None:
            nonlocal lost_at
            if run.status().disk and lost_at is None:
                lost_at = n
                for island in range(count):
                    run.lose(f"island{island}", memory=True, returns=island != 1)
            # A version of fewer replicas is saved, too.
            return lost_at is not None and run.status().disk > lost_at + 2

        train(run, act)
        assert hosts_of(run.state) == {*range(count)} - {1}


@pytest.mark.parametrize("min_replicas", [3, 1])
def test_fewer_replicas_on_hosts_go_on_with_another_controller(
    own_workers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, min_replicas: int
) -> None:
    """The version that is left is of three replicas; its blocks are not those of one replica, too."""
    pytest.importorskip("orbax.checkpoint.experimental.v1", reason="orbax-checkpoint is not installed")
    caplog.set_level("INFO", "pathways")
    create = functools.partial(Trainer, zero1=True)
    options: dict[str, Any] = {"every": 2, "directory": tmp_path / "run", "disk_every": 100}
    pw.connect(hosts=4, devices_per_host=2)
    step = RecordedStep(create)
    with (  # noqa: PT012 # the error is of leaving it
        pytest.raises(KeyboardInterrupt),
        step.resilient(batches(STEPS), min_replicas=3, **options) as run,
    ):
        step.run = run

        def act(n: int) -> None:
            if n == 4:
                run.lose("island2", returns=False)
            if step.counts[-4:] == [3] * 4:
                monkeypatch.setattr(run._disk, "save", refuse)
                raise KeyboardInterrupt

        train(run, act)
    monkeypatch.undo()
    pw.disconnect()
    pw.connect(hosts=4, devices_per_host=2)
    caplog.clear()
    later = RecordedStep(create)
    later.calls = step.calls
    with training(later, min_replicas=min_replicas, **options) as run:
        first = run.step
        train(run, lambda n: n > first + 2)
    assert later.switches == [4, 3, 4]
    lines = [record.message for record in caplog.records if " in memory" in record.message]
    if min_replicas == 3:
        assert lines == [
            f"pw.resilient: resuming from version {first} in memory, 0 steps are run again, "
            "with 4 of 4 replicas"
        ]
    else:
        assert lines[0].endswith(" in memory is not used: it has other replicas, or another min_replicas=")


def refuse(*_: Any) -> None:
    raise OSError("no space")


def test_fewer_replicas_on_hosts_run_no_step_again_when_an_island_leaves(own_workers: None) -> None:
    pw.connect(hosts=4, devices_per_host=2)
    step = RecordedStep(functools.partial(Trainer, zero1=True))
    with training(step, every=3, min_replicas=3) as run:

        def act(n: int) -> bool | None:
            if n == 4:
                os.kill(controller().hosts[2].process.pid, signal.SIGTERM)
            return 3 in step.counts and step.counts[-2:] == [4, 4]

        train(run, act)
        assert run.status().losses == 0
    assert step.switches == [4, 3, 4]
    numbers = [n for n, *_ in step.calls]
    assert numbers == [*range(len(numbers))]


class UncheckedStep(RecordedStep):
    """Step whose calls are not waited for, so that several are in flight at a loss.

    Attributes:
      last: for each step the number of replicas of its last call.
    """

    last: dict[int, int]

    def __call__(self, state: Any, batch: Any) -> Any:
        result = self.trainer.step(state, batch)
        if self.run is not None:
            self.last[self.run.step] = len(hosts_of(result[1]))
        return result

    def final_state(self, source: list[Any]) -> Any:
        """Returns the state after the last call of each step, in one process; disconnects from the hosts."""
        state = self.trainer.state
        in_one_process()
        for n, batch in enumerate(source):
            state, _ = self._create(self.last[n]).step(state, batch)
        return state


@pytest.mark.parametrize("seed", range(2))
def test_fewer_replicas_on_hosts_survive_random_kills(own_workers: None, seed: int) -> None:
    chance = random.Random(seed)
    pw.connect(hosts=4, devices_per_host=2, options=pw.HostOptions(spares=1))
    step = UncheckedStep(functools.partial(Trainer, zero1=True))
    step.last = {}
    source = batches(STEPS)
    kills = last = 0
    with nothing_left(), step.resilient(source, every=3, min_replicas=chance.choice((1, 2, 3))) as run:
        step.run = run

        def act(n: int) -> bool | None:
            nonlocal kills, last
            time.sleep(0.01)
            if kills < 8 and run.protected and chance.random() < 0.1:
                for host in chance.sample(range(4), chance.choice((1, 1, 2, 4))):
                    # One that is lost by now has no process.
                    with contextlib.suppress(ProcessLookupError):
                        kill(host)
                kills, last = kills + 1, n
            # Steps that were issued after the last kill are done, so that its losses were noticed.
            return kills == 8 and n > last + 3 and run.status().replicas == 4 and run.protected

        train(run, act)
        # Some kills are of islands that are not back.
        assert run.status().losses > 3
        state = on_host(run.state)
    assert bits(state) == bits(step.final_state(source[: run.step]))
    assert len(set(step.last.values())) > 1


def test_fewer_replicas_on_hosts_need_space_for_any_number_of_them(
    own_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas keep more of the optimizer's state for each other than three."""
    pw.connect(hosts=3, devices_per_host=2)
    values_of, free = memory_calls.values_of, 6000
    monkeypatch.setattr(
        memory_calls,
        "values_of",
        # As if each host had memory of its own.
        lambda hosts, call: [
            own | {"bytes": free, "device": min(call.hosts)} for own in values_of(hosts, call)
        ],
    )
    step = RecordedStep(functools.partial(Trainer, zero1=True), 3)
    with (
        pytest.raises(OSError, match=r"snapshots need 6\.758 KiB, 5\.859 KiB free on host 0 in"),
        step.resilient(batches(2), min_replicas=2, every=1) as run,
    ):
        list(run.steps(2))
    free = 6920
    with step.resilient(batches(2), min_replicas=2, every=1) as run:
        list(run.steps(2))
