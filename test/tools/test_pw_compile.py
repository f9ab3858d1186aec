"""`pw-compile`: reading arguments, users' mistakes, devices and interruption."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import preloaded
import pytest
from cli import closed_pipe, message_in, output_of, run_apart, run_tool
from hypothesis import example, given
from hypothesis import strategies as st
from jax._src import config as jax_config
from pages import programs

from pathways.runtime.xla import compile_cache
from pathways.tools.inputs.signatures import DTYPES, ArrayText, SignatureError, parse_named, parse_value

ROOT = Path(__file__).parents[2]
REGRESSION = ROOT / "test" / "tools" / "pw_compile" / "Inputs" / "regression.py"
FIGURE2 = ROOT / "examples" / "figure2.py"
PW_COMPILE = [sys.executable, "-m", "pathways.tools.pw_compile"]
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu"}


def run(*arguments, **options):
    return run_tool("pw-compile", *arguments, **options)


def error_of(*arguments, **options):
    """Returns the error of a run that is to fail, without what the user's file printed."""
    done = run(*arguments, **options)
    assert (done.returncode, done.stdout) == (1, ""), done
    note = r"(?:pw-compile: note: importing .*, which runs its top level\n)?(?:importing regression\n)?"
    rest = re.sub(rf"\A{note}", "", done.stderr)
    assert rest.startswith("pw-compile: error: "), rest
    return message_in("pw-compile", rest)


def written(value):
    """The text of an argument."""
    match value:
        case ArrayText(dtype, shape):
            return f"{dtype}[{','.join(map(str, shape))}]"
        case tuple():
            return f"({''.join(f'{written(v)}, ' for v in value)})"
        case list():
            return f"[{', '.join(map(written, value))}]"
        case dict():
            return f"{{{', '.join(f'{json.dumps(k)}: {written(v)}' for k, v in value.items())}}}"
        case str():
            return json.dumps(value)
    return repr(value)


def refusal(parse, text):
    """The error that a text is, None for an argument."""
    try:
        parse(text)
    except SignatureError as error:
        return error
    return None


strings = st.text(st.characters(codec="utf-16", max_codepoint=0xFFFF))
values = st.recursive(
    st.builds(
        ArrayText, st.sampled_from(sorted(DTYPES.values())), st.lists(st.integers(0, 99)).map(tuple)
    ).filter(lambda array: len(array.shape) < 8)
    | st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | strings,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(strings, inner, max_size=4)
    ),
    max_leaves=10,
)


@given(values)
def test_parse_value_reads_what_was_written(value):
    read = parse_value(written(value))
    assert repr(read) == repr(value)  # repr: 1, 1.0 and True are different arguments.


