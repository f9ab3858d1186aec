"""The process on a host: it runs the host's part of every step, in the order in which the controller asks.

One thread reads messages, one issues steps, one waits for their results, and one sends arrays that the
controller fetches. Arrays go from worker to worker over JAX's transfer server, never through the controller.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.runtime.hosts.messages import (
    CHUNK,
    Chunk,
    DeviceLayout,
    Done,
    Failed,
    Fetch,
    Free,
    Hello,
    Load,
    LoadDone,
    MessageError,
    Ping,
    Pong,
    Put,
    Run,
    Unload,
    versions,
)
from pathways.runtime.hosts.target import Peers, WorkerTarget
from pathways.runtime.hosts.wire import Connection, ConnectionEnded, greet_controller
from pathways.runtime.local.devices import discover
from pathways.runtime.local.load import Executable, load
from pathways.runtime.local.slots import aval_of
from pathways.runtime.plan.lower import host_plans_of
from pathways.runtime.resources.cluster import Device
from pathways.runtime.resources.manager import Binding
from pathways.runtime.xla import pjrt


@dataclasses.dataclass(frozen=True)
class Poison:
    """What stands for an array that a failed step should have made."""

    error: str


@dataclasses.dataclass(frozen=True)
class Hosted:
    """A program of this host: the function, and what its sends and receipts are bound to."""

    name: str
    executable: Executable
    target: WorkerTarget


class Incoming:
    """An array that is coming from the controller, shard by shard."""

    def __init__(self, put: Put, devices: dict[int, jax.Device]) -> None:
        self.put = put
        placement = put.placement
        handles = np.array([devices[number] for number in placement.devices], dtype=object)
        mesh = Mesh(handles.reshape(placement.mesh), placement.axis_names)
        self.sharding = NamedSharding(mesh, _spec(placement))
        self.handles = list(handles)
        self.dtype = jax.numpy.dtype(put.dtype)
        self.shape = self.sharding.shard_shape(put.shape)
        count = max(put.shards, default=-1) + 1
        self.shards = [np.empty(self.shape, self.dtype) for _ in range(count)]
        self.left = sum(shard.nbytes for shard in self.shards)

    def take(self, chunk: Chunk) -> None:
        """Fills in some bytes.

        Raises:
          MessageError: they are not of this array.
        """
        if not 0 <= chunk.shard < len(self.shards):
            raise MessageError(f"array {chunk.array} has no shard {chunk.shard}")
        flat = self.shards[chunk.shard].reshape(-1).view(np.uint8)
        if chunk.offset < 0 or chunk.offset + len(chunk.data) > flat.size:
            raise MessageError(f"array {chunk.array} is smaller than what comes of it")
        flat[chunk.offset : chunk.offset + len(chunk.data)] = np.frombuffer(chunk.data, np.uint8)
        self.left -= len(chunk.data)

    def array(self) -> jax.Array:
        """The array, on its devices."""
        # Without x64 JAX would narrow what has 64 bits.
        with jax.enable_x64(True):
            placed = [
                jax.device_put(self.shards[shard], handle)
                for shard, handle in zip(self.put.shards, self.handles, strict=True)
            ]
        return jax.make_array_from_single_device_arrays(self.put.shape, self.sharding, placed)


class Worker:
    """The state of a worker.

    Args:
      connection: to the controller.
      peers: to the other workers.
      devices: those of this host.
    """

    def __init__(self, connection: Connection[Any], peers: Peers, devices: tuple[Device, ...]) -> None:
        self.connection = connection
        self.peers = peers
        self.devices = {device.id: device for device in devices}
        self.handles = {handle.id: handle for handle in jax.devices() if handle.id in self.devices}
        self.arrays: dict[int, Any] = {}
        self.programs: dict[int, Hosted] = {}
        self.incoming: dict[int, Incoming] = {}
        self.steps: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.waiting: queue.SimpleQueue[tuple[int, list[Any], str | None]] = queue.SimpleQueue()
        self.fetches: queue.SimpleQueue[tuple[Fetch, Any]] = queue.SimpleQueue()

    def serve(self) -> None:
        """Serves the controller.

        Raises:
          ConnectionEnded: it is gone.
          MessageError: it sent something that is no message to a worker.
        """
        for work in (self.issue, self.wait, self.send_fetched):
            threading.Thread(target=self.guarded, args=(work,), name=work.__name__, daemon=True).start()
        while True:
            message = self.connection.receive()
            match message:
                case Ping():
                    self.connection.send(Pong(message.number))
                case Put():
                    self.begin(message)
                case Chunk():
                    self.fill(message)
                case Load() | Run() | Free() | Fetch() | Unload():
                    self.steps.put(message)
                case _:
                    raise MessageError(f"a worker does not take {type(message).__name__}")

    def guarded(self, work: Callable[[], None]) -> None:
        """Runs the loop of a thread; its end is the end of the process, which the controller sees."""
        try:
            work()
        except ConnectionEnded:
            pass
        except BaseException:
            traceback.print_exc()
        self.connection.close()

    def begin(self, put: Put) -> None:
        self.incoming[put.array] = Incoming(put, self.handles)
        self.finish(put.array)

    def fill(self, chunk: Chunk) -> None:
        if chunk.array not in self.incoming:
            raise MessageError(f"array {chunk.array} was not announced")
        self.incoming[chunk.array].take(chunk)
        self.finish(chunk.array)

    def finish(self, number: int) -> None:
        """Places an array when all of it is there, before any step that comes behind it."""
        if self.incoming[number].left == 0:
            self.arrays[number] = self.incoming.pop(number).array()

    def issue(self) -> None:
        """The dispatch thread: everything that has an order, in that order."""
        while True:
            message = self.steps.get()
            match message:
                case Run():
                    self.run(message)
                case Free():
                    for number in message.arrays:
                        self.arrays.pop(number, None)
                        # What the controller gave up in the middle.
                        self.incoming.pop(number, None)
                case Fetch():
                    self.fetches.put((message, self.arrays.get(message.array)))
                case Unload():
                    self.programs.pop(message.program, None)
                case Load():
                    self.connection.send(LoadDone(message.program, self.load(message)))

    def load(self, message: Load) -> str | None:
        """Compiles a program; returns what is wrong with it."""
        try:
            context = make_context()
            with context:
                module = ir.Module.parse(message.module)
                plan = host_plans_of(module, message.name, proved=True)[message.host]
            # Where it is needed alone: it imports scipy.
            if b"lapack_" in message.module:
                pjrt.initialize_lapack()
            bindings = {
                name: Binding(
                    tuple(self.devices[number] for number in message.devices[name]),
                    spec.shape,
                    spec.axis_names,
                    message.name,
                )
                for name, spec in plan.slices.items()
            }
            avals = [
                jax.core.ShapedArray(aval.shape, aval.dtype, weak_type=weak)
                for aval, weak in zip(
                    (aval_of(result.type) for result in plan.results), message.weak_results, strict=True
                )
            ]
            targets: list[WorkerTarget] = []

            def target(*args: Any) -> WorkerTarget:
                targets.append(
                    WorkerTarget(
                        *args,
                        peers=self.peers,
                        addresses=message.peers,
                        base=message.base,
                        stride=message.stride,
                    )
                )
                return targets[0]

            executable = load(
                plan,
                bindings,
                result_avals=avals,
                argument_names=message.argument_names,
                progress=lambda *_: None,
                make_target=target,
            )
        except Exception as error:
            return _described(error)
        self.programs[message.program] = Hosted(message.name, executable, targets[0])
        return None

    def run(self, message: Run) -> None:
        """Issues a step."""
        program = self.programs[message.program]
        taken = [self.arrays.get(number) for number in message.arguments]
        wrong = next((array.error for array in taken if isinstance(array, Poison)), None)
        results: list[Any] = []
        program.target.begin(message.run)
        if wrong is None:
            try:
                results = program.executable.run(cast(list[jax.Array], taken))
            except Exception as error:
                wrong = _described(error)
        if wrong is not None:
            program.target.poison(wrong)
            results = [Poison(wrong)] * len(message.results)
        self.arrays.update(zip(message.results, results, strict=True))
        self.waiting.put((message.run, [r for r in results if not isinstance(r, Poison)], wrong))

    def wait(self) -> None:
        """Tells the controller of every step when it is done."""
        while True:
            run, arrays, wrong = self.waiting.get()
            for array in arrays:
                try:
                    array.block_until_ready()
                except Exception as error:
                    # A later step may have taken it over.
                    if wrong is None and not array.is_deleted():
                        wrong = _described(error)
            del arrays
            self.connection.send(Done(run, wrong))

    def send_fetched(self) -> None:
        """Sends what the controller fetches, when it is ready."""
        while True:
            message, array = self.fetches.get()
            if array is None or isinstance(array, Poison):
                error = "it is not on this host" if array is None else array.error
                self.connection.send(Failed(message.array, error))
                continue
            try:
                shards = [np.asarray(array.addressable_shards[n].data) for n in message.devices]
            except Exception as error:
                self.connection.send(Failed(message.array, _described(error)))
                continue
            for shard, data in enumerate(shards):
                raw = memoryview(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
                for offset in range(0, max(len(raw), 1), CHUNK):
                    piece = bytes(raw[offset : offset + CHUNK])
                    self.connection.send(Chunk(message.array, shard, offset, piece))


def _spec(placement: DeviceLayout) -> PartitionSpec:
    dims = list(placement.dims)
    while dims and not dims[-1]:
        dims.pop()
    return PartitionSpec(*[axes[0] if len(axes) == 1 else axes or None for axes in dims])


def _described(error: Exception) -> str:
    notes = "; ".join(getattr(error, "__notes__", ()))
    text = str(error).strip() or type(error).__name__
    return f"{text} ({notes})" if notes else text


def main() -> int:
    """Runs a worker; what it has to know comes as a line of JSON on standard input."""
    config = json.loads(sys.stdin.readline())
    cluster = discover(cpu_devices=config["cpu_devices"])
    peers = Peers(jax.devices()[0].client)
    sock = socket.create_connection(("127.0.0.1", config["port"]), timeout=30)

    def hello(proof: bytes, nonce: bytes) -> Hello:
        return Hello(
            proof,
            nonce,
            versions(),
            cluster.platform,
            tuple(device.id for device in cluster.devices),
            tuple(device.memory for device in cluster.devices),
            peers.address,
            os.getpid(),
        )

    connection = greet_controller(sock, bytes.fromhex(config["secret"]), hello)
    worker = Worker(connection, peers, cluster.devices)
    try:
        worker.serve()
    except ConnectionEnded:
        pass
    except MessageError as error:
        print(f"pathways worker: {error}", file=sys.stderr)
    sys.stderr.flush()
    # Past XLA's own end, which waits for threads that wait for workers that are gone.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
