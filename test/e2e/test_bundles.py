"""Programs that went through a file: the same results without their source, on whatever devices exist."""

import collections
import dataclasses
import json
import os
import re
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax
import preloaded
import pytest
from check import assert_equal
from cli import warm_checks  # noqa: F401 (a fixture)
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from models import layer, sgd

import pathways as pw
from pathways.dialect import make_context
from pathways.runtime.bundle import examine
from pathways.runtime.bundle import file as bundle
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.resources import child_process
from pathways.runtime.resources.manager import ResourceError
from pathways.runtime.xla import compile_cache, rehearse

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

pytestmark = pytest.mark.usefixtures("warm_checks")
State = collections.namedtuple("State", ["weights", "count"])


def bits(array):
    return np.asarray(
        jax.random.key_data(array) if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key) else array
    )


def assert_same_leaves(ours, theirs):
    assert_equal(jax.tree.leaves(ours), jax.tree.leaves(theirs))


def device_set(*shapes):
    devices = pw.make_virtual_device_set()
    return [devices.add_slice(shape, [f"a{n}" for n in range(len(shape))]) for shape in shapes]


def two_stages(shape=(1,)):
    """Returns a program with everything that a bundle has to store."""
    s0, s1 = device_set(shape, shape)
    first = P(*[f"a{n}" for n in range(len(shape))])
    table = np.linspace(-1, 1, 4096, dtype=np.float32).reshape(64, 64)
    small = jnp.asarray(table, jnp.bfloat16)
    front = pw.jit(lambda w, x: jax.lax.erf(x @ w), devices=s0, in_shardings=(P(), first))
    back = pw.jit(lambda x: jnp.linalg.cholesky(x @ x.T + 100 * jnp.eye(len(x))), devices=s1)

    @pw.program(donate_argnums=0)
    def step(state, batch, *, scale, key):
        h = front(state.weights["w"], batch["x"]) @ table
        keys = jax.random.split(key, 2)
        noise = jax.random.normal(keys[0], h.shape)
        total = (h.astype(jnp.bfloat16) @ small).sum()
        state = State({"w": state.weights["w"] - 0.1}, state.count + 1)
        return state, {"y": back(h + scale * noise), "keys": keys, "rest": [total, None]}

    return step


def arguments():
    rng = np.random.default_rng(0)
    state = State({"w": rng.normal(size=(32, 64)).astype(np.float32)}, np.int32(3))
    batch = {"x": rng.normal(size=(8, 32)).astype(np.float32), "unread": np.zeros(2, np.int8)}
    return (state, batch), {"scale": 0.5, "key": jax.random.key(1)}


@pytest.fixture(scope="module")
def compiled():
    args, kwargs = arguments()
    return two_stages().lower(*args, **kwargs).compile()


@pytest.fixture(scope="module")
def expected(compiled):
    args, kwargs = arguments()
    return compiled(*args, **kwargs)


@pytest.fixture(scope="module")
def model(compiled, tmp_path_factory):
    path = tmp_path_factory.mktemp("bundles") / "model.pwb"
    compiled.save(path, executables=True)
    return path


@pytest.fixture
def nothing_loaded(monkeypatch):
    """Keeps programs from finding executables of earlier tests."""
    monkeypatch.setattr(compile_cache, "_loaded", type(compile_cache._loaded)())


def rewritten(path, to, *, program=None, artifacts=None, manifest=None):
    """Writes the bundle with other contents, all digests adjusted to them, without executables."""
    old = bundle.read(path)
    new = manifest(old.manifest) if manifest else old.manifest
    text = bytes(old.program).decode()
    found = {name: bytes(raw) for name, raw in old.artifacts().items()}
    bundle.write(
        to,
        new,
        (program(text) if program else text).encode(),
        list((artifacts(found) if artifacts else found).values()),
        [raw.tobytes() for raw in old.constants().values()],
    )
    return to


@pytest.mark.process
@pytest.mark.feature("bundles", "values")
@pytest.mark.parametrize("trust", [False, True])
def test_bundle_gives_the_same_bits(model, expected, trust, nothing_loaded):
    args, kwargs = arguments()
    loaded = pw.load(model, trust=trust)
    assert_same_leaves(loaded(*args, **kwargs), expected)
    stored, compiled = loaded.origins
    assert (stored > 0, compiled > 0) == (trust, not trust)