@given(st.text() | st.text("f32bi[](){},:\"' \\u01\n-+eE.") | st.binary().map(lambda b: os.fsdecode(b)))
@example("(" * 10_000)
@example('{"a":' * 10_000)
@example(f"f32[{'9' * 10_000}]")
@example("9" * 10_000)
@example("1e999")
@example('"\\u12')
@example('"\\')
def test_parse_value_reads_any_text_or_refuses_it(text):
    for parse in (parse_value, parse_named):
        error = refusal(parse, text)
        if error is not None:
            assert 1 <= error.column <= len(text) + 1
            assert str(error).isprintable()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("f32[8,128]", ArrayText("float32", (8, 128))),
        (" f32 [ ] ", ArrayText("float32", ())),
        ("ui8[0]", ArrayText("uint8", (0,))),
        ("i1[2]", ArrayText("bool", (2,))),
        ("f8E4M3FN[2]", ArrayText("float8_e4m3fn", (2,))),
        ("(f32[], )", (ArrayText("float32", ()),)),
        ("()", ()),
        ("[]", []),
        ("{'a': 1,}", {"a": 1}),
        ("[1, 2.5, -3e2, True, None]", [1, 2.5, -300.0, True, None]),
        (r"'\'\u00e9\n'", "'é\n"),
    ],
)
def test_parse_value_reads_arguments(text, value):
    assert parse_value(text) == value


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "expected an argument such as f32[8,128], got the end"),
        ("f32", 4, "expected a shape, such as f32[8,128], or f32[] for a scalar, got the end"),
        ("f23[2]", 1, "unknown dtype 'f23'; did you mean 'f32'?"),
        ("none", 1, "unknown dtype 'none'; did you mean 'None'?"),
        ("f32[8 128]", 7, "expected ',' or ']', got '1'"),
        ("f32[8, x]", 8, "expected a size, got 'x'"),
        ("f32[-1]", 5, "expected a size or ']', got '-'"),
        ("f32[8,]", 7, "expected a size, got ']'"),
        ("f32[99999999999, 99999999999]", 18, "an array of more than 281474976710656 elements"),
        ("f32[8], i32[8]", 7, "expected the end of the argument, got ','"),
        ("(f32[8])", 8, "expected ',': a tuple of one value is written (value,)"),
        ("(f32[8] i32[])", 9, "expected ',' or ')', got 'i'"),
        ("{w: f32[8]}", 2, "expected a key in quotes, or '}', got 'w'"),
        ('{"w" f32[8]}', 6, "expected ':', got 'f'"),
        ('{"w": 1, "w": 2}', 10, "key 'w' occurs here twice"),
        ('{"w: 1}', 2, "unterminated string"),
        (r'"\x"', 2, "unknown escape in a string"),
        ("-1e999", 1, "a number that does not fit into a float"),
        ("[" * 65, 65, "nested more than 64 levels deep"),
    ],
)
def test_parse_value_refuses_mistakes(text, column, message):
    with pytest.raises(SignatureError) as caught:
        parse_value(text)
    assert (str(caught.value), caught.value.column) == (message, column)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("f32[8]", 4, "expected '=' after 'f32', got '['"),
        ("=1", 1, "expected the name of an argument, got '='"),
        ("x=", 3, "expected an argument such as f32[8,128], got the end"),
    ],
)
def test_parse_named_refuses_mistakes(text, column, message):
    with pytest.raises(SignatureError) as caught:
        parse_named(text)
    assert (str(caught.value), caught.value.column) == (message, column)
    assert parse_named("x = f32[]") == ("x", ArrayText("float32", ()))


def test_pw_compile_marks_an_error_in_an_argument():
    assert error_of(FIGURE2, "--args", "f32[2]", "(f32[2],\n i32[)") == (
        "argument 2, column 15: expected a size or ']', got ')'\n(f32[2],  i32[)\n              ^"
    )
    assert error_of(FIGURE2, "--kwargs", "a=1", "a=2") == "argument 'a' is given twice"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a target, such as path/file.py:function; see pw-compile --help"),
        (["a.py:f", "b"], "unexpected argument 'b'"),
        (["a.py:f", "--compil-to=x"], "unexpected argument '--compil-to=x'; did you mean '--compile-to'?"),
        (["a.py:f", "--explain", "--compile-to=placed"], "not allowed with argument --explain"),
        (["a.py:f", "--cpu-devices=many"], "argument --cpu-devices: must be a number, got 'many'"),
        (["a.py:f", "--cpu-devices=0"], "--cpu-devices: must be from 1 to 4096, got 0"),
        (
            ["a.py:f", "--compile-to=schedled"],
            "unknown phase 'schedled'; did you mean 'scheduled'? the phases",
        ),
        ([":f"], "expected path/file.py:function or package.module:function, got ':f'"),
        (["none.py:f"], "cannot import none.py: no such file"),
        (["./:f"], "cannot import ./: it is a folder"),
        (["no.such.module:f"], "cannot import no.such.module: ModuleNotFoundError: No module named 'no'"),
        (
            ["json:loads"],
            "'loads' in json is not a program: it is a plain function; put @pw.program above it",
        ),
        (["json:nothing"], "there is no 'nothing' in json; json has no programs"),
    ],
)
def test_pw_compile_refuses_mistakes_before_any_program(arguments, message):
    assert message in error_of(*arguments)


