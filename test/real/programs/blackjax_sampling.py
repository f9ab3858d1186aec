"""blackjax: NUTS with window adaptation, and tempered sequential Monte Carlo."""

from __future__ import annotations

import blackjax
import jax
import jax.numpy as jnp
from blackjax.smc import resampling
from report import report


def log_density(x):
    return -jnp.sum(jnp.square(x["a"] - 1.0)) - 0.5 * jnp.square(x["b"] * x["a"][0])


key = jax.random.key(0)
start = {"a": jnp.zeros(3), "b": jnp.ones(())}
(state, parameters), _ = blackjax.window_adaptation(blackjax.nuts, log_density).run(key, start, 100)
nuts = blackjax.nuts(log_density, **parameters)


@jax.jit
def sample(key, state):
    return jax.lax.scan(lambda state, key: nuts.step(key, state), state, jax.random.split(key, 100))


state, info = sample(key, state)
report("nuts", {"position": state.position, "steps": info.num_integration_steps})

hmc = {
    "step_size": jnp.full(1, 0.1),
    "inverse_mass_matrix": jnp.eye(2)[None],
    "num_integration_steps": jnp.full(1, 5),
}
tempered = blackjax.adaptive_tempered_smc(
    lambda x: -0.5 * jnp.sum(x**2),
    lambda x: -10.0 * jnp.sum(jnp.square(x - 1.0)),
    blackjax.hmc.build_kernel(),
    blackjax.hmc.init,
    hmc,
    resampling.systematic,
    target_ess=0.5,
    num_mcmc_steps=3,
)
state = tempered.init(jax.random.normal(key, (64, 2)))
step = jax.jit(tempered.step)
for number in range(3):
    state, _ = step(jax.random.key(number), state)
report("smc", {"particles": state.particles, "tempering": state.tempering_param})
