"""Training with `pw.resilient` on hosts: after any kills, the bits are those of an undisturbed run."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from check import assert_equal
from models import layer
from resilient_training import (
    STEPS,
    KillsInCalls,
    batches,
    is_protected_again,
    kill,
    lose_all,
    nothing_left,
    stages,
    train,
    train_through_kills,
    trainer,
    undisturbed,
)

import pathways as pw
from pathways.compiler.resilience.memory import memory_calls

pytestmark = pytest.mark.hosts


@pytest.mark.quick
def test_resilient_training_survives_kills_of_any_worker(own_workers, caplog):
    pw.connect(hosts=3)
    with nothing_left():
        train_through_kills(caplog)


@pytest.mark.parametrize(
    ("function", "when", "victim"),
    [
        ("write", (1, 6), lambda hosts, named: hosts[0]),
        ("receive", (1, 4), lambda hosts, named: hosts[0]),
        ("receive", (1, 4), lambda hosts, named: named["host"]),
        ("read", (0, 3), lambda hosts, named: hosts[0]),
        ("fetch", (0, 1), lambda hosts, named: named["host"]),
        ("open_run", (3, 4), lambda hosts, named: hosts[0]),
    ],
    ids=["snapshot", "copy by the buddy", "copy by the source", "restore", "restore of the buddy", "return"],
)
def test_resilient_training_survives_kills_in_snapshots_and_restores(
    own_workers, monkeypatch, function, when, victim
):
    # A stream takes some tenths of a second.
    pw.connect(hosts=3, options=pw.HostOptions(snapshot_rate=10_000))
    step, state = stages()
    source = batches()
    expected = undisturbed(step, state, source)
    kills = KillsInCalls(monkeypatch, function, when, victim)
    with nothing_left(), pw.resilient(step, state, source, every=3) as run:
        losses = {}
        if function in ("read", "fetch", "open_run"):
            losses = {7: lambda: (is_protected_again(run), run.lose("island1", memory=True))}
        metrics = train(run, losses)
        final = jax.device_get(run.state)
    assert kills.left == 0
    assert_equal((metrics, final), expected)


def test_resilient_training_survives_the_loss_of_memory(own_workers):
    pw.connect(hosts=2)
    step, state = stages()
    source = batches()
    expected = undisturbed(step, state, source)
    with nothing_left(), pw.resilient(step, state, source, every=2) as run:
        losses = {
            n: lambda n=n: (is_protected_again(run), run.lose(f"island{n % 2}", memory=True)) for n in (5, 10)
        }
        metrics = train(run, losses)
        assert_equal((metrics, jax.device_get(run.state)), expected)


def test_resilient_training_names_blocks_that_no_host_has(own_workers):
    pw.connect(hosts=2)
    step, state = stages()
    with (
        nothing_left(),
        pytest.raises(pw.HostLostError, match=r"no host has state\['moments'\].* any more; pass directory="),
        pw.resilient(step, state, batches(), every=2) as run,
    ):
        train(run, {5: lambda: [run.lose(f"island{n}", memory=True) for n in (0, 1)]})


@pytest.mark.parametrize("zero1", [False, True])
def test_resilient_training_survives_kills_of_replicas(own_workers, zero1):
    pw.connect(islands=[pw.Island(devices_per_host=2)] * 2)
    devices = pw.make_virtual_device_set(replicas=2)
    layers = [pw.jit(layer, devices=devices.add_slice((1,), ("x",))) for _ in range(2)]
    step, state = trainer(layers, schedule="1f1b", zero1=zero1)
    source = batches()
    expected = undisturbed(step, state, source)
    with nothing_left(), pw.resilient(step, state, source, every=3) as run:
        losses = {5: lambda: kill(1), 10: lambda: (is_protected_again(run), kill(0))}
        metrics = train(run, losses)
        assert_equal((metrics, jax.device_get(run.state)), expected)
        if not zero1:
            # Each replica has all of the state: no block of it was sent.
            assert run.status().islands["island0"] == run.status().islands["island1"]


def test_resilient_training_survives_kills_in_islands_of_two_hosts(own_workers):
    pw.connect(islands=[pw.Island(hosts=2)] * 2)
    step, state = stages(devices_of_stage=2)
    source = batches()
    expected = undisturbed(step, state, source)
    with nothing_left(), pw.resilient(step, state, source, every=3) as run:
        losses = {5: lambda: kill(3), 10: lambda: (is_protected_again(run), run.lose("island0", memory=True))}
        metrics = train(run, losses)
        assert_equal((metrics, jax.device_get(run.state)), expected)


def test_resilient_training_needs_space_before_the_first_step(own_workers, monkeypatch, tmp_path):
    folder = tmp_path / "mine"
    pw.connect(hosts=2, options=pw.HostOptions(snapshot_folder=str(folder)))
    step, state = stages()
    source = batches()
    placed, _ = step(state, source[0])
    values_of, free = memory_calls.values_of, 2048
    monkeypatch.setattr(
        memory_calls, "values_of", lambda *call: [own | {"bytes": free} for own in values_of(*call)]
    )
    for given, needed in ((state, "at least 4 KiB"), (placed, "4 KiB")):
        with pytest.raises(OSError, match="snapshots need") as refused, pw.resilient(step, given, source):
            pass
        assert str(refused.value) == (
            f"pw.resilient: snapshots need {needed}, 2 KiB free on host 0, host 1 in {folder}; give the "
            "machine or container more shared memory, or set HostOptions(snapshot_folder=)"
        )
    free = 4096
    with pw.resilient(step, placed, source) as run:
        assert run.protected
        assert len([*folder.glob("run-*/host*/0.1/copy*.blocks")]) == 4
    assert [*folder.iterdir()] == []


def test_resilient_training_names_a_folder_that_no_host_can_use(own_workers, tmp_path):
    pw.connect(hosts=1, options=pw.HostOptions(snapshot_folder=str(tmp_path / "missing" / "mine")))
    step, state = stages((0,))
    with (
        pytest.raises(OSError, match=r"host 0 \(island0\): snapshot folder .*mine: .*missing does not exist"),
        pw.resilient(step, state, batches()),
    ):
        pass


def test_resilient_training_goes_on_from_disk_when_memory_is_lost_on_hosts(own_workers, tmp_path):
    pytest.importorskip("orbax.checkpoint.experimental.v1", reason="orbax-checkpoint is not installed")
    pw.connect(hosts=2)
    step, state = stages()
    source = batches()
    expected = undisturbed(step, state, source)

    def resilient() -> Any:
        return pw.resilient(step, state, source, every=2, directory=tmp_path / "run", disk_every=1)

    def lose_memory(run: Any) -> None:
        while run.status().disk is None:
            run._recovery.drain()
            run._store.wait(0.1)
        run.lose("island0", memory=True)
        run.lose("island1", memory=True)

    with nothing_left(), resilient() as run:
        metrics = train(run, {9: lambda: lose_memory(run)}, 12)
    with nothing_left(), resilient() as run:
        assert run.step == 12
        metrics += [values for _, values in run.steps(STEPS)]
        assert_equal((metrics, jax.device_get(run.state)), expected)


def test_resilient_training_leaves_no_snapshots_of_hosts_that_are_lost(own_workers):
    pw.connect(hosts=2)
    step, state = stages()
    with (  # noqa: PT012 # the hosts are lost when it is left
        nothing_left(),
        pytest.raises(KeyboardInterrupt),
        pw.resilient(step, state, batches(), every=2) as run,
    ):
        train(run, {}, 5)
        lose_all()
        raise KeyboardInterrupt


def test_resilient_state_is_that_of_the_last_step_after_a_loss_at_the_end(own_workers):
    pw.connect(hosts=2)
    step, state = stages()
    source = batches()
    expected = undisturbed(step, state, source)
    with nothing_left(), pw.resilient(step, state, source, every=5) as run:
        metrics = train(run, {})
        lose_all()
    assert_equal((metrics, jax.device_get(run.state)), expected)


def test_resilient_training_goes_on_without_an_island_that_it_does_not_use(own_workers):
    """The island kept copies for another one, and does not return; another one takes its place."""
    pw.connect(hosts=3, options=pw.HostOptions(restart_seconds=0))
    step, state = stages()
    source = batches()
    expected = undisturbed(step, state, source)
    with nothing_left(), pw.resilient(step, state, source, every=3) as run:
        metrics = train(run, {4: lambda: kill(2), 9: lambda: is_protected_again(run)})
        final = jax.device_get(run.state)
        status = run.status()
        assert (status.losses, status.protected) == (1, True)
        assert run._recovery.core.attempt == 1
    assert_equal((metrics, final), expected)