def test_bundle_has_the_same_plan(model, compiled):
    def plain(plan):
        computations = {n: dataclasses.replace(c, module=b"") for n, c in plan.computations.items()}
        constants = {n: np.asarray(value).tobytes() for n, value in plan.constants.items()}
        return dataclasses.replace(plan, computations=computations, constants=constants)

    loaded = pw.load(model, trust=True)
    assert plain(loaded.plan) == plain(compiled.plan)
    assert loaded.as_text("device") == compiled.as_text("device")
    assert loaded.memory_analysis() == compiled.memory_analysis()
    assert loaded.cost_analysis() == compiled.cost_analysis()


def test_bundle_names_leaves(model):
    loaded = pw.load(model, trust=True)
    assert list(loaded.inputs) == [
        "state.weights.w",
        "state.count",
        "batch.unread",
        "batch.x",
        "key",
        "scale",
    ]
    assert loaded.donated == {"state.weights.w", "state.count"}
    results = ["result.0.weights.w", "result.0.count", "result.1.keys", "result.1.rest.0", "result.1.y"]
    assert list(loaded.outputs) == results


def test_bundle_takes_trees_by_the_names_of_their_leaves(model, expected):
    (state, batch), kwargs = arguments()
    loaded = pw.load(model, trust=True)
    for like in (
        {"count": state.count, "weights": state.weights},
        OrderedDict(weights=state.weights, count=state.count),
    ):
        result = loaded(like, batch, **kwargs)
        assert_same_leaves(result, expected)
    assert isinstance(result[0], OrderedDict)
    assert result[1]["rest"][1] is None
    # Results are arguments of the next call.
    again = loaded(result[0], batch, **kwargs)
    assert int(again[0]["count"]) == 5


@pytest.mark.feature("bundles", "error")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda args, kwargs: (args[:1], kwargs), r"takes 2 positional arguments \(state, batch\), got 1"),
        (lambda args, kwargs: (args, {"key": kwargs["key"]}), "needs an argument scale"),
        (lambda args, kwargs: (args, {**kwargs, "extra": 1}), "does not take an argument extra"),
        (lambda args, kwargs: ((args[0], {**args[1], "z": 1}), kwargs), "does not take an argument batch"),
        (
            lambda args, kwargs: ((args[0], {**args[1], "x": np.zeros((8, 31), np.float32)}), kwargs),
            r"compiled for batch\.x of type float32\[8,32\], got float32\[8,31\]",
        ),
    ],
)
def test_bundle_refuses_other_arguments_by_name(model, change, problem):
    args, kwargs = change(*arguments())
    with pytest.raises(TypeError, match=problem):
        pw.load(model, trust=True)(*args, **kwargs)


def test_bundle_takes_a_strong_type_for_a_weak_one(model, expected):
    args, kwargs = arguments()
    assert_same_leaves(pw.load(model, trust=True)(*args, **{**kwargs, "scale": np.float32(0.5)}), expected)


COMPILE = """
import sys
sys.path.insert(0, sys.argv[1])
import pathways as pw
pw.connect(cpu_devices=8)
import test_bundles
test_bundles.write_run(*sys.argv[2:])
"""


def write_run(path, inputs, outputs):
    """Writes a bundle with its code, and the arrays of a call and of its results by name."""
    args, kwargs = arguments()
    compiled = two_stages().lower(*args, **kwargs).compile()
    compiled.save(path, executables=True)
    loaded = pw.load(path, trust=True)
    leaves = jax.tree.leaves((args, dict(sorted(kwargs.items()))))
    results = jax.tree.leaves(compiled(*args, **kwargs))
    for file, names, arrays in ((inputs, loaded.inputs, leaves), (outputs, loaded.outputs, results)):
        np.savez(file, **{n: bits(jnp.asarray(array)) for n, array in zip(names, arrays, strict=True)})


FRESH = """
import sys
import numpy as np
import pathways as pw
assert "test_bundles" not in sys.modules
pw.connect(cpu_devices=int(sys.argv[3]))
loaded = pw.load(sys.argv[1], trust=sys.argv[4] == "trust")
arrays = dict(np.load(sys.argv[2]))
results = loaded.to_buffers(loaded.by_name(loaded.from_buffers(arrays)))
np.savez(sys.argv[2] + ".out.npz", **results)
trusted = sys.argv[4] == "trust"
assert tuple(map(bool, loaded.origins)) == (trusted, not trusted), loaded.origins
"""


