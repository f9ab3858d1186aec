# RUN: python %s | filecheck %s

"""Clipping by the global norm over twelve layers on two slices, then AdamW. Dictionary leaves are sorted as
layer_0, layer_1, layer_10, ..., so the chain of sums alternates between slices; still one scalar crosses each
way, and the step counter does not cross at all."""

import jax
import jax.numpy as jnp
import optax

import pathways as pw

devices = pw.make_virtual_device_set()
s0, s1 = (devices.add_slice((1,), ("x",), name=name) for name in ("s0", "s1"))
layers = [pw.jit(lambda w, x: jnp.tanh(x @ w), devices=s0 if n < 6 else s1) for n in range(12)]
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 100)))


def loss(weights, x):
    for n, layer in enumerate(layers):
        x = layer(weights[f"layer_{n}"], x)
    return jnp.sum(x**2)


@pw.program(donate_argnums=0)
def step(state, x):
    weights, optimizer_state = state
    gradients = jax.grad(loss)(weights, x)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, weights)
    return optax.apply_updates(weights, updates), optimizer_state


weights = {f"layer_{n}": jax.ShapeDtypeStruct((32, 32), "float32") for n in range(12)}
state = (weights, jax.eval_shape(optimizer.init, weights))
print(step.lower(state, jax.ShapeDtypeStruct((8, 32), "float32")).as_text("scheduled"))

# CHECK: func.func public @main(
# CHECK: "pw.transfer"({{.*}}slice = @s1} : (tensor<8x32xf32>)
# CHECK: "pw.transfer"({{.*}}slice = @s0} : (tensor<8x32xf32>)
# CHECK: "pw.transfer"({{.*}} : (tensor<f32>)
# CHECK: "pw.transfer"({{.*}} : (tensor<f32>)
# CHECK-NOT: "pw.transfer"
# CHECK: "pw.mirror"({{.*}}) : (tensor<i32>, tensor<i32>) -> tensor<i32>
# CHECK: return