@pytest.mark.parametrize(
    ("function", "arguments", "pattern"),
    [
        ("chian", [], r"there is no 'chian' in .*regression\.py; did you mean 'chain'\?"),
        (
            "devices",
            [],
            r"is not a program: it is a .*VirtualDeviceSet; the programs in .* are embed, head, step",
        ),
        ("chain", [], r"chain\(x\): missing a required argument: 'x'; give --args, or .*\n  at .*\.py:\d+"),
        ("chain", ["f32[8]", "f32[8]"], r"chain\(x\): too many positional arguments\n  at .*regression\.py:"),
        ("wrong_tuple", [], r"wrong_tuple_example_args in .* must be a tuple of arguments, got a list"),
        (
            "wrong_shapes",
            ["f32[8,8]"],
            r"program 'wrong_shapes': TypeError: Cannot concatenate .*\n  at .*\.py:\d+: return jnp",
        ),
        ("chain", ["f64[8,8]"], r"an argument of dtype float64 needs JAX_ENABLE_X64=1 in the environment"),
        ("chain", ['"text"'], r"argument x is a str, not an array"),
    ],
)
def test_pw_compile_refuses_mistakes_with_a_program(function, arguments, pattern):
    given = ["--args", *arguments] if arguments else []
    assert re.search(pattern, error_of(f"{REGRESSION}:{function}", *given))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = nothing\n", "NameError: name 'nothing' is not defined ({path}:2)"),
        ("x = (\n", "'(' was never closed ({path}:1)"),
        ("import sys\nsys.exit(3)", "it ends the process with sys.exit(3) ({path}:2)"),
        ("import json\njson.loads('{')", None),
    ],
)
def test_pw_compile_names_the_line_that_fails_to_import(tmp_path, text, message):
    path = tmp_path / "broken.py"
    path.write_text(text)
    line = error_of(f"{path}:f")
    assert "\n" not in line
    if message is not None:
        assert line == f"cannot import {path}: {message.format(path=path)}"
    else:
        assert line.endswith(f"({path}:2)")


