"""`pw-opt`: start-up, bad input, bad output, interruption."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import preloaded
import pytest
from cli import error_of, output_of, run_tool

from pathways.dialect import FORMS, make_context
from pathways.passes.manager import registry
from pathways.passes.manager.base import Pass, PassFailure, fail
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.manager.text import Builtin
from pathways.tools.common.source import Source
from pathways.tools.drivers import listings

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


def pw_opt(*arguments, **options):
    return run_tool("pw-opt", *arguments, **options)


def pw_opt_apart(*arguments, stdin=b"", **options):
    """Runs the tool in a process, which may crash."""
    command = [*PW_OPT, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, **options)


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "module.mlir"
    path.write_text(MODULE)
    return path


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory):
    path = tmp_path_factory.mktemp("bytecode") / "module.mlirbc"
    output_of("pw-opt", "--emit-bytecode", "-o", path, stdin=MODULE.encode())
    return path.read_bytes()


@pytest.mark.process
def test_pw_opt_imports_neither_jax_nor_numpy(module):
    program = (
        "import sys; from pathways.tools.pw_opt import main;"
        "assert main([sys.argv[1], '--canonicalize', '-o', '/dev/null']) == 0;"
        "assert not {m.split('.')[0] for m in sys.modules} & {'jax', 'scipy', 'ml_dtypes'};"
        "assert 'numpy._core' not in sys.modules;"
        "import numpy; assert numpy.zeros(2).sum() == 0; assert 'numpy._core' in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", program, module], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()


@pytest.mark.process
def test_passes_import_no_jax():
    program = (
        "import sys; from pathways.passes.manager import registry;"
        "[registry.load(name) for name in registry.names()];"
        "assert 'jax' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()


def test_pw_opt_names_an_input_that_it_cannot_read(tmp_path):
    for path, problem in (
        (tmp_path / "none.mlir", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        assert error_of("pw-opt", path) == f"cannot open input file '{path}': {problem}"


def test_pw_opt_reads_an_empty_file_as_an_empty_module():
    assert output_of("pw-opt") == "module {\n}\n"


@pytest.mark.parametrize(
    "data",
    [b"hello", b"\x7fELF\x02\x01\x01\0\0\0", b"\xff\xfe\x00", b"#!/bin/sh\necho", b"{", b"\xc3\x28" * 9],
)
def test_pw_opt_refuses_input_other_than_mlir(data):
    result = pw_opt(stdin=data)
    assert (result.returncode, result.stdout) == (1, "")
    assert re.match(r"<stdin>:\d+:\d+: error: ", result.stderr)


def test_pw_opt_shows_the_line_of_an_error(tmp_path):
    path = tmp_path / "module.mlir"
    path.write_text("func.func @f() {\n\treturn %x : i32\n}\n")
    assert pw_opt(path).stderr == (
        f"{path}:2:9: error: use of undeclared SSA value name\n\treturn %x : i32\n\t       ^\n"
    )


def test_pw_opt_refuses_text_in_another_encoding():
    result = pw_opt(stdin=b'module {\n  "my.\xff"() : () -> ()\n}')
    assert result.returncode == 1
    first = result.stderr.splitlines()[0]
    assert first == "<stdin>:2:7: error: input is neither UTF-8 text nor MLIR bytecode"


@pytest.mark.process
def test_pw_opt_reports_a_crash_of_mlir_in_one_line():
    result = pw_opt_apart(stdin=b"module {" * 50_000)
    assert (result.returncode, result.stdout, result.stderr) == (
        1,
        b"",
        b"pw-opt: error: MLIR crashed (SIGSEGV) while reading <stdin>\n",
    )
    assert pw_opt_apart(stdin=b"module {" * 1500 + b"}" * 1500).returncode == 0


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
def test_pw_opt_refuses_flags_beside_emit_irdl(flags, message, tmp_path):
    given = ["--emit-irdl=pw.irdl.mlir", *flags]
    assert error_of("pw-opt", *given, stdin=MODULE.encode(), cwd=tmp_path) == message
    assert not list(tmp_path.iterdir())


def test_pw_opt_reads_and_writes_bytecode(bytecode, module):
    assert output_of("pw-opt", stdin=bytecode) == output_of("pw-opt", module)


@pytest.mark.process
def test_pw_opt_survives_damaged_bytecode(bytecode, tmp_path):
    damaged = [bytecode[:n] for n in (4, 5, len(bytecode) // 2, len(bytecode) - 1)]
    for position in range(4, len(bytecode), 37):
        flipped = bytearray(bytecode)
        flipped[position] ^= 0x40
        damaged.append(bytes(flipped))
    program = "import sys; from pathways.tools.pw_opt import main; sys.exit(main())"
    for number, data in enumerate(damaged):
        (tmp_path / str(number)).write_bytes(data)
        result = preloaded.run("-c", program, number, cwd=tmp_path)
        assert result.returncode in (0, 1), result
        assert "Traceback" not in result.stderr
        assert (result.returncode == 1) == ("error: " in result.stderr)


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["-o", "/dev/full"], []])
def test_pw_opt_reports_a_full_disk(module, arguments):
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [*PW_OPT, module, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert result.returncode == 1
    where = "output file '/dev/full'" if arguments else "standard output"
    assert result.stderr.decode() == f"pw-opt: error: cannot write {where}: No space left on device\n"


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")  # JAX, if another test has started it
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python, likewise
def test_pw_opt_keeps_the_old_file_when_a_write_fails(module, tmp_path):
    out = tmp_path / "out.mlir"
    out.write_text("old")
    result = pw_opt_apart(
        module, "-o", out, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    )
    assert result.returncode == 1
    assert result.stderr.decode() == f"pw-opt: error: cannot write output file '{out}': File too large\n"
    assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["module.mlir", "out.mlir"]


def test_pw_opt_writes_no_output_after_an_error(tmp_path):
    out = tmp_path / "out.mlir"
    assert pw_opt("-o", out, stdin=b"nonsense").returncode == 1
    assert not out.exists()


def test_pw_opt_keeps_the_mode_of_a_file_and_follows_links(module, tmp_path):
    target = tmp_path / "target.mlir"
    target.write_text("old")
    target.chmod(0o640)
    link = tmp_path / "link.mlir"
    link.symlink_to(target)
    assert pw_opt(module, "-o", link).returncode == 0
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert target.read_text() == output_of("pw-opt", module)


def test_pw_opt_names_a_folder_that_is_missing(module, tmp_path):
    out = tmp_path / "none" / "out.mlir"
    assert error_of("pw-opt", module, "-o", out) == (
        f"cannot write output file '{out}': No such file or directory"
    )


@pytest.mark.process
def test_pw_opt_is_quiet_when_a_pipe_is_closed(tmp_path):
    path = tmp_path / "big.mlir"
    path.write_text("\n".join(f"func.func private @f{n}()" for n in range(20_000)))
    process = subprocess.Popen([*PW_OPT, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.quick
@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, b"pw-opt: interrupted\n"), (signal.SIGTERM, 143, b"")],
)
def test_pw_opt_is_interrupted(tmp_path, number, code, message):
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
def test_pw_opt_refuses_mistaken_flags(arguments, message):
    assert error_of("pw-opt", *arguments).endswith(message)


def test_pw_opt_verifies_unless_it_is_told_not_to():
    wrong = b'"pw.launch"() : () -> ()'
    assert pw_opt(stdin=wrong).returncode == 1
    assert pw_opt("--verify-each=0", stdin=wrong).returncode == 0


def test_pw_opt_misses_expected_diagnostics():
    expected = b"// expected-error@below {{custom op 'foo' is unknown}}\nfoo\n"
    assert pw_opt("--verify-diagnostics", stdin=expected).returncode == 0
    result = pw_opt("--verify-diagnostics", stdin=expected.replace(b"foo\n", b""))
    assert result.stderr.splitlines()[0] == (
        "<stdin>:1:4: error: expected error \"custom op 'foo' is unknown\" was not produced"
    )
    assert result.returncode == 1
    result = pw_opt("--verify-diagnostics", stdin=b"foo")
    assert result.stderr.splitlines()[0].startswith("<stdin>:1:1: error: unexpected error: custom op 'foo'")
    assert result.returncode == 1
    result = pw_opt("--verify-diagnostics", stdin=b"// expected-error-re@below {{a{{(}}}}\nfoo")
    assert "<stdin>:1:4: error: invalid regular expression: " in result.stderr
    assert result.returncode == 1


@pytest.mark.process
def test_pw_opt_keeps_the_traceback_of_a_bug(module):
    program = (
        "import sys; from pathways.passes.manager import base, registry\n"
        "from pathways.tools.pw_opt import main\n"
        "from pathways.dialect import FORMS\n"
        "class Broken(base.Pass):\n"
        "    name = 'pw-cse'\n"
        "    input_forms = tuple(FORMS.values())\n"
        "    def run(self, module): raise ZeroDivisionError\n"
        "registry.load = lambda name: Broken\n"
        "sys.exit(main([sys.argv[1], '--pw-cse']))"
    )
    result = preloaded.run("-c", program, module)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("ZeroDivisionError\nwhile running pw-cse\n")


# A pass that ends the process in a way that nothing in it can catch.
CRASHING = """
import os, signal, sys
from pathways.dialect import FORMS
from pathways.passes.manager import base, registry
from pathways.tools.pw_opt import main