@pytest.mark.feature("bundles", "values")
@pytest.mark.process
@pytest.mark.parametrize("trust", ["trust", "no"])
def test_bundle_runs_in_a_process_without_its_code(trust, tmp_path):
    """With LAPACK calls, which JAX registers when it lowers one, and on other devices than at compilation."""
    # In a process of its own: this one may have settings of other tests, on which code depends.
    paths = [tmp_path / name for name in ("model.pwb", "in.npz", "expected.npz")]
    environment = os.environ | {"PYTHONPATH": str(Path(preloaded.__file__).parent)}
    done = preloaded.run("-c", COMPILE, Path(__file__).parent, *paths, env=environment)
    assert done.returncode == 0, done.stderr
    done = preloaded.run("-c", FRESH, *paths[:2], "2", trust, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "in.npz.out.npz") as found, np.load(paths[2]) as expected:
        assert {*found} == {*expected}
        for name in expected:
            assert found[name].tobytes() == expected[name].tobytes(), done.stderr


def test_bundle_binds_slices_when_it_is_loaded(model, expected):
    args, kwargs = arguments()
    first, second = pw.load(model, trust=True), pw.load(model, trust=True)
    used = [
        {device.id for array in jax.tree.leaves(p(*arguments()[0], **kwargs)) for device in array.devices()}
        for p in (first, second)
    ]
    assert used[0].isdisjoint(used[1])
    assert_same_leaves(second(*args, **kwargs), expected)


@pytest.mark.quick
def test_bundle_shares_slices(model):
    first = pw.load(model, trust=True)
    second = pw.load(model, trust=True, slices=first.slices)
    assert second.slices == first.slices
    (other,) = device_set((2,))
    name = next(iter(first.slices))
    with pytest.raises(
        ValueError, match=rf"slice {name} has axes {{'a0': 1}}, but {other.name} has {{'a0': 2}}"
    ):
        pw.load(model, trust=True, slices={name: other})
    with pytest.raises(ValueError, match="the program has no slice nothing"):
        pw.load(model, trust=True, slices={"nothing": other})


@pytest.mark.process
def test_bundle_runs_on_sharded_slices(tmp_path):
    args, kwargs = arguments()
    compiled = two_stages().lower(*args, **kwargs).compile()
    compiled.save(tmp_path / "model.pwb")
    assert_same_leaves(pw.load(tmp_path / "model.pwb")(*args, **kwargs), compiled(*args, **kwargs))


def test_bundle_of_sharded_slices_prints_nothing(tmp_path, capfd):
    """XLA reads shardings in artifacts as those of a stale export, and warns of each computation."""
    args, kwargs = arguments()
    two_stages((2, 2)).lower(*args, **kwargs).save(tmp_path / "model.pwb")
    pw.load(tmp_path / "model.pwb", trust=True)(*args, **kwargs)
    assert capfd.readouterr().err == ""


@pytest.mark.quick
@pytest.mark.process
@pytest.mark.parametrize("trust", [False, True])
def test_bundle_moves_values_between_meshes(tmp_path, trust):
    """Each device slices and concatenates its own pieces."""
    s0, s1, s2 = device_set((2,), (4,), (2,))
    # The result is returned unsliced, too, so that slicing is not fused into the computation.
    double = pw.jit(lambda x: x * 2, devices=s0, in_shardings=P("a0"), out_shardings=P("a0"))
    add = pw.jit(lambda x: x + 1, devices=s1, in_shardings=P(None, "a0"), out_shardings=P(None, "a0"))
    negate = pw.jit(lambda x: -x, devices=s2, in_shardings=P("a0"))

    def program(x):
        y = double(x)
        return add(y), negate(y)

    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    compiled = pw.program(program).lower(x).compile()
    assert any(c.local for c in compiled.plan.computations.values())
    compiled.save(tmp_path / "model.pwb", executables=True)
    loaded = pw.load(tmp_path / "model.pwb", trust=trust)
    assert [c.local for c in loaded.plan.computations.values()] == [
        c.local for c in compiled.plan.computations.values()
    ]
    assert_equal(loaded(x)[0], x * 2 + 1)


