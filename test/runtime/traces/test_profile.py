"""Times of executions, from XLA's own profile."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import pytest

from pathways.runtime.traces.profile import Profile


@pytest.fixture(scope="module")
def execute():
    """Runs a product of two matrices under a launch id, and waits for it."""
    x = jnp.ones((128, 128))
    executable = jax.jit(jnp.matmul).lower(x, x).compile().runtime_executable()

    def execute(launch_id: int | None) -> None:
        results = executable.execute_sharded([x, x], True, launch_id)
        results.consume_token().block_until_ready()

    return execute


def test_profile_finds_an_execution_by_its_launch_id(execute):
    before = time.monotonic_ns()
    profile = Profile.start()
    for launch_id in (1001, None, 1002):
        execute(launch_id)
    executions = profile.stop()
    ((begun, ended),) = executions[1001]
    ((next_begun, next_ended),) = executions[1002]
    assert before < begun < ended < next_begun < next_ended < time.monotonic_ns()


def test_profile_excludes_earlier_executions(execute):
    execute(1001)
    profile = Profile.start()
    execute(1002)
    executions = profile.stop()
    assert 1002 in executions
    assert 1001 not in executions


def test_profile_does_not_start_during_another(execute, tmp_path):
    with jax.profiler.trace(tmp_path):
        assert Profile.start() is None
    profile = Profile.start()
    execute(1001)
    assert 1001 in profile.stop()
