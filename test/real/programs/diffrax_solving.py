"""diffrax: adaptive with a gradient, implicit and stochastic solves, and a neural differential equation."""

from __future__ import annotations

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from report import report


def pendulum(t, y, length):
    return jnp.stack([y[1], -9.81 / length * jnp.sin(y[0])])


@jax.jit
@jax.value_and_grad
def final_angle(length):
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(pendulum),
        diffrax.Tsit5(),
        0.0,
        2.0,
        None,
        jnp.array([1.0, 0.0]),
        length,
        stepsize_controller=diffrax.PIDController(1e-5, 1e-5),
    )
    return solution.ys[-1, 0]


report("adaptive", final_angle(jnp.float32(1.5)))

robertson = jnp.array([0.04, 3e7, 1e4])


def stiff(t, y, k):
    a, b, c = -k[0] * y[0], k[2] * y[1] * y[2], k[1] * y[1] ** 2
    return jnp.stack([a + b, -a - b - c, c])


report(
    "implicit",
    diffrax.diffeqsolve(
        diffrax.ODETerm(stiff),
        diffrax.Kvaerno5(),
        0.0,
        10.0,
        2e-4,
        jnp.array([1.0, 0.0, 0.0]),
        robertson,
        stepsize_controller=diffrax.PIDController(1e-4, 1e-6),
    ).ys,
)

path = diffrax.VirtualBrownianTree(0.0, 1.0, 1e-3, (), jax.random.key(0))
terms = diffrax.MultiTerm(
    diffrax.ODETerm(lambda t, y, _: -y), diffrax.ControlTerm(lambda t, y, _: 0.1 * t, path)
)
report("stochastic", diffrax.diffeqsolve(terms, diffrax.Euler(), 0.0, 1.0, 0.05, jnp.float32(1.0)).ys)

network = eqx.nn.MLP(2, 2, 16, 2, key=jax.random.key(1))
times = jnp.linspace(0.0, 1.0, 5)
target = jnp.stack([jnp.cos(times), jnp.sin(times)], 1)
optimizer = optax.adam(1e-2)
optimizer_state = optimizer.init(eqx.filter(network, eqx.is_array))


@eqx.filter_jit
def step(network, state):
    def loss(network):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, _: network(y)),
            diffrax.Tsit5(),
            0.0,
            1.0,
            0.1,
            target[0],
            saveat=diffrax.SaveAt(ts=times),
        )
        return jnp.mean(jnp.square(solution.ys - target))

    value, gradients = eqx.filter_value_and_grad(loss)(network)
    updates, state = optimizer.update(gradients, state)
    return value, eqx.apply_updates(network, updates), state


for number in range(3):
    loss, network, optimizer_state = step(network, optimizer_state)
    report(f"neural {number}", loss)
