"""Larger JAX programs that know of no server: dtypes, libraries of models, checkpoints, training.

As a script, runs them on whatever backend JAX has: `python proxy_models.py RESULTS`.
"""

from __future__ import annotations

import functools
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from proxy_programs import Program, mesh, run_all, values

MODELS: dict[str, Program] = {}


def model(function: Program) -> Program:
    """Adds a program to the list."""
    MODELS[function.__name__] = function
    return function


_SMALL = ("int2", "uint2", "int4", "uint4", "float4_e2m1fn")
_EIGHTH = ("e3m4", "e4m3", "e4m3fn", "e4m3b11fnuz", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
_DTYPES = [
    *(np.dtype(name) for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")),
    *(np.dtype(name) for name in ("uint64", "float16", "float32", "float64", "complex64", "complex128")),
    *(np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", *_SMALL)),
    *(np.dtype(getattr(ml_dtypes, f"float8_{name}")) for name in _EIGHTH),
]


@model
def every_dtype() -> Any:
    """Puts, computes with, shards and converts zero to three elements."""
    across = NamedSharding(mesh(x=4), P("x"))
    results = []
    with jax.enable_x64(True):
        for dtype in _DTYPES:
            x = np.array([1, 0, 1, 1]).astype(dtype)
            put = jax.device_put(x)
            reverse = jax.jit(lambda x: (x[::-1], x[:0], jnp.where(x == x[0], x, x[1])))
            sharded = jax.device_put(x, across)
            gathered = jax.jit(lambda x: x, out_shardings=NamedSharding(across.mesh, P()))(sharded)
            results.append([put, reverse(put), sharded, gathered, put.real.astype(jnp.float32), put[:0]])
    return results


@model
def every_kind_of_key() -> Any:
    results = []
    for kind in ("threefry2x32", "rbg", "unsafe_rbg"):
        keys = jax.random.split(jax.random.key(7, impl=kind), 8)
        sharded = jax.device_put(keys, NamedSharding(mesh(x=8), P("x")))
        draw = jax.jit(jax.vmap(lambda key: jax.random.uniform(key, (2,))))
        results.append([jax.random.key_data(sharded), draw(keys), draw(sharded)])
    return results


@model
def numbers_from_every_distribution() -> Any:
    key = jax.random.key(1)
    names = (
        "normal",
        "uniform",
        "bits",
        "gumbel",
        "exponential",
        "laplace",
        "cauchy",
        "rademacher",
        "logistic",
    )
    drawn = {name: getattr(jax.random, name)(key, shape=(5,)) for name in names}
    drawn["gamma"] = jax.random.gamma(key, 2.0, (3,))
    drawn["permutation"] = jax.random.permutation(key, 7)
    drawn["choice"] = jax.random.choice(key, jnp.arange(9), (4,), replace=False)
    return drawn


@model
def linear_algebra_of_batches() -> Any:
    x = jnp.asarray(values(3, 4, 4))
    symmetric = x @ x.mT + 4 * jnp.eye(4)
    return {
        "svd": jnp.linalg.svd(x, compute_uv=False),
        "eigh": jnp.linalg.eigh(symmetric)[0],
        "eig": jnp.abs(jnp.linalg.eigvals(symmetric)),
        "lu": jax.scipy.linalg.lu(x[0]),
        "solve": jax.scipy.linalg.solve_triangular(x[0], jnp.ones(4), lower=True),
        "det": jnp.linalg.slogdet(x),
        "fft": jnp.fft.rfft2(x),
        "expm": jax.scipy.linalg.expm(x[0]),
    }


@model
def transformations_of_functions() -> Any:
    @jax.custom_vjp
    def clipped(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.clip(ct * jnp.cos(x), -0.5, 0.5),))

    x = jnp.asarray(values(4, 4))
    f = lambda x: clipped(x).sum() + jnp.prod(jnp.cos(x[0]))  # noqa: E731
    return {
        "grad": jax.grad(f)(x),
        "jvp": jax.jvp(lambda x: jnp.tanh(x @ x), (x,), (x,)),
        "linearize": jax.linearize(jnp.sin, x)[1](x),
        "jacobian": jax.jacfwd(lambda v: jnp.cumsum(v) ** 2)(x[0]),
        "hessian": jax.hessian(lambda v: jnp.sum(v**3))(x[0]),
        "scan of vmap": jax.lax.scan(lambda c, r: (c + r, jax.vmap(jnp.sin)(c)), x[0], x),
        "associative": jax.lax.associative_scan(jnp.multiply, x),
        "switch": jax.vmap(lambda i: jax.lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], 1.0))(jnp.arange(3)),
        "fori": jax.lax.fori_loop(0, 5, lambda i, c: c @ x + i, x),
        "map": jax.lax.map(lambda row: row @ row, x, batch_size=2),
        "conv": jax.lax.conv(values(1, 2, 6, 6), values(3, 2, 3, 3), (1, 1), "SAME"),
        "sort": jax.lax.sort((x, -x), num_keys=1),
        "top": jax.lax.top_k(x, 2),
    }


