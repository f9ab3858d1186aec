"""Chains of pipeline stages: the stages that each one reads, and its distance from the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pathways.passes.schedule.policies.actions import Needs


def stages_read(needs: Needs) -> dict[int, frozenset[int]]:
    """Returns the earlier stages whose results each stage reads, by the needs of its actions.

    A forward needs the forwards of the stages that it reads, and their backwards need its own. A stage
    whose forward nothing needs, as where only gradients are computed, has backwards alone. Values of
    other microbatches are left out.
    """
    forwards = {action.stage for action in needs if action.kind == "F"}
    read: dict[int, set[int]] = {action.stage: set() for action in needs}
    for (stage, kind, microbatch), before in needs.items():
        for other in before:
            if other.microbatch != microbatch:
                continue
            if other.kind == "F" and (kind == "F" or stage not in forwards):
                read[stage].add(other.stage)
            elif other.kind != "F" and kind != "F":
                read[other.stage].add(stage)
    return {stage: frozenset(n for n in stages if n < stage) for stage, stages in sorted(read.items())}


def stages_to_loss(read: Mapping[int, frozenset[int]]) -> dict[int, int]:
    """Returns the length of the longest chain from each stage to the loss, itself included.

    In a pipeline of S stages in a row these are S - k for stage k.

    Args:
      read: for each stage the earlier ones that it reads.
    """
    chain = dict.fromkeys(read, 1)
    for stage in sorted(read, reverse=True):
        for other in read[stage]:
            chain[other] = max(chain[other], chain[stage] + 1)
    return chain


def stages_from_start(read: Mapping[int, frozenset[int]]) -> dict[int, int]:
    """Returns the length of the longest chain to each stage, itself included: k + 1 in a row."""
    chain: dict[int, int] = {}
    for stage in sorted(read):
        chain[stage] = 1 + max((chain[other] for other in read[stage]), default=0)
    return chain


def comes_back(read: Mapping[int, frozenset[int]], slices: Sequence[int]) -> bool:
    """Returns whether a stage leads to another one of its slice, so that a microbatch comes back there."""
    before: dict[int, frozenset[int]] = {}
    for stage in sorted(read):
        before[stage] = frozenset().union(read[stage], *(before[other] for other in read[stage]))
        if any(slices[other] == slices[stage] for other in before[stage]):
            return True
    return False
