"""The schedule files of DualPipeV in torch's notation."""

from __future__ import annotations

import collections


def dual_pipe_v(ranks: int, microbatches: int) -> str:
    """Returns the file of torch's `ScheduleDualPipeV`, whose steps are those of DeepSeek's `dualpipev.py`."""
    return "\n".join(",".join(_Rank(rank, ranks, microbatches).cells()) for rank in range(ranks)) + "\n"


class _Rank:
    """Row of one rank under construction; chunk 0 goes down the ranks, chunk 1 up again."""

    def __init__(self, rank: int, ranks: int, microbatches: int) -> None:
        self.rank, self.ranks, self.microbatches = rank, ranks, microbatches
        self.stages = (rank, 2 * ranks - 1 - rank)
        self.count: collections.Counter[tuple[int, str]] = collections.Counter()
        self.weights: list[tuple[int, int]] = []
        self.row: list[str] = []

    def next(self, chunk: int, kind: str) -> str:
        done = "F" if kind == "F" else "B"
        microbatch = self.count[chunk, done]
        self.count[chunk, done] += 1
        if kind == "I":
            self.weights.append((chunk, microbatch))
        return f"{self.stages[chunk]}{kind}{microbatch}"

    def both(self, forward: int, backward: int) -> str:
        return f"({self.next(forward, 'F')};{self.next(backward, 'B')})OVERLAP_F_B"

    def weight(self) -> str:
        chunk, microbatch = self.weights.pop(0)
        return f"{self.stages[chunk]}W{microbatch}"

    def cells(self) -> list[str]:
        rank, behind, row = self.rank, self.ranks - self.rank - 1, self.row
        row += [self.next(0, "F") for _ in range(2 * behind)]
        for _ in range(rank + 1):
            row += [self.next(0, "F"), self.next(1, "F")]
        for _ in range(behind):
            row += [self.next(1, "I"), self.weight(), self.next(1, "F")]
        for n in range(self.microbatches - 2 * self.ranks + rank + 1):
            if n == 0 and rank == self.ranks - 1:
                row += [self.next(0, "F"), self.next(1, "B")]
            else:
                row.append(self.both(0, 1))
            row.append(self.both(1, 0))
        for _ in range(behind):
            row += [self.next(1, "B"), self.both(1, 0)]
        halves = False
        for n in range(rank + 1):
            halves = halves or (n == (rank + 1) // 2 and rank % 2 == 1)
            row.append(self.next(1, "I" if halves else "B"))
            halves = halves or (n == (rank + 1) // 2 and rank % 2 == 0)
            row.append(self.next(0, "I" if halves else "B"))
        for _ in range(behind):
            row += [self.weight(), self.next(0, "I" if halves else "B")]
        row += [self.weight() for _ in range(len(self.weights))]
        return row