@model
def collectives_of_shard_map() -> Any:
    across = mesh(x=4, y=2)

    @jax.jit
    @functools.partial(jax.shard_map, mesh=across, in_specs=P("x", "y"), out_specs=P("x", "y"))
    def body(x: jax.Array) -> Any:
        gathered = jax.lax.all_gather(x, "x", tiled=True)
        scattered = jax.lax.psum_scatter(gathered, "x", tiled=True)
        exchanged = jax.lax.all_to_all(x, "y", 1, 1, tiled=True)
        largest = jax.lax.pmax(x, ("x", "y"))
        return scattered, exchanged, x - largest, jax.lax.pmean(x, "y") * x

    return body(values(8, 8))


@model
def shardings_of_results() -> Any:
    """Returns the shardings of a compiled program's arguments and results, and the places of the results."""
    across = mesh(x=4, y=2)
    shardings = NamedSharding(across, P("x", "y")), NamedSharding(across, P(None, "y"))
    compiled = (
        jax.jit(
            lambda x: (x + 1, x.sum(0, keepdims=True)), in_shardings=shardings[0], out_shardings=shardings
        )
        .lower(jax.ShapeDtypeStruct((8, 4), np.float32))
        .compile()
    )
    results = compiled(jax.device_put(values(8, 4), shardings[0]))
    shardings = [str(compiled.input_shardings), str(compiled.output_shardings)]
    shards = [[(s.device.id, s.index, s.data) for s in result.addressable_shards] for result in results]
    return (
        results,
        shardings,
        [[(number, str(index), data) for number, index, data in each] for each in shards],
    )


@model
def exported_for_a_mesh() -> Any:
    across = mesh(x=8)
    x = jax.device_put(values(8, 2), NamedSharding(across, P("x")))
    exported = jax.export.export(jax.jit(lambda x: x / x.sum()))(x)
    again = jax.export.deserialize(exported.serialize(vjp_order=1))
    assert again.nr_devices == 8
    return jax.jit(again.call)(x), jax.jit(jax.grad(lambda x: again.call(x)[0, 0]))(x)


@model
def donation_in_a_loop() -> Any:
    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, x: jax.Array) -> Any:
        return {"w": state["w"] * 0.9 + x, "n": state["n"] + 1}, state["w"].sum()

    state = {"w": jnp.zeros((8, 8)), "n": jnp.int32(0)}
    totals, deleted = [], []
    for i in range(20):
        old = state
        state, total = step(state, jnp.full((8, 8), i, jnp.float32))
        totals.append(total)
        deleted.append([array.is_deleted() for array in old.values()])
    return state, totals, deleted


@model
def optimizers_of_optax() -> Any:
    params = {"w": jnp.asarray(values(4, 4)), "b": jnp.zeros(4)}
    loss = lambda p: jnp.sum((p["w"] @ p["w"] + p["b"]) ** 2)  # noqa: E731
    results = {}
    for name in ("sgd", "adam", "adamw", "lion", "rmsprop", "adagrad", "lamb", "adafactor"):
        chain = optax.chain(optax.clip_by_global_norm(1.0), getattr(optax, name)(1e-2))
        state, found = chain.init(params), params
        update = jax.jit(chain.update)
        for _ in range(3):
            updates, state = update(jax.grad(loss)(found), state, found)
            found = optax.apply_updates(found, updates)
        results[name] = found
    return results