class Crashing(base.Pass):
    name = 'pw-cse'
    input_forms = tuple(FORMS.values())
    def run(self, module): os.kill(os.getpid(), signal.{signal})

registry.load = lambda name: Crashing
sys.exit(main())
"""


@pytest.mark.quick
@pytest.mark.process
@pytest.mark.parametrize("number", ["SIGSEGV", "SIGTERM"])
def test_pw_opt_leaves_a_reproducer_of_a_crash(module, tmp_path, number):
    flag = f"--mlir-pass-pipeline-crash-reproducer={tmp_path / 'kept.mlir'}"
    result = preloaded.run("-c", CRASHING.format(signal=number), module, "--pw-cse", flag)
    if number == "SIGTERM":  # Asked to end, it tidies up.
        assert (result.returncode, result.stderr) == (143, "")
        assert [path.name for path in tmp_path.iterdir()] == ["module.mlir"]
        return
    assert result.stderr == (
        f"pw-opt: note: pipeline failed: reproducer generated at '{tmp_path / 'kept.mlir'}'\n"
        "pw-opt: error: MLIR crashed (SIGSEGV) while running pw-cse\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.mlir", "module.mlir"]
    again = output_of("pw-opt", tmp_path / "kept.mlir", "--run-reproducer")
    assert again == output_of("pw-opt", module, "--pw-cse")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MODULE.replace("s0", "s1"), "as text, reads back as a different module"),
        ("%", "cannot be read back: "),
    ],
)
def test_round_trip_finds_a_module_that_reads_back_as_another(monkeypatch, text, message):
    from jaxlib.mlir import ir

    from pathways.tools.drivers import roundtrip

    module = ir.Module.parse(MODULE, make_context())
    monkeypatch.setattr(roundtrip, "_WAYS", {"text": lambda _: text.encode()})
    with Diagnostics(module.context) as seen, pytest.raises(PassFailure, match=message):
        roundtrip.check_round_trip(module)
    assert len(seen.errors) == 1


class Complaining(Pass):
    name = "pw-complaining"
    input_forms = tuple(FORMS.values())

    def run(self, module):
        fail(module.body.operations[1], "is not liked")


class Quiet(Pass):
    """Emits an error but does not raise."""

    name = "pw-quiet"
    input_forms = tuple(FORMS.values())

    def run(self, module):
        module.operation.location.emit_error("too quiet")


class Breaking(Pass):
    name = "pw-breaking"
    input_forms = tuple(FORMS.values())

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
def test_run_passes_makes_a_failure_a_diagnostic_and_an_exception(item, message):
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


def test_source_knows_the_first_line_of_a_chunk():
    pieces = Source("f", b"a\n// -----\nb\nc\n// -----  \n  // -----\n// -----").chunks()
    assert [(piece.data, piece.first_line) for piece in pieces] == [
        (b"a\n", 1),
        (b"b\nc\n", 3),
        (b"  // -----\n", 6),
        (b"", 7),
    ]


def test_pw_opt_gives_shardy_no_function_without_a_body():
    result = pw_opt("--sdy-close-shardings", stdin=b"func.func private @f(tensor<f32>)")
    assert result.returncode == 1
    assert (
        "<stdin>:1:1: error: 'func.func' op has no body, and sdy-close-shardings needs one" in result.stderr
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [("", 0), ("func.func nested @main() { return }", 0), ("func.func @f() {return}" * 2, 2)],
)
def test_pw_opt_gives_shardy_one_program(text, number):
    text = text.replace("@f", "@g", 1)
    result = pw_opt("--sdy-propagation-pipeline", stdin=text.encode())
    assert result.returncode == 1
    assert f"op has {number} public functions, and sdy-propagation-pipeline needs @main or one" in (
        result.stderr
    )


def test_pw_opt_names_a_file_whose_name_is_not_utf8():
    text = rb"""module { %0 = arith.constant 0 : i32 "pw.slice"() {} : () -> () loc("se\95d.mlir":5:19) }"""
    result = pw_opt(stdin=text.replace(rb"\\", b"\\"))
    assert (result.returncode, result.stderr.splitlines()[0]) == (
        1,
        r"se\95d.mlir:5:19: error: 'pw.slice' op requires attribute `sym_name`",
    )


def test_pw_opt_reports_damage_where_mlir_is_silent():
    path = Path(__file__).parent / "pw_opt" / "Inputs" / "silent.mlirbc"
    result = pw_opt(path)
    assert (result.returncode, result.stderr) == (1, f"{path}:1:1: error: damaged bytecode\n")


def test_pw_opt_lists_every_pass_in_its_help():
    text = output_of("pw-opt", "--help")
    for name in registry.names():
        assert f"  --{name}\n" in text


def test_pw_opt_lists_a_pass_that_make_docs_has_not_described_yet(monkeypatch):
    monkeypatch.setitem(registry.MODULES, "pw-fresh", "place.fresh")
    assert "  --pw-fresh\n      no description yet: `make docs` writes it\n" in listings.passes_help()
    assert re.search(r"(?m)^pw-fresh +no description yet", listings.list_passes())


@pytest.mark.process
@pytest.mark.parametrize("flag", ["--help", "--list-passes"])
def test_pw_opt_lists_passes_without_importing_any(flag):
    # What takes the time of a start is MLIR's bindings, and modules of passes.
    code = "import sys; from pathways.tools.pw_opt import main; main(sys.argv[1:]); "
    code += "print(*sys.modules, file=sys.stderr)"
    listed = subprocess.run([sys.executable, "-c", code, flag], capture_output=True, text=True, check=True)
    loaded = set(listed.stderr.split())
    assert "pathways.passes.manager.registry" in loaded
    assert not loaded & {"jaxlib", "pathways.passes.manager.base"}
