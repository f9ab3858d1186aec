"""`pw-run` and `pw-bundle`, and `pw-compile -o` that makes what they read."""

import io
import json
import os
import re
import warnings
import zipfile
from pathlib import Path

import hypothesis.extra.numpy
import msgspec
import numpy as np
import preloaded
import pytest
from cli import closed_pipe, message_in, output_of, run_apart, run_tool, warm_checks  # noqa: F401 (a fixture)
from hypothesis import given
from hypothesis import strategies as st

from pathways.runtime.bundle import file as bundle
from pathways.runtime.plan.plan import ArrayType
from pathways.tools.common.errors import UserError
from pathways.tools.inputs.arrays import read_arrays, write_arrays
from pathways.tools.inputs.values import read_values, value_text

ROOT = Path(__file__).parents[2]

MODEL = """
import jax, jax.numpy as jnp
import pathways as pw
devices = pw.make_virtual_device_set()
front = pw.jit(lambda w, x: x @ w, devices=devices.add_slice(2, "x"), in_shardings=(None, jax.P("x")))
back = pw.jit(lambda y: y - 1, devices=devices.add_slice(1, "x"))

@pw.program(donate_argnums=0)
def step(state, x):
    y = back(front(state["w"], x))
    return {"w": state["w"] * 2, "n": state["n"] + 1}, y.sum()
"""
ARGUMENTS = {"args": [{"n": "i32[]", "w": "bf16[4,2]"}, "bf16[8,4]"]}


pytestmark = pytest.mark.usefixtures("warm_checks")


def error_of(tool, *arguments, cwd):
    """Returns the error of a tool that is to fail, which is one line."""
    done = run_tool(tool, *arguments, cwd=cwd)
    assert done.returncode == 1, done
    return message_in(tool, done.stderr)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a bundle in it, and nothing that it was made of."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("run")
    (source / "model.py").write_text(MODEL)
    (source / "args.json").write_text(json.dumps(ARGUMENTS))
    options = ("--args-file", "args.json", "-o", folder / "step.pwb", "--executables")
    assert output_of("pw-compile", "model.py:step", *options, cwd=source) == ""
    return folder


@pytest.mark.quick
@pytest.mark.process
@pytest.mark.parametrize("trust", [[], ["--trust"]])
def test_pw_run_feeds_results_to_the_next_step(folder, trust, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "state.n": np.int32(5),
        "state.w": rng.integers(3, size=(4, 2)).astype(np.float32),
        "x": rng.integers(3, size=(8, 4)).astype(np.float32),
    }
    bfloat16 = np.dtype("bfloat16")
    np.savez(tmp_path / "in.npz", **{k: v.astype(bfloat16) if v.ndim else v for k, v in arrays.items()})
    text = output_of(
        "pw-run",
        *("step.pwb", "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz"),
        *("--steps", 3, "--feed", "result.0:state", *trust),
        cwd=folder,
    )
    assert re.search(
        r"step: loaded in .* s, ([1-9]) executables stored, 0 compiled" if trust else "0 executables", text
    )
    assert re.search(r"3 steps in .* steps/s\neach step: \d launches, 1 transfers, 32 bytes", text)
    found = np.load(tmp_path / "out.npz", allow_pickle=False)
    assert sorted(found) == ["result.0.n", "result.0.w", "result.1"]
    assert found["result.0.n"] == 8
    assert (found["result.0.w"].view(bfloat16) == arrays["state.w"] * 8).all()
    assert found["result.1"].view(bfloat16) == (arrays["x"] @ arrays["state.w"] * 4 - 1).sum()


def test_pw_run_makes_up_inputs(folder, tmp_path):
    results = []
    for options in (["--zeros"], ["--random", 1], ["--random", 1]):
        path = tmp_path / "out.npz"
        output_of("pw-run", "step.pwb", "--trust", "--outputs", path, *options, cwd=folder)
        results.append(np.load(path)["result.1"].view("bfloat16"))
    assert results[0] == -16
    assert results[1] == results[2] != results[0]


