"""Origins of launches: the placed calls of the program that a launch represents."""

from __future__ import annotations

import dataclasses
from typing import Literal

KINDS = ("fwd", "bwd", "grad", "recompute")
PARTS = ("input", "weight")

CallKind = Literal["fwd", "bwd", "grad", "recompute"]


@dataclasses.dataclass(frozen=True, order=True)
class Origin:
    """One placed call, as Shardy's MPMD names fragments: by stage, transpose count and call counter.

    The kind takes the place of the transpose count: it says on which side of the last differentiation a
    call is. Every kind but `bwd` is differentiated by it, or could be.

    Attributes:
      kind: `fwd`; `bwd`; `grad` for the backward call of a gradient that is differentiated in turn, as in a
        gradient penalty, or that the forward of a loop needs; or `recompute` for a `fwd` or `grad` that
        `jax.checkpoint` repeats.
      stage: the pipeline stage, None where it has none.
      microbatch: the microbatch, None outside of loops and before they are unrolled.
      part: the half of a split backward: `input` or `weight`.
      pieces: the number of launches that the call was cut into by `pw-share-loops`; None for one.
      when: whether the call runs on a condition, and gives zeros when that is false.
    """

    kind: CallKind
    stage: int | None = None
    microbatch: int | None = None
    part: Literal["input", "weight"] | None = None
    pieces: int | None = None
    when: bool = False

    def as_fields(self) -> dict[str, str | int]:
        """Returns the attributes that are not at their defaults, by name."""
        fields = dataclasses.asdict(self).items()
        return {name: value for name, value in fields if value is not None and value is not False}

    @property
    def is_forward(self) -> bool:
        """Whether it is the forward of its stage: a call of the program, or a gradient that is one."""
        return self.kind in ("fwd", "grad")

    @property
    def letter(self) -> str:
        """The letter of papers on pipelines: F, B, I and W for the halves of a backward, R for a repeated
        call.

        G is the forward of a stage of its own that is a gradient.
        """
        halves = {"input": "I", "weight": "W"}
        letters = {"fwd": "F", "bwd": "B", "grad": "G", "recompute": "R"}
        return halves.get(self.part or "") or letters[self.kind]
