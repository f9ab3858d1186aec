"""Cluster of workers that this process has started, with its core, listener and effects."""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Sequence

from pathways.runtime.control.core import ClusterCore, Limits
from pathways.runtime.control.records.events import GangClosed, Tick
from pathways.runtime.control.records.pending_frees import PendingFrees
from pathways.runtime.hosts.cluster.effect_runner import EffectRunner
from pathways.runtime.hosts.cluster.event_loop import EventLoop
from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.cluster.shared_core import SharedCore, ignore
from pathways.runtime.hosts.cluster.starter import Starter
from pathways.runtime.hosts.cluster.worker_listener import WorkerListener, WorkerSink
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.launch.options import AUTO, MAX_AHEAD, HostOptions
from pathways.runtime.hosts.launch.settings import Settings
from pathways.runtime.hosts.protocol.frames import encode
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.messages import (
    Call,
    ForeignFacts,
    Free,
    Load,
    LoadForeign,
    Message,
    Unload,
)
from pathways.runtime.hosts.protocol.programs import BoundProgram, SplitProgram
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.resources.status import SpareStatus
from pathways.runtime.resources.threads import start_thread

_TICK_SECONDS = 0.1
_FREE_SECONDS = 0.05

Split = Callable[..., SplitProgram]
"""Function that splits a program by islands; see `splitting.split` for `ahead` and `multi_host`."""


