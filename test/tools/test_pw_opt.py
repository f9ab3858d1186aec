"""`pw-opt` as a process: start-up, bad input, bad output, interruption."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pathways.dialect import FORMS, make_context
from pathways.passes.manager import registry
from pathways.passes.manager.base import Pass, PassFailure, fail
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.manager.text import Builtin
from pathways.tools.common.source import Source

MODULE = """\
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = stablehlo.add %x, %x : tensor<2xf32>
  return %y : tensor<2xf32>
}
func.func @main(%x: tensor<2xf32> {pw.slice = @s0}) -> (tensor<2xf32> {pw.slice = @s0}) {
  %y = "pw.launch"(%x) {callee = @f, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}
"""

PW_OPT = [sys.executable, "-m", "pathways.tools.pw_opt"]


def pw_opt(*arguments, stdin=b"", **kwargs):
    return subprocess.run(
        [*PW_OPT, *map(str, arguments)], input=stdin, capture_output=True, timeout=60, **kwargs
    )


def only_line(result):
    """The one line that a failed run prints to standard error."""
    assert result.returncode == 1, result
    assert result.stdout == b""
    lines = result.stderr.decode().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "module.mlir"
    path.write_text(MODULE)
    return path


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory):
    path = tmp_path_factory.mktemp("bytecode") / "module.mlirbc"
    assert pw_opt("--emit-bytecode", "-o", path, stdin=MODULE.encode()).returncode == 0
    return path.read_bytes()


def test_it_imports_neither_jax_nor_numpy(module):
    program = (
        "import sys; from pathways.tools.pw_opt import main;"
        "assert main([sys.argv[1], '--canonicalize', '-o', '/dev/null']) == 0;"
        "assert not {m.split('.')[0] for m in sys.modules} & {'jax', 'scipy', 'ml_dtypes'};"
        "assert 'numpy._core' not in sys.modules;"
        "import numpy; assert numpy.zeros(2).sum() == 0; assert 'numpy._core' in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", program, module], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()


def test_no_pass_imports_jax():
    program = (
        "import sys; from pathways.passes.manager import registry;"
        "[registry.load(name) for name in registry.names()];"
        "assert 'jax' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()


def test_a_missing_file(tmp_path):
    path = tmp_path / "none.mlir"
    assert only_line(pw_opt(path)) == (
        f"pw-opt: error: cannot open input file '{path}': No such file or directory"
    )


def test_a_directory(tmp_path):
    assert (
        only_line(pw_opt(tmp_path)) == f"pw-opt: error: cannot open input file '{tmp_path}': Is a directory"
    )


def test_an_empty_file_is_an_empty_module():
    result = pw_opt(stdin=b"")
    assert (result.returncode, result.stdout) == (0, b"module {\n}\n")


@pytest.mark.parametrize(
    "data",
    [b"hello", b"\x7fELF\x02\x01\x01\0\0\0", b"\xff\xfe\x00", b"#!/bin/sh\necho", b"{", b"\xc3\x28" * 9],
)
def test_what_is_not_mlir(data):
    result = pw_opt(stdin=data)
    assert result.returncode == 1
    assert result.stdout == b""
    assert re.match(rb"<stdin>:\d+:\d+: error: ", result.stderr)


def test_an_error_shows_its_line(tmp_path):
    path = tmp_path / "module.mlir"
    path.write_text("func.func @f() {\n\treturn %x : i32\n}\n")
    assert pw_opt(path).stderr.decode() == (
        f"{path}:2:9: error: use of undeclared SSA value name\n\treturn %x : i32\n\t       ^\n"
    )


def test_text_in_another_encoding():
    result = pw_opt(stdin=b'module {\n  "my.\xff"() : () -> ()\n}')
    assert result.returncode == 1
    first = result.stderr.splitlines()[0]
    assert first == b"<stdin>:2:7: error: input is neither UTF-8 text nor MLIR bytecode"


def test_deeply_nested_text():
    line = only_line(pw_opt(stdin=b"module {" * 50_000))
    assert line == "pw-opt: error: MLIR crashed (SIGSEGV) while reading <stdin>"
    assert pw_opt(stdin=b"module {" * 1500 + b"}" * 1500).returncode == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--split-input-file"], "--emit-irdl cannot be combined with --split-input-file"),
        (["--verify-diagnostics"], "--emit-irdl cannot be combined with --verify-diagnostics"),
        (["--emit-bytecode"], "--emit-irdl cannot be combined with --emit-bytecode"),
        (["--emit-schedule"], "--emit-irdl cannot be combined with --emit-schedule"),
        (["-o", "pw.irdl.mlir"], "--emit-irdl and -o both write to 'pw.irdl.mlir'"),
    ],
)
def test_flags_that_do_not_go_with_irdl(flags, message, tmp_path):
    result = pw_opt("--emit-irdl=pw.irdl.mlir", *flags, stdin=MODULE.encode(), cwd=tmp_path)
    assert only_line(result) == f"pw-opt: error: {message}"
    assert not list(tmp_path.iterdir())


def test_bytecode_is_read_and_written(bytecode, module):
    result = pw_opt(stdin=bytecode)
    assert (result.returncode, result.stdout) == (0, pw_opt(module).stdout)


def test_damaged_bytecode_never_ends_the_process(bytecode):
    damaged = [bytecode[:n] for n in (4, 5, len(bytecode) // 2, len(bytecode) - 1)]
    for position in range(4, len(bytecode), 37):
        flipped = bytearray(bytecode)
        flipped[position] ^= 0x40
        damaged.append(bytes(flipped))
    for data in damaged:
        result = pw_opt(stdin=data)
        assert result.returncode in (0, 1), result
        assert b"Traceback" not in result.stderr
        assert (result.returncode == 1) == (b"error: " in result.stderr)


@pytest.mark.parametrize("arguments", [["-o", "/dev/full"], []])
def test_a_full_disk(module, arguments):
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [*PW_OPT, module, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert result.returncode == 1
    where = "output file '/dev/full'" if arguments else "standard output"
    assert result.stderr.decode() == f"pw-opt: error: cannot write {where}: No space left on device\n"


@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")  # JAX, if another test has started it
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python, likewise
def test_a_failed_write_leaves_what_was_there(module, tmp_path):
    out = tmp_path / "out.mlir"
    out.write_text("old")
    result = pw_opt(
        module, "-o", out, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    )
    assert only_line(result) == f"pw-opt: error: cannot write output file '{out}': File too large"
    assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["module.mlir", "out.mlir"]


def test_an_error_writes_no_output(tmp_path):
    out = tmp_path / "out.mlir"
    assert pw_opt("-o", out, stdin=b"nonsense").returncode == 1
    assert not out.exists()


def test_output_keeps_the_mode_and_follows_links(module, tmp_path):
    target = tmp_path / "target.mlir"
    target.write_text("old")
    target.chmod(0o640)
    link = tmp_path / "link.mlir"
    link.symlink_to(target)
    assert pw_opt(module, "-o", link).returncode == 0
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert target.read_bytes() == pw_opt(module).stdout


def test_output_to_a_missing_folder(module, tmp_path):
    out = tmp_path / "none" / "out.mlir"
    assert only_line(pw_opt(module, "-o", out)) == (
        f"pw-opt: error: cannot write output file '{out}': No such file or directory"
    )


def test_a_closed_pipe_is_quiet(tmp_path):
    path = tmp_path / "big.mlir"
    path.write_text("\n".join(f"func.func private @f{n}()" for n in range(20_000)))
    process = subprocess.Popen([*PW_OPT, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, b"pw-opt: interrupted\n"), (signal.SIGTERM, 143, b"")],
)
def test_interruption(tmp_path, number, code, message):
    # The signal goes to the tool alone, not to its group as Ctrl-C would.
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = subprocess.Popen([*PW_OPT, fifo], stderr=subprocess.PIPE)
    with fifo.open("wb"):  # Opens when the reader is there.
        time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(timeout=60) == code
    assert process.stderr.read() == message
    process.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--verify-each=maybe"], "argument --verify-each: must be 0 or 1, got 'maybe'"),
        (["--mlir-elide-elementsattrs-if-larger=-1"], "must be a number, got '-1'"),
        (["-o"], "argument -o: expected one argument"),
        (["a", "b"], "unexpected argument 'b'"),
        (["--no-such-thing"], "unknown flag '--no-such-thing'"),
        (["--mlir-print-ir-after=pw-cse,pw-dee"], "no pass is named 'pw-dee'; did you mean 'pw-dce'?"),
        (
            ["--mlir-print-ir-tree-dir=tree"],
            "--mlir-print-ir-tree-dir needs a flag that prints, such as --mlir-print-ir-after-all",
        ),
        (["--cse", "--run-reproducer"], "--run-reproducer takes the passes from the input; give no others"),
        (
            ["--split-input-file", "--mlir-pass-pipeline-crash-reproducer=f"],
            "--mlir-pass-pipeline-crash-reproducer cannot be combined with --split-input-file",
        ),
        (["--list-pases"], "unknown flag '--list-pases'; did you mean '--list-passes'?"),
        (["--pw-dee"], "unknown flag '--pw-dee'; did you mean '--pw-dce'?"),
        (["--pw-fuze"], "unknown flag '--pw-fuze'; did you mean '--pw-fuse-launches'?"),
    ],
)
def test_mistaken_flags(arguments, message):
    line = only_line(pw_opt(*arguments))
    assert line.startswith("pw-opt: error: ")
    assert line.endswith(message)


def test_verification_can_be_left_out():
    wrong = b'"pw.launch"() : () -> ()'
    assert pw_opt(stdin=wrong).returncode == 1
    assert pw_opt("--verify-each=0", stdin=wrong).returncode == 0


def test_expected_diagnostics_must_come():
    expected = b"// expected-error@below {{custom op 'foo' is unknown}}\nfoo\n"
    assert pw_opt("--verify-diagnostics", stdin=expected).returncode == 0
    result = pw_opt("--verify-diagnostics", stdin=expected.replace(b"foo\n", b""))
    assert result.stderr.splitlines()[0] == (
        b"<stdin>:1:4: error: expected error \"custom op 'foo' is unknown\" was not produced"
    )
    assert result.returncode == 1
    result = pw_opt("--verify-diagnostics", stdin=b"foo")
    assert result.stderr.splitlines()[0].startswith(b"<stdin>:1:1: error: unexpected error: custom op 'foo'")
    assert result.returncode == 1
    result = pw_opt("--verify-diagnostics", stdin=b"// expected-error-re@below {{a{{(}}}}\nfoo")
    assert b"<stdin>:1:4: error: invalid regular expression: " in result.stderr
    assert result.returncode == 1


def test_a_bug_in_a_pass_keeps_its_traceback(module):
    program = (
        "import sys; from pathways.passes.manager import base, registry\n"
        "from pathways.tools.pw_opt import main\n"
        "from pathways.dialect import FORMS\n"
        "class Broken(base.Pass):\n"
        "    name = 'pw-cse'\n"
        "    takes = tuple(FORMS.values())\n"
        "    def run(self, module): raise ZeroDivisionError\n"
        "registry.load = lambda name: Broken\n"
        "sys.exit(main([sys.argv[1], '--pw-cse']))"
    )
    result = subprocess.run([sys.executable, "-c", program, module], capture_output=True, check=False)
    assert result.returncode == 1
    assert b"Traceback" in result.stderr
    assert result.stderr.endswith(b"ZeroDivisionError\nwhile running pw-cse\n")


# A pass that ends the process in a way that nothing in it can catch.
CRASHING = """
import os, signal, sys
from pathways.dialect import FORMS
from pathways.passes.manager import base, registry
from pathways.tools.pw_opt import main

class Crashing(base.Pass):
    name = 'pw-cse'
    takes = tuple(FORMS.values())
    def run(self, module): os.kill(os.getpid(), signal.{signal})

registry.load = lambda name: Crashing
sys.exit(main())
"""


@pytest.mark.parametrize("number", ["SIGSEGV", "SIGTERM"])
def test_a_crash_leaves_a_reproducer(module, tmp_path, number):
    flag = f"--mlir-pass-pipeline-crash-reproducer={tmp_path / 'kept.mlir'}"
    result = subprocess.run(
        [sys.executable, "-c", CRASHING.format(signal=number), module, "--pw-cse", flag],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if number == "SIGTERM":  # Asked to end, it tidies up.
        assert (result.returncode, result.stderr) == (143, "")
        assert [path.name for path in tmp_path.iterdir()] == ["module.mlir"]
        return
    assert result.stderr == (
        f"pw-opt: note: pipeline failed: reproducer generated at '{tmp_path / 'kept.mlir'}'\n"
        "pw-opt: error: MLIR crashed (SIGSEGV) while running pw-cse\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.mlir", "module.mlir"]
    again = pw_opt(tmp_path / "kept.mlir", "--run-reproducer")
    assert (again.returncode, again.stdout) == (0, pw_opt(module, "--pw-cse").stdout)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MODULE.replace("s0", "s1"), "as text, reads back as a different module"),
        ("%", "cannot be read back: "),
    ],
)
def test_what_is_read_back_as_another_module_is_an_error(monkeypatch, text, message):
    from jaxlib.mlir import ir

    from pathways.tools.drivers import roundtrip

    module = ir.Module.parse(MODULE, make_context())
    monkeypatch.setattr(roundtrip, "_WAYS", {"text": lambda _: text.encode()})
    with Diagnostics(module.context) as seen, pytest.raises(PassFailure, match=message):
        roundtrip.check_round_trip(module)
    assert len(seen.errors) == 1


class Complaining(Pass):
    name = "pw-complaining"
    takes = tuple(FORMS.values())

    def run(self, module):
        fail(module.body.operations[1], "is not liked")


class Quiet(Pass):
    """Emits an error but does not raise."""

    name = "pw-quiet"
    takes = tuple(FORMS.values())

    def run(self, module):
        module.operation.location.emit_error("too quiet")


class Breaking(Pass):
    name = "pw-breaking"
    takes = tuple(FORMS.values())

    def run(self, module):
        del module.body.operations[1].attributes["mesh"]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Complaining(), "'pw.slice' op is not liked"),
        (Quiet(), "too quiet"),
        (Breaking(), "'pw.slice' op requires attribute `mesh`"),
    ],
)
def test_a_failure_is_a_diagnostic_and_an_exception(item, message):
    from jaxlib.mlir import ir

    module = ir.Module.parse(MODULE, make_context())
    ran = []
    with Diagnostics(module.context) as seen, pytest.raises(PassFailure) as caught:
        run_passes(module, [Builtin("cse"), item, Builtin("cse")], before_each=lambda i, _: ran.append(i))
    assert str(caught.value) == message
    assert [d.message for d in seen.errors] == [message]
    assert ran == [Builtin("cse"), item]
    if item.name != "pw-quiet":
        assert str(seen.errors[0]) == f"-:2:1: error: {message}"


def test_pieces_know_their_first_line():
    pieces = Source("f", b"a\n// -----\nb\nc\n// -----  \n  // -----\n// -----").chunks()
    assert [(piece.data, piece.first_line) for piece in pieces] == [
        (b"a\n", 1),
        (b"b\nc\n", 3),
        (b"  // -----\n", 6),
        (b"", 7),
    ]


def test_shardy_is_not_given_functions_without_a_body():
    result = pw_opt("--sdy-close-shardings", stdin=b"func.func private @f(tensor<f32>)")
    assert result.returncode == 1
    assert (
        b"<stdin>:1:1: error: 'func.func' op has no body, and sdy-close-shardings needs one" in result.stderr
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [("", 0), ("func.func nested @main() { return }", 0), ("func.func @f() {return}" * 2, 2)],
)
def test_shardy_is_given_one_program(text, number):
    text = text.replace("@f", "@g", 1)
    result = pw_opt("--sdy-propagation-pipeline", stdin=text.encode())
    assert result.returncode == 1
    assert f"op has {number} public functions, and sdy-propagation-pipeline needs @main or one" in (
        result.stderr.decode()
    )


def test_a_position_in_a_file_whose_name_is_not_utf8():
    text = rb"""module { %0 = arith.constant 0 : i32 "pw.slice"() {} : () -> () loc("se\95d.mlir":5:19) }"""
    result = pw_opt(stdin=text.replace(rb"\\", b"\\"))
    assert (result.returncode, result.stderr.splitlines()[0]) == (
        1,
        rb"se\95d.mlir:5:19: error: 'pw.slice' op requires attribute `sym_name`",
    )


def test_bytecode_is_refused_in_words_where_mlir_says_nothing(tmp_path):
    path = Path(__file__).parent / "pw_opt" / "Inputs" / "silent.mlirbc"
    result = pw_opt(path)
    assert (result.returncode, result.stderr) == (1, f"{path}:1:1: error: damaged bytecode\n".encode())


def test_help_lists_every_pass():
    text = pw_opt("--help").stdout.decode()
    for name in registry.names():
        assert f"  --{name}\n" in text


@pytest.mark.parametrize("flag", ["--help", "--list-passes"])
def test_passes_are_listed_without_a_look_at_any(flag):
    # What takes the time of a start is MLIR's bindings, and modules of passes.
    code = "import sys; from pathways.tools.pw_opt import main; main(sys.argv[1:]); "
    code += "print(*sys.modules, file=sys.stderr)"
    listed = subprocess.run([sys.executable, "-c", code, flag], capture_output=True, text=True, check=True)
    loaded = set(listed.stderr.split())
    assert "pathways.passes.manager.registry" in loaded
    assert not loaded & {"jaxlib", "pathways.passes.manager.base"}