@model
def flax_linen() -> Any:
    from flax import linen

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array, train: bool) -> jax.Array:
            x = linen.BatchNorm(use_running_average=not train)(linen.Dense(8)(x))
            x = linen.Dropout(0.5, deterministic=not train)(linen.relu(x))
            return linen.Dense(2)(linen.LayerNorm()(x))

    network = Network()
    x = jnp.asarray(values(6, 4))
    variables = network.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, x, train=False)

    @jax.jit
    def step(variables: Any, key: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            out, changed = network.apply(
                {**variables, "params": params}, x, train=True, rngs={"dropout": key}, mutable=["batch_stats"]
            )
            return jnp.mean(out**2), changed

        (value, changed), slopes = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        params = jax.tree.map(lambda p, g: p - 0.1 * g, variables["params"], slopes)
        return {"params": params, **changed}, value

    losses = []
    for key in jax.random.split(jax.random.key(2), 4):
        variables, value = step(variables, key)
        losses.append(value)
    return jax.tree.leaves(variables), losses


@model
def flax_nnx() -> Any:
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Linear(4, 8, rngs=rngs)
            self.second = nnx.Linear(8, 2, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.second(nnx.gelu(self.first(x)))

    network = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(network, optax.adam(1e-2), wrt=nnx.Param)
    x = jnp.asarray(values(6, 4))

    @nnx.jit
    def step(network: Network, optimizer: Any, x: jax.Array) -> jax.Array:
        value, slopes = nnx.value_and_grad(lambda network: jnp.mean(network(x) ** 2))(network)
        optimizer.update(network, slopes)
        return value

    losses = [step(network, optimizer, x) for _ in range(4)]
    return losses, jax.tree.leaves(nnx.state(network))


@model
def equinox_modules() -> Any:
    import equinox

    network = equinox.nn.MLP(4, 2, 8, 2, key=jax.random.key(0))
    x = jnp.asarray(values(6, 4))

    @equinox.filter_jit
    def step(network: Any, x: jax.Array) -> Any:
        value, slopes = equinox.filter_value_and_grad(lambda n: jnp.mean(jax.vmap(n)(x) ** 2))(network)
        return equinox.apply_updates(network, jax.tree.map(lambda g: -0.1 * g, slopes)), value

    losses = []
    for _ in range(4):
        network, value = step(network, x)
        losses.append(value)
    return losses, [leaf for leaf in jax.tree.leaves(network) if equinox.is_array(leaf)]


@model
def saved_and_restored_by_orbax() -> Any:
    import orbax.checkpoint

    across, other = mesh(x=4, y=2), mesh(z=8)
    state = {
        "w": jax.device_put(values(8, 4), NamedSharding(across, P("x", "y"))),
        "n": jnp.int32(3),
        "half": jnp.asarray(values(8), jnp.bfloat16),
    }
    with tempfile.TemporaryDirectory() as folder, orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path(folder) / "state", state)
        checkpointer.wait_until_finished()
        shapes = jax.tree.map(orbax.checkpoint.utils.to_shape_dtype_struct, state)
        shapes["w"] = jax.ShapeDtypeStruct((8, 4), np.float32, sharding=NamedSharding(other, P("z")))
        restored = checkpointer.restore(Path(folder) / "state", shapes)
    assert restored["w"].sharding == NamedSharding(other, P("z"))
    return restored


@model
def a_transformer_on_a_mesh() -> Any:
    """Trains four layers in a scan with rematerialization on 2 x 4 devices, with donated state."""
    across = mesh(data=2, model=4)
    width, heads, layers, vocabulary = 16, 4, 4, 32
    specs = {"qkv": P(None, None, "model"), "out": P(None, "model"), "up": P(None, None, "model")}
    specs |= {"down": P(None, "model"), "embed": P(None, "model")}
    shapes = {"qkv": (layers, width, 3 * width), "out": (layers, width, width)}
    shapes |= {
        "up": (layers, width, 4 * width),
        "down": (layers, 4 * width, width),
        "embed": (vocabulary, width),
    }
    keys = dict(zip(shapes, jax.random.split(jax.random.key(0), len(shapes)), strict=True))
    make = jax.jit(
        lambda keys: {name: 0.1 * jax.random.normal(keys[name], shapes[name]) for name in shapes},
        out_shardings={name: NamedSharding(across, spec) for name, spec in specs.items()},
    )
    params = make(keys)
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 6))

    def normed(x: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)

    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    def layer(x: jax.Array, w: Any) -> Any:
        batch, length, _ = x.shape
        q, k, v = (
            part.reshape(batch, length, heads, -1) for part in jnp.split(normed(x) @ w["qkv"], 3, axis=-1)
        )
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(batch, length, width)
        x = x + mixed @ w["out"]
        x = x + jax.nn.gelu(normed(x) @ w["up"]) @ w["down"]
        return jax.lax.with_sharding_constraint(x, NamedSharding(across, P("data"))), None

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["embed"][tokens[:, :-1]]
        x, _ = jax.lax.scan(layer, x, {name: params[name] for name in ("qkv", "out", "up", "down")})
        logits = normed(x) @ params["embed"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any, tokens: jax.Array) -> Any:
        value, slopes = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimizer.update(slopes, state, params)
        return optax.apply_updates(params, updates), state, value

    state = jax.jit(optimizer.init)(params)
    tokens = np.random.default_rng(0).integers(0, vocabulary, (4, 9))
    batch = jax.device_put(tokens, NamedSharding(across, P("data")))
    losses = []
    for _ in range(6):
        old = params
        params, state, value = step(params, state, batch)
        assert all(array.is_deleted() for array in old.values())
        losses.append(value)
    assert losses[-1] < losses[0]
    return losses, params


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(pickle.dumps(run_all(MODELS)))