@pytest.mark.process
def test_bundle_runs_a_pipeline(tmp_path):
    s0, s1 = device_set((1,), (1,))
    front = pw.jit(layer, devices=s0)
    back = pw.jit(lambda w, x: x @ w, devices=s1)

    @pw.program(schedule="1f1b", donate_argnums=0)
    def step(weights, batch):
        def loss(weights, batch):
            return (back(weights[1], front(weights[0], batch)) ** 2).mean()

        value, gradients = pw.accumulate(jax.value_and_grad(loss), 4)(weights, batch)
        return sgd(weights, gradients), value

    weights = [np.eye(8, dtype=np.float32)] * 2
    batch = np.linspace(0, 1, 128, dtype=np.float32).reshape(16, 8)
    compiled = step.lower(weights, batch).compile()
    compiled.save(tmp_path / "model.pwb")
    loaded = pw.load(tmp_path / "model.pwb")
    ours = theirs = (weights, None)
    for _ in range(3):
        ours, theirs = loaded(ours[0], batch), compiled(theirs[0], batch)
    assert_same_leaves(ours, theirs)


def test_bundle_runs_the_transformer(tmp_path):
    import transformer_sharded as example

    params = example.init_params(np.random.default_rng(0), "float32")
    tokens = np.random.default_rng(1).integers(example.VOCABULARY, size=(example.BATCH, example.LENGTH + 1))
    batch = tokens[:, :-1].astype(np.int32), tokens[:, 1:].astype(np.int32)
    devices = pw.make_virtual_device_set()
    s0, s1 = (devices.add_slice((2, 2), example.AXES) for _ in range(2))
    front = pw.jit(example.front, devices=s0, in_shardings=(example.FRONT_SPECS, P("data")))
    back = pw.jit(example.back, devices=s1, in_shardings=(example.BACK_SPECS, P("data")))
    optimizer = optax.adamw(1e-3)
    state = params, jax.device_get(optimizer.init(params))
    step = pw.program(example.make_step(front, back, optimizer), donate_argnums=0)
    compiled = step.lower(state, batch).compile()
    compiled.save(tmp_path / "model.pwb", executables=True)
    loaded = pw.load(tmp_path / "model.pwb", trust=True)
    ours = theirs = state, None
    for _ in range(2):
        ours, theirs = loaded(ours[0], batch), compiled(theirs[0], batch)
    assert_same_leaves(ours, theirs)


SAVE = """
import sys
sys.path.insert(0, sys.argv[1])
import pathways as pw
pw.connect(cpu_devices=8)
import test_bundles
args, kwargs = test_bundles.arguments()
test_bundles.two_stages((2, 2)).lower(*args, **kwargs).save(sys.argv[2])
"""


@pytest.mark.process
def test_bundle_has_the_same_bytes_wherever_its_code_is(tmp_path):
    """The order of Python's sets is for test_hash_seeds.py."""
    paths = []
    for lines in (1, 2):
        folder = tmp_path / str(lines)
        folder.mkdir()
        (folder / "test_bundles.py").write_text("\n" * lines + Path(__file__).read_text())
        paths.append(tmp_path / f"{lines}.pwb")
        environment = os.environ | {"PYTHONPATH": str(Path(preloaded.__file__).parent)}
        done = preloaded.run("-c", SAVE, folder, paths[-1], env=environment)
        assert done.returncode == 0, done.stderr
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert str(tmp_path).encode() not in first
    assert b"test_bundles" not in first


