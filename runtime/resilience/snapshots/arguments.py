"""Types and checks of the arguments of snapshot functions, which other processes call on workers.

A checked argument cannot name another path or end the worker.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pathways.dialect.plain_data import PlainDataError, read_record
from pathways.runtime.hosts.protocol.messages import MessageError
from pathways.runtime.resilience.snapshots.run_names import RUN_PATTERN

_MAX = 1 << 53

_Count = Annotated[int, Meta(ge=0, lt=_MAX, description="a whole number of at least 0")]

RunName = Annotated[str, Meta(pattern=RUN_PATTERN, description="the name of a run")]
Version = Annotated[tuple[_Count, _Count], Meta(description="a step and an attempt")]
CopyNumber = _Count
HostNumber = _Count
Position = _Count
HostAddress = Annotated[
    str, Meta(pattern=r"\A[0-9a-fA-F.:]{2,45}:[0-9]{1,5}\Z", description="an IP address and a port")
]
# Without lone surrogates, which messages cannot have.
BlockName = Annotated[
    str, Meta(pattern=r"\A[^\ud800-\udfff]+\Z", max_length=1 << 14, description="the name of a block")
]
VersionRecord = Annotated[
    str, Meta(pattern=r"\A[^\ud800-\udfff]*\Z", max_length=1 << 26, description="the record of a version")
]
Rows = list[Annotated[tuple[_Count, _Count], Meta(description="a first row, and the one after the last")]]


def checker(function: Callable[..., Any]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns a function that checks and converts the named arguments of `function` by its annotations.

    Raises:
      MessageError: an argument is not valid; the message names it and the expected type.
    """
    kinds = typing.get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    named = [(each.name, kinds[each.name]) for each in parameters if each.kind is each.KEYWORD_ONLY]
    record = msgspec.defstruct(function.__name__, named, forbid_unknown_fields=True)

    def checked(values: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return msgspec.structs.asdict(read_record(dict(values), record))
        except PlainDataError as error:
            raise MessageError(f"{function.__name__}: {error}") from None

    return checked
