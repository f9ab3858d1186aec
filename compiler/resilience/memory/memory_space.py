"""Free memory of hosts, checked against the versions of the state."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax

from pathways.compiler.frontend.memory_kinds import kind_of
from pathways.compiler.resilience.layouts.host_layouts import StateOnHosts
from pathways.compiler.resilience.memory.known_islands import KnownIslands
from pathways.compiler.resilience.memory.memory_calls import MemoryCalls
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.resilience.records import Holdings
from pathways.runtime.resilience.snapshots.block_file import SnapshotError
from pathways.runtime.resources.tables import size

_VERSIONS = 2
"""Max number of versions in memory."""


class MemorySpace:
    """Free memory of hosts for versions.

    Attributes:
      reports: the result of `open_run` on each host.
    """

    def __init__(self, calls: MemoryCalls, islands: KnownIslands) -> None:
        self._calls = calls
        self._islands = islands
        self.reports: dict[int, dict[str, Any]] = {}

    def check_state(self, state: Any) -> None:
        """Checks that versions fit in the memory of all hosts, whatever the placement of the state."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            if (kind := kind_of(leaf)) is not None:
                raise ValueError(
                    f"pw.resilient: state{jax.tree_util.keystr(path)} is in {kind} memory, but versions on "
                    "hosts are restored to the default memory of devices: keep it there between steps"
                )
        leaves = [leaf for leaf in jax.tree.leaves(state) if hasattr(leaf, "nbytes")]
        if all(isinstance(leaf, Array) for leaf in leaves):
            # The exact check is at the first copy, when all placements are known.
            return
        copies = _VERSIONS * min(2, len(self._islands.islands))
        needed = copies * sum(_nbytes(leaf) for leaf in leaves)
        self._require(needed, f"at least {size(needed)}", self.reports)

    def check(self, state: StateOnHosts, planned: Iterable[Holdings]) -> None:
        """Checks that versions fit in the memory of each host.

        Args:
          kept: the state.
          planned: the blocks that each host keeps, for each choice of running replicas.

        Raises:
          SnapshotError: a host has too little memory.
        """
        sizes = state.sizes
        needs = [
            {host: sum(sizes[name] for name in names) for host, names in of_choice.items()}
            for of_choice in planned
        ]
        for system in dict.fromkeys(map(_file_system, self.reports.values())):
            # Hosts of one machine may share a file system and its free bytes.
            sharing = [host for host, opened in self.reports.items() if _file_system(opened) == system]
            needed = _VERSIONS * max(sum(of_hosts.get(host, 0) for host in sharing) for of_hosts in needs)
            self._require(needed, size(needed), sharing)

    def _require(self, needed: int, named: str, hosts: Collection[int]) -> None:
        """Checks the free bytes of some hosts, after removing leftovers if necessary."""
        if needed > self._free_bytes(hosts):
            for gang in self._islands.present():
                numbers = [host.index for host in gang.hosts]
                with contextlib.suppress(HostError):
                    call = self._calls.call("free_memory", gang, numbers, self._calls.memory_lane, {})
                    for host, opened in zip(numbers, self._calls.values(call), strict=True):
                        self.reports[host] |= opened
        if needed <= (free := self._free_bytes(hosts)):
            return
        folder = self.reports[min(hosts)]["folder"]
        option = "HostOptions(snapshot_folder=)"
        if not self._calls.client.owns_workers:
            option = "snapshot_folder in the file of the cluster"
        hosts_named = ", ".join(f"host {host}" for host in sorted(hosts))
        raise SnapshotError(
            f"pw.resilient: snapshots need {named}, {size(free)} free on {hosts_named} in {folder}; give the "
            f"machine or container more shared memory, or set {option}"
        )

    def _free_bytes(self, hosts: Collection[int]) -> int:
        systems = {_file_system(self.reports[host]): self.reports[host] for host in hosts}
        return sum(opened["bytes"] for opened in systems.values())


def _file_system(opened: Mapping[str, Any]) -> tuple[str, int]:
    return opened["machine"], opened["device"]


def _nbytes(leaf: Any) -> int:
    """Returns the bytes of an array; typed PRNG keys are small."""
    return 0 if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended) else int(leaf.nbytes)