@pytest.fixture
def cache_of_jax(tmp_path):
    """Enables JAX's persistent compilation cache."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    compilation_cache.reset_cache()


@pytest.mark.parametrize("cache", ["store", "jax", "none"])
def test_bundle_has_executables_from_caches(compiled, tmp_path, monkeypatch, request, cache):
    """A deserialised executable would lose its code when it is serialised again."""
    args, kwargs = arguments()
    monkeypatch.setenv("PW_CACHE_DIR", str(tmp_path / "store") if cache == "store" else "")
    if cache == "jax":
        request.getfixturevalue("cache_of_jax")
    loaded = []
    for path in (tmp_path / "first.pwb", tmp_path / "second.pwb"):
        # Another process shares only the caches.
        monkeypatch.setattr(compile_cache, "_loaded", type(compile_cache._loaded)())
        compiled._lowered.compile().save(path, executables=True)
        monkeypatch.setattr(compile_cache, "_loaded", type(compile_cache._loaded)())
        loaded.append(pw.load(path, trust=True))
        assert loaded[-1].origins[1] == 0
    assert_same_leaves(*(program(*args, **kwargs) for program in loaded))


# Programs that cannot be bundled.


def test_bundle_refuses_callbacks_by_name(tmp_path):
    (s0,) = device_set((1,))

    def shout(x):
        jax.debug.print("{}", x)
        return x

    lowered = pw.program(pw.jit(shout, devices=s0)).lower(np.float32(1))
    with pytest.raises(
        BundleError,
        match=r"'shout': computation 'shout' calls back into Python: "
        rf"jax\.debug\.print at {__file__}:\d+ in shout; a file has no functions",
    ):
        lowered.save(tmp_path / "model.pwb")
    assert list(tmp_path.iterdir()) == []


def test_bundle_refuses_keys_without_a_name(tmp_path):
    (s0,) = device_set((1,))
    lowered = pw.program(pw.jit(lambda x: x[(1, 2)], devices=s0)).lower({(1, 2): np.float32(1)})
    with pytest.raises(BundleError, match=r"has the key \(1, 2\)"):
        lowered.save(tmp_path / "model.pwb")


def test_bundle_needs_a_folder(compiled, tmp_path):
    with pytest.raises(FileNotFoundError):
        compiled.save(tmp_path / "nowhere" / "model.pwb")


# Bundles that are refused when they are loaded.


def test_bundle_refuses_other_platforms(model, tmp_path):
    other = rewritten(
        model, tmp_path / "m.pwb", manifest=lambda m: msgspec.structs.replace(m, platform="tpu")
    )
    with pytest.raises(BundleError, match="compiled for platform tpu, but the cluster has cpu devices"):
        pw.load(other)


@pytest.mark.process
def test_bundle_needs_its_devices(model, tmp_path):
    big = rewritten(
        model,
        tmp_path / "m.pwb",
        manifest=lambda m: msgspec.structs.replace(
            m, slices=tuple(msgspec.structs.replace(s, shape=(64,)) for s in m.slices)
        ),
        program=lambda text: text.replace('<["a0"=1]>', '<["a0"=64]>'),
    )
    with pytest.raises(ResourceError, match="not enough devices: it needs 128"):
        pw.load(big)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("arguments", lambda leaf: msgspec.structs.replace(leaf, dtype="int32")),
        ("arguments", lambda leaf: msgspec.structs.replace(leaf, shape=(32, 65))),
        ("arguments", lambda leaf: msgspec.structs.replace(leaf, donated=False)),
        ("arguments", lambda leaf: msgspec.structs.replace(leaf, slices=())),
        ("results", lambda leaf: msgspec.structs.replace(leaf, shape=(65, 64))),
        ("slices", lambda entry: msgspec.structs.replace(entry, shape=(2,))),
        ("slices", lambda entry: msgspec.structs.replace(entry, overlap=True)),
        ("slices", lambda entry: msgspec.structs.replace(entry, island="i")),
        ("constants", lambda entry: msgspec.structs.replace(entry, dtype="int32")),
        ("computations", lambda entry: msgspec.structs.replace(entry, name="other")),
    ],
)
def test_bundle_refuses_a_manifest_of_another_program(model, tmp_path, what, change):
    def changed(manifest):
        first, *rest = getattr(manifest, what)
        return msgspec.structs.replace(manifest, **{what: (change(first), *rest)})

    with pytest.raises(BundleError, match=f"the {what} in the manifest are not those of the program"):
        pw.load(rewritten(model, tmp_path / "m.pwb", manifest=changed), trust=True)


@pytest.mark.process
def test_bundle_reads_attributes_of_earlier_releases(model, expected, tmp_path):
    def earlier(text):
        return re.sub(r"(\"pw.launch\".*?), slice = (@\w+)", r"\1, slice = \2, soon", text)

    args, kwargs = arguments()
    loaded = pw.load(rewritten(model, tmp_path / "earlier.pwb", program=earlier))
    assert ", soon}" in loaded.as_text()
    assert_same_leaves(loaded(*args, **kwargs), expected)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: text[:-3], r"program\.mlir, line \d+: "),
        (lambda text: "module {}", "not in the form scheduled"),
        (lambda text: text.replace('"scheduled"', '"placed"'), "not in the form scheduled"),
        (lambda text: text.replace("@main", "@other"), r"no function @main|has a body"),
        (lambda text: text.replace("order = 0", "order = 1"), "has order 1"),
        (lambda text: text.replace('"pw.release"', '"pw.unknown"', 1), "not a step of a program"),
        (lambda text: "\xff" + text, r"program\.mlir"),
    ],
)
def test_bundle_refuses_other_programs(model, tmp_path, change, problem):
    with pytest.raises(BundleError, match=problem) as error:
        pw.load(rewritten(model, tmp_path / "m.pwb", program=change), trust=True)
    assert "\n" not in str(error.value)


@pytest.mark.process
def test_bundle_that_crashes_mlir_is_refused(model, tmp_path):
    crashing = rewritten(model, tmp_path / "m.pwb", program=lambda text: "module { " * 100_000)
    with pytest.raises(BundleError, match=r"MLIR or XLA crashed|program\.mlir") as error:
        pw.load(crashing)
    assert "\n" not in str(error.value)


def artifact(text):
    """Serializes with StableHLO's serializer, which also writes what no compiler of JAX produces."""
    return stablehlo.serialize_portable_artifact(
        ir.Module.parse(text, make_context()), stablehlo.get_current_version()
    )


