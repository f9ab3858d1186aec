"""flax nnx: a network with dropout and batch statistics, trained data-parallel by optax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from report import report


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        return self.out(self.dropout(x.mean((1, 2))))


@nnx.jit
def step(model, optimizer, images, labels):
    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
rows = NamedSharding(mesh, PartitionSpec("data"))
model = Network(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
random = np.random.default_rng(0)
for number in range(6):
    images = random.normal(size=(32, 8, 8, 1)).astype(np.float32)
    labels = random.integers(0, 10, 32)
    loss = step(model, optimizer, *jax.device_put((images, jnp.asarray(labels)), rows))
    report(f"loss {number}", loss)
report("state", nnx.to_pure_dict(nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat))))
