"""Nodes of a Slurm allocation, on which `srun` starts workers."""

from __future__ import annotations

import itertools
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from pathways.runtime.hosts.launch.settings import Island

_SCONTROL_TIMEOUT_S = 60.0


def nodes_of(environment: Mapping[str, str]) -> list[str]:
    """Returns the nodes of the allocation that this process runs in.

    Raises:
      ValueError: it runs in no allocation, or `scontrol` cannot expand the list of its nodes.
    """
    for variable in ("SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environment.get(variable):
            return _expanded(environment[variable], variable)
    raise ValueError("Slurm: SLURM_JOB_NODELIST is not set; expected to run in a Slurm allocation")


def _expanded(nodes: str, variable: str) -> list[str]:
    """Returns the names in a node list of Slurm, such as `a[01-03,7],b`."""
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SCONTROL_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise ValueError(
            f"Slurm: {variable}={nodes!r}: scontrol is not on PATH, which expands lists of nodes; "
            "install the commands of Slurm, or name the machines, as in pathways.Ssh(['a', 'b'], bind=)"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"Slurm: {variable}={nodes!r}: {' '.join(command)} failed: {error}") from None
    names = done.stdout.split()
    if done.returncode or not names:
        why = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise ValueError(f"Slurm: {variable}={nodes!r}: scontrol cannot expand it: {why}")
    return names


def islands_on(nodes: Sequence[str], islands: object, devices_per_host: int) -> tuple[Island, ...]:
    """Returns islands of named hosts: one for each node, or the requested islands on the nodes in order.

    Raises:
      TypeError: `islands` is neither None nor a list of islands.
      ValueError: there are too few nodes, or no node has such a name.
    """
    if islands is None:
        return tuple(Island([node], devices_per_host) for node in nodes)
    if not isinstance(islands, Sequence) or not all(isinstance(island, Island) for island in islands):
        raise TypeError(
            f"islands={islands!r}: expected a list of pathways.Island, or None for one on each node"
        )
    for machine in (machine for island in islands for machine in island.machines):
        if machine is not None and machine not in nodes:
            raise ValueError(f"islands=: {machine!r} is not a node of this allocation: {', '.join(nodes)}")
    return tuple(_placed(islands, nodes))


def own_address(environment: Mapping[str, str], count: int) -> str:
    """Returns the address at which other nodes find this one.

    Raises:
      ValueError: it is not known.
    """
    name = environment.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        raise ValueError(
            f"Slurm: the address of {name} is not known ({error}); pass pathways.Slurm(bind=)"
        ) from None
    if count > 1 and address.startswith("127."):
        raise ValueError(
            f"Slurm: {name} is {address} here, which other nodes do not reach; pass pathways.Slurm(bind=)"
        )
    return address


def _placed(islands: Sequence[Island], nodes: Sequence[str]) -> Iterator[Island]:
    free = iter(nodes)
    for island in islands:
        if not isinstance(island.hosts, int):
            yield island
            continue
        machines = [*itertools.islice(free, island.hosts)]
        if len(machines) < island.hosts:
            requested = sum(len(other.machines) for other in islands)
            raise ValueError(f"islands=: {requested} hosts, but this allocation has {len(nodes)} nodes")
        yield Island(machines, island.devices_per_host, island.cores)
