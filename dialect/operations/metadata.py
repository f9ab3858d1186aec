"""Metadata that JAX carries out of a program on its calls: strings by name, for `pw-import` to read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, Self, cast, get_args

from jaxlib.mlir import ir

from pathways.dialect.attributes.fields import entries_of
from pathways.dialect.attributes.names import FRONTEND_ATTRIBUTES
from pathways.dialect.attributes.origins import KINDS, CallKind
from pathways.dialect.operations.operation import attribute_of

_PREFIX = "pw."

Mark = Literal["split", "carry", "next", "sum", "concat"]
MARKS: tuple[Mark, ...] = get_args(Mark)


class MetadataError(ValueError):
    """Metadata that the front end does not write; the message names the entry."""


@dataclasses.dataclass(frozen=True)
class CallMetadata:
    """Metadata of a call.

    A call with a `slice` is a placed call. One with a `mark` begins or ends a microbatch of `loop`, and one
    with an `exchange` exchanges blocks between slices. All other calls are ordinary.

    Attributes:
      name: the name of the user's function.
      call: the number of the placed call in its trace; that of the forward call for calls derived from it.
      stage: the stage that the user chose.
      kind: whether the call is one of the program or was created by differentiation; `grad` if it was, and is
        differentiated in turn.
      lineage: a digit for each differentiation that cut the call in two, the first cut first: 0 for the half
        that runs in any case, 1 for the half that was linear then.
      loop: the loop over microbatches, by a number while tracing and then by its symbol.
      count: the number of microbatches.
      schedule: the policy that the loop requests for itself.
      mark: the role of the call: `split` cuts the block of a microbatch out of a batch, `carry` reads the
        value that the previous microbatch gave to `next`, `sum` and `concat` reduce a value over
        microbatches.
      exchange: the number of the exchange of blocks in its trace; exchanges on the same slices, such as of
        cotangents and counts, have the same number, and are of kind `bwd`.
    """

    name: str = ""
    slice: str | None = None
    call: str = ""
    stage: int | None = None
    kind: CallKind = "fwd"
    lineage: str = ""
    loop: str | None = None
    count: int | None = None
    schedule: str | None = None
    mark: Mark | None = None
    exchange: str | None = None

    @property
    def is_ordinary(self) -> bool:
        """Whether a call has no meaning besides its callee."""
        return self.slice is None and self.mark is None and self.exchange is None

    def strings(self) -> dict[str, str]:
        """Returns the metadata as JAX expects it, without defaults."""
        texts = {
            "name": self.name,
            "slice": self.slice,
            "call": self.call,
            "stage": self.stage,
            "kind": self.kind if self.slice is not None or self.exchange is not None else None,
            "lineage": self.lineage,
            "loop": self.loop,
            "count": self.count,
            "schedule": self.schedule,
            "mark": self.mark,
            "exchange": self.exchange,
        }
        return {_PREFIX + key: str(value) for key, value in texts.items() if value not in (None, "")}

    @classmethod
    def read(cls, op: ir.OpView | ir.Operation) -> Self:
        """Reads the metadata of an operation; that of an ordinary call when it has none.

        Raises:
          MetadataError: the front end writes no such metadata.
        """
        if FRONTEND_ATTRIBUTES not in op.attributes:
            return cls()
        entries = attribute_of(op, FRONTEND_ATTRIBUTES)
        if not isinstance(entries, ir.DictAttr):
            shown = "a location" if entries is None else entries
            raise MetadataError(f"`{FRONTEND_ATTRIBUTES}` must be a dictionary, got {shown}")
        strings: dict[str, str] = {}
        for name, value in entries_of(entries).items():
            if isinstance(value, ir.StringAttr):
                strings[name] = value.value
            elif name.startswith(_PREFIX):
                raise MetadataError(f"metadata `{name}` must be a string, got {value}")
        return cls.of_strings(strings)

    @classmethod
    def of_strings(cls, strings: Mapping[str, str]) -> Self:
        """Returns the inverse of `strings`; ignores entries of JAX and of users.

        Raises:
          MetadataError: the front end writes no such metadata.
        """
        texts = {key.removeprefix(_PREFIX): text for key, text in strings.items() if key.startswith(_PREFIX)}
        kind = texts.get("kind", "fwd")
        if kind not in KINDS:
            raise MetadataError(f"metadata `pw.kind` must be one of {', '.join(KINDS)}, got '{kind}'")
        lineage = texts.get("lineage", "")
        if not set(lineage) <= set("01"):
            raise MetadataError(f"metadata `pw.lineage` must consist of the digits 0 and 1, got '{lineage}'")
        mark = texts.get("mark")
        if mark is not None and mark not in MARKS:
            raise MetadataError(f"metadata `pw.mark` must be one of {', '.join(MARKS)}, got '{mark}'")
        metadata = cls(
            name=texts.get("name", ""),
            slice=texts.get("slice"),
            call=texts.get("call", ""),
            stage=_number(texts, "stage"),
            kind=cast(CallKind, kind),
            lineage=lineage,
            loop=texts.get("loop"),
            count=_number(texts, "count"),
            schedule=texts.get("schedule"),
            mark=mark,
            exchange=texts.get("exchange"),
        )
        if mark is not None and metadata.loop is None:
            raise MetadataError("metadata marks a microbatch, but names no `pw.loop`")
        if metadata.slice is not None and mark is not None:
            raise MetadataError("metadata places a call that marks a microbatch")
        if metadata.exchange is not None and not (metadata.slice is None and mark is None):
            raise MetadataError("metadata places or marks a call that exchanges blocks")
        return metadata

    def halves(self) -> tuple[Self, Self]:
        """Returns the metadata of the two calls that differentiation makes of it: primal and linear."""
        # A backward call that is differentiated in turn has a forward half that is a gradient.
        primal: CallKind = "fwd" if self.kind == "fwd" else "grad"
        return (
            dataclasses.replace(self, kind=primal, lineage=f"{self.lineage}0"),
            dataclasses.replace(self, kind="bwd", lineage=f"{self.lineage}1"),
        )

    def write(self, op: ir.OpView | ir.Operation) -> None:
        """Replaces the metadata of an operation; other frontend attributes of JAX stay."""
        ours = {name: ir.StringAttr.get(text) for name, text in self.strings().items()}
        rest = {
            entry.name: entry.attr
            for entry in op.attributes.get(FRONTEND_ATTRIBUTES) or ()
            if not entry.name.startswith(_PREFIX)
        }
        if ours or rest:
            op.attributes[FRONTEND_ATTRIBUTES] = ir.DictAttr.get(rest | ours)
        elif FRONTEND_ATTRIBUTES in op.attributes:
            del op.attributes[FRONTEND_ATTRIBUTES]


def _number(texts: dict[str, str], key: str) -> int | None:
    text = texts.get(key)
    if text is None:
        return None
    if not text.removeprefix("-").isdecimal() or len(text) > 9:
        raise MetadataError(f"metadata `{_PREFIX}{key}` must be a number, got '{text}'")
    return int(text)