IDENTITY = "func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"
CALL = """
func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
  %y = stablehlo.custom_call @{}(%x) : (tensor<2xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}}
"""


def marked(sharding):
    """Returns a computation whose only value has this sharding."""
    attributes = f'(%x) {{mhlo.frontend_attributes = {{xla.sdy.sharding = "{sharding}"}}}}'
    return CALL.format("xla.sdy.FuncResultSharding").replace("(%x) :", f"{attributes} :")


UNKNOWN_COMPARATOR = CALL.format("ApproxTopK").replace("(%x) :", "(%x) {called_computations = [@other]} :")
RECURSION = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = func.call @f(%x) : (tensor<2xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}
func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = stablehlo.composite "a.b" %x {decomposition = @g} : (tensor<2xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}
func.func private @g(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = func.call @f(%x) : (tensor<2xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Returns a bundle of one computation, from two floats to two floats."""
    (s0,) = device_set((1,))
    path = tmp_path_factory.mktemp("tiny") / "model.pwb"
    pw.program(pw.jit(lambda x: x + 1, devices=s0)).lower(np.zeros(2, np.float32)).save(path)
    return path


def with_artifact(path, to, raw):
    return rewritten(path, to, artifacts=lambda found: dict.fromkeys(found, raw))


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (artifact("module {}")[:-9], "not an artifact that this release can read"),
        (artifact("module {}"), "no function @main"),
        (artifact(IDENTITY.replace("2xf32", "3xf32")), "differs from what the program declares"),
        (artifact(IDENTITY.replace("tensor<2xf32>", "i32")), "differs from what the program declares"),
        (
            artifact(CALL.format("Sharding").replace("(%x) :", "(%x) {mhlo.frontend_attributes = 3} :")),
            "the custom calls in the manifest are not those of the program",
        ),
        (artifact(IDENTITY.replace("<2xf32>)", "<2xf32> {jax.buffer_donor = true})")), "donates other"),
        (artifact(RECURSION), "has a function that calls itself"),
        (artifact(CALL.format("xla_ffi_python_cpu_callback")), "calls 'xla_ffi_python_cpu_callback'"),
        (artifact(CALL.format("tpu_custom_call")), r"calls 'tpu_custom_call' \(a kernel of Pallas"),
        (artifact(CALL.format("dce_sink")), "calls 'dce_sink', which an untrusted bundle may not"),
        (
            artifact(
                CALL.format("LayoutConstraint")
                .replace("(%x) :", "(%x, %x) :")
                .replace(": (", ": (tensor<2xf32>, ")
            ),
            "'LayoutConstraint' on anything but",
        ),
        (
            artifact(CALL.format("Sharding").replace("(%x) : (tensor<2xf32>)", "() : ()")),
            "'Sharding' on anything but",
        ),
        (artifact(marked("#sdy.sharding_per_value<[<@mesh")), "has an invalid sharding: '#sdy.sharding"),
        (artifact(IDENTITY + "func.func private @g(tensor<f32>)"), "has a function without a body: @g"),
        (artifact(UNKNOWN_COMPARATOR), "has a custom call of an unknown function: @other"),
        (artifact(f"module @named {{ {IDENTITY} }}").replace(b"named", b"n\xe9med"), "not UTF-8"),
    ],
)
def test_bundle_refuses_foreign_computations(tiny, tmp_path, raw, problem):
    # The process of `rehearse_apart` does the same.
    with pytest.raises(BundleError, match=problem):
        examine.examine(bundle.read(with_artifact(tiny, tmp_path / "m.pwb", raw)))


@pytest.mark.process
def test_bundle_is_examined_before_it_is_loaded(tiny, tmp_path):
    assert pw.load(with_artifact(tiny, tmp_path / "fine.pwb", artifact(IDENTITY))).origins == (0, 1)
    evil = with_artifact(tiny, tmp_path / "evil.pwb", artifact(CALL.format("evil")))
    with pytest.raises(BundleError, match=r"calls 'evil', which is not a call of JAX .* if you trust"):
        pw.load(evil)


MESH = r"""mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22x\22=2]>}"}"""
WRONG_SHARDING = (
    r"""<2xf32> {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding<@mesh, [{}, {\22x\22}]>"}})"""
)
SHARDED_TOO_OFTEN = f"module attributes {{{MESH}}} {{ {IDENTITY.replace('<2xf32>)', WRONG_SHARDING)} }}"
TOO_LARGE = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %large = stablehlo.iota dim = 0 : tensor<4611686018427387904xf32>
  %y = stablehlo.slice %large [0:2] : (tensor<4611686018427387904xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}
