"""Compilation of the program of `pw-compile`, and its output."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from jaxlib.mlir import ir

from pathways.compiler.lower.phases import PHASES
from pathways.compiler.stages import Compiled, Lowered
from pathways.dialect import make_context
from pathways.dialect.spelling import did_you_mean
from pathways.dialect.syntax.pretty import pretty
from pathways.runtime.local.devices import cluster, connect
from pathways.runtime.resources.manager import ResourceError
from pathways.runtime.resources.paths import absolute_path
from pathways.runtime.xla.compile_cache import CompileError
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import BUNDLE, check_extension, is_file, write_output
from pathways.tools.common.supervisor import doing
from pathways.tools.drivers.explain import explain, figures
from pathways.tools.inputs import targets
from pathways.tools.inputs.user_code import CannotRun

_DEVICE = "device"


class TooFewDevices(CannotRun):
    """Program needs more devices than there are.

    Attributes:
      present: the number that exist.
    """

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.present = len(cluster().devices)
        self.platform = cluster().platform


def run(options: argparse.Namespace, arguments: tuple[Sequence[Any], dict[str, Any]] | None) -> int:
    """Runs the tool for its flags; returns the exit code.

    Args:
      arguments: the positional and named arguments of the program; None for its examples.

    Raises:
      TooFewDevices: there are too few devices to compile for.
    """
    phase = _phase(options)
    is_bundle = options.output.endswith(BUNDLE)
    # Now, since the module of the program may change the working directory.
    output = options.output if options.output == "-" else absolute_path(options.output)
    schedule = options.schedule
    if schedule is not None and is_file(schedule):
        schedule = absolute_path(schedule)
    if options.cpu_devices is not None:
        _use_cpu_devices(options.cpu_devices)
    # Standard output is for the module alone.
    with _output_on_stderr():
        doing(f"importing {options.target}")
        target = targets.find(options.target)
        args, kwargs = (target.example_args(), {}) if arguments is None else arguments
        doing(f"lowering {options.target}")
        lowered = target.lower(args, kwargs, schedule=schedule, fuse=options.fuse, zero1=options.zero1)
        compiled = None
        if phase == _DEVICE or options.explain or options.executables:
            doing(f"compiling {options.target}")
            compiled = _compile(target, lowered)
        if is_bundle:
            doing(f"writing {options.output}")
            _save(output, lowered, compiled if options.executables else None)
        doing("printing the result")
        text = _text(options, phase, lowered, compiled)
    if options.remarks:
        _print_remarks(lowered)
    if options.explain or not is_bundle:
        if not is_bundle:
            check_extension("pw-compile", options.output, *_format(options, phase))
        write_output("-" if is_bundle else output, text.encode(errors="replace") + b"\n")
    return 0


@contextlib.contextmanager
def _output_on_stderr() -> Iterator[None]:
    """Redirects standard output to standard error: for Python, C and other processes."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _format(options: argparse.Namespace, phase: str) -> tuple[str, ...]:
    """Returns the format of the output, and its usual suffixes."""
    if options.explain:
        return ("figures as JSON", ".json") if options.json else ("tables", ".txt")
    return ("modules of XLA", ".hlo", ".txt") if phase == _DEVICE else ("MLIR text", ".mlir")


def _phase(options: argparse.Namespace) -> str:
    """Returns the phase whose module is printed."""
    phase = options.phase or PHASES[-1]
    phases = [*PHASES, _DEVICE]
    if phase in phases:
        return phase
    meant = did_you_mean(phase, phases) or ";"
    raise UserError(f"unknown phase '{phase}'{meant} the phases are {', '.join(phases)}")


def _use_cpu_devices(number: int) -> None:
    """Makes the cluster one of CPU devices."""
    try:
        connect(cpu_devices=number)
    except (RuntimeError, ValueError) as error:
        raise UserError(str(error)) from None


def _compile(target: targets.PythonTarget | targets.MlirTarget, lowered: Lowered) -> Compiled:
    """Compiles for the devices of the cluster.

    Raises:
      TooFewDevices: there are fewer devices than the slices need.
      CannotRun: for any other reason, with the error as its cause.
    """
    try:
        return target.compile(lowered)
    except CannotRun as error:
        needed = sum(virtual.size for virtual in lowered.slices.values())
        if isinstance(error.__cause__, ResourceError) and len(cluster().devices) < needed:
            raise TooFewDevices(str(error), needed) from error.__cause__
        raise


def _save(path: str, lowered: Lowered, compiled: Compiled | None) -> None:
    """Writes a bundle, with executables if the program is compiled.

    Raises:
      UserError: the program cannot be stored in a bundle, or the file cannot be written.
    """
    try:
        if compiled is None:
            lowered.save(path)
        else:
            compiled.save(path, executables=True)
    # A bundle's, or a plan's: a function may be declared without a body.
    except (ValueError, CompileError) as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"cannot write output file '{path}': {error.strerror or error}") from None


def _text(options: argparse.Namespace, phase: str, lowered: Lowered, compiled: Compiled | None) -> str:
    """Returns the output of the tool: a table, or the module after a phase."""
    if compiled is not None and options.explain:
        text = (
            json.dumps(figures(lowered, compiled), indent=2) if options.json else explain(lowered, compiled)
        )
    elif compiled is not None and phase == _DEVICE:
        text = compiled.as_text(_DEVICE)
    else:
        text = _module_text(lowered, phase, options.elide)
        text = pretty(text) if options.pretty else text
    return text.rstrip("\n")


def _module_text(lowered: Lowered, phase: str, elide: int | None = None) -> str:
    """Returns the module after a phase; elements attributes of more than `elide` elements are left out."""
    try:
        text = lowered.as_text(phase)
    except ValueError as error:
        raise UserError(str(error)) from None
    if elide is None:
        return text
    module = ir.Module.parse(text, make_context())
    return module.operation.get_asm(large_elements_limit=elide)


def _print_remarks(lowered: Lowered) -> None:
    for remark in lowered.remarks:
        print(remark, *remark.notes, sep="\n", file=sys.stderr)
    if not lowered.remarks:
        print("pw-compile: no remarks", file=sys.stderr)
