"""Arguments of `pw.auto`, checked."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from pathways.compiler.frontend.arguments import abstract
from pathways.compiler.frontend.trees import name_of
from pathways.compiler.frontend.user_code import symbol_of
from pathways.passes.analysis.quantities import read_bytes
from pathways.passes.schedule.policies.request import RequestError, read_request
from pathways.runtime.resources.virtual import VirtualSlice

TimesGiven = Mapping[str, Any] | str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None


@dataclasses.dataclass(frozen=True)
class AutoRequest:
    """Checked arguments of `pw.auto`.

    Attributes:
      args: the types of the arguments.
      has_aux: whether the loss returns more than its value.
      speeds: the work of each slice in a unit of time.
      times: the duration of units, as the user gives it.
      latency: of links between slices, likewise.
      bandwidth: of links between slices, likewise.
      max_bytes: the limit of bytes alive on a slice; None for no limit.
    """

    loss: Callable[..., Any]
    name: str
    slices: tuple[VirtualSlice, ...]
    num_microbatches: int
    args: tuple[Any, ...]
    has_aux: bool
    schedules: tuple[str, ...]
    speeds: tuple[float, ...]
    times: TimesGiven = None
    latency: str | float | None = None
    bandwidth: str | float | None = None
    max_bytes: int | None = None

    @property
    def subject(self) -> str:
        """The subject of messages."""
        return f"pw.auto of '{self.name}'"


def read_auto_request(
    loss: Callable[..., Any],
    slices: Sequence[VirtualSlice],
    num_microbatches: int,
    args: tuple[Any, ...],
    *,
    has_aux: bool,
    schedules: Sequence[str],
    speeds: Sequence[float] | None,
    times: TimesGiven,
    latency: str | float | None,
    bandwidth: str | float | None,
    max_bytes: str | int | None,
) -> AutoRequest:
    """Checks the arguments of `pw.auto`.

    Raises:
      TypeError: one is of another type.
      ValueError: one is out of range.
    """
    if not callable(loss):
        raise TypeError(f"pw.auto expects a loss, got {type(loss).__name__}")
    name = symbol_of(loss)
    subject = f"pw.auto of '{name}'"
    if isinstance(num_microbatches, bool) or not isinstance(num_microbatches, int) or num_microbatches < 1:
        raise ValueError(
            f"{subject}: num_microbatches must be an integer of at least 1, got {num_microbatches!r}"
        )
    if not isinstance(args, tuple) or not args:
        raise TypeError(
            f"{subject}: args must be a tuple of the arguments of the loss, got {type(args).__name__}"
        )
    checked = _slices(subject, slices)
    return AutoRequest(
        loss,
        name,
        checked,
        num_microbatches,
        tuple(_types(name, n, arg) for n, arg in enumerate(args)),
        has_aux,
        _schedules(subject, schedules),
        _speeds(subject, checked, speeds),
        times,
        latency,
        bandwidth,
        _bytes(subject, max_bytes),
    )


def _slices(subject: str, slices: Sequence[VirtualSlice]) -> tuple[VirtualSlice, ...]:
    for virtual in slices:
        if not isinstance(virtual, VirtualSlice):
            raise TypeError(
                f"{subject}: slices must be from make_virtual_device_set().add_slice(...), "
                f"got {type(virtual).__name__}"
            )
        if len(virtual.replicas) > 1:
            raise ValueError(
                f"{subject}: slice {virtual.name} has {len(virtual.replicas)} replicas, which divide the "
                "microbatches: pw.auto cuts for slices without replicas"
            )
    if len(slices) < 2 or len(set(slices)) < len(slices):
        names = ", ".join(virtual.name for virtual in slices) or "none"
        raise ValueError(f"{subject}: slices must be two different ones or more, got {names}")
    return tuple(slices)


def _schedules(subject: str, schedules: Sequence[str]) -> tuple[str, ...]:
    if isinstance(schedules, str) or not schedules:
        raise ValueError(f"{subject}: schedules must be a sequence of policies, got {schedules!r}")
    for schedule in schedules:
        try:
            read_request(schedule)
        except RequestError as error:
            raise ValueError(f"{subject}: schedule is {error}") from None
    return tuple(schedules)


def _speeds(
    subject: str, slices: Sequence[VirtualSlice], speeds: Sequence[float] | None
) -> tuple[float, ...]:
    if speeds is None:
        return tuple(float(virtual.size) for virtual in slices)
    rates = tuple(map(float, speeds))
    if len(rates) != len(slices) or not all(0 < rate < float("inf") for rate in rates):
        raise ValueError(
            f"{subject}: speeds must be a positive number for each of {len(slices)} slices, got {speeds!r}"
        )
    return rates


def _bytes(subject: str, max_bytes: str | int | None) -> int | None:
    if max_bytes is None:
        return None
    return read_bytes(max_bytes, f"{subject}: max_bytes")  # type: ignore[arg-type]


def _types(name: str, number: int, arg: Any) -> Any:
    """Returns the types of the leaves of an argument."""
    structure: Any
    pairs, structure = jax.tree_util.tree_flatten_with_path(arg)
    avals = abstract(
        [leaf for _, leaf in pairs], name, lambda: [f"args[{number}]{name_of(path)}" for path, _ in pairs]
    )
    return structure.unflatten(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
