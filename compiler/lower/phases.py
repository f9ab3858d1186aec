"""Driver of the phases of the compiler, which keeps every form of a program."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jaxlib.mlir import ir

from pathways.compiler.lower.progress import LoweringProgress
from pathways.dialect.errors import PathwaysError
from pathways.dialect.spelling import did_you_mean
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.dialect.verification.forms import FORMS, foreign_form, stage_of
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import Diagnostic, Diagnostics, run_passes
from pathways.passes.pipeline import Options, phases, phases_after
from pathways.runtime.resources.paths import path_in_environment

PHASES = ("stablehlo", *(phase.name for phase in phases(Options())))
"""The forms of a program, in the order of the phases; each has the name of its phase."""


class ProgramError(PathwaysError, ValueError):
    """Program cannot be lowered; the message names the place in the user's code."""

    # The module in its tracebacks.
    __module__ = "pathways"


@dataclasses.dataclass(frozen=True)
class Forms:
    """Program in every form from the one that it started in.

    Attributes:
      scheduled: the module in its last form; of a whole program, the scheduled one.
      bytecode: the module after each phase, from the one that it started in.
    """

    name: str
    scheduled: ir.Module
    bytecode: Mapping[str, bytes]
    remarks: tuple[Diagnostic, ...]

    def text(self, phase: str) -> str:
        """Returns the module after a phase, as MLIR text.

        Raises:
          ValueError: the phase does not exist, or the program started in a later form.
        """
        names = tuple(dict.fromkeys((*self.bytecode, *PHASES)))
        if phase not in names:
            near = did_you_mean(phase, names) or f"; the phases are {', '.join(names)}"
            raise ValueError(f"unknown phase '{phase}'{near}")
        if phase not in self.bytecode:
            first = next(iter(self.bytecode), None)
            begins = f"is in the form '{first}', which is" if first else "starts in a form"
            raise ValueError(f"program '{self.name}' {begins} after '{phase}'")
        # Parsed only now: most programs are never printed.
        return str(ir.Module.parse(self.bytecode[phase], self.scheduled.context))


def run_phases(module: ir.Module, name: str, options: Options, until: str = PHASES[-1]) -> Forms:
    """Takes a module through all phases after its form, up to one; changes the module.

    Writes each form to the folder in the environment variable `PW_DUMP_TO`, if that is set.

    Args:
      name: the name of the program in messages and files.
      until: the last phase.

    Raises:
      ProgramError: a pass rejects the program.
    """
    folder = path_in_environment("PW_DUMP_TO")
    foreign = foreign_form(module)
    form = stage_of(module) or (foreign.name if foreign else None)
    bytecode = {}

    def keep(phase: str) -> None:
        bytecode[phase] = bytecode_of(module)
        _dump(module, name, phase, folder)

    # Not every form ends a phase.
    if (form or PHASES[0]) in PHASES or (form and FORMS[form].foreign):
        keep(form or PHASES[0])
    with Diagnostics(module.context) as seen, contextlib.closing(LoweringProgress(name)) as progress:
        for phase in phases_after(options, form):
            try:
                # From the placed form on, each phase ends with a pass that checks its form.
                run_passes(module, phase.passes, verify_each=False, before_each=progress.before_pass)
            except PassFailure as failure:
                # An author of IR knows its operations; a user of JAX gets them described.
                texts = failure.described if form is None else ()
                shown = "\n".join(_shown(seen.errors, texts))
                raise ProgramError(f"program '{name}': {shown}") from None
            keep(phase.name)
            if phase.name == until:
                break
    return Forms(name, module, bytecode, tuple(d for d in seen.all if d.severity == "remark"))


def _shown(errors: Sequence[Diagnostic], described: Sequence[str]) -> Iterator[str]:
    """Yields the errors with their places, the last of them as `described`."""
    texts = [error.message.removeprefix("'func.func' op ") for error in errors]
    if described:
        texts[-len(described) :] = described
    for text, error in zip(texts, errors, strict=True):
        yield f"{text} ({error.position})" if error.position else text


def _dump(module: ir.Module, name: str, phase: str, folder: str | None) -> None:
    if not folder:
        return
    number = PHASES.index(phase) if phase in PHASES else 0
    file = Path(folder) / f"{name}.{number}_{phase}.mlir"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{module}\n")
    except OSError as error:
        raise OSError(
            error.errno, f"PW_DUMP_TO names no folder to write to: {error.strerror}", folder
        ) from None
