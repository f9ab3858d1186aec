"""Planted faults: how many of them do the tests find, and how many does the quick layer find alone?

    python test/mutants.py --count 30 --seed 0 --coverage build/test/coverage.all --quick build/test/quick.txt

A mutant has one operator, comparison or constant changed or one statement dropped, on a line inside of a
function that tests execute; test/coverage_table.py says how to measure which tests do, with these sources.
The tests of that line run in a clone, the fastest first, up to the first that fails; one counts only if it
passes without the mutant. Outcomes are appended to the state file, and a run with the same arguments (but
`--count`) continues. Survivors are listed: some mutants change nothing that matters.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import collections
import contextlib
import dataclasses
import difflib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coverage_table import read_data

ROOT = Path(__file__).resolve().parents[1]
CLONE = ROOT / "build" / "mutants" / "clone"
CHUNK = 20
"""Number of tests in one process of pytest."""

LIT = (".venv/bin/lit", "-q", "-j2", "--max-failures=1", "--timeout=120")

ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "*"}
ARITHMETIC_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Div: "/", ast.Mod: "%"}
COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
UNMUTATED = (ast.JoinedStr, ast.arguments, ast.Import, ast.ImportFrom)
"""Nodes below which nothing is changed: texts, and what is executed when a function is defined."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of a module.

    Attributes:
      file: the module, relative to the root.
      line: the first line of the statement that is changed.
      start: the position of the first character that is replaced.
      end: that after the last.
      text: the replacement.
    """

    file: str
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


class MutantFinder:
    """Visitor that lists the mutants of a module."""

    def __init__(self, file: str, source: str) -> None:
        self.file = file
        self.source = source
        # Columns of `ast` count bytes.
        lines = source.splitlines(keepends=True)
        self.lines = [line.encode() for line in lines]
        self.starts = list(itertools.accumulate(map(len, lines), initial=0))

    def mutants(self) -> Iterator[Mutant]:
        for node in ast.walk(ast.parse(self.source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for statement in node.body:
                    yield from self._in_statement(statement)

    def _position(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1][:column].decode())

    def _replace(self, statement: ast.stmt, node: Any, text: str) -> Mutant:
        start = self._position(node.lineno, node.col_offset)
        return Mutant(
            self.file, statement.lineno, start, self._position(node.end_lineno, node.end_col_offset), text
        )

    def _between(self, statement: ast.stmt, left: Any, right: Any, old: str, new: str) -> Iterator[Mutant]:
        """Yields the mutant with another operator between two expressions."""
        start = self._position(left.end_lineno, left.end_col_offset)
        gap = self.source[start : self._position(right.lineno, right.col_offset)]
        pattern = r"\s+".join(map(re.escape, old.split()))
        if (match := re.search(pattern, gap)) and "#" not in gap:
            yield Mutant(self.file, statement.lineno, start + match.start(), start + match.end(), new)

    def _in_statement(self, statement: ast.stmt) -> Iterator[Mutant]:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return  # A function is found on its own.
        match statement:
            case ast.Expr(ast.Call() as call) if not ast.unparse(call).startswith(("log.", "warnings.")):
                yield self._replace(statement, statement, "pass")
            case ast.Continue() | ast.Return(ast.expr()) | ast.Raise():
                yield self._replace(statement, statement, "pass")
        for name, value in ast.iter_fields(statement):
            for child in value if isinstance(value, list) else [value]:
                match child:
                    case ast.stmt():
                        yield from self._in_statement(child)
                    case ast.ExceptHandler() | ast.match_case():
                        for inner in child.body:
                            yield from self._in_statement(inner)
                    case ast.expr() | ast.withitem() if name != "annotation":
                        yield from self._in_expression(statement, child)

    def _in_expression(self, statement: ast.stmt, node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, UNMUTATED):
            return
        match node:
            case ast.BinOp(left, op, right) if type(op) in ARITHMETIC and not (_text(left) or _text(right)):
                old, new = ARITHMETIC_SIGNS[type(op)], ARITHMETIC[type(op)]
                yield from self._between(statement, left, right, old, new)
            case ast.Compare(left, [op], [right]):
                yield from self._between(statement, left, right, *COMPARISONS[type(op)])
            case ast.BoolOp(op, values):
                signs = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                for left, right in itertools.pairwise(values):
                    yield from self._between(statement, left, right, *signs)
            case ast.UnaryOp(ast.Not(), operand):
                yield self._replace(statement, node, f"bool({ast.get_source_segment(self.source, operand)})")
            case ast.Constant(bool() as value):
                yield self._replace(statement, node, str(not value))
            case ast.Constant(int() | float() as value):
                yield self._replace(statement, node, repr(value + 1))
        for child in ast.iter_child_nodes(node):
            yield from self._in_expression(statement, child)


def _text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


class CoveringTests:
    """Tests that execute each line, from the data of a measurement with contexts."""

    def __init__(self, file: Path) -> None:
        self._data, self._root = read_data(file)
        self.sizes: collections.Counter[str] = collections.Counter()
        """About how many lines a test executes."""
        for path in self._data.measured_files():
            for contexts in self._data.contexts_by_lineno(path).values():
                self.sizes.update({context.rpartition("|")[0] for context in contexts})

    def of_file(self, file: str) -> dict[int, dict[str, bool]]:
        """Returns the tests of each line of a module, and whether they execute it themselves.

        Others are in a file with a test whose fixture or process does: they may use it too.
        """
        by_file = collections.defaultdict(set)
        for test in self.sizes:
            by_file[test.partition("::")[0]].add(test)
        found = {}
        for line, contexts in self._data.contexts_by_lineno(str(self._root / file)).items():
            tests: dict[str, bool] = {}
            for test, _, phase in (context.rpartition("|") for context in contexts):
                if phase in ("setup", "child"):
                    tests |= dict.fromkeys(by_file[test.partition("::")[0]] - tests.keys(), False)
                if test:
                    tests[test] = True
            if tests:
                found[line] = tests
        return found


class Clone:
    """A clone of the repository, with an environment of its own in which `pathways` is that of the clone."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._sound: dict[str, bool] = {}
        self._stamp = int(time.time())
        if subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False).returncode:
            sys.exit(f"{ROOT} has changes that are not committed: commit them")
        shutil.rmtree(CLONE, ignore_errors=True)
        CLONE.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "-q", "--shared", ROOT, CLONE], check=True)
        self._link_environment()
        package = self.python("-c", "import pathways.runtime as r; print(r.__file__)", cwd="/").stdout.strip()
        assert package == str(CLONE / "runtime" / "__init__.py"), f"pathways comes from {package}"
        collected = self.python("-m", "pytest", "--collect-only").stdout
        self.tests = {line for line in collected.splitlines() if "::" in line}
        assert self.tests, collected

    def python(self, *arguments: str, cwd: str | Path = CLONE) -> subprocess.CompletedProcess[str]:
        """Runs Python in the clone; kills it, and the processes of its group, after the timeout."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        # No pipe: a process that outlives this one would keep it open.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [CLONE / ".venv" / "bin" / "python", *arguments],
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(self.timeout)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
        return subprocess.CompletedProcess(arguments, process.returncode, text)

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Applies a mutant in the clone for the block."""
        source = (ROOT / mutant.file).read_text()
        self._write(mutant.file, mutant.apply(source))
        try:
            yield
        finally:
            self._write(mutant.file, source)

    def find(self, mutant: Mutant, tests: Sequence[str], lit: bool) -> str | None:
        """Returns the first test that fails with the mutant, and passes without it."""
        for start in range(0, len(tests), CHUNK):
            # In order of files, which share fixtures.
            chunk = sorted(tests[start : start + CHUNK], key=lambda test: test.partition("::")[0])
            while chunk:
                with self.mutated(mutant):
                    failed = self._failed(chunk)
                if failed is None:
                    break
                if len(failed) == 1:
                    if self._is_sound(failed[0]):
                        return failed[0]
                else:
                    failed = self._failed(chunk) or []
                    if not failed:
                        return f"{chunk[0]} or the next: the process of pytest ended or hung"
                chunk = [test for test in chunk if test not in failed]
        return self._failed_lit(mutant) if lit else None

    def _failed(self, tests: Sequence[str]) -> list[str] | None:
        """Returns the test that failed, all if the process ended or hung, nothing if all passed."""
        done = self.python("-m", "pytest", "-x", "-p", "no:cacheprovider", *tests)
        # A process that a test ended early says no time.
        if done.returncode in (0, 5) and re.search(r"(?m) in [\d.]+s\b", done.stdout[-200:]):
            return None
        lines = done.stdout.splitlines()
        ids = [line.partition(" ")[2] for line in lines if line.startswith(("FAILED ", "ERROR "))]
        found = [test for test in tests if any(line == test or line.startswith(f"{test} - ") for line in ids)]
        return found[:1] or list(tests)

    def _is_sound(self, test: str) -> bool:
        """Returns whether a test passes in the clone without a mutant."""
        if test not in self._sound:
            if test.startswith("lit "):
                passes = self.python(*LIT, test.removeprefix("lit ")).returncode == 0
            else:
                passes = self._failed([test]) is None
            self._sound[test] = passes
            if not passes:
                print(f"ignored, since it fails without a mutant: {test}", flush=True)
        return self._sound[test]

    def _failed_lit(self, mutant: Mutant) -> str | None:
        with self.mutated(mutant):
            done = self.python(*LIT, "test/passes", "test/dialect")
        if done.returncode == 0:
            return None
        match = re.search(r"(?m)^  pathways :: (\S+)", done.stdout)
        failed = f"lit test/{match[1]}" if match else "lit test/passes"
        return failed if self._is_sound(failed) else None

    def _write(self, file: str, source: str) -> None:
        path = CLONE / file
        path.write_text(source)
        # Python takes a compiled module for current by its size and the seconds of its time.
        self._stamp += 2
        os.utime(path, (self._stamp, self._stamp))

    def _link_environment(self) -> None:
        """Makes an environment of links; copies files that name this checkout, as the finder of packages."""
        own = Path(sys.prefix)
        for path in itertools.chain((own / "bin").iterdir(), own.glob("lib/*/site-packages/*")):
            link = CLONE / ".venv" / path.relative_to(own)
            link.parent.mkdir(parents=True, exist_ok=True)
            is_text = path.is_file() and (path.name.startswith("__editable__") or path.parent.name == "bin")
            if path.is_symlink() and path.parent.name == "bin":
                link.symlink_to(path.readlink())
            elif is_text and (content := path.read_bytes()).find(os.fsencode(ROOT)) >= 0:
                link.write_bytes(content.replace(os.fsencode(ROOT), os.fsencode(CLONE)))
                shutil.copymode(path, link)
            else:
                link.symlink_to(path)
        shutil.copy(own / "pyvenv.cfg", CLONE / ".venv")


