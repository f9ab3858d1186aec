"""Cases of the harness of IR: an input and a pipeline, the run of the tools on them, and its verdict."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import random
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from corpus import ROOT, Corpus
from forked import Ending
from jaxlib.mlir import ir
from mutations import mutate, pick_seed
from random_pipelines import SCHEDULE_FILE, random_order, random_pipeline

from pathways.dialect import form_of, load_ifrt, make_context, problems
from pathways.passes.manager import registry
from pathways.tools import pw_opt, pw_sim
from pathways.tools.common import command, supervisor
from pathways.tools.common.flags import FlagParser
from pathways.tools.common.source import BYTECODE_MAGIC
from pathways.tools.drivers import opt
from pathways.tools.inputs import scheduled

_FLAGS = (
    *(
        ("--mlir-print-op-generic",),
        ("--emit-bytecode",),
        ("--emit-schedule",),
        ("--mlir-print-ir-after-change",),
    ),
    *(("--mlir-print-debuginfo",), ("--emit-irdl", "pw.irdl")),
)
_NOT_FOR_US = {"--emit-schedule", "--emit-irdl"}
"""Flags that have `pw-opt` write output that it cannot read."""

PACKAGE_FOLDERS = ("dialect", "passes", "runtime", "tools", "compiler")
GOOD = ("ok", "refused")
"""Kinds of verdicts that are no failures."""

_LATE = (
    *("jaxlib.mlir.dialects.builtin", "pathways.dialect.pw", "pathways.tools.drivers.sim"),
    *("scipy.sparse", "scipy.sparse.csgraph"),
)
_CONTEXTS = 5
"""Number of contexts: two for the tool, two for reading its output again, one for the simulator."""

INPUT, OUTPUT = "input.mlir", "output.mlir"
_ERROR = re.compile(r"(?m)^(?:.*:\d+:\d+: |<unknown>:\d+: |pw-(?:opt|sim): )?error: ")
PARSER = "MLIR's parser"

_NO_MEMORY = ("out of memory", "std::bad_alloc", "Allocation failed", "MemoryError")


@dataclasses.dataclass(frozen=True)
class Case:
    """Input of `pw-opt`, with the passes to run on it, other flags, and a schedule file next to it."""

    data: bytes
    pipeline: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    order: str = ""
    seed: str = ""
    """Name of the seed of the input."""

    def command(self) -> list[str]:
        """Returns the arguments of `pw-opt`."""
        return [INPUT, "-o", OUTPUT, "-p", ",".join(self.pipeline), *self.flags]

    def write(self, folder: Path) -> None:
        """Writes the input, and all that `read` needs."""
        (folder / INPUT).write_bytes(self.data)
        (folder / SCHEDULE_FILE).write_bytes(self.order.encode("latin-1"))
        rest = {"pipeline": self.pipeline, "flags": self.flags, "order": self.order, "seed": self.seed}
        (folder / "case.json").write_text(json.dumps(rest))

    @staticmethod
    def read(folder: Path) -> Case:
        """Returns the case that was written to a folder."""
        rest = json.loads((folder / "case.json").read_text())
        pipeline, flags = tuple(rest["pipeline"]), tuple(rest["flags"])
        return Case((folder / INPUT).read_bytes(), pipeline, flags, rest["order"], rest["seed"])


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Verdict on a case.

    Attributes:
      kind: `ok`; `refused`: exit code 1 and diagnostics; `traceback`; `crash`: killed by a signal; `hang`;
        `memory`: it exceeded its limit; `silent`: exit code 1 without an error, or 0 with one, or another
        code; `reread`: its own output is rejected.
      bucket: a text that failures of one cause share.
      message: the first error, or the end of the traceback.
      note: the work at that moment.
    """

    kind: str
    bucket: str = ""
    message: str = ""
    note: str = ""