def test_pw_compile_prints_a_traceback_on_request(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("y = nothing\n")
    result = run(f"{path}:f", "--traceback")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("pw-compile: error: cannot import")


def test_pw_compile_imports_a_file_as_python_would_run_it(tmp_path):
    (tmp_path / "sibling.py").write_text("import pathways as pw\nDEVICES = pw.make_virtual_device_set()\n")
    path = tmp_path / "types.py"  # the name of a module that is there already
    path.write_text(
        "import sys\nfrom sibling import DEVICES\nimport pathways as pw\nassert len(sys.argv) == 1\n"
        "class Model:\n  f = pw.jit(lambda x: x, devices=DEVICES.add_slice(shape=1, axis_names='x'))\n"
        "example_args = (1.0,)\n"
    )
    assert "module @lambda" in run(f"{path}:Model.f").stdout
    path.rename(tmp_path / "mine.py")
    assert "module @lambda" in run("mine:Model.f", cwd=tmp_path).stdout


@pytest.mark.quick
@pytest.mark.process
def test_pw_compile_starts_again_with_as_many_devices_as_are_needed():
    compile = "-m", "pathways.tools.pw_compile", f"{REGRESSION}:step", "--compile-to=device"
    started_early = preloaded.run(*compile)
    assert started_early.returncode == 0, started_early.stderr
    assert started_early.stdout.count("HloModule ") == 4
    message = error_of(f"{REGRESSION}:step", "--compile-to=device", "--cpu-devices=1")
    assert message.startswith("program step: not enough devices: it needs 2")
    output_of("pw-compile", f"{REGRESSION}:step", "--explain", "--cpu-devices=2")


def test_pw_compile_names_an_output_that_it_cannot_write(tmp_path):
    out = tmp_path / "none" / "out.mlir"
    message = error_of(f"{REGRESSION}:step", "-o", out)
    assert message == f"cannot write output file '{out}': No such file or directory"


@pytest.mark.process
def test_pw_compile_is_quiet_when_a_pipe_is_closed(tmp_path):
    code, error = run_apart("pw-compile", f"{REGRESSION}:step", stdout=closed_pipe(), folder=tmp_path)
    assert (code, error.splitlines()[1:]) == (1, ["importing regression"])


@pytest.mark.process
def test_pw_compile_is_interrupted(tmp_path):
    path = tmp_path / "slow.py"
    path.write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen([*PW_COMPILE, f"{path}:f"], stderr=subprocess.PIPE, env=ENVIRONMENT)
    assert process.stderr.readline().startswith(b"pw-compile: note: importing ")
    assert process.stderr.readline() == b"ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert process.stderr.read() == b"pw-compile: interrupted\n"
    process.stderr.close()


def test_pw_compile_needs_no_target_for_help_and_version():
    text = run("--help").stdout
    for word in (
        "--compile-to",
        "--explain",
        "stablehlo, imported, placed",
        "device:",
        "bf16",
        "example_args",
    ):
        assert word in text
    assert max(map(len, text.splitlines())) <= 110
    assert re.fullmatch(r"pw-compile \S+ \(jax \S+\)\n", run("--version").stdout)


@pytest.mark.process
def test_pw_compile_starts_without_jax():
    program = "import sys; import pathways.tools.pw_compile; assert 'jax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_pw_compile_writes_a_file(tmp_path):
    out = tmp_path / "out.mlir"
    assert output_of("pw-compile", f"{REGRESSION}:chain", "--args", "f32[8,8]", "-o", out) == ""
    assert "module @chain" in out.read_text()


def test_pw_compile_explains_modules_of_xla_and_their_share_of_the_time(tmp_path, monkeypatch):
    """The second time they come from the code store."""
    monkeypatch.setenv("PW_CACHE_DIR", str(tmp_path))
    # The tests share a cache of JAX, in which other runs leave what took long.
    with jax_config.enable_compilation_cache(False):
        for how in ("compiled", "from the code store"):
            monkeypatch.setattr(compile_cache, "_loaded", type(compile_cache._loaded)())
            text = output_of("pw-compile", f"{FIGURE2}:f", "--args", "f32[2]", "--explain")
            check_shares(text, how)


def check_shares(text, how):
    """Checks that modules of XLA have their origin, and together all of the time."""
    _, _, modules = text.partition("XLA module")
    header, *rows = modules.partition("\n\n")[0].splitlines()
    assert header.split() == ["slice", "instructions", "time", "share"]
    cells = [re.split(r"\s{2,}", row.strip()) for row in rows]
    assert {row[-1] for row in cells} == {how}
    assert sum(float(row[4].removesuffix(" %")) for row in cells) == pytest.approx(100, abs=0.5)


LOUD = """
import os, subprocess, sys
import jax
import pathways as pw

print("python")
sys.__stdout__.write("original\\n")
os.write(1, b"descriptor\\n")
subprocess.run(["echo", "process"], check=True)
f = pw.jit(lambda x: x + 1, devices=pw.make_virtual_device_set().add_slice(1, "x"))
"""


@pytest.mark.process
def test_pw_compile_keeps_what_a_file_prints_apart(tmp_path):
    (tmp_path / "loud.py").write_text(LOUD)
    result = run("loud.py:f", "--args", "f32[2]", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("module @")
    lines = result.stderr.splitlines()
    assert lines[0] == "pw-compile: note: importing loud.py, which runs its top level"
    assert sorted(lines[1:]) == ["descriptor", "original", "process", "python"]


def test_pw_compile_explains_in_json():
    explained = run(f"{FIGURE2}:f", "--args", "f32[2]", "--explain", "--json")
    figures = json.loads(explained.stdout)
    assert (figures["program"], figures["launches"], figures["transfers"]) == ("f", 4, 3)
    assert figures["arguments"] == {"v": "f32[2]"}
    assert [row["slice"] for row in figures["slices"]] == ["s0", "s1", "s2"]
    assert figures["slices"][0]["mesh"] == {"x": 1}
    assert figures["bytes_transferred"] == sum(row["bytes"] for row in figures["channels"])
    assert figures["memory"]["s0"]["peak_memory_in_bytes"] > 0
    assert figures["planned_step_time"] is None
    assert error_of(f"{FIGURE2}:f", "--json") == "--json is for --explain"


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("f.pbw", "pw-compile: warning: 'f.pbw' is used for MLIR text, whose file names end in .mlir"),
        ("f.mlir", None),
        ("f", None),
        ("/dev/null", None),
    ],
)
def test_pw_compile_warns_of_an_unusual_extension(tmp_path, name, warning):
    result = run(f"{FIGURE2}:f", "--args", "f32[2]", "-o", name, cwd=tmp_path)
    assert result.returncode == 0
    assert [line for line in result.stderr.splitlines() if "warning" in line] == (
        [warning] if warning else []
    )


def test_pw_compile_reads_a_schedule_from_a_file(tmp_path):
    (tmp_path / "step.py").write_text(programs("README.md")[1])
    assert error_of("step.py:step", "--schedule", "none.csv", cwd=tmp_path) == (
        "--schedule: there is no file 'none.csv'"
    )
    # One microbatch after the other, which no policy of the program is.
    order = "\n".join(",".join(f"{stage}F{n},{stage}B{n}" for n in range(8)) for stage in range(4))
    (tmp_path / "order.csv").write_text(order)
    given = run("step.py:step", "--schedule", "order.csv", "--explain", "--json", cwd=tmp_path)
    assert given.returncode == 0, given.stderr
    assert json.loads(given.stdout)["planned_step_time"] == 64
