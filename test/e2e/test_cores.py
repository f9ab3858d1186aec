"""Workers that have cores of their machine for themselves."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest
from on_hosts import refused

import pathways as pw
from pathways import HostError
from pathways.runtime.clusters.connect import controller
from pathways.runtime.hosts.launch.cores import CoreShares


def test_core_shares_of_a_machine_are_disjoint():
    shares = CoreShares()
    assert [shares.assign("a", host, 2) for host in (0, 1)] == [0, 2]
    assert [shares.assign("b", 2, 4), shares.assign("a", 3, 1)] == [0, 4]
    # A worker that starts again takes the cores that it had, or free ones.
    assert [shares.assign("a", 0, 2), shares.assign("a", 1, 3), shares.assign("a", 4, 2)] == [0, 5, 2]


def _affinities(process: int) -> set[frozenset[int]]:
    """Returns the sets of cores that the threads of a process may use."""
    affinities = set()
    for task in Path(f"/proc/{process}/task").iterdir():
        # A thread may end between the two calls.
        with contextlib.suppress(ProcessLookupError):
            affinities.add(frozenset(os.sched_getaffinity(int(task.name))))
    return affinities


@pytest.mark.needs("two cores")
def test_cores_of_a_worker_have_all_its_threads(devices, shared_workers):
    pw.connect(islands=[pw.Island(cores=1), pw.Island(cores=1)])
    slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]
    a, b = (pw.jit(lambda x: x @ x, devices=slice) for slice in slices)
    assert np.asarray(pw.program(lambda x: b(a(x)))(np.eye(256, dtype=np.float32))).trace() == 256
    usable = sorted(os.sched_getaffinity(0))
    for core, host in zip(usable, controller().hosts, strict=False):
        assert _affinities(host.process.pid) == {frozenset([core])}
    for slice in slices:
        pw.release(slice)
    most = len(usable)
    with refused(HostError, f"cores={most}: the worker needs {most} cores after 1", f"may use only {most}"):
        pw.connect(islands=[pw.Island(cores=1), pw.Island(cores=most)])
    with refused(ValueError, "cores=0: expected at least 1"):
        pw.Island(cores=0)
