"""Tests of the harness of mutations: its verdicts on every kind of failure, and repeatable cases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import syntax

pytestmark = pytest.mark.process

TEXT = """\
!x = tensor<4xf32>
module @program attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  func.func @main(%x: !x {pw.donated, sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> !x {
    %0:2 = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> (!x, tensor<f32>)
    return %0#0 : !x
  }
  func.func private @f(!x) -> (!x, tensor<f32>)
}
"""


def in_a_process(script: str, tmp_path: Path) -> Any:
    """Returns `result` of a script; the harness forks, which JAX in the process of the tests forbids."""
    names = f"import json, sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nTEXT = {TEXT!r}\n"
    path = tmp_path / "script.py"
    path.write_text(f"{names}{script}\nprint(json.dumps(result))\n")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_syntax_finds_dictionaries_with_all_kinds_of_values():
    found = [[(a.key, a.value) for a in d.attributes] for d in syntax.dictionaries(TEXT)]
    assert found == [
        [("pw.form", '"placed"')],
        [("mesh", "@mesh"), ("sym_name", '"s0"')],
        [("pw.donated", None), ("sdy.sharding", '#sdy.sharding<@mesh, [{"x"}]>')],
        [("callee", "@f"), ("slice", "@s0")],
    ]


def test_syntax_finds_operations_and_values_of_functions():
    lines = TEXT.split("\n")
    assert [(s.first, s.last) for s in syntax.statements(lines)] == [
        *((1, 9), (2, 2), (3, 3), (4, 7), (5, 5), (6, 6), (8, 8))
    ]
    (function,) = syntax.functions(lines)
    assert function.values == {"%x": "!x", "%0#0": "!x", "%0#1": "tensor<f32>"}


def test_mutate_ir_has_a_verdict_for_every_failure(tmp_path: Path):
    script = """
import os
import cases, buckets

def leave(data, code, text):
    def main(arguments):
        print(text, file=sys.stderr, end="")
        return code
    return main

def fail(error):
    def main(arguments):
        raise error
    return main

def hang(arguments):
    while True:
        pass

def grow(arguments):
    parser = cases.FlagParser("pw-opt", "", "")
    return cases.command.run_here(parser, lambda _: len(bytearray(1 << 42)), [])

ways = [
    leave(b"", 1, "input.mlir:1:2: error: 'pw.launch' op is wrong"),
    leave(b"", 1, "pw-opt: error: unknown flag"),
    leave(b"", 1, ""),
    leave(b"", 1, "nothing of note"),
    leave(b"", 0, "pw-opt: error: but it went on"),
    leave(b"", 2, "pw-opt: error: unknown flag"),
    fail(KeyError("x")),
    lambda _: os.abort(),
    hang,
    grow,
]
result = []
for way in ways:
    cases.pw_opt.main = way
    result.append(buckets.verdict_of(cases.Case(b""), seconds=1).kind)
"""
    assert in_a_process(script, tmp_path) == [
        *(
            "refused",
            "refused",
            "silent",
            "silent",
            "silent",
            "silent",
            "traceback",
            "crash",
            "hang",
            "memory",
        )
    ]


def test_mutate_ir_runs_the_tools_themselves(tmp_path: Path):
    script = """
import cases, buckets
placed = TEXT.replace("{pw.donated", "{pw.slice = @s0, pw.donated")
placed = placed.replace("-> !x {", "-> (!x {pw.slice = @s0}) {")
texts = ["module {}", placed, TEXT, "func.func @main() { return }", '"pw.slice"() : () -> ()']
result = [buckets.verdict_of(cases.Case(text.encode(), ("pw-cse",))).kind for text in texts]
"""
    assert in_a_process(script, tmp_path) == ["refused", "ok", "refused", "ok", "refused"]


def test_mutate_ir_reduces_a_case(tmp_path: Path):
    script = """
from pathlib import Path
import cases, buckets

def main(arguments):
    if "pw.donated" in Path(arguments[0]).read_text() and "pw-cse" in arguments[4]:
        raise KeyError("x")
    return 0

cases.pw_opt.main = main
case = cases.Case(TEXT.encode(), ("pw-dce", "pw-cse", "pw-dce"), ("--emit-bytecode",))
bucket = buckets.Bucket(1, 7, case, buckets.verdict_of(case))
((_, finished),) = buckets.finish({("traceback", ""): bucket}, jobs=1)
small = finished.case
result = [small.data.decode().split(), small.pipeline, small.flags, finished.stock, finished.number]
"""
    words, pipeline, flags, stock, number = in_a_process(script, tmp_path)
    assert "".join(words) == "func.func@main(%x:!x{pw.donated})->!x{"
    assert (pipeline, flags, stock, number) == (["pw-cse"], [], False, 7)


def test_mutate_ir_case_depends_on_its_number_alone(tmp_path: Path):
    script = """
from pathlib import Path
import cases, corpus, forked

def task(number):
    def make(folder, note):
        cases.random_case(number, 0, seeds, context, folder, note)
    return make

seeds = corpus.corpus_of([corpus.Seed("text", TEXT.encode())], [corpus.Seed("bytecode", b"ML\\xefR rest")])
context = cases.quiet_context()
result = {}
for number, ending in forked.run_all([(n, task(n)) for n in range(30)], jobs=2, seconds=10):
    case = cases.Case.read(ending.folder)
    result[number] = [case.data.decode("latin-1"), case.pipeline, case.flags, case.order]
"""
    first, second = in_a_process(script, tmp_path), in_a_process(script, tmp_path)
    assert first == second
    assert len({json.dumps(case) for case in first.values()}) > 25


def test_mutate_ir_known_crashes_are_of_mlir():
    folder = Path(__file__).parent
    command = [sys.executable, folder / "mutate_ir.py", "--jobs", "1", "--replay", folder / "stock"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # Whether bytecode that is damaged crashes MLIR depends on what its memory holds.
    assert (done.returncode, done.stdout.endswith("; 0 files failed\n")) == (0, True), done
    assert "hang of MLIR" in done.stdout
