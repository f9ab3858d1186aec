"""What a client asks for that has no order among its steps: devices of
slices, programs to load, and how workers are."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from pathways.dialect.errors import PathwaysError
from pathways.runtime.control.records.errors import HostError, failed
from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.cluster.worker_cluster import WorkerCluster
from pathways.runtime.hosts.protocol.messages import (
    ClockTime,
    Describe,
    Described,
    MessageError,
    Ping,
    ReadClock,
    Report,
    RequestReport,
    Unload,
)
from pathways.runtime.hosts.protocol.programs import BoundProgram, SlicePlace
from pathways.runtime.hosts.protocol.service_messages import (
    ForHost,
    FromHost,
    LoadProgram,
    ReleaseDevices,
    RemoteError,
    RequestDevices,
    ServicePong,
)
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.hosts.service.bound_slices import BoundSlices
from pathways.runtime.hosts.service.relayed_replies import RelayedRequest
from pathways.runtime.hosts.service.served_client import ServedClient
from pathways.runtime.hosts.splitting.splitter import ProgramSplitter
from pathways.runtime.resources.threads import start_thread

_MOST_LOADING = 64

log = logging.getLogger("pathways")

Loaded = Callable[[ServedClient, int, HostedProgram | RemoteError], None]
"""Is called with a client, the number of its request, and a program, or why there is none."""


class ControlRequestHandler:
    """Answers what clients ask on `watch`.

    Args:
      workers: the workers.
      loaded: is called when a program is loaded for a client.
      unload: is called when a client needs a program no more.
    """

    def __init__(
        self,
        workers: WorkerCluster,
        loaded: Loaded,
        unload: Callable[[ServedClient, int], None],
    ) -> None:
        self._workers = workers
        self._core = workers.core
        self._pool = workers.pool
        self._splitter = ProgramSplitter()
        self._slices = BoundSlices(workers.pool.cluster)
        self._loaded = loaded
        self._unload = unload
        self._lock = threading.Lock()
        self._clocks: dict[int, tuple[ServedClient, int]] = {}
        self._clock_numbers = itertools.count(1)

    def close(self) -> None:
        """Ends the process that cuts programs."""
        self._splitter.close()

    def forget(self, client: ServedClient) -> None:
        """A client is gone."""
        self._slices.forget(client)
        self._splitter.cancel(client)
        with self._lock:
            self._clocks = {n: asked for n, asked in self._clocks.items() if asked[0] is not client}

    def on_clock(self, host: WorkerHandle, said: ClockTime) -> None:
        """A worker says what time it is."""
        with self._lock:
            asked = self._clocks.pop(said.number, None)
        if asked is not None:
            client, number = asked
            told = ClockTime(number, said.time)
            client.watch.send(FromHost(host.index, host.gang.life.key.start, told))

    def take(self, client: ServedClient, message: object) -> None:
        """Takes what a client asks.

        Raises:
          MessageError: it makes no sense.
        """
        match message:
            case Ping():
                hosts = self._pool.hosts
                trips = {host.index: trip for host in hosts if (trip := host.round_trip.seconds) is not None}
                client.watch.send(ServicePong(message.number, trips))
            case LoadProgram():
                with self._lock:
                    client.loading += 1
                    is_too_much = client.loading > _MOST_LOADING
                if is_too_much:
                    raise MessageError(f"{client} loads more than {_MOST_LOADING} programs at the same time")
                start_thread(functools.partial(self._load, client, message), "load")
            case RequestDevices():
                client.watch.send(self._slices.bind(client, message))
            case ReleaseDevices():
                self._slices.release(client, message.slices)
            case Unload():
                self._unload(client, message.program)
            case ForHost(message=RequestReport() as ask):
                self._ask(client, message.host, ask)
            case ForHost(message=Describe() as describe):
                self._describe(client, message.host, describe)
            case ForHost(message=ReadClock() as read):
                host = self._pool.host(message.host)
                number = next(self._clock_numbers)
                with self._lock:
                    self._clocks[number] = client, read.number
                with contextlib.suppress(ConnectionEnded):
                    host.watch.send(ReadClock(number))
            case _:
                raise MessageError(f"a client does not say {type(message).__name__} here")

    def _ask(self, client: ServedClient, number: int, ask: RequestReport) -> None:
        host = self._pool.host(number)

        def answer(report: Report) -> Report:
            arrays, size = report.report.clients.get(client.number, (0, 0))
            programs = [*client.programs.values()]
            names = [p.hosted.name for p in programs if host.index in p.hosted.host_numbers]
            steps = tuple(step for step in report.report.steps if client.owns(step.run))
            calls = tuple(call for call in report.report.calls if client.owns(call.number))
            return Report(ask.request, HostReport(arrays, size, tuple(sorted(names)), steps, calls))

        self._question(host, RelayedRequest(client, ask.request, answer), lambda n: RequestReport(n))

    def _describe(self, client: ServedClient, number: int, describe: Describe) -> None:
        if describe.program not in client.programs:
            raise MessageError(f"{client} has no program {describe.program}")

        def answer(said: Any) -> Described:
            assert isinstance(said, Described)
            return Described(describe.request, said.memory, said.flops, said.text, said.last, said.error)

        self._question(
            self._pool.host(number),
            RelayedRequest(client, describe.request, answer),
            lambda n: Describe(n, describe.program, describe.text),
        )

    def _question(self, host: WorkerHandle, question: RelayedRequest, message: Any) -> None:
        request = self._core.ask([host.index], question)
        with contextlib.suppress(ConnectionEnded):
            host.watch.send(message(request.number))

    def _load(self, client: ServedClient, message: LoadProgram) -> None:
        """Compiles a program for a client; in a thread of its own."""
        loaded: HostedProgram | RemoteError
        try:
            program = self._checked(message.program)
            split = functools.partial(self._splitter.split, client, program)
            loaded = self._workers.load(program, split)
        except HostError as error:
            loaded = RemoteError.of(error.record())
        except (PathwaysError, MessageError) as error:
            loaded = RemoteError.of(failed(str(error)))
        except Exception as error:
            # What nobody foresaw, such as that no process starts, is an error to this client, too.
            log.exception("program '%s' of %s", message.program.name, client)
            loaded = RemoteError.of(
                failed(f"program '{message.program.name}': {type(error).__name__}: {error}")
            )
        with self._lock:
            client.loading -= 1
        self._loaded(client, message.request, loaded)

    def _checked(self, program: BoundProgram) -> BoundProgram:
        """A program, with what this service knows of its devices.

        Raises:
          MessageError: there are no such devices.
        """
        islands = {island.name: island for island in self._pool.cluster.islands}
        places = {}
        for name, place in program.slices.items():
            island = islands.get(f"island{place.island}")
            by_id = {} if island is None else {device.id: device for device in island.devices}
            if not set(place.devices) <= set(by_id) or math.prod(place.mesh) != len(place.devices):
                raise MessageError(f"program '{program.name}': slice {name} lies on no devices: {place}")
            devices = [by_id[number] for number in place.devices]
            memory = min((device.memory for device in devices if device.memory is not None), default=None)
            owners = tuple(device.host.index for device in devices)
            places[name] = SlicePlace(
                place.island, place.devices, owners, memory, place.mesh, place.axis_names
            )
        return msgspec.structs.replace(program, slices=places)
