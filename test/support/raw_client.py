"""Client of a service that has no JAX: it runs one program again and again, in one of three ways.

    raw_client.py SOCKET TOKEN NAME PROGRAM WAY

PROGRAM is a file with a `BoundProgram`. WAY is `steps`: prints the number of steps in each 0.1 seconds;
`flood`: requests steps without ever reading a reply; `stop`: announces an array, sends half of it, requests a
step that reads it, and stops; when it continues, it sends the other half and prints the result of the step.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.protocol.frames import encode
from pathways.runtime.hosts.protocol.messages import Chunk, Put
from pathways.runtime.hosts.protocol.programs import BoundProgram
from pathways.runtime.service.client.attaching import Attachment, attach_at
from pathways.runtime.service.protocol.service_messages import Submit

LANES = 8
"""Number of steps in flight."""


def put_all(controller: HostSession, program: HostedProgram) -> dict[int, list[int]]:
    """Puts zeros for all arguments of a program; returns their numbers by islands."""
    numbers: dict[int, list[int]] = {}
    for island, ports in program.inputs.items():
        numbers[island] = [controller.take_numbers() for _ in ports]
        for number, port in zip(numbers[island], ports, strict=True):
            controller.put(np.zeros(4, np.float32), port.location, number)
    return numbers


def steps(controller: HostSession, program: HostedProgram) -> None:
    arguments = put_all(controller, program)
    count, then = 0, time.monotonic()
    issued = []
    while True:
        step = controller.run(program, arguments)
        for gang in program.gangs:
            for position in range(len(program.outputs[gang.number])):
                gang.life.unused.add(step.number + 1 + position)
        issued.append(step)
        if len(issued) > LANES:
            controller.wait_for_step(issued.pop(0))
            count += 1
        if time.monotonic() - then > 0.1:
            print(count, flush=True)
            count, then = 0, time.monotonic()


def flood(controller: HostSession, program: HostedProgram) -> None:
    taken = {island: tuple(own) for island, own in put_all(controller, program).items()}
    sent = tuple({number for own in taken.values() for number in own})
    controller._loop.remove(controller._service.steps)
    print("floods", flush=True)
    while True:
        number = controller.take_numbers(8)
        controller._service.steps.send_frames(encode(Submit(number, program.number, taken, sent)))


def stop(controller: HostSession, program: HostedProgram) -> None:
    location = next(iter(program.inputs.values()))[0].location
    host = location.gang.hosts[0]
    number = controller.take_numbers()
    controller._sent.add(number)
    host.arrays.send(Put(number, (4,), "float32", location.placement, (0,)))
    halves = [memoryview(np.float32(half)).cast("B") for half in ([1, 2], [3, 4])]
    host.arrays.send_with(Chunk(number, 0, 0, 8), halves[0])
    taken = dict.fromkeys(program.inputs, (number,))
    step = Submit(controller.take_numbers(8), program.number, taken, (number,))
    controller._service.steps.send(step)
    # It stops for longer than the heartbeat of the service.
    controller._heartbeat = 1.0
    print("stops", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.5)
    host.arrays.send_with(Chunk(number, 0, 8, 8), halves[1])
    (result,) = controller.fetch(controller.request_bytes(location, host.index, step.step + 1, (0,), (16,)))
    print(np.frombuffer(result, np.float32).tolist(), flush=True)


def main() -> int:
    place, token, name, path, way = sys.argv[1:]
    controller = attach_at(place, Path(token).read_bytes(), Attachment("test", name))
    bound = msgspec.msgpack.decode(Path(path).read_bytes(), type=BoundProgram)
    # The service splits it.
    program = controller.load(bound, lambda **_: None)  # type: ignore[arg-type, return-value]
    {"steps": steps, "flood": flood, "stop": stop}[way](controller, program)
    return 0


if __name__ == "__main__":
    sys.exit(main())