def random_case(
    number: int, seed: int, corpus: Corpus, context: ir.Context, folder: Path, note: Callable[[str], None]
) -> Case:
    """Creates a case, and writes it to a folder.

    An input that MLIR itself rejects tests nothing of this compiler, so most of these are replaced; half of
    the time, also those that our verifier rejects, so that passes get some input.
    """
    rng = random.Random(f"{seed}/{number}")
    patience = rng.choice([0.0, 1.0, 1.0, 1.0, 1.5, 1.5, 1.5, 1.5, 1.5])
    for _ in range(6):
        note("making the case")
        case = _random_case(rng, corpus)
        case.write(folder)
        # Damaged bytecode is not read first: it may corrupt the memory of the process.
        if patience == 0.0 or case.data.startswith(BYTECODE_MAGIC):
            break
        note(f"reading {INPUT}")
        if _is_read(case, context, taken=patience > 1.0):
            break
    return case


def _random_case(rng: random.Random, corpus: Corpus) -> Case:
    source = pick_seed(rng, corpus)
    data = mutate(rng, source, corpus)
    claims = "" if source.is_bytecode else data.decode(errors="replace")
    pipeline = random_pipeline(rng, claims, source.pipelines)
    flags = rng.choice(_FLAGS) if rng.random() < 0.2 else ()
    return Case(data, pipeline, flags, random_order(rng), source.name)


def quiet_context() -> ir.Context:
    """Returns a context that drops diagnostics: the bindings abort when they convert some of them."""
    context = make_context()
    load_ifrt(context)
    context.emit_error_diagnostics = True
    context.attach_diagnostic_handler(lambda _: True)
    return context


def _is_read(case: Case, context: ir.Context, *, taken: bool) -> bool:
    """Returns whether MLIR reads an input, and with `taken`, also whether its first pass accepts it.

    The module is freed in here, which may crash MLIR for bytecode.
    """
    module = _parsed(case.data, context)
    return module is not None and (not taken or _is_taken(module, case.pipeline))


def prepare(corpus: Corpus) -> list[ir.Context]:
    """Does once what each child would do: loads modules that are imported late, and creates contexts."""
    for name in _LATE:
        importlib.import_module(name)
    for name in registry.names():
        registry.load(name)
    assert corpus.weights
    return [make_context() for _ in range(_CONTEXTS)]


def _parsed(data: bytes, context: ir.Context) -> ir.Module | None:
    try:
        data.decode()  # The bindings decode the text, too, and abort if that fails.
        return ir.Module.parse(data, context)
    except (ir.MLIRError, ValueError, MemoryError):
        return None


def _is_taken(module: ir.Module, pipeline: tuple[str, ...]) -> bool:
    """Returns whether the first pass accepts a module, or the verifier fails at it, which is a finding."""
    name = pipeline[0].partition("{")[0] if pipeline else ""
    takes = registry.load(name).input_forms if name in registry.MODULES else ()
    try:
        claim = form_of(module)
        if claim is None and takes:
            return any(not problems(module, form) for form in takes)
        return not problems(module) and (not takes or claim in [form.name for form in takes])
    except Exception:
        return True


def execute(
    case: Case, folder: Path, note: Callable[[str], None], contexts: Sequence[ir.Context] = ()
) -> None:
    """Runs a case in this process, which should be a child, and writes its verdict to the folder."""
    os.chdir(folder)
    unused = list(contexts)
    opt.make_context = scheduled.make_context = lambda: unused.pop() if unused else make_context()
    opt.doing = scheduled.doing = supervisor.doing = note
    memory_frames: list[str] = []
    command.run_here = _noting_memory(command.run_here, memory_frames)
    try:
        verdict = _run(case)
    except BaseException as error:
        sys.stdout.flush()
        verdict = _raised(error)
    if verdict.message.endswith("out of memory"):
        verdict = Verdict("memory", (memory_frames or ["?"])[0], verdict.message)
    Path("verdict.json").write_text(json.dumps(dataclasses.asdict(verdict)))


def _noting_memory(original: Callable[..., int], frames: list[str]) -> Callable[..., int]:
    """Returns a `run` of tools that records the frames of a lack of memory, which they report in one line."""

    def run_here(parser: FlagParser, work: command.Work, arguments: Sequence[str]) -> int:
        def noted(options: argparse.Namespace) -> int:
            try:
                return work(options)
            except MemoryError as error:
                frames.append(_innermost(error.__traceback__))
                raise

        return original(parser, noted, arguments)

    return run_here


