"""Parser of the ordered requests of clients, which checks them for the scheduler."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Sequence

import numpy as np

from pathways.dialect.attributes.dtypes import DTYPES
from pathways.runtime.control.records.errors import lost
from pathways.runtime.control.records.step import SESSION_BITS
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.protocol.messages import Call, Failed, Fetch, MessageError, StartTrace, StopTrace
from pathways.runtime.service.protocol.service_messages import (
    ClientOrigin,
    ForHost,
    FromHost,
    ReleaseArrays,
    RemoteError,
    StepRefusedNotice,
    Submit,
    SubmitCall,
)
from pathways.runtime.service.relaying.array_sender import RelayedFetch
from pathways.runtime.service.relaying.incoming_arrays import shard_bytes
from pathways.runtime.service.served.served_client import ServedCall, ServedClient, ServedStep, ServedTrace
from pathways.runtime.service.sharing.accounts import Accounts, StepUse
from pathways.runtime.service.sharing.memory import DeviceBytes, bytes_on
from pathways.runtime.service.sharing.scheduler_events import OrderedRequest, QueuedStep

ParsedRequest = OrderedRequest | QueuedStep | StepRefusedNotice
"""A request for the scheduler, or a refusal that is sent to the client at once."""


_WORKERS_LOST = "the workers that had it were lost"


class RequestParser:
    """Parser of the messages in which clients submit steps and calls, free and fetch arrays, and trace.

    Args:
      pool: the workers.
      accounts: the accounts of clients.
      limited: the islands where memory is limited; further ones may join.
    """

    def __init__(self, pool: WorkerPool, accounts: Accounts, limited: Container[int] = ()) -> None:
        self._pool = pool
        self._accounts = accounts
        self._limited = limited

    def parse(self, client: ServedClient, message: object) -> Iterable[ParsedRequest]:
        """Returns the requests in a message of a client.

        Raises:
          MessageError: the message is invalid.
        """
        match message:
            case ClientOrigin():
                client.origin = message
                return []
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
                return [OrderedRequest(client.number, host.gang.number, context=ServedTrace(host, trace))]
        raise MessageError(f"unexpected message {type(message).__name__} from {client}")

    def _step(self, client: ServedClient, message: Submit) -> list[ParsedRequest]:
        if message.step <= client.last:
            # The client was interrupted while it submitted the step, and submits it again.
            return []
        program = client.programs.get(message.program)
        if program is None:
            raise MessageError(f"{client} has no program {message.program}")
        hosted = program.hosted
        inputs = hosted.inputs
        if not client.has_number(message.step) or message.arguments.keys() != inputs.keys():
            raise MessageError(f"{client}: invalid step request {message.step}")
        for island, arrays in message.arguments.items():
            _check_own(client, arrays)
            if len(arrays) != len(inputs[island]):
                raise MessageError(
                    f"program '{hosted.name}' does not accept the arguments {message.arguments}"
                )
        for island, arrays in message.free.items():
            _check_own(client, arrays)
            if island not in inputs:
                raise MessageError(f"program '{hosted.name}' does not run on island {island}")
        client.last = message.step
        sent = frozenset(message.sent)
        current = self._pool.gangs
        lost_gangs = {
            gang.number: gang
            for gang in hosted.gangs
            if gang.life.failure is not None or current[gang.number] is not gang
        }
        frees = [
            OrderedRequest(client.number, island, arrays, sent=sent.intersection(arrays))
            for island, arrays in message.free.items()
            if island not in lost_gangs
        ]
        if lost_gangs:
            # The client frees these arrays only once, so they are freed although the step is refused.
            first = next(iter(lost_gangs.values()))
            why = first.life.failure or lost("its island was lost")
            return [*frees, StepRefusedNotice(message.step, RemoteError.of(why))]
        arguments = {island: message.arguments[island] for island in inputs}
        program.queued += 1
        return [*frees, ServedStep(client, message.step, program, arguments, sent)]

    def _call(self, client: ServedClient, message: SubmitCall) -> list[ParsedRequest]:
        call = message.call
        if call.call <= client.last:
            return []
        if (
            not client.has_number(call.call)
            or call.first != call.call + 1
            or not 0 <= call.lane < 1 << SESSION_BITS
        ):
            raise MessageError(f"{client}: invalid call request {call.call}")
        gang = self._pool.gang(message.island)
        client.last = call.call
        hosts = {host.index for host in gang.hosts}
        if not {*message.hosts, *call.hosts} <= hosts:
            raise MessageError(f"{client}: call {call.call} is on hosts of another island")
        arguments = tuple(argument.array for argument in call.arrays)
        _check_own(client, arguments)
        if gang.life.key.start != message.start:
            return [StepRefusedNotice(call.call, RemoteError.of(lost(_WORKERS_LOST)))]
        results = tuple(range(call.first, call.first + len(call.results or ())))
        sent = frozenset(message.sent).intersection(arguments)
        served = ServedCall(client, gang, frozenset(message.hosts), call, set(call.hosts))
        sizes = _memory_of(call)
        account = self._accounts.open(client.name, call.function, message.island, time.monotonic())
        served.queued = OrderedRequest(
            client.number,
            message.island,
            (),
            arguments,
            results,
            sent,
            is_call=True,
            number=call.call,
            name=call.function,
            hosts=call.hosts,
            memory=sizes if message.island in self._limited else (),
            use=StepUse(account, tuple(map(bytes_on, sizes))),
            context=served,
        )
        return [served.queued]

    def _release(self, client: ServedClient, message: ReleaseArrays) -> list[ParsedRequest]:
        gang = self._pool.gang(message.island)
        _check_own(client, message.arrays)
        if gang.life.key.start != message.start:
            return []
        sent = frozenset(message.sent).intersection(message.arrays)
        return [OrderedRequest(client.number, message.island, message.arrays, sent=sent)]

    def _fetch(self, client: ServedClient, message: ForHost, fetch: Fetch) -> list[ParsedRequest]:
        host = self._pool.host(message.host)
        _check_own(client, [fetch.array])
        if host.gang.life.key.start != message.start:
            # The client does not know yet that the island was lost, and waits for a reply.
            failure = Failed(fetch.request, _WORKERS_LOST)
            client.arrays.send(FromHost(host.index, message.start, failure))
            return []
        sent = frozenset((fetch.array,)) if message.is_sent else frozenset()
        relayed = RelayedFetch(fetch, host)
        return [
            OrderedRequest(
                client.number,
                host.gang.number,
                arguments=(fetch.array,),
                sent=sent,
                moved=max(fetch.size, 0),
                context=relayed,
            )
        ]


def _memory_of(call: Call) -> tuple[DeviceBytes, ...]:
    """Returns the bytes of the results of a call on the devices of its island.

    Raises:
      MessageError: the client declares an invalid result.
    """
    name = f"a result of function {call.function}"
    sizes = []
    for result in call.results or ():
        if result.dtype not in DTYPES.values():
            raise MessageError(f"{name} has dtype {result.dtype!r}, which programs do not support")
        count = shard_bytes(name, result.shape, np.dtype(result.dtype), result.placement)
        sizes.append(tuple((device, count) for device in result.placement.devices))
    return tuple(sizes)


def _check_own(client: ServedClient, arrays: Sequence[int]) -> None:
    """Checks that arrays have numbers of a client, which are all that it may use."""
    for number in arrays:
        if not client.has_number(number):
            raise MessageError(f"array {number} is not one of {client}")
