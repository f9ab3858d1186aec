"""Small JAX programs that know of no server; each returns a tree of arrays of NumPy.

As a script, runs them on whatever backend JAX has and pickles their results or errors:
`python proxy_programs.py RESULTS`.
"""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
from jax.experimental import sparse
from jax.experimental.colocated_python import colocated_cpu_devices, colocated_python_class
from jax.experimental.colocated_python import colocated_python as colocated_python_function
from jax.experimental.layout import Format, Layout, with_layout_constraint
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from jaxlib import _pathways

if TYPE_CHECKING:
    # Environments of older releases of JAX have no Pathways.
    from pathways.proxy import ProxyServer

Program = Callable[[], Any]

PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Adds a program to the list."""
    PROGRAMS[function.__name__] = function
    return function


def mesh(**axes: int) -> jax.sharding.Mesh:
    """Returns a mesh of the first devices whose axes XLA chooses shardings for."""
    types = (jax.sharding.AxisType.Auto,) * len(axes)
    count = int(np.prod(list(axes.values())))
    return jax.make_mesh(tuple(axes.values()), tuple(axes), types, devices=jax.devices()[:count])


def values(*shape: int) -> np.ndarray:
    """Returns values that are all different."""
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


@program
def one_operation() -> Any:
    return jax.jit(lambda x: x + 1)(1.0)


@program
def dtypes_go_there_and_back() -> Any:
    kinds = [bool, np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.float16, np.float32]
    small = [ml_dtypes.int2, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn]
    eighth = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu]
    more = [np.complex64, ml_dtypes.bfloat16]
    return [jax.device_put(np.arange(2).astype(kind)) for kind in [*kinds, *more, *small, *eighth]]


@program
def dtypes_are_computed_with() -> Any:
    kinds = [jnp.int4, jnp.bfloat16, jnp.float8_e4m3fn, jnp.int16, jnp.bool_, jnp.complex64]
    return [jax.jit(lambda x: x * x)(jnp.arange(3).astype(kind)) for kind in kinds]


@program
def values_of_64_bits() -> Any:
    with jax.enable_x64(True):
        x = jax.device_put(np.array([2**40 + 1, 3]))
        return x, jax.jit(lambda x: x * 2)(x), jnp.float64(1) / 3, jnp.complex128(1j) / 3


@program
def strings() -> Any:
    text = np.array([["a", "bcd"], ["", "é" * 40]], dtype=np.dtypes.StringDType())
    return np.asarray(jax.device_put(text, SingleDeviceSharding(jax.devices()[0]))).tolist()


@program
def arrays_without_elements() -> Any:
    return jax.jit(lambda x: (x + 1, x.sum()))(jnp.zeros((0, 3))), jax.device_put(np.zeros((2, 0)))


@program
def strides_of_the_host() -> Any:
    x = values(6, 8)
    return [jax.device_put(view) for view in (x.T, x[::2], x[:, ::3], x[1:2, :, None], np.asfortranarray(x))]


@program
def keys_and_random_numbers() -> Any:
    keys = jax.random.split(jax.random.key(3), 4)
    return jax.random.key_data(keys), jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys)


@program
def a_large_array() -> Any:
    x = jax.device_put(np.arange(3 << 20, dtype=np.float32))
    return x * 2


@program
def operations_one_by_one() -> Any:
    x = jnp.asarray(values(8, 8))
    y = jnp.sin(x) @ jnp.cos(x).T
    return y, y[2:5, ::2], jnp.where(y > 0, y, 0).sum(axis=0), jnp.argsort(y[0]), y.at[3].set(7.0)


@program
def linear_algebra() -> Any:
    x = jnp.asarray(values(5, 5))
    positive = x @ x.T + 5 * jnp.eye(5)
    solved = jnp.linalg.solve(x, jnp.ones(5))
    return jnp.linalg.cholesky(positive), jnp.linalg.qr(x)[1], solved, jnp.linalg.eigh(positive)[0]


@program
def control_flow() -> Any:
    def loop(x: jax.Array) -> Any:
        counted, sums = jax.lax.scan(lambda carry, y: (carry + y, carry * y), 0.0, x)
        ended = jax.lax.while_loop(lambda n: n < 100, lambda n: n * 3, 1)
        return counted, sums, ended, jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)

    return jax.jit(loop)(jnp.asarray(values(9)))


@program
def shardings_of_device_put() -> Any:
    across = mesh(x=4, y=2)
    x = values(8, 8)
    specs = [P("x", "y"), P("y", "x"), P(("x", "y")), P(None, "y"), P("x"), P()]
    put = [jax.device_put(x, NamedSharding(across, spec)) for spec in specs]
    assert put[0].addressable_shards[3].data.shape == (2, 4)
    return put, [[shard.data for shard in array.addressable_shards] for array in put]


@program
def a_sharded_product() -> Any:
    across = mesh(x=4, y=2)
    x = jax.device_put(values(8, 8), NamedSharding(across, P("x", "y")))
    y = jax.device_put(values(8, 4), NamedSharding(across, P("y", None)))
    out = NamedSharding(across, P(None, "x"))
    return jax.jit(lambda x, y: (x @ y, x.sum(), x.T), out_shardings=(None, None, out))(x, y)


@program
def shard_map_and_collectives() -> Any:
    across = mesh(x=8)

    @functools.partial(jax.shard_map, mesh=across, in_specs=P("x"), out_specs=(P("x"), P()))
    def body(x: jax.Array) -> Any:
        ring = [(i, (i + 1) % 8) for i in range(8)]
        return jax.lax.ppermute(x, "x", ring), jax.lax.psum(x * jax.lax.axis_index("x"), "x")

    return jax.jit(body)(values(16, 2))


@program
def pmap() -> Any:
    return jax.pmap(lambda x: x / jax.lax.psum(x, "i"), axis_name="i")(values(8, 3))


@program
def explicit_axes() -> Any:
    across = jax.make_mesh((2, 4), ("x", "y"), (jax.sharding.AxisType.Explicit,) * 2)
    with jax.set_mesh(across):
        x = jax.device_put(values(4, 8), P("x", "y"))
        y = jnp.sin(x) * 2
        assert str(jax.typeof(y)) == "float32[4@x,8@y]"
        return y, jax.sharding.reshard(y, P("y", None))


@program
def arrays_move_between_devices() -> Any:
    across, half = mesh(x=8), mesh(x=2)
    x = jax.device_put(values(8, 4), NamedSharding(across, P("x")))
    moved = [
        jax.device_put(x, jax.devices()[5]),
        jax.device_put(x, NamedSharding(half, P(None, "x"))),
        jax.device_put(x, NamedSharding(across, P())),
        jax.device_put(jax.device_put(values(3), jax.devices()[1]), jax.devices()[2]),
    ]
    return moved, [sorted(device.id for device in array.devices()) for array in moved]


@program
def arrays_are_split_and_joined_along_axes_of_a_mesh() -> Any:
    """Calls the functions of jaxlib that `pathwaysutils` needs the client of a server for."""
    if jax.devices()[0].client.runtime_type != "proxy/pathways":
        halves = [values(8, 4)[:4], values(8, 4)[4:]]
        return halves, values(8, 4), values(8, 4), [half + 1 for half in halves]
    across = NamedSharding(mesh(slice=2, x=4), P(("slice", "x")))
    of_slices = [
        NamedSharding(jax.sharding.Mesh(across.mesh.devices[i : i + 1], ("slice", "x")), across.spec)
        for i in range(2)
    ]
    x = jax.device_put(values(8, 4), across)
    of_axis = {"sharded_dim_idxs": [0], "mesh_axis_idx": 0, "mesh_axis_sections": [1, 2]}
    halves = _pathways._split_by_mesh_axis(
        arrays=[x], mesh_axis_sizes=(2, 4), submesh_shardings=[of_slices], donate=False, **of_axis
    )
    on_host = to_host(jax.tree.leaves(halves))
    # The shards of the result are those of the donated array.
    joined = _pathways._concatenate_by_mesh_axis(
        arrays=halves, mesh_axis_sizes=(2, 4), out_shardings=[across], donate=True, **of_axis
    )
    moved = _pathways._transfer_to_shardings([x], [NamedSharding(mesh(x=2), P("x"))], False)
    turned = jax.device_put(values(8, 4), Format(Layout((1, 0)), across))
    halves = _pathways._split_by_mesh_axis(
        arrays=[turned], mesh_axis_sizes=(2, 4), submesh_shardings=[of_slices], donate=False, **of_axis
    )
    return on_host, joined[0], moved[0], [jax.jit(lambda x: x + 1)(half) for half in halves[0]]


@program
def memories_of_the_host() -> Any:
    device = jax.devices()[0]
    pinned = jax.device_put(values(4), SingleDeviceSharding(device, memory_kind="pinned_host"))
    back = jax.device_put(pinned, SingleDeviceSharding(device, memory_kind="device"))
    kinds = [memory.kind for memory in device.addressable_memories()]
    return pinned, back + 1, pinned.sharding.memory_kind, kinds


@program
def results_in_the_memory_of_the_host() -> Any:
    pinned = NamedSharding(mesh(x=4), P("x"), memory_kind="pinned_host")
    result = jax.jit(lambda x: x * 2, out_shardings=pinned)(values(8))
    return result, result.sharding.memory_kind


@program
def arrays_of_single_shards() -> Any:
    across = NamedSharding(mesh(x=4), P("x"))
    shards = [jax.device_put(np.full((1, 2), i, np.float32), jax.devices()[i]) for i in range(4)]
    x = jax.make_array_from_single_device_arrays((4, 2), across, shards)
    by_callback = jax.make_array_from_callback((4, 2), across, lambda index: values(4, 2)[index])
    return x, jax.jit(lambda x: x * 2)(x), by_callback


@program
def what_is_donated_is_deleted() -> Any:
    step = jax.jit(lambda x, y: (x + y, y.sum()), donate_argnums=(0, 1))
    x, y = jnp.ones((4, 4)), jnp.ones((4, 4))
    with warnings.catch_warnings():
        # XLA can use one of them only, and the other one stays alive.
        warnings.simplefilter("ignore")
        result = step(x, y)
    across = NamedSharding(mesh(x=8), P("x"))
    z = jax.device_put(values(8, 2), across)
    kept = jax.device_put(values(8, 2), across)
    sharded = jax.jit(lambda z, kept: z * kept, donate_argnums=0)(z, kept)
    return result, sharded, [array.is_deleted() for array in (x, y, z, kept)]


@program
def a_donated_array_cannot_be_read() -> Any:
    x = jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    try:
        return np.asarray(x)
    except RuntimeError as error:
        return "deleted" in str(error)


@program
def deleted_arrays() -> Any:
    x = jnp.ones(3)
    y = x + 1
    x.delete()
    return y, x.is_deleted(), y.is_deleted()


@program
def gradients() -> Any:
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        hidden = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))(weights[0], x)
        return jnp.mean((hidden @ weights[1]) ** 2)

    weights = [jnp.asarray(values(4, 6)), jnp.asarray(values(6, 2))]
    return jax.jit(jax.value_and_grad(loss))(weights, values(3, 4)), jax.hessian(jnp.sum)(weights[1])


@program
def training_on_a_mesh() -> Any:
    across = mesh(data=2, model=4)
    shardings = [NamedSharding(across, P(None, "model")), NamedSharding(across, P("model", None))]
    weights = jax.device_put([values(8, 16), values(16, 8)], shardings)
    optimizer = optax.adamw(1e-2)

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        return jnp.mean((jax.nn.gelu(x @ weights[0]) @ weights[1] - x) ** 2)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(weights: Any, state: Any, x: jax.Array) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, x)
        updates, state = optimizer.update(slopes, state, weights)
        return optax.apply_updates(weights, updates), state, value

    state = jax.jit(optimizer.init)(weights)
    x = jax.device_put(values(4, 8), NamedSharding(across, P("data")))
    losses = []
    for _ in range(5):
        weights, state, value = step(weights, state, x)
        losses.append(value)
    return losses, weights, state


@program
def ahead_of_time() -> Any:
    compiled = jax.jit(lambda x: jnp.tanh(x) @ x).lower(jax.ShapeDtypeStruct((4, 4), jnp.float32)).compile()
    assert "tanh" in compiled.as_text()
    assert compiled.memory_analysis().argument_size_in_bytes == 64
    assert compiled.cost_analysis()["flops"] > 0
    return compiled(values(4, 4))


@program
def exported() -> Any:
    written = jax.export.export(jax.jit(lambda x: jnp.sin(x) + 1))(jax.ShapeDtypeStruct((3,), jnp.float32))
    return jax.export.deserialize(written.serialize()).call(values(3))


@program
def layouts() -> Any:
    x = jnp.asarray(values(4, 6))
    turned = jax.jit(lambda x: x * 2, out_shardings=Format(Layout((1, 0)), x.sharding))(x)
    return turned, turned.format.layout.major_to_minor, jax.jit(lambda x: x + 1)(turned)


@program
def layouts_of_arrays_that_are_put_and_moved() -> Any:
    on_rows = NamedSharding(mesh(x=4), P("x"))
    x = jax.device_put(values(8, 4), Format(Layout((1, 0)), on_rows))
    moved = [
        x,
        jax.device_put(x, Format(Layout((0, 1)), on_rows)),
        jax.device_put(x, NamedSharding(mesh(x=4), P(None, "x"))),
        jax.device_put(x, NamedSharding(jax.sharding.Mesh(jax.devices()[4:6], "x"), P("x"))),
        jax.device_put(values(8, 4), Format(Layout((1, 0), ((2, 2),)), on_rows)),
        jax.make_array_from_single_device_arrays(x.shape, on_rows, [s.data for s in x.addressable_shards]),
        x.addressable_shards[1].data,
    ]
    donated = jax.device_put(values(8, 4), Format(Layout((1, 0)), on_rows))
    same = jax.jit(lambda x: -x, donate_argnums=0, out_shardings=Format(Layout((1, 0)), on_rows))(donated)
    # A program trusts the layouts that its arguments claim.
    return [jax.jit(lambda x: x + 1)(array) for array in moved], same, same.format.layout.major_to_minor


@program
def layouts_inside_of_a_program() -> Any:
    turned = jax.jit(lambda x: with_layout_constraint(x * 2, Layout((1, 0))) + 1)
    split = jax.device_put(values(8, 4), NamedSharding(mesh(x=4), P("x")))
    return turned(values(4, 6)), turned(split), jax.vmap(turned)(values(2, 3, 4))


@program
def products_of_sparse_matrices() -> Any:
    dense = jnp.asarray(values(5, 4)).at[::2].set(0)
    products = []
    for kind in (sparse.BCOO, sparse.BCSR, sparse.COO, sparse.CSR):
        # Room for more elements, whose indices are out of bounds.
        matrix = kind.fromdense(dense, nse=12)
        products += [matrix @ values(4), matrix @ values(4, 3)]
    return products


@program
def exported_without_shardy() -> Any:
    on_rows = NamedSharding(mesh(x=4), P("x"))
    typed = jax.ShapeDtypeStruct((8, 2), jnp.float32, sharding=on_rows)
    double = jax.jit(lambda x: jax.lax.with_sharding_constraint(x + x, on_rows))
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        written = jax.export.export(double)(typed).serialize()
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    call = jax.export.deserialize(written).call
    x = jax.device_put(values(8, 2), on_rows)

    def summed(x: jax.Array) -> jax.Array:
        return jax.shard_map(
            lambda x: jax.lax.psum(x, "x"), mesh=on_rows.mesh, in_specs=P("x"), out_specs=P()
        )(x)

    return jax.jit(call, out_shardings=on_rows)(x), jax.jit(lambda x: summed(call(x)))(x)


@program
def options_of_the_compiler() -> Any:
    fast = jax.jit(lambda x: x / 3, compiler_options={"xla_cpu_enable_fast_math": True})
    return fast(values(4)).shape


@program
def many_results_at_once() -> Any:
    return jax.jit(lambda x: [x + i for i in range(100)])(jnp.arange(4))


@program
def tokens_between_programs() -> Any:
    token, x = jax.jit(lambda x: (jax.lax.create_token(x), x + 1))(values(3))
    ordered, y = jax.jit(lambda token, x: (jax.lax.after_all(token), x * 2))(token, x)
    return ordered.block_until_ready(), y


@program
def colocated_python() -> Any:
    devices = jax.devices()[:4]
    on_rows = NamedSharding(jax.sharding.Mesh(colocated_cpu_devices(devices), "x"), P("x"))
    x = jax.device_put(values(8, 2), on_rows)

    @colocated_python_function
    def scaled(x: jax.Array) -> jax.Array:
        # Any Python, such as input that reads files.
        shards = [np.asarray(shard.data) * len(str(Path.cwd())) for shard in x.addressable_shards]
        moved = [
            jax.device_put(shard, device)
            for shard, device in zip(shards, x.sharding.mesh.devices, strict=True)
        ]
        return jax.make_array_from_single_device_arrays(x.shape, x.sharding, moved)

    @colocated_python_class
    class Counter:
        def __init__(self, start: int) -> None:
            self.count = start

        def add(self, x: jax.Array) -> jax.Array:
            self.count += 1
            return x + self.count

    counter = Counter(5)
    return scaled(x), counter.add(x), counter.add(x), jax.jit(jnp.sum)(scaled(x))


@program
def callbacks_are_refused() -> Any:
    if jax.devices()[0].client.runtime_type != "proxy/pathways":
        return True
    try:
        jax.jit(lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), np.float32), x))(values(3))
    except Exception as error:
        return "callback" in str(error)
    return False


def to_host(tree: Any) -> Any:
    """Returns a tree with arrays of NumPy in place of those of JAX."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, tree)


def run_all(programs: dict[str, Program]) -> dict[str, Any]:
    """Returns the result of each program, with arrays of NumPy, or an error."""
    results = {}
    for name, function in programs.items():
        try:
            results[name] = to_host(function())
        except Exception as error:
            results[name] = AssertionError(f"{type(error).__name__}: {error}")
    return results


def run_proxied(server: ProxyServer, script: str, folder: Path) -> dict[str, Any]:
    """Returns the results of a script like this one, from a process that uses a server."""
    command = [sys.executable, script, str(folder / "results")]
    environment = os.environ | server.environment | {"EQX_ON_ERROR": "nan"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return pickle.loads((folder / "results").read_bytes())


def assert_equal(got: Any, function: Program, tolerance: float = 0.0) -> None:
    """Checks that a program returned the same elsewhere, bit by bit, or within a relative tolerance."""
    if isinstance(got, Exception):
        raise got
    want = to_host(function())
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if isinstance(other, np.ndarray):
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            if tolerance and one.tobytes() != other.tobytes():
                np.testing.assert_allclose(one, other, tolerance, tolerance)
            else:
                assert one.tobytes() == other.tobytes()
        else:
            assert one == other


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(pickle.dumps(run_all(PROGRAMS)))