def _run(case: Case) -> Verdict:
    verdict = _tool(lambda: pw_opt.main(case.command()))
    if verdict.kind != "ok" or not _NOT_FOR_US.isdisjoint(case.flags):
        return verdict
    reread = _tool(lambda: pw_opt.main([OUTPUT, "-o", "again.mlir"]))
    if reread.kind != "ok":
        return dataclasses.replace(
            reread,
            kind="reread" if reread.kind == "refused" else reread.kind,
            bucket=reread.bucket or f"reread: {_general(reread.message)}",
        )
    if b'pw.form = "scheduled"' in Path(OUTPUT).read_bytes():
        simulated = _tool(lambda: pw_sim.main([OUTPUT, "--json", "-o", "sim.json"]))
        return verdict if simulated.kind == "refused" else simulated
    return verdict


def _tool(main: Callable[[], int]) -> Verdict:
    """Runs a tool; the caller handles its exceptions."""
    sys.stderr.flush()
    start = os.fstat(2).st_size
    code = main()
    sys.stderr.flush()
    printed = os.pread(os.open("/proc/self/fd/2", os.O_RDONLY), 1 << 20, start).decode(errors="replace")
    error = _ERROR.search(printed)
    first = printed[error.start() :].split("\n")[0] if error else ""
    if "Traceback (most recent call last)" in printed:
        return Verdict("silent", "prints a traceback", printed[-300:])
    match code:
        case 0 if not error:
            return Verdict("ok")
        case 1 if error:
            return Verdict("refused", message=first)
    return Verdict("silent", f"exit code {code}, {'an' if error else 'no'} error: {_general(first)}", first)


def _raised(error: BaseException) -> Verdict:
    """Returns the verdict on an exception that a tool let through."""
    traceback.print_exception(error)
    frame = _innermost(error.__traceback__)
    message = "".join(traceback.format_exception_only(error)).strip()[:500]
    if isinstance(error, MemoryError):
        return Verdict("memory", frame, message)
    return Verdict("traceback", f"{type(error).__name__} {frame}", message)


def _innermost(trace: TracebackType | None) -> str:
    frames = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(trace)]
    return _project_frame(reversed(frames))


def _project_frame(frames: Any) -> str:
    """Returns the first of some frames that is in the project, as `passes/place/inference/cut.py:71 cut`."""
    for file, line, name in frames:
        path = Path(file)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PACKAGE_FOLDERS:
            return f"{path.relative_to(ROOT)}:{line} {name}"
    return "?"


def judge(ending: Ending) -> Verdict:
    """Returns the verdict on a case that was executed in a child."""
    if ending.signal is None and not ending.late:
        read = json.loads((ending.folder / "verdict.json").read_text())
        return dataclasses.replace(Verdict(**read), note=ending.note)
    stack = ending.frames()
    # The caller does not matter: the tool, or this file, which checks first whether to run the tool.
    frame = (
        PARSER if stack and stack[0][2] in ("parse", "_parse_bytecode", "_parsed") else _project_frame(stack)
    )
    doing = _general(ending.note)
    if ending.late:
        # The position in a loop at which it is stopped is random, but the pass is not.
        passes = [f for f in stack if "/passes/" in f[0] and "/driver.py" not in f[0]]
        place = frame if frame == PARSER else _project_frame(passes[-1:] or stack).split(":")[0]
        return Verdict("hang", f"{place} {doing}", frame, ending.note)
    name = ending.signal.name if ending.signal else "?"
    if any(sign in ending.stderr for sign in _NO_MEMORY):
        return Verdict("memory", f"{frame} {doing}", name, ending.note)
    abort = re.search(
        r"(?m)^(?:LLVM ERROR: (?:F\d.*?\] )?|(?=.*Assertion)|(?=terminate called))(.*)", ending.stderr
    )
    return Verdict("crash", f"{name} {frame} {doing}", abort[1] if abort else name, ending.note)


def _general(text: str) -> str:
    """Returns a message without what differs from input to input."""
    text = re.sub(r"\{.*\}", "", text)
    text = re.sub(r"^\S+:\d+:\d+: ", "", text)
    return re.sub(r"'[^']*'|@[\w:]+|#?\d+|\"[^\"]*\"|%\S+", "_", text)[:80]