def draw(options: argparse.Namespace, covering: CoveringTests) -> list[tuple[Mutant, dict[str, bool]]]:
    """Returns random mutants, each with the tests of its line."""
    candidates = []
    for path in sorted(path for name in options.packages for path in (ROOT / name).rglob("*.py")):
        file = str(path.relative_to(ROOT))
        source = path.read_text()
        tests = covering.of_file(file)
        found = set(MutantFinder(file, source).mutants())
        candidates += sorted((m for m in found if m.line in tests), key=dataclasses.astuple)
    random.Random(options.seed).shuffle(candidates)
    drawn = []
    for mutant in candidates:
        if len(drawn) == options.count:
            break
        try:
            compile(mutant.apply((ROOT / mutant.file).read_text()), mutant.file, "exec")
        except SyntaxError:
            continue
        drawn.append((mutant, covering.of_file(mutant.file)[mutant.line]))
    return drawn


def changed_lines(mutant: Mutant) -> tuple[str, list[str]]:
    """Returns the place and the diff of a mutant."""
    source = (ROOT / mutant.file).read_text()
    starts = [match.end() for match in re.finditer("\n", source)]
    place = f"{mutant.file}:{bisect.bisect_right(starts, mutant.start) + 1}"
    lines = (source.splitlines(), mutant.apply(source).splitlines())
    return place, list(difflib.unified_diff(*lines, place, place, n=1, lineterm=""))


