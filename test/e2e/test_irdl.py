"""A stock `mlir-opt`, given the dialect as IRDL, accepts our modules and refuses malformed ones."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import lower_examples
import preloaded
import pytest
import requirements

from pathways.dialect import OPERATIONS

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.process, pytest.mark.needs("mlir-opt")]

# Every operation of the dialect, and launches whose operands and results have several types.
EVERY_OPERATION = """\
sdy.mesh @mesh = <["x"=1]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
"pw.channel"() {capacity = 1, dst = @s1, src = @s0, sym_name = "c0", value_type = tensor<4xf32>} : () -> ()
"pw.constant"() {sym_name = "k0", value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> ()
"pw.loop"() {count = 2, schedule = "1f1b", sym_name = "batch"} : () -> ()
"pw.loop"() {chunk = 2, sequential, sym_name = "turns"} : () -> ()
func.func @main(%x: tensor<4xf32> {pw.slice = @s0}, %n: tensor<i32> {pw.slice = @s0})
    -> (tensor<4xf32> {pw.slice = @s1}, tensor<i32> {pw.slice = [@s0, @s1]}) {
  %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<4xf32>) -> tensor<2xf32>
  %r = "pw.reduce"(%b) {kind = "concat", loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<4xf32>
  %h:3 = "pw.launch"(%x, %r, %n) {callee = @three, slice = @s0}
    : (tensor<4xf32>, tensor<4xf32>, tensor<i32>) -> (tensor<4xf32>, tensor<i32>, tensor<i32>)
  %t = "pw.transfer"(%h#0) {channel = @c0, sharding = #sdy.sharding<@mesh, [{}]>, slice = @s1}
    : (tensor<4xf32>) -> tensor<4xf32>
  %u = "pw.transfer"(%h#1) {slice = @s1} : (tensor<i32>) -> tensor<i32>
  %m = "pw.mirror"(%h#1, %u) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  %q = "pw.launch"(%n) {callee = @goes_on, slice = @s0} : (tensor<i32>) -> tensor<i1>
  "pw.until"(%q) {loop = @turns, slice = @s0} : (tensor<i1>) -> ()
  "pw.release"(%x, %n) : (tensor<4xf32>, tensor<i32>) -> ()
  %y = "pw.transfer"(%b) {loop = @batch, slice = @s1} : (tensor<2xf32>) -> tensor<2xf32>
  %z:2 = "pw.all_to_all"(%b, %y) {loop = @batch, slices = [@s0, @s1]}
    : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  %i = "pw.index"() {loop = @batch} : () -> tensor<i32>
  %a = "pw.all_reduce"(%r) {slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
  %w = "pw.all_gather"(%a) {dim = 0, slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
  %g = "pw.reduce_scatter"(%w) {dim = 0, slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
  %p = "pw.replica"() {slice = @s0} : () -> tensor<i32>
  %c = "pw.carry"(%h#0) {loop = @batch, slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
  %d = "pw.next"(%c, %c) {loop = @batch, slice = @s0} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  "pw.send"(%h#0) {channel = @c0, copy, index = 0, order = 0, slice = @s0} : (tensor<4xf32>) -> ()
  %e = "pw.recv"() {channel = @c0, index = 0, order = 0, slice = @s1} : () -> tensor<4xf32>
  return %t, %m : tensor<4xf32>, tensor<i32>
}
func.func private @three(tensor<4xf32>, tensor<4xf32>, tensor<i32>)
    -> (tensor<4xf32>, tensor<i32>, tensor<i32>)
func.func private @goes_on(tensor<i32>) -> tensor<i1>
module @parts attributes {pw.form = "parts"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "p0"} : () -> ()
  func.func @main(%x: tensor<i1> {pw.slice = @p0}) -> (tensor<i1> {pw.slice = @p0}) {
    %r = "pw.run"(%x) {part = @turn} : (tensor<i1>) -> tensor<i1>
    %l = "pw.repeat"(%r) {part = @turn, until = 0} : (tensor<i1>) -> tensor<i1>
    return %l : tensor<i1>
  }
  module @turn attributes {pw.form = "sharded"} {
    sdy.mesh @mesh = <["x"=1]>
    "pw.slice"() {mesh = @mesh, sym_name = "p0"} : () -> ()
    func.func @main(%x: tensor<i1> {pw.slice = @p0}) -> (tensor<i1> {pw.slice = @p0}) {
      return %x : tensor<i1>
    }
  }
}
"""

# The text to replace in the exported module, its replacement, and the error of mlir-opt.
BROKEN = {
    "unknown operation": (
        '"pw.mirror"',
        '"pw.mirrors"',
        "unregistered operation 'pw.mirrors' found in dialect ('pw') that does not allow unknown operations",
    ),
    "missing attribute": (
        "callee = @three, ",
        "",
        "'pw.launch' op attribute \"callee\" is expected but not provided",
    ),
    "string for a symbol": (
        'mesh = @mesh, sym_name = "s0"',
        'mesh = "mesh", sym_name = "s0"',
        "expected base attribute 'builtin.symbol_ref' but got 'builtin.string'",
    ),
    "string for a number": (
        "capacity = 1 : i64",
        'capacity = "1"',
        "expected base attribute 'builtin.integer' but got 'builtin.string'",
    ),
    "type that is no tensor": (
        "type = tensor<4xf32>",
        "type = f32",
        "expected base type 'builtin.tensor' but got 'builtin.f32'",
    ),
    "value that is no array": (
        "value = dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>",
        "value = 1.0 : f32",
        "does not satisfy the constraint",
    ),
    "word that is no choice": (
        'kind = "concat"',
        'kind = "mean"',
        "'\"mean\"' does not satisfy the constraint",
    ),
    "operand too many": (
        '"pw.split"(%arg2) {loop = @batch, slice = @s0} : (tensor<4xf32>)',
        '"pw.split"(%arg2, %arg2) {loop = @batch, slice = @s0} : (tensor<4xf32>, tensor<4xf32>)',
        "op expects exactly 1 operands, but got 2",
    ),
    "result too few": (
        '%7 = "pw.mirror"(%4#1, %6) : (tensor<i32>, tensor<i32>) -> tensor<i32>',
        '"pw.mirror"(%4#1, %6) : (tensor<i32>, tensor<i32>) -> ()\n    %7 = "any.i32"() : () -> tensor<i32>',
        "op expects exactly 1 results, but got 0",
    ),
    "result of a release": (
        '"pw.release"(%arg2, %arg3) {operandSegmentSizes = array<i32: 1, 1>} '
        ": (tensor<4xf32>, tensor<i32>) -> ()",
        '%released = "pw.release"(%arg2, %arg3) {operandSegmentSizes = array<i32: 1, 1>} '
        ": (tensor<4xf32>, tensor<i32>) -> tensor<i32>",
        "op expects exactly 0 results, but got 1",
    ),
    "pieces of different types": (
        '"pw.transfer"(%4#1) {slice = @s1} : (tensor<i32>) -> tensor<i32>',
        '"pw.transfer"(%4#1, %4#0) {slice = @s1} : (tensor<i32>, tensor<4xf32>) -> tensor<i32>',
        "expected 'tensor<i32>' but got 'tensor<4xf32>'",
    ),
    "groups that do not add up": (
        "operandSegmentSizes = array<i32: 2, 1>",
        "operandSegmentSizes = array<i32: 1, 1>",
        "sum of elements in 'operandSegmentSizes' attribute must be equal to the number of operands",
    ),
    "region": (
        '"pw.loop"() {count',
        '"pw.loop"() ({}) {count',
        "'pw.loop' op unexpected number of regions: expected 0 but got 1",
    ),
}


LOWERED = ["char_lm", "figure2", "kv_decode", "transformer_sharded"]

PASSES = [
    "pw-insert-transfers",
    "pw-propagate-shardings",
    "pw-lower-transfers",
    "pw-unroll-microbatches",
    "pw-schedule",
    "pw-plan-memory",
]


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs mlir-opt as docs/dialect.md describes."""
    assert requirements.MLIR_OPT is not None
    command = [
        requirements.MLIR_OPT,
        "--irdl-file=pw.irdl.mlir",
        "--allow-unregistered-dialect",
        "program.mlir",
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def export(source: Path, folder: Path, *passes: str) -> None:
    flags = [*passes, "--emit-irdl=pw.irdl.mlir", "-o", "program.mlir"]
    done = preloaded.run("-m", "pathways.tools.pw_opt", source, *flags, cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with every operation as `program.mlir`, and the dialect for it."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "input.mlir").write_text(EVERY_OPERATION)
    export(folder / "input.mlir", folder)
    return folder


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the forms of some examples."""
    folder = tmp_path_factory.mktemp("lowered")
    done = preloaded.run(lower_examples.__file__, folder, *LOWERED)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("example", LOWERED)
def test_irdl_accepts_scheduled_example(example: str, lowered: Path, tmp_path: Path) -> None:
    export(lowered / f"{example}.scheduled.mlir", tmp_path)
    done = check(tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"pw.launch"' in done.stdout


def test_irdl_accepts_example_in_mlir(tmp_path: Path) -> None:
    export(EXAMPLES / "two_slices.mlir", tmp_path, *(f"--{name}" for name in PASSES))
    done = check(tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"pw.channel"' in done.stdout


def test_irdl_accepts_every_operation(exported: Path) -> None:
    text = (exported / "program.mlir").read_text()
    assert set(re.findall(r'"(pw\.\w+)"', text)) == set(OPERATIONS)
    done = check(exported)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("found", "replaced", "message"), BROKEN.values(), ids=BROKEN)
def test_irdl_refuses_broken_operations(
    found: str, replaced: str, message: str, exported: Path, tmp_path: Path
) -> None:
    text = (exported / "program.mlir").read_text()
    assert text.count(found) == 1
    shutil.copy(exported / "pw.irdl.mlir", tmp_path)
    (tmp_path / "program.mlir").write_text(text.replace(found, replaced))
    done = check(tmp_path)
    assert done.returncode != 0
    assert message in done.stderr
