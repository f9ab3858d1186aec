"""Models of other shapes than a stack of layers, whose training steps `cold.py` compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pathways

Params = Any
Place = Callable[[Callable[..., Any], int], Callable[..., Any]]
"""Function that places another on the slice of a number."""
Model = Callable[[int], tuple[Callable[[Place], Callable[..., Any]], tuple[Any, ...]]]
"""Function from a number of microbatches to the function that creates the step, and its arguments."""

_RATE = 0.01
_WIDTH, _HEADS, _LENGTH, _ROWS, _VOCABULARY = 64, 4, 32, 8, 256


def _random(*shape: int) -> np.ndarray:
    scale = shape[0] ** -0.5
    return (np.random.default_rng(sum(shape)).standard_normal(shape) * scale).astype(np.float32)


def _norm(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)


def _descend(params: Params, gradients: Params) -> Params:
    return jax.tree.map(lambda p, g: p - _RATE * g, params, gradients)


def _training(loss: Callable[..., jax.Array], microbatches: int) -> Callable[..., Any]:
    def step(params: Params, batch: Any) -> Any:
        value, gradients = pathways.accumulate(jax.value_and_grad(loss), microbatches)(params, batch)
        return value, _descend(params, gradients)

    return step


def _attention(params: Params, x: jax.Array, memory: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    def heads(v: jax.Array) -> jax.Array:
        return v.reshape(*v.shape[:2], _HEADS, -1)

    queries, keys, values = heads(x @ params["q"]), heads(memory @ params["k"]), heads(memory @ params["v"])
    scores = jnp.einsum("blhd,bmhd->bhlm", queries, keys) * (_WIDTH // _HEADS) ** -0.5
    scores = scores if mask is None else jnp.where(mask, scores, -1e9)
    mixed = jnp.einsum("bhlm,bmhd->blhd", jax.nn.softmax(scores), values)
    return mixed.reshape(x.shape) @ params["o"]


def _attention_params() -> Params:
    return {name: _random(_WIDTH, _WIDTH) for name in "qkvo"}


def encoder_decoder(microbatches: int) -> tuple[Callable[[Place], Callable[..., Any]], tuple[Any, ...]]:
    """Returns two layers that encode and two that decode, with one embedding for both and for the logits."""

    def mlp(params: Params, x: jax.Array) -> jax.Array:
        return jax.nn.relu(_norm(x) @ params["up"]) @ params["down"]

    def encode(params: Params, embedding: jax.Array, tokens: jax.Array) -> jax.Array:
        x = embedding[tokens]
        for layer in params:
            x = x + _attention(layer["self"], _norm(x), _norm(x))
            x = x + mlp(layer["mlp"], x)
        return _norm(x)

    def decode(params: Params, embedding: jax.Array, tokens: jax.Array, memory: jax.Array) -> jax.Array:
        x = embedding[tokens]
        mask = jnp.tril(jnp.ones((_LENGTH, _LENGTH), bool))
        for layer in params:
            x = x + _attention(layer["self"], _norm(x), _norm(x), mask)
            x = x + _attention(layer["cross"], _norm(x), memory)
            x = x + mlp(layer["mlp"], x)
        logits = _norm(x) @ embedding.T
        return -jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], -1).mean()

    def make(place: Place) -> Callable[..., Any]:
        encoder, decoder = place(encode, 0), place(decode, 1)

        def loss(params: Params, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
            source, target = batch
            memory = encoder(params["encoder"], params["embedding"], source)
            return decoder(params["decoder"], params["embedding"], target, memory)

        return _training(loss, microbatches)

    def layer(*attentions: str) -> Params:
        up = {"up": _random(_WIDTH, 4 * _WIDTH), "down": _random(4 * _WIDTH, _WIDTH)}
        return {name: _attention_params() for name in attentions} | {"mlp": up}

    params = {
        "embedding": _random(_VOCABULARY, _WIDTH),
        "encoder": [layer("self") for _ in range(2)],
        "decoder": [layer("self", "cross") for _ in range(2)],
    }
    tokens = np.zeros((_ROWS * microbatches, _LENGTH), np.int32)
    return make, (params, (tokens, tokens))


def unet(microbatches: int) -> tuple[Callable[[Place], Callable[..., Any]], tuple[Any, ...]]:
    """Returns convolutions down on one slice, and up on another, with a skip connection for each level."""
    channels = (8, 16, 32)

    def convolve(kernel: jax.Array, x: jax.Array, stride: int = 1) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=numbers)

    def block(params: Params, x: jax.Array) -> jax.Array:
        x = jax.nn.silu(_norm(convolve(params["first"], x)))
        return jax.nn.silu(_norm(convolve(params["second"], x)))

    def down(params: Params, x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        skips = []
        for level in params:
            skips.append(block(level["block"], x))
            x = convolve(level["stride"], skips[-1], 2)
        return x, skips

    def up(params: Params, x: jax.Array, skips: list[jax.Array], target: jax.Array) -> jax.Array:
        x = block(params["middle"], x)
        for level, skip in zip(params["levels"], reversed(skips), strict=True):
            x = jax.image.resize(x, (*skip.shape[:3], x.shape[-1]), "nearest")
            x = block(level, jnp.concatenate([x, skip], -1))
        return ((convolve(params["last"], x) - target) ** 2).mean()

    def make(place: Place) -> Callable[..., Any]:
        front, back = place(down, 0), place(up, 1)

        def loss(params: Params, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
            image, target = batch
            return back(params["up"], *front(params["down"], image), target)

        return _training(loss, microbatches)

    def kernels(inputs: int, outputs: int) -> Params:
        return {"first": _random(3, 3, inputs, outputs), "second": _random(3, 3, outputs, outputs)}

    ways = list(zip((3, *channels), channels, strict=False))
    params = {
        "down": [{"block": kernels(i, o), "stride": _random(3, 3, o, o)} for i, o in ways],
        "up": {
            "middle": kernels(channels[-1], 2 * channels[-1]),
            "levels": [
                kernels((2 * channels[-1] if o == channels[-1] else 2 * o) + o, o) for _, o in reversed(ways)
            ],
            "last": _random(3, 3, channels[0], 3),
        },
    }
    image = np.zeros((4 * microbatches, 16, 16, 3), np.float32)
    return make, (params, (image, image))


def recurrent(microbatches: int) -> tuple[Callable[[Place], Callable[..., Any]], tuple[Any, ...]]:
    """Returns a scan over time that calls a placed cell, and a head on another slice."""

    def cell(params: Params, state: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden, kept = state
        i, f, g, o = jnp.split(jnp.concatenate([x, hidden], -1) @ params["w"] + params["b"], 4, -1)
        kept = jax.nn.sigmoid(f) * kept + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(kept), kept

    def head(params: Params, hidden: jax.Array, target: jax.Array) -> jax.Array:
        logits = jax.nn.relu(hidden @ params["up"]) @ params["down"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), target[:, None], -1).mean()

    def make(place: Place) -> Callable[..., Any]:
        one, last = place(cell, 0), place(head, 1)

        def loss(params: Params, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
            sequence, target = batch
            state = (jnp.zeros((sequence.shape[0], _WIDTH)),) * 2

            def iterate(state: Any, x: jax.Array) -> Any:
                return one(params["cell"], state, x), None

            (hidden, _), _ = jax.lax.scan(iterate, state, jnp.swapaxes(sequence, 0, 1))
            return last(params["head"], hidden, target)

        return _training(loss, microbatches)

    params = {
        "cell": {"w": _random(2 * _WIDTH, 4 * _WIDTH), "b": np.zeros(4 * _WIDTH, np.float32)},
        "head": {"up": _random(_WIDTH, 2 * _WIDTH), "down": _random(2 * _WIDTH, _VOCABULARY)},
    }
    rows = _ROWS * microbatches
    return make, (params, (np.zeros((rows, _LENGTH, _WIDTH), np.float32), np.zeros(rows, np.int32)))


def adam(
    microbatches: int, leaves: int = 200
) -> tuple[Callable[[Place], Callable[..., Any]], tuple[Any, ...]]:
    """Returns Adam over many leaves: weights and biases of layers on two slices."""
    layers = leaves // 4

    def stack(params: list[Params], x: jax.Array) -> jax.Array:
        for layer in params:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return x

    def last(params: list[Params], x: jax.Array, target: jax.Array) -> jax.Array:
        return ((stack(params, x) - target) ** 2).mean()

    def update(count: jax.Array, p: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        rate = _RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        return p - rate * m / (jnp.sqrt(v) + 1e-8), m, v

    def make(place: Place) -> Callable[..., Any]:
        front, back = place(stack, 0), place(last, 1)

        def loss(params: Params, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
            return back(params[1], front(params[0], batch[0]), batch[1])

        def step(state: Any, batch: Any) -> Any:
            params, moments, variances, count = state
            value, gradients = pathways.accumulate(jax.value_and_grad(loss), microbatches)(params, batch)
            count = count + 1
            tree = jax.tree.structure(params)
            every = [
                update(count, *of)
                for of in zip(*map(jax.tree.leaves, (params, gradients, moments, variances)), strict=True)
            ]
            return value, (*(tree.unflatten(of) for of in zip(*every, strict=True)), count)

        return step

    params = [
        [{"w": _random(_WIDTH, _WIDTH), "b": np.zeros(_WIDTH, np.float32)} for _ in range(layers)]
        for _ in range(2)
    ]
    zeros = jax.tree.map(np.zeros_like, params)
    rows = np.zeros((_ROWS * microbatches, _WIDTH), np.float32)
    return make, ((params, zeros, zeros, np.float32(0)), (rows, rows))


MODELS: dict[str, Model] = {
    "encoder-decoder": encoder_decoder,
    "U-Net with skips": unet,
    "scan of a placed cell": recurrent,
    "Adam over 200 leaves": adam,
}
"""The models by name; each has two slices."""
