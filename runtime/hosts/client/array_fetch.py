"""Fetches of whole arrays: which copies are read, and how the shards of hosts become one value."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.replies import HostRequest
from pathways.runtime.control.records.step import Step
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import Location
from pathways.runtime.hosts.protocol.programs import WHOLE_ARRAY, ReplicaBlock
from pathways.runtime.hosts.protocol.shards import different_shards


@dataclasses.dataclass(frozen=True)
class PendingFetch:
    """Fetch of an array from one location, in flight.

    Attributes:
      number: the number of the array there.
      step: the step that computes it there; None if it was put there.
      requests: the shards that each host sends, and the request for them.
    """

    location: Location
    number: int
    step: Step | None
    requests: list[tuple[list[tuple[slice, ...]], HostRequest]]


def request_blocks(
    client: HostSession,
    data: Any,
    locations: Collection[Location],
    copy_at: Callable[[Location], tuple[int, Step | None]],
) -> list[PendingFetch]:
    """Requests all blocks of an array, each from one location, of connected hosts first.

    Args:
      data: the abstract value of the data on hosts.
      locations: the locations that have copies.
      copy_at: returns the number of the copy at a location, and the step that computes it there; raises
        `RuntimeError` if the array was deleted.

    Raises:
      HostError: the computation failed, or a host is lost.
    """
    # Arrays split among replicas are in blocks; any copy of a block will do.
    blocks: dict[ReplicaBlock, Location] = {}
    for location in sorted(locations, key=lambda location: location.gang.is_lost()):
        blocks.setdefault(location.block, location)
    # Copies may be split into different numbers of blocks, which do not fit together.
    first = WHOLE_ARRAY if WHOLE_ARRAY in blocks else next(iter(blocks))
    return [
        _request_block(client, block.shape(data.shape), data.dtype.itemsize, location, copy_at)
        for block, location in blocks.items()
        if (block.count, block.dim) == (first.count, first.dim)
    ]


def _request_block(
    client: HostSession,
    shape: Sequence[int],
    itemsize: int,
    location: Location,
    copy_at: Callable[[Location], tuple[int, Step | None]],
) -> PendingFetch:
    """Requests the block that a location has."""
    shards = dict(different_shards(shape, location.placement))
    step, number = None, None
    try:
        with client.fetching:
            number, step = copy_at(location)
            requests = [
                (shards_of_host, client.request_bytes(location, host.index, number, positions, sizes))
                for host, held in location.holders.items()
                for positions in [[n for n, at in enumerate(held) if at in shards]]
                for shards_of_host in [[shards[held[n]] for n in positions]]
                for sizes in [[itemsize * _elements(shard) for shard in shards_of_host]]
                if shards_of_host
            ]
    except HostError:
        _raise_error_of(client, step, location, number)
        raise
    return PendingFetch(location, number, step, requests)


def receive_blocks(client: HostSession, data: Any, fetches: Sequence[PendingFetch]) -> np.ndarray[Any, Any]:
    """Waits for the blocks of an array, and returns its value, which cannot be written to.

    Raises:
      HostError: the computation failed, or a host is lost.
    """
    value = np.empty(data.shape, data.dtype)
    for fetch in fetches:
        block = fetch.location.block.of(value)
        try:
            for shards, request in fetch.requests:
                raw = client.fetch(request)
                for shard, received in zip(shards, raw, strict=True):
                    block[shard] = np.frombuffer(received, block.dtype).reshape(block[shard].shape)
        except HostError:
            _raise_error_of(client, fetch.step, fetch.location, fetch.number)
            raise
        if fetch.step is not None:
            client.settle(fetch.step)
    value.flags.writeable = False
    return value


def _raise_error_of(client: HostSession, step: Step | None, location: Location, number: int | None) -> None:
    """Raises the error of the step that should have computed an array, which names the host at fault."""
    if step is not None:
        client.wait_for_step(step, location, number)


@functools.lru_cache(maxsize=4096)
def _elements(shard: tuple[slice, ...]) -> int:
    return math.prod(dim.stop - dim.start for dim in shard)
