"""Training with `pw.resilient` on hosts that get SIGTERM: the work moves, and no step is run again."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import jax
import pytest
from check import assert_equal
from models import layer
from resilient_training import KillsInCalls, batches, kill, nothing_left, stages, train, trainer, undisturbed

import pathways as pw
from pathways.compiler.resilience.memory.known_islands import KnownIslands
from pathways.runtime.clusters.connect import controller

pytestmark = pytest.mark.hosts


def leave(*hosts: int) -> None:
    """Sends SIGTERM to workers."""
    for host in hosts:
        os.kill(controller().hosts[host].process.pid, signal.SIGTERM)


class CountedStep:
    """Training step that counts its calls: those beyond the number of steps were run again."""

    def __init__(self, step: pw.Program, state: Any) -> None:
        self.step = step
        self.state = state
        self.calls = 0

    def __call__(self, state: Any, batch: Any) -> tuple[Any, Any]:
        self.calls += 1
        return self.step(state, batch)

    def check(
        self, act: Callable[[Any], dict[int, Callable[[], Any]]], losses: int = 0, **options: Any
    ) -> None:
        """Trains, and checks that metrics and state are those of an undisturbed run.

        Args:
          act: returns what is done after which steps of a run.
          losses: how many losses are survived; without one no step is run again.
          options: those of `pw.resilient`.
        """
        source = batches()
        expected = undisturbed(self.step, self.state, source)
        options = {"every": 100} | options
        with (
            nothing_left(),
            pw.resilient(self, self.state, source, feeds=(self.step, "batch"), **options) as run,
        ):
            metrics = train(run, act(run))
            assert_equal((metrics, jax.device_get(run.state)), expected)
            assert run.status().losses == losses
        assert (self.calls == len(source)) == (losses == 0)


@pytest.mark.quick
def test_resilient_training_runs_no_step_again_when_a_worker_gets_sigterm(own_workers, caplog):
    caplog.set_level("INFO", "pathways")
    pw.connect(hosts=2)
    step = CountedStep(*stages())
    step.check(lambda run: {5: lambda: leave(1)})
    (line,) = (message for message in caplog.messages if "leaves" in message)
    number = next(word for word in line.split() if word.isdecimal())
    assert line == (
        f"pw.resilient: island1 leaves; version {number} was saved at its boundary, 0 steps are run again"
    )
    assert f"pw.resilient: resuming from version {number} in memory, 0 steps are run again" in caplog.messages
    assert any("its island goes on for up to 20 seconds while training moves" in m for m in caplog.messages)


@pytest.mark.parametrize(
    "leaving",
    [{4: (0,), 9: (1,)}, {4: (0, 1)}, {4: (1, 0, 2)}, {4: (2,)}],
    ids=["one after the other", "with the buddy", "all", "an island without a stage"],
)
def test_resilient_training_runs_no_step_again_when_several_islands_leave(own_workers, leaving):
    pw.connect(hosts=3)
    CountedStep(*stages()).check(
        lambda run: {n: lambda hosts=hosts: leave(*hosts) for n, hosts in leaving.items()}
    )


@pytest.mark.parametrize("function", ["write", "receive", "read"])
def test_resilient_training_runs_no_step_again_when_a_worker_leaves_in_a_snapshot(
    own_workers, monkeypatch, function
):
    """Or while another island returns, whose state is read from memory."""
    # A stream takes some tenths of a second.
    pw.connect(hosts=3, options=pw.HostOptions(snapshot_rate=10_000))
    leaves = KillsInCalls(monkeypatch, function, (1,), lambda hosts, named: hosts[0], leave)
    first = {5: lambda: leave(1)} if function == "read" else {}
    CountedStep(*stages()).check(lambda run: first, every=3)
    assert leaves.left == 0


def test_resilient_training_ends_while_an_island_opens_its_memory(own_workers, monkeypatch):
    """New workers remove what they have, too, though no reply of theirs was read."""
    pw.connect(hosts=3)
    monkeypatch.setattr(KnownIslands, "_on_opened", lambda *_: list)

    def wait_until_it_opens(run: Any) -> None:
        while run._store._islands.islands[2].opening is None:
            run._recovery.drain()
            run._store.wait(0.1)

    CountedStep(*stages()).check(lambda run: {4: lambda: leave(2), 9: lambda: wait_until_it_opens(run)})


def test_resilient_training_loses_a_worker_that_is_killed_before_it_is_copied(own_workers, monkeypatch):
    pw.connect(hosts=2)
    step = CountedStep(*stages())
    # The first version is in this process, so that this is the one at the boundary.
    kills = KillsInCalls(monkeypatch, "write", (0,), lambda hosts, named: 1, kill)
    step.check(lambda run: {5: lambda: leave(1)}, losses=1)
    assert kills.left == 0


def test_resilient_training_loses_a_worker_whose_time_is_over(own_workers):
    """The body of the loop takes longer than a worker may that leaves."""
    pw.connect(hosts=2, options=pw.HostOptions(grace=1))

    def leave_meanwhile() -> None:
        gang = controller().pool.gangs[1]
        leave(1)
        while not gang.is_lost():
            time.sleep(0.01)

    CountedStep(*stages()).check(lambda run: {5: leave_meanwhile}, losses=1)


@pytest.mark.parametrize("host", [2, 3])
def test_resilient_training_runs_no_step_again_when_a_host_of_an_island_gets_sigterm(own_workers, host):
    pw.connect(islands=[pw.Island(hosts=2)] * 2)
    CountedStep(*stages(devices_of_stage=2)).check(lambda run: {5: lambda: leave(host)}, every=3)


@pytest.mark.parametrize("zero1", [False, True])
def test_resilient_training_runs_no_step_again_when_a_replica_leaves(own_workers, zero1):
    pw.connect(islands=[pw.Island(devices_per_host=2)] * 2)
    devices = pw.make_virtual_device_set(replicas=2)
    layers = [pw.jit(layer, devices=devices.add_slice((1,), ("x",))) for _ in range(2)]
    step = CountedStep(*trainer(layers, schedule="1f1b", zero1=zero1))
    step.check(lambda run: {5: lambda: leave(1), 10: lambda: leave(0)})


def test_resilient_state_is_that_of_the_last_step_when_a_worker_leaves_at_the_end(own_workers):
    pw.connect(hosts=2)
    step, state = stages()
    source = batches()
    expected = undisturbed(step, state, source)
    with nothing_left(), pw.resilient(step, state, source, every=5) as run:
        metrics = train(run, {len(source) - 1: lambda: leave(0)})
        leave(1)
    assert_equal((metrics, jax.device_get(run.state)), expected)


@pytest.mark.parametrize("end", [kill, leave])
def test_resilient_training_goes_on_from_memory_after_ctrl_c_while_an_island_is_away(
    own_workers, tmp_path, end
):
    """The version in memory cannot be saved without the workers of an island, so that it stays there."""
    pytest.importorskip("orbax.checkpoint.experimental.v1", reason="orbax-checkpoint is not installed")
    pw.connect(hosts=2)
    step, state = stages()
    source = batches()
    expected = undisturbed(step, state, source)

    def resilient() -> Any:
        return pw.resilient(step, state, source, every=2, directory=tmp_path / "run", disk_every=1000)

    with resilient() as run:
        list(run.steps(4))

    def stop_while_away() -> None:
        while (last := run._recovery.core.table.committed) is None or last.key.step <= 4:
            run._recovery.drain()
            run._store.wait(0.1)
        wait, process = run._store.wait, controller().hosts[1].process

        def interrupted(seconds: float) -> None:
            if run._recovery.core.islands.hosts == (0, 1):
                wait(seconds)
                return
            assert process.exit_status(10) is not None
            raise KeyboardInterrupt

        run._store.wait = interrupted
        end(1)

    with pytest.raises(KeyboardInterrupt) as caught, resilient() as run:  # noqa: PT012
        for n, _ in run.steps(len(source)):
            if n == 9:
                stop_while_away()
    (note,) = caught.value.__notes__
    found = re.search(r"version (\d+) is in memory: the same call resumes from it \(HostLostError: ", note)
    assert found is not None, note
    first = int(found[1])
    assert first > 4
    while controller().pool.gangs[1].life.problem is not None:
        time.sleep(0.02)
    with nothing_left(), resilient() as run:
        rest = dict(run.steps(len(source)))
    assert [*rest] == [*range(first, len(source))]
    assert_equal(([*rest.values()], jax.device_get(run.state)), (expected[0][first:], expected[1]))
