"""Workers that this process has started: what decides for them, hears them, and ends them."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence

from pathways.runtime.control.core import ClusterCore, Limits
from pathways.runtime.control.records.events import GangClosed, Tick
from pathways.runtime.control.records.pending_frees import PendingFrees
from pathways.runtime.control.sharing.scheduler import Policy
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
from pathways.runtime.hosts.protocol.messages import Call, Free, Load, Message, Unload
from pathways.runtime.hosts.protocol.programs import BoundProgram, SplitProgram
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.hosts.trace.host_traces import HostTraces
from pathways.runtime.resources.status import SpareStatus
from pathways.runtime.resources.threads import start_thread

_TICK_SECONDS = 0.05
_FREE_SECONDS = 0.05

Split = Callable[..., SplitProgram]
"""Cuts a program by islands: takes `ahead` and `multi_host` of `splitting.split`."""


class WorkerCluster:
    """Workers that this process has started; they end with it.

    A core decides what becomes of them (`runtime.control`); `WorkerListener` tells it what they say, and
    `EffectRunner` carries out its effects.

    Args:
      starter: starts the workers.
      settings: the user's settings of them.
      sink: hears what workers say of steps, for a service; see `WorkerListener`.
      policy: the policy of the scheduler, see `ClusterCore`.

    Attributes:
      settings: the user's settings.
      core: the core.
      pool: the workers.
      loop: reads what they say of steps.
      listener: listens to them.
      effect_runner: carries out what the core wants.
      traces: the traces that they take part in.

    Raises:
      HostError: a worker does not start.
    """

    def __init__(
        self,
        starter: Starter,
        settings: Settings,
        sink: WorkerSink | None = None,
        policy: Policy = "fair",
    ) -> None:
        self.settings = settings
        self._closed = threading.Event()
        self._spares = starter.spares
        started = starter.start(range(len(settings.islands)), self._closed)
        numbers = [[host.index for host in hosts] for hosts in started]
        core = ClusterCore(numbers, _limits(settings.options), time.monotonic(), policy)
        self.core = SharedCore(core)
        self.pool = WorkerPool([HostGang(life, own) for life, own in zip(core.gangs, started, strict=True)])
        self.traces = HostTraces(self.pool.hosts, self.pool.send_to_all)
        self.loop = EventLoop(is_served=sink is not None)
        self.listener = WorkerListener(self.core, self.pool, self.traces, self.loop, sink)
        self.effect_runner = EffectRunner(
            self.core, self.pool, self.listener, self.traces, starter, self._closed
        )
        self.core.act = self.effect_runner.run
        self._unneeded: PendingFrees[HostedProgram] = PendingFrees()
        for gang in self.pool.gangs:
            self.listener.attach(gang)
        start_thread(self._keep_time, "clock")
        # Apart: a worker that is stopped takes nothing, and only the clock finds that out.
        start_thread(self._free, "free")

    def spares(self) -> SpareStatus | None:
        """Returns how many spare workers are ready; None if there are to be none."""
        return self._spares.status()

    def close(self) -> None:
        """Ends all workers."""
        if self._closed.is_set():
            return
        self.traces.close()
        self._closed.set()
        # Not with a message, which a worker that is stopped would not take: it hears that this side is gone.
        self._notify_closed("is closed")
        self.effect_runner.close()
        self.loop.close()

    def leave(self) -> None:
        """Gives the workers up in a forked process, for the process that they belong to goes on with them.

        No thread of that process is here, and any lock may be held by one of them for ever.
        """
        self._closed = threading.Event()
        self._closed.set()
        self.loop.leave()
        self.core.reset_locks()
        self.pool.reset_locks()
        # What is to be done, the other process does.
        self.core.act = ignore
        self._notify_closed("belongs to the process that this one was forked from")
        for host in self.pool.hosts:
            host.leave()

    def _notify_closed(self, how: str) -> None:
        self.core.handle(*(GangClosed(gang.life.key, how) for gang in self.pool.gangs))

    def load(self, program: BoundProgram, split: Split) -> HostedProgram:
        """Compiles a program on its hosts, see `Session.load`."""
        gangs = self.pool.current(sorted({place.island for place in program.slices.values()}))
        multi_host = any(len(gang.hosts) > 1 for gang in gangs)
        cut = split(ahead=self.settings.options.ahead, multi_host=multi_host)
        gangs = [gang for gang in gangs if gang.number in cut.by_island]
        number = self.core.take_numbers()
        # What is sent under which number cannot be guessed.
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
                    # Not among steps: a large one would hold them up.
                    self._send(host, load)
            self.loop.wait(lambda: request.is_done() or bool(request.failures))
            for index, failure in request.first_failure():
                raise failure.error(f"program {program.name}, host {index}")
        except BaseException:
            self.core.drop(request)
            # Others may have it.
            self.unload(loaded)
            raise
        return loaded

    def _send(self, host: WorkerHandle, load: Load) -> None:
        try:
            with uninterrupted():
                host.arrays.send(load)
        except ConnectionEnded as error:
            self.listener.lose(host, error)

    def unload(self, program: HostedProgram) -> None:
        """Notes that a program is no longer run; finalizers may call it."""
        self._unneeded.add(program)

    def send_step(self, program: HostedProgram, frames: Sequence[bytes]) -> None:
        """Sends the frames of a step; to hosts that are lost meanwhile it is lost."""
        for host, frame in zip(program.hosts, frames, strict=True):
            try:
                host.steps.send_frames(frame)
            except ConnectionEnded as error:
                self.listener.lose(host, error)

    def send_call(self, hosts: Sequence[WorkerHandle], call: Call) -> None:
        """Sends a call to hosts; with those that are lost meanwhile it is lost."""
        frame = encode(call)
        for host in hosts:
            try:
                host.steps.send_frames(frame)
            except ConnectionEnded as error:
                self.listener.lose(host, error)

    def _keep_time(self) -> None:
        """Tells the core how time goes by."""
        while not self._closed.wait(_TICK_SECONDS):
            self.loop.poll()
            self.core.handle(Tick())

    def _free(self) -> None:
        """Frees what is no longer held, in batches, where no step does so."""
        while not self._closed.wait(_FREE_SECONDS):
            for gang in [*self.pool.gangs]:
                unused = gang.life.unused.take_all()
                if unused and not gang.is_lost():
                    self._send_in_order(gang.hosts, Free(unused))
            for program in self._unneeded.take_all():
                # Steps that were issued still run.
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
