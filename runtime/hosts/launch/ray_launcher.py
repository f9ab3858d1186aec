"""Launcher of workers on the machines of a Ray cluster.

Ray places them, all hosts of an island or none, and kills them with this process. It does not carry their
messages. Each worker has an actor that only starts it, kills it, and keeps its standard error: so a worker
has a process for itself, and a stopped one can be killed, which Ray would not notice.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from pathways.runtime.control.records.errors import HostStartError
from pathways.runtime.hosts.launch.child_launcher import Child
from pathways.runtime.hosts.launch.cores import CoreShares
from pathways.runtime.hosts.protocol.join_messages import WorkerConfig

_PATIENCE = 2.0
"""Seconds that an actor may take to answer, in addition to the requested wait."""

_AGAIN_SECONDS = 1.0


class HostActor:
    """Ray actor that starts a worker on its machine."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def machine(self) -> str:
        """Returns a key of the machine, which may have several nodes of Ray."""
        return f"{socket.gethostname()} {_import_ray().util.get_node_ip_address()}"

    def start(self, config: str) -> int:
        """Starts the worker, which is killed with the actor; returns its process id."""
        self._child = Child(WorkerConfig.from_json(config))
        return self._child.pid

    def exit_report(self, timeout: float) -> tuple[str, tuple[str, ...]] | None:
        """Waits for the exit; returns how the worker exited and its last lines, None after the timeout."""
        status = self._child.exit_status(timeout) if self._child is not None else "it was not started"
        return None if status is None else (status, self.last_lines())

    def kill(self) -> None:
        """Kills the worker."""
        if self._child is not None:
            self._child.kill()

    def last_lines(self) -> tuple[str, ...]:
        """Returns the last lines of its standard error."""
        return () if self._child is None else tuple(self._child.last_lines())


class RayWorker:
    """`WorkerProcess` that an actor has started.

    Args:
      ray: the module.
      left: is set when the launcher has disconnected from Ray.
      pid: the process id of the worker, on the machine of the actor.
    """

    def __init__(self, ray: Any, left: threading.Event, actor: Any, pid: int) -> None:
        self._ray = ray
        self._left = left
        self._actor = actor
        self.pid = pid
        self._ended: tuple[str, tuple[str, ...]] | None = None

    def exit_status(self, timeout: float) -> str | None:
        """See `WorkerProcess.exit_status`."""
        if self._ended is not None:
            return self._ended[0]
        if self._is_left():
            return "it ended with its Ray cluster"
        try:
            reply = self._actor.exit_report.remote(timeout)
            ended = self._ray.get(reply, timeout=timeout + _PATIENCE)
            if ended is None:
                return None
            # The actor is not needed any more.
            self._ray.kill(self._actor)
        except self._ray.exceptions.GetTimeoutError:
            return None
        except Exception as error:  # Ray raises many types, for instance while it shuts down.
            ended = f"its actor has ended: {str(error).partition(chr(10))[0]}", ()
        self._ended = ended
        return ended[0]

    def kill(self) -> None:
        """See `WorkerProcess.kill`."""
        if self._ended is not None or self._is_left():
            return
        try:
            self._ray.get(self._actor.kill.remote(), timeout=_PATIENCE)
        except Exception:
            # Killing the actor kills the worker, too.
            with contextlib.suppress(Exception):
                self._ray.kill(self._actor)

    def last_lines(self) -> Sequence[str]:
        """See `WorkerProcess.last_lines`."""
        if self._ended is not None:
            return self._ended[1]
        if not self._is_left():
            with contextlib.suppress(Exception):
                return self._ray.get(self._actor.last_lines.remote(), timeout=_PATIENCE)
        return ()

    def _is_left(self) -> bool:
        """Returns whether Ray is disconnected: a call would implicitly start a new Ray cluster then."""
        return self._left.is_set() or not self._ray.is_initialized()


