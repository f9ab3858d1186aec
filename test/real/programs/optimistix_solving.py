"""optimistix and lineax: roots, least squares, minima, fixed points, and a gradient through one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import lineax
import optimistix as optx
from report import report


def residuals(x, scale):
    return jnp.stack([10.0 * (x[1] - x[0] ** 2), 1.0 - x[0]]) * scale


def loss(x, scale):
    return jnp.sum(jnp.square(residuals(x, scale)))


start, scale = jnp.array([-1.2, 1.0]), jnp.float32(1.0)
report("newton", optx.root_find(residuals, optx.Newton(1e-5, 1e-5), start, scale).value)
report(
    "levenberg-marquardt",
    optx.least_squares(residuals, optx.LevenbergMarquardt(1e-5, 1e-5), start, scale).value,
)
report("bfgs", optx.minimise(loss, optx.BFGS(1e-5, 1e-5), start, scale, max_steps=500).value)
report("nelder-mead", optx.minimise(loss, optx.NelderMead(1e-4, 1e-4), start, scale, max_steps=500).value)


def cosine_fixed_point(scale):
    solver = optx.FixedPointIteration(1e-5, 1e-5)
    return optx.fixed_point(lambda y, s: jnp.cos(s * y), solver, jnp.float32(0.5), scale).value


report("fixed point", jax.jit(jax.value_and_grad(cosine_fixed_point))(scale))

matrix = jax.random.normal(jax.random.key(0), (8, 8))
operator = lineax.MatrixLinearOperator(matrix @ matrix.T + jnp.eye(8), lineax.positive_semidefinite_tag)
for solver in (lineax.Cholesky(), lineax.CG(1e-6, 1e-6), lineax.AutoLinearSolver(well_posed=True)):
    report(type(solver).__name__, lineax.linear_solve(operator, jnp.ones(8), solver).value)
