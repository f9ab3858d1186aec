"""Workers that Ray starts, on the machines of its cluster.

Ray finds places for them, all hosts of an island or none, and ends them with this process. What is said to
them goes other ways. Each has an actor that does nothing but start it, end it, and keep what it writes: so
a worker has the process for itself, and one that is stopped can be ended, which Ray does not notice.
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
"""Seconds that an actor may take to answer, besides what it was asked to wait."""


_AGAIN_SECONDS = 1.0


class HostActor:
    """Starts a worker on the machine where Ray has put it."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def machine(self) -> str:
        """Tells the machine from others; it may have several nodes of Ray."""
        return f"{socket.gethostname()} {_import_ray().util.get_node_ip_address()}"

    def start(self, config: str) -> int:
        """Starts it; returns its process. It ends with the actor."""
        self._child = Child(WorkerConfig.from_json(config))
        return self._child.pid

    def ending(self, seconds: float) -> tuple[str, tuple[str, ...]] | None:
        """How it ended and what it wrote last; None if it still runs after so many seconds."""
        how = self._child.ending(seconds) if self._child is not None else "it was not started"
        return None if how is None else (how, self.last_lines())

    def kill(self) -> None:
        """Ends it."""
        if self._child is not None:
            self._child.kill()

    def last_lines(self) -> tuple[str, ...]:
        """What it wrote last."""
        return () if self._child is None else tuple(self._child.last_lines())


class RayWorker:
    """A `WorkerProcess` that an actor has started.

    Args:
      ray: the module.
      left: is set when Ray was left.
      actor: the actor.
      pid: the process of the worker, on the machine of the actor.
    """

    def __init__(self, ray: Any, left: threading.Event, actor: Any, pid: int) -> None:
        self._ray = ray
        self._left = left
        self._actor = actor
        self.pid = pid
        self._ended: tuple[str, tuple[str, ...]] | None = None

    def ending(self, seconds: float) -> str | None:
        """See `WorkerProcess.ending`."""
        if self._ended is not None:
            return self._ended[0]
        if self._is_left():
            return "it ended with its Ray cluster"
        try:
            answer = self._actor.ending.remote(seconds)
            ended = self._ray.get(answer, timeout=seconds + _PATIENCE)
            if ended is None:
                return None
            # It has nothing more to do.
            self._ray.kill(self._actor)
        except self._ray.exceptions.GetTimeoutError:
            return None
        except Exception as error:  # Of many kinds, as when Ray itself ends.
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
            # The worker ends with it, if it has not.
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
        """Whether Ray was left; who asks it for anything then starts it again."""
        return self._left.is_set() or not self._ray.is_initialized()


class RayLauncher:
    """A `Launcher` that asks Ray.

    Args:
      address: of a Ray cluster to join, such as `10.0.0.5:6379`, or `auto` for the one of this machine; None
        for one of its own on this machine, which ends with it.
      bind: the address of this machine at which a cluster of its own listens.
      cores: how many CPUs a cluster of its own has.

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
                # For some seconds Ray gives out places on a machine that is gone, then it looks for others.
                is_gone = isinstance(error, self._ray.exceptions.RayActorError)
                if had_place and is_gone and time.monotonic() < deadline and not stop.wait(_AGAIN_SECONDS):
                    continue
                why = str(error).partition("\n")[0]
                raise HostStartError(f"host {configs[0].host}: Ray did not start it: {why}") from None

    def _launch(self, configs: Sequence[WorkerConfig], group: Any, seconds: float) -> list[RayWorker]:
        """Starts the workers of an island in their places.

        Raises:
          RayError: Ray cannot, or not in so many seconds.
        """
        actor = self._ray.remote(HostActor)
        actors = [
            actor.options(
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
            for one in actors:
                self._ray.kill(one)
            raise
        return [RayWorker(self._ray, self._left, one, pid) for one, pid in zip(actors, pids, strict=True)]

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
        first = self._cores.take(machine, config.host, config.cores)
        return msgspec.structs.replace(config, first_core=first)

    def _group(self, configs: Sequence[WorkerConfig], seconds: float) -> Any:
        """The places of an island: all of them or none."""
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
    # It would say who runs it to those who make it.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.util.scheduling_strategies
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"connect('ray') needs Ray ({error}): pip install pathways-mlir[ray]"
        ) from None
    return ray
