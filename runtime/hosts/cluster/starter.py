"""Starter of the workers of islands."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import queue
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pathways.runtime.control.gang import START_SECONDS
from pathways.runtime.control.records.errors import ClusterClosedError, HostStartError
from pathways.runtime.hosts.cluster.host import WorkerHandle, stderr_tail
from pathways.runtime.hosts.launch.descriptors import reserve_descriptors
from pathways.runtime.hosts.launch.exit_monitor import ExitMonitor, kill_all
from pathways.runtime.hosts.launch.launcher import Launcher, SpareWorkers, WorkerProcess
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.hosts.launch.sockets import Address, controller_socket
from pathways.runtime.hosts.protocol.acceptor import Acceptor
from pathways.runtime.hosts.protocol.frames import decode_for_controller
from pathways.runtime.hosts.protocol.handshake import ServerHandshake
from pathways.runtime.hosts.protocol.join_messages import WorkerConfig
from pathways.runtime.hosts.protocol.messages import (
    CHANNELS,
    Coordinator,
    JoinCoordinator,
    MessageError,
    Purpose,
    Ready,
    versions,
)
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.resources.process_identity import this_process

_Accepted = tuple[Connection[Any], ServerHandshake]
_Channels = dict[str, Connection[Any]]


class Starter:
    """Starter of the workers of islands, which rejects all other connections.

    Args:
      settings: the user's settings of the workers.
      secret: the secret that authenticates them; by default random bytes.
      spares: the spare workers that the launcher may use; by default there are none.

    Attributes:
      spares: see above.
    """

    def __init__(
        self,
        settings: Settings,
        launcher: Launcher,
        secret: bytes | None = None,
        spares: SpareWorkers | None = None,
    ) -> None:
        self.spares = spares or SpareWorkers()
        self._settings = settings
        self._launcher = launcher
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._epochs = itertools.count()
        self._numbers: list[range] = []
        for island in settings.islands:
            self._append_numbers(island)

    def _append_numbers(self, island: Island) -> None:
        first = self._numbers[-1].stop if self._numbers else 0
        self._numbers.append(range(first, first + len(island.machines)))

    def add_island(self, island: Island) -> int:
        """Adds an island, whose workers `start` starts, and returns its number.

        Raises:
          ValueError: the island cannot be combined with the others.
          HostError: the launcher has no place for it.
        """
        settings = self._settings.with_island(island)
        self._launcher.set_hosts(settings.hosts)
        self._settings = settings
        self._append_numbers(island)
        return len(self._numbers) - 1

    def remove_last_island(self) -> None:
        """Removes the island that was added last, and has no workers: its numbers are free again."""
        self._numbers.pop()
        self._settings = dataclasses.replace(self._settings, islands=self._settings.islands[:-1])
        self._launcher.set_hosts(self._settings.hosts)

    def start(
        self, islands: Sequence[int], stop: threading.Event, contact: float = START_SECONDS
    ) -> list[list[WorkerHandle]]:
        """Starts all workers of some islands, and waits until they are ready.

        Args:
          stop: cancels the start when it is set.
          contact: the timeout for their connections, in seconds.

        Returns:
          The workers of each island.

        Raises:
          HostError: one of them does not start; the message names it and the reason. All are terminated.
        """
        with self.spares.no_refill():
            return self._start(islands, stop, contact)

    def _start(
        self, islands: Sequence[int], stop: threading.Event, contact: float
    ) -> list[list[WorkerHandle]]:
        expected = sum(len(self._numbers[island]) for island in islands)
        reserve_descriptors(expected + self._settings.spares)
        processes: dict[int, WorkerProcess] = {}
        # Until all are ready: a worker may wait for another one that has exited.
        exits = ExitMonitor(processes)
        start: _Start | None = None
        try:
            with controller_socket(self._settings.launcher) as (server, address):
                start = _Start(
                    server, self._secret, next(self._epochs), stop, processes, exits, expected, contact
                )
                try:
                    for island in islands:
                        configs = self._configs(island, address, start.epoch)
                        start.configs.update({config.host: config for config in configs})
                        started = self._launcher.launch(configs, contact, stop)
                        processes.update(zip(self._numbers[island], started, strict=True))
                    channels = start.accept_all(self._settings.options.heartbeat)
                finally:
                    # Closing it would not wake the thread that accepts connections.
                    server.shutdown(socket.SHUT_RDWR)
            # All islands first, so that their hosts join each other at the same time.
            for island in islands:
                start.introduce([channels[host] for host in self._numbers[island]], self._numbers[island])
            return [
                [
                    WorkerHandle(
                        host, f"island{island}", processes[host], channels[host], start.ready(host, channels)
                    )
                    for host in self._numbers[island]
                ]
                for island in islands
            ]
        except BaseException as error:
            kill_all(processes.values(), 2.0)
            if start is not None:
                start.close()
            if isinstance(error, OSError):
                raise HostStartError(f"cannot listen for workers: {error}") from None
            raise
        finally:
            exits.close()

    def close(self) -> None:
        """Terminates the spare workers and closes the launcher, after all workers exited."""
        self.spares.close()
        self._launcher.close()

    def _configs(self, island: int, address: Address, epoch: int) -> list[WorkerConfig]:
        settings, options = self._settings.islands[island], self._settings.options
        return [
            WorkerConfig(
                address,
                self._secret.hex(),
                host,
                epoch,
                rank,
                len(settings.machines),
                settings.devices_per_host,
                options.heartbeat,
                options.grace,
                self._settings.launcher.ports,
                settings.cores,
                platform=self._settings.platform,
                machine=machine,
                snapshot_folder=options.snapshot_folder,
                snapshot_rate=options.snapshot_rate,
                owner=this_process(),
            )
            for rank, (host, machine) in enumerate(zip(self._numbers[island], settings.machines, strict=True))
        ]


class _Start:
    """Start of a group of workers.

    Args:
      server: the socket that accepts their connections.
      secret: the secret that authenticates them.
      epoch: the number of the start, which distinguishes these workers from the workers of earlier starts.
      stop: cancels the start when it is set.
      processes: the processes started so far, by the numbers of their workers.
      exits: the monitor of these processes.
      expected: the number of workers of the start.
      contact: the timeout for their connections, in seconds.

    Attributes:
      epoch: see above.
      configs: the configurations sent to the workers, by their numbers.
    """

    def __init__(
        self,
        server: socket.socket,
        secret: bytes,
        epoch: int,
        stop: threading.Event,
        processes: Mapping[int, WorkerProcess],
        exits: ExitMonitor,
        expected: int,
        contact: float,
    ) -> None:
        self._secret = secret
        self.epoch = epoch
        self.configs: dict[int, WorkerConfig] = {}
        self._stop = stop
        self._processes = processes
        self._exits = exits
        self._contact = contact
        self._deadline = time.monotonic() + START_SECONDS
        self._accepted: queue.SimpleQueue[_Accepted] = queue.SimpleQueue()
        self._channels: dict[int, _Channels] = {}
        Acceptor(
            server,
            functools.partial(ServerHandshake, secret, self._is_expected),
            decode_for_controller,
            self._add_accepted,
            len(CHANNELS) * expected,
        )

    def accept_all(self, heartbeat: float) -> dict[int, _Channels]:
        """Waits until all workers have all their connections."""
        channels = self._channels
        channels.update((host, {}) for host in self._processes)
        missing = dict.fromkeys(channels)
        deadline = time.monotonic() + self._contact
        while missing:
            self._check_running()
            if time.monotonic() > deadline:
                why = f"did not connect in {self._contact:.0f} seconds"
                raise self._failed(next(iter(missing)), why, exits_within=0.0)
            try:
                connection, handshake = self._accepted.get(timeout=0.2)
            except queue.Empty:
                continue
            purpose = handshake.purpose
            assert purpose is not None
            # A channel for the second time, or of a host that is not of this start.
            if purpose.channel in channels.get(purpose.host, {purpose.channel: None}):
                connection.close()
                continue
            if handshake.versions != versions():
                pathways, jaxlib, python = handshake.versions
                raise HostStartError(
                    f"{self.configs[purpose.host]} runs pathways {pathways}, jaxlib {jaxlib} and Python "
                    f"{python}, but the controller runs {', '.join(versions())}"
                )
            connection.keep_alive(heartbeat)
            channels[purpose.host][purpose.channel] = connection
            if len(channels[purpose.host]) == len(CHANNELS):
                del missing[purpose.host]
        return channels

    def close(self) -> None:
        """Closes all connections of a start that failed."""
        for channels in self._channels.values():
            for connection in channels.values():
                connection.close()
        with contextlib.suppress(queue.Empty):
            while True:
                self._accepted.get_nowait()[0].close()

    def _is_expected(self, purpose: Purpose) -> bool:
        """Returns whether a connection is from a worker of this start."""
        is_worker = purpose.role == "worker" and purpose.to == "controller" and purpose.channel in CHANNELS
        return is_worker and purpose.epoch == self.epoch

    def _add_accepted(self, connection: Connection[Any], handshake: ServerHandshake) -> None:
        self._accepted.put((connection, handshake))

    def introduce(self, island: Sequence[_Channels], hosts: Sequence[int]) -> None:
        """Sends the address of an island's first host to all hosts of the island."""
        if len(island) == 1:
            return
        message = self._receive(hosts[0], island[0]["watch"])
        if not isinstance(message, Coordinator):
            raise self._failed(hosts[0], f"did not start: unexpected message {type(message).__name__}")
        for host, channels in zip(hosts, island, strict=True):
            try:
                channels["watch"].send(JoinCoordinator(message.address))
            except ConnectionEnded as error:
                raise self._failed(host, f"did not start: {error}") from None

    def ready(self, host: int, channels: Mapping[int, _Channels]) -> Ready:
        """Waits until a worker is ready."""
        message = self._receive(host, channels[host]["watch"])
        if not isinstance(message, Ready):
            raise self._failed(host, f"did not start: unexpected message {type(message).__name__}")
        return message

    def _receive(self, host: int, connection: Connection[Any]) -> object:
        while True:
            if connection.wait(0.2):
                try:
                    connection.set_timeout(max(0.1, self._deadline - time.monotonic()))
                    message = connection.receive()
                    connection.set_timeout(None)
                except (ConnectionEnded, MessageError) as error:
                    raise self._failed(host, f"did not start: {error}") from None
                return message
            # A worker waits for ever for another one of its island that has exited.
            self._check_running()
            if time.monotonic() > self._deadline:
                why = f"was not ready in {START_SECONDS:.0f} seconds"
                raise self._failed(host, why, exits_within=0.0)

    def _check_running(self) -> None:
        if self._stop.is_set():
            raise ClusterClosedError(f"host {min(self._processes)} is closed")
        if (host := self._exits.first()) is not None:
            raise self._failed(host, "did not start")

    def _failed(self, host: int, why: str, exits_within: float = 10.0) -> HostStartError:
        """Returns the error of a worker that does not start, and kills it.

        Args:
          host: the number of the worker.
          why: the reason to give without its exit status.
          exits_within: the seconds to wait for that. A closed connection often means that the process exits,
            which takes seconds on a busy machine, and the exit status explains more than the connection.
        """
        process = self._processes[host]
        status = process.exit_status(exits_within)
        if status is None:
            process.kill()
        else:
            why = f"did not start ({status})"
        return HostStartError(f"{self.configs[host]} {why}{stderr_tail(process.last_lines())}")
