"""The controller of workers that this process has started."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Mapping, Sequence

from pathways.runtime.control.core import ClusterCore, Limits
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.events import Closed, Event, Tick
from pathways.runtime.control.records.step import Step
from pathways.runtime.control.sharing.scheduler import Policy
from pathways.runtime.hosts.cluster.controller import Controller, Split
from pathways.runtime.hosts.cluster.event_loop import EventLoop
from pathways.runtime.hosts.cluster.host import HostGang, HostProcess
from pathways.runtime.hosts.cluster.hosted import HostedProgram
from pathways.runtime.hosts.cluster.islands import Islands
from pathways.runtime.hosts.cluster.shared_core import SharedCore
from pathways.runtime.hosts.cluster.worker_listener import WorkerListener, WorkerSink
from pathways.runtime.hosts.controller.effect_runner import EffectRunner
from pathways.runtime.hosts.controller.starting import Starter
from pathways.runtime.hosts.launch.options import AUTO, MOST_AHEAD, HostOptions
from pathways.runtime.hosts.launch.settings import Settings
from pathways.runtime.hosts.protocol.frames import encode
from pathways.runtime.hosts.protocol.messages import Call, Free, Load, Unload
from pathways.runtime.hosts.protocol.programs import BoundProgram
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.hosts.trace.host_traces import HostTraces
from pathways.runtime.resources.status import SpareStatus
from pathways.runtime.resources.threads import start_thread

_TICK_SECONDS = 0.05
_FREE_SECONDS = 0.05


class OwnController(Controller):
    """The controller of workers that this process has started; they end with it.

    What becomes of them is decided by a core (`runtime.control`); `WorkerListener` tells it what they say,
    and `EffectRunner` carries out its effects.

    Args:
      starter: starts the workers.
      settings: what the user says of them.
      sink: hears what workers say of steps, for a service; see `WorkerListener`.
      policy: whose step is next, see `ClusterCore`.

    Attributes:
      settings: what the user says of them.
      listener: listens to them.
      effect_runner: carries out what the core wants.

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
        closed = threading.Event()
        started = starter.start(range(len(settings.islands)), closed)
        numbers = [[host.index for host in hosts] for hosts in started]
        core = ClusterCore(numbers, _limits(settings.options), time.monotonic(), policy)
        shared = SharedCore(core)
        islands = Islands([HostGang(life, own) for life, own in zip(core.gangs, started, strict=True)])
        self.traces = HostTraces(islands.hosts, self.tell_all)
        loop = EventLoop(is_served=sink is not None)
        listener = WorkerListener(shared, islands, self.traces, loop, sink)
        super().__init__(shared, islands, listener.loop)
        self._spares = starter.spares
        self._closed = closed
        self.listener = listener
        self.effect_runner = EffectRunner(
            self.core, self.islands, listener, self.traces, starter, self.order, self._closed
        )
        self.core.act = self.effect_runner.run
        for gang in self.islands.gangs:
            listener.attach(gang)
        start_thread(self._keep_time, "clock")
        # Apart: a worker that is stopped takes nothing, and only the clock finds that out.
        start_thread(self._free, "free")

    @property
    def step_deadline(self) -> float | None:
        """After how many seconds a step is ended, and a loop without a known end; None for never."""
        return self.settings.options.step_deadline

    def spares(self) -> SpareStatus | None:
        """See `Controller.spares`."""
        return self._spares.status()

    def close(self) -> None:
        """Ends all workers."""
        if self._closed.is_set():
            return
        self.traces.close()
        self._closed.set()
        # Not with a message, which a worker that is stopped would not take: it hears that this side is gone.
        self.core.tell(*self._closed_events("is closed"))
        self.effect_runner.close()
        self._loop.close()

    def _closed_events(self, how: str) -> Sequence[Event]:
        return [Closed(gang.life.key, how) for gang in self.islands.gangs]

    def load(self, program: BoundProgram, split: Split) -> HostedProgram:
        """See `Controller.load`."""
        gangs = self.islands.current(sorted({place.island for place in program.slices.values()}))
        together = any(len(gang.hosts) > 1 for gang in gangs)
        cut = split(ahead=self.settings.options.ahead, together=together)
        gangs = [gang for gang in gangs if gang.number in cut.parts]
        number = self.core.take_numbers()
        # What is sent under which number cannot be guessed.
        base = secrets.randbelow(1 << 61)
        hosts = [host for gang in gangs for host in gang.hosts]
        request = self.core.ask([host.index for host in hosts])
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
            for part in [cut.parts[gang.number]]
        }
        loaded = HostedProgram.of(number, program.name, gangs, cut.inputs, cut.outputs, cut.share)
        try:
            for gang, load in loads.items():
                for host in gang.hosts:
                    # Not among steps: a large one would hold them up.
                    self._speak(host, host.arrays.send, load)
            self._loop.wait(lambda: request.is_done() or bool(request.failures))
            for index, failure in request.first_failure():
                raise failure.error(f"program {program.name}, host {index}")
        except BaseException:
            self.core.drop(request)
            # Others may have it.
            self.unload(loaded)
            raise
        return loaded

    def _wait_for_room(self, program: HostedProgram) -> None:
        for life in program.lives:
            life.check_open()
            while (oldest := life.window.blocker(program.share)) is not None:
                self._loop.wait(oldest.is_done)
                self._waits.add(time.monotonic() - oldest.began)

    def _frames(
        self, step: Step, program: HostedProgram, arguments: Mapping[int, Sequence[int]]
    ) -> list[bytes]:
        return program.frames(step.number, step.number + 1, arguments)

    def _send_step(self, program: HostedProgram, frames: Sequence[bytes]) -> None:
        for host, frame in zip(program.hosts, frames, strict=True):
            try:
                host.steps.send_frames(frame)
            except ConnectionEnded as error:
                self._lose(host, error)

    def _send_call(self, hosts: Sequence[HostProcess], call: Call) -> None:
        frame = encode(call)
        for host in hosts:
            try:
                host.steps.send_frames(frame)
            except ConnectionEnded as error:
                self._lose(host, error)

    def _lose(self, host: HostProcess, error: ConnectionEnded) -> None:
        self.listener.lose(host, error)

    def _keep_time(self) -> None:
        """Tells the core how time goes by."""
        while not self._closed.wait(_TICK_SECONDS):
            self._loop.poll()
            self.core.tell(Tick())

    def _free(self) -> None:
        """Frees what is no longer held, in batches, where no step does so."""
        while not self._closed.wait(_FREE_SECONDS):
            for gang in [*self.islands.gangs]:
                unused = gang.life.unused.take()
                for host in gang.hosts if unused else ():
                    with contextlib.suppress(HostError):
                        self._send(host, Free(unused))
            for program in self._unneeded.take():
                for host in program.hosts:
                    # Steps that were issued still run.
                    with contextlib.suppress(HostError):
                        self._send(host, Unload(program.number))


def _limits(options: HostOptions) -> Limits:
    return Limits(
        MOST_AHEAD if options.ahead == AUTO else options.ahead,
        options.heartbeat,
        options.grace,
        options.stall_report,
        options.step_deadline,
        options.restart_seconds,
    )
