"""Launcher of agents on the machines of a Ray cluster.

Ray places them, all hosts of an island or none, and kills them with this process. It does not carry messages:
an actor only runs an agent, which joins. So a worker has a process for itself, and a stopped one can be
killed, which Ray would not notice.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from pathways.runtime.control.records.errors import HostStartError
from pathways.runtime.hosts.launch.agent import Agent
from pathways.runtime.hosts.launch.cores import CoreShares
from pathways.runtime.hosts.launch.join_launcher import JoinedWorker, JoinLauncher
from pathways.runtime.hosts.launch.launcher_records import Ray
from pathways.runtime.hosts.protocol.join_messages import WorkerConfig

_AGAIN_SECONDS = 1.0
_JOIN_SECONDS = 60.0
"""Seconds for which an agent may not reach the controller."""


class AgentActor:
    """Ray actor that runs the agent of its machine."""

    def machine(self) -> str:
        """Returns a key of the machine, which may have several nodes of Ray."""
        return f"{socket.gethostname()} {_import_ray().util.get_node_ip_address()}"

    def serve(self, address: tuple[str, int], secret: bytes, host: int) -> str | None:
        """Runs the agent until its controller ends; its worker is killed with the actor."""
        return Agent(address, secret, host, _JOIN_SECONDS).serve()


class RayLauncher(JoinLauncher):
    """`Launcher` that starts agents through Ray.

    Args:
      record: the address of the Ray cluster, and where the launcher listens for agents, and a cluster that
        it starts for its nodes.
      cores: number of CPUs of a started cluster.

    Raises:
      ModuleNotFoundError: Ray is not installed.
      HostError: there is no such cluster, or no free port.
    """

    def __init__(self, record: Ray, hosts: int, cores: int) -> None:
        self._ray = _import_ray()
        self._groups: dict[int, Any] = {}
        self._actors: dict[int, tuple[Any, str]] = {}
        self._cores = CoreShares()
        self._is_own = not self._ray.is_initialized()
        # A started cluster has as many CPUs as the first hosts need.
        self._max_hosts = hosts if self._is_own and record.address is None else None
        if self._is_own:
            new_cluster = {"address": "local", "num_cpus": cores, "include_dashboard": False}
            new_cluster["_node_ip_address"] = record.bind
            try:
                self._ray.init(
                    **(new_cluster if record.address is None else {"address": record.address}),
                    log_to_driver=False,
                    logging_level="ERROR",
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise HostStartError(f"Ray(address={record.address!r}): {error}") from None
        super().__init__("Ray", record, record.ports, secrets.token_bytes(32), hosts)

    def launch(
        self, configs: Sequence[WorkerConfig], seconds: float, stop: threading.Event
    ) -> Sequence[JoinedWorker]:
        """See `Launcher.launch`."""
        had_place = configs[0].host in self._groups
        group = self._group(configs, seconds)
        deadline = time.monotonic() + seconds
        while True:
            left = max(1.0, deadline - time.monotonic())
            try:
                self._start_agents(configs, group, left)
            except self._ray.exceptions.RayError as error:
                # For some seconds Ray still places actors on a lost machine, then it uses others.
                is_lost = isinstance(error, self._ray.exceptions.RayActorError)
                if had_place and is_lost and time.monotonic() < deadline and not stop.wait(_AGAIN_SECONDS):
                    continue
                why = str(error).partition("\n")[0]
                raise HostStartError(f"host {configs[0].host}: Ray did not start it: {why}") from None
            return super().launch([self._pinned(config) for config in configs], left, stop)

    def _start_agents(self, configs: Sequence[WorkerConfig], group: Any, seconds: float) -> None:
        """Starts agents in the placement group of an island, for hosts that have none without a worker.

        Raises:
          RayError: Ray cannot start them, or not in time.
        """
        actor_class = self._ray.remote(AgentActor)
        actors = {}
        for config in configs:
            if self.has_idle(config.host):
                continue
            if config.host in self._actors:
                self._ray.kill(self._actors.pop(config.host)[0])
            actors[config.host] = actor_class.options(
                num_cpus=config.cores or 1,
                max_restarts=0,
                scheduling_strategy=self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=config.rank
                ),
            ).remote()
        try:
            machines = self._ray.get([actor.machine.remote() for actor in actors.values()], timeout=seconds)
        except BaseException:
            for actor in actors.values():
                self._ray.kill(actor)
            raise
        for (host, actor), machine in zip(actors.items(), machines, strict=True):
            self._actors[host] = actor, machine
            actor.serve.remote(self.address, self.secret, host)

    def set_hosts(self, count: int) -> None:
        """See `Launcher.set_hosts`."""
        if self._max_hosts is not None and count > self._max_hosts:
            raise HostStartError(
                f"Ray was started here with CPUs for {self._max_hosts} hosts, and has none for further ones: "
                "expected address=, the address of a Ray cluster that has some"
            )
        super().set_hosts(count)
        self._cores.release_from(count)
        for host in [host for host in self._actors if host >= count]:
            self._ray.kill(self._actors.pop(host)[0])
        for first in [first for first in self._groups if first >= count]:
            self._ray.util.remove_placement_group(self._groups.pop(first))

    def close(self) -> None:
        """See `Launcher.close`."""
        super().close()
        if not self._ray.is_initialized():
            return
        for group in self._groups.values():
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.util.remove_placement_group(group)
        self._groups.clear()
        if self._is_own:
            self._ray.shutdown()

    def _pinned(self, config: WorkerConfig) -> WorkerConfig:
        if config.cores is None:
            return config
        first = self._cores.assign(self._actors[config.host][1], config.host, config.cores)
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
            f"Ray needs its package ({error}): pip install 'pathways-mlir[ray]'"
        ) from None
    return ray
