"""Warnings about donated buffers that a program cannot reuse."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence

from jaxlib.mlir import ir

import pathways.dialect as dialect
from pathways.dialect.attributes.names import DONATED, MAIN, REPLACED_BY
from pathways.dialect.attributes.replica_ports import ports_of_callers
from pathways.dialect.verification.forms import PARTS
from pathways.runtime.plan.sub_programs import SubProgramCalls, calls_of


def unusable_donations(module: ir.Module, arguments: Sequence[str], *, gathers: bool) -> Iterator[str]:
    """Yields warnings about donated arguments whose buffers become no result of the launches that read them.

    It ignores arguments that nothing reads, scalars, and arguments on more than one slice, which are small
    and copied there.

    Args:
      module: the program, scheduled.
      gathers: whether results are gathered from the blocks of replicas: these get new buffers, and
        arguments that they replace are freed before.
    """
    symbols = dialect.symbol_table(module)
    main = symbols[MAIN]
    if dialect.form_of(module) == PARTS.name:
        yield from _shared_by_iterations(main, arguments, calls_of(module))
        return
    values = main.regions[0].blocks[0].arguments
    all_attrs, places = dialect.argument_attrs(main), dialect.argument_slices(main)
    gathered = set(zip(main.type.results, dialect.result_slices(main), strict=True)) if gathers else set()
    donated = functools.cache(lambda callee: dialect.donated_arguments(symbols[callee]))
    # All replicas use their arguments like the first one.
    ports = zip(arguments, ports_of_callers(all_attrs), strict=False)
    unused = [
        f"{name} of {values[n].type}".replace("tensor<", "").removesuffix(">")
        for name, (n, *_) in ports
        if DONATED in all_attrs[n]
        # A remark says where the result is that replaces it.
        and REPLACED_BY not in all_attrs[n]
        and values[n].type.rank
        and len(places[n] or ()) == 1
        and (values[n].type, places[n]) not in gathered
        and _is_only_freed(values[n], donated)
    ]
    if unused:
        yield (
            f"some donated buffers were not usable: {_first(unused)}; no result of their last "
            "reader has their type, so they are only freed"
        )


def _shared_by_iterations(main: ir.OpView, arguments: Sequence[str], calls: SubProgramCalls) -> Iterator[str]:
    """Yields a warning about donated arguments that iterations share: no reader is known as the last."""
    attrs = dialect.argument_attrs(main)
    shared = [
        name
        for n, name in enumerate(arguments)
        if DONATED in attrs[n] and n not in calls.donated and calls.consumers(n)
    ]
    if shared:
        yield (
            f"some donated buffers were not usable: {_first(shared)}; a loop whose end depends on "
            "values reads them in every iteration, so they are kept"
        )


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _is_only_freed(value: ir.Value, donated: Callable[[str], Collection[int]]) -> bool:
    """Returns whether a value is read by launches and transfers that all leave its buffer unused.

    Args:
      donated: the numbers of the arguments that a computation consumes.
    """
    readers = [(use.owner.opview, use.operand_number) for use in value.uses]
    launches = [(op, number) for op, number in readers if isinstance(op, dialect.LaunchOp)]
    # A value that is returned as it is belongs to the caller again.
    if not launches or any(
        not isinstance(op, dialect.LaunchOp | dialect.TransferOp | dialect.ReleaseOp) for op, _ in readers
    ):
        return False
    return not any(number in donated(op.callee) for op, number in launches)
