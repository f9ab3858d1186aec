"""Handler of the requests of clients that have no order among their steps.

These are for devices of slices, programs to load, and the state of workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pathways.dialect.errors import PathwaysError
from pathways.runtime.control.records.errors import HostError, failed, lost
from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram, HostPort
from pathways.runtime.hosts.cluster.worker_cluster import WorkerCluster
from pathways.runtime.hosts.protocol.messages import (
    ClockTime,
    Describe,
    Described,
    DeviceLayout,
    ForeignFacts,
    Message,
    MessageError,
    Ping,
    ReadClock,
    Report,
    RequestReport,
    Unload,
)
from pathways.runtime.hosts.protocol.programs import BoundProgram, SlicePlace, SplitProgram
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.hosts.splitting.splitter import ProgramSplitter
from pathways.runtime.resources.status import SliceStatus
from pathways.runtime.resources.tables import size
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.service.protocol.service_messages import (
    ForHost,
    FromHost,
    LoadForeignProgram,
    LoadProgram,
    MoveSlices,
    QuotaError,
    ReleaseDevices,
    RemoteError,
    RequestDevices,
    ServicePong,
)
from pathways.runtime.service.relayed_replies import RelayedRequest
from pathways.runtime.service.served.bound_slices import BoundSlices
from pathways.runtime.service.served.served_client import ServedClient, ServedProgram, step_bytes
from pathways.runtime.service.sharing.memory import DeviceLimits, StepBytes, bytes_on

_MAX_LOADING = 64
"""Limit on the programs that are compiled for one client at the same time."""

log = logging.getLogger("pathways")

LoadCallback = Callable[[ServedClient, int, ServedProgram | RemoteError], None]
"""Function of a client, the number of its request, and its program or an error."""

_ANYWHERE = DeviceLayout((), (), (), (), None)
"""Layout of operands and results of programs of extensions, whose places their clients know."""


class ControlRequestHandler:
    """Handler of the requests of clients on their connections `watch`, each in the thread of its client.

    Args:
      on_loaded: is called when a program of a client was loaded or failed to load.
      unload: unloads a program of a client, of a given number.
      limits: the memory of the islands that have limits.
      quota_of: returns the quota of a client; None if it shares one with others.
    """

    def __init__(
        self,
        workers: WorkerCluster,
        on_loaded: LoadCallback,
        unload: Callable[[ServedClient, int], None],
        limits: Mapping[int, DeviceLimits],
        quota_of: Callable[[ServedClient], int | None],
    ) -> None:
        self._limits = limits
        self._quota_of = quota_of
        self._workers = workers
        self._core = workers.core
        self._pool = workers.pool
        self._splitter = ProgramSplitter()
        self._slices = BoundSlices(workers.pool.cluster)
        self._on_loaded = on_loaded
        self._unload = unload
        self._lock = threading.Lock()
        # The clock readings in flight, by the numbers of the requests to workers.
        self._clocks: dict[int, tuple[ServedClient, int]] = {}
        self._clock_numbers = itertools.count(1)

    def close(self) -> None:
        """Ends the process that splits programs."""
        self._splitter.close()

    @property
    def bound_slices(self) -> BoundSlices:
        """The slices of all clients, with their devices."""
        return self._slices

    def slices(self) -> dict[ServedClient, tuple[SliceStatus, ...]]:
        """Returns the status of the slices of each client that has some."""
        return self._slices.statuses()

    def extend(self) -> None:
        """Lets clients have devices of an island that has joined."""
        self._slices.extend(self._pool.cluster)

    def remove_client(self, client: ServedClient) -> None:
        """Releases the slices of a disconnected client, and cancels its requests."""
        self._slices.remove_client(client)
        self._splitter.cancel(client)
        with self._lock:
            self._clocks = {n: clock for n, clock in self._clocks.items() if clock[0] is not client}

    def on_clock(self, host: WorkerHandle, reading: ClockTime) -> None:
        """Relays the reading of the clock of a worker to the client that requested it."""
        with self._lock:
            request = self._clocks.pop(reading.number, None)
        if request is not None:
            client, number = request
            reply = ClockTime(number, reading.time)
            client.watch.send(FromHost(host.index, host.gang.life.key.start, reply))

    def handle(self, client: ServedClient, message: object) -> None:
        """Handles a request of a client.

        Raises:
          MessageError: the request is invalid.
        """
        match message:
            case Ping():
                hosts = self._pool.hosts
                trips = {host.index: trip for host in hosts if (trip := host.round_trip.seconds) is not None}
                client.watch.send(ServicePong(message.number, trips, self._workers.spares()))
            case LoadProgram() | LoadForeignProgram():
                with self._lock:
                    client.loading += 1
                    is_over_limit = client.loading > _MAX_LOADING
                if is_over_limit:
                    raise MessageError(f"{client} loads more than {_MAX_LOADING} programs at the same time")
                start_thread(functools.partial(self._load, client, message), "load")
            case RequestDevices():
                client.watch.send(self._slices.bind(client, message))
            case MoveSlices():
                client.watch.send(self._slices.move(client, message))
            case ReleaseDevices():
                self._slices.release(client, message.slices)
            case Unload():
                self._unload(client, message.program)
            case ForHost(message=RequestReport() as request):
                self._request_report(client, message.host, request)
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
                raise MessageError(f"unexpected message {type(message).__name__} from {client}")

    def _request_report(self, client: ServedClient, number: int, request: RequestReport) -> None:
        host = self._pool.host(number)

        def translate(report: Report) -> Report:
            # A client sees its own arrays, programs, steps and calls only.
            arrays, size = report.report.clients.get(client.number, (0, 0))
            programs = [*client.programs.values()]
            names = [p.hosted.name for p in programs if host.index in p.hosted.host_numbers]
            steps = tuple(step for step in report.report.steps if client.has_number(step.run))
            calls = tuple(call for call in report.report.calls if client.has_number(call.number))
            return Report(request.request, HostReport(arrays, size, tuple(sorted(names)), steps, calls))

        self._relay(host, RelayedRequest(client, request.request, translate), lambda n: RequestReport(n))

    def _describe(self, client: ServedClient, number: int, describe: Describe) -> None:
        if describe.program not in client.programs:
            raise MessageError(f"{client} has no program {describe.program}")

        def translate(reply: Any) -> Described:
            assert isinstance(reply, Described)
            return Described(describe.request, reply.memory, reply.flops, reply.text, reply.last, reply.error)

        self._relay(
            self._pool.host(number),
            RelayedRequest(client, describe.request, translate),
            lambda n: Describe(n, describe.program, describe.text),
        )

    def _relay(self, host: WorkerHandle, relayed: RelayedRequest, message: Callable[[int], Message]) -> None:
        """Sends a worker a request of a client, as the message of a number that the core gives it."""
        request = self._core.request([host.index], relayed)
        with contextlib.suppress(ConnectionEnded):
            host.watch.send(message(request.number))

    def _load(self, client: ServedClient, message: LoadProgram | LoadForeignProgram) -> None:
        """Compiles a program for a client; runs in a separate thread."""
        loaded: ServedProgram | RemoteError
        name = message.name if isinstance(message, LoadForeignProgram) else message.program.name
        try:
            if isinstance(message, LoadForeignProgram):
                loaded = self._load_foreign(client, message)
            else:
                program = self._resolve(message.program)
                moved: dict[int, int] = {}

                def split(*, ahead: int | str, multi_host: bool) -> SplitProgram:
                    cut = self._splitter.split(client, program, ahead=ahead, multi_host=multi_host)
                    moved.update({island: part.moved for island, part in cut.by_island.items()})
                    return cut

                loaded = self._limited(client, self._workers.load(program, split), moved=moved)
        except HostError as error:
            loaded = RemoteError.of(error.record())
        except (PathwaysError, MessageError) as error:
            loaded = RemoteError.of(failed(str(error)))
        except Exception as error:
            # Report unexpected errors, such as that no process starts, too: the client waits for a reply.
            log.exception("cannot load program %r of %s", name, client)
            loaded = RemoteError.of(failed(f"program '{name}': {type(error).__name__}: {error}"))
        with self._lock:
            client.loading -= 1
        self._on_loaded(client, message.request, loaded)

    def _load_foreign(self, client: ServedClient, message: LoadForeignProgram) -> ServedProgram:
        """Loads a program of an extension.

        Raises:
          HostError: a host is lost, or cannot load it.
          MessageError: the island does not exist, or the request is about a program of another client.
        """
        if message.about and message.about not in client.programs:
            raise MessageError(f"{client} has no program {message.about}")
        gang = self._pool.gang(message.island)
        if gang.life.key.start != message.start:
            raise lost(f"{gang.name} was restarted").error()
        number, replies = self._workers.load_foreign(
            message.name, gang.hosts, message.kind, message.body, message.about
        )
        # Each host with devices of the program knows all operands and results; the others know their numbers.
        donated = {operand for reply in replies for operand in reply.donated}
        location = gang.location(_ANYWHERE)
        inputs = tuple(HostPort(n, location, n in donated) for n in range(replies[0].operands))
        outputs = tuple(HostPort(n, location) for n in range(replies[0].results))
        island = gang.number
        hosted = HostedProgram(number, message.name, (gang,), {island: inputs}, {island: outputs})
        hosted = dataclasses.replace(hosted, memory=tuple(reply.memory for reply in replies))
        return self._limited(client, hosted, tuple(replies))

    def _limited(
        self,
        client: ServedClient,
        hosted: HostedProgram,
        foreign: tuple[ForeignFacts, ...] = (),
        moved: Mapping[int, int] = types.MappingProxyType({}),
    ) -> ServedProgram:
        """Returns a program with the memory of its steps, on islands with limits, and of its results.

        Raises:
          QuotaError: no step ever fits the quota of the client, or the pool.
        """
        needs, sizes = {}, {}
        for gang in hosted.gangs:
            of_hosts = zip(hosted.hosts, hosted.memory, strict=True)
            reports = [memory for host, memory in of_hosts if host.gang is gang]
            need = step_bytes(reports, len(hosted.outputs[gang.number]))
            # The memory of views is the memory of their arguments.
            sizes[gang.number] = tuple(0 if need.is_view else bytes_on(each) for each in need.results)
            limits = self._limits.get(gang.number)
            if limits is None:
                continue
            needs[gang.number] = need
            why = self._why_never(client, gang, need, limits)
            if why is not None:
                self._workers.unload(hosted)
                raise QuotaError(f"program '{hosted.name}' {why}")
        return ServedProgram(hosted, foreign, needs, sizes, moved)

    def _why_never(
        self, client: ServedClient, gang: HostGang, need: StepBytes, limits: DeviceLimits
    ) -> str | None:
        """Returns why no step of a program ever fits an island; None if one may."""
        quota = self._quota_of(client)
        most = limits.memory - limits.pool if quota is None else quota
        for counts, limit, purpose, name in (
            (need.temporaries, limits.pool, "temporaries", "pool"),
            (need.allocated, most, "results", f"quota of {client}"),
        ):
            count = max((number for _, number in counts), default=0)
            if count > limit:
                return (
                    f"needs {size(count)} for {purpose} on a device of {gang.name}, more than the {name}, "
                    f"{size(limit)}: it cannot run there"
                )
        return None

    def _resolve(self, program: BoundProgram) -> BoundProgram:
        """Returns a program with the memory and hosts of its devices, which the client does not provide.

        Raises:
          MessageError: the program is for devices that do not exist.
        """
        islands = {island.name: island for island in self._pool.cluster.islands}
        places = {}
        for name, place in program.slices.items():
            island = islands.get(f"island{place.island}")
            by_id = {} if island is None else {device.id: device for device in island.devices}
            if not set(place.devices) <= set(by_id) or math.prod(place.mesh) != len(place.devices):
                raise MessageError(f"program '{program.name}': slice '{name}' has invalid devices: {place}")
            devices = [by_id[number] for number in place.devices]
            memory = min((device.memory for device in devices if device.memory is not None), default=None)
            owners = tuple(device.host.index for device in devices)
            places[name] = SlicePlace(
                place.island, place.devices, owners, memory, place.mesh, place.axis_names
            )
        return msgspec.structs.replace(program, slices=places)
