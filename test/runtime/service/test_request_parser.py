"""Requests of clients, as the scheduler gets them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pathways.runtime.control.records.errors import lost
from pathways.runtime.control.records.events import GangKey
from pathways.runtime.control.records.step import SESSION_BITS
from pathways.runtime.service.protocol.service_messages import StepRefusedNotice, Submit
from pathways.runtime.service.served.request_parser import RequestParser
from pathways.runtime.service.served.served_client import ServedClient, ServedProgram
from pathways.runtime.service.sharing.accounts import Accounts
from pathways.runtime.service.sharing.scheduler_events import OrderedRequest

FIRST = 1 << SESSION_BITS


def gang(number: int, is_lost: bool) -> Any:
    failure = lost("it was lost") if is_lost else None
    life = SimpleNamespace(failure=failure, key=GangKey(number, 0))
    return SimpleNamespace(number=number, life=life, hosts=())


def test_requests_free_arrays_of_a_refused_step():
    """Arrays on islands that were not lost are freed, and then the step is refused."""
    gangs = [gang(0, False), gang(1, True)]
    client = ServedClient(1, "bob", None)
    hosted: Any = SimpleNamespace(
        name="f", number=7, gangs=gangs, inputs={0: (), 1: ()}, outputs={0: (), 1: ()}, share=1
    )
    client.programs[7] = ServedProgram(hosted)
    requests = RequestParser(SimpleNamespace(gangs=gangs), Accounts())
    step = Submit(FIRST + 9, 7, {0: (), 1: ()}, (FIRST + 2,), {0: (FIRST + 1, FIRST + 2), 1: (FIRST + 3,)})
    free, refused = requests.parse(client, step)
    assert isinstance(free, OrderedRequest)
    assert (free.client, free.island, free.frees) == (1, 0, (FIRST + 1, FIRST + 2))
    assert free.sent == {FIRST + 2}
    assert isinstance(refused, StepRefusedNotice)
    assert refused.step == FIRST + 9
    assert client.programs[7].queued == 0