def run(options: argparse.Namespace) -> list[tuple[Mutant, dict[str, Any]]]:
    """Runs the tests of the mutants that are not in the state file; returns the outcomes of all."""
    arguments = {"seed": options.seed, "packages": options.packages, "coverage": str(options.coverage)}
    options.state.parent.mkdir(parents=True, exist_ok=True)
    if not options.state.exists():
        options.state.write_text(json.dumps({"arguments": arguments}) + "\n")
    first, *lines = map(json.loads, options.state.read_text().splitlines())
    if first != {"arguments": arguments}:
        sys.exit(f"{options.state} is of other arguments, {first}: delete it or give another --state")
    known = {Mutant(**line["mutant"]): line for line in lines}

    covering = CoveringTests(options.coverage)
    drawn = draw(options, covering)
    durations_file = ROOT / "test" / "durations.json"
    durations = json.loads(durations_file.read_text()) if durations_file.exists() else {}
    quick = set(options.quick.read_text().splitlines()) if options.quick else None
    clone = None
    for number, (mutant, tests) in enumerate(drawn):
        if mutant in known:
            continue
        clone = clone or Clone(options.timeout)
        start = time.monotonic()

        def cost(test: str, tests: dict[str, bool] = tests) -> tuple[bool, float, int]:
            return not tests[test], durations.get(test, 8.0), covering.sizes[test]

        ranked = sorted(clone.tests & tests.keys(), key=cost)
        outcome: dict[str, Any] = {"found": None, "by": None}
        for layer in ("quick", "rest"):
            chosen = [test for test in ranked if (quick is None or test in quick) == (layer == "quick")]
            lit = layer == "quick" and mutant.file.startswith(("passes/", "dialect/"))
            if found := clone.find(mutant, chosen[: options.tests], lit):
                outcome = {"found": layer, "by": found}
                break
        outcome["seconds"] = round(time.monotonic() - start, 1)
        known[mutant] = {"mutant": dataclasses.asdict(mutant), **outcome}
        with options.state.open("a") as file:
            file.write(json.dumps(known[mutant]) + "\n")
        place, diff = changed_lines(mutant)
        before, after = (next(row[1:].strip() for row in diff[2:] if row[0] == sign) for sign in "-+")
        verdict = f"found by {outcome['found']}: {outcome['by']}" if outcome["found"] else "SURVIVED"
        print(f"{number + 1}. {place}: {before} -> {after}\n   {verdict}, {outcome['seconds']} s", flush=True)
    return [(mutant, known[mutant]) for mutant, _ in drawn]


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--count", type=int, default=30, help="mutants (default: %(default)s)")
    flags.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    flags.add_argument("--coverage", type=Path, required=True, help="data with contexts")
    flags.add_argument("--quick", type=Path, help="ids of the quick layer, one a line (default: all ids)")
    flags.add_argument("--packages", nargs="+", default=["passes", "runtime", "compiler"])
    flags.add_argument("--tests", type=int, default=40, help="of each layer at most (default: %(default)s)")
    flags.add_argument("--timeout", type=float, default=300, help="seconds for each process of pytest")
    state = Path("build", "test", "mutants.jsonl")
    flags.add_argument("--state", type=Path, default=ROOT / state, help=f"state file (default: {state})")
    outcomes = run(flags.parse_args())
    survivors = [mutant for mutant, outcome in outcomes if outcome["found"] is None]
    for mutant in survivors:
        print("\nsurvivor", "\n".join(changed_lines(mutant)[1]), sep="\n")
    print()
    verdicts = {"quick": "found by the quick layer", "rest": "found by the rest", None: "survived"}
    for layer, name in verdicts.items():
        count = sum(outcome["found"] == layer for _, outcome in outcomes)
        print(f"{name}: {count} of {len(outcomes)} ({count / max(len(outcomes), 1):.0%})")


if __name__ == "__main__":
    main()