@pytest.mark.quick
@pytest.mark.process
def test_pw_run_traces_steps(folder, tmp_path):
    path = tmp_path / "trace.json"
    output_of("pw-run", "step.pwb", "--trust", "--zeros", "--steps", 2, "--trace", path, cwd=folder)
    assert "s0 -> s1" in path.read_text()
    problem = error_of("pw-run", "step.pwb", "--zeros", "--trace", "no/trace.json", cwd=folder)
    assert "cannot write trace 'no/trace.json'" in problem


@pytest.mark.process
def test_pw_run_reads_and_prints_values_as_iree_does(folder, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((8, 4), "bfloat16"))
    values = ["i32=-7", "4x2xbf16=[1 2][3 4][5 6][7,8]", "8x4xbf16=0.5"]
    inputs = [word for value in values for word in ("--input", value)]
    printed = output_of("pw-run", "step.pwb", *inputs, "--print", cwd=folder).splitlines()[-3:]
    assert printed == [
        "result.0.n: i32=-6",
        "result.0.w: 4x2xbf16=[2 4][6 8][10 12][14 16]",
        f"result.1: bf16={(1 + 3 + 5 + 7 + 2 + 4 + 6 + 8) * 4 - 16}",
    ]
    ones = save(tmp_path / "x.npz", x=np.full((8, 4), 0.5, "bfloat16"))
    again = output_of("pw-run", "step.pwb", *inputs[:4], "--inputs", ones, "--print", cwd=folder)
    assert again.splitlines()[-3:] == printed
    problem = error_of("pw-run", "step.pwb", *inputs, "--inputs", ones, cwd=folder)
    assert problem == "x is given by both --input and --inputs"


@pytest.mark.quick
@given(
    hypothesis.extra.numpy.arrays(
        st.sampled_from(
            ["bool", "int8", "int32", "uint64", "int64", "float16", "float32", "float64", "complex64"]
        ),
        hypothesis.extra.numpy.array_shapes(min_dims=0, min_side=0, max_side=4),
    )
)
def test_value_text_is_read_back(array):
    text = value_text(array)
    (read,) = read_values([text], {"x": ArrayType(array.shape, array.dtype.name)}).values()
    np.testing.assert_array_equal(read, array)


def test_value_text_cuts_long_arrays():
    assert value_text(np.zeros((2, 1000), np.int8)).endswith("0 0 ...]")
    assert value_text(np.zeros(1025, np.int8)).endswith("0 0 ...")
    assert value_text(np.zeros((2048, 1), np.int8)).endswith("[0][0]...")


