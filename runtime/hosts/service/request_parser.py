"""What clients ask for that has an order, checked, as items for the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pathways.runtime.control.records.errors import lost
from pathways.runtime.control.records.step import SESSION_BITS
from pathways.runtime.control.sharing.scheduler_events import OrderedRequest, QueuedStep
from pathways.runtime.hosts.cluster.host import HostGang
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.protocol.messages import (
    Failed,
    Fetch,
    MessageError,
    StartTrace,
    StopTrace,
)
from pathways.runtime.hosts.protocol.service_messages import (
    ForHost,
    FromHost,
    ReleaseArrays,
    RemoteError,
    StepRefusedNotice,
    Submit,
    SubmitCall,
)
from pathways.runtime.hosts.service.array_sender import RelayedFetch
from pathways.runtime.hosts.service.served_client import ServedCall, ServedClient, ServedStep, ServedTrace

PendingReceive = OrderedRequest | QueuedStep | StepRefusedNotice
"""For the scheduler; or what the client is told at once."""


class RequestParser:
    """Reads what clients ask for.

    Args:
      pool: the workers.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    def read(self, client: ServedClient, message: object) -> Iterable[PendingReceive]:
        """What a message of a client asks for.

        Raises:
          MessageError: it makes no sense.
        """
        match message:
            case Submit():
                return self._step(client, message)
            case SubmitCall():
                return self._call(client, message)
            case ReleaseArrays():
                return self._release(client, message)
            case ForHost(message=Fetch() as fetch):
                return self._fetch(client, message, fetch)
            case ForHost(message=StartTrace() | StopTrace() as trace):
                host = self._pool.host(message.host)
                if host.gang.life.key.start != message.start:
                    return []
                return [OrderedRequest(client.number, host.gang.number, what=ServedTrace(host, trace))]
        raise MessageError(f"a client does not say {type(message).__name__} here")

    def _step(self, client: ServedClient, message: Submit) -> list[PendingReceive]:
        if message.step <= client.last:
            # It was interrupted, and did not know whether it had asked.
            return []
        program = client.programs.get(message.program)
        if program is None:
            raise MessageError(f"{client} has no program {message.program}")
        hosted = program.hosted
        inputs = hosted.inputs
        if not client.owns(message.step) or message.arguments.keys() != inputs.keys():
            raise MessageError(f"{client} asks for step {message.step} in a way that cannot be")
        for island, arrays in message.arguments.items():
            _check_own(client, arrays)
            if len(arrays) != len(inputs[island]):
                raise MessageError(f"program {hosted.name} takes other arguments than {message.arguments}")
        for island, arrays in message.free.items():
            _check_own(client, arrays)
            if island not in inputs:
                raise MessageError(f"program {hosted.name} has no part on island {island}")
        client.last = message.step
        sent = frozenset(message.sent)
        gone = [gang for gang in hosted.gangs if not self._is_current(gang)]
        lost_islands = {gang.number for gang in gone}
        frees = [
            OrderedRequest(client.number, island, arrays, sent=sent.intersection(arrays))
            for island, arrays in message.free.items()
            if island not in lost_islands
        ]
        if gone:
            # What is no longer held on its other islands is freed all the same.
            why = gone[0].life.failure or lost("its island is gone")
            return [*frees, StepRefusedNotice(message.step, RemoteError.of(why))]
        takes = {island: message.arguments[island] for island in inputs}
        program.queued += 1
        return [*frees, ServedStep(client, message.step, program, takes, sent)]

    def _is_current(self, gang: HostGang) -> bool:
        return not gang.is_lost() and self._pool.gangs[gang.number] is gang

    def _call(self, client: ServedClient, message: SubmitCall) -> list[PendingReceive]:
        call = message.call
        if call.call <= client.last:
            return []
        if (
            not client.owns(call.call)
            or call.first != call.call + 1
            or not 0 <= call.lane < 1 << SESSION_BITS
        ):
            raise MessageError(f"{client} asks for call {call.call} in a way that cannot be")
        gang = self._pool.gang(message.island)
        client.last = call.call
        hosts = {host.index for host in gang.hosts}
        if not {*message.hosts, *call.hosts} <= hosts:
            raise MessageError(f"{client} asks for call {call.call} on hosts of another island")
        takes = tuple(kept.array for kept in call.arrays)
        _check_own(client, takes)
        if gang.life.key.start != message.start:
            return [StepRefusedNotice(call.call, RemoteError.of(lost("the workers that had it are gone")))]
        made = call.results or ()
        makes = tuple(range(call.first, call.first + len(made)))
        sent = frozenset(message.sent).intersection(takes)
        served = ServedCall(client, gang, frozenset(message.hosts), call, set(call.hosts))
        served.queued = OrderedRequest(
            client.number,
            message.island,
            (),
            takes,
            makes,
            sent,
            is_call=True,
            number=call.call,
            name=call.function,
            hosts=call.hosts,
            what=served,
        )
        return [served.queued]

    def _release(self, client: ServedClient, message: ReleaseArrays) -> list[PendingReceive]:
        gang = self._pool.gang(message.island)
        _check_own(client, message.arrays)
        if gang.life.key.start != message.start:
            return []
        sent = frozenset(message.sent).intersection(message.arrays)
        return [OrderedRequest(client.number, message.island, message.arrays, sent=sent)]

    def _fetch(self, client: ServedClient, message: ForHost, fetch: Fetch) -> list[PendingReceive]:
        host = self._pool.host(message.host)
        _check_own(client, [fetch.array])
        if host.gang.life.key.start != message.start:
            # It is told that they are gone, too.
            told = Failed(fetch.request, "the workers that had it are gone")
            client.arrays.send(FromHost(host.index, message.start, told))
            return []
        sent = frozenset((fetch.array,)) if message.is_sent else frozenset()
        relayed = RelayedFetch(fetch, host)
        return [
            OrderedRequest(client.number, host.gang.number, arguments=(fetch.array,), sent=sent, what=relayed)
        ]


def _check_own(client: ServedClient, arrays: Sequence[int]) -> None:
    for number in arrays:
        if not client.owns(number):
            raise MessageError(f"{number} is not the number of an array of {client}")