class RayLauncher:
    """`Launcher` that starts workers through Ray.

    Args:
      address: the address of a Ray cluster to join, such as `10.0.0.5:6379`, or `auto` for the one of this
        machine; None to start one on this machine, which ends with the launcher.
      bind: the address at which a started cluster listens.
      cores: number of CPUs of a started cluster.

    Raises:
      ModuleNotFoundError: Ray is not installed.
      HostError: there is no such cluster.
    """

    def __init__(self, address: str | None, bind: str, cores: int) -> None:
        self._ray = _import_ray()
        self._left = threading.Event()
        self._groups: dict[int, Any] = {}
        self._cores = CoreShares()
        self._is_own = not self._ray.is_initialized()
        if not self._is_own:
            return
        own = {"address": "local", "num_cpus": cores, "_node_ip_address": bind, "include_dashboard": False}
        try:
            self._ray.init(
                **(own if address is None else {"address": address}),
                log_to_driver=False,
                logging_level="ERROR",
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise HostStartError(f"connect('ray', address={address!r}): {error}") from None

    def launch(
        self, configs: Sequence[WorkerConfig], seconds: float, stop: threading.Event
    ) -> Sequence[RayWorker]:
        """See `Launcher.launch`."""
        had_place = configs[0].host in self._groups
        group = self._group(configs, seconds)
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self._launch(configs, group, max(1.0, deadline - time.monotonic()))
            except self._ray.exceptions.RayError as error:
                # For some seconds Ray still places actors on a lost machine, then it uses others.
                is_lost = isinstance(error, self._ray.exceptions.RayActorError)
                if had_place and is_lost and time.monotonic() < deadline and not stop.wait(_AGAIN_SECONDS):
                    continue
                why = str(error).partition("\n")[0]
                raise HostStartError(f"host {configs[0].host}: Ray did not start it: {why}") from None

    def _launch(self, configs: Sequence[WorkerConfig], group: Any, seconds: float) -> list[RayWorker]:
        """Starts the workers of an island in its placement group.

        Raises:
          RayError: Ray cannot start them, or not in time.
        """
        actor_class = self._ray.remote(HostActor)
        actors = [
            actor_class.options(
                num_cpus=config.cores or 1,
                max_restarts=0,
                scheduling_strategy=self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=config.rank
                ),
            ).remote()
            for config in configs
        ]
        try:
            machines = self._ray.get([a.machine.remote() for a in actors], timeout=seconds)
            started = [
                a.start.remote(self._pinned(config, machine).to_json())
                for a, config, machine in zip(actors, configs, machines, strict=True)
            ]
            pids = self._ray.get(started, timeout=seconds)
        except BaseException:
            for each in actors:
                self._ray.kill(each)
            raise
        return [RayWorker(self._ray, self._left, each, pid) for each, pid in zip(actors, pids, strict=True)]

    def close(self) -> None:
        """See `Launcher.close`."""
        self._left.set()
        if not self._ray.is_initialized():
            return
        for group in self._groups.values():
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.util.remove_placement_group(group)
        self._groups.clear()
        if self._is_own:
            self._ray.shutdown()

    def _pinned(self, config: WorkerConfig, machine: str) -> WorkerConfig:
        if config.cores is None:
            return config
        first = self._cores.assign(machine, config.host, config.cores)
        return msgspec.structs.replace(config, first_core=first)

    def _group(self, configs: Sequence[WorkerConfig], seconds: float) -> Any:
        """Returns the placement group of an island, which has places for all its hosts."""
        first = configs[0].host
        if first not in self._groups:
            bundles = [{"CPU": config.cores or 1} for config in configs]
            group = self._ray.util.placement_group(bundles, strategy="SPREAD")
            if not group.wait(seconds):
                self._ray.util.remove_placement_group(group)
                raise HostStartError(
                    f"host {first}: Ray has no place for an island of {len(configs)} hosts, "
                    f"{configs[0].cores or 1} CPU each; "
                    f"it has {self._ray.available_resources().get('CPU', 0):.0f} free"
                )
            self._groups[first] = group
        return self._groups[first]


def _import_ray() -> Any:
    # Opt out of Ray's usage reports to its vendor.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.util.scheduling_strategies
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"connect('ray') needs Ray ({error}): pip install pathways-mlir[ray]"
        ) from None
    return ray