@pytest.mark.quick
@pytest.mark.parametrize("tool", ["pw-sim", "pw-viz"])
def test_pw_sim_and_pw_viz_read_bundles(folder, tmp_path, tool):
    shown = output_of(tool, "step.pwb", cwd=folder)
    assert "step" in shown
    output_of("pw-bundle", "inspect", "step.pwb", cwd=folder)
    cut = tmp_path / "cut.pwb"
    cut.write_bytes((folder / "step.pwb").read_bytes()[:-1])
    assert error_of(tool, cut, cwd=folder).startswith(f"{cut}: ")


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.quick
@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "expected a bundle; see pw-run --help"),
        (["nothing.pwb"], "nothing.pwb: no such file"),
        (["step.pwb"], "no input for state.n, state.w, x; give --input, --inputs FILE, --zeros or"),
        (["step.pwb", "--zeros", "--steps", "0"], "--steps 0: expected at least 1"),
        (["step.pwb", "--zeros", "--feed", "result.0"], "--feed result.0: expected OUT:IN"),
        (["step.pwb", "--zeros", "--feed", "result.7:x"], "--feed result.7:x: there is no result result.7"),
        (["step.pwb", "--zeros", "--feed", "result.1:x"], "result.1 is bfloat16[], but x is bfloat16[8, 4]"),
        (["step.pwb", "--zeros", "--feed", "result:state"], "only one of the two has result.0.n"),
        (
            ["step.pwb", "--zeros", "--feed", "result.0:state", "--feed", "result.0.n:state.n"],
            "--feed result.0.n:state.n: state.n is fed already, with result.0.n",
        ),
        (["step.pwb", "--zeros", "--cpu-devices", "4097"], "must be from 1 to 4096, got 4097"),
        (["step.pwb", "--zeros", "--trace", "."], "cannot write trace '.': Is a directory"),
        (["step.pwb", "--inputs", "."], ".: cannot read arrays: not a file"),
        (["step.pwb", "--inputs", "nothing.npz"], "nothing.npz: cannot read arrays: No such file"),
        (["step.pwb", "--zero"], "unexpected argument '--zero'; did you mean '--zeros'?"),
        (["step.pwb", "--zeros", "--cpu-devices", "1"], "not enough devices: it needs 3"),
        (["step.pwb", "--inputs", "step.pwb"], "step.pwb: "),
        (["step.pwb", "--inputs", "text.npz"], "text.npz: cannot read arrays: "),
        (["step.pwb", "--inputs", "other.npz"], "other.npz: the program has no argument y"),
        (["step.pwb", "--inputs", "shape.npz"], "x is float32[3], but the program takes bfloat16[8, 4]"),
        (["step.pwb", "--inputs", "pickle.npz"], "x is object[1], but the program takes bfloat16[8, 4]"),
        (["text.npz"], "text.npz: not a bundle"),
        (["step.pwb", "--input", "i32=x"], "--input 1, 'i32=x': 'x' is not a value of dtype int32"),
        (["step.pwb", "--input", "2xi32=1"], "--input 1, '2xi32=1', is 2xi32, but state.n is i32"),
        (["step.pwb", *["--input=i32"] * 4], "--input is given 4 times, but the program takes 3 arguments"),
        (["step.pwb", "--input", "@no.npy"], "cannot open input file 'no.npy': No such file"),
        (["step.pwb", "--input", "@text.npz"], "--input 1, '@text.npz': cannot read an array: "),
    ],
)
def test_pw_run_reports_mistakes_in_one_line(folder, arguments, problem):
    (folder / "text.npz").write_text("nothing")
    save(folder / "other.npz", y=np.zeros(1))
    save(folder / "shape.npz", x=np.zeros(3, np.float32))
    save(folder / "pickle.npz", x=np.array([print], dtype=object))
    assert problem in error_of("pw-run", *arguments, cwd=folder)


def npy(shape, header=None):
    raw = io.BytesIO()
    np.lib.format.write_array_header_1_0(raw, {"descr": "<f4", "fortran_order": False, "shape": shape})
    raw = raw.getvalue()
    return raw if header is None else raw[:8] + len(header).to_bytes(2, "little") + header


def packed(*members, method=zipfile.ZIP_STORED):
    raw = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(raw, "w", method) as file:
        warnings.simplefilter("ignore")  # Of names that are there twice.
        for name, content in members:
            file.writestr(name, content)
    return raw.getvalue()


def encrypted(data):
    raw = bytearray(data)
    raw[6] |= 1
    raw[data.index(b"PK\1\2") + 8] |= 1
    return bytes(raw)