"""


@pytest.mark.quick
@pytest.mark.process
def test_bundle_refuses_computations_that_xla_refuses(tiny, tmp_path):
    """MLIR accepts this computation."""
    changed = with_artifact(tiny, tmp_path / "m.pwb", artifact(TOO_LARGE))
    examine.examine(bundle.read(changed))
    with pytest.raises(BundleError, match="overflow in static extent"):
        pw.load(changed)


@pytest.mark.process
def test_bundle_refuses_shardings_of_other_values(tiny, tmp_path):
    changed = with_artifact(tiny, tmp_path / "m.pwb", artifact(SHARDED_TOO_OFTEN))
    with pytest.raises(BundleError, match="sharding doesn't match tensor rank: 2 != 1"):
        examine.examine(bundle.read(changed))


@pytest.mark.process
def test_bundle_imports_no_file_beside_it(tiny, tmp_path, monkeypatch):
    for name in ("json.py", "pathways.py", "numpy.py"):
        (tmp_path / name).write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    # In a process that is new.
    monkeypatch.setattr(child_process, "subprocess", subprocess)
    rehearse.rehearse_apart(bundle.read(tiny), 1)


@pytest.mark.process
def test_bundle_ignores_executables_without_trust(model, tmp_path):
    """The executables are replaced by garbage, with matching digests."""
    old = bundle.read(model)
    garbage = [
        (msgspec.structs.replace(code, digest=bundle.sha256(b"x")), b"x") for code, _ in old.executables
    ]
    path = tmp_path / "m.pwb"
    bundle.write(
        path,
        old.manifest,
        bytes(old.program),
        [bytes(raw) for raw in old.artifacts().values()],
        [raw.tobytes() for raw in old.constants().values()],
        garbage,
    )
    assert pw.load(path).origins[0] == 0
    foreign = [msgspec.structs.replace(code, target="0" * 64) for code, _ in old.executables]
    bundle.write(
        path,
        old.manifest,
        bytes(old.program),
        [bytes(raw) for raw in old.artifacts().values()],
        [raw.tobytes() for raw in old.constants().values()],
        [(code, bytes(raw)) for code, (_, raw) in zip(foreign, old.executables, strict=True)],
    )
    assert pw.load(path, trust=True).origins[0] == 0


def test_bundle_is_documented(model):
    with zipfile.ZipFile(model) as file:
        manifest = json.loads(file.read("manifest.json"))
    assert (manifest["format"], manifest["version"]) == ("pathways-bundle", 1)
    page = (ROOT / "docs" / "bundle.md").read_text()
    for entry in manifest:
        assert f"`{entry}`" in page
