"""Session over workers that this process has started."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import override

from pathways.runtime.control.records.events import LeaveAllowed, LeaveDelayed
from pathways.runtime.control.records.step import Step
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.cluster.worker_cluster import Split, WorkerCluster
from pathways.runtime.hosts.protocol.messages import Call, ForeignFacts
from pathways.runtime.hosts.protocol.programs import BoundProgram
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.resources.cluster import HOSTS_REMEDY, Cluster
from pathways.runtime.resources.manager import ResourceManager
from pathways.runtime.resources.status import SpareStatus
from pathways.runtime.resources.virtual import VirtualSlice


class LocalSession(HostSession):
    """Session of the only client of a cluster of this process: it calls the cluster without a queue.

    Args:
      workers: the cluster.
    """

    owns_workers = True

    def __init__(self, workers: WorkerCluster) -> None:
        super().__init__(workers.core, workers.pool, workers.listener)
        self._workers = workers
        self.step_deadline = workers.settings.options.step_deadline

    @override
    def spares(self) -> SpareStatus | None:
        return self._workers.spares()

    @override
    def delay_leave(self, workers: HostGang) -> None:
        self._core.handle(LeaveDelayed(workers.life.key))

    @override
    def allow_leave(self, workers: HostGang) -> None:
        self._core.handle(LeaveAllowed(workers.life.key))

    @override
    def bind(self, cluster: Cluster) -> ResourceManager[VirtualSlice]:
        return ResourceManager(cluster, HOSTS_REMEDY)

    @override
    def _load(self, program: BoundProgram, split: Split) -> HostedProgram:
        return self._workers.load(program, split)

    @override
    def load_foreign(
        self, name: str, hosts: Sequence[WorkerHandle], kind: str, body: bytes, about: int = 0
    ) -> tuple[int, list[ForeignFacts]]:
        return self._workers.load_foreign(name, hosts, kind, body, about)

    @override
    def unload(self, program: HostedProgram) -> None:
        self._workers.unload(program)

    @override
    def wait_for_room(self, program: HostedProgram) -> None:
        for life in program.lives:
            if life.problem is not None:
                life.check_open()
            while (oldest := life.window.blocker(program.share)) is not None:
                self._loop.wait(oldest.is_done)
                self.waits.add(time.monotonic() - oldest.began)

    @override
    def _send_step(self, step: Step, program: HostedProgram, arguments: Mapping[int, Sequence[int]]) -> None:
        self._workers.send_step(program, program.frames(step.number, step.number + 1, arguments))

    def _send_call(self, hosts: Sequence[WorkerHandle], call: Call) -> None:
        self._workers.send_call(hosts, call)

    def _lose(self, host: WorkerHandle, error: ConnectionEnded) -> None:
        self.listener.lose(host, error)

    def close(self) -> None:
        """Terminates the workers."""
        self._closed.set()
        self._workers.close()

    @override
    def leave(self) -> None:
        super().leave()
        self._workers.leave()