GOOD = npy((2,)) + bytes(8)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (GOOD, "cannot read arrays"),
        (packed(("x.npy", npy((10**12,)))), "x is float32[1000000000000], but the program takes float32[2]"),
        (packed(("x.npy", GOOD[:-1])), "cannot read arrays"),
        (packed(("x.npy", b"text")), "cannot read arrays"),
        (packed(("x", b"text")), "cannot read arrays"),
        (packed(("x.npy", GOOD), ("x.npy", GOOD)), "x occurs twice"),
        (packed(("x\n\x1b[2J.npy", GOOD)), r"no argument 'x\n\x1b[2J'"),
        (packed(("x.npy", npy((2,), header=b"(" * 60))), "cannot read arrays"),
        (packed(("x.npy", npy((2,), header=b"-" * 8000))), "cannot read arrays"),
        (packed(("x.npy", b"\x93NUMPY\x03\0" + GOOD[8:])), "x is in version 3.0 of numpy's format"),
        (encrypted(packed(("x.npy", GOOD))), "is encrypted"),
        (
            packed(("x.npy", GOOD), method=zipfile.ZIP_LZMA).replace(b"]\0\0", b"\xff" * 3),
            "cannot read arrays",
        ),
    ],
)
def test_read_arrays_refuses_other_files(tmp_path, content, problem):
    (tmp_path / "in.npz").write_bytes(content)
    with pytest.raises(UserError) as error:
        read_arrays(str(tmp_path / "in.npz"), {"x": ArrayType((2,), "float32")})
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_read_arrays_reads_compressed_arrays_in_any_order(tmp_path):
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    np.savez_compressed(tmp_path / "in.npz", x=array)
    found = read_arrays(str(tmp_path / "in.npz"), {"x": ArrayType((2, 3), "float32")})
    np.testing.assert_array_equal(found["x"], array)


@pytest.mark.parametrize("dtype", ["float8_e5m2", "float8_e4m3fn", "float4_e2m1fn", "bfloat16", "int4"])
def test_read_arrays_reads_what_was_written_of_small_types(tmp_path, dtype):
    """Files hold their bits, in types that numpy has itself, and programs know what they are."""
    arrays = {"x": np.array([[0, 1], [-1, 0.5]]).astype(dtype), "n": np.array(1).astype(dtype)}
    write_arrays(str(tmp_path / "out.npz"), arrays)
    with np.load(tmp_path / "out.npz") as file:
        assert file["x"].dtype == np.dtype(f"V{arrays['x'].itemsize}")
    types = {name: ArrayType(array.shape, dtype) for name, array in arrays.items()}
    for name, array in read_arrays(str(tmp_path / "out.npz"), types).items():
        assert array.dtype == np.dtype(dtype)
        assert array.tobytes() == arrays[name].tobytes()
    with zipfile.ZipFile(tmp_path / "out.npz") as file:
        file.extract("x.npy", tmp_path)
    (read,) = read_values([f"@{tmp_path / 'x.npy'}"], {"x": types["x"]}).values()
    assert read.dtype == np.dtype(dtype)


@pytest.mark.process
def test_pw_run_takes_feeds_one_by_one(folder, tmp_path):
    both = ["--feed", "result.0.n:state.n", "--feed", "result.0.w:state.w"]
    for name, feeds in (("one", ["--feed", "result.0:state"]), ("both", both)):
        path = tmp_path / f"{name}.npz"
        output_of("pw-run", "step.pwb", "--random", 0, "--steps", 3, *feeds, "--outputs", path, cwd=folder)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "both.npz").read_bytes()


@pytest.mark.process
def test_pw_run_runs_steps_of_a_program_of_several_sub_programs(tmp_path):
    """A loop that ends when its values say so goes on from step to step; an argument is not read."""
    (tmp_path / "model.py").write_text("""
import jax, jax.numpy as jnp, pathways as pw
devices = pw.make_virtual_device_set()
add, halve = (pw.jit(f, devices=devices.add_slice(1, "x")) for f in (lambda x: x + 3, lambda x: x / 2))

@pw.program(chunk=3)
def grow(n, x, unread, end):
    return jax.lax.while_loop(lambda s: s[0] < end, lambda s: (s[0] + 1, halve(add(s[1]))), (n, x))
""")
    types = ("i32[]", "f32[2]", "f32[3]", "i32[]")
    output_of("pw-compile", "model.py:grow", "--args", *types, "-o", "grow.pwb", cwd=tmp_path)
    # The second step finds its loop at the end.
    x = np.float32([1, 7])
    np.savez(tmp_path / "in.npz", n=np.int32(0), x=x, unread=np.zeros(3, np.float32), end=np.int32(4))
    feeds = ("--feed", "result.0:n", "--feed", "result.1:x", "--outputs", "out.npz")
    for steps in (1, 2):
        text = output_of("pw-run", "grow.pwb", "--inputs", "in.npz", "--steps", steps, *feeds, cwd=tmp_path)
        assert re.search(r"each chunk: \d+ launches, 6 transfers", text)
        found = np.load(tmp_path / "out.npz")
        assert found["result.0"] == 4
        np.testing.assert_allclose(found["result.1"], (x - 3) / 2**4 + 3)
    output_of("pw-run", "grow.pwb", "--zeros", "--steps", 2, *feeds, cwd=tmp_path)