class WorkerCluster:
    """Workers that this process has started; they exit with it.

    A core decides about them (`runtime.control`); `WorkerListener` passes it their messages as events, and
    `EffectRunner` carries out its effects.

    Args:
      settings: the user's settings of them.
      sink: the sink of messages about steps, for a service; see `WorkerListener`.
      make_core: creates the core.

    Attributes:
      settings: the user's settings.
      pool: the workers.
      loop: the event loop that reads their messages about steps.
      effect_runner: the runner of the core's effects.
      listener: the listener to all their messages.

    Raises:
      HostError: a worker does not start.
    """

    def __init__(
        self,
        starter: Starter,
        settings: Settings,
        sink: WorkerSink | None = None,
        make_core: Callable[[Sequence[Sequence[int]], Limits, float], ClusterCore] = ClusterCore,
    ) -> None:
        self.settings = settings
        self._closed = threading.Event()
        self._spares = starter.spares
        started = starter.start(range(len(settings.islands)), self._closed)
        numbers = [[host.index for host in hosts] for hosts in started]
        core = make_core(numbers, _limits(settings.options), time.monotonic())
        self.core = SharedCore(core)
        self.pool = WorkerPool(
            [
                HostGang(life, hosts, island.slices)
                for life, hosts, island in zip(core.gangs, started, settings.islands, strict=True)
            ]
        )
        self.loop = EventLoop(is_served=sink is not None)
        self.listener = WorkerListener(self.core, self.pool, self.loop, sink)
        self.effect_runner = EffectRunner(self.core, self.pool, self.listener, starter, self._closed)
        self.core.run_effect = self.effect_runner.run
        self._unneeded: PendingFrees[HostedProgram] = PendingFrees()
        for gang in self.pool.gangs:
            self.listener.attach(gang)
        start_thread(self._run_clock, "clock")
        # Apart from the clock: sending blocks while a worker is stopped, and only the clock detects that.
        start_thread(self._free_unused, "free")

    def spares(self) -> SpareStatus | None:
        """Returns the status of the spare workers; None if none are configured."""
        return self._spares.status()

    def close(self) -> None:
        """Terminates all workers."""
        if self._closed.is_set():
            return
        for observer in self.pool.observers:
            observer.close()
        self._closed.set()
        # No message: a stopped worker would not read it. Workers exit when their connections are closed.
        self._notify_closed("is closed")
        self.effect_runner.close()
        self.loop.close()

    def leave(self) -> None:
        """Releases the workers in a forked process, since the parent process continues to use them.

        The parent's threads do not exist here, so a lock that one of them held would never be released.
        """
        self._closed = threading.Event()
        self._closed.set()
        self.loop.leave()
        self.core.reset_locks()
        self.pool.reset_locks()
        # The parent process carries out the effects.
        self.core.run_effect = ignore
        self._notify_closed("belongs to the process that this one was forked from")
        for host in self.pool.hosts:
            host.leave()

    def _notify_closed(self, ending: str) -> None:
        self.core.handle(*(GangClosed(gang.key, ending) for gang in self.core.core.gangs))

    def load(self, program: BoundProgram, split: Split) -> HostedProgram:
        """Compiles a program on its hosts, see `Session.load`."""
        gangs = self.pool.current(sorted({place.island for place in program.slices.values()}))
        multi_host = any(len(gang.hosts) > 1 for gang in gangs)
        cut = split(ahead=self.settings.options.ahead, multi_host=multi_host)
        gangs = [gang for gang in gangs if gang.number in cut.by_island]
        number = self.core.take_numbers()
        # Random, so that no other program can guess the number of a transfer.
        base = secrets.randbelow(1 << 61)
        hosts = [host for gang in gangs for host in gang.hosts]
        request = self.core.request([host.index for host in hosts])
        loads = {
            gang: Load(
                request.number,
                number,
                program.name,
                part.module,
                part.computations,
                part.constants,
                gang.number,
                {slice: place.devices for slice, place in program.slices.items()},
                {slice: place.owners for slice, place in program.slices.items()},
                {host.index: host.data_address for host in hosts},
                {host.index: host.ready.probe_address for host in hosts},
                base,
                cut.crossing,
                cut.crossing + cut.inner,
                part.argument_names,
                part.weak_results,
            )
            for gang in gangs
            for part in [cut.by_island[gang.number]]
        }
        loaded = HostedProgram.of(number, program.name, gangs, cut.inputs, cut.outputs, cut.share)
        try:
            for gang, load in loads.items():
                for host in gang.hosts:
                    host.gang.life.check()
                    # Not on `steps`, which a large program would delay.
                    self._send(host, load)
            self.loop.wait(lambda: request.is_done() or bool(request.failures))
            for index, failure in request.first_failure():
                raise failure.error(f"program {program.name}, host {index}")
        except BaseException:
            self.core.drop(request)
            # Some hosts may have compiled it.
            self.unload(loaded)
            raise
        memory = tuple(request.answers[host.index][0] for host in hosts)
        return dataclasses.replace(loaded, memory=memory)

    def load_foreign(
        self, name: str, hosts: Sequence[WorkerHandle], kind: str, body: bytes, about: int = 0
    ) -> tuple[int, list[ForeignFacts]]:
        """Loads a program of an extension, see `HostSession.load_foreign`."""
        number = self.core.take_numbers()
        request = self.core.request([host.index for host in hosts])
        try:
            for host in hosts:
                host.gang.life.check()
                self._send(host, LoadForeign(request.number, number, name, kind, body, about))
            self.loop.wait(lambda: request.is_done() or bool(request.failures))
            for index, failure in request.first_failure():
                raise failure.error(f"program {name}, host {index}")
        except BaseException:
            self.core.drop(request)
            raise
        return number, [request.answers[host.index][0] for host in hosts]

    def _send(self, host: WorkerHandle, load: Load | LoadForeign) -> None:
        try:
            with uninterrupted():
                host.arrays.send(load)
        except ConnectionEnded as error:
            self.listener.lose(host, error)

    def unload(self, program: HostedProgram) -> None:
        """Notes that a program is no longer run; finalizers may call it."""
        self._unneeded.add(program)

    def send_step(self, program: HostedProgram, frames: Sequence[bytes]) -> None:
        """Sends the messages of a step; the listener handles hosts whose connections are closed."""
        for host, frame in zip(program.hosts, frames, strict=True):
            try:
                host.steps.send_frames(frame)
            except ConnectionEnded as error:
                self.listener.lose(host, error)

    def send_call(self, hosts: Sequence[WorkerHandle], call: Call) -> None:
        """Sends a call to hosts; the listener handles hosts whose connections are closed."""
        frame = encode(call)
        for host in hosts:
            try:
                host.steps.send_frames(frame)
            except ConnectionEnded as error:
                self.listener.lose(host, error)

    def _run_clock(self) -> None:
        """Polls the workers and passes the time to the core, until the cluster is closed."""
        while not self._closed.wait(_TICK_SECONDS):
            self.loop.poll()
            self.core.handle(Tick())

    def _free_unused(self) -> None:
        """Frees arrays and programs in batches, for islands that no step frees them with."""
        while not self._closed.wait(_FREE_SECONDS):
            for gang in [*self.pool.gangs]:
                for hosts, pending in [(gang.hosts, gang.life.unused), *gang.unused.items()]:
                    unused = pending.take_all()
                    if unused and not gang.is_lost():
                        self._send_in_order(hosts, Free(unused))
            for program in self._unneeded.take_all():
                # In the order of steps: those issued before still run the program.
                self._send_in_order(
                    [h for h in program.hosts if not h.gang.is_lost()], Unload(program.number)
                )

    def _send_in_order(self, hosts: Sequence[WorkerHandle], message: Message) -> None:
        for host in hosts:
            try:
                host.steps.send(message)
            except ConnectionEnded as error:
                self.listener.lose(host, error)


def _limits(options: HostOptions) -> Limits:
    return Limits(
        MAX_AHEAD if options.ahead == AUTO else options.ahead,
        options.heartbeat,
        options.grace,
        options.stall_report,
        options.step_deadline,
        options.restart_seconds,
    )
