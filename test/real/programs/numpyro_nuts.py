"""numpyro: a hierarchical model sampled by NUTS, chains one after the other and side by side."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from report import report

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools() -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(EFFECTS)):
        offset = numpyro.sample("offset", dist.Normal(0, 1))
        numpyro.sample(
            "effect", dist.Normal(mu + tau * offset, jnp.asarray(ERRORS)), obs=jnp.asarray(EFFECTS)
        )


for method in ("sequential", "vectorized", "parallel"):
    # Its progress bar is a callback, which JAX's client does not have.
    chains = MCMC(
        NUTS(schools), num_warmup=50, num_samples=50, num_chains=2, chain_method=method, progress_bar=False
    )
    chains.run(jax.random.key(0))
    report(method, chains.get_samples(group_by_chain=True))