@pytest.mark.process
def test_pw_run_feeds_no_key_with_its_bits(tmp_path):
    (tmp_path / "model.py").write_text("""
import jax, pathways as pw
s0 = pw.make_virtual_device_set().add_slice(1, "x")
f = pw.jit(lambda key: (jax.random.key_data(key), jax.random.split(key)[0]), devices=s0)
""")
    output_of("pw-compile", "model.py:f", "--args", "key[]", "-o", "f.pwb", cwd=tmp_path)
    output_of("pw-run", "f.pwb", "--zeros", "--steps", 2, "--feed", "result.1:key", cwd=tmp_path)
    assert "result.0 is uint32[2], but key is key<threefry2x32>[]" in error_of(
        "pw-run", "f.pwb", "--zeros", "--feed", "result.0:key", cwd=tmp_path
    )


@pytest.mark.process
def test_pw_run_reports_a_lack_of_memory_in_one_line(tmp_path):
    (tmp_path / "model.py").write_text("""
import jax.numpy as jnp, pathways as pw
s0 = pw.make_virtual_device_set().add_slice(1, "x")
f = pw.jit(lambda x: jnp.broadcast_to(x, (2**24, 2**24)) + 0, devices=s0)
""")
    output_of("pw-compile", "model.py:f", "--args", "f32[]", "-o", "f.pwb", cwd=tmp_path)
    assert "slices s0 need 1 PiB" in error_of("pw-run", "f.pwb", "--zeros", cwd=tmp_path)


