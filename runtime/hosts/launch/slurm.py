"""The nodes of an allocation of Slurm, on which `srun` starts workers."""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Iterator, Mapping, Sequence

from pathways.runtime.hosts.launch.settings import Island

SLURM_START = "srun --overlap -w {host} -N1 -n1 {command}"

_MOST = 1 << 16
_WORD = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def nodes_of(environment: Mapping[str, str]) -> list[str]:
    """The nodes of the allocation that this process runs in.

    Raises:
      ValueError: it runs in none.
    """
    for variable in ("SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environment.get(variable):
            return expanded(environment[variable], variable)
    raise ValueError(
        "connect('slurm'): SLURM_JOB_NODELIST is not set; expected to run in an allocation of Slurm"
    )


def expanded(nodes: str, variable: str = "nodes") -> list[str]:
    """The names that a list of Slurm stands for, as `scontrol show hostnames` prints them.

    Args:
      nodes: the list, as in `a[01-03,7],b`.
      variable: where it is from, for messages.

    Raises:
      ValueError: it is no such list.
    """
    names: list[str] = []
    words = _WORD.findall(nodes)
    if ",".join(words) != nodes:
        raise ValueError(f"{variable}={nodes!r}: expected names of nodes, as in a[01-03,7],b")
    for word in words:
        # Names and what is in brackets, in turn.
        pieces = re.split(r"\[([^\[\]]*)\]", word)
        choices = [_numbers(piece, variable) if n % 2 else [piece] for n, piece in enumerate(pieces)]
        for choice in itertools.product(*choices):
            names.append("".join(choice))
            if len(names) > _MOST:
                raise ValueError(f"{variable}={nodes!r}: more than {_MOST} nodes")
    return names


def islands_on(nodes: Sequence[str], islands: object, devices_per_host: int) -> tuple[Island, ...]:
    """Islands whose hosts have names: one for each node, or those that are asked for, on nodes in order.

    Raises:
      TypeError: something else is asked for.
      ValueError: there are not so many nodes, or no node has such a name.
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
    """The address of this node, at which other nodes find it.

    Raises:
      ValueError: it is not known.
    """
    name = environment.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        raise ValueError(
            f"connect('slurm'): the address of {name} is not known ({error}); pass bind="
        ) from None
    if count > 1 and address.startswith("127."):
        raise ValueError(
            f"connect('slurm'): {name} is {address} here, which other nodes do not reach; pass bind="
        )
    return address


def _placed(islands: Sequence[Island], nodes: Sequence[str]) -> Iterator[Island]:
    left = iter(nodes)
    for island in islands:
        if not isinstance(island.hosts, int):
            yield island
            continue
        machines = [*itertools.islice(left, island.hosts)]
        if len(machines) < island.hosts:
            asked = sum(len(other.machines) for other in islands)
            raise ValueError(f"islands=: {asked} hosts, but this allocation has {len(nodes)} nodes")
        yield Island(machines, island.devices_per_host, island.cores)


def _numbers(text: str, variable: str) -> list[str]:
    """The numbers of `01-03,7`, as wide as they are written."""
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{variable}: expected numbers in [{text}], as in [01-03,7]")
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < _MOST:
            raise ValueError(f"{variable}: expected numbers in [{text}], as in [01-03,7]")
        found += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return found