@pytest.mark.process
def test_pw_run_writes_nothing_after_an_error(folder, tmp_path):
    error_of("pw-run", "step.pwb", "--zeros", "--outputs", tmp_path / "no" / "out.npz", cwd=folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.quick
def test_pw_bundle_inspects(folder):
    text = output_of("pw-bundle", "inspect", "step.pwb", cwd=folder)
    assert re.search(r"program step\n  platform +cpu\n", text)
    assert re.search(r"  state.w +bfloat16\[4, 2\] +\w+ +donated\n", text)
    assert (
        json.loads(output_of("pw-bundle", "inspect", "step.pwb", "--manifest", cwd=folder))["name"] == "step"
    )
    program = output_of("pw-bundle", "inspect", "step.pwb", "--program", cwd=folder)
    assert program.startswith("module @step")
    (name, *_) = re.findall(r"func.func private @(\w+)", program)
    assert "stablehlo." in output_of("pw-bundle", "inspect", "step.pwb", "--computation", name, cwd=folder)
    assert "there is no computation 'x'; there are" in error_of(
        "pw-bundle", "inspect", "step.pwb", "--computation", "x", cwd=folder
    )


@pytest.mark.quick
def test_pw_bundle_verifies(folder, tmp_path):
    assert "step.pwb: valid" in output_of("pw-bundle", "verify", "step.pwb", cwd=folder)
    data = bytearray((folder / "step.pwb").read_bytes())
    data[data.index(b"module @step")] ^= 1
    (tmp_path / "bad.pwb").write_bytes(data)
    assert (
        error_of("pw-bundle", "verify", "bad.pwb", cwd=tmp_path) == "bad.pwb: member program.mlir is damaged"
    )


@pytest.mark.process
def test_pw_bundle_survives_a_crash_of_mlir(folder, tmp_path):
    old = bundle.read(folder / "step.pwb")
    artifacts = [bytes(raw) for raw in old.artifacts().values()]
    program = b"module { " * 200_000
    bundle.write(tmp_path / "bad.pwb", old.manifest, program, artifacts, [])
    done = preloaded.run("-m", "pathways.tools.pw_bundle", "verify", "bad.pwb", cwd=tmp_path)
    assert re.search("MLIR crashed|program.mlir", message_in("pw-bundle", done.stderr))


# What they may take is as large as for any bundle, which takes long to fill: they get less of it here.
VERIFY_WITH_LITTLE_MEMORY = """
import sys
from pathways.tools import pw_bundle
from pathways.tools.inputs import untrusted_bundles

untrusted_bundles.allowance = lambda bundle: (30.0, 2**29)
sys.exit(pw_bundle.main())
"""
RUN_WITH_LITTLE_TIME = """
import sys
from pathways.runtime.xla import rehearse
from pathways.tools import pw_run

rehearse._TIMEOUT_FACTOR = 0.1
sys.exit(pw_run.main())
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "command",
    [
        ("-c", VERIFY_WITH_LITTLE_MEMORY, "verify", "bad.pwb"),
        ("-c", RUN_WITH_LITTLE_TIME, "bad.pwb", "--zeros"),
    ],
    ids=["pw-bundle", "pw-run"],
)
def test_pw_bundle_and_pw_run_refuse_types_that_fill_any_memory(folder, tmp_path, command):
    """Each names the one before twice; MLIR prints them in its messages."""
    old = bundle.read(folder / "step.pwb")
    artifacts = [bytes(raw) for raw in old.artifacts().values()]
    types = "".join(f"!a{n + 1} = tuple<!a{n}, !a{n}>\n" for n in range(59))
    program = bytes(old.program).replace(b"attributes {", b"attributes {a = !a59, ", 1)
    bundle.write(tmp_path / "bad.pwb", old.manifest, f"!a0 = i1\n{types}".encode() + program, artifacts, [])
    done = preloaded.run(*command, cwd=tmp_path)
    assert done.returncode == 1
    problem = done.stderr.splitlines()[-1]
    assert re.match(r"pw-\w+: error: ", problem)
    assert "Traceback" not in done.stderr
    assert re.search("too much memory|takes too long|out of memory|did not return|crashed", problem)


def test_pw_run_refuses_outrageous_bundles(folder, tmp_path):
    """Before a device or an array is made."""
    old = bundle.read(folder / "step.pwb")
    artifacts = [bytes(raw) for raw in old.artifacts().values()]

    def write(**changes):
        manifest = msgspec.structs.replace(old.manifest, **changes)
        bundle.write(tmp_path / "bad.pwb", manifest, bytes(old.program), artifacts, [])
        return error_of("pw-run", "bad.pwb", "--zeros", cwd=tmp_path)

    first, *rest = old.manifest.slices
    assert "needs 65537 devices" in write(slices=(msgspec.structs.replace(first, shape=(2**16,)), *rest))
    first, *rest = old.manifest.arguments
    problem = write(arguments=(msgspec.structs.replace(first, shape=(2**20, 2**28)), *rest))
    assert re.search("do not fit into memory|not those of the program", problem)


@pytest.mark.quick
@pytest.mark.parametrize("phase", ["stablehlo", "imported", "placed", "sharded", "scheduled"])
def test_pw_compile_starts_from_any_form(phase, tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "args.toml").write_text('args = [{n = "i32[]", w = "bf16[4,2]"}, "bf16[8,4]"]')
    given = ("--args-file", "args.toml")
    output_of("pw-compile", "model.py:step", *given, f"--compile-to={phase}", "-o", "a.mlir", cwd=tmp_path)
    expected = output_of("pw-compile", "model.py:step", *given, cwd=tmp_path)
    # Text has no locations, after which glue is named.
    glue = re.compile(r'@(?:glue(?:_\d+)?\b|"step/\w+")')
    assert glue.sub("@glue", output_of("pw-compile", "a.mlir", cwd=tmp_path)) == glue.sub("@glue", expected)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["model.mlir", "-o", "x.pwb", "--compile-to=placed"],
            "x.pwb is a bundle, which cannot be combined with --compile-to",
        ),
        (["model.mlir", "--executables"], "--executables needs a bundle: write one with -o FILE.pwb"),
        (["model.mlir", "--args", "f32[]"], "model.mlir already specifies its arguments; give none"),
        (
            ["model.mlir", "--compile-to=imported"],
            "program 'm' is in the form 'placed', which is after 'imported'",
        ),
        (["none.mlir"], "cannot open input file 'none.mlir'"),
        (["bad.mlir"], "bad.mlir:1:"),
        (["empty.mlir"], "program 'empty' has no function @main"),
        (["model.mlir", "--args-file", "bad.mlir"], "bad.mlir: not JSON"),
        (["model.mlir", "--args-file", "list.json"], "list.json: expected an object of 'args'"),
        (["model.mlir", "--args-file", "text.json"], "args[0]: 'f33[]', column 1: unknown dtype 'f33'"),
        (
            ["model.mlir", "--args-file", "text.json", "--args", "f32[]"],
            "use either --args-file or --args and --kwargs, not both",
        ),
    ],
)
def test_pw_compile_reports_mistakes(arguments, problem, tmp_path):
    (tmp_path / "model.mlir").write_text(
        'module @m attributes {pw.form = "placed"} {\n'
        'sdy.mesh @mesh = <["x"=1]>\n"pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()\n'
        "func.func public @main(%x: tensor<f32> {pw.slice = @s0}) -> (tensor<f32> {pw.slice = @s0}) "
        "{ return %x : tensor<f32> } }"
    )
    (tmp_path / "bad.mlir").write_text("module {")
    (tmp_path / "empty.mlir").write_text("module {}")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "text.json").write_text('{"args": ["f33[]"]}')
    assert problem in error_of("pw-compile", *arguments, cwd=tmp_path)


def test_pw_compile_takes_arguments_of_several_flags(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    state, x = '{"n": i32[], "w": bf16[4,2]}', "bf16[8,4]"
    once = output_of("pw-compile", "model.py:step", "--args", state, x, cwd=tmp_path)
    assert once == output_of("pw-compile", "model.py:step", "--args", state, "--args", x, cwd=tmp_path)
    named = output_of("pw-compile", "model.py:step", "--kwargs", f"state={state}", f"x={x}", cwd=tmp_path)
    split = ["--kwargs", f"state={state}", "--kwargs", f"x={x}"]
    assert named == output_of("pw-compile", "model.py:step", *split, cwd=tmp_path)


TRUSTED = ("step.pwb", "--zeros", "--trust")


@pytest.mark.process
def test_pw_run_is_quiet_when_a_pipe_is_closed(folder, tmp_path):
    assert run_apart("pw-run", *TRUSTED, stdout=closed_pipe(), folder=tmp_path, cwd=folder) == (1, "")


@pytest.mark.quick
@pytest.mark.process
@pytest.mark.parametrize("platform", ["cuda", "nothere"])
def test_pw_run_names_a_platform_that_is_missing(folder, platform):
    program = (
        "import sys, jax; from pathways.tools.pw_run import main;"
        f"jax.config.update('jax_platforms', '{platform}'); sys.exit(main())"
    )
    done = preloaded.run("-c", program, "step.pwb", "--zeros", cwd=folder)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"pw-run: error: JAX_PLATFORMS={platform}: JAX has no cpu devices here")


@pytest.mark.process
@pytest.mark.needs("full device")
def test_pw_run_reports_a_full_disk(folder, tmp_path):
    full = os.open("/dev/full", os.O_WRONLY)
    code, error = run_apart("pw-run", *TRUSTED, stdout=full, folder=tmp_path, cwd=folder)
    assert code == 1
    assert error == "pw-run: error: cannot write standard output: No space left on device\n"
